package metrics_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/metrics"

	"pgregory.net/rapid"
)

// number is a JSON number, or a string for what JSON has no number for.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(f)
	return err
}

func floats(numbers []number) []float64 {
	out := make([]float64, len(numbers))
	for i, n := range numbers {
		out[i] = float64(n)
	}
	return out
}

func load(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// near compares with an expected value; NaNs are equal to each other.
func near(t *testing.T, what string, got float64, want number) {
	t.Helper()
	w := float64(want)
	if !(math.Abs(got-w) <= 1e-12 || math.IsNaN(got) && math.IsNaN(w)) {
		t.Errorf("%s = %v, want %v", what, got, w)
	}
}

// TestOpenOOD compares the metrics with OpenOOD's own functions.
func TestOpenOOD(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Name    string
		ID      []number `json:"conf_id"`
		OOD     []number `json:"conf_ood"`
		AUROC   number   `json:"auroc"`
		AUPROut number   `json:"aupr_out"`
		AUPRIn  number   `json:"aupr_in"`
		FPR95   number   `json:"fpr_at_95_no_drop"`
	}
	load(t, testenv.Golden(t, "metrics.json"), &cases)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			got := metrics.Evaluate(floats(c.ID), floats(c.OOD))
			near(t, "AUROC", got.AUROC, c.AUROC)
			near(t, "AUPROut", got.AUPROut, c.AUPROut)
			near(t, "AUPRIn", got.AUPRIn, c.AUPRIn)
			near(t, "FPR95", got.FPR95, c.FPR95)
		})
	}
}

// TestScikitLearn compares the metrics with scikit-learn (testdata/generate_metrics.py).
func TestScikitLearn(t *testing.T) {
	t.Parallel()
	var golden struct {
		Cases []struct {
			Name    string
			ID, OOD []number
			AUROC   number
			AUPROut number `json:"aupr_out"`
			AUPRIn  number `json:"aupr_in"`
			FPR95   number
			FPR95ID number `json:"fpr95_id"`
			FPR80   number
		}
	}
	load(t, "testdata/metrics.json", &golden)
	for _, c := range golden.Cases {
		t.Run(c.Name, func(t *testing.T) {
			id, ood := floats(c.ID), floats(c.OOD)
			near(t, "AUROC", metrics.AUROC(id, ood), c.AUROC)
			near(t, "AUPROut", metrics.AUPROut(id, ood), c.AUPROut)
			near(t, "AUPRIn", metrics.AUPRIn(id, ood), c.AUPRIn)
			near(t, "FPR95", metrics.FPR95(id, ood), c.FPR95)
			near(t, "FPR95ID", metrics.FPR95ID(id, ood), c.FPR95ID)
			near(t, "FPRAtTPR(0.8)", metrics.FPRAtTPR(id, ood, 0.8), c.FPR80)
		})
	}
}

func TestWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	tests := []struct {
		name    string
		id, ood []float64
	}{
		{"nothing", nil, nil},
		{"no ID", nil, []float64{1}},
		{"no OOD", []float64{1}, nil},
		{"NaN in ID", []float64{1, nan, 2}, []float64{1}},
		{"NaN in OOD", []float64{1}, []float64{nan}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := metrics.Evaluate(test.id, test.ood)
			for _, f := range []float64{r.AUROC, r.AUPROut, r.AUPRIn, r.FPR95, r.FPR95ID} {
				if !math.IsNaN(f) {
					t.Errorf("got %+v, want NaNs", r)
				}
			}
		})
	}
}

func TestFPRAtTPRBounds(t *testing.T) {
	t.Parallel()
	id, ood := []float64{1, 2, 3, 4}, []float64{0, 2.5}
	for _, test := range []struct {
		tpr  float64
		want number
	}{{-1, 0}, {0, 0}, {0.01, 0}, {0.5, 0}, {0.51, 0.5}, {1, 0.5}, {1.01, number(math.NaN())}, {math.NaN(), number(math.NaN())}} {
		near(t, fmt.Sprintf("at %v", test.tpr), metrics.FPRAtTPR(id, ood, test.tpr), test.want)
	}
}

func TestAccuracy(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		pred, labels []int
		want         number
	}{
		{"two of three", []int{0, 1, 2}, []int{0, 1, 1}, 2. / 3},
		{"unlabelled rows are left out", []int{0, -1, 2}, []int{0, -1, 1}, 0.5},
		{"none labelled", []int{0}, []int{-1}, number(math.NaN())},
		{"none at all", nil, nil, number(math.NaN())},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			near(t, "accuracy", metrics.Accuracy(test.pred, test.labels), test.want)
		})
	}
	defer func() {
		if recover() == nil {
			t.Error("two lengths and no panic")
		}
	}()
	metrics.Accuracy([]int{1}, []int64{1, 2})
}

// scores draws few distinct values, so that ties are common.
func scores(t *rapid.T, label string) []float64 {
	one := rapid.OneOf(
		rapid.Map(rapid.IntRange(-3, 3), func(i int) float64 { return float64(i) }),
		rapid.Float64Range(-3, 3),
		rapid.SampledFrom([]float64{math.Inf(-1), math.Inf(1)}),
	)
	return rapid.SliceOfN(one, 1, 40).Draw(t, label)
}

// bruteForce is AUROC by its meaning: all pairs, ties half.
func bruteForce(id, ood []float64) float64 {
	var sum float64
	for _, a := range id {
		for _, b := range ood {
			switch {
			case a > b:
				sum++
			case a == b:
				sum += 0.5
			}
		}
	}
	return sum / float64(len(id)*len(ood))
}

func TestProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id, ood := scores(t, "id"), scores(t, "ood")
		idBefore, oodBefore := slices.Clone(id), slices.Clone(ood)
		r := metrics.Evaluate(id, ood)
		if !slices.Equal(id, idBefore) || !slices.Equal(ood, oodBefore) {
			t.Error("the arguments were changed")
		}
		for _, f := range []float64{r.AUROC, r.AUPROut, r.AUPRIn, r.FPR95, r.FPR95ID} {
			if !(f >= 0 && f <= 1+1e-12) {
				t.Errorf("%+v is not within [0, 1]", r)
			}
		}
		alone := metrics.Result{
			AUROC: metrics.AUROC(id, ood), AUPROut: metrics.AUPROut(id, ood), AUPRIn: metrics.AUPRIn(id, ood),
			FPR95: metrics.FPR95(id, ood), FPR95ID: metrics.FPR95ID(id, ood),
		}
		if r != alone {
			t.Errorf("together %+v, one by one %+v", r, alone)
		}
		if want := bruteForce(id, ood); math.Abs(r.AUROC-want) > 1e-12 {
			t.Errorf("AUROC %v, by all pairs %v", r.AUROC, want)
		}
		if swapped := metrics.AUROC(ood, id); math.Abs(r.AUROC+swapped-1) > 1e-12 {
			t.Errorf("AUROC %v, with the sides swapped %v", r.AUROC, swapped)
		}
		negative := func(x float64) float64 { return -x }
		if mirrored := metrics.Evaluate(each(ood, negative), each(id, negative)); mirrored.FPR95 != r.FPR95ID || mirrored.AUPROut != r.AUPRIn {
			t.Errorf("the sides' parts exchanged: %+v, %+v", r, mirrored)
		}
		monotone := func(x float64) float64 { return math.Cbrt(x)*2 + 100 }
		// Rounding could make ties of scores that differ.
		if distinct(each(append(id, ood...), monotone)) == distinct(append(id, ood...)) {
			if again := metrics.Evaluate(each(id, monotone), each(ood, monotone)); again != r {
				t.Errorf("a monotone map changed %+v to %+v", r, again)
			}
		}
	})
}

func each(values []float64, f func(float64) float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = f(v)
	}
	return out
}

func distinct(values []float64) int {
	return len(slices.Compact(slices.Sorted(slices.Values(values))))
}

func BenchmarkEvaluate(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	id, ood := make([]float64, 500_000), make([]float64, 500_000)
	for i := range id {
		id[i], ood[i] = rng.NormFloat64()+1, rng.NormFloat64()
	}
	for b.Loop() {
		metrics.Evaluate(id, ood)
	}
}

func ExampleEvaluate() {
	id := []float64{0.9, 0.8, 0.7, 0.4}
	ood := []float64{0.6, 0.4, 0.1}
	r := metrics.Evaluate(id, ood)
	fmt.Printf("AUROC %.3f, FPR@95 %.2f, and with 95%% of ID kept %.2f\n", r.AUROC, r.FPR95, r.FPR95ID)
	// Output: AUROC 0.875, FPR@95 0.25, and with 95% of ID kept 0.67
}

func ExampleAccuracy() {
	fmt.Println(metrics.Accuracy([]int{2, 0, 1}, []int64{2, 1, -1}))
	// Output: 0.5
}
