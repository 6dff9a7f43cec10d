package report

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/parallel"
)

// Inspection holds what a page on the faults of a set of images shows.
type Inspection struct {
	Title    string // "" means "What is wrong with the images"
	Lead     []string
	Sections []FindingSection
	Classes  []InspectedClass
	Overlaps []ClassOverlap
	Odd      []Finding
	Notes    []string // what was not looked at, and why
	Commands []string
	Facts    []Fact
}

// FindingSection is findings of one kind.
type FindingSection struct {
	ID, Title, Note string
	Total           int       // of findings; the page may show fewer
	Shown           []Finding // the most certain first
}

// Finding is an image with which something may be wrong.
type Finding struct {
	Image     Image
	Suggested string // the class that it seems to be of; "" for none
	Score     string // how certain it is; "" for none
	What      string // in words; "" for none
	Other     *Image // that shows the same; nil for none
}

// InspectedClass is a line of the table of classes.
type InspectedClass struct {
	Name                                  string
	Rows, Wrong, Copies, Leaked, Outliers int
	Accuracy                              string
	Few                                   bool // too few images
}

// ClassOverlap says how often a class is predicted for the images of another.
type ClassOverlap struct {
	Label, Predicted string
	Rows             int
	Share            string
}

//go:embed inspection.html inspection.js
var inspectionAssets embed.FS

// inspectionPage shares the template of a picture with the page of an evaluation.
var inspectionPage = template.Must(template.Must(template.New("inspection.html").ParseFS(assets, "page.html")).ParseFS(inspectionAssets, "inspection.html"))

// findingView is a Finding with its thumbnails.
type findingView struct {
	Finding
	Picture picture
	Second  *picture
}

// sectionView is a FindingSection as the template reads it.
type sectionView struct {
	FindingSection
	Items []*findingView
}

// WriteInspection writes the page to report.html in the folder dir, which it makes
// if necessary.
func WriteInspection(dir string, in Inspection) error {
	if err := Check(dir); err != nil {
		return err
	}
	css, err := assets.ReadFile("style.css")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	script, err := inspectionAssets.ReadFile("inspection.js")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	in.Title = cmp.Or(in.Title, "What is wrong with the images")
	v := struct {
		Inspection
		Style    template.CSS
		Script   template.JS
		Sections []*sectionView
	}{Inspection: in, Style: template.CSS(pageColours() + strings.TrimSpace(string(css))), Script: template.JS(script)}
	odd := FindingSection{ID: "odd", Title: "Odd files", Total: len(in.Odd), Shown: in.Odd,
		Note: "Images that are blank, blurred, or of an unusual size or shape. They may be right."}
	var all []*findingView
	for _, s := range append(in.Sections, odd) {
		view := &sectionView{FindingSection: s}
		for _, f := range s.Shown {
			view.Items = append(view.Items, &findingView{Finding: f})
		}
		all = append(all, view.Items...)
		v.Sections = append(v.Sections, view)
	}
	parallel.Each(runtime.GOMAXPROCS(0), len(all), func(i int) {
		f := all[i]
		f.Picture = pictureOf(f.Image)
		if f.Other != nil {
			other := pictureOf(*f.Other)
			f.Second = &other
		}
	})
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = atomicfile.Write(filepath.Join(dir, "report.html"), func(w io.Writer) error {
		return inspectionPage.Execute(w, v)
	})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// pictureOf reads an image's thumbnail.
func pictureOf(img Image) picture {
	p := picture{Image: img}
	if img.Decode != nil {
		p.Thumbnail = thumbnail(img.Decode)
	}
	return p
}
