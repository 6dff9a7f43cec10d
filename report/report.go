// Package report presents the results of an evaluation: [Result] is a row of
// results.csv, [Summarise] adds the means over groups and seeds, [WriteResults] and
// [ReadResults] write and read the file. [Write] makes an HTML page that a browser
// shows without a network, and [WriteTables] makes tables in the paper's layout, in
// Markdown and LaTeX.
//
// The same input gives the same page: the caller supplies dates, versions and
// commands. Chart.js, which is part of the page, draws the charts; without
// JavaScript static pictures replace them. [Draw] makes these, so that
// programs without pictures do not need the plotting modules. The size of the page does
// not depend on the number of scores: histograms are binned, curves thinned, galleries
// short.
package report

import (
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// Report holds all that the page shows. Only Results is required: a section with
// nothing to show is left out.
type Report struct {
	Title string // "" means "Out-of-distribution detection"

	// Results are those that Summarise returns: for every method also the seed
	// "mean" and, with several seeds, "std". Methods, groups and sets appear in
	// the order of their first result.
	Results []Measurement
	// Intervals are confidence intervals to print below the means.
	Intervals []Interval
	// Confidence says what the intervals are, such as "95% of 1,000 resamples".
	Confidence string

	ID  Set   // the in-distribution test images
	OOD []Set // the OOD images, with the names that Results has
	// Labels [ID.N] are the classes of the test images, −1 for none; nil omits
	// the chart of accuracy against coverage.
	Labels []int64
	// Classes are the names of the training classes, for the galleries; nil omits
	// predictions there.
	Classes []string
	// Runs are the scores. Only the first run of each method is drawn.
	Runs []Run

	// Gallery is the method whose extreme images are shown; "" means the one
	// with the highest mean AUROC over all sets.
	Gallery string
	// GallerySize is how many images of each set are shown; 0 means 6.
	GallerySize int
	// Train is the training set, searched for the images nearest to those of the
	// gallery by the cosine of their features. It needs Row; nil shows none.
	Train *Set
	// Neighbours is how many nearest training images are shown; 0 means 3.
	Neighbours int

	// Ablation is like Results. Methods named NAME-1, NAME-2, … are drawn
	// as a curve NAME over that number (of layers).
	Ablation []Measurement
	// Published are lines of a table to compare with, such as those of
	// [Benchmarks], each with one cell.
	Published []Line

	// Against is an earlier report on the same images, to compare with; nil for none.
	Against *Earlier

	Commands []string // to repeat the evaluation
	Facts    []Fact   // versions, seeds, fingerprints, dates, …
}

// Set is a set of images.
type Set struct {
	Name  string
	Group string // Near or Far; "" for in-distribution sets
	N     int    // images; 0 if unknown
	// Fingerprint is of the model and preprocessing; "" if unknown.
	Fingerprint string
	// Images tells sets of images apart: the same text means the same images in the
	// same order; "" if unknown.
	Images string
	// Image describes image i; nil shows none of the set's images.
	Image func(i int) Image
	// Row returns the D features of image i; nil shows no nearest images.
	Row func(i int) []float32
}

// Image is an image of a gallery.
type Image struct {
	Path  string // to show
	Label string // the name of its class; "" if unknown
	// Decode reads the image; if it is nil or fails, only Path is shown.
	Decode func() (image.Image, error)
}

// Run holds the scores of a method with one seed.
type Run struct {
	Method, Seed string
	// Scores returns the scores of a set of OOD images, or of the in-distribution
	// test set for the dataset "id", one for each image. It is called several
	// times, so that a caller can read them from files, and from several
	// goroutines.
	Scores func(dataset string) ([]float64, error)
	// Predicted is the class of each image of the sets that Scores knows: an index
	// into Classes. Sets may be missing.
	Predicted map[string][]int
	// Threshold, unless nil, is the one of the detector that gave the scores: it flags
	// images with lower ones.
	Threshold *float64
}

// Interval holds the confidence intervals of a method's metrics. Zero intervals
// are not shown.
type Interval struct {
	Method, Group string
	Dataset       string // a set's name, or "mean" over the group
	metrics.Intervals
}

// Fact is a line of what is needed to repeat the evaluation.
type Fact struct{ Name, Value string }

// Check returns an error if Write could not write to dir. Call it before long
// work. A report.html that this package did not make is never replaced. Dir need
// not exist yet.
func Check(dir string) error {
	return checkPage(filepath.Join(dir, "report.html"))
}

// Write writes report.html, its static pictures as figures/*.svg, and sets.json,
// which says what images it is on, to the folder dir, which it makes if necessary. It removes pictures of an earlier
// report that this one does not have.
func Write(dir string, r Report) error {
	if len(r.Results) == 0 {
		return errors.New("report: no results")
	}
	if err := Check(dir); err != nil {
		return err
	}
	v, err := newView(r)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "figures"), 0o777); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := v.writeFigures(filepath.Join(dir, "figures")); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := writeSets(dir, r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := writePage(filepath.Join(dir, "report.html"), "evaluation.html", v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
