package head_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
)

// TestGoldenShrinkage compares the chosen shrinkage with numpy's choice.
func TestGoldenShrinkage(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Choices []struct {
			D          int
			L2         bool
			X, XV      []float32
			Labels, YV []int64
			Shrinkage  float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	seen := map[float64]bool{}
	for _, c := range golden.Choices {
		train := features.Rows{X: c.X, D: c.D, Labels: c.Labels, Index: lists.UpTo(len(c.Labels))}
		val := features.Rows{X: c.XV, D: c.D, Labels: c.YV, Index: lists.UpTo(len(c.YV))}
		o := head.ConditioningOptions{Kind: head.Whiten, L2: c.L2}
		fitted, err := head.FitConditioning(t.Context(), train, val, 3, o)
		if err != nil {
			t.Fatal(err)
		}
		if fitted.Shrinkage != c.Shrinkage {
			t.Errorf("%d rows of %d features: shrinkage %g, want %g", len(c.Labels), c.D, fitted.Shrinkage, c.Shrinkage)
		}
		seen[c.Shrinkage] = true

		// Rows of a class without training rows are ignored.
		val.X, val.Labels = append(slices.Clone(c.XV), make([]float32, c.D)...), append(slices.Clone(c.YV), 3)
		val.Index = lists.UpTo(len(val.Labels))
		again, err := head.FitConditioning(t.Context(), train, val, 4, o)
		if err != nil || again.Shrinkage != c.Shrinkage || !slices.Equal(again.Mean, fitted.Mean) {
			t.Errorf("%d rows of %d features: with an empty class, %v, %v", len(c.Labels), c.D, again, err)
		}
	}
	if len(seen) < 3 {
		t.Errorf("the goldens choose %v alone", seen)
	}
}

// drawClasses draws rows of overlapping classes with correlated features; the
// last class may have none.
func drawClasses(t *rapid.T, least int) (data features.Rows, classes int) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
	d := rapid.IntRange(1, 12).Draw(t, "d")
	classes = rapid.IntRange(1, 5).Draw(t, "classes")
	n := rapid.IntRange(least, 60).Draw(t, "n")
	data = features.Rows{D: d, X: make([]float32, n*d), Labels: make([]int64, n), Index: lists.UpTo(n)}
	full := classes
	if classes > 1 && rapid.Bool().Draw(t, "an empty class") {
		full--
	}
	means := make([]float64, classes*d)
	for i := range means {
		means[i] = 2 * rng.NormFloat64()
	}
	for i := range n {
		c := i % full
		data.Labels[i] = int64(c)
		common := rng.NormFloat64()
		for j := range d {
			data.X[i*d+j] = float32(1 + means[c*d+j] + common + 0.5*rng.NormFloat64())
		}
	}
	return data, classes
}

// TestTurn: functions of the rows are functions of the first coordinates, and
// distances are what they were.
func TestTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, classes := drawClasses(t, 10)
		d := data.D
		fit := func() *head.Conditioning {
			c, err := head.FitConditioning(t.Context(), data, features.Rows{}, classes, head.ConditioningOptions{Kind: head.Whiten, Shrinkage: .1})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		rows := func(c *head.Conditioning) []float32 {
			z, err := c.Rows(t.Context(), data)
			if err != nil {
				t.Fatal(err)
			}
			return z
		}
		before, c := rows(fit()), fit()
		k := rapid.IntRange(1, d).Draw(t, "functions")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		w := make([]float64, k*d)
		for i := range w {
			w[i] = rng.NormFloat64()
		}
		a, err := c.Turn(w)
		if err != nil {
			t.Fatal(err)
		}
		after := rows(c)
		for i := range data.Index {
			var was, is float64
			for j := range d {
				was += float64(before[i*d+j]) * float64(before[i*d+j])
				is += float64(after[i*d+j]) * float64(after[i*d+j])
			}
			if math.Abs(was-is) > 1e-3*(1+was) {
				t.Fatalf("row %d is %g from the mean, was %g", i, is, was)
			}
			for f := range k {
				var want, got, size float64
				for j := range d {
					v := w[f*d+j] * (float64(data.X[i*d+j]) - float64(c.Mean[j]))
					want, size = want+v, size+math.Abs(v)
				}
				for j := range k {
					got += a[f*k+j] * float64(after[i*d+j])
				}
				if math.Abs(got-want) > 1e-3*(1+size) {
					t.Fatalf("function %d of row %d is %g, want %g", f, i, got, want)
				}
			}
		}
	})
	if _, err := (&head.Conditioning{Mean: []float32{0}, Scale: []float32{1}}).Turn([]float64{1}); err == nil {
		t.Error("a map without a matrix was turned")
	}
}

// TestWhitenBeginsWithTheClassMeans: the class means differ in the first C−1
// coordinates only, most in the first, and the matrix is the root of the inverse
// covariance also with fewer rows than features.
func TestWhitenBeginsWithTheClassMeans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, classes := drawClasses(t, 10)
		d, n := data.D, len(data.Index)
		shrinkage := rapid.SampledFrom(head.Shrinkages).Draw(t, "shrinkage")
		c, err := head.FitConditioning(t.Context(), data, features.Rows{}, classes, head.ConditioningOptions{Kind: head.Whiten, Shrinkage: shrinkage})
		if err != nil {
			t.Fatal(err)
		}
		z, err := c.Rows(t.Context(), data)
		if err != nil {
			t.Fatal(err)
		}
		between := make([]float64, d) // scatter of the class means, per coordinate
		sums, counts := make([]float64, classes*d), make([]float64, classes)
		for i, y := range data.Labels {
			counts[y]++
			for j := range d {
				sums[int(y)*d+j] += float64(z[i*d+j])
			}
		}
		var total float64
		for class, count := range counts {
			for j := range d {
				if count > 0 {
					between[j] += sums[class*d+j] * sums[class*d+j] / count / float64(n)
					total += sums[class*d+j] * sums[class*d+j] / count / float64(n)
				}
			}
		}
		for j, v := range between {
			if j >= classes-1 && v > 1e-6*(1e-6+total) {
				t.Errorf("%d classes: coordinate %d has a scatter of %g of %g between them", classes, j, v, total)
			}
			if j > 0 && j < classes-1 && v > between[j-1]*(1+1e-4)+1e-6*total {
				t.Errorf("coordinate %d tells more than the one before: %v", j, between)
			}
		}

		// Wᵀ (Σ + s·t·I) W = I, as whitening has it.
		within := make([]float64, d*d)
		x := make([]float64, d)
		means := make([]float64, classes*d)
		for i, y := range data.Labels {
			for j := range d {
				means[int(y)*d+j] += float64(data.X[i*d+j]) / counts[y]
			}
		}
		for i, y := range data.Labels {
			for j := range d {
				x[j] = float64(data.X[i*d+j]) - means[int(y)*d+j]
			}
			for j := range d {
				for k := range d {
					within[j*d+k] += x[j] * x[k] / float64(n)
				}
			}
		}
		var trace float64
		for j := range d {
			trace += within[j*d+j]
		}
		for j := range d {
			within[j*d+j] += shrinkage * trace / float64(d)
		}
		for e := range d {
			for f := range d {
				var got float64
				for j := range d {
					for k := range d {
						got += float64(c.Matrix[j*d+e]) * within[j*d+k] * float64(c.Matrix[k*d+f])
					}
				}
				want := 0.0
				if e == f {
					want = 1
				}
				if math.Abs(got-want) > 1e-4 {
					t.Fatalf("Wᵀ Σ W at %d, %d is %g, want %g", e, f, got, want)
				}
			}
		}
	})
}

// TestWhitenWithoutValidation: every tenth training row, class by class, replaces
// validation rows, and without any of these the largest shrinkage is chosen.
func TestWhitenWithoutValidation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, classes := drawClasses(t, 2)
		o := head.ConditioningOptions{Kind: head.Whiten, L2: rapid.Bool().Draw(t, "L2")}
		c, err := head.FitConditioning(t.Context(), data, features.Rows{}, classes, o)
		if err != nil {
			if data.D > 1 && len(data.Index) > 2*classes {
				t.Fatal(err)
			}
			return // each class is one point
		}
		if !slices.Contains(head.Shrinkages, c.Shrinkage) {
			t.Fatalf("shrinkage %g", c.Shrinkage)
		}
		if n := len(data.Index); n < 10 {
			if c.Shrinkage != slices.Max(head.Shrinkages) {
				t.Fatalf("shrinkage %g of %d rows", c.Shrinkage, n)
			}
			return
		}
		var rest, held []int
		at := 0
		for class := range classes {
			for i, y := range data.Labels {
				if y != int64(class) {
					continue
				}
				if at++; at%10 == 0 {
					held = append(held, i)
				} else {
					rest = append(rest, i)
				}
			}
		}
		train, val := data, data
		train.Index, val.Index = rest, held
		named, err := head.FitConditioning(t.Context(), train, val, classes, o)
		if err != nil || named.Shrinkage != c.Shrinkage {
			t.Fatalf("shrinkage %g, with the rows named %v, %v", c.Shrinkage, named, err)
		}
	})
}

// TestWhitenInterleaved: the classes of rows cycle through ten, so that every
// tenth row is of the same class.
func TestWhitenInterleaved(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	data := features.Rows{D: 4}
	for i := range 400 {
		for range data.D {
			data.X = append(data.X, float32(i%10)+float32(rng.NormFloat64()))
		}
		data.Labels, data.Index = append(data.Labels, int64(i%10)), append(data.Index, i)
	}
	c, err := head.FitConditioning(t.Context(), data, features.Rows{}, 10, head.ConditioningOptions{Kind: head.Whiten})
	if err != nil || c.Shrinkage == slices.Max(head.Shrinkages) {
		t.Errorf("%+v, %v", c.ConditioningOptions, err)
	}
}
