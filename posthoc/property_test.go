package posthoc_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// drawLogits draws n rows of logits in a range that heads give.
func drawLogits(t *rapid.T) (logits []float64, n, classes int) {
	n, classes = rapid.IntRange(1, 5).Draw(t, "n"), rapid.IntRange(1, 6).Draw(t, "classes")
	return rapid.SliceOfN(rapid.Float64Range(-50, 50), n*classes, n*classes).Draw(t, "logits"), n, classes
}

func same(t *rapid.T, what string, got, want []float64) {
	t.Helper()
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= 1e-9*(1+math.Abs(want[i]))) {
			t.Fatalf("%s: row %d scores %.17g, want %.17g", what, i, got[i], want[i])
		}
	}
}

func drawnScore(t *rapid.T, s posthoc.Scorer, n int, b posthoc.Batch) []float64 {
	t.Helper()
	scores := make([]float64, n)
	if err := s.Score(context.Background(), scores, b); err != nil {
		t.Fatal(err)
	}
	return scores
}

// TestLogitsInvariances: a constant added to all logits changes no probability
// and is added to the others; the order of the classes does not count.
func TestLogitsInvariances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits, n, classes := drawLogits(t)
		shift := rapid.Float64Range(-1000, 1000).Draw(t, "shift")
		order := rapid.Permutation(upTo(classes)).Draw(t, "order")
		shifted, permuted := make([]float64, len(logits)), make([]float64, len(logits))
		for i, v := range logits {
			shifted[i] = v + shift
			permuted[i/classes*classes+order[i%classes]] = v
		}
		for _, tt := range []struct {
			score  posthoc.Scorer
			shifts float64
		}{
			{posthoc.MaxSoftmax{}, 0}, {posthoc.MaxSoftmax{Temperature: 7}, 0}, {posthoc.MaxLogit{}, 1}, {posthoc.Energy{}, 1},
			{posthoc.Energy{Temperature: 3}, 1}, {posthoc.GEN{}, 0}, {posthoc.GEN{Gamma: 0.5, M: 2}, 0},
		} {
			want := drawnScore(t, tt.score, n, posthoc.Batch{Logits: logits})
			same(t, fmt.Sprintf("%#v, classes permuted", tt.score), drawnScore(t, tt.score, n, posthoc.Batch{Logits: permuted}), want)
			for i := range want {
				want[i] += tt.shifts * shift
			}
			same(t, fmt.Sprintf("%#v, shifted", tt.score), drawnScore(t, tt.score, n, posthoc.Batch{Logits: shifted}), want)
		}
		data := &posthoc.Data{N: n, Classes: classes, Logits: posthoc.Matrix(logits, classes)}
		s, err := posthoc.FitKLM(context.Background(), data)
		if err != nil {
			t.Fatal(err)
		}
		want := drawnScore(t, s, n, posthoc.Batch{Logits: logits})
		same(t, "KLM, shifted", drawnScore(t, s, n, posthoc.Batch{Logits: shifted}), want)
	})
}

func upTo(n int) []int {
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	return rows
}

// drawRows draws labelled features that are whole numbers, so that integer maps
// of them stay exact in float32.
func drawRows(t *rapid.T, n, d, classes int) *posthoc.Data {
	values := rapid.SliceOfN(rapid.IntRange(-9, 9), n*d, n*d).Draw(t, "features")
	x, labels := make([]float32, n*d), make([]int64, n)
	for i, v := range values {
		x[i] = float32(v)
	}
	for i := range labels {
		labels[i] = int64(i % classes)
	}
	return posthoc.NewData(x, d, labels, classes)
}

// TestMahalanobisInvariance: an invertible affine map of the features changes no
// distance.
func TestMahalanobisInvariance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n, d = 40, 3
		data := drawRows(t, n, d, 2)
		for i := range n { // spread in every direction, within both classes
			data.Features(i, i+1)[i/2%d] += 30 * float32(1-i/2/d%2*2)
		}
		shear := rapid.SliceOfN(rapid.IntRange(-3, 3), 3, 3).Draw(t, "shear")
		x := data.Features(0, n)
		mapped := make([]float32, len(x))
		for i := 0; i < len(x); i += d {
			mapped[i] = x[i] + float32(shear[0])*x[i+1] + float32(shear[1])*x[i+2] + 100
			mapped[i+1] = -(x[i+1] + float32(shear[2])*x[i+2])
			mapped[i+2] = x[i+2] / 256
		}
		other := posthoc.NewData(mapped, d, data.Labels, 2)
		for _, relative := range []bool{false, true} {
			score := func(data *posthoc.Data) []float64 {
				s, err := mahalanobis(data, false, relative)
				if err != nil {
					t.Fatal(err)
				}
				return drawnScore(t, s, n, posthoc.Batch{Features: data.Features(0, n)})
			}
			same(t, fmt.Sprintf("mapped, relative %t", relative), score(other), score(data))
		}
	})
}

func mahalanobis(data *posthoc.Data, l2, relative bool) (posthoc.Scorer, error) {
	if relative {
		return posthoc.FitRMDS(context.Background(), data, l2)
	}
	return posthoc.FitMDS(context.Background(), data, l2)
}

// TestDirectionsAlone: what reads f/‖f‖ does not see lengths, nor how the axes
// are turned.
func TestDirectionsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n, d = 30, 4
		data := drawRows(t, n, d, 2)
		x := data.Features(0, n)
		for i := range n { // spread in every direction, and no zeros
			x[i*d+i/2%d] += 30
		}
		order := rapid.Permutation(upTo(d)).Draw(t, "axes")
		signs := rapid.SliceOfN(rapid.SampledFrom([]float32{-1, 1}), d, d).Draw(t, "signs")
		scales := rapid.SliceOfN(rapid.IntRange(-30, 30), n, n).Draw(t, "scales")
		turned := make([]float32, len(x))
		for i, v := range x {
			turned[i/d*d+order[i%d]] = float32(math.Ldexp(float64(v*signs[i%d]), scales[i/d]))
		}
		other := posthoc.NewData(turned, d, data.Labels, 2)
		for _, name := range []string{"knn", "mds++", "rmds++"} {
			score := func(data *posthoc.Data) []float64 {
				s, err := posthoc.Fit(context.Background(), name, posthoc.Input{Train: data})
				if err != nil {
					t.Fatal(err)
				}
				return drawnScore(t, s, n, posthoc.Batch{Features: data.Features(0, n)})
			}
			same(t, name, score(other), score(data))
		}
	})
}

// TestKNNIsExact holds the blocked search against all distances, at any memory:
// with equal rows, rows of zeros and K above N.
func TestKNNIsExact(t *testing.T) {
	defer func(least int) { *posthoc.LeastCoarse = least }(*posthoc.LeastCoarse)
	rapid.Check(t, func(t *rapid.T) {
		n, d := rapid.IntRange(1, 150).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "d")
		k := rapid.IntRange(1, 20).Draw(t, "k")
		*posthoc.LeastCoarse = rapid.IntRange(0, 10).Draw(t, "least for coarse products")
		if rapid.Bool().Draw(t, "products of bytes") {
			defer kernels.BytesInGo(rapid.Bool().Draw(t, "of AVX2"))()
		}
		data := drawRows(t, n, d, 1)
		bank := data.Features(0, n)
		for i := range rapid.IntRange(0, n).Draw(t, "equal rows") {
			copy(bank[i*d:(i+1)*d], bank)
		}
		s, err := posthoc.FitKNN(data, k)
		if err != nil {
			t.Fatal(err)
		}
		s.Memory = rapid.Int64Range(1<<14, 1<<17).Draw(t, "memory")
		queries := drawRows(t, rapid.IntRange(1, 100).Draw(t, "queries"), d, 1)
		got := drawnScore(t, s, queries.N, posthoc.Batch{Features: queries.Features(0, queries.N)})
		want := make([]float64, queries.N)
		for i := range want {
			want[i] = kthDistance(queries.Features(i, i+1), bank, k)
		}
		for i := range want {
			if !(math.Abs(got[i]-want[i]) < 1e-14) {
				t.Fatalf("query %d scores %.17g, want %.17g", i, got[i], want[i])
			}
		}
	})
}

// TestKNNAmongNearlyEqualRows has differences that float32 products do not see.
func TestKNNAmongNearlyEqualRows(t *testing.T) {
	const n, d, k = 3000, 64, 10
	rng := rand.New(rand.NewPCG(9, 9))
	bank := make([]float32, n*d)
	for i := range bank {
		bank[i] = float32(1+i%d) + 1e-4*float32(rng.NormFloat64())
	}
	s, err := posthoc.FitKNN(posthoc.NewData(bank, d, nil, 0), k)
	if err != nil {
		t.Fatal(err)
	}
	defer func(least int) { *posthoc.LeastCoarse = least }(*posthoc.LeastCoarse)
	for i, memory := range []int64{0, 1 << 20, 1 << 20, 1 << 20, 1 << 20} {
		s.Memory, *posthoc.LeastCoarse = memory, []int{1000, 1000, 1, 1, 1}[i]
		if i >= 3 {
			defer kernels.BytesInGo(i == 4)()
		}
		for i, got := range score(t, s, 5, posthoc.Batch{Features: bank[:5*d]}) {
			if want := kthDistance(bank[i*d:(i+1)*d], bank, k); !(math.Abs(got-want) < 1e-15) {
				t.Errorf("memory %d, coarse products from %d queries on: row %d scores %g, want %g", memory, *posthoc.LeastCoarse, i, got, want)
			}
		}
	}
}

// TestKNNOfRoundedBytes has a nearest row that products of bytes place behind all others:
// because of how the query is rounded to bytes, and because of how the others are.
func TestKNNOfRoundedBytes(t *testing.T) {
	t.Run("AMX", func(t *testing.T) { testKNNOfRoundedBytes(t, false, 127) })
	t.Run("AVX2", func(t *testing.T) { testKNNOfRoundedBytes(t, true, 90) })
}

func testKNNOfRoundedBytes(t *testing.T, ofAVX2 bool, most float32) {
	const n, d = 300, 64
	var rows [4][d]float32
	query, nearest, other, short := rows[0][:], rows[1][:], rows[2][:], rows[3][:]
	for i := range d {
		query[i], nearest[i] = 0.49, most // 0.49 becomes 0
		if i%2 == 0 && 0 < i && i < 50 {
			other[i], other[i+1] = most, -most
		}
	}
	query[0], other[0] = most, most-2
	short[0], short[1] = 19.51, most // 19.51 becomes 20
	defer kernels.BytesInGo(ofAVX2)()
	defer func(least int) { *posthoc.LeastCoarse = least }(*posthoc.LeastCoarse)
	*posthoc.LeastCoarse = 1
	for name, of := range map[string]struct{ query, nearest, other []float32 }{
		"query":  {query, nearest, other},
		"others": {[]float32{0: 1, d - 1: 0}, []float32{0: 20, 1: most, d - 1: 0}, short},
	} {
		bank := slices.Concat(slices.Repeat(of.other, n), of.nearest, slices.Repeat(of.other, n))
		s, err := posthoc.FitKNN(posthoc.NewData(bank, d, nil, 0), 1)
		if err != nil {
			t.Fatal(err)
		}
		want := kthDistance(of.query, of.nearest, 1)
		if got := score(t, s, 1, posthoc.Batch{Features: of.query})[0]; !(math.Abs(got-want) < 1e-12) {
			t.Errorf("rounding of the %s: %g, want %g", name, got, want)
		}
		if other := kthDistance(of.query, of.other, 1); !(other < want) {
			t.Errorf("rounding of the %s: another row is as near, %g", name, other)
		}
	}
}

func kthDistance(q, bank []float32, k int) float64 {
	var distances []float64
	for row := range slices.Chunk(bank, len(q)) {
		var qq, qr, rr float64
		for j, v := range q {
			qq += float64(v) * float64(v)
			qr += float64(v) * float64(row[j])
			rr += float64(row[j]) * float64(row[j])
		}
		switch {
		case qq == 0:
			return -1
		case rr > 0:
			distances = append(distances, 2-2*qr/math.Sqrt(qq*rr))
		}
	}
	if len(distances) == 0 {
		return -1
	}
	slices.Sort(distances)
	return -max(distances[min(k, len(distances))-1], 0)
}

// TestReActThreshold is numpy.percentile's, whatever the values' signs.
func TestReActThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.IntRange(1, 4).Draw(t, "d")
		n := rapid.IntRange(1, 30).Draw(t, "n")
		x := rapid.SliceOfN(rapid.Float32Range(-1e30, 1e30), n*d, n*d).Draw(t, "features")
		p := rapid.Float64Range(1, 100).Draw(t, "percentile")
		head, err := posthoc.NewLinear(make([]float32, d), make([]float32, 1))
		if err != nil {
			t.Fatal(err)
		}
		s, err := posthoc.FitReAct(context.Background(), posthoc.NewData(x, d, nil, 1), head, p)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(x)
		at := p / 100 * float64(len(x)-1)
		below, above := float64(x[int(at)]), float64(x[min(int(at)+1, len(x)-1)])
		want := below + (above-below)*(at-math.Floor(at))
		if !(math.Abs(s.High-want) <= 1e-12*(math.Abs(below)+math.Abs(above))) {
			t.Fatalf("threshold %g, want %g", s.High, want)
		}
	})
}

// TestInputGradient holds an MLP's gradient, and with it ODIN's step, against
// finite differences.
func TestInputGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 5), 2, 5).Draw(t, "sizes")
		var m posthoc.MLP
		for i, in := range sizes[:len(sizes)-1] {
			out := sizes[i+1]
			l := &posthoc.Linear{In: in, Out: out}
			l.Weights = rapid.SliceOfN(rapid.Float64Range(-1, 1), in*out, in*out).Draw(t, "weights")
			l.Bias = rapid.SliceOfN(rapid.Float64Range(-1, 1), out, out).Draw(t, "bias")
			m = append(m, l)
		}
		d, classes := m.Size()
		x := rapid.SliceOfN(rapid.Float64Range(-2, 2), 2*d, 2*d).Draw(t, "x")
		g := rapid.SliceOfN(rapid.Float64Range(-1, 1), 2*classes, 2*classes).Draw(t, "g")
		value := func() (sum float64) {
			z := make([]float64, 2*classes)
			m.Logits(z, x)
			for i := range z {
				sum += g[i] * z[i]
			}
			return sum
		}
		gradient := make([]float64, len(x))
		m.InputGradient(gradient, x, g)
		for i := range x {
			const h = 1e-5
			at := x[i]
			x[i] = at + h
			up := value()
			x[i] = at - h
			down := value()
			x[i] = at
			middle := value()
			if math.Abs(up+down-2*middle) > 1e-12 {
				continue // a ReLU bends between
			}
			if want := (up - down) / (2 * h); math.Abs(gradient[i]-want) > 1e-6 {
				t.Fatalf("gradient %g, want %g", gradient[i], want)
			}
		}
	})
}

// TestOneRowAtATime: a single image scores what it scores among others.
func TestOneRowAtATime(t *testing.T) {
	const n, d, classes = 70, 5, 3
	in := testInput{problem(n, d, classes, classes)}
	in.relabel()
	b := whole(in.Train)
	for _, name := range posthoc.Names() {
		s := fit(t, name, in.Input)
		all := score(t, s, n, b)
		for i := range all {
			one := score(t, s, 1, posthoc.Batch{Features: b.Features[i*d : (i+1)*d], Logits: b.Logits[i*classes : (i+1)*classes]})
			if !(math.Abs(one[0]-all[i]) <= 1e-12*(1+math.Abs(all[i]))) {
				t.Errorf("%s: row %d scores %g, among others %g", name, i, one[0], all[i])
			}
		}
	}
}
