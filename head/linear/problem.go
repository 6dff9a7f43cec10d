package linear

import (
	"context"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"

	"mlrbfn/dataset"
	"mlrbfn/internal/kernels"
	"mlrbfn/internal/linalg"
	"mlrbfn/internal/parallel"
	"mlrbfn/posthoc"
)

// problem is the rows to fit a head on. The parameters are one vector: the weights
// [K, D] of standardised features and the biases [K], where K counts the classes
// that have rows.
type problem struct {
	rows    dataset.Rows
	classes int   // C
	labels  []int // of the K classes that have rows, ascending
	compact []int // the inverse; −1 for a class without rows

	mean, scale []float64 // of each feature; scale is 1/σ, or 0 if it does not vary

	parts []part // sums of parts of the rows
}

// part holds the sums over a part of the rows.
type part struct {
	loss     float64
	gradient []float64 // like the parameters
	spread   []float64 // [K], Σ p(1−p)
}

const (
	// blockRows is how many rows are multiplied at a time.
	blockRows = 128
	// mostParts is how many parts the rows are divided into for the cores; there
	// are fewer if gradients would take more than partBytes.
	mostParts = 32
	partBytes = 256 << 20
	// prefetchBytes of rows in a file are fetched while others are read.
	prefetchBytes = 4 << 20
)

func newProblem(ctx context.Context, rows dataset.Rows, classes int) (*problem, error) {
	p := &problem{rows: rows, classes: classes, compact: make([]int, classes)}
	counts := make([]int, classes)
	for _, r := range rows.Index {
		counts[rows.Labels[r]]++
	}
	for c, n := range counts {
		p.compact[c] = -1
		if n > 0 {
			p.compact[c] = len(p.labels)
			p.labels = append(p.labels, c)
		}
	}
	return p, p.standardise(ctx)
}

// on returns the problem for other rows with the same standardisation.
func (p *problem) on(index []int) *problem {
	other := *p
	other.rows, other.parts = p.rows.With(index), nil
	return &other
}

// known returns the rows whose class is one of the problem's.
func (p *problem) known(rows dataset.Rows) dataset.Rows {
	var index []int
	for _, r := range rows.Index {
		if p.compact[rows.Labels[r]] >= 0 {
			index = append(index, r)
		}
	}
	return rows.With(index)
}

// each calls worker once per core. The function that worker returns gets blocks of
// the rows, standardised, with the part that they belong to.
func (p *problem) each(ctx context.Context, parts int, worker func() func(part int, x []float64, labels []int)) error {
	d, n := p.rows.D, p.rows.Len()
	size := (n + parts - 1) / parts
	size = (size + blockRows - 1) / blockRows * blockRows
	return parallel.Ranges(ctx, n, size, func() func(from, to int) error {
		narrow, x, labels, do := make([]float32, blockRows*d), make([]float64, blockRows*d), make([]int, blockRows), worker()
		return func(from, to int) error {
			fetched := from
			for at := from; at < to; at += blockRows {
				if err := ctx.Err(); err != nil {
					return err
				}
				if p.rows.Window() > 0 && at >= fetched {
					fetched = min(at+max(blockRows, prefetchBytes/4/d), to)
					p.rows.Prefetch(p.rows.Index[at], p.rows.Index[fetched-1]+1)
				}
				index := p.rows.Index[at:min(at+blockRows, to)]
				if err := p.rows.Gather(narrow, labels, index); err != nil {
					return err
				}
				for i := range index {
					row := x[i*d : (i+1)*d]
					for j, v := range narrow[i*d : (i+1)*d] {
						row[j] = (float64(v) - p.mean[j]) * p.scale[j]
					}
					labels[i] = p.compact[labels[i]]
				}
				do(from/size, x[:len(index)*d], labels[:len(index)])
			}
			return nil
		}
	})
}

// standardise finds the mean and the deviation of each feature.
func (p *problem) standardise(ctx context.Context) error {
	d, n := p.rows.D, float64(p.rows.Len())
	p.mean, p.scale = make([]float64, d), make([]float64, d)
	for j := range p.scale {
		p.scale[j] = 1
	}
	first := make([]float32, d) // sums of differences from a row are exact if all rows are equal
	if err := p.rows.Gather(first, make([]int, 1), p.rows.Index[:1]); err != nil {
		return err
	}
	for j, v := range first {
		p.mean[j] = float64(v)
	}
	for _, squared := range []bool{false, true} {
		sums := make([][]float64, mostParts)
		err := p.each(ctx, mostParts, func() func(int, []float64, []int) {
			return func(part int, x []float64, _ []int) {
				if sums[part] == nil {
					sums[part] = make([]float64, d)
				}
				for row := range slices.Chunk(x, d) {
					for j, v := range row {
						if squared {
							v *= v
						}
						sums[part][j] += v
					}
				}
			}
		})
		if err != nil {
			return err
		}
		for j := range d {
			total := 0.
			for _, s := range sums {
				if s != nil {
					total += s[j]
				}
			}
			switch deviation := math.Sqrt(total / n); {
			case !squared:
				p.mean[j] += total / n
			case deviation > 0:
				p.scale[j] = 1 / deviation
			default:
				p.scale[j] = 0
			}
		}
	}
	return nil
}

// loss returns the mean cross-entropy of the rows. It puts its gradient into
// gradient and the means of p(1−p) of the classes into spread, unless these are
// nil.
func (p *problem) loss(ctx context.Context, theta, gradient, spread []float64) (float64, error) {
	d, k := p.rows.D, len(p.labels)
	weights, bias := theta[:k*d], theta[k*d:]
	right := kernels.NewRightTransposed(k, d, weights)
	if p.parts == nil {
		p.parts = make([]part, max(4, min(mostParts, partBytes/8/len(theta))))
	}
	for i := range p.parts {
		s := &p.parts[i]
		s.loss = 0
		clear(s.gradient)
		clear(s.spread)
	}
	err := p.each(ctx, len(p.parts), func() func(int, []float64, []int) {
		products, all := kernels.NewProducts[float64](), make([]float64, blockRows*k)
		return func(at int, x []float64, labels []int) {
			n, s := len(labels), &p.parts[at]
			z := all[:n*k]
			right.NN(n, x, z)
			if gradient != nil && s.gradient == nil {
				s.gradient, s.spread = make([]float64, len(theta)), make([]float64, k)
			}
			for i, own := range labels {
				row := z[i*k : (i+1)*k]
				floats.Add(row, bias)
				own := row[own]
				top, sum := floats.Max(row), 0.
				for c, v := range row {
					row[c] = math.Exp(v - top)
					sum += row[c]
				}
				s.loss += top + math.Log(sum) - own
				if gradient == nil {
					continue
				}
				for c, e := range row {
					q := e / sum
					s.spread[c] += q * (1 - q)
					row[c] = q
				}
				row[labels[i]]--
				floats.Add(s.gradient[k*d:], row)
			}
			if gradient != nil {
				products.TN(k, d, n, 1, z, x, 1, s.gradient[:k*d])
			}
		}
	})
	if err != nil {
		return 0, err
	}
	n := float64(p.rows.Len())
	total := 0.
	for _, s := range p.parts {
		total += s.loss
	}
	if gradient == nil {
		return total / n, nil
	}
	clear(gradient)
	clear(spread)
	err = parallel.Blocks(ctx, len(gradient), 1<<14, func(from, to int) {
		for _, s := range p.parts {
			if s.gradient != nil {
				floats.Add(gradient[from:to], s.gradient[from:to])
			}
		}
		floats.Scale(1/n, gradient[from:to])
	})
	for _, s := range p.parts {
		if s.spread != nil {
			floats.AddScaled(spread, 1/n, s.spread)
		}
	}
	return total / n, err
}

// start returns the parameters of a head, or zeros.
func (p *problem) start(near *Fitted) []float64 {
	d, k := p.rows.D, len(p.labels)
	theta := make([]float64, k*d+k)
	for i, c := range p.labels {
		if near == nil {
			break
		}
		row, bias := theta[i*d:(i+1)*d], near.Bias[c]
		for j, w := range near.Weights[c*d : (c+1)*d] {
			bias += w * p.mean[j]
			if p.scale[j] > 0 {
				row[j] = w / p.scale[j]
			}
		}
		theta[k*d+i] = bias
	}
	return theta
}

// improbable is by how much the logit of a class without rows is below the smallest
// of the others, for the mean row.
const improbable = 14

// fold returns the head that reads features as they are.
func (p *problem) fold(theta []float64) *posthoc.Linear {
	d, k := p.rows.D, len(p.labels)
	h := &posthoc.Linear{In: d, Out: p.classes, Weights: make([]float64, p.classes*d), Bias: make([]float64, p.classes)}
	bias := slices.Clone(theta[k*d:]) // whose sum makes no difference
	floats.AddConst(-floats.Sum(bias)/float64(k), bias)
	for c, i := range p.compact {
		if i < 0 {
			h.Bias[c] = floats.Min(bias) - improbable
			continue
		}
		h.Bias[c] = bias[i]
		for j, w := range theta[i*d : (i+1)*d] {
			w *= p.scale[j]
			h.Weights[c*d+j] = w
			h.Bias[c] -= w * p.mean[j]
		}
	}
	return h
}

// axes are the principal axes of standardised features.
type axes struct {
	variances []float64 // [D] along the axes
	vectors   []float64 // [D, D], the axes as rows; nil for the features themselves
}

const (
	// mostTurned is the largest D whose axes are found.
	mostTurned = 2048
	// leastAxesRows and axesRows times D are how many rows are read for them.
	leastAxesRows, axesRows = 4096, 4
)

// prepare returns the axes; if near is not nil, its axes.
func (p *problem) prepare(ctx context.Context, near *Fitted) (*axes, error) {
	d := p.rows.D
	if near != nil && near.axes != nil {
		return near.axes, nil
	}
	if d > mostTurned || len(p.labels) < 2 {
		ones := make([]float64, d)
		floats.AddConst(1, ones)
		return &axes{variances: ones}, nil
	}
	some := p.rows.With(dataset.Spread(p.rows.Index, max(leastAxesRows, axesRows*d)))
	rows := linalg.Rows{
		D: d, Index: some.Index, Classes: 1, Label: func(int) int { return 0 },
		Read: func(dst []float64, row int) {
			for j, v := range some.Row(row) {
				dst[j] = (float64(v) - p.mean[j]) * p.scale[j]
			}
		},
	}
	m := linalg.Moments{N: some.Len(), Mean: make([]float64, d)}
	covariance, err := m.Total(ctx, rows)
	if err != nil {
		return nil, err
	}
	values, vectors, err := linalg.Eigen(covariance)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		values[i] = max(v, 0)
	}
	return &axes{variances: values, vectors: mat.DenseCopyOf(vectors).RawMatrix().Data}, nil
}
