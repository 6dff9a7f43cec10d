package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[NNGuide]("NNGuide", method{
	name:  "nnguide",
	words: Words{"little evidence for any class, or unlike the training images", "like training images of which the class is clear", "with less evidence for any class, or less like the training images,"},
	reads: featureRows | logitRows, needs: featureRows | logitRows,
	fit: func(ctx context.Context, in Input) (Scorer, error) { return FitNNGuide(ctx, in.Train, 0, 0) },
})

func (s *NNGuide) fields(f *fields) {
	f.int("k", &s.K)
	f.refuse(s.K < 1, "k", "it is %d", s.K)
	f.bank("bank", &s.Bank, false)
	f.vector("energies", &s.Energies, s.Bank.N)
}

func (s *NNGuide) detach() { s.Bank = s.Bank.inMemory(false) }

func (s *NNGuide) limit(memory int64) { s.Memory = memory }

// NNGuide is the energy, guided by the nearest neighbours: E(z) times the mean
// of the K largest E(z_i)·cos(f, f_i) over a bank of training rows, with
// E(z) = log Σ_c exp(z_c). Reads features and logits. Features of zeros have no
// neighbours and score 0 (OpenOOD: −Inf).
//
// Source: Park et al., 2023 (OpenOOD: NNGuidePostprocessor).
type NNGuide struct {
	K        int // more than the bank has means all
	Bank     *Data
	Energies []float64 // [N], of the bank
	Memory   int64     // see KNN
}

// FitNNGuide takes as the bank the given share of the training rows, at equal
// distances from each other, and no fewer than k. k of 0 means 100, a share of 0
// means 0.01. OpenOOD takes the first rows of a shuffled order.
func FitNNGuide(ctx context.Context, data *Data, k int, share float64) (*NNGuide, error) {
	if err := data.need(featureRows | logitRows); err != nil {
		return nil, err
	}
	k, share = cmp.Or(k, 100), cmp.Or(share, 0.01)
	if k < 0 || !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("%d nearest neighbours in a share %g of the training rows: it lies in (0, 1]", k, share)
	}
	rows := max(share*float64(data.N), float64(k))
	s := &NNGuide{K: k, Bank: data.every(max(int(float64(data.N)/rows), 1))}
	err := s.Bank.blocks(ctx, func(from, to int) error {
		for z := range slices.Chunk(s.Bank.Logits(from, to), data.Classes) {
			s.Energies = append(s.Energies, energy(z, 1))
		}
		return nil
	})
	return s, err
}

// Score implements [Scorer].
func (s *NNGuide) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *NNGuide) join(t *together, dst []float64, b Batch) error {
	classes, err := b.classes(len(dst), 0)
	if err != nil {
		return err
	}
	bank := s.Bank.source()
	w := workOn[guidance](t, bank)
	w.bank, w.memory = bank, leastMemory(w.memory, s.Memory)
	w.guides = append(w.guides, guide{s, dst, b.Logits, classes})
	return nil
}

// guidance computes NNGuides with the same bank.
type guidance struct {
	bank   *Data
	guides []guide
	memory int64
}

// guide is one with the queries' logits [n, classes].
type guide struct {
	*NNGuide
	dst     []float64
	logits  []float64
	classes int
}

// run computes all cosines in float64: with a small bank, selecting some by float32
// first would not save much.
func (g *guidance) run(ctx context.Context, n int, b Batch) error {
	d := g.bank.D
	if err := b.dim(n, d); err != nil {
		return err
	}
	values := g.memory / 8
	row := 0 // of a query: what is found for it
	for _, s := range g.guides {
		row += min(s.K, g.bank.N)
	}
	rows, queries := min(values/4/int64(2*d+tileRows), 1<<10), wholeTiles(min(values/2/int64(row+1), 1<<14))
	if rows < 1 || queries < 1 {
		return options.Errorf("Memory", "%d bytes do not hold a row of %d features with %d neighbours", g.memory, d, row)
	}
	for from := 0; from < n; from += int(queries) {
		if err := g.some(ctx, int(rows), b.Features, from, min(from+int(queries), n)); err != nil {
			return err
		}
	}
	return nil
}

// some scores the queries from … to−1.
func (g *guidance) some(ctx context.Context, rows int, x []float32, from, to int) error {
	bank, d := g.bank, g.bank.D
	best := make([][][]float64, len(g.guides)) // of each query up to K
	for i := range best {
		best[i] = make([][]float64, to-from)
	}
	for first := 0; first < bank.N; first += rows {
		unit := make([]float64, (min(first+rows, bank.N)-first)*d)
		kernels.Convert(unit, bank.Features(first, first+len(unit)/d))
		normaliseRows(unit, d)
		neighbour := make([]bool, len(unit)/d) // not rows of zeros, or that are not finite
		for i := range neighbour {
			length := norm(unit[i*d : (i+1)*d])
			neighbour[i] = length != 0 && finite(length)
		}
		var packed right
		err := parallel.Blocks(ctx, to-from, tileRows, func(i, end int) {
			n, m := end-i, len(neighbour)
			wide, done := scratch(n*d + n*m + m)
			defer done()
			queries, cosines, values := wide[:n*d], wide[n*d:n*(d+m)], wide[n*(d+m):]
			kernels.Convert(queries, x[(from+i)*d:(from+end)*d])
			normaliseRows(queries, d)
			packed.times(m, d, queries, unit, cosines)
			for q := i; q < end; q++ {
				cosines := cosines[(q-i)*m : (q-i+1)*m]
				for s, guide := range g.guides {
					values := values[:0]
					for j, energy := range guide.Energies[first : first+m] {
						if neighbour[j] && finite(energy) {
							values = append(values, cosines[j]*energy)
						}
					}
					best[s][q] = largest(append(values, best[s][q]...), guide.K)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return parallel.Blocks(ctx, to-from, tileRows, func(i, end int) {
		for ; i < end; i++ {
			for s, guide := range g.guides {
				at, best := from+i, best[s][i]
				slices.Sort(best) // for the same sum whatever the memory
				guide.dst[at] = over(sum(best), float64(len(best))) * energy(guide.logits[at*guide.classes:(at+1)*guide.classes], 1)
			}
		}
	})
}

// largest returns the k largest values, in any order, all values if there are fewer,
// and a single NaN if one of them is NaN. It changes the order of values.
func largest(values []float64, k int) []float64 {
	if slices.ContainsFunc(values, math.IsNaN) {
		return []float64{math.NaN()}
	}
	if len(values) > k {
		linalg.KthLargest(values, k)
		values = values[:k]
	}
	return slices.Clone(values)
}

func (s *NNGuide) graph(g *graph) onnx.Value {
	cosines, at := g.cosines(s.Bank, func(row int) bool { return finite(s.Energies[row]) })
	energies := make([]float64, len(at))
	for i, row := range at {
		energies[i] = s.Energies[row]
	}
	k := min(s.K, len(at))
	best, _ := g.TopK(g.Op("Mul", cosines, g.Vector(energies)), k)
	mean := g.Op("Div", g.Sum(best), g.Number(float64(k)))
	return g.Op("Mul", mean, g.energy(g.Logits, 1))
}
