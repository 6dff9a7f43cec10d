package head_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
)

// TestGolden compares the distances after each conditioning with numpy's
// (testdata/generate_golden.py).
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		D, Shown int
		X        []float32
		Labels   []int64
		Cases    []struct {
			Options   head.ConditioningOptions
			Distances [][]float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	data := features.Rows{X: golden.X, D: golden.D, Labels: golden.Labels, Index: lists.UpTo(len(golden.Labels))}
	for _, c := range golden.Cases {
		fitted, err := head.FitConditioning(context.Background(), data, features.Rows{}, 3, c.Options)
		if err != nil {
			t.Fatalf("%+v: %v", c.Options, err)
		}
		rows, e := golden.X, golden.D
		if fitted != nil {
			if rows, err = fitted.Rows(context.Background(), data); err != nil {
				t.Fatal(err)
			}
			e = fitted.Out()
		}
		for i, want := range c.Distances {
			for j, want := range want {
				if got := distance(rows[i*e:(i+1)*e], rows[j*e:(j+1)*e]); math.Abs(got-want) > 1e-5*(1+want) {
					t.Errorf("%+v: distance of rows %d and %d is %g, want %g", c.Options, i, j, got, want)
				}
			}
		}
	}
}

func distance(a, b []float32) float64 {
	var sum float64
	for i, v := range a {
		sum += float64(v-b[i]) * float64(v-b[i])
	}
	return sum
}

// TestWhitenedClassesAreRound: with almost no shrinkage, the covariance within
// the classes becomes the identity.
func TestWhitenedClassesAreRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.IntRange(1, 6).Draw(t, "d")
		classes := rapid.IntRange(1, 3).Draw(t, "classes")
		n := 20 * classes
		x := rapid.SliceOfN(rapid.Float32Range(-10, 10), n*d, n*d).Draw(t, "x")
		labels := make([]int64, n)
		for i := range labels {
			labels[i] = int64(i % classes)
			for j := range d { // so that no direction is without spread
				x[i*d+j] += float32(math.Sin(float64(7*i*(j+1) + j)))
			}
		}
		data := features.Rows{X: x, D: d, Labels: labels, Index: lists.UpTo(n)}
		c, err := head.FitConditioning(context.Background(), data, features.Rows{}, classes, head.ConditioningOptions{Kind: head.Whiten, Shrinkage: 1e-9})
		if err != nil {
			t.Fatal(err)
		}
		z, err := c.Rows(context.Background(), data)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d {
			for j := range d {
				var sum float64
				for class := range classes {
					var a, b []float64
					for r := class; r < n; r += classes {
						a, b = append(a, float64(z[r*d+i])), append(b, float64(z[r*d+j]))
					}
					ma, mb := mean(a), mean(b)
					for r := range a {
						sum += (a[r] - ma) * (b[r] - mb) / float64(n)
					}
				}
				want := 0.0
				if i == j {
					want = 1
				}
				if math.Abs(sum-want) > 1e-3 {
					t.Fatalf("covariance within the classes at %d, %d is %g, want %g", i, j, sum, want)
				}
			}
		}
	})
}

func mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func TestFitRefuses(t *testing.T) {
	data := features.Rows{X: []float32{1, 2, 1, 2}, D: 2, Labels: []int64{0, 0}, Index: lists.UpTo(2)}
	for want, o := range map[string]head.ConditioningOptions{
		"is one of":          {Kind: "sphere"},
		"shrinkage -1":       {Kind: head.Whiten, Shrinkage: -1},
		"cannot be negative": {Kind: head.PCA, Dims: -1},
		"nothing to whiten":  {Kind: head.Whiten},
	} {
		if _, err := head.FitConditioning(context.Background(), data, features.Rows{}, 1, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %q", o, err, want)
		}
	}
	data.Index = data.Index[:1]
	if _, err := head.FitConditioning(context.Background(), data, features.Rows{}, 1, head.ConditioningOptions{Kind: head.Whiten}); err == nil {
		t.Error("one row was enough")
	}
}

// TestOddRows conditions rows unlike the training rows: none becomes NaN, and a
// feature that was constant in training has no effect.
func TestOddRows(t *testing.T) {
	data := features.Rows{X: []float32{1, 0, 3, 0, 5, 0}, D: 2, Labels: []int64{0, 0, 0}, Index: lists.UpTo(3)}
	c, err := head.FitConditioning(context.Background(), data, features.Rows{}, 1, head.ConditioningOptions{Kind: head.Standardise})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float64, 2)
	if c.Apply(got, []float64{3, 7}); !slices.Equal(got, []float64{0, 0}) {
		t.Errorf("the mean with a constant feature changed gives %v", got)
	}
	if c, err = head.FitConditioning(context.Background(), data, features.Rows{}, 1, head.ConditioningOptions{L2: true}); err != nil {
		t.Fatal(err)
	}
	for _, row := range [][]float64{{0, 0}, {1e300, 1e300}, {1e-300, 0}} {
		before := slices.Clone(row)
		c.Apply(got, row)
		length := math.Hypot(got[0], got[1])
		if want := math.Min(1, 1e301*math.Hypot(before[0], before[1])); math.Abs(length-want) > 1e-12 {
			t.Errorf("%v has the length %g afterwards", before, length)
		}
	}
}
