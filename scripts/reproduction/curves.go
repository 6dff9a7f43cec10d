package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Learning curves: the default score beside simple ones, with few training images of
// each class of CIFAR-10.
const curves = "curves"

var (
	curveSizes = []int{5, 10, 20, 50, 200}
	// GEN reads the logits of the linear head.
	curveScores = []string{detector.JoinedScore, "knn", "mds++", "gen"}
)

// curveFolds are those of the cross-conformal calibration that is compared.
const curveFolds = 5

// few says which of the training images are used: with n images of each class, draw k
// has those from kn on.
type few struct{ images, draw int }

func (f few) key() string { return fmt.Sprintf("%s/%d-%d", curves, f.images, f.draw) }

// takes returns a function that says of the labels of all images, in order, which
// images are used, and how many images of each class it was asked about.
func (f few) takes() (takes func(label int64) bool, seen map[int64]int) {
	seen = map[int64]int{}
	return func(y int64) bool {
		if y < 0 {
			return false
		}
		seen[y]++
		return (seen[y]-1)/f.images == f.draw
	}, seen
}

// runCurves measures and prints the curves of all backbones.
func (e *experiment) runCurves(ctx context.Context, w io.Writer, models []string, seeds string, epochs int) error {
	_, standIns := grids()
	for _, images := range curveSizes {
		for draw := range strings.SplitSeq(seeds, ",") {
			k, err := strconv.Atoi(draw)
			if err != nil || k < 0 {
				return command.Usagef("--seeds %s: seeds are numbers with commas between them", seeds)
			}
			e.few = few{images, k}
			e.grid, e.key = standIns["cifar10"], e.few.key()
			e.models = []string{"vit-tiny-p16"}
			if err := e.run(ctx, models, draw, epochs); err != nil {
				return err
			}
		}
	}
	return e.printCurves(w, strings.Split(seeds, ","))
}

// choose writes a feature set of some images of another, below the reports of e.key,
// and returns its folder and the number of images. It asks takes about each image in
// order. The set has the class only, or all classes if only is "".
func (e *experiment) choose(ctx context.Context, from, backbone, name, only string, takes func(label int64) bool) (dir string, n int, err error) {
	s, err := features.Open(ctx, from)
	if err != nil {
		return "", 0, err
	}
	defer s.Close()
	images, err := s.Images()
	if err != nil {
		return "", 0, err
	}
	dir = filepath.Join(e.out, e.key, "features", backbone, name)
	w, err := features.Create(ctx, dir, features.Header{
		D: s.D, Root: s.Root, Model: s.Model, ModelSHA256: s.ModelSHA256, Output: s.Output, Pool: s.Pool,
		Preprocess: s.Preprocess, Fingerprint: s.Fingerprint, Tool: command.Version(),
	}, features.Options{Force: true})
	if err != nil {
		return "", 0, err
	}
	defer w.Close()
	var some features.Unit
	for i, y := range s.Labels() {
		if !takes(y) {
			continue
		}
		if err := w.Append(images[i], s.Row(i), nil); err != nil {
			return "", 0, err
		}
		some.Images = append(some.Images, images[i])
	}
	_, err = w.Commit(ctx, features.Contents{Units: []features.Unit{some}, Classes: s.Classes, Class: only})
	return dir, len(some.Images), err
}

// alarms counts the images that a detector flags.
type alarms struct {
	Score       string  `json:"score"`
	Folds       int     `json:"folds"`       // of cross-conformal calibration; 0: a tenth of the images calibrates
	Calibration int     `json:"calibration"` // images
	Threshold   bool    `json:"threshold"`   // there is one
	ID          float64 `json:"id"`          // shares of the test images that are flagged
	Near        float64 `json:"near"`        // likewise; means over the sets
	Far         float64 `json:"far"`
	Why         string  `json:"why"` // there was no class hold-out
}

const alarmsFile = "alarms.json"

// promise trains detectors that judge by the scores, and one by the default with
// cross-conformal calibration, and counts what they flag at 5% false alarms. A file
// that exists is kept.
func (e *experiment) promise(ctx context.Context, backbone string, opts pipeline.EvaluateOptions, train string, scores []string) error {
	file := filepath.Join(e.folder(backbone, linearHead), alarmsFile)
	if exists(file) && !e.again {
		return nil
	}
	var all []alarms
	for i := range len(scores) + 1 {
		o := e.train[false]
		o.Features = []string{train}
		a := alarms{Score: detector.JoinedScore, Folds: curveFolds}
		if i < len(scores) {
			a = alarms{Score: scores[i]}
		}
		o.Score, o.Calibration.Folds = a.Score, a.Folds
		fmt.Fprintf(e.stderr, "reproduce: %s, %s: a detector that judges by %s, %d folds\n", backbone, e.key, a.Score, a.Folds)
		d, result, err := pipeline.Train(ctx, o)
		if err != nil {
			return err
		}
		a.Calibration, a.Threshold, a.Why = len(d.CalibrationScores), result.Threshold != nil, result.NoAssessment
		flaggedOf := func(dir string) (share float64, err error) {
			s, err := features.Open(ctx, dir)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			verdicts, err := d.Verdicts(ctx, s.Features())
			for _, v := range verdicts {
				if v.OOD {
					share += 1 / float64(len(verdicts))
				}
			}
			return share, err
		}
		if a.ID, err = flaggedOf(opts.ID); err != nil {
			return err
		}
		for _, set := range opts.OOD {
			share, err := flaggedOf(set.Features)
			if err != nil {
				return err
			}
			if set.Group == pipeline.Near {
				a.Near += share / float64(len(e.near))
			} else {
				a.Far += share / float64(len(e.far))
			}
		}
		all = append(all, a)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return disk.Write(file, disk.Bytes(text))
}

// flagged sums the alarms of several runs, by detector.
type flagged struct {
	sums []alarms
	runs []int // with a threshold
}

// add reads the alarms of the run key.
func (f *flagged) add(out, key, backbone string) error {
	text, err := os.ReadFile(filepath.Join(out, key, "reports", backbone, linearHead.name, alarmsFile))
	if err != nil {
		return err
	}
	var all []alarms
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	if f.sums == nil {
		f.sums, f.runs = make([]alarms, len(all)), make([]int, len(all))
	}
	for i, a := range all {
		s := &f.sums[i]
		s.Calibration = a.Calibration
		if a.Threshold {
			f.runs[i]++
			s.ID, s.Near, s.Far = s.ID+a.ID, s.Near+a.Near, s.Far+a.Far
		}
	}
	return nil
}

// calibration says how many images calibrate the first detector of the last run.
func (f *flagged) calibration() string { return strconv.Itoa(f.sums[0].Calibration) }

// cells are a table's: the mean shares of each detector that are flagged, in per cent.
func (f *flagged) cells() string {
	var b strings.Builder
	for i, a := range f.sums {
		if n := float64(f.runs[i]); n > 0 {
			fmt.Fprintf(&b, " %.1f; %.0f / %.0f |", 100*a.ID/n, 100*a.Near/n, 100*a.Far/n)
		} else {
			b.WriteString(" – |")
		}
	}
	return b.String()
}

// addMeans adds the share k of the means over the seeds of the run key to the cells of
// each method: near AUROC, far AUROC and accuracy.
func addMeans(cells map[string]*[3]float64, out, key, backbone string, k float64) error {
	found, err := studies(out, key, "")
	if err != nil {
		return err
	}
	for _, s := range found {
		for _, r := range s.Results {
			if s.Backbone != backbone || r.Dataset != "mean" || r.Seed != "mean" {
				continue
			}
			if cells[r.Method] == nil {
				cells[r.Method] = &[3]float64{}
			}
			c := cells[r.Method]
			if r.Group == pipeline.Near {
				c[0] += k * r.AUROC
				c[2] += k * r.IDAcc
			} else {
				c[1] += k * r.AUROC
			}
		}
	}
	return nil
}

// printCurves prints two tables for each backbone: AUROC and accuracy, and what is
// flagged at 5% false alarms.
func (e *experiment) printCurves(w io.Writer, draws []string) error {
	first, err := studies(e.out, few{curveSizes[0], atoi(draws[0])}.key(), "")
	if err != nil {
		return err
	}
	for _, study := range first {
		var one, two strings.Builder
		for _, images := range curveSizes {
			cells := map[string]*[3]float64{}
			var flags flagged
			for _, draw := range draws {
				key := few{images, atoi(draw)}.key()
				if err := addMeans(cells, e.out, key, study.Backbone, 1/float64(len(draws))); err != nil {
					return err
				}
				if err := flags.add(e.out, key, study.Backbone); err != nil {
					return err
				}
			}
			fmt.Fprintf(&one, "| %d |", images)
			for _, name := range curveScores {
				c := cells[name]
				if c == nil {
					c = &[3]float64{math.NaN(), math.NaN(), math.NaN()}
				}
				fmt.Fprintf(&one, " %.1f / %.1f", 100*c[0], 100*c[1])
				if name == detector.JoinedScore || name == "gen" {
					fmt.Fprintf(&one, ", %.1f", 100*c[2])
				}
				one.WriteString(" |")
			}
			one.WriteString("\n")
			fmt.Fprintf(&two, "| %d | %s |%s\n", images, flags.calibration(), flags.cells())
		}
		fmt.Fprintf(w, `%s: near / far AUROC and accuracy in per cent, means over %d draws of the images

| images per class | default | KNN | MDS++ | linear head, GEN |
|---|---|---|---|---|
%s
Of the test images of known classes, how many per cent are flagged where at most 5 are
promised; of the near and far OOD images, how many. – is a detector that flags nothing,
since too few images calibrate.

| images per class | calibrate | default | KNN | MDS++ | linear head, GEN | default, %d folds |
|---|---|---|---|---|---|---|
%s
`, study.Backbone, len(draws), &one, curveFolds, &two)
	}
	return nil
}

func atoi(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
