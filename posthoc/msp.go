package posthoc

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[MaxSoftmax]("MaxSoftmax",
	method{
		name:  "msp",
		words: Words{"between {A} and {B} for the linear head", "clearly of one class for the linear head", "less clearly of one class for the linear head (between {A} and {B})"},
		reads: logitRows, fit: plain(&MaxSoftmax{})},
	method{
		name:  "temperature",
		words: Words{"between {A} and {B} for the linear head", "clearly of one class for the linear head", "less clearly of one class for the linear head (between {A} and {B})"},
		reads: logitRows, needs: logitRows | labelRows | validation, fit: func(ctx context.Context, in Input) (Scorer, error) {
			return FitTemperature(ctx, in.Val)
		}})

func (s *MaxSoftmax) fields(f *fields) { f.notNegative("temperature", &s.Temperature) }

// MaxSoftmax is the maximum softmax probability (MSP): max_c softmax(z/T)_c.
// Reads logits. It is computed as 1/Σ_c exp((z_c − max z)/T) in float64, so
// rows whose runner-up is e⁻³⁰ away still differ where float32 would tie them.
// Logits of −Inf for all classes give 1/C.
//
// Source: Hendrycks and Gimpel, 2017 (OpenOOD: BasePostprocessor); with a
// fitted temperature Guo et al., 2017 (TemperatureScalingPostprocessor).
type MaxSoftmax struct {
	Temperature float64 // T > 0; 0 means 1
}

// Score implements [Scorer].
func (s MaxSoftmax) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, func(z []float64) float64 { return maxSoftmax(z, cmp.Or(s.Temperature, 1)) })
}

func maxSoftmax(z []float64, t float64) float64 {
	z = possible(z)
	top := z[linalg.ArgMax(z)]
	var sum float64
	for _, v := range z {
		sum += math.Exp((v - top) / t)
	}
	return 1 / sum
}

// FitTemperature finds the T that minimises the mean −log softmax(z/T)_y of
// rows with logits and labels, by Newton's method in 1/T, and returns
// MaxSoftmax with it. The head must not have been trained on these rows: for a head
// that is always right there is no best T, which is an error.
//
// OpenOOD's own optimiser (LBFGS, 50 steps of 0.01) stops short of the optimum.
func FitTemperature(ctx context.Context, data *Data) (*MaxSoftmax, error) {
	if err := data.need(logitRows | labelRows); err != nil {
		return nil, err
	}
	const usualStart = 1 / 1.5
	start := usualStart
	if data.N >= manyRows { // a part of them tells about where it is
		if near, err := inverseTemperature(ctx, data, start, blockRows/16); err == nil {
			start = near
		} else if ctx.Err() != nil {
			return nil, err
		}
	}
	inverse, err := inverseTemperature(ctx, data, start, blockRows)
	if err != nil && ctx.Err() == nil && start != usualStart {
		inverse, err = inverseTemperature(ctx, data, usualStart, blockRows)
	}
	if err != nil {
		return nil, err
	}
	return &MaxSoftmax{Temperature: 1 / inverse}, nil
}

// manyRows is how many rows make a pass over a part of them worth while.
const manyRows = 1 << 16

// inverseTemperature finds 1/T by Newton's method, from start on, with the first rows
// of each block, so many of them.
func inverseTemperature(ctx context.Context, data *Data, start float64, first int) (float64, error) {
	inverse := start
	for range 200 {
		sums := make([][2]float64, (data.N+blockRows-1)/blockRows)
		err := parallel.Blocks(ctx, data.N, blockRows, func(from, to int) {
			of := &sums[from/blockRows]
			to = min(to, from+first)
			logits := data.Logits(from, to)
			for i, y := range data.Labels[from:to] {
				z := logits[i*data.Classes : (i+1)*data.Classes]
				top := z[linalg.ArgMax(z)]
				// Logits less their maximum change nothing.
				var sum, first, second float64
				for _, v := range z {
					if e := math.Exp((v - top) * inverse); e > 0 {
						sum += e
						first += e * (v - top)
						second += e * (v - top) * (v - top)
					}
				}
				mean := first / sum
				of[0] += mean - (z[y] - top)
				of[1] += second/sum - mean*mean
			}
		})
		if err != nil {
			return 0, err
		}
		var gradient, curvature float64
		for _, of := range sums {
			gradient, curvature = gradient+of[0], curvature+of[1]
		}
		step := gradient / curvature
		if !(math.Abs(step) <= inverse/2) { // also NaN
			step = math.Copysign(inverse/2, gradient)
		}
		inverse -= step
		if math.Abs(step) <= 1e-9*inverse { // the next is smaller by orders of magnitude
			return inverse, nil
		}
	}
	return 0, errors.New("there is no best temperature: all rows for the fit are classified correctly, or no more than by chance")
}

func (s *MaxSoftmax) graph(g *graph) onnx.Value {
	z := g.Op("Sub", g.Logits, g.Largest(g.Logits))
	sum := g.Sum(g.Op("Exp", g.Op("Div", z, g.Number(cmp.Or(s.Temperature, 1)))))
	return g.Op("Div", g.Number(1), sum)
}
