package head

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// ConditioningKind says how W is computed.
type ConditioningKind string

const (
	// None has no μ and no W: features change by L2 only.
	None ConditioningKind = "none"
	// Standardise divides each feature by its standard deviation.
	Standardise ConditioningKind = "standardise"
	// PCA projects the features onto their first principal axes.
	PCA ConditioningKind = "pca"
	// Whiten gives the features of a class unit covariance: W Wᵀ = (Σ + s·t·I)⁻¹
	// with the covariance Σ within the classes, t = tr Σ/D the mean of its
	// eigenvalues, and the shrinkage s. Squared distances become Mahalanobis
	// distances. The first coordinates separate the class means, the best first.
	Whiten ConditioningKind = "whiten"
	// Auto is Whiten, with L2 unless there are fewer than 32 features; or their mean is
	// zero, as standardisation makes it, for then the length says how far a row is from all
	// classes; or the nearest class mean is the right one significantly more often without
	// L2, that is, on the validation rows, by more than two standard deviations of the
	// difference. If all rows of each class are equal, nothing can be whitened;
	// then Auto is L2 alone, or None with fewer than 32 features.
	Auto ConditioningKind = "auto"
)

// ConditioningKinds lists all kinds.
var ConditioningKinds = []ConditioningKind{None, Standardise, PCA, Whiten, Auto}

// ConditioningOptions says how to condition. The zero value does nothing.
type ConditioningOptions struct {
	Kind      ConditioningKind `json:"kind"`      // "" means None
	L2        bool             `json:"l2"`        // divide each row by its length first
	Shrinkage float64          `json:"shrinkage"` // s of Whiten, > 0; 0 means the one of Shrinkages that fits the validation rows best
	Dims      int              `json:"dims"`      // E of PCA; 0 means D

	// Memory is about how many bytes fitting may take; 0 means no limit. If D×D
	// matrices do not fit, PCA and whitening work in the span of as many training
	// rows as fit, at most 4096, and return at most as many coordinates. It is 0
	// in a fitted map.
	Memory int64 `json:"-"`
}

// WithDefaults fills in the zero fields and refuses invalid values.
func (o ConditioningOptions) WithDefaults() (ConditioningOptions, error) {
	if o.Kind == "" {
		o.Kind = None
	}
	switch {
	case !slices.Contains(ConditioningKinds, o.Kind):
		return o, fmt.Errorf("conditioning %q: it is one of %q", o.Kind, ConditioningKinds)
	case !(o.Shrinkage >= 0) || math.IsInf(o.Shrinkage, 1):
		return o, fmt.Errorf("shrinkage %g: it must be finite and not negative", o.Shrinkage)
	case o.Memory < 0:
		return o, options.Errorf("Memory", "%d is negative", o.Memory)
	case o.Dims < 0:
		return o, fmt.Errorf("%d principal axes: it cannot be negative", o.Dims)
	}
	return o, nil
}

// Conditioning is a fitted map. A nil Conditioning does not change features. Any
// number of goroutines may use it.
//
// It transforms features before a head reads them. A head of
// radial basis functions depends on distances alone, and in the features of a
// backbone that was trained for another task most of ‖x−c‖² comes from directions
// in which the classes do not differ.
//
// A conditioning is one affine map, after an optional division by the length:
//
//	z = (x/‖x‖ − μ) W,  W [D, E] or a diagonal
//
// It is fitted on training rows, and is stored in the detector and exported with
// the head.
type Conditioning struct {
	ConditioningOptions
	Mean   []float32 // [D], μ
	Scale  []float32 // [D], the diagonal of W; nil if Matrix is set
	Matrix []float32 // [D, E], W; nil if Scale is set

	pack   sync.Once
	packed *kernels.Right[float32] // Matrix, for Apply
}

// FitConditioning fits the map to the rows of train. It computes moments and factorisations
// in float64 and rounds the result to float32. It returns nil for a map that
// changes nothing. The validation rows choose the shrinkage; if there are none,
// every tenth training row, class by class, replaces them.
func FitConditioning(ctx context.Context, train, validation features.Rows, classes int, o ConditioningOptions) (*Conditioning, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, err
	}
	if o.Kind != None && o.Kind != Standardise && !o.fits(train.D) {
		if train.Len() < 2 {
			return nil, tooFew(train)
		}
		return fitReduced(ctx, train, validation, classes, o)
	}
	o.Memory = 0
	if o.Kind == Auto {
		rows := func(l2 bool) (features.Rows, features.Rows, bool) { return train, validation, l2 }
		asked := o.Shrinkage
		if o, err = choose(ctx, rows, classes, o); err != nil {
			return nil, err
		}
		if o.L2 && o.Kind == Whiten && centred(train) {
			o.L2, o.Shrinkage = false, asked
		}
	}
	if o.Kind == None && !o.L2 {
		return nil, nil
	}
	if train.Len() < 2 {
		return nil, tooFew(train)
	}
	c := &Conditioning{ConditioningOptions: o, Mean: make([]float32, train.D)}
	if o.Kind == None {
		c.Scale = slices.Repeat([]float32{1}, train.D)
		return c, nil
	}
	rows := momentRows(train, classes, o.L2)
	m, err := linalg.Means(ctx, rows)
	if err != nil {
		return nil, err
	}
	kernels.Convert(c.Mean, m.Mean)
	switch o.Kind {
	case Standardise:
		return c, c.standardise(ctx, rows, m)
	case PCA:
		return c, c.principal(ctx, rows, m)
	}
	if c.Shrinkage == 0 {
		g, err := gaussians(ctx, train, validation, classes, o.L2)
		if err != nil {
			return nil, err
		}
		if c.Shrinkage, err = g.shrinkage(ctx); err != nil {
			return nil, err
		}
	}
	return c, c.whiten(ctx, rows, m)
}

func tooFew(train features.Rows) error {
	return fmt.Errorf("the conditioning is fitted on at least 2 labelled training rows, and there are %d", train.Len())
}

// momentRows returns the rows in float64, divided by their lengths if l2.
func momentRows(data features.Rows, classes int, l2 bool) linalg.Rows {
	return linalg.Rows{
		D: data.D, Index: data.Index, Classes: classes,
		Label: func(row int) int { return int(data.Labels[row]) },
		Read: func(dst []float64, row int) {
			kernels.Convert(dst, data.Row(row))
			if l2 {
				linalg.Normalise(dst)
			}
		},
	}
}

func (c *Conditioning) standardise(ctx context.Context, rows linalg.Rows, m *linalg.Moments) error {
	variance := make([]float64, rows.D)
	x := make([]float64, rows.D)
	for i, at := range rows.Index {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rows.Read(x, at)
		for j, v := range x {
			variance[j] += (v - m.Mean[j]) * (v - m.Mean[j]) / float64(m.N)
		}
	}
	c.Scale = make([]float32, rows.D)
	for j, v := range variance {
		// A constant feature carries no information, even if it changes later.
		if deviation := math.Sqrt(v); deviation > 1e-12*math.Abs(m.Mean[j]) {
			c.Scale[j] = float32(1 / deviation)
		}
	}
	return c.Validate()
}

func (c *Conditioning) principal(ctx context.Context, rows linalg.Rows, m *linalg.Moments) error {
	sigma, err := m.Total(ctx, rows)
	if err != nil {
		return err
	}
	_, axes, err := linalg.Eigen(sigma) // in rows, eigenvalues ascend
	if err != nil {
		return fmt.Errorf("the principal axes of the features: %w", err)
	}
	dims := c.Dims
	if dims == 0 || dims > rows.D {
		dims = rows.D
	}
	c.Matrix = make([]float32, rows.D*dims)
	for j := range rows.D {
		for e := range dims {
			c.Matrix[j*dims+e] = float32(axes.At(rows.D-1-e, j))
		}
	}
	return c.Validate()
}

// In returns D, the length of the input rows.
func (c *Conditioning) In() int { return len(c.Mean) }

// Out returns E, the length of the output rows.
func (c *Conditioning) Out() int {
	if c.Scale != nil {
		return len(c.Scale)
	}
	return len(c.Matrix) / len(c.Mean)
}

// Validate checks that the arrays fit together and that all numbers are finite.
// Call it before Apply on a map from a file.
func (c *Conditioning) Validate() error {
	d := len(c.Mean)
	fits := len(c.Scale) == d && c.Matrix == nil || c.Scale == nil && len(c.Matrix) > 0 && len(c.Matrix)%max(d, 1) == 0
	if d == 0 || !fits {
		return fmt.Errorf("conditioning with %d means, %d scales and a matrix of %d", d, len(c.Scale), len(c.Matrix))
	}
	for _, array := range [][]float32{c.Mean, c.Scale, c.Matrix} {
		if slices.ContainsFunc(array, notFinite[float32]) {
			return errors.New("conditioning holds a value that is not finite")
		}
	}
	return nil
}

// Apply fills dst [n, E] with the conditioned rows x [n, D], in float64. It
// changes x. dst and x must not overlap.
func (c *Conditioning) Apply(dst, x []float64) {
	d, e := c.In(), c.Out()
	n := len(x) / d
	for row := range slices.Chunk(x, d) {
		if c.L2 {
			linalg.Normalise(row)
		}
		for j, mu := range c.Mean {
			row[j] -= float64(mu)
		}
	}
	if c.Scale != nil {
		for i, v := range x {
			dst[i] = v * float64(c.Scale[i%d])
		}
		return
	}
	c.pack.Do(func() { c.packed = kernels.NewRight(e, d, c.Matrix) })
	c.packed.NN(n, x, dst)
}

// Rows returns the selected rows, conditioned and rounded to float32, [n, E]. It
// computes on all cores.
func (c *Conditioning) Rows(ctx context.Context, rows features.Rows) ([]float32, error) {
	e := c.Out()
	out := make([]float32, rows.Len()*e)
	return out, c.Each(ctx, rows, func(at int, rows []float32) error {
		copy(out[at*e:], rows)
		return nil
	})
}

// Each calls do, from several goroutines, with blocks of the rows that Rows would
// return. A block begins with the row Index[at]. do must not hold on to it.
func (c *Conditioning) Each(ctx context.Context, data features.Rows, do func(at int, rows []float32) error) error {
	d, e, index := c.In(), c.Out(), data.Index
	block := min(256, max(16, 1<<21/d))
	return parallel.Ranges(ctx, len(index), block, func() func(from, to int) error {
		in, out, rows := make([]float64, block*d), make([]float64, block*e), make([]float32, block*e)
		return func(from, to int) error {
			for i, r := range index[from:to] {
				kernels.Convert(in[i*d:], data.Row(r))
			}
			n := to - from
			c.Apply(out[:n*e], in[:n*d])
			kernels.Convert(rows, out[:n*e])
			return do(from, rows[:n*e])
		}
	})
}
