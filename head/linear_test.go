package head_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// task is a task of testdata/generate_sklearn.py.
type task struct {
	Classes, Fitted int
	Features        [][]float32
	Labels          []int64
	Heads           []struct {
		C        float64
		Weights  [][]float64
		Bias     []float64
		HeldLoss float64 `json:"held_loss"`
	}
}

func (g task) rows() (train, held features.Rows) {
	all := features.All(slices.Concat(g.Features...), len(g.Features[0]), g.Labels)
	return all.With(all.Index[:g.Fitted]), all.With(all.Index[g.Fitted:])
}

func tasks(t *testing.T) []task {
	t.Helper()
	text, err := os.ReadFile("testdata/sklearn.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Tasks []task }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all.Tasks
}

// near checks that values differ by less than a share of the largest.
func near(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	size := 0.
	for _, v := range want {
		size = max(size, math.Abs(v))
	}
	for i, v := range want {
		if !(math.Abs(got[i]-v) <= tolerance*size) {
			t.Errorf("%s: value %d is %g, want %g", what, i, got[i], v)
		}
	}
}

func TestScikitLearn(t *testing.T) {
	for _, g := range tasks(t) {
		train, held := g.rows()
		for _, h := range g.Heads {
			f, err := head.FitLinear(context.Background(), train, held, g.Classes, head.LinearOptions{C: h.C, Tolerance: 1e-17})
			if err != nil {
				t.Fatal(err)
			}
			for c, want := range h.Weights {
				// The features' deviations differ by up to four orders.
				for j, w := range want {
					near(t, "weight", f.Weights[c*f.In+j:][:1], []float64{w}, 5e-5)
				}
			}
			near(t, "bias", f.Bias, h.Bias, 5e-5)
		}
	}
}

// TestChoice: C follows from the losses of the validation rows, which are
// scikit-learn's.
func TestChoice(t *testing.T) {
	for _, g := range tasks(t) {
		train, held := g.rows()
		f, err := head.FitLinear(context.Background(), train, held, g.Classes, head.LinearOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkChoice(t, f)
		for _, h := range g.Heads {
			if i := slices.Index(head.LinearGrid, h.C); i >= 0 && i < len(f.Losses) && math.Abs(f.Losses[i]-h.HeldLoss) > .01 {
				t.Errorf("C = %g: the loss is %g, want %g", h.C, f.Losses[i], h.HeldLoss)
			}
		}
		// Without validation rows, C is chosen on held-out training rows.
		alone, err := head.FitLinear(context.Background(), train, features.Rows{}, g.Classes, head.LinearOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkChoice(t, alone)
	}
}

// checkChoice: C is the least value of the grid whose loss is at most Slack above
// the least one, and the search ended neither too soon nor too late.
func checkChoice(t *testing.T, f *head.FittedLinear) {
	t.Helper()
	least := slices.Min(f.Losses)
	first := slices.IndexFunc(f.Losses, func(loss float64) bool { return loss <= least+head.LinearSlack })
	if f.C != head.LinearGrid[first] {
		t.Errorf("C = %g of losses %v", f.C, f.Losses)
	}
	for i, loss := range f.Losses {
		ends := i+1 == len(head.LinearGrid) || loss < head.LinearSlack || i > 0 && loss >= f.Losses[i-1]
		if ends != (i+1 == len(f.Losses)) {
			t.Errorf("the search ended after losses %v", f.Losses)
		}
	}
}

// TestOneScale: with one scale the logits do not depend on how the features are
// rotated or scaled together; with a scale for each feature they do.
func TestOneScale(t *testing.T) {
	rows := blobs(60, 4, 3, 9)
	turned := rows
	turned.X = slices.Clone(rows.X)
	for i := 0; i < len(turned.X); i += 4 { // first two features by 45 degrees, all times 100
		a, b := rows.X[i], rows.X[i+1]
		copy(turned.X[i:], []float32{(a - b) * 70.710678, (a + b) * 70.710678, 100 * rows.X[i+2], 100 * rows.X[i+3]})
	}
	for _, one := range []bool{true, false} {
		var logits [2][]float64
		for k, r := range []features.Rows{rows, turned} {
			f, err := head.FitLinear(context.Background(), r, features.Rows{}, 3, head.LinearOptions{C: .01, OneScale: one, Tolerance: 1e-14})
			if err != nil {
				t.Fatal(err)
			}
			x := make([]float64, len(r.X))
			for i, v := range r.X {
				x[i] = float64(v)
			}
			logits[k] = make([]float64, 3*r.Len())
			f.Logits(logits[k], x)
		}
		apart := 0.
		for i, v := range logits[0] {
			apart = max(apart, math.Abs(v-logits[1][i]))
		}
		if one != (apart < 1e-4) {
			t.Errorf("one scale %v: logits differ by %g", one, apart)
		}
	}
}

// blobs are n rows of a class in d features each.
func blobs(n, d, classes int, seed uint64) features.Rows {
	rng := rand.New(rand.NewPCG(seed, 1))
	var x []float32
	var labels []int64
	for i := range n * classes {
		y := i % classes
		for j := range d {
			centre := 0.
			if j%classes == y {
				centre = 2
			}
			x = append(x, float32(centre+rng.NormFloat64()))
		}
		labels = append(labels, int64(y))
	}
	return features.All(x, d, labels)
}

// TestNear: a fit that begins with the axes of a head of one class more has the same result,
// and in a direction that only rows of that class take it has learned little, however early
// it ends.
func TestNear(t *testing.T) {
	ctx := context.Background()
	rows := blobs(60, 7, 4, 3)
	var index []int
	for i, y := range rows.Labels {
		rows.X[i*7+6] /= 1e3
		if y == 3 {
			rows.X[i*7+6] += 4
		} else {
			index = append(index, i)
		}
	}
	full, err := head.FitLinear(ctx, rows, features.Rows{}, 4, head.LinearOptions{C: 1})
	if err != nil {
		t.Fatal(err)
	}
	fit := func(o head.LinearOptions) *head.FittedLinear {
		o.C, o.OneScale = full.C, true
		f, err := head.FitLinear(ctx, rows.With(index), features.Rows{}, 3, o)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	want, got := fit(head.LinearOptions{Tolerance: 1e-13}), fit(head.LinearOptions{Tolerance: 1e-13, Near: full.Blank(3)})
	near(t, "weights", got.Weights, want.Weights, 1e-4)
	near(t, "bias", got.Bias, want.Bias, 1e-4)
	early := fit(head.LinearOptions{Tolerance: 1e-4, Near: full.Blank(3)})
	for c := range 3 {
		if own, known := early.Weights[c*7+6], full.Weights[c*7+6]; math.Abs(own) > math.Abs(known)/2 {
			t.Errorf("class %d: weight %g in the direction of the class left out, which had %g", c, own, known)
		}
	}
	if _, err := head.FitLinear(ctx, rows.With(index), features.Rows{}, 3, head.LinearOptions{Near: full}); err == nil {
		t.Error("a head of other classes was accepted")
	}
}

// TestPasses bounds the passes over the rows. With more features than rows of a class
// the diagonal is far from the Hessian: 64 passes, and 130 without its scale.
func TestPasses(t *testing.T) {
	for _, c := range []struct{ rows, features, classes, most int }{{20, 400, 60, 90}, {100, 9, 3, 50}} {
		f, err := head.FitLinear(context.Background(), blobs(c.rows, c.features, c.classes, 4), features.Rows{}, c.classes, head.LinearOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if f.Passes == 0 || f.Passes > c.most {
			t.Errorf("%d rows of each of %d classes, %d features: %d passes", c.rows, c.classes, c.features, f.Passes)
		}
	}
}

// TestNarrow: products in float32 give nearly the same head, and the same choice of C.
func TestNarrow(t *testing.T) {
	train, val := blobs(200, 9, 3, 1), blobs(40, 9, 3, 2)
	for _, rows := range []features.Rows{train, val} { // a large offset, which float32 must not see
		for j := range rows.Labels {
			rows.X[9*j+2] += 500
		}
	}
	fit := func(c float64) *head.FittedLinear {
		f, err := head.FitLinear(context.Background(), train, val, 3, head.LinearOptions{C: c, Tolerance: 1e-4})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	chosen, want := fit(0), fit(.01)
	defer head.AlwaysNarrow()()
	if got := fit(0); got.C != chosen.C {
		t.Errorf("C = %g, want %g", got.C, chosen.C)
	}
	got := fit(.01)
	near(t, "weights", got.Weights, want.Weights, 1e-3)
	near(t, "bias", got.Bias, want.Bias, 1e-3)
}

// TestAnywhere: the head depends neither on the number of cores nor on whether the
// rows are in memory.
func TestAnywhere(t *testing.T) {
	t.Run("float64", anywhere)
	defer head.AlwaysNarrow()()
	t.Run("float32", anywhere)
}

func anywhere(t *testing.T) {
	train, val := blobs(200, 9, 3, 1), blobs(40, 9, 3, 2)
	fit := func(train features.Rows) *head.FittedLinear {
		f, err := head.FitLinear(context.Background(), train, val, 3, head.LinearOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	want := fit(train)
	before := runtime.GOMAXPROCS(1)
	one := fit(train)
	runtime.GOMAXPROCS(3)
	three := fit(train)
	runtime.GOMAXPROCS(before)
	space := features.NewSpace(1000, t.TempDir(), 1)
	paged, err := space.Make(train.D, train.Labels, func(write func(int, []float32) error) error { return write(0, train.X) })
	if err != nil {
		t.Fatal(err)
	}
	if paged.Window() == 0 {
		t.Error("the rows are in memory")
	}
	for name, got := range map[string]*head.FittedLinear{"one core": one, "three cores": three, "a file": fit(paged)} {
		if !reflect.DeepEqual(got.Linear, want.Linear) || got.C != want.C {
			t.Errorf("%s: another head", name)
		}
	}
	if err := errors.Join(paged.Close(), space.Close()); err != nil {
		t.Error(err)
	}
}

// TestEdges: classes without rows, one class, features that do not vary, huge
// ones, and more features than rows.
func TestEdges(t *testing.T) {
	ctx := context.Background()
	rows := blobs(20, 6, 3, 5)
	f, err := head.FitLinear(ctx, rows, features.Rows{}, 5, head.LinearOptions{})
	if err != nil {
		t.Fatal(err)
	}
	logits := make([]float64, 5*rows.Len())
	x := make([]float64, len(rows.X))
	for i, v := range rows.X {
		x[i] = float64(v)
	}
	f.Logits(logits, x)
	for i, y := range rows.Labels {
		if top := slices.Max(logits[5*i : 5*i+3]); top != logits[5*i+int(y)] && i < 3 || logits[5*i+4] >= top {
			t.Errorf("row %d of class %d has logits %v", i, y, logits[5*i:5*i+5])
		}
	}
	one := features.All(rows.X, rows.D, make([]int64, rows.Len()))
	if f, err = head.FitLinear(ctx, one, features.Rows{}, 1, head.LinearOptions{}); err != nil || slices.Max(f.Weights) != 0 {
		t.Errorf("one class: %v, %v", f, err)
	}
	for name, x := range map[string][]float32{
		"constant": make([]float32, 12), "huge": {1e30, 0, 0, 2e30, 1, 1, 1e30, 1, 0, 3e30, 5, 5}, "more features than rows": {1, 2, 3, 4, 5, 6, 6, 1, 8, 7, 2, 1},
	} {
		d := 3
		if name == "more features than rows" {
			d = 6
		}
		f, err := head.FitLinear(ctx, features.All(x, d, []int64{0, 1, 0, 1}[:12/d]), features.Rows{}, 2, head.LinearOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, v := range slices.Concat(f.Weights, f.Bias) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%s: weights %v, bias %v", name, f.Weights, f.Bias)
			}
		}
	}
	var bad *options.Error
	if _, err := head.FitLinear(ctx, rows, features.Rows{}, 3, head.LinearOptions{C: -1}); !errors.As(err, &bad) {
		t.Errorf("C = -1: %v", err)
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if _, err := head.FitLinear(stopped, rows, features.Rows{}, 3, head.LinearOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
