package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Inspection holds what a page on the faults of a set of images shows.
type Inspection struct {
	Frame
	Sections []FindingSection
	Classes  []evaluation.InspectedClass
	Overlaps []evaluation.ClassOverlap
	Odd      []Finding
	Failed   []features.Failure // images that could not be read when the features were made
	Head     string             // the first line of issues.csv; "" without boxes to tick
}

// FindingSection is findings of one kind.
type FindingSection struct {
	ID, Title, Note string
	Total           int       // of findings; the page may show fewer
	Shown           []Finding // the most certain first
}

// Finding is an image with which something may be wrong.
type Finding struct {
	Image     images.Picture
	Suggested string          // the class that it seems to be of; "" for none
	Score     string          // how certain it is; "" for none
	What      string          // in words; "" for none
	Other     *images.Picture // that shows the same; nil for none
	// Line is that of issues.csv, for what a person ticks; "" for none. Ticked says that the
	// image is ticked at first.
	Line   string
	Ticked bool
	// OtherLine is that of Other, for a person to leave out that one; "" for none.
	OtherLine string
}

// inspectionView is an Inspection as the page's template reads it.
type inspectionView struct {
	Page         layout
	Head         string
	Filter       []choice
	Sections     []sectionView
	Failed       failures
	ClassTable   table
	OverlapTable *table
}

// sectionView is a FindingSection as the page's template reads it.
type sectionView struct {
	FindingSection
	Tiles []*tile
}

// WriteInspection writes the page to report.html in the folder dir, which it makes
// if necessary.
func WriteInspection(dir string, in Inspection) error {
	if err := Check(dir); err != nil {
		return err
	}
	v := inspectionView{Head: in.Head, Page: layout{Frame: in.titled("What is wrong with the images"), Album: &album{}}}
	odd := FindingSection{ID: "odd", Title: "Odd files", Total: len(in.Odd), Shown: in.Odd,
		Note: "Images that are blank, blurred, or of an unusual size or shape. They may be right."}
	for _, s := range append(slices.Clone(in.Sections), odd) {
		if s.Total == 0 {
			continue
		}
		view := sectionView{FindingSection: s}
		for _, f := range s.Shown {
			view.Tiles = append(view.Tiles, v.Page.Album.finding(f))
		}
		v.Sections = append(v.Sections, view)
		v.Page.Links = append(v.Page.Links, link{s.ID, fmt.Sprintf("%s (%d)", s.Title, s.Total)})
	}
	v.Failed = v.Page.failed(in.Failed)
	v.Page.Links = append(v.Page.Links, link{"classes", "Classes"})
	v.Page.Album.load()
	v.tables(in)
	return writePage(filepath.Join(dir, "report.html"), "inspection.html", v)
}

// finding returns the tile of a finding.
func (a *album) finding(f Finding) *tile {
	t := &tile{picture: a.of(f.Image, verdictSide), Class: f.Image.Label, Also: f.Suggested, Review: f.Line, Mark: "act on it", Ticked: f.Ticked}
	if f.OtherLine != "" {
		t.Mark = "leave out"
	}
	t.says(tileLine{"label", f.Image.Label, false}, tileLine{"seems", f.Suggested, true}, tileLine{"is", f.What, false}, tileLine{"certainty", f.Score, false})
	if f.Other != nil {
		t.sized = true
		t.Other = &tile{picture: a.of(*f.Other, verdictSide), Review: f.OtherLine, Mark: t.Mark, sized: true}
		t.Other.says(tileLine{"label", f.Other.Label, false})
	}
	return t
}

// tables makes the tables of the classes, and the filter by them.
func (v *inspectionView) tables(in Inspection) {
	classes := choice{Label: "Show images of the class", Keys: "class also"}
	v.ClassTable = table{Caption: "Images of each class, and what may be wrong with them", Head: "class",
		Columns: []string{"images", "predicted right", "labels that seem wrong", "copies", "in the test set", "outliers"}}
	for _, c := range in.Classes {
		classes.Options = append(classes.Options, c.Name)
		rows := whole(c.Rows)
		if c.Rows < evaluation.FewImages {
			rows.Mean, rows.Wrong = rows.Mean+" (few)", true
		}
		v.ClassTable.Rows = append(v.ClassTable.Rows, tableRow{c.Name, []tableCell{rows,
			shareCell(c.Accuracy), whole(c.Wrong), whole(c.Copies), whole(c.Leaked), whole(c.Outliers)}})
	}
	if len(classes.Options) > 1 {
		v.Filter = []choice{classes}
	}
	if len(in.Overlaps) == 0 {
		return
	}
	v.OverlapTable = &table{Caption: "Images of a class that are predicted as another", Head: "images labelled", Columns: []string{"are predicted as", "images", "of the class"}}
	for _, o := range in.Overlaps {
		v.OverlapTable.Rows = append(v.OverlapTable.Rows, tableRow{o.Label, []tableCell{
			{Mean: o.Predicted, Sort: o.Predicted}, whole(o.Rows), shareCell(o.Share)}})
	}
}
