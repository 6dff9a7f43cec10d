package posthoc

import (
	"context"
	"fmt"
	"math"
)

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
	Patterns []float64 `cols:"D"` // [C, D]
}

// FitSHE takes as the pattern of a class the mean of its rows that are
// predicted right. A class without any takes the mean of its rows, a class
// without rows that of all, so that images predicted as it have a score.
func FitSHE(ctx context.Context, data *Data, metric Metric) (*SHE, error) {
	if err := data.need(true, true, true); err != nil {
		return nil, err
	}
	d, c := data.D, data.Classes
	sums, counts := make([]float64, c*d), make([]float64, c)
	err := data.blocks(ctx, func(from, to int) error {
		features, logits := data.Features(from, to), data.Logits(from, to)
		var right []int
		for i, y := range data.Labels[from:to] {
			if argmax(logits[i*c:(i+1)*c]) == int(y) {
				counts[y]++
				right = append(right, i)
			}
		}
		return eachBlock(ctx, d, 64, func(j, end int) { // some columns
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
			m, err := data.means(ctx, false)
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
	return &SHE{Metric: metric, D: d, Patterns: sums}, nil
}

func add(sum []float64, row []float32) {
	for j, v := range row {
		sum[j] += float64(v)
	}
}

// Score implements [Score].
func (s *SHE) Score(ctx context.Context, dst []float64, b Batch) error {
	c, err := b.classes(len(dst), len(s.Patterns)/s.D)
	if err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, s.D, false, func(scores, x []float64, at int) {
		for i := range scores {
			f, y := x[i*s.D:(i+1)*s.D], argmax(b.Logits[(at+i)*c:(at+i+1)*c])
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

func distance(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += (v - b[i]) * (v - b[i])
	}
	return math.Sqrt(sum)
}

// over returns a/b, and 0 where b is 0.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// FDBD is the distance to the decision boundaries, over that to the mean of the
// training features:
//
//	Σ_{c≠y} |z_c − z_y|/‖w_c − w_y‖ / ‖f − μ‖, y = argmax z
//
// Reads features and logits, which are those of the linear head with weights w.
// It is a sum, where the paper has a mean. Classes of equal weights have no
// boundary between them and are left out. Where the denominator is zero, as for
// features of zeros without a mean, the score is 0, the lowest there is:
// OpenOOD's is +Inf.
//
// Source: Liu and Qin, 2024 (OpenOOD: fDBDPostprocessor).
type FDBD struct {
	Classes   int
	Mean      []float64 // [D], μ; zeros to divide by ‖f‖
	Distances []float64 `cols:"Classes"` // [C, C], ‖w_c − w_y‖
}

// FitFDBD fits FDBD to the head, with the mean of the training features or, if
// data is nil, with zeros in its place.
func FitFDBD(ctx context.Context, data *Data, head *Linear) (*FDBD, error) {
	if err := head.need(); err != nil {
		return nil, err
	}
	s := &FDBD{Classes: head.Out, Mean: make([]float64, head.In), Distances: make([]float64, head.Out*head.Out)}
	if data != nil {
		mean, err := data.mean(ctx, head)
		if err != nil {
			return nil, err
		}
		s.Mean = mean
	}
	err := eachBlock(ctx, head.Out, 1, func(c, _ int) {
		for y := range head.Out {
			s.Distances[c*head.Out+y] = distance(head.row(c), head.row(y))
		}
	})
	return s, err
}

// mean returns the mean of the features that the head reads.
func (data *Data) mean(ctx context.Context, head *Linear) ([]float64, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	m, err := data.means(ctx, false)
	if err != nil {
		return nil, err
	}
	return m.Mean, nil
}

// fits says whether the features are those that the head reads.
func (data *Data) fits(head *Linear) error {
	if err := data.need(true, false, false); err != nil {
		return err
	}
	if err := head.need(); err != nil {
		return err
	}
	if data.D != head.In {
		return fmt.Errorf("the linear head reads %d features, training rows have %d", head.In, data.D)
	}
	return nil
}

// Score implements [Score].
func (s *FDBD) Score(ctx context.Context, dst []float64, b Batch) error {
	c, d := s.Classes, len(s.Mean)
	if _, err := b.classes(len(dst), c); err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		for i := range scores {
			z := b.Logits[(at+i)*c : (at+i+1)*c]
			y := argmax(z)
			var sum float64
			for k, v := range z {
				sum += over(z[y]-v, s.Distances[y*c+k])
			}
			scores[i] = over(sum, distance(x[i*d:(i+1)*d], s.Mean))
		}
	})
}

// NCI is the neural-collapse score: ⟨w_y, f − μ⟩/‖f − μ‖₂ + α‖f‖₁ with y the
// class that the logits predict and μ the mean of the training features. Reads
// features and logits. The first term is 0 where f = μ.
//
// Source: Liu and Qin, 2025 (OpenOOD: NCIPostprocessor).
type NCI struct {
	Head  *Linear
	Mean  []float64 // [D]
	Alpha float64   // α; 0 means 0.0001
}

// FitNCI fits NCI with the mean of the training features.
func FitNCI(ctx context.Context, data *Data, head *Linear, alpha float64) (*NCI, error) {
	mean, err := data.mean(ctx, head)
	if err != nil {
		return nil, err
	}
	if alpha == 0 {
		alpha = 0.0001
	}
	return &NCI{Head: head, Mean: mean, Alpha: alpha}, nil
}

// Score implements [Score].
func (s *NCI) Score(ctx context.Context, dst []float64, b Batch) error {
	d, c := s.Head.Size()
	if _, err := b.classes(len(dst), c); err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		for i := range scores {
			f, w := x[i*d:(i+1)*d], s.Head.row(argmax(b.Logits[(at+i)*c:(at+i+1)*c]))
			length := l1(f)
			for j, mu := range s.Mean {
				f[j] -= mu
			}
			scores[i] = over(dot(w, f), norm(f)) + s.Alpha*length
		}
	})
}

func l1(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += math.Abs(v)
	}
	return sum
}

// GradNorm is the L1 norm of the gradient of Σ_c −log softmax(Wf + b)_c by the
// weights of a linear head, in closed form: ‖f‖₁·Σ_c |C·p_c − 1|. Reads
// features.
//
// Source: Huang et al., 2021 (OpenOOD: GradNormPostprocessor, whose targets are
// ones where the paper's are 1/C: a factor C).
type GradNorm struct{ Head *Linear }

// Score implements [Score].
func (s GradNorm) Score(ctx context.Context, dst []float64, b Batch) error {
	d, c := s.Head.Size()
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, _ int) {
		logits := make([]float64, len(scores)*c)
		s.Head.Logits(logits, x)
		for i := range scores {
			z := logits[i*c : (i+1)*c]
			all, _ := logSumExp(z, 1)
			var sum float64
			for _, v := range z {
				sum += math.Abs(float64(c)*math.Exp(v-all) - 1)
			}
			scores[i] = l1(x[i*d:(i+1)*d]) * sum
		}
	})
}
