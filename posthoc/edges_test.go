package posthoc_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

// problem is a small one with everything that a score may want: 3 classes of
// rows that are not negative around a mean of their own, and the linear head
// with those means as weights.
func problem(n, d, classes, present int) posthoc.Input {
	rng := rand.New(rand.NewPCG(5, 6))
	weights, bias := make([]float32, classes*d), make([]float32, classes)
	for i := range weights {
		weights[i] = float32(rng.IntN(9))
	}
	for c := range bias {
		bias[c] = -float32(c)
	}
	head, err := posthoc.NewLinear(weights, bias)
	if err != nil {
		panic(err)
	}
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % present)
		for j := range d {
			x[i*d+j] = float32(math.Abs(float64(weights[int(labels[i])*d+j]) + rng.NormFloat64()))
		}
	}
	logits := make([]float64, n*classes)
	head.Logits(logits, wide(x))
	data := posthoc.NewData(x, d, labels, classes)
	data.Logits = posthoc.Matrix(logits, classes)
	return posthoc.Input{Train: data, LastLayer: head}
}

// right relabels rows to be of the class that the head predicts, one in ten
// excepted, so that a temperature can be fitted.
func (in *testInput) relabel() {
	for i := range in.Train.Labels {
		z := in.Train.Logits(i, i+1)
		in.Train.Labels[i] = int64(slices.Index(z, slices.Max(z)))
		if i%10 == 0 {
			in.Train.Labels[i] = (in.Train.Labels[i] + 1) % int64(in.Train.Classes)
		}
	}
}

type testInput struct{ posthoc.Input }

func score(t testing.TB, s posthoc.Scorer, n int, b posthoc.Batch) []float64 {
	t.Helper()
	scores := make([]float64, n)
	if err := s.Score(context.Background(), scores, b); err != nil {
		t.Fatal(err)
	}
	return scores
}

func fit(t testing.TB, name string, in posthoc.Input) posthoc.Scorer {
	t.Helper()
	s, err := posthoc.Fit(context.Background(), name, in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func whole(data *posthoc.Data) posthoc.Batch {
	return posthoc.Batch{Features: data.Features(0, data.N), Logits: data.Logits(0, data.N)}
}

// TestNoScoreIsLostAtTheEdges fits all scores where peers have given NaN,
// infinities or nothing: fewer rows than K, a class without rows, a feature that
// is always zero, a row of zeros among the training rows; and scores, beside
// the training rows, features of zeros.
func TestNoScoreIsLostAtTheEdges(t *testing.T) {
	t.Parallel()
	const n, d, classes = 30, 6, 4
	in := testInput{problem(n, d, classes, classes-1)}
	in.relabel()
	for i, y := range in.Train.Labels {
		if y == classes-1 {
			in.Train.Labels[i] = 0
		}
		in.Train.Features(i, i+1)[2] = 0
	}
	clear(in.Train.Features(7, 8))
	b := whole(in.Train)
	b.Features = append(slices.Clone(b.Features), make([]float32, d)...)
	zero := make([]float64, classes)
	in.LastLayer.Logits(zero, make([]float64, d))
	b.Logits = append(b.Logits, zero...)
	for _, name := range posthoc.Names() {
		t.Run(name, func(t *testing.T) {
			for i, s := range score(t, fit(t, name, in.Input), n+1, b) {
				if math.IsNaN(s) || math.IsInf(s, 0) {
					t.Errorf("row %d scores %g", i, s)
				}
			}
		})
	}
}

// TestZeros says what features of zeros score, which in OpenOOD is −3.4e38, −Inf,
// +Inf and NaN.
func TestZeros(t *testing.T) {
	t.Parallel()
	in := problem(30, 6, 3, 3)
	norm, err := posthoc.FitFDBD(context.Background(), nil, in.LastLayer)
	if err != nil {
		t.Fatal(err)
	}
	b := posthoc.Batch{Features: make([]float32, in.Train.D), Logits: make([]float64, 3)}
	in.LastLayer.Logits(b.Logits, make([]float64, in.Train.D))
	energy := score(t, posthoc.Energy{}, 1, b)[0]
	for name, tt := range map[string]struct {
		score posthoc.Scorer
		want  float64
	}{
		"KNN: the distance to any direction": {fit(t, "knn", in), -1},
		"NNGuide: no neighbours":             {fit(t, "nnguide", in), 0},
		"fDBD by ‖f‖: as OOD as can be":      {norm, 0},
		"SCALE: nothing to scale":            {fit(t, "scale", in), energy},
		"ASH-S: nothing to scale":            {fit(t, "ash-s", in), energy},
		"cosine to a pattern: no direction":  {fit(t, "she-cos", in), 0},
		"relation: none":                     {fit(t, "relation", in), 0},
	} {
		if got := score(t, tt.score, 1, b)[0]; got != tt.want {
			t.Errorf("%s: %g, want %g", name, got, tt.want)
		}
	}
}

// TestAClassWithoutRows changes no Mahalanobis score.
func TestAClassWithoutRows(t *testing.T) {
	t.Parallel()
	in, more := problem(40, 5, 3, 3), problem(40, 5, 3, 3)
	more.Train.Classes = 9
	more.Train.Logits = nil
	for _, name := range []string{"mds", "mds++", "rmds", "rmds++"} {
		want := score(t, fit(t, name, in), 40, whole(in.Train))
		got := score(t, fit(t, name, more), 40, whole(in.Train))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, without the empty classes %v", name, got, want)
		}
	}
}

// TestBackgroundCovarianceIsDivided by N: then the mean of the squared distances
// of the training rows, by the covariance of all of them, is D.
func TestBackgroundCovarianceIsDivided(t *testing.T) {
	t.Parallel()
	const n, d = 90, 7
	in := problem(n, d, 3, 3)
	for _, suffix := range []string{"", "++"} {
		within := score(t, fit(t, "mds"+suffix, in), n, whole(in.Train))
		relative := score(t, fit(t, "rmds"+suffix, in), n, whole(in.Train))
		var mean float64
		for i := range within {
			mean += (relative[i] - within[i]) / n
		}
		if math.Abs(mean-d) > 1e-9 {
			t.Errorf("%q: the mean distance is %g, want %d", suffix, mean, d)
		}
	}
}

func TestPrincipalSpaceTooLarge(t *testing.T) {
	t.Parallel()
	in := problem(40, 5, 3, 3)
	for _, dim := range []int{5, 512, -1} {
		if _, err := posthoc.FitViM(context.Background(), in.Train, in.LastLayer, dim); err == nil {
			t.Errorf("%d dimensions of 5 features were taken", dim)
		}
	}
	s, err := posthoc.FitResidual(context.Background(), in.Train, in.LastLayer, 4)
	if err != nil || len(s.Basis) != 5 {
		t.Errorf("4 dimensions of 5 features leave a basis of %d values: %v", len(s.Basis), err)
	}
}

func TestDefaultPrincipalSpace(t *testing.T) {
	t.Parallel()
	for d, want := range map[int]int{1: 0, 64: 32, 767: 383, 768: 512, 2047: 512, 2048: 1000, 4096: 1000} {
		if got := posthoc.Principal(d); got != want {
			t.Errorf("%d of %d dimensions, want %d", got, d, want)
		}
	}
}

// TestFewRowsHaveTheSamePrincipalSpace: rows that are given twice have the same principal
// space, and are no longer fewer than their features.
func TestFewRowsHaveTheSamePrincipalSpace(t *testing.T) {
	t.Parallel()
	const n, d = 30, 48
	in := problem(n, d, 3, 3)
	x := in.Train.Features(0, n)
	twice := posthoc.NewData(slices.Concat(x, x), d, slices.Concat(in.Train.Labels, in.Train.Labels), 3)
	other := problem(2*n, d, 3, 3).Train.Features(n, 2*n)
	for _, dim := range []int{1, 8, 29, 30, 40} {
		few, err := posthoc.FitResidual(context.Background(), in.Train, in.LastLayer, dim)
		if err != nil {
			t.Fatal(err)
		}
		if want := (d - min(dim, n)) * d; len(few.Basis) != want {
			t.Fatalf("%d dimensions: a basis of %d values, want %d", dim, len(few.Basis), want)
		}
		many, err := posthoc.FitResidual(context.Background(), twice, in.LastLayer, min(dim, n))
		if err != nil {
			t.Fatal(err)
		}
		b := posthoc.Batch{Features: other}
		got := score(t, few, n, b)
		for i, want := range score(t, many, n, b) {
			if math.Abs(got[i]-want) > 1e-5 {
				t.Errorf("%d dimensions, row %d: %g, want %g", dim, i, got[i], want)
			}
		}
	}
}

// TestAllFeaturesInThePrincipalSpace is where ViM's α divides by zero, or by
// what rounding left.
func TestAllFeaturesInThePrincipalSpace(t *testing.T) {
	t.Parallel()
	few := problem(4, 12, 3, 3)
	head, err := posthoc.NewLinear(make([]float32, 3*12), []float32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	zeros := posthoc.Input{Train: posthoc.NewData(make([]float32, 3*12), 12, nil, 3), LastLayer: head}
	for name, in := range map[string]posthoc.Input{"fewer rows than dimensions": few, "zeros": zeros} {
		b := whole(few.Train)
		in.LastLayer.Logits(b.Logits, wide(b.Features))
		got, want := score(t, fit(t, "vim", in), 4, b), score(t, posthoc.Energy{}, 4, b)
		if !slices.Equal(got, want) {
			t.Errorf("%s: scores %v, want the energies, %v", name, got, want)
		}
	}
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// TestLogitsFarApart is what saturated softmax ties: the surer of two rows must
// score higher, up to the precision of float64, and impossible classes do not give NaN.
func TestLogitsFarApart(t *testing.T) {
	t.Parallel()
	inf := math.Inf(-1)
	in := problem(30, 4, 3, 3)
	for name, logits := range map[string][][]float64{ // from the least to the most ID
		"msp":    {{inf, inf, inf}, {0, 0, inf}, {1, 0, inf}, {9, inf, inf}},
		"gen":    {{inf, inf, inf}, {0, 0, inf}, {30, 0, 0}, {-1e5, -1e5 - 40, -2e5}, {60, 0, 0}, {600, 0, 0}, {6000, 0, 0}, {9, inf, inf}},
		"mls":    {{inf, inf, inf}, {-1e5, -2e5, inf}, {0, 0, 0}},
		"energy": {{inf, inf, inf}, {-1e5, -2e5, inf}, {-9, -9, -9}, {0, 0, 0}},
		"klm":    {{inf, inf, inf}},
		"odin":   {{0, 0, 0}},
	} {
		var scores []float64
		for _, z := range logits {
			b := posthoc.Batch{Logits: z, Features: make([]float32, 4)}
			scores = append(scores, score(t, fit(t, name, in), 1, b)...)
		}
		for i, s := range scores {
			if math.IsNaN(s) || i > 0 && !(scores[i-1] < s) {
				t.Errorf("%s: scores of %v are %v: they should rise", name, logits, scores)
				break
			}
		}
	}
	b := posthoc.Batch{Logits: []float64{0, inf, math.NaN(), 0}}
	if s := score(t, posthoc.MaxSoftmax{}, 2, b); s[0] != 1 || !math.IsNaN(s[1]) {
		t.Errorf("MSP: %v, want 1 and NaN", s)
	}
}

// TestNaN is passed on by every score that reads features, and not taken for a
// neighbour.
func TestNaN(t *testing.T) {
	t.Parallel()
	in := testInput{problem(30, 4, 3, 3)}
	in.relabel()
	b := whole(in.Train)
	b.Features = slices.Clone(b.Features)
	b.Features[1] = float32(math.NaN())
	want := score(t, fit(t, "knn", in.Input), 30, whole(in.Train))
	for _, name := range posthoc.Names() {
		if reads, _ := posthoc.NeedsOf(name); reads&posthoc.Features == 0 {
			continue
		}
		if s := score(t, fit(t, name, in.Input), 30, b)[0]; !math.IsNaN(s) {
			t.Errorf("%s: a row with NaN scores %g", name, s)
		}
	}
	if got := score(t, fit(t, "knn", in.Input), 30, b); !slices.Equal(got[1:], want[1:]) {
		t.Error("a row with NaN changed the scores of others")
	}
	if kept := posthoc.Largest([]float64{1, math.NaN(), 2}, 1); len(kept) != 1 || !math.IsNaN(kept[0]) {
		t.Errorf("of a row with NaN all of %v is kept, which may be a whole bank", kept)
	}
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	in := problem(30, 4, 3, 3)
	bare := posthoc.Input{Train: posthoc.NewData(in.Train.Features(0, 30), 4, nil, 3)}
	b := whole(in.Train)
	for name, without := range map[string]posthoc.Batch{
		"msp": {Features: b.Features}, "knn": {Logits: b.Logits}, "she-ip": {Features: b.Features}, "nnguide": {Logits: b.Logits},
	} {
		err := fit(t, name, in).Score(context.Background(), make([]float64, 30), without)
		if !errors.Is(err, posthoc.ErrMissing) {
			t.Errorf("%s scored without what it reads: %v", name, err)
		}
	}
	for _, name := range []string{"vim", "odin", "klm", "mds", "she-e", "scale", "fdbd", "temperature"} {
		if _, err := posthoc.Fit(context.Background(), name, bare); !errors.Is(err, posthoc.ErrMissing) {
			t.Errorf("%s was fitted without what it needs: %v", name, err)
		}
	}
	if _, err := posthoc.Fit(context.Background(), "nonsense", in); err == nil {
		t.Error("a score that there is not was fitted")
	}
	if err := fit(t, "mds", in).Score(context.Background(), make([]float64, 30), posthoc.Batch{Features: b.Features[:60]}); err == nil {
		t.Error("rows of another length were scored")
	}
	in.Train.Labels[3] = 3
	if _, err := posthoc.Fit(context.Background(), "mds", in); err == nil {
		t.Error("a label beyond the classes was taken")
	}
}

// TestNoTemperature is the best for a head that is always right.
func TestNoTemperature(t *testing.T) {
	t.Parallel()
	data := posthoc.NewData(make([]float32, 2), 1, []int64{0, 1}, 2)
	data.Logits = posthoc.Matrix([]float64{3, 0, 0, 5}, 2)
	if s, err := posthoc.FitTemperature(context.Background(), data); err == nil {
		t.Errorf("T = %g", s.Temperature)
	}
}

// TestCancelled: a score whose context is cancelled neither scores on nor is fitted
// on, if it reads training rows to be fitted.
func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, name := range posthoc.Names() {
		in := testInput{problem(60, 4, 3, 3)}
		in.relabel()
		s := fit(t, name, in.Input)
		if err := s.Score(ctx, make([]float64, 60), whole(in.Train)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s scores on: %v", name, err)
		}
		if !readsRows(t, name, in.Input) {
			continue
		}
		fresh := posthoc.Input{LastLayer: in.LastLayer}
		fresh.Train = posthoc.NewData(in.Train.Features(0, 60), 4, in.Train.Labels, 3)
		fresh.Train.Logits = in.Train.Logits
		if _, err := posthoc.Fit(ctx, name, fresh); !errors.Is(err, context.Canceled) {
			t.Errorf("%s fits on: %v", name, err)
		}
	}
}

// readsRows reports whether a score reads the training rows when it is fitted.
func readsRows(t *testing.T, name string, in posthoc.Input) bool {
	var read atomic.Bool
	own := in.Train
	in.Train = &posthoc.Data{
		N: own.N, D: own.D, Classes: own.Classes, Labels: own.Labels,
		Features: func(from, to int) []float32 { read.Store(true); return own.Features(from, to) },
		Logits:   func(from, to int) []float64 { read.Store(true); return own.Logits(from, to) },
	}
	fit(t, name, in)
	return read.Load()
}

// A score that reads features alone can be had without a classifier, and no
// other can.
func TestHeadless(t *testing.T) {
	t.Parallel()
	in := problem(60, 6, 3, 3)
	bare := posthoc.Input{Train: posthoc.NewData(in.Train.Features(0, 60), 6, in.Train.Labels, 3)}
	for _, name := range posthoc.Names() {
		s, err := posthoc.Fit(context.Background(), name, bare)
		if err == nil {
			err = s.Score(context.Background(), make([]float64, 1), posthoc.Batch{Features: in.Train.Features(0, 1)})
		}
		if alone := err == nil; alone != posthoc.Headless(name) || !alone && !errors.Is(err, posthoc.ErrMissing) {
			t.Errorf("%s without a classifier: %v", name, err)
		}
	}
}

// What a detached score was fitted on may be gone.
func TestDetach(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"knn", "nnguide", "relation"} {
		in := problem(60, 6, 3, 3)
		x, logits := slices.Clone(in.Train.Features(0, 5)), in.Train.Logits(0, 5)
		s, err := posthoc.Fit(context.Background(), name, in)
		if err != nil {
			t.Fatal(err)
		}
		want := score(t, s, 5, posthoc.Batch{Features: x, Logits: logits})
		posthoc.Detach(s)
		clear(in.Train.Features(0, 60))
		in.Train.Logits = nil
		if got := score(t, s, 5, posthoc.Batch{Features: x, Logits: logits}); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestNECOOfFeaturesThatDoNotVary: they are divided by 1, as by scikit-learn's
// StandardScaler, and lie outside of the principal space. Where none varies
// there is no such space.
func TestNECOOfFeaturesThatDoNotVary(t *testing.T) {
	t.Parallel()
	// Two features that are the same but for their signs: one axis has all of the
	// variance. The third is constant.
	x := []float32{1, -1, 0.1, 3, -3, 0.1, 5, -5, 0.1}
	s, err := posthoc.FitNECO(t.Context(), posthoc.NewData(x, 3, nil, 2), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Axes) != 3 {
		t.Errorf("the axes are %v, want one of 3 features", s.Axes)
	}
	deviation := math.Sqrt(8. / 3)
	b := posthoc.Batch{
		Features: []float32{5, -5, 0.1, 5, 1, 0.1, 3, -3, 4.1, 3, -3, 0.1, 5, -5, 0.1},
		Logits:   []float64{2, 7, 2, 7, 2, 7, 2, 7, math.Inf(-1), math.Inf(-1)},
	}
	got := score(t, s, 5, b)
	across := math.Hypot(2/deviation, 4/deviation) // the second row's length; half of 2−4 lies on the axis
	for i, want := range []float64{7, 7 * (1 / deviation * math.Sqrt2) / across, 0, 0, math.Inf(-1)} {
		if !(math.Abs(got[i]-want) < 1e-6 || got[i] == want) {
			t.Errorf("row %d scores %g, want %g", i, got[i], want)
		}
	}
	same := posthoc.NewData([]float32{1, 0.3, 1, 0.3, 1, 0.3}, 2, nil, 2)
	if s, err := posthoc.FitNECO(t.Context(), same, 0); err == nil {
		t.Errorf("features that do not vary have the axes %v", s.Axes)
	}
}
