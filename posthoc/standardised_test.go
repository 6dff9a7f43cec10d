package posthoc

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// TestStandardised: a score of standardised features is that of features which were
// standardised before, with the same logits, and comes back from a file.
func TestStandardised(t *testing.T) {
	t.Parallel()
	const n, d, classes = 60, 6, 3
	rng := rand.New(rand.NewPCG(1, 2))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range x {
		x[i] = float32(float64(i%d) + float64(1+i%d)*rng.NormFloat64())
		if i%d == 4 {
			x[i] = 7 // does not vary
		}
	}
	head := &Linear{In: d, Out: classes, Weights: make([]float64, classes*d), Bias: []float64{1, -2, 0.5}}
	for i := range head.Weights {
		head.Weights[i] = rng.NormFloat64()
	}
	for i := range labels {
		labels[i] = int64(i % classes)
	}
	data := NewData(x, d, labels, classes)
	logits := make([]float64, n*classes)
	wide := make([]float64, n*d)
	kernels.Convert(wide, x)
	head.Logits(logits, wide)

	mean, deviation := make([]float64, d), make([]float64, d)
	for i, v := range wide {
		mean[i%d] += v / n
	}
	for i, v := range wide {
		deviation[i%d] += (v - mean[i%d]) * (v - mean[i%d]) / n
	}
	z, own := make([]float32, n*d), &Linear{In: d, Out: classes, Weights: make([]float64, classes*d), Bias: []float64{1, -2, 0.5}}
	for j := range deviation {
		if deviation[j] = math.Sqrt(deviation[j]); j == 4 {
			deviation[j] = 1
		}
		for c := range classes {
			own.Weights[c*d+j] = head.Weights[c*d+j] * deviation[j]
			own.Bias[c] += head.Weights[c*d+j] * mean[j]
		}
	}
	for i, v := range wide {
		z[i] = float32((v - mean[i%d]) / deviation[i%d])
	}
	for _, name := range []string{"vim", "fdbd", "react", "vra"} {
		s, err := FitStandardised(t.Context(), name, Input{Train: data, LastLayer: head})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := Fit(t.Context(), name, Input{Train: NewData(z, d, labels, classes), LastLayer: own})
		if err != nil {
			t.Fatal(err)
		}
		kind, tensors, err := Tensors(s)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := Load(kind, func(name string) (Tensor, bool) {
			for _, t := range tensors {
				if t.Name == name {
					return t, true
				}
			}
			return Tensor{}, false
		})
		if err != nil {
			t.Fatal(err)
		}
		got, again, want := make([]float64, n), make([]float64, n), make([]float64, n)
		for dst, run := range map[*[]float64]func() error{
			&got:   func() error { return s.Score(t.Context(), got, Batch{x, logits}) },
			&again: func() error { return loaded.Score(t.Context(), again, Batch{x, logits}) },
			&want:  func() error { return plain.Score(t.Context(), want, Batch{z, logits}) },
		} {
			if err := run(); err != nil {
				t.Fatal(name, len(*dst), err)
			}
		}
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-5*(1+math.Abs(want[i])) || again[i] != got[i] {
				t.Fatalf("%s: row %d: %g, from the file %g, want %g", name, i, got[i], again[i], want[i])
			}
		}
	}
}

// TestShare: standardised scores together are bit-identical to each alone, with equal
// arrays that are the same ones and without.
func TestShare(t *testing.T) {
	t.Parallel()
	const n, d, classes = 300, 700, 400 // a head that is rounded
	rng := rand.New(rand.NewPCG(3, 4))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range x {
		x[i] = float32(1 + rng.NormFloat64())
	}
	for i := range labels {
		labels[i] = int64(i % classes)
	}
	head := &Linear{In: d, Out: classes, Weights: make([]float64, classes*d), Bias: make([]float64, classes)}
	for i := range head.Weights {
		head.Weights[i] = rng.NormFloat64()
	}
	var scores []Scorer
	var alone, together [][]float64
	var batches []Batch
	logits := make([]float64, n*classes)
	wide := make([]float64, n*d)
	kernels.Convert(wide, x)
	head.Logits(logits, wide)
	for _, name := range []string{"react", "vim", "fdbd", "vra"} {
		s, err := FitStandardised(t.Context(), name, Input{Train: NewData(x, d, labels, classes), LastLayer: head})
		if err != nil {
			t.Fatal(err)
		}
		own := make([]float64, n)
		b := Batch{Features: x, Logits: logits}
		if err := s.Score(t.Context(), own, b); err != nil {
			t.Fatal(err)
		}
		scores, alone, together, batches = append(scores, s), append(alone, own), append(together, make([]float64, n)), append(batches, b)
	}
	for range 2 {
		if err := ScoreAll(t.Context(), together, scores, batches); err != nil {
			t.Fatal(err)
		}
		for i := range alone {
			if !slices.Equal(together[i], alone[i]) {
				t.Errorf("score %d differs", i)
			}
		}
		Share(scores)
	}
	if react, vra := scores[0].(*Standardised).Of.(*Clip), scores[3].(*Standardised).Of.(*Clip); react.Head != vra.Head {
		t.Error("two equal heads remain")
	}
}
