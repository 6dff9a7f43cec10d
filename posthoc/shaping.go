package posthoc

import (
	"context"
	"slices"
)

// shaping is a score by the energy of a head's logits on features that were
// changed.
type shaping interface{ shaping() (*Linear, shape) }

// shape says how features are changed; equal ones change them in the same way.
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

// shaped is scores with the same shape.
type shaped struct {
	heads []*Linear
	dst   [][]float64
}

// run changes the features of n rows and scores them by all heads.
func (s *shaped) run(ctx context.Context, how shape, n int, b Batch) error {
	return eachFeatures(ctx, s.dst[0][:n], b, how.d, false, func(scores, x []float64, at int) {
		for f := range slices.Chunk(x, how.d) {
			how.change(f)
		}
		for i, head := range s.heads {
			z := make([]float64, len(scores)*head.Out)
			head.Logits(z, x)
			for row := range scores {
				s.dst[i][at+row] = energy(z[row*head.Out:(row+1)*head.Out], 1)
			}
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

func orDefault(v, byDefault float64) float64 {
	if v == 0 {
		return byDefault
	}
	return v
}
