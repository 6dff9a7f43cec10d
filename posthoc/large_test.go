package posthoc_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestKLMOfAllClasses holds scores against divergences of all classes, bit for bit:
// products leave out only classes that cannot be the nearest.
func TestKLMOfAllClasses(t *testing.T) {
	t.Parallel()
	const n, c = 300, 40
	rng := rand.New(rand.NewPCG(7, 8))
	z := make([]float64, n*c)
	for i := range z {
		switch z[i] = rng.NormFloat64() * math.Pow(10, float64(i/c%4)-1); {
		case i/c%5 == 0 && i%3 == 0:
			z[i] = math.Inf(-1)
		case i/c%7 == 0:
			z[i] *= 300
		case i/c%11 == 0:
			z[i] = float64(i % c % 2) // many ties
		}
	}
	z[17*c] = math.NaN()
	z[18*c] = math.Inf(1)
	data := &posthoc.Data{N: n - 20, Classes: c, Logits: posthoc.Matrix(z[20*c:], c)}
	s, err := posthoc.FitKLM(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	// Of a class whose mean has zeros, where p is all but zero.
	copy(z[30*c:], []float64{0, -744, -745})
	got := score(t, s, n, posthoc.Batch{Logits: z})
	for i := range n {
		row := z[i*c : (i+1)*c]
		top := row[0]
		for _, v := range row {
			if v > top {
				top = v
			}
		}
		sum := top
		if !math.IsInf(top, 0) {
			sum = 0
			for _, v := range row {
				sum += math.Exp(v - top)
			}
			sum = top + math.Log(sum)
		}
		want := math.Inf(-1)
		for q := range c {
			var divergence float64
			for j, v := range row {
				if p := math.Exp(v - sum); p != 0 {
					divergence += p * (v - sum - s.LogMeans[q*c+j])
				}
			}
			want = max(want, -divergence)
		}
		if got[i] != want && !(math.IsNaN(got[i]) && math.IsNaN(want)) {
			t.Errorf("row %d: %v, want %v", i, got[i], want)
		}
	}
}

// TestTemperatureOfManyRows is the best one, though a part of the rows shows where to
// begin: no other temperature near it makes the labels likelier.
func TestTemperatureOfManyRows(t *testing.T) {
	t.Parallel()
	const n, c = 1<<16 + 300, 3
	rng := rand.New(rand.NewPCG(9, 10))
	z, labels := make([]float64, n*c), make([]int64, n)
	for i := range labels {
		labels[i] = int64(i * c / n)
		for j := range c {
			z[i*c+j] = 4 * rng.NormFloat64()
		}
		z[i*c+int(labels[i])] += 3
	}
	data := &posthoc.Data{N: n, Classes: c, Labels: labels, Logits: posthoc.Matrix(z, c)}
	s, err := posthoc.FitTemperature(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	loss := func(temperature float64) (sum float64) {
		for i, y := range labels {
			var exps float64
			for _, v := range z[i*c : (i+1)*c] {
				exps += math.Exp((v - z[i*c+int(y)]) / temperature)
			}
			sum += math.Log(exps)
		}
		return sum
	}
	best := loss(s.Temperature)
	for _, factor := range []float64{1 - 1e-5, 1 + 1e-5} {
		if other := loss(s.Temperature * factor); !(other > best) {
			t.Errorf("temperature %v has the loss %v, and %v times it %v", s.Temperature, best, factor, other)
		}
	}
	if one := loss(1); !(one > best+1) {
		t.Errorf("the loss is %v, and %v without a temperature", best, one)
	}
}
