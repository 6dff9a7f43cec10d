package evaluation_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// TestOutliers: a few rows of one kind that are far from every class do not hide each
// other, are not suggested for another class, and next to no other row is an outlier.
func TestOutliers(t *testing.T) {
	t.Parallel()
	const n, d, planted = 400, 24, 4
	rng := rand.New(rand.NewPCG(3, 5))
	dir := t.TempDir()
	var x []float32
	var labels []int64
	for i := range n + planted {
		y := i % 4
		spread := 1 + rng.Float64() // classes that spread
		for j := range d {
			v := spread * rng.NormFloat64()
			switch {
			case i >= n && j == d-1:
				v += 25
			case i < n && j == y:
				v += 6
			}
			x = append(x, float32(v))
		}
		labels = append(labels, int64(y)*int64(min(1, max(0, n-i)))) // the planted ones are all of class 0
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, n+planted, d); err != nil {
		t.Fatal(err)
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n+planted); err != nil {
		t.Fatal(err)
	}
	r, err := evaluation.Inspect(t.Context(), evaluation.InspectOptions{Features: []string{dir}, NoImages: true})
	if err != nil {
		t.Fatal(err)
	}
	found, others := 0, 0
	for _, i := range r.Issues {
		switch {
		case i.Kind == training.Outlier && i.Row >= n:
			found++
		case i.Kind == training.Outlier:
			others++
		case i.Kind == training.Label && i.Row >= n:
			t.Errorf("row %d is an outlier, and the class %q is suggested", i.Row, i.Suggested)
		}
	}
	if found != planted || others > 1 {
		t.Errorf("%d of %d outliers found, and %d others", found, planted, others)
	}
	for _, bad := range []float64{-1, 1.5} {
		if _, err := evaluation.Inspect(t.Context(), evaluation.InspectOptions{Features: []string{dir}, FalseOutliers: bad}); err == nil {
			t.Errorf("a rate of %g was taken", bad)
		}
	}
}
