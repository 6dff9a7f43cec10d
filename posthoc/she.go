package posthoc

import (
	"context"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

func she(name string, metric Metric) method {
	return method{
		name: name, reads: featureRows | logitRows, needs: featureRows | logitRows | labelRows,
		words:  Words{"unlike the usual image of its class", "like the usual image of its class", "less like the usual image of its class"},
		memory: func(d, c float64) float64 { return 2 * c * d },
		fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitSHE(ctx, in.Train, metric) },
	}
}

var _ = declare[SHE]("SHE", she("she-ip", InnerProduct), she("she-e", Euclidean), she("she-cos", Cosine))

func (s *SHE) fields(f *fields) {
	text(f, "metric", &s.Metric)
	f.refuse(!slices.Contains([]Metric{"", InnerProduct, Euclidean, Cosine}, s.Metric), "metric", "%q is not known", s.Metric)
	f.int("d", &s.D)
	f.matrix("patterns", &s.Patterns, -1, s.D)
}

// Metric is how [SHE] compares features with a pattern.
type Metric string

const (
	InnerProduct Metric = "inner-product" // ⟨f, m⟩
	Euclidean    Metric = "euclidean"     // −‖f − m‖₂
	Cosine       Metric = "cosine"        // ⟨f, m⟩/(‖f‖‖m‖); 0 if either is zero
)

// SHE is the simplified Hopfield energy: features f compared with the pattern
// of the class that the logits predict. Reads features and logits.
//
// Source: Zhang et al., 2023 (OpenOOD: SHEPostprocessor).
type SHE struct {
	Metric   Metric // "" means InnerProduct
	D        int
	Patterns []float64 // [C, D]; those fitted on the same Data share it, so do not change it
}

// FitSHE takes the mean of the rows that are predicted right as the pattern of their
// class. Without any, the pattern is the mean of all rows of the class, and for a
// class without rows it is the mean of all rows, so that images that are predicted
// as this class have a score.
func FitSHE(ctx context.Context, data *Data, metric Metric) (*SHE, error) {
	if err := data.need(featureRows | logitRows | labelRows); err != nil {
		return nil, err
	}
	data.ofSHE.Lock()
	defer data.ofSHE.Unlock()
	if err := ctx.Err(); err != nil { // while another was fitted
		return nil, err
	}
	if data.patterns == nil {
		var err error
		if data.patterns, err = findPatterns(ctx, data); err != nil {
			return nil, err
		}
	}
	return &SHE{Metric: metric, D: data.D, Patterns: data.patterns}, nil
}

// findPatterns returns the patterns [C, D].
func findPatterns(ctx context.Context, data *Data) ([]float64, error) {
	d, c := data.D, data.Classes
	sums, counts := make([]float64, c*d), make([]float64, c)
	err := data.blocks(ctx, func(from, to int) error {
		features, logits := data.Features(from, to), data.Logits(from, to)
		var right []int
		for i, y := range data.Labels[from:to] {
			if linalg.ArgMax(logits[i*c:(i+1)*c]) == int(y) {
				counts[y]++
				right = append(right, i)
			}
		}
		return parallel.Blocks(ctx, d, 64, func(j, end int) { // some columns
			for _, i := range right {
				y := int(data.Labels[from+i])
				add(sums[y*d+j:y*d+end], features[i*d+j:i*d+end])
			}
		})
	})
	if err != nil {
		return nil, err
	}
	for y, n := range counts {
		pattern := sums[y*d : (y+1)*d]
		if n == 0 {
			m, err := data.means(ctx)
			if err != nil {
				return nil, err
			}
			n = 1
			if copy(pattern, m.Mean); m.Counts[y] > 0 {
				copy(pattern, m.Means[y])
			}
		}
		for j := range pattern {
			pattern[j] /= n
		}
	}
	return sums, nil
}

// Score implements [Scorer].
func (s *SHE) Score(ctx context.Context, dst []float64, b Batch) error {
	c, err := b.classes(len(dst), len(s.Patterns)/s.D)
	if err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, s.D, false, func(scores, x []float64, at int) {
		for i := range scores {
			f, y := x[i*s.D:(i+1)*s.D], linalg.ArgMax(b.Logits[(at+i)*c:(at+i+1)*c])
			m := s.Patterns[y*s.D : (y+1)*s.D]
			switch s.Metric {
			case Euclidean:
				scores[i] = -distance(f, m)
			case Cosine:
				scores[i] = over(dot(f, m), norm(f)*norm(m))
			default:
				scores[i] = dot(f, m)
			}
		}
	})
}

func (s *SHE) graph(g *graph) onnx.Value {
	m := g.ofPredicted(s.Patterns)
	switch s.Metric {
	case Euclidean:
		return g.Neg(g.Length(g.Op("Sub", g.Features, m)))
	case Cosine:
		return g.Over(g.Dot(g.Features, m), g.Op("Mul", g.Length(g.Features), g.Length(m)))
	}
	return g.Dot(g.Features, m)
}
