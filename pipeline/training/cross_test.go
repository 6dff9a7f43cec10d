package training

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestCrossCalibration: with folds each image trains and calibrates, and no more
// images are flagged than is proven.
func TestCrossCalibration(t *testing.T) {
	t.Parallel()
	const each, folds, alpha = 15, 5, 0.2
	flagged, judged := 0, 0
	for seed := range uint64(6) {
		o := quick(pipetest.Clouds(t, 2*seed, each, pipetest.TwoLabels, pipetest.Two...))
		o.Calibration.Folds, o.TargetTPR, o.Seeds = folds, 1-alpha, []uint64{seed}
		o.Score = detector.HeadScore // the quickest
		d, result, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := result.Rows, rows(27, 3, 30, 0); got != want {
			t.Errorf("the rows are %+v, want %+v", got, want)
		}
		var all []float64
		for _, fold := range d.Folds {
			all = append(all, fold.CalibrationScores...)
		}
		if slices.Sort(all); len(d.Folds) != folds || !slices.Equal(all, d.CalibrationScores) {
			t.Errorf("%d folds with scores %v, and the detector has %v", len(d.Folds), all, d.CalibrationScores)
		}
		if result.FalseAlarms != nil || *result.CrossBound != detector.CrossBound(1-o.TargetTPR, 2*each, folds) {
			t.Errorf("false alarms %v, bound %v", result.FalseAlarms, result.CrossBound)
		}
		fresh, _, err := npy.Read[float32](filepath.Join(pipetest.Clouds(t, 2*seed+1, 200, nil, pipetest.Two...), "features.npy"))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pipetest.Verdicts(t, d, fresh) {
			if judged++; v.OOD {
				flagged++
			}
		}
		if again, _, err := Train(t.Context(), o); err != nil || !slices.Equal(again.CalibrationScores, d.CalibrationScores) {
			t.Errorf("the same again has other scores, %v", err)
		}
	}
	if share := float64(flagged) / float64(judged); share < alpha/2 || share > 1.5*alpha {
		t.Errorf("%.3f are flagged, and about %g was asked for", share, alpha)
	}
}

// TestFolds: each labelled row is in one fold, the sizes differ by one at most, and
// groups stay together, of which one row calibrates.
func TestFolds(t *testing.T) {
	t.Parallel()
	data, err := Open(t.Context(), quick(pipetest.Clouds(t, 1, 11, pipetest.TwoLabels, pipetest.Two...)))
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	var all []int
	for _, rows := range data.folds(4, 1) {
		if n := len(rows); n < 5 || n > 6 {
			t.Errorf("a fold of %d of 22 rows", n)
		}
		all = append(all, rows...)
	}
	if slices.Sort(all); len(all) != 22 || len(slices.Compact(all)) != 22 {
		t.Errorf("the folds have rows %v", all)
	}
	data.groups = make([]int, 22)
	for row := range data.groups {
		data.groups[row] = row &^ 2 // rows 0 and 2, 1 and 3, 4 and 6, … of one class
	}
	firsts := 0 // rows that calibrate and are the first of their groups
	for _, rows := range data.folds(4, 1) {
		kept := data.onePerGroup(rows)
		for _, row := range kept {
			if row&2 == 0 {
				firsts++
			}
		}
		for _, row := range rows {
			if other := row ^ 2; other < 22 && !slices.Contains(rows, other) {
				t.Errorf("rows %d and %d of a group are in two folds", row, other)
			}
			if slices.Contains(kept, row) && slices.Contains(kept, row^2) {
				t.Errorf("rows %d and %d of a group both calibrate", row, row^2)
			}
		}
	}
	if firsts < 2 || firsts > 10 {
		t.Errorf("the first row calibrates in %d of 12 groups, and each should as often as the second", firsts)
	}
}

func TestFoldsThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := pipetest.Clouds(t, 1, 11, pipetest.TwoLabels, pipetest.Two...)
	for _, n := range []int{-1, 1} {
		o := quick(dir)
		o.Calibration.Folds = n
		if _, _, err := Train(t.Context(), o); options.Name(err) != "Calibration" {
			t.Errorf("%d folds: %v", n, err)
		}
	}
}

// TestFramesThatGetNoisier: where later frames of a video are farther off, random frames of
// new videos are flagged as often as promised; were the first frames to calibrate, too many
// would be.
func TestFramesThatGetNoisier(t *testing.T) {
	t.Parallel()
	const videos, frames, folds, alpha = 100, 4, 4, 0.2
	row := func(rng *rand.Rand, video, frame int) []float32 {
		spread := 0.3 * float64(1+frame)
		return []float32{float32(4*(video%2)) + float32(spread*rng.NormFloat64()), float32(spread * rng.NormFloat64())}
	}
	var drawn, first float64
	const seeds = 5
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		var x, fresh []float32
		var labels []int64
		var images strings.Builder
		for video := range videos {
			for frame := range frames {
				x, labels = append(x, row(rng, video, frame)...), append(labels, int64(video%2))
				fmt.Fprintf(&images, "{\"path\":\"v%d_%d.png\"}\n", video, frame)
			}
		}
		for video := range 1000 {
			fresh = append(fresh, row(rng, video, rng.IntN(frames))...)
		}
		err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(labels), 2), npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, len(labels)),
			os.WriteFile(filepath.Join(dir, "images.jsonl"), []byte(images.String()), 0o666))
		if err != nil {
			t.Fatal(err)
		}
		o := quick(dir)
		o.Calibration.Folds, o.TargetTPR, o.Seeds, o.GroupBy, o.Score = folds, 1-alpha, []uint64{seed}, "^v[0-9]+", detector.HeadScore
		d, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		share := func() (share float64) {
			for _, v := range pipetest.Verdicts(t, d, fresh) {
				if v.OOD {
					share += 1. / 1000 / seeds
				}
			}
			return share
		}
		drawn += share()
		data, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for k, rows := range data.folds(folds, seed) {
			scores := d.Folds[k].CalibrationScores[:0]
			for _, row := range rows {
				if row%frames == 0 {
					scores = append(scores, pipetest.Verdicts(t, d.Folds[k], x[2*row:2*row+2])[0].Score)
				}
			}
			slices.Sort(scores)
		}
		first += share()
		if err := data.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if slack := 3 * math.Sqrt(alpha*(1-alpha)/(videos*seeds)); math.Abs(drawn-alpha) > slack || first < alpha+2*slack {
		t.Errorf("%.3f are flagged, and %.3f if first frames calibrate; %g ± %.3f was asked for", drawn, first, alpha, slack)
	}
}
