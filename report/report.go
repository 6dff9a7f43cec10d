// Package report turns the results of an evaluation into one HTML file that a
// browser opens without a network, its figures as SVG files beside it, and
// tables in the layout of the paper's in Markdown and LaTeX.
//
// The page is the same for the same input: dates, versions and commands are
// whatever the caller says they are. It is read without JavaScript, which only
// makes its tables sortable. How large it is does not depend on how many scores
// there are: histograms are binned, curves thinned out, galleries short.
package report

import (
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/metrics"
)

// Groups of out-of-distribution sets, as in the column group of results.csv.
const (
	Near = "near"
	Far  = "far"
)

// Row is a row of results.csv: how a method tells one set of strangers from the
// in-distribution test set. Figures are in [0, 1]; NaN stands for none.
type Row struct {
	Method  string
	Seed    string // a seed, or "mean" or "std" over them
	Group   string // Near or Far
	Dataset string // a set's name, or "mean" over the group
	NID     int    // in-distribution images
	NOOD    int    // strangers
	AUROC   float64
	AUPROut float64
	AUPRIn  float64
	FPR95   float64
	FPR95ID float64
	IDAcc   float64
}

// Report is everything that the page shows. Of all fields Results alone is
// needed: a section without anything to show is left out.
type Report struct {
	Title string // "" means "Out-of-distribution detection"

	// Results has for every method the rows with the seed "mean" and, where
	// there are several seeds, "std". Methods, groups and sets appear in the
	// order of their first row.
	Results []Row
	// Intervals are confidence intervals to print below the means.
	Intervals []Interval
	// Confidence says what the intervals are, such as "95% of 1,000 resamples".
	Confidence string

	ID  Set   // the in-distribution test images
	OOD []Set // the strangers, with the names that Results has
	// Labels [ID.N] are the classes of the test images, −1 where there is none;
	// nil leaves accuracy against coverage out.
	Labels []int64
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

	// Ablation has rows like Results. Methods named NAME-1, NAME-2, … are drawn
	// as a curve NAME over that number (of layers).
	Ablation []Row
	// Published are lines of a table to compare with, such as those that
	// [Benchmarks] gives, each with one cell.
	Published []Line

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
	File  string // to open; where that fails Path is shown alone
	Class string // "" if unknown
}

// Run is a method with one seed.
type Run struct {
	Method, Seed string
	// Scores gives the scores of a set of strangers, or of the in-distribution
	// test set where dataset is "id", one for each image. It is called
	// several times, so that a caller need not keep all scores in memory, and
	// from several goroutines.
	Scores func(dataset string) ([]float64, error)
	// Predicted [ID.N] is the class of each test image; nil if unknown.
	Predicted []int
}

// Interval is the confidence intervals of a line's figures; zero ones are not
// shown.
type Interval struct {
	Method, Group string
	Dataset       string // a set's name, or "mean" over the group
	metrics.Intervals
}

// Fact is a line of what is needed to repeat the evaluation.
type Fact struct{ Name, Value string }

//go:embed page.html style.css sort.js
var assets embed.FS

var page = template.Must(template.New("page.html").ParseFS(assets, "page.html"))

// generator is in the head of every page that Write makes.
const generator = `<meta name="generator" content="mlrbfn report">`

// Check reports whether Write could write to dir, for a program that will have
// something to report after long work: a report.html that this package did not
// make is never replaced. Dir need not be there yet.
func Check(dir string) error {
	file := filepath.Join(dir, "report.html")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !strings.Contains(string(text), generator) {
		err = fmt.Errorf("%s is no report of this program", file)
	}
	if err == nil {
		err = atomicfile.Check(file)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Write writes report.html, and its figures as figures/*.svg, under dir, which
// is made if it is not there. SVG files under figures that an earlier report
// left there and that this one does not have are removed.
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

// order returns the distinct keys of rows in the order of their first.
func order(rows []Row, key func(Row) string) (keys []string) {
	for _, r := range rows {
		keys = add(keys, key(r))
	}
	return keys
}

// add appends what is not there yet.
func add(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
