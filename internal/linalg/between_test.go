package linalg

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// TestAddBetween: the within-class and the between-class covariance add up to the
// total one, also with a class without rows.
func TestAddBetween(t *testing.T) {
	t.Parallel()
	const n, d, classes = 200, 5, 4
	rng := rand.New(rand.NewPCG(7, 8))
	r := Rows{D: d, Classes: classes, Label: func(row int) int { return row % (classes - 1) }}
	x := make([]float64, n*d)
	for i := range x {
		x[i] = rng.NormFloat64() + float64(5*r.Label(i/d)*(i%d))
	}
	r.Read = func(dst []float64, row int) { copy(dst, x[row*d:]) }
	for i := range n {
		r.Index = append(r.Index, i)
	}
	ctx := context.Background()
	m, err := Means(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	want, err := m.Total(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	within, err := m.Within(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.AddBetween(ctx, within)
	if err != nil {
		t.Fatal(err)
	}
	for i := range d {
		for j := range d {
			if !(math.Abs(got.At(i, j)-want.At(i, j)) < 1e-12*(1+math.Abs(want.At(i, j)))) {
				t.Errorf("[%d, %d] = %g, want %g", i, j, got.At(i, j), want.At(i, j))
			}
		}
	}
}
