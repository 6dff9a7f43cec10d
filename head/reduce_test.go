package head_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// rowsOf makes n rows of d features of three classes, which differ in a few
// directions.
func rowsOf(n, d int) features.Rows {
	rng := rand.New(rand.NewPCG(3, 4))
	means := make([]float64, 3*d)
	for i := range means {
		means[i] = 0.2 * rng.NormFloat64()
	}
	labels := make([]int64, n)
	x := make([]float32, n*d)
	for i := range n {
		labels[i] = int64(i % 3)
		for j := range d {
			x[i*d+j] = float32(1 + means[i%3*d+j] + (0.1+1/float64(j+1))*rng.NormFloat64())
		}
	}
	return features.All(x, d, labels)
}

// TestReducedPCA: with less memory than D×D matrices take, the principal axes of
// the rows are the same, up to their signs.
func TestReducedPCA(t *testing.T) {
	data := rowsOf(40, 300)
	for _, l2 := range []bool{false, true} {
		o := head.ConditioningOptions{Kind: head.PCA, L2: l2, Dims: 12}
		want, err := head.FitConditioning(t.Context(), data, features.Rows{}, 3, o)
		if err != nil {
			t.Fatal(err)
		}
		o.Memory = 1 << 20 // of 3.6 MB
		got, err := head.FitConditioning(t.Context(), data, features.Rows{}, 3, o)
		if err != nil {
			t.Fatal(err)
		}
		if got.In() != 300 || got.Out() != 12 || got.Memory != 0 {
			t.Fatalf("a map from %d to %d with %d bytes", got.In(), got.Out(), got.Memory)
		}
		for e := range 12 {
			var dot float64
			for j := range 300 {
				dot += float64(got.Matrix[j*12+e]) * float64(want.Matrix[j*12+e])
			}
			if math.Abs(math.Abs(dot)-1) > 1e-3 {
				t.Errorf("L2 %v: axis %d is at an angle of %g to what it should be", l2, e, math.Acos(min(1, math.Abs(dot))))
			}
		}
	}
}

// TestReducedWhitening: rows of a class have unit variance in every coordinate,
// up to the shrinkage, and the classes stay separable.
func TestReducedWhitening(t *testing.T) {
	data := rowsOf(330, 2000)
	train, validation := data.With(data.Index[:300]), data.With(data.Index[300:])
	for _, kind := range []head.ConditioningKind{head.Auto, head.Whiten} {
		c, err := head.FitConditioning(t.Context(), train, validation, 3, head.ConditioningOptions{Kind: kind, Memory: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind != head.Whiten || c.Out() >= 300 || !(c.Shrinkage > 0) || c.Memory != 0 {
			t.Fatalf("%s: %+v with %d coordinates", kind, c.ConditioningOptions, c.Out())
		}
		z, err := c.Rows(t.Context(), data)
		if err != nil {
			t.Fatal(err)
		}
		e := c.Out()
		means := make([]float64, 3*e)
		for _, i := range train.Index {
			for j, v := range z[i*e : (i+1)*e] {
				means[int(data.Labels[i])*e+j] += float64(v) / 100
			}
		}
		right := 0
		for _, i := range validation.Index {
			best, least := -1, math.Inf(1)
			for class := range 3 {
				var sum float64
				for j, v := range z[i*e : (i+1)*e] {
					sum += (float64(v) - means[class*e+j]) * (float64(v) - means[class*e+j])
				}
				if sum < least {
					best, least = class, sum
				}
			}
			if best == int(data.Labels[i]) {
				right++
			}
		}
		if right < 28 {
			t.Errorf("%s: the nearest class mean is right for %d of 30 rows", kind, right)
		}
	}
}

func TestTooLittleMemory(t *testing.T) {
	_, err := head.FitConditioning(t.Context(), rowsOf(10, 2000), features.Rows{}, 3, head.ConditioningOptions{Kind: head.Whiten, Memory: 1000})
	if wrong := (*options.Error)(nil); !errors.As(err, &wrong) || wrong.Option != "Memory" {
		t.Errorf("got %v", err)
	}
}
