package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// quick are options that train in a moment.
func quick(dirs ...string) Options {
	o := Options{Features: dirs}
	pipetest.Small(&o.Head, &o.Train)
	return o
}

func rows(train, validation, calibration, unlabelled int) detector.RowCount {
	return detector.RowCount{Train: train, Validation: validation, Calibration: calibration, Unlabelled: unlabelled}
}

func TestTrainSharesOutTheRows(t *testing.T) {
	t.Parallel()
	main, extra := pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 2, 20, pipetest.TwoLabels, pipetest.Two...)
	unlabelled := pipetest.Clouds(t, 3, 60, nil, pipetest.Two...)
	mixed := pipetest.Clouds(t, 4, 50, []int64{0, 1, -1}, [2]float64{0, 0}, [2]float64{4, 0}, [2]float64{9, 9})
	with := func(dirs []string, change func(*Options)) Options {
		o := quick(dirs...)
		change(&o)
		return o
	}
	none := Share{None: true}
	copied := func(train, validation, copies int) detector.RowCount {
		return detector.RowCount{Train: train, Validation: validation, LeftOut: copies}
	}
	tests := map[string]struct {
		opts     Options
		want     detector.RowCount
		warns    string
		noThresh bool
	}{
		"by default": {opts: quick(main), want: rows(160, 20, 20, 0)},
		"fractions": {
			opts: with([]string{main}, func(o *Options) { o.Validation.Fraction, o.Calibration.Fraction = 0.25, 0.4 }),
			want: rows(70, 50, 80, 0),
		},
		"nothing set aside": {
			opts: with([]string{main}, func(o *Options) { o.Validation, o.Calibration = none, none }),
			want: rows(200, 0, 0, 0), warns: "too few", noThresh: true,
		},
		"sets of their own": {
			opts: with([]string{main}, func(o *Options) { o.Validation.Features, o.Calibration.Features = extra, unlabelled }),
			want: rows(200, 40, 120, 0),
		},
		"calibration images that are copies": {
			opts: with([]string{main}, func(o *Options) {
				o.Calibration.Features = pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...)
			}),
			want: copied(180, 20, 200), warns: "200 of 200 calibration images", noThresh: true,
		},
		"validation images that calibrate again": {
			opts: with([]string{main}, func(o *Options) {
				o.Validation.Features, o.Calibration.Features = extra, pipetest.Clouds(t, 2, 20, pipetest.TwoLabels, pipetest.Two...)
			}),
			want: copied(200, 40, 40), warns: "40 of 40 calibration images", noThresh: true,
		},
		"two sets": {opts: quick(main, extra), want: rows(192, 24, 24, 0)},
		"rows without a label": {
			opts: quick(mixed), want: rows(80, 10, 10, 50), warns: "without a label", noThresh: true,
		},
		"a target that few images reach": {
			opts: with([]string{main}, func(o *Options) { o.TargetTPR = 0.8; o.Calibration.Fraction = 0.02 }),
			want: rows(176, 20, 4, 0),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, result, err := Train(context.Background(), tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if result.Rows != tt.want || d.Training.Rows != tt.want || len(d.CalibrationScores) != tt.want.Calibration {
				t.Errorf("rows %+v, want %+v", result.Rows, tt.want)
			}
			if warnings := strings.Join(result.Warnings, "\n"); tt.warns == "" && warnings != "" || !strings.Contains(warnings, tt.warns) {
				t.Errorf("warnings %q, want %q", warnings, tt.warns)
			}
			if (result.Threshold == nil) != tt.noThresh || math.IsInf(d.Threshold, -1) != tt.noThresh {
				t.Errorf("threshold %v, %g", result.Threshold, d.Threshold)
			}
			if (result.ValAccuracy == nil) != (tt.want.Validation == 0) {
				t.Errorf("validation accuracy %v", result.ValAccuracy)
			}
			// It learned, and what is far from both clouds is of neither.
			v := pipetest.Verdicts(t, d, []float32{0, 0, 4, 0, 2, 8})
			if v[0].Class != "0" || v[1].Class != "1" || v[2].Score >= min(v[0].Score, v[1].Score) {
				t.Errorf("verdicts %+v", v)
			}
			if !tt.noThresh && (v[0].OOD || v[1].OOD || !v[2].OOD) {
				t.Errorf("verdicts %+v at threshold %g", v, d.Threshold)
			}
		})
	}
}

// TestTrainSaysThatItLearnedNothing: of features that are all the same no head
// can tell three classes apart; of one class there is nothing to tell.
func TestTrainSaysThatItLearnedNothing(t *testing.T) {
	t.Parallel()
	same := [2]float64{1e12, 1e12} // where the noise is lost in float32
	for _, labels := range [][]int64{{0}, {0, 1, 2}} {
		centres := slices.Repeat([][2]float64{same}, len(labels))
		o := quick(pipetest.Clouds(t, 1, 40, labels, centres...))
		o.Validation.Features = pipetest.Clouds(t, 2, 40, labels, centres...)
		_, result, err := Train(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(result.Warnings, "\n"), "learned nothing"); got != (len(labels) > 1) {
			t.Errorf("%d classes: warnings %q", len(labels), result.Warnings)
		}
	}
}

func TestTrainRefuses(t *testing.T) {
	t.Parallel()
	good, unlabelled := pipetest.Clouds(t, 1, 20, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 1, 20, nil, pipetest.Two...)
	nan := pipetest.Clouds(t, 1, 20, pipetest.TwoLabels, pipetest.Two...)
	if err := npy.WriteFile(filepath.Join(nan, "features.npy"), append(make([]float32, 79), float32(math.NaN())), 40, 2); err != nil {
		t.Fatal(err)
	}
	absurd := func(value float32) string {
		dir := pipetest.Clouds(t, 1, 20, pipetest.TwoLabels, pipetest.Two...)
		x := make([]float32, 80)
		for i := range x {
			x[i] = float32(i)
		}
		x[34] = value
		paths := ""
		for i := range 40 {
			paths += fmt.Sprintf("{\"path\":\"cat/%d.png\"}\n", i)
		}
		if err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, 40, 2), os.WriteFile(filepath.Join(dir, "images.jsonl"), []byte(paths), 0o666)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	wide := t.TempDir()
	if err := npy.WriteFile(filepath.Join(wide, "features.npy"), make([]float32, 30), 10, 3); err != nil {
		t.Fatal(err)
	}
	third := pipetest.Clouds(t, 1, 20, []int64{0, 2}, pipetest.Two...)
	absent := filepath.Join(t.TempDir(), "absent")
	tests := map[string]struct {
		opts Options
		says string
	}{
		"no features":          {quick(), "Features"},
		"absent":               {quick(absent), absent},
		"no labels":            {quick(unlabelled), "no labels"},
		"not finite":           {quick(good, nan), "row 39"},
		"absurd":               {quick(good, absurd(1e20)), "row 17 (cat/17.png): the value 1e+20 is beyond"},
		"beside the others":    {quick(absurd(-1e10)), "row 17 (cat/17.png): the value ±1e+10 is 2.3e+08 times"},
		"other dimension":      {quick(good, wide), wide},
		"validation class":     {func() Options { o := quick(good); o.Validation.Features = third; return o }(), `"2"`},
		"validation unlabeled": {func() Options { o := quick(good); o.Validation.Features = unlabelled; return o }(), "no labels"},
		"calibration absent":   {func() Options { o := quick(good); o.Calibration.Features = absent; return o }(), absent},
		"nothing left":         {func() Options { o := quick(good); o.Validation.Fraction = 0.95; return o }(), "nothing is left"},
		"target":               {func() Options { o := quick(good); o.TargetTPR = 1; return o }(), "TargetTPR"},
		"norm":                 {func() Options { o := quick(good); o.Head = head.Paper{Norm: 0.3}; return o }(), "Norm"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Train(context.Background(), tt.opts); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}
