// Package report has the results of an evaluation: [Result] is a row of
// results.csv, [Summarise] adds the means over groups and seeds, [WriteResults] and
// [ReadResults] keep them on disk. [Write] makes an HTML page of them that a
// browser opens without a network, and [WriteTables] tables in the layout of the
// paper's in Markdown and LaTeX.
//
// The page is the same for the same input: dates, versions and commands are
// whatever the caller says they are. Its charts are drawn by Chart.js, which is
// part of the page; without JavaScript static pictures take their place. These are
// made by Report.Draw, for which package report/figures has a function, so that
// programs that need no pictures do without the plotting modules. The size of the
// page does not depend on the number of scores: histograms are binned, curves
// thinned out, galleries short.
package report

import (
	"embed"
	"errors"
	"fmt"
	"html/template"
	"image"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/regular"
	"mlrbfn/metrics"
)

// Report is everything that the page shows. Of all fields Results alone is
// needed: a section without anything to show is left out.
type Report struct {
	Title string // "" means "Out-of-distribution detection"

	// Results has for every method those of the seed "mean" and, where there are
	// several seeds, "std". Methods, groups and sets appear in the order of their
	// first result.
	Results []Result
	// Intervals are confidence intervals to print below the means.
	Intervals []Interval
	// Confidence says what the intervals are, such as "95% of 1,000 resamples".
	Confidence string

	ID  Set   // the in-distribution test images
	OOD []Set // the OOD images, with the names that Results has
	// Labels [ID.N] are the classes of the test images, −1 where there is none;
	// nil leaves accuracy against coverage out.
	Labels []int64
	// Classes are the names of the training classes, for the galleries; nil leaves
	// predictions out there.
	Classes []string
	// Runs are the scores. Of each method the first run alone is drawn.
	Runs []Run

	// Gallery is the method whose extreme images are shown; "" means the one
	// with the highest mean AUROC over all sets.
	Gallery string
	// GallerySize is how many images of each set are shown; 0 means 6.
	GallerySize int
	// Train is the training set, searched for the nearest images, by the cosine
	// of features, to those of the gallery. It needs Row; nil shows none.
	Train *Set
	// Neighbours is how many of those are shown; 0 means 3.
	Neighbours int

	// Ablation is like Results. Methods named NAME-1, NAME-2, … are drawn
	// as a curve NAME over that number (of layers).
	Ablation []Result
	// Published are lines of a table to compare with, such as those that
	// [Benchmarks] gives, each with one cell.
	Published []Line

	// Draw makes the static picture of a chart in a format, "svg" or "png". nil
	// leaves the pictures out: charts are then seen with JavaScript only, and there
	// are no files figures/*.svg.
	Draw func(c Chart, format string) ([]byte, error)

	Commands []string // that repeat the evaluation
	Facts    []Fact   // versions, seeds, fingerprints, dates, …
}

// Set is a set of images.
type Set struct {
	Name  string
	Group string // Near or Far; "" for in-distribution sets
	N     int    // images; 0 if unknown
	// Fingerprint is of the model and preprocessing; "" if unknown.
	Fingerprint string
	// Image says what is known of image i; nil shows none of the set's images.
	Image func(i int) Image
	// Row gives the D features of image i; nil shows no nearest images.
	Row func(i int) []float32
}

// Image is an image of a gallery.
type Image struct {
	Path  string // to show
	Label string // the name of its class; "" if unknown
	// Decode reads the image; where it is nil or fails Path is shown alone.
	Decode func() (image.Image, error)
}

// Run is the scores of a method with one seed.
type Run struct {
	Method, Seed string
	// Scores gives the scores of a set of OOD images, or of the in-distribution
	// test set where dataset is "id", one for each image. It is called
	// several times, so that a caller need not keep all scores in memory, and
	// from several goroutines.
	Scores func(dataset string) ([]float64, error)
	// Predicted is the class of each image of the sets that Scores knows: an index
	// into Classes. Sets may be missing.
	Predicted map[string][]int
}

// Interval is the confidence intervals of a method's metrics; zero ones are not
// shown.
type Interval struct {
	Method, Group string
	Dataset       string // a set's name, or "mean" over the group
	metrics.Intervals
}

// Fact is a line of what is needed to repeat the evaluation.
type Fact struct{ Name, Value string }

//go:embed page.html style.css page.js
var assets embed.FS

var page = template.Must(template.New("page.html").ParseFS(assets, "page.html"))

// generator is in the head of every page that Write makes.
const generator = `<meta name="generator" content="mlrbfn report">`

// Check reports whether Write could write to dir, for a program that will have
// something to report after long work: a report.html that this package did not
// make is never replaced. Dir need not be there yet.
func Check(dir string) error {
	file := filepath.Join(dir, "report.html")
	text, err := regular.ReadFile(file, regular.Page)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !strings.Contains(string(text), generator) {
		err = fmt.Errorf("%s: %w", file, ErrForeign)
	}
	if err == nil {
		err = atomicfile.Check(file)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Write writes report.html, and its static pictures as figures/*.svg, under dir,
// and makes dir if it is not there. It removes the pictures of an earlier report
// that this one does not have.
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
	err = atomicfile.Write(filepath.Join(dir, "report.html"), func(w io.Writer) error {
		return page.Execute(w, v)
	})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
