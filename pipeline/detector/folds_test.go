package detector

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// foldsOf returns a detector with three folds that differ, and rows for it.
func foldsOf(t *testing.T) (d *Detector, rows []float32) {
	t.Helper()
	d, rng := detectorOf(1), rand.New(rand.NewPCG(8, 8))
	d.CalibrationScores, d.TargetTPR = nil, 0.7
	for range 20 * d.Dim() {
		rows = append(rows, float32(rng.NormFloat64()))
	}
	for k := range 3 {
		fold := detectorOf(k + 2)
		fold.Heads, fold.Seeds = fold.Heads[:1], fold.Seeds[:1]
		fold.CalibrationScores = nil
		for _, v := range verdictsOf(t, fold, rows[k*fold.Dim():(4*k+5)*fold.Dim()]) {
			fold.CalibrationScores = append(fold.CalibrationScores, v.Score)
		}
		slices.Sort(fold.CalibrationScores)
		d.Folds, d.CalibrationScores = append(d.Folds, fold), append(d.CalibrationScores, fold.CalibrationScores...)
	}
	slices.Sort(d.CalibrationScores)
	return d, rows
}

// TestFoldsVerdicts: p-values and decisions are what the definition says, alone, in
// blocks and from the file.
func TestFoldsVerdicts(t *testing.T) {
	t.Parallel()
	d, rows := foldsOf(t)
	file := save(t, d)
	loaded, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	judge, n := loaded.VerdictFunc(), len(d.CalibrationScores)
	flagged := 0
	for i, got := range verdictsOf(t, d, rows) {
		x := rows[i*d.Dim() : (i+1)*d.Dim()]
		below := 0
		for _, fold := range d.Folds {
			own := verdictsOf(t, fold, x)[0].Score
			for _, s := range fold.CalibrationScores {
				if s <= own {
					below++
				}
			}
		}
		// A share of .3 may be flagged.
		p := float64(1+below) / float64(n+1)
		if got.PValue != p || got.OOD != (p <= math.Floor(0.3*float64(n+1)+1e-9)/float64(n+1)) {
			t.Errorf("row %d: %+v, want p = %g", i, got, p)
		}
		if got.OOD {
			flagged++
		}
		for what, other := range map[string]Verdict{"from the file": verdictsOf(t, loaded, x)[0], "by a judge": judge(x)[0]} {
			if other != got {
				t.Errorf("row %d %s: %+v, want %+v", i, what, other, got)
			}
		}
	}
	if flagged == 0 || flagged == len(rows)/d.Dim() {
		t.Errorf("%d rows are flagged", flagged)
	}
	if d.FalseAlarms() != nil {
		t.Error("the interval of a calibration set is given for folds")
	}
	if err := loaded.SetMaxFalseAlarms(0.1); err != nil {
		t.Error(err)
	}
	fewer := 0
	for _, v := range verdictsOf(t, loaded, rows) {
		if v.OOD {
			fewer++
		}
	}
	if fewer > flagged {
		t.Errorf("%d rows are flagged with fewer false alarms, and %d were before", fewer, flagged)
	}
}

// TestFoldsAreWhole: a file whose folds are not all there is refused.
func TestFoldsAreWhole(t *testing.T) {
	t.Parallel()
	d, _ := foldsOf(t)
	for what, change := range map[string]func(*safetensors.File){
		"fold 2 is missing": func(f *safetensors.File) { delete(f.Metadata, foldKey+"2") },
		"fold 1: tensor": func(f *safetensors.File) {
			f.Tensors = slices.DeleteFunc(f.Tensors, func(t safetensors.Tensor) bool { return t.Name == foldPrefix+"1.calibration.scores" })
		},
		"calibration scores": func(f *safetensors.File) {
			for i := range f.Tensors {
				if f.Tensors[i].Name == foldPrefix+"0.calibration.scores" {
					f.Tensors[i].Shape, f.Tensors[i].Data = []int{1}, []float64{0}
				}
			}
		},
	} {
		file, err := safetensors.Read(save(t, d))
		if err != nil {
			t.Fatal(err)
		}
		change(file)
		path := filepath.Join(t.TempDir(), "d.safetensors")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(safetensors.Write(out, file.Metadata, file.Tensors), out.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); !errors.Is(err, ErrDetector) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestCrossBound compares with the theorem's formula, by hand.
func TestCrossBound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		alpha float64
		n, k  int
		want  float64
	}{
		{0.05, 20, 5, 0.1 + 0.75/6}, {0.1, 1000, 5, 0.2 + 2*0.8/201}, {0.05, 30, 30, 0.1},
	} {
		if got := CrossBound(tt.alpha, tt.n, tt.k); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("α=%g n=%d k=%d: %g, want %g", tt.alpha, tt.n, tt.k, got, tt.want)
		}
	}
}
