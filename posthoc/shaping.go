package posthoc

import (
	"context"
	"slices"
)

// shape says how features are changed.
type shape struct {
	d          int   // features
	how        Shape // an ASH's, or none or clip
	percentile float64
	low, high  float64 // of clip
}

const (
	none Shape = "none"
	clip Shape = "clip"
)

// shaped computes scores that change features in the same way: energies of heads'
// logits on the changed features.
type shaped struct {
	how   shape
	heads []*Linear
	dst   [][]float64
}

func (s shape) join(t *together, head *Linear, dst []float64) error {
	w := workOn[shaped](t, s)
	w.how, w.heads, w.dst = s, append(w.heads, head), append(w.dst, dst)
	return nil
}

func (s *shaped) run(ctx context.Context, n int, b Batch) error {
	return eachFeatures(ctx, s.dst[0][:n], b, s.how.d, false, func(scores, x []float64, at int) {
		for f := range slices.Chunk(x, s.how.d) {
			s.how.change(f)
		}
		for i, head := range s.heads {
			head.energies(s.dst[i][at:at+len(scores)], x)
		}
	})
}

func (s shape) change(f []float64) {
	switch s.how {
	case none:
	case clip:
		for j, v := range f {
			f[j] = min(max(v, s.low), s.high)
		}
	default:
		s.prune(f)
	}
}
