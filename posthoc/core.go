package posthoc

import (
	"context"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[CORE]("CORE", method{
	name:  "core",
	words: Words{"little evidence for any class, or unlike the images of its class", "like the images of its class", "with less evidence for any class, or less like the images of its class,"},
	reads: featureRows | logitRows, needs: featureRows | labelRows | lastLayer,
	memory: func(d, c float64) float64 { return 4 * c * d },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitCORE(ctx, in.Train, in.LastLayer) },
})

func (s *CORE) fields(f *fields) {
	f.int("d", &s.D)
	f.matrix("directions", &s.Directions, -1, s.D)
	f.matrix("residuals", &s.Residuals, len(s.Directions)/max(s.D, 1), s.D)
	for i, name := range []string{"energy", "cosine"} {
		f.within(name, func(f *fields) {
			f.float("mean", &s.Scales[i].Mean)
			f.float("deviation", &s.Scales[i].Deviation)
		})
	}
}

// CORE is the energy, plus how well the features' part that the head discards points
// where it does in training rows of the same class; both are standardised:
//
//	(log Σ_c exp(z_c) − μ₁)/σ₁ + (cos(r, g_y) − μ₂)/σ₂, y = argmax z, r = f − ⟨f, ŵ_y⟩ŵ_y
//
// with ŵ_y = w_y/‖w_y‖, the weights of class y, and g_y the mean of f − ⟨f, ŵ_y⟩ŵ_y
// over the training rows of class y. μ and σ (divisor N) are the mean and the
// standard deviation over the training rows. Reads features and logits. The logits
// come from the linear head with the weights w. The cosine is 0 for a class without
// training rows and where r is 0, and a term with σ = 0 is left out. Where all
// logits are −Inf, the score is −Inf.
//
// Source: Yang et al., 2026 (arXiv:2603.18290). Its code is not public. The formula
// follows its description: an orthogonal residual with a direction for each class,
// z-scores that are added up, and a cost of O(D) for an image.
type CORE struct {
	D          int
	Directions []float64 // [C, D], ŵ
	Residuals  []float64 // [C, D], g/‖g‖
	Scales     [2]ZScore // of the energy and of the cosine
}

// ZScore standardises values by their mean and standard deviation.
type ZScore struct{ Mean, Deviation float64 }

// zScoreOf returns the mean and the standard deviation of values.
func zScoreOf(values []float64) ZScore {
	n := float64(len(values))
	mean := sum(values) / n
	var squares float64
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return ZScore{mean, math.Sqrt(squares / n)}
}

// apply returns the standardised value, 0 if no value differs from the mean.
func (s ZScore) apply(v float64) float64 { return over(v-s.Mean, s.Deviation) }

// FitCORE fits CORE to the head.
func FitCORE(ctx context.Context, data *Data, head *Linear) (*CORE, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	if err := data.need(labelRows); err != nil {
		return nil, err
	}
	if data.Classes != head.Out {
		return nil, fmt.Errorf("the linear head has %d classes, training rows have %d", head.Out, data.Classes)
	}
	m, err := data.means(ctx)
	if err != nil {
		return nil, err
	}
	d := data.D
	s := &CORE{D: d, Directions: make([]float64, d*head.Out), Residuals: make([]float64, d*head.Out)}
	for c := range head.Out {
		w, g := s.Directions[c*d:(c+1)*d], s.Residuals[c*d:(c+1)*d]
		copy(w, head.row(c))
		normaliseRows(w, d)
		copy(g, m.Means[c])
		reject(g, w) // the mean of the residuals is the residual of the mean
		normaliseRows(g, d)
	}
	energies, cosines := make([]float64, data.N), make([]float64, data.N)
	err = parallel.Blocks(ctx, data.N, blockRows, func(from, to int) {
		x, done := scratch((to - from) * d)
		defer done()
		kernels.Convert(x, data.Features(from, to))
		z := make([]float64, (to-from)*head.Out)
		head.Logits(z, x)
		for i := range to - from {
			row := z[i*head.Out : (i+1)*head.Out]
			energies[from+i] = energy(row, 1)
			cosines[from+i] = s.cosine(x[i*d:(i+1)*d], linalg.ArgMax(row))
		}
	})
	if err != nil {
		return nil, err
	}
	s.Scales = [2]ZScore{zScoreOf(energies), zScoreOf(cosines)}
	return s, nil
}

// reject subtracts from x its part along w, of length 1 or 0.
func reject(x, w []float64) {
	along := dot(x, w)
	for j, v := range w {
		x[j] -= along * v
	}
}

// cosine returns cos(r, g_y), and changes the features x to r.
func (s *CORE) cosine(x []float64, y int) float64 {
	reject(x, s.Directions[y*s.D:(y+1)*s.D])
	return over(dot(x, s.Residuals[y*s.D:(y+1)*s.D]), norm(x))
}

// Score implements [Scorer].
func (s *CORE) Score(ctx context.Context, dst []float64, b Batch) error {
	c, err := b.classes(len(dst), len(s.Directions)/s.D)
	if err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, s.D, false, func(scores, x []float64, at int) {
		for i := range scores {
			z := b.Logits[(at+i)*c : (at+i+1)*c]
			scores[i] = s.Scales[0].apply(energy(z, 1)) + s.Scales[1].apply(s.cosine(x[i*s.D:(i+1)*s.D], linalg.ArgMax(z)))
		}
	})
}

func (s *CORE) graph(g *graph) onnx.Value {
	w := g.ofPredicted(s.Directions)
	r := g.Op("Sub", g.Features, g.Op("Mul", w, g.Dot(g.Features, w)))
	score := g.Number(0)
	for i, v := range []onnx.Value{g.energy(g.Logits, 1), g.Over(g.Dot(r, g.ofPredicted(s.Residuals)), g.Length(r))} {
		if by := s.Scales[i]; by.Deviation != 0 {
			score = g.Op("Add", score, g.Op("Div", g.Op("Sub", v, g.Number(by.Mean)), g.Number(by.Deviation)))
		}
	}
	return score
}
