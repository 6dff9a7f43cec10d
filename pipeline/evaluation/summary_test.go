package evaluation

import (
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// trainedSets is a detector of clouds.
func trainedSets(t *testing.T, dir string, change func(*training.Options)) *detector.Detector {
	t.Helper()
	o := training.Options{Features: []string{dir}, Train: head.TrainOptions{Epochs: 3}, TargetTPR: 0.9}
	if change != nil {
		change(&o)
	}
	d, _, err := training.Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func of(t *testing.T, o SummaryOptions) *Summary {
	t.Helper()
	s, err := Summarise(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestMap: clouds that lie apart are apart on the map, along axes that have all the
// variance between their means, also where the head does not whiten; the unit is the
// deviation within a class.
func TestMap(t *testing.T) {
	t.Parallel()
	centres := [][2]float64{{0, 0}, {6, 0}, {0, 4}}
	dir := pipetest.Clouds(t, 1, 200, []int64{0, 1, 2}, centres...)
	for name, change := range map[string]func(*training.Options){
		"whitened": nil,
		"as it is": func(o *training.Options) { o.Head, o.NoHoldOut = pipetest.SmallPaper, true },
	} {
		s := of(t, SummaryOptions{Detector: trainedSets(t, dir, change), Points: 90})
		m := s.Map
		if len(m.Points) != 90 || m.Images != 600 || len(m.Shares) != 2 || math.Abs(m.Shares[0]+m.Shares[1]-1) > 1e-9 || m.Shares[0] < m.Shares[1] {
			t.Fatalf("%s: %d points, shares %v", name, len(m.Points), m.Shares)
		}
		axes, err := NewMapAxes(t.Context(), s.Detector, nil)
		if err != nil {
			t.Fatal(err)
		}
		if at, err := axes.Place(t.Context(), s.data.Row(0)); err != nil || !slices.Equal(at[0], m.Points[0].At) {
			t.Errorf("%s: row 0 lies at %v, and on the map at %v: %v", name, at, m.Points[0].At, err)
		}
		var means [3][2]float64
		for _, p := range m.Points {
			for axis, v := range p.At {
				means[p.Class][axis] += v / 30
			}
		}
		var within float64
		for _, p := range m.Points {
			within += math.Pow(p.At[0]-means[p.Class][0], 2) / 90
		}
		if within < 0.5 || within > 2 {
			t.Errorf("%s: the variance within a class is %g", name, within)
		}
		for i, a := range means {
			for j, b := range means[:i] {
				// 0.3 is the deviation of the clouds.
				want := math.Hypot(centres[i][0]-centres[j][0], centres[i][1]-centres[j][1]) / 0.3
				if got := math.Hypot(a[0]-b[0], a[1]-b[1]); math.Abs(got/want-1) > 0.3 {
					t.Errorf("%s: clouds %d and %d are %g apart, want about %g", name, i, j, got, want)
				}
			}
		}
	}
}

// TestClosest: the calibration images that are listed first are those whose scores are
// closest to the threshold, and one of them has set it.
func TestClosest(t *testing.T) {
	t.Parallel()
	d := trainedSets(t, pipetest.Clouds(t, 1, 200, pipetest.TwoLabels, pipetest.Two...), nil)
	s := of(t, SummaryOptions{Detector: d, Closest: 10})
	if len(s.Closest) != 10 || s.Closest[0].Score != d.Threshold || s.Closest[0].OOD {
		t.Errorf("%+v", s.Closest)
	}
	last := 0.
	for _, c := range s.Closest {
		away := math.Abs(c.Score - d.Threshold)
		if away < last || c.Threshold != d.Threshold || c.Image.Path == "" {
			t.Errorf("%+v after one that is %g away", c, last)
		}
		last = away
	}
	if n := len(s.FalseAlarms); n != 40 || s.FalseAlarms[3].Threshold != d.Threshold || s.FalseAlarms[3].Share != 4./41 {
		t.Errorf("%d thresholds, the fourth %+v", n, s.FalseAlarms[3])
	}
	for _, f := range s.FalseAlarms {
		if !(f.Low < f.Share && f.Share < f.High) {
			t.Errorf("%+v", f)
		}
	}
}

// TestCountsAreThoseOfTheFile: the confusion matrix that is made of the features of an
// older file is the one that training would have written.
func TestCountsAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	dir := pipetest.Clouds(t, 1, 200, []int64{0, 1, 2}, [2]float64{0, 0}, [2]float64{0.5, 0}, [2]float64{0, 4})
	d := trainedSets(t, dir, nil)
	want, counts := of(t, SummaryOptions{Detector: d, FileOnly: true}), d.Training.ClassCalibration
	d.Validation, d.Training.Sets, d.Training.ClassCalibration = nil, nil, nil
	got := of(t, SummaryOptions{Detector: d})
	for i := range want.Classes {
		w, g := want.Classes[i], got.Classes[i]
		w.Assessed, g.Assessed = nil, nil
		if w != g || w.Calibration != counts[i] || w.Validation+w.Calibration+w.Train != 200 {
			t.Errorf("%+v, the file has %+v", g, w)
		}
	}
	if len(got.Missing) != 1 {
		t.Errorf("missing: %v", got.Missing)
	}
	// Without features the old file says less, and that it does. Windows removes none that
	// are open.
	if err := errors.Join(want.Close(), got.Close(), os.RemoveAll(dir)); err != nil {
		t.Fatal(err)
	}
	if got = of(t, SummaryOptions{Detector: d}); got.Map != nil || got.Classes[0].Validation != -1 || len(got.Missing) != 2 {
		t.Errorf("without features: %+v", got)
	}
}

func TestRanks(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 150, 1000, 123456} {
		all := ranks(n)
		if len(all) > mostThresholds || n > 0 && (all[0] != 1 || all[len(all)-1] != n) {
			t.Errorf("%d: %d ranks", n, len(all))
		}
		for i := 1; i < len(all); i++ {
			if all[i] <= all[i-1] {
				t.Errorf("%d: rank %d after %d", n, all[i], all[i-1])
			}
		}
	}
}
