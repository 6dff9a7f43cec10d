package linalg

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// TestCovariances compares the blocked sums with the definitions, for more rows
// than a block has and with a class that has none.
func TestCovariances(t *testing.T) {
	t.Parallel()
	const n, d, classes = block + 37, 3, 4
	rng := rand.New(rand.NewPCG(1, 1))
	x, labels := make([]float64, n*d), make([]int, n)
	for i := range n {
		labels[i] = rng.IntN(classes - 1)
		for j := range d {
			x[i*d+j] = rng.NormFloat64()*float64(j+1) + float64(10*labels[i])
		}
	}
	r := Rows{D: d, Classes: classes, Label: func(row int) int { return labels[row] }, Read: func(dst []float64, row int) { copy(dst, x[row*d:]) }}
	for i := range n {
		if i%5 > 0 {
			r.Index = append(r.Index, i)
		}
	}
	ctx := context.Background()
	m, err := Means(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	within, err := m.Within(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	total, err := m.Total(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	mean := func(j int, of func(row int) bool) float64 {
		sum, count := 0.0, 0.0
		for _, at := range r.Index {
			if of(at) {
				sum += x[at*d+j]
				count++
			}
		}
		return sum / count
	}
	near := func(what string, got, want float64) {
		if !(math.Abs(got-want) < 1e-9*(1+math.Abs(want))) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	for i := range d {
		near("mean", m.Mean[i], mean(i, func(int) bool { return true }))
		for c := range classes - 1 {
			near("class mean", m.Means[c][i], mean(i, func(row int) bool { return labels[row] == c }))
		}
		near("mean of no rows", m.Means[classes-1][i], 0)
		for j := range d {
			var w, all float64
			for _, at := range r.Index {
				mu := m.Means[labels[at]]
				w += (x[at*d+i] - mu[i]) * (x[at*d+j] - mu[j]) / float64(len(r.Index))
				all += (x[at*d+i] - m.Mean[i]) * (x[at*d+j] - m.Mean[j]) / float64(len(r.Index))
			}
			near("within", within.At(i, j), w)
			near("total", total.At(i, j), all)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := m.Within(cancelled, r); err == nil {
		t.Error("a cancelled context did not stop the sums")
	}
}

// TestMeansOfLongRows: blocks of fewer rows change no bit of the means.
func TestMeansOfLongRows(t *testing.T) {
	t.Parallel()
	const n, d, classes = 900, blockBytes/8/700 + 1, 3
	if n*d*8 < blockBytes {
		t.Fatal("all rows are in one block")
	}
	value := func(row, j int) float64 { return math.Sin(float64(row*d + j)) }
	r := Rows{D: d, Classes: classes, Label: func(row int) int { return row % classes }, Read: func(dst []float64, row int) {
		for j := range dst {
			dst[j] = value(row, j)
		}
	}}
	for i := range n {
		r.Index = append(r.Index, i)
	}
	m, err := Means(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for j := 0; j < d; j += 101 {
		for c := range classes {
			var sum float64
			for row := c; row < n; row += classes {
				sum += value(row, j)
			}
			if want := sum / (n / classes); m.Means[c][j] != want {
				t.Fatalf("mean %d of class %d is %v, want %v", j, c, m.Means[c][j], want)
			}
		}
	}
}
