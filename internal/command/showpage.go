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
	d := s.Detector
	page := report.Detector{
		Title: "The detector " + filepath.Base(file), Lead: detectorLead(s),
		Commands: []string{trainLine(d, file)}, Facts: detectorFacts(d),
		Levels: acceptedAlarms, Threshold: d.Threshold, MaxFalseAlarms: 1 - d.TargetTPR,
		Confusion: confusionOf(s), FalseAlarms: s.FalseAlarms, Closest: s.Closest, Change: change,
	}
	if note := corrected(d); note != "" {
		page.Notes = append(page.Notes, sentence(note))
	}
	for _, err := range s.Missing {
		page.Notes = append(page.Notes, sentence(c.advise(err).Error()))
	}
	for _, class := range s.Classes {
		line := report.DetectorClass{Name: class.Name, Train: class.Train, Validation: class.Validation, Calibration: class.Calibration,
			Right: share(class.Right, class.Validation), Flagged: share(class.Flagged.Flagged, class.Flagged.Images)}
		page.Classes = append(page.Classes, line)
		if a := class.Assessed; a != nil {
			curve := func(at float64) (float64, bool) { return a.CaughtAt(d.Assessment, at) }
			page.HeldOut = append(page.HeldOut, report.HeldOutClass{Name: class.Name, AUROC: a.AUROC, Images: a.Images, TakenFor: a.TakenFor, Caught: caughtAt(curve, a.Caught), Curve: a.Curve})
		}
	}
	if a := d.Assessment; a != nil {
		page.CurveLevels = a.FalseAlarms
		page.Mean = report.HeldOutClass{AUROC: a.AUROC, Caught: caughtAt(a.CaughtAt, a.Caught), Curve: a.Curve}
	}
	page.History = historyOf(d)
	if m := s.Map; m != nil {
		page.Map = mapOf(d, m)
	}
	return page
}

// confusionOf says which classes validation images are given.
func confusionOf(s *pipeline.Summary) []report.Confusion {
	all := []report.Confusion{}
	if s.Validation != nil {
		for _, cell := range s.Validation.Confusion {
			all = append(all, report.Confusion{Label: s.Detector.Classes[cell.Label], Given: s.Detector.Classes[cell.Given], Images: cell.Images})
		}
	}
	return all
}

// sentence makes a sentence of the text of an error.
func sentence(text string) string {
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return strings.TrimSuffix(text, ".") + "."
}

// mapOf fills the map of the page.
func mapOf(d *pipeline.Detector, m *evaluation.SummaryMap) *report.FeatureMap {
	page := &report.FeatureMap{}
	for i, share := range m.Shares {
		label := fmt.Sprintf("axis %d", i+1)
		if share > 0 {
			label += fmt.Sprintf(" (%.0f%% of the variance between classes)", 100*share)
		}
		page.Axes = append(page.Axes, label)
	}
	page.Note = fmt.Sprintf("Features as the head reads them, on the axes that tell the classes apart best (linear discriminants); one unit is a standard deviation within a class. Shown are %d of %s, spread evenly over the classes.", len(m.Points), count(m.Images, "labelled image"))
	switch {
	case m.Shares[1] > 0:
		page.Note += " Classes that lie on each other here may differ along other axes."
	case m.Shares[0] > 0:
		page.Note += " Two classes differ along one axis; the second is the one along which the images differ most otherwise."
	default:
		page.Note += " The axes are those along which the images differ most."
	}
	for _, p := range m.Points {
		page.Points = append(page.Points, report.MapPoint{At: p.At, Image: p.Image, Class: d.Classes[p.Class], Part: string(p.Part), Given: p.Verdict.Class, OOD: p.Verdict.OOD})
	}
	return page
}

// historyOf returns the mean metrics of the heads after each epoch.
func historyOf(d *pipeline.Detector) (all []report.EpochMean) {
	for h, epochs := range d.History {
		for i, e := range epochs {
			if h == 0 {
				all = append(all, report.EpochMean{Epoch: e.Epoch})
			}
			if i >= len(all) {
				break
			}
			n := float64(len(d.History))
			all[i].TrainLoss += e.TrainLoss / n
			all[i].ValLoss += e.ValLoss / n
			all[i].ValAccuracy += e.ValAccuracy / n
		}
	}
	if d.Training.Rows.Validation == 0 || len(d.Classes) == 1 {
		for i := range all {
			all[i].ValAccuracy = math.NaN()
		}
	}
	return all
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
		facts = append(facts, evaluation.Fact{Name: "labels changed by issues.csv", Value: strconv.Itoa(n)})
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
