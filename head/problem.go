package head

import (
	"context"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// problem is the rows to fit a head on. The parameters are one vector: the weights
// [K, D] of standardised features and the biases [K], where K counts the classes
// that have rows.
type problem struct {
	rows    features.Rows
	whole   int   // how many rows there are where these are a part of them
	classes int   // C
	labels  []int // of the K classes that have rows, ascending
	compact []int // the inverse; −1 for a class without rows

	mean, scale []float64 // of each feature; scale is 1/σ, or 0 if it does not vary

	kept  []*block // packed blocks, as many as packedBytes holds
	parts []part   // sums of parts of the rows
}

// block is blockRows rows, packed once for many products. Products with the rows
// as they are take a fifth of the time that standardising and packing them in
// each step would take.
type block struct {
	labels  []int
	columns *kernels.Right[float32] // [D, rows], for logits
	rows    *kernels.Right[float32] // [rows, D], for gradients
}

func newBlock(x []float32, d int, labels []int) *block {
	n := len(labels)
	transpose := make([]float32, len(x))
	kernels.VectorsOf[float32]().Transpose(transpose, x, n, d)
	return &block{slices.Clone(labels), kernels.NewRight(n, d, transpose), kernels.NewRight(d, n, x)}
}

// part holds the sums over a part of the rows.
type part struct {
	loss     float64
	gradient []float64 // like the parameters, but of features as they are
	narrow   []float32 // instead, of standardised features; see narrowSums
	spread   []float64 // [K], Σ p(1−p)
}

const (
	// blockRows is how many rows are multiplied at a time.
	blockRows = 128
	// packedBytes is how much memory packed blocks may take, about. The others are
	// packed in each step.
	packedBytes = 256 << 20
	// mostParts is how many parts the rows are divided into for the cores; there
	// are fewer if gradients would take more than partBytes.
	mostParts = 32
	partBytes = 256 << 20
	// prefetchBytes of rows in a file are fetched while others are read.
	prefetchBytes = 4 << 20
)

func newProblem(ctx context.Context, rows features.Rows, classes int, oneScale bool) (*problem, error) {
	p := &problem{rows: rows, whole: rows.Len(), classes: classes, compact: make([]int, classes)}
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
	err := p.standardise(ctx)
	if oneScale {
		var variances []float64
		for _, v := range p.scale {
			if v > 0 {
				variances = append(variances, 1/(v*v))
			}
		}
		for j, v := range p.scale {
			if v > 0 {
				p.scale[j] = math.Sqrt(float64(len(variances)) / floats.Sum(variances))
			}
		}
	}
	return p, err
}

// with returns the problem of other rows with the same standardisation.
func (p *problem) with(rows features.Rows) *problem {
	other := *p
	other.rows, other.kept, other.parts = rows, nil, nil
	return &other
}

// known returns the rows whose class is one of the problem's.
func (p *problem) known(rows features.Rows) features.Rows {
	var index []int
	for _, r := range rows.Index {
		if p.compact[rows.Labels[r]] >= 0 {
			index = append(index, r)
		}
	}
	return rows.With(index)
}

// each calls worker once per core for a function that is given blocks of the
// rows with the part that they belong to and their number. Kept blocks are not
// read: they come without rows.
func (p *problem) each(ctx context.Context, parts int, worker func() func(part, block int, x []float32, labels []int)) error {
	d, n := p.rows.D, p.rows.Len()
	size := (n + parts - 1) / parts
	size = (size + blockRows - 1) / blockRows * blockRows
	return parallel.Ranges(ctx, n, size, func() func(from, to int) error {
		x, labels, do := make([]float32, blockRows*d), make([]int, blockRows), worker()
		return func(from, to int) error {
			fetched := from
			for at := from; at < to; at += blockRows {
				if err := ctx.Err(); err != nil {
					return err
				}
				number := at / blockRows
				if number < len(p.kept) && p.kept[number] != nil {
					do(from/size, number, nil, nil)
					continue
				}
				if p.rows.Window() > 0 && at >= fetched {
					fetched = min(at+max(blockRows, prefetchBytes/4/d), to)
					p.rows.Prefetch(p.rows.Index[at], p.rows.Index[fetched-1]+1)
				}
				index := p.rows.Index[at:min(at+blockRows, to)]
				if err := p.rows.Gather(x, labels, index); err != nil {
					return err
				}
				for i := range index {
					labels[i] = p.compact[labels[i]]
				}
				do(from/size, number, x[:len(index)*d], labels[:len(index)])
			}
			return nil
		}
	})
}

// standardise finds the mean and the deviation of each feature.
func (p *problem) standardise(ctx context.Context) error {
	d, n := p.rows.D, float64(p.rows.Len())
	p.mean, p.scale = make([]float64, d), make([]float64, d)
	first := make([]float32, d) // sums about a row are exact where all are equal
	if err := p.rows.Gather(first, make([]int, 1), p.rows.Index[:1]); err != nil {
		return err
	}
	for j, v := range first {
		p.mean[j] = float64(v)
	}
	for _, squared := range []bool{false, true} {
		sums := make([][]float64, mostParts)
		err := p.each(ctx, mostParts, func() func(int, int, []float32, []int) {
			return func(part, _ int, x []float32, _ []int) {
				if sums[part] == nil {
					sums[part] = make([]float64, d)
				}
				for row := range slices.Chunk(x, d) {
					for j, narrow := range row {
						v := float64(narrow) - p.mean[j]
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
	if p.parts == nil {
		p.parts = make([]part, max(4, min(mostParts, partBytes/8/len(theta))))
		if !p.narrow() {
			p.kept = make([]*block, min((p.rows.Len()+blockRows-1)/blockRows, packedBytes/8/blockRows/p.rows.D))
		}
	}
	for i := range p.parts {
		s := &p.parts[i]
		s.loss = 0
		clear(s.gradient)
		clear(s.narrow)
		clear(s.spread)
	}
	sums := p.sums
	if p.narrow() {
		sums = p.narrowSums
	}
	if err := p.each(ctx, len(p.parts), sums(theta, gradient != nil)); err != nil {
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
	err := parallel.Blocks(ctx, len(gradient), 1<<14, func(from, to int) {
		for _, s := range p.parts {
			if s.gradient != nil {
				floats.Add(gradient[from:to], s.gradient[from:to])
			}
			if s.narrow != nil {
				for i, v := range s.narrow[from:to] {
					gradient[from+i] += float64(v)
				}
			}
		}
		floats.Scale(1/n, gradient[from:to])
	})
	if !p.narrow() {
		d, k := p.rows.D, len(p.labels)
		for c, g := range gradient[k*d:] {
			row := gradient[c*d : (c+1)*d]
			floats.AddScaled(row, -g, p.mean)
			floats.Mul(row, p.scale)
		}
	}
	for _, s := range p.parts {
		if s.spread != nil {
			floats.AddScaled(spread, 1/n, s.spread)
		}
	}
	return total / n, err
}

// sums returns what each needs to add up losses and, if asked for, gradients by the
// weights of features as they are.
func (p *problem) sums(theta []float64, gradients bool) func() func(int, int, []float32, []int) {
	d, k := p.rows.D, len(p.labels)
	weights, bias := p.unscaled(theta)
	return func() func(int, int, []float32, []int) {
		all, product, row := make([]float64, k*blockRows), make([]float64, k*d), make([]float64, k)
		return func(at, number int, x []float32, labels []int) {
			var b *block
			if x == nil {
				b = p.kept[number]
			} else if b = newBlock(x, d, labels); number < len(p.kept) {
				p.kept[number] = b
			}
			n, s := len(b.labels), &p.parts[at]
			z := all[:k*n] // [K, n]
			b.columns.NN(k, weights, z)
			if gradients && s.gradient == nil {
				s.gradient, s.spread = make([]float64, len(theta)), make([]float64, k)
			}
			for i, own := range b.labels {
				for c, v := range bias {
					row[c] = v + z[c*n+i]
				}
				own := row[own]
				top, sum := floats.Max(row), 0.
				for c, v := range row {
					row[c] = math.Exp(v - top)
					sum += row[c]
				}
				s.loss += top + math.Log(sum) - own
				if !gradients {
					continue
				}
				for c, e := range row {
					q := e / sum
					s.spread[c] += q * (1 - q)
					row[c] = q
				}
				row[b.labels[i]]--
				for c, r := range row {
					z[c*n+i] = r
				}
				floats.Add(s.gradient[k*d:], row)
			}
			if gradients {
				b.rows.NN(k, z, product)
				floats.Add(s.gradient[:k*d], product)
			}
		}
	}
}

// narrowWork is how many multiplications, of rows by weights, a pass over the rows
// takes from which on they are in float32. That is three times as fast; the losses
// and the sums of parts remain in float64.
var narrowWork = 1e10 // tests set it

// narrow reports whether the problem is so large that products are in float32.
func (p *problem) narrow() bool {
	return float64(p.whole)*float64(len(p.labels)*p.rows.D) >= narrowWork
}

// narrowSums is sums in float32, with gradients by the weights of standardised
// features.
func (p *problem) narrowSums(theta []float64, gradients bool) func() func(int, int, []float32, []int) {
	d, k := p.rows.D, len(p.labels)
	mean, scale, weights := kernels.Converted[float32](p.mean), kernels.Converted[float32](p.scale), kernels.Converted[float32](theta)
	bias := weights[k*d:]
	return func() func(int, int, []float32, []int) {
		products, vectors := kernels.NewProducts[float32](), kernels.VectorsOf[float32]()
		all, turned := make([]float32, k*blockRows), make([]float32, d*blockRows)
		norm, own := make([]float32, blockRows), make([]float32, blockRows)
		return func(at, _ int, x []float32, labels []int) {
			n, s := len(labels), &p.parts[at]
			for row := range slices.Chunk(x, d) {
				for j, v := range row {
					row[j] = (v - mean[j]) * scale[j]
				}
			}
			z := all[:k*n] // [K, n]
			vectors.Transpose(turned[:d*n], x, n, d)
			products.NN(k, n, d, 1, weights, turned, 0, z)
			for c, v := range bias {
				for i := range n {
					z[c*n+i] += v
				}
			}
			for i, y := range labels {
				own[i] = z[y*n+i]
			}
			vectors.Softmax(z, norm[:n], z)
			for i, v := range norm[:n] {
				s.loss += float64(v) - float64(own[i])
			}
			if !gradients {
				return
			}
			if s.narrow == nil {
				s.narrow, s.spread = make([]float32, len(theta)), make([]float64, k)
			}
			for c := range k {
				var sum, squares float32
				for _, q := range z[c*n : (c+1)*n] {
					sum += q
					squares += q * q
				}
				s.spread[c] += float64(sum - squares)
				s.narrow[k*d+c] += sum
			}
			for i, y := range labels {
				z[y*n+i]--
				s.narrow[k*d+y]--
			}
			products.NN(k, d, n, 1, z, x, 1, s.narrow[:k*d])
		}
	}
}

// unscaled returns the weights [K, D] and biases [K] for features as they are.
func (p *problem) unscaled(theta []float64) (weights, bias []float64) {
	d, k := p.rows.D, len(p.labels)
	weights, bias = slices.Clone(theta[:k*d]), slices.Clone(theta[k*d:])
	for c := range bias {
		row := weights[c*d : (c+1)*d]
		floats.Mul(row, p.scale)
		bias[c] -= floats.Dot(row, p.mean)
	}
	return weights, bias
}

// start returns the parameters of a head, or zeros.
func (p *problem) start(near *FittedLinear) []float64 {
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
	centred := slices.Clone(theta) // biases' sum makes no difference
	floats.AddConst(-floats.Sum(theta[k*d:])/float64(k), centred[k*d:])
	weights, bias := p.unscaled(centred)
	for c, i := range p.compact {
		if i < 0 {
			h.Bias[c] = floats.Min(centred[k*d:]) - improbable
			continue
		}
		h.Bias[c] = bias[i]
		copy(h.Weights[c*d:(c+1)*d], weights[i*d:])
	}
	h.Narrow()
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
func (p *problem) prepare(ctx context.Context, near *FittedLinear) (*axes, error) {
	d := p.rows.D
	if near != nil && near.axes != nil {
		return near.axes, nil
	}
	if d > mostTurned || len(p.labels) < 2 {
		ones := make([]float64, d)
		floats.AddConst(1, ones)
		return &axes{variances: ones}, nil
	}
	some := p.rows.With(features.Spread(p.rows.Index, max(leastAxesRows, axesRows*d)))
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
	return &axes{variances: values, vectors: vectors.RawMatrix().Data}, nil
}
