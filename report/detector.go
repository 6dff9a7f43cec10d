package report

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Detector is what the page of a detector shows: the summary, and what the caller says of
// it. A section with nothing to show is left out.
type Detector struct {
	*evaluation.Summary
	Title    string // "" means "A detector"
	Lead     []string
	Notes    []string // what is missing, and why
	Commands []string
	Facts    []evaluation.Fact
	Change   *Change // what adding images did; nil for none
}

// Change says what adding images to a detector did.
type Change struct {
	Old     string // file of the detector before
	Added   []detector.AddedClass
	Note    string // which images the classes are compared on
	Classes []detector.ChangedClass
	All     detector.ChangedClass // of all classes that the old detector knew
}

// CheckDetector returns an error if WriteDetector could not write to the file. Call it
// before long work. A file that this package did not make is never replaced.
func CheckDetector(file string) error { return checkPage(file) }

// detectorView is a Detector as the page's template reads it.
type detectorView struct {
	Detector
	Page           layout
	ChangeTable    *table
	AddedTable     *table
	ClassTable     table
	ConfusionTable *confusionTable
	Confused       *table // where there are too many classes for a matrix
	HeldOutTable   *table
	HeldOutChart   []*Chart
	AlarmChart     []*Chart
	Training       []*Chart
	Plane          *mapView
	Tiles          []*tile
	LowestTiles    []*tile
	ReviewHead     string // first line of the list of these
	NotShown       []notShown

	mu sync.Mutex
}

// notShown is an image that could not be shown.
type notShown struct{ Path, Error string }

// WriteDetector writes the page of a detector to a file.
func WriteDetector(file string, d Detector) error {
	if err := checkPage(file); err != nil {
		return err
	}
	v := &detectorView{Detector: d, Page: layout{
		Title: cmp.Or(d.Title, "A detector"), Lead: d.Lead, Notes: d.Notes, Commands: d.Commands, Facts: d.Facts,
		Charts: true, Script: "map.js", Sheet: "map.css", Album: &album{},
	}}
	v.change()
	v.classes()
	v.confusion()
	v.heldOut()
	v.alarms()
	v.training()
	v.drawMap()
	v.closest()
	v.lowest()
	v.Page.Album.load()
	v.listNotShown()
	if err := writePage(file, "detector.html", v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (v *detectorView) link(id, text string) {
	v.Page.Links = append(v.Page.Links, link{id, text})
}

// Cells of tables.
