package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Verdicts holds what the page of judged images shows: which were flagged, and why.
type Verdicts struct {
	Title    string            // "" means "Which images are out of distribution"
	Facts    []evaluation.Fact // detector, model, threshold, dates: what repeats the run
	Commands []string
	Detector string   // file of the detector, for copied commands
	Program  string   // as it was started, for these; "" means mlrbfn
	Classes  []string // of the detector

	// Threshold is the score below which an image is flagged, and MaxFalseAlarms the
	// share of in-distribution images that it was set to flag at most; 0 if unknown.
	Threshold, MaxFalseAlarms float64
	// Calibration are the calibration scores, ascending: what a threshold costs in
	// false alarms. With nil the page cannot say.
	Calibration []float64
	// ByPValue says that the detector does not have one threshold for all images, but
	// one for each class, or folds. The slider then goes by the p-value, copied
	// commands by the share of false alarms, and Calibration are those of the class
	// with the fewest; nil for folds.
	ByPValue bool

	// Items are the images, in any order; the page shows the most surprising first.
	// No more than MostVerdicts of them are shown.
	Items []Verdict
	// Scores are those of all images, or with ByPValue their p-values, in any order,
	// where Items are only the most surprising ones; nil means those of Items.
	Scores []float64
	Failed []features.Failure // images that could not be read
	Notes  []string           // what is missing on the page, and why
}

// MostVerdicts bounds how many images the pages of Verdicts show.
const MostVerdicts = 20_000

// VerdictsOf says what a detector's threshold costs; the rest is the caller's. ByPValue is as
// in Verdicts.
func VerdictsOf(d *detector.Detector, byPValue bool) Verdicts {
	v := Verdicts{Classes: d.Classes, Threshold: d.Threshold, MaxFalseAlarms: 1 - d.TargetTPR, Calibration: d.CalibrationScores, ByPValue: byPValue}
	if !byPValue {
		return v
	}
	v.Calibration = nil
	for c := range d.Classes {
		if s := d.ScoresOf(c); len(d.Folds) == 0 && (v.Calibration == nil || len(s) < len(v.Calibration)) {
			v.Calibration = s
		}
	}
	return v
}

// Verdict is a judged image and what explains its verdict.
type Verdict struct {
	Image images.Picture // Label is the class that a person gave it; "" if unknown
	detector.Verdict
	detector.Explanation
	Group int // of images that look alike: its number from 1 on; 0 for none
}

// failures are those of images that could not be read, as a page lists them.
type failures struct {
	Shown []features.Failure
	Total int
}

const mostFailed = 1000 // failures that a page lists

// failed lists failures, and links to the list.
func (l *layout) failed(all []features.Failure) failures {
	f := failures{Total: len(all)}
	if f.Total > 0 {
		l.Links = append(l.Links, link{"failed", fmt.Sprintf("Not read (%d)", f.Total)})
	}
	for _, one := range all[:min(f.Total, mostFailed)] {
		f.Shown = append(f.Shown, features.Failure{Path: strings.ToValidUTF8(one.Path, "\ufffd"), Error: strings.ToValidUTF8(one.Error, "\ufffd")})
	}
	return f
}

// CheckVerdicts returns an error if WriteVerdicts could not write to the file. Call
// it before long work. A file that this package did not make is never replaced.
func CheckVerdicts(file string) error { return checkPage(file) }

// checkPage returns an error if a page could not be written to the file.
func checkPage(file string) error {
	text, err := disk.ReadFile(file, disk.Page)
	first := file // of what would be made
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for err = nil; filepath.Dir(first) != first; first = filepath.Dir(first) {
			if _, err := os.Stat(filepath.Dir(first)); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
	case err == nil && !strings.Contains(string(text), generator):
		err = fmt.Errorf("%s: %w", file, metrics.ErrForeign)
	}
	if err == nil {
		err = disk.CheckWritable(first)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
