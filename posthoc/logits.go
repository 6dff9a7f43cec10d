package posthoc

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
)

// logSumExp returns log Σ exp(x/t), and its largest term's place. It is −Inf if
// all terms are.
func logSumExp(x []float64, t float64) (sum float64, top int) {
	top = argmax(x)
	if math.IsInf(x[top], 0) {
		return x[top], top
	}
	for _, v := range x {
		sum += math.Exp((v - x[top]) / t)
	}
	return x[top]/t + math.Log(sum), top
}

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

// Score implements [Score].
func (s MaxSoftmax) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, 0, func(z []float64) float64 { return maxSoftmax(z, orOne(s.Temperature)) })
}

func maxSoftmax(z []float64, t float64) float64 {
	z = possible(z)
	top := z[argmax(z)]
	var sum float64
	for _, v := range z {
		sum += math.Exp((v - top) / t)
	}
	return 1 / sum
}

// possible returns z, or zeros for logits that are all −Inf: no class is likelier
// than another.
func possible(z []float64) []float64 {
	if math.IsInf(z[argmax(z)], -1) {
		return make([]float64, len(z))
	}
	return z
}

func orOne(t float64) float64 {
	if t == 0 {
		return 1
	}
	return t
}

// FitTemperature finds the T that minimises the mean −log softmax(z/T)_y of
// rows with logits and labels, by Newton's method in 1/T, and returns
// MaxSoftmax with it. The rows must not be those that the head was trained on:
// of a head that is always right no T is the best, which is an error.
//
// OpenOOD's own optimiser (LBFGS, 50 steps of 0.01) stops short of the optimum.
func FitTemperature(ctx context.Context, data *Data) (*MaxSoftmax, error) {
	if err := data.need(false, true, true); err != nil {
		return nil, err
	}
	inverse := 1 / 1.5
	for range 200 {
		sums := make([][2]float64, (data.N+blockRows-1)/blockRows)
		err := eachBlock(ctx, data.N, blockRows, func(from, to int) {
			of := &sums[from/blockRows]
			logits := data.Logits(from, to)
			for i, y := range data.Labels[from:to] {
				z := logits[i*data.Classes : (i+1)*data.Classes]
				top := z[argmax(z)]
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
			return nil, err
		}
		var gradient, curvature float64
		for _, of := range sums {
			gradient, curvature = gradient+of[0], curvature+of[1]
		}
		step := gradient / curvature
		if !(math.Abs(step) <= inverse/2) { // not a number either
			step = math.Copysign(inverse/2, gradient)
		}
		inverse -= step
		if math.Abs(step) <= 1e-10*inverse { // and the next is beyond float64
			return &MaxSoftmax{Temperature: 1 / inverse}, nil
		}
	}
	return nil, errors.New("no temperature is the best: of the rows that it is fitted on all are classified right, or no more than by chance")
}

// MaxLogit is the largest logit (MLS): max_c z_c. Reads logits.
//
// Source: Hendrycks et al., 2022 (OpenOOD: MaxLogitPostprocessor).
type MaxLogit struct{}

// Score implements [Score].
func (MaxLogit) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, 0, func(z []float64) float64 { return z[argmax(z)] })
}

// Energy is the negative free energy: T·log Σ_c exp(z_c/T). Reads logits.
//
// Source: Liu et al., 2020 (OpenOOD: EBOPostprocessor).
type Energy struct {
	Temperature float64 // T > 0; 0 means 1
}

// Score implements [Score].
func (s Energy) Score(ctx context.Context, dst []float64, b Batch) error {
	t := orOne(s.Temperature)
	return eachLogits(ctx, dst, b, 0, func(z []float64) float64 { return energy(z, t) })
}

func energy(z []float64, t float64) float64 {
	sum, _ := logSumExp(z, t)
	return t * sum
}

// GEN is the generalised entropy: −Σ p^γ (1−p)^γ over the M largest softmax
// probabilities p. Reads logits. Both logarithms are taken without
// cancellation, 1 − max p as the sum of the other terms, so that confident rows
// do not tie.
//
// Source: Liu et al., 2023 (OpenOOD: GENPostprocessor).
type GEN struct {
	Gamma float64 // γ; 0 means 0.1
	M     int     // 0 means 100; more than C means C
}

// Score implements [Score].
func (s GEN) Score(ctx context.Context, dst []float64, b Batch) error {
	if s.Gamma == 0 {
		s.Gamma = 0.1
	}
	if s.M == 0 {
		s.M = 100
	}
	return eachLogits(ctx, dst, b, 0, s.row)
}

func (s GEN) row(z []float64) float64 {
	z = possible(z)
	top := argmax(z)
	others := math.Inf(-1) // log Σ of all but the top, relative to the top
	if rest := append(slices.Clone(z[:top]), z[top+1:]...); len(rest) > 0 {
		others, _ = logSumExp(rest, 1)
		others -= z[top]
	}
	all := math.Log1p(math.Exp(others))
	logP := make([]float64, len(z))
	for c, v := range z {
		logP[c] = v - z[top] - all
	}
	score := -math.Exp(s.Gamma * (logP[top] + others - all))
	logP = slices.Delete(logP, top, top+1)
	if s.M <= len(logP) {
		slices.SortFunc(logP, func(a, b float64) int { return cmp.Compare(b, a) })
		logP = logP[:s.M-1]
	}
	for _, p := range logP {
		score -= math.Exp(s.Gamma * (p + math.Log1p(-math.Exp(p))))
	}
	return score
}

// KLM is KL matching: −min_c KL(p ‖ q_c), p = softmax(z) and q_c the mean
// softmax of the fit rows that are predicted as c. Reads logits. All
// probabilities are kept as logarithms, so none vanishes.
//
// Source: Hendrycks et al., 2022 (OpenOOD: KLMatchingPostprocessor).
type KLM struct {
	Classes  int
	LogMeans []float64 `cols:"Classes"` // [C, C], log q; the one-hot log for a class that no row is predicted as
}

// FitKLM fits KLM on the logits of data, which are those of validation rows in
// OpenOOD. A class that is never predicted has a one-hot q_c.
func FitKLM(ctx context.Context, data *Data) (*KLM, error) {
	if err := data.need(false, true, false); err != nil {
		return nil, err
	}
	c := data.Classes
	largest := slices.Repeat([]float64{math.Inf(-1)}, c*c)
	sums, counts := make([]float64, c*c), make([]float64, c)
	err := data.blocks(ctx, func(from, to int) error {
		for z := range slices.Chunk(data.Logits(from, to), c) {
			z = possible(z)
			sum, top := logSumExp(z, 1)
			counts[top]++
			for j, v := range z {
				at := top*c + j
				if logP := v - sum; logP > largest[at] {
					sums[at] = sums[at]*math.Exp(largest[at]-logP) + 1
					largest[at] = logP
				} else if logP > math.Inf(-1) {
					sums[at] += math.Exp(logP - largest[at])
				}
			}
		}
		return nil
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

// Score implements [Score].
func (s *KLM) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, s.Classes, func(z []float64) float64 {
		z = possible(z)
		p := softmaxRows(z, s.Classes)
		sum, _ := logSumExp(z, 1)
		best := math.Inf(-1)
		for q := range slices.Chunk(s.LogMeans, s.Classes) {
			var divergence float64
			for j, v := range z {
				if p[j] > 0 {
					divergence += p[j] * (v - sum - q[j])
				}
			}
			best = max(best, -divergence)
		}
		return best
	})
}

// ODIN is the largest softmax probability at a high temperature after a small
// step of the input towards the predicted class:
//
//	max softmax(z(x̃)/T), x̃ = x − ε·sign(∂CE(z(x)/T, argmax z)/∂x), sign(0) = +1
//
// The features are the input x here, as in the paper that this project
// implements: z is a linear head or an MLP on them. Reads features.
//
// Source: Liang et al., 2018 (OpenOOD: ODINPostprocessor with input_std 1).
type ODIN struct {
	Network     Network
	Temperature float64 // T; 0 means 1000
	Epsilon     float64 // ε; 0 means 0.0014
}

// Score implements [Score].
func (s ODIN) Score(ctx context.Context, dst []float64, b Batch) error {
	if s.Temperature == 0 {
		s.Temperature = 1000
	}
	if s.Epsilon == 0 {
		s.Epsilon = 0.0014
	}
	d, c := s.Network.Size()
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, _ int) {
		z := make([]float64, len(scores)*c)
		s.Network.Logits(z, x)
		for row := range slices.Chunk(z, c) {
			crossEntropyGradient(row, s.Temperature)
		}
		gradient, done := scratch(len(x))
		defer done()
		s.Network.InputGradient(gradient, x, z)
		for i, g := range gradient {
			if g >= 0 {
				x[i] -= s.Epsilon
			} else {
				x[i] += s.Epsilon
			}
		}
		s.Network.Logits(z, x)
		for i := range scores {
			scores[i] = maxSoftmax(z[i*c:(i+1)*c], s.Temperature)
		}
	})
}

// crossEntropyGradient replaces logits z by (softmax(z/t) − onehot(argmax z)):
// the gradient of the cross-entropy but for a factor 1/t. The entry of the
// largest is minus the sum of the others, without cancellation.
func crossEntropyGradient(z []float64, t float64) {
	sum, top := logSumExp(z, t)
	var others float64
	for c, v := range z {
		if c != top {
			z[c] = math.Exp(v/t - sum)
			others += z[c]
		}
	}
	z[top] = -others
}
