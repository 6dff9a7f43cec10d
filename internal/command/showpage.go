package command

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// writeDetectorPage writes the page of a detector in a file.
func (c *command) writeDetectorPage(ctx context.Context, page, file string, opts pipeline.SummaryOptions, change *report.Change) error {
	summary, err := pipeline.Summarise(ctx, opts)
	if err != nil {
		return err
	}
	defer summary.Close()
	return report.WriteDetector(page, c.detectorPage(summary, file, change))
}

// detectorPage fills the page of a detector.
func (c *command) detectorPage(s *pipeline.Summary, file string, change *report.Change) report.Detector {
	page := report.Detector{Summary: s, Title: "The detector " + filepath.Base(file), Lead: detectorLead(s),
		Commands: []string{trainLine(s.Detector, file)}, Facts: detectorFacts(s.Detector), Change: change}
	if note := corrected(s.Detector); note != "" {
		page.Notes = append(page.Notes, sentence(note))
	}
	if s.Detector.Training.Review != nil {
		page.Notes = append(page.Notes, sentence(reviewText(s.Detector)))
	}
	for _, err := range s.Missing {
		page.Notes = append(page.Notes, sentence(c.advise(err).Error()))
	}
	return page
}

// sentence makes a sentence of the text of an error.
func sentence(text string) string {
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return strings.TrimSuffix(text, ".") + "."
}

// detectorFacts lists what a reader needs to train a detector again.
func detectorFacts(d *pipeline.Detector) []evaluation.Fact {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }
	facts := []evaluation.Fact{
		{Name: "trained by", Value: cmp.Or(d.Training.Tool, "a program that did not record its version")},
		{Name: "shown by", Value: Version()},
		{Name: "date of this page", Value: today()},
		{Name: "seeds", Value: strings.Trim(fmt.Sprint(d.Seeds), "[]")},
		{Name: "score", Value: d.ScoreName()},
	}
	if !math.IsInf(d.Threshold, -1) {
		facts = append(facts, evaluation.Fact{Name: "threshold", Value: number(d.Threshold)})
	}
	if d.Source.Model != "" {
		facts = append(facts, evaluation.Fact{Name: "backbone", Value: d.Source.Model})
	}
	for _, f := range []evaluation.Fact{
		{Name: "8 bits", Value: quantisedFrom(d.Source)},
		{Name: "SHA-256 of the backbone", Value: d.Source.SHA256}, {Name: "output", Value: d.Source.Output},
		{Name: "fingerprint of model and preprocessing", Value: d.Source.Fingerprint},
	} {
		if f.Value != "" && !(f.Name == "output" && d.Source.Model == extractor.PixelsName) {
			facts = append(facts, f)
		}
	}
	if p := d.Probe; p != nil {
		facts = append(facts, evaluation.Fact{Name: "probe", Value: fmt.Sprintf("what the model answered on %s drawn by the program, version %d", count(p.Images, "image"), p.Version)})
	} else if d.Source.Model != extractor.PixelsName {
		facts = append(facts, evaluation.Fact{Name: "probe", Value: noProbe})
	}
	for _, set := range d.Training.Sets {
		facts = append(facts, evaluation.Fact{Name: "features for " + useName(set.Use), Value: fmt.Sprintf("%s (%s, SHA-256 of the content %s)", set.Path, count(set.Rows, "row"), set.Content)})
	}
	if len(d.Training.Sets) == 0 {
		for _, dir := range d.Training.Features {
			facts = append(facts, evaluation.Fact{Name: "features for training", Value: dir})
		}
	}
	if d.Training.Kept {
		facts = append(facts, evaluation.Fact{Name: "split", Value: "kept from the detector that images were added to; training on these feature sets anew divides them otherwise"})
	}
	if n := len(d.Relabelled); n > 0 {
		facts = append(facts, evaluation.Fact{Name: "labels changed, by issues.csv or a review of calibration images", Value: strconv.Itoa(n)})
	}
	return facts
}

// noProbe says that a detector has no probe.
const noProbe = "none: that a model gives other features on another machine is not noticed; features that are extracted now, and detectors trained on them, have one"

func useName(use string) string {
	if use == detector.ForTraining {
		return "training"
	}
	return use
}
