package report

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Detector holds what the page of a detector shows. A section with nothing to show is
// left out.
type Detector struct {
	Title    string // "" means "A detector"
	Lead     []string
	Notes    []string // what is missing, and why
	Commands []string
	Facts    []evaluation.Fact

	Classes   []DetectorClass
	Confusion []Confusion // of the validation images

	// Levels are shares of false alarms, and HeldOut says what is caught of each class
	// that was left out where so many are accepted; the curves have CurveLevels. Caught,
	// Curve and AUROC of Mean are the means over all classes.
	Levels, CurveLevels []float64
	HeldOut             []HeldOutClass
	Mean                HeldOutClass

	// Threshold is the score below which an image is flagged, −Inf for none, and
	// MaxFalseAlarms what it was set to flag at most.
	Threshold, MaxFalseAlarms float64
	FalseAlarms               []evaluation.FalseAlarms // by rising thresholds

	History []EpochMean // mean over the heads

	Map     *FeatureMap
	Closest []evaluation.ClosestImage
	Change  *Change // what adding images did; nil for none

}

// DetectorClass is a line of the table of classes. Counts below 0 are not known.
type DetectorClass struct {
	Name                           string
	Train, Validation, Calibration int
	Right, Flagged                 float64 // shares of the validation images; NaN if unknown
}

// Confusion says how many validation images of a class are given a class.
type Confusion struct {
	Label  string `json:"label"`
	Given  string `json:"given"`
	Images int    `json:"images"`
}

// HeldOutClass says how well a class would be noticed if it were new.
type HeldOutClass struct {
	Name     string
	AUROC    float64
	Images   int
	TakenFor string
	Caught   []float64 // at Detector.Levels; NaN if unknown
	Curve    []float64 // at Detector.CurveLevels; nil if unknown
}

// EpochMean holds the mean metrics of the heads after an epoch.
type EpochMean struct {
	Epoch                           int
	TrainLoss, ValLoss, ValAccuracy float64 // the last is NaN without validation images
}

// FeatureMap shows images where their features lie on axes, two at a time.
type FeatureMap struct {
	Note   string   // which images, and what the axes are
	Axes   []string // labels, an even number
	Points []MapPoint
}

// MapPoint is an image on a map.
type MapPoint struct {
	At    []float64 // on each axis
	Image images.Picture
	Class string // its label
	Part  string // what it was used for
	Given string // the class that the detector gives it
	OOD   bool
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
	HeldOutChart   []*figure
	AlarmChart     []*figure
	Training       []*figure
	Map            *mapView
	Tiles          []*tile
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
	v.Page.Album.load()
	v.listNotShown()
	err := drawAll(slices.Concat(v.HeldOutChart, v.AlarmChart, v.Training))
	if err == nil {
		err = writePage(file, "detector.html", v)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (v *detectorView) link(id, text string) {
	v.Page.Links = append(v.Page.Links, link{id, text})
}

// Cells of tables.
