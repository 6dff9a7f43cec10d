package posthoc

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[KLM]("KLM", method{
	name:  "klm",
	words: Words{"class probabilities unlike those of any class", "class probabilities like those of a class", "with class probabilities less like those of any class"},
	reads: logitRows, needs: logitRows | validation,
	memory: func(_, c float64) float64 { return 2 * c * c },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitKLM(ctx, in.Val) },
})

func (s *KLM) fields(f *fields) {
	f.int("classes", &s.Classes)
	f.matrix("logmeans", &s.LogMeans, s.Classes, s.Classes)
}

// KLM is KL matching: −min_c KL(p ‖ q_c), p = softmax(z) and q_c the mean
// softmax of the fit rows that are predicted as c. Reads logits. All
// probabilities are stored as logarithms, so that none underflows.
//
// Source: Hendrycks et al., 2022 (OpenOOD: KLMatchingPostprocessor).
type KLM struct {
	Classes  int
	LogMeans []float64 // [C, C], log q; the one-hot log for a class that no row is predicted as

	packed right // LogMeans without −Inf
	once   sync.Once
}

// FitKLM fits KLM on the logits of data. OpenOOD takes validation rows. A class that
// is never predicted has a one-hot q_c.
func FitKLM(ctx context.Context, data *Data) (*KLM, error) {
	if err := data.need(logitRows); err != nil {
		return nil, err
	}
	c := data.Classes
	largest := slices.Repeat([]float64{math.Inf(-1)}, c*c)
	sums, counts := make([]float64, c*c), make([]float64, c)
	rows, top, logSums := make([][]float64, 4*blockRows), make([]int, 4*blockRows), make([]float64, 4*blockRows)
	err := data.blocks(ctx, func(from, to int) error {
		logits := data.Logits(from, to)
		err := parallel.Blocks(ctx, to-from, blockRows, func(i, end int) {
			for ; i < end; i++ {
				rows[i] = possible(logits[i*c : (i+1)*c])
				logSums[i], top[i] = logSumExp(rows[i], 1)
			}
		})
		if err != nil {
			return err
		}
		for _, y := range top[:to-from] {
			counts[y]++
		}
		// Each core adds up some of the columns, in the order of the rows.
		return parallel.Blocks(ctx, c, 64, func(first, last int) {
			for i, y := range top[:to-from] {
				for j, v := range rows[i][first:last] {
					at := y*c + first + j
					if logP := v - logSums[i]; logP > largest[at] {
						sums[at] = sums[at]*math.Exp(largest[at]-logP) + 1
						largest[at] = logP
					} else if logP > math.Inf(-1) {
						sums[at] += math.Exp(logP - largest[at])
					}
				}
			}
		})
	})
	if err != nil {
		return nil, err
	}
	s := &KLM{Classes: c, LogMeans: largest}
	for i := range s.LogMeans {
		if counts[i/c] > 0 {
			s.LogMeans[i] += math.Log(sums[i] / counts[i/c])
		} else if i/c == i%c {
			s.LogMeans[i] = 0
		}
	}
	return s, nil
}

// Score implements [Scorer]. Products find the classes that can be the nearest, and the
// divergences of these alone are added up term by term.
func (s *KLM) Score(ctx context.Context, dst []float64, b Batch) error {
	c := s.Classes
	if _, err := b.classes(len(dst), c); err != nil {
		return err
	}
	s.once.Do(func() {
		finite := slices.Clone(s.LogMeans)
		for i, v := range finite {
			finite[i] = max(v, leastLog)
		}
		s.packed.pack(c, c, finite)
	})
	return parallel.Blocks(ctx, len(dst), blockRows, func(from, to int) {
		logits := b.Logits[from*c : to*c]
		p := softmaxRows(logits, c)
		crossed, done := scratch((to - from) * c)
		defer done()
		s.packed.times(c, c, p, nil, crossed)
		for i := from; i < to; i++ {
			at := (i - from) * c
			dst[i] = s.nearest(possible(logits[at:at+c]), p[at:at+c], crossed[at:at+c])
		}
	})
}

// leastLog takes the place of log 0 in products, which 0·(−Inf) would make NaN.
const leastLog = -1e300

// nearest returns the largest −KL(p ‖ q_c) of a row with the logits z, given the products
// Σ_j p_j·log q_cj, which are no less than the true sums but for rounding.
func (s *KLM) nearest(z, p, crossed []float64) float64 {
	logSum, _ := logSumExp(z, 1)
	divergence := func(class int) (sum float64) {
		for j, q := range s.LogMeans[class*s.Classes : (class+1)*s.Classes] {
			if p[j] != 0 {
				sum += p[j] * (z[j] - logSum - q)
			}
		}
		return sum
	}
	var entropy float64
	for j, v := range z {
		if p[j] != 0 {
			entropy -= p[j] * (v - logSum)
		}
	}
	first := linalg.ArgMax(crossed)
	best := -divergence(first)
	for class, cross := range crossed {
		// More than rounding moves the sums of C terms, which are of one sign but for
		// rounding.
		off := float64(s.Classes) * 0x1p-50 * (1 + math.Abs(entropy) + math.Abs(cross))
		if class != first && !(entropy+cross+off < best) {
			best = max(best, -divergence(class))
		}
	}
	return best
}

// graph computes −min_c KL(p ‖ q_c) as max_c Σ_j p_j·log q_cj − Σ_j p_j·log p_j.
func (s *KLM) graph(g *graph) onnx.Value {
	logMeans := slices.Clone(s.LogMeans)
	for i, v := range logMeans {
		logMeans[i] = max(v, -math.MaxFloat64) // not 0·−Inf
	}
	logP := g.logSoftmax(g.Logits)
	p := g.Op("Exp", logP)
	return g.Op("Sub", g.Largest(g.Times(p, logMeans, s.Classes)), g.Dot(p, logP))
}
