package head

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Density measures how far a row is from the training rows. With
// m(z) = min_c ‖z−μ_c‖² over the class means, the depression begins with
//
//	log dep₀ = −log(1 + exp(4·(m − r)/(r − r₅₀)))
//
// which is almost 0 for most training rows, log ½ at the radius r, and beyond it
// falls in proportion to −m in every direction.
type Density struct {
	D      int       // length of a conditioned row
	Means  []float32 // [K, D], of the classes with training rows
	Middle float64   // r₅₀, the 0.5 quantile of m on the validation rows
	Radius float64   // r, the 0.99 quantile
}

// packed returns the transpose of rows [n, d], packed for products.
func packed(rows []float32, d int) *kernels.Right[float32] {
	n, columns := len(rows)/d, make([]float32, len(rows))
	kernels.VectorsOf[float32]().Transpose(columns, rows, n, d)
	return kernels.NewRight(n, d, columns)
}

// fitDensity fits the density to conditioned rows. Without validation rows it
// takes the quantiles of the training rows.
func fitDensity(ctx context.Context, train, val features.Rows, classes int) (*Density, error) {
	d, counts := train.D, make([]int, classes)
	means := make([]float64, classes*d)
	for _, r := range train.Index {
		counts[train.Labels[r]]++
	}
	err := eachRow(ctx, train, d, func(i, from, to int) {
		r := train.Index[i]
		mean := means[int(train.Labels[r])*d+from:]
		for j, v := range train.Row(r)[from:to] {
			mean[j] += float64(v)
		}
	})
	if err != nil {
		return nil, err
	}
	density := &Density{D: d}
	for c, n := range counts {
		if n == 0 {
			continue
		}
		for _, v := range means[c*d : (c+1)*d] {
			density.Means = append(density.Means, float32(v/float64(n)))
		}
	}
	if len(val.Index) == 0 {
		val = train
	}
	distances, err := density.distances(ctx, val)
	if err != nil {
		return nil, err
	}
	density.Middle, density.Radius = quantileOf(distances, 0.5), quantileOf(distances, 0.99)
	return density, nil
}

func (d *Density) valid() bool {
	return d.D > 0 && len(d.Means) > 0 && len(d.Means)%d.D == 0 && !slices.ContainsFunc(d.Means, notFinite[float32]) &&
		0 <= d.Middle && d.Middle <= d.Radius && !math.IsInf(d.Radius, 1)
}

// Reach returns the divisor r − r₅₀ of log dep₀, or a small positive value if it
// is 0.
func (d *Density) Reach() float64 {
	// If every row equals its class mean, r − r₅₀ is only rounding.
	return max(d.Radius-d.Middle, 1e-6*(1+d.Radius))
}

// logDep returns log dep₀ for the distance m.
func (d *Density) logDep(m float64) float64 {
	t := 4 * (m - d.Radius) / d.Reach()
	return -(max(t, 0) + math.Log1p(math.Exp(-math.Abs(t))))
}

// measure is a Density with buffers to compute in. It serves one goroutine.
type measure struct {
	arithmetic[float64]
	d     int
	means interface {
		NN(m int, rows, products []float64)
	}
	sq        []float64 // of each mean
	dist, xsq []float64
}

func (d *Density) measure() *measure {
	k := len(d.Means) / d.D
	m := &measure{arithmetic: newArithmetic[float64](), d: d.D, means: packed(d.Means, d.D), sq: make([]float64, k)}
	m.dist, m.xsq = make([]float64, BatchRows*k), make([]float64, BatchRows)
	means := make([]float64, len(d.Means))
	kernels.Convert(means, d.Means)
	m.SumSquares(m.sq, means)
	return m
}

// distances fills dst [b] with m of the rows z [b, D], b at most head.BatchRows.
func (m *measure) distances(dst, z []float64, b int) {
	k := len(m.sq)
	m.SumSquares(m.xsq[:b], z[:b*m.d])
	m.means.NN(b, z[:b*m.d], m.dist[:b*k])
	for i := range m.dist[:b*k] {
		m.dist[i] *= -2
	}
	m.SquaredDistances(m.dist[:b*k], m.xsq[:b], m.sq)
	for i := range b {
		dst[i] = slices.Min(m.dist[i*k : (i+1)*k])
	}
}

// measureAll computes m for blocks of the conditioned rows of data, on all cores.
// It calls worker once per core, and the function that worker returns for each
// block, which begins with the row data.Index[at].
func (d *Density) measureAll(ctx context.Context, data features.Rows, worker func() func(at int, m []float64) error) error {
	return parallel.Ranges(ctx, len(data.Index), BatchRows, func() func(from, to int) error {
		do, m, distances := worker(), d.measure(), make([]float64, BatchRows)
		z := make([]float64, BatchRows*data.D)
		return func(from, to int) error {
			for i, r := range data.Index[from:to] {
				kernels.Convert(z[i*data.D:], data.Row(r))
			}
			m.distances(distances, z, to-from)
			return do(from, distances[:to-from])
		}
	})
}

// distances returns m of the rows of data, conditioned.
func (d *Density) distances(ctx context.Context, data features.Rows) ([]float64, error) {
	out := make([]float64, len(data.Index))
	err := d.measureAll(ctx, data, func() func(at int, m []float64) error {
		return func(at int, m []float64) error {
			copy(out[at:], m)
			return nil
		}
	})
	return out, err
}

// reduce converts conditioned rows to the values that the layers read, [n, e+1]:
// the first e features and log dep₀. They are stored in space.
func (d *Density) reduce(ctx context.Context, data features.Rows, e int, space *features.Space) (features.Rows, error) {
	return space.Make(e+1, data.Chosen(), func(write func(at int, rows []float32) error) error {
		return d.measureAll(ctx, data, func() func(at int, m []float64) error {
			rows := make([]float32, 0, BatchRows*(e+1))
			return func(at int, m []float64) error {
				rows = rows[:0]
				for i, r := range data.Index[at : at+len(m)] {
					rows = append(append(rows, data.Row(r)[:e]...), float32(d.logDep(m[i])))
				}
				return write(at, rows)
			}
		})
	})
}

// eachRow calls do for the columns from … to−1 of each row data.Index[i], in
// order. The first e columns are divided among the cores, so that sums over rows
// do not depend on the number of cores. Rows come in blocks that stay in the cache,
// so that those in a file are read once.
func eachRow(ctx context.Context, data features.Rows, e int, do func(i, from, to int)) error {
	const columns, block = 64, 1024
	for first := 0; first < len(data.Index); first += block {
		err := parallel.Blocks(ctx, e, columns, func(from, to int) {
			for i := first; i < min(first+block, len(data.Index)); i++ {
				do(i, from, to)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
