package linalg

import (
	"context"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Rows are feature rows to take moments of. They are read into float64 a block of
// rows at a time, so that no second copy of them is held.
type Rows struct {
	D       int
	Index   []int                        // the rows to use
	Label   func(row int) int            // class in [0, Classes)
	Classes int                          // C
	Read    func(dst []float64, row int) // puts a row [D] into dst; several goroutines call it concurrently
}

// Moments are the first two moments of rows in C classes.
type Moments struct {
	N      int
	Counts []int       // [C]
	Means  [][]float64 // [C][D]; the same zeros for all classes without rows
	Mean   []float64   // [D], of all rows
}

// Means returns the means of the rows and of their classes.
func Means(ctx context.Context, r Rows) (*Moments, error) {
	m := &Moments{N: len(r.Index), Counts: make([]int, r.Classes), Means: make([][]float64, r.Classes), Mean: make([]float64, r.D)}
	zeros := make([]float64, r.D) // of all classes without rows
	for c := range m.Means {
		m.Means[c] = zeros
	}
	rows := max(1, min(block, blockBytes/8/max(1, r.D)))
	x := make([]float64, min(rows, len(r.Index))*r.D)
	for part := range slices.Chunk(r.Index, rows) {
		if err := r.read(ctx, x, part, nil); err != nil {
			return nil, err
		}
		for _, at := range part {
			c := r.Label(at)
			if m.Counts[c] == 0 {
				m.Means[c] = make([]float64, r.D)
			}
			m.Counts[c]++
		}
		// Each core adds up some of the columns, in the order of the rows.
		err := parallel.Blocks(ctx, r.D, 64, func(from, to int) {
			for i, at := range part {
				sum, row := m.Means[r.Label(at)][from:to], x[i*r.D+from:i*r.D+to]
				for j, v := range row {
					sum[j] += v
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for c, mean := range m.Means {
		for j := 0; m.Counts[c] > 0 && j < len(mean); j++ {
			v := mean[j]
			m.Mean[j] += v / float64(m.N)
			mean[j] = v / float64(m.Counts[c])
		}
	}
	return m, nil
}

// Within returns the within-class covariance, 1/N Σ (x−μ_y)(x−μ_y)ᵀ.
func (m *Moments) Within(ctx context.Context, r Rows) (*mat.SymDense, error) {
	return covariance(ctx, r, func(row int) []float64 { return m.Means[r.Label(row)] })
}

// Total returns the covariance about the mean of all rows, 1/N Σ (x−μ)(x−μ)ᵀ.
func (m *Moments) Total(ctx context.Context, r Rows) (*mat.SymDense, error) {
	return covariance(ctx, r, func(int) []float64 { return m.Mean })
}

// AddBetween adds the covariance of the class means to the within-class covariance,
// in place, which gives the covariance about the mean of all rows:
// Σ + 1/N Σ_c n_c (μ_c−μ)(μ_c−μ)ᵀ. It saves a second pass over the rows if both
// are wanted.
func (m *Moments) AddBetween(ctx context.Context, within *mat.SymDense) (*mat.SymDense, error) {
	d := len(m.Mean)
	var offsets []float64 // [classes with rows, D], √(n_c/N)·(μ_c−μ)
	for c, n := range m.Counts {
		for j := 0; n > 0 && j < d; j++ {
			offsets = append(offsets, math.Sqrt(float64(n)/float64(m.N))*(m.Means[c][j]-m.Mean[j]))
		}
	}
	addGram(len(offsets)/d, d, offsets, within.RawSymmetric().Data)
	return within, ctx.Err()
}

const (
	// block is how many rows are converted to float64 at a time. The order of a
	// covariance's sums depends on it, so it is the same for rows of any length.
	// For long rows, the covariance itself takes more memory than the block.
	block = 1024
	// blockBytes bounds the block for means, whose sums always follow the order of
	// the rows; it stays in a cache.
	blockBytes = 1 << 20
)

func covariance(ctx context.Context, r Rows, centre func(row int) []float64) (*mat.SymDense, error) {
	sum := make([]float64, r.D*r.D)
	x := make([]float64, min(block, len(r.Index))*r.D)
	for part := range slices.Chunk(r.Index, block) {
		if err := r.read(ctx, x, part, centre); err != nil {
			return nil, err
		}
		addGram(len(part), r.D, x, sum)
	}
	for i := range sum {
		sum[i] /= float64(len(r.Index))
	}
	return mat.NewSymDense(r.D, sum), nil
}

// read puts rows into x and subtracts from each what centre returns for it, unless
// centre is nil.
func (r Rows) read(ctx context.Context, x []float64, rows []int, centre func(row int) []float64) error {
	return parallel.Blocks(ctx, len(rows), 16, func(from, to int) {
		for i := from; i < to; i++ {
			row := x[i*r.D : (i+1)*r.D]
			r.Read(row, rows[i])
			if centre != nil {
				for j, mu := range centre(rows[i]) {
					row[j] -= mu
				}
			}
		}
	})
}

// Normalise divides a row by its length. A row of zeros does not change.
func Normalise(row []float64) {
	// The bits of numbers that are not negative are in the order of the numbers,
	// with NaN above all, and are compared faster.
	var most uint64
	for _, v := range row {
		most = max(most, math.Float64bits(v)&^(1<<63))
	}
	largest := math.Float64frombits(most)
	if largest == 0 {
		return
	}
	var sum float64 // of scaled squares, which neither overflow nor underflow
	for _, v := range row {
		sum += (v / largest) * (v / largest)
	}
	length := largest * math.Sqrt(sum)
	for j := range row {
		row[j] /= length
	}
}
