package head

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// SetBeta sets the initial β of all centroids.
func (l *rbfLayer[T]) SetBeta(beta float64) {
	l.InitBeta = float64(T(beta))
	for c := range l.Beta {
		l.Beta[c] = T(l.InitBeta)
	}
}

// plusPlus fills the centroids [n, d] by k-means++ on the rows x [m, d]
// (Arthur and Vassilvitskii): the first is the first row; each other is a row
// drawn with a probability proportional to its distance ‖·‖_k^k from the
// nearest centroid so far. Noise of deviation 1e-5 is added, which separates
// copies if there are fewer rows than centroids. It stops with ctx.
func plusPlus[T kernels.Real](ctx context.Context, centroids []T, d int, x []T, k norm, rng Random) error {
	nearest := make([]float64, len(x)/d)
	for i := range nearest {
		nearest[i] = math.Inf(1)
	}
	copy(centroids[:d], x[:d])
	for at := d; at < len(centroids); at += d {
		if err := ctx.Err(); err != nil {
			return err
		}
		var total float64
		for i := range nearest {
			nearest[i] = min(nearest[i], float64(distance(k, x[i*d:(i+1)*d], centroids[at-d:at])))
			total += nearest[i]
		}
		u := rng.Float64()
		pick := 0 // as torch.argmax: the first row where nothing exceeds u
		var cumulative float64
		for i, v := range nearest {
			cumulative += v / total
			if cumulative > u {
				pick = i
				break
			}
		}
		for j, v := range x[pick*d : (pick+1)*d] {
			centroids[at+j] = v + T(1e-5*rng.NormFloat64())
		}
	}
	return nil
}

// webScale improves the centroids by passes of web-scale k-means (Sculley), as
// the paper's code does. Each pass first assigns all rows to their nearest
// centroids. Then it moves the centroids row by row with the step 1/v, where v
// counts the rows assigned to the centroid so far. It stops with ctx.
func webScale[T kernels.Real](ctx context.Context, centroids []T, d int, x []T, k norm, passes int) error {
	counts := make([]T, len(centroids)/d)
	nearest := make([]int, len(x)/d)
	assign := func(from, to int) error {
		for i := from; i < to; i++ {
			row, least := x[i*d:(i+1)*d], T(math.Inf(1))
			for c := range counts {
				if dist := distance(k, row, centroids[c*d:(c+1)*d]); dist < least {
					nearest[i], least = c, dist
				}
			}
		}
		return nil
	}
	for range passes {
		if err := parallel.Ranges(ctx, len(nearest), 8, func() func(from, to int) error { return assign }); err != nil {
			return err
		}
		for i, c := range nearest {
			counts[c]++
			eta := 1 / counts[c]
			centroid := centroids[c*d : (c+1)*d]
			for j, v := range x[i*d : (i+1)*d] {
				centroid[j] = (1-eta)*centroid[j] + eta*v
			}
		}
	}
	return nil
}

// initialBeta returns the initial β of all centroids of a layer, with
// β⁺ = reach/d. Here d is the larger of two 0.95 quantiles: of the rows'
// distances from their nearest centroids, and of the centroids' distances from
// their nearest rows. With reach = 4, d corresponds to two standard deviations of
// a Gaussian.
//
// If all rows are equal (d = 0), β is 1e4. It stops with ctx.
func initialBeta[T kernels.Real](ctx context.Context, centroids []T, d int, x []T, k norm, reach float64) (float64, error) {
	toCentroid := make([]float64, len(x)/d)
	toRow := make([]float64, len(centroids)/d)
	for i := range toCentroid {
		toCentroid[i] = math.Inf(1)
	}
	for c := range toRow {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		toRow[c] = math.Inf(1)
		for i := range toCentroid {
			dist := float64(distance(k, x[i*d:(i+1)*d], centroids[c*d:(c+1)*d]))
			toCentroid[i], toRow[c] = min(toCentroid[i], dist), min(toRow[c], dist)
		}
	}
	return inverseSoftplus(reach / max(quantileOf(toCentroid, 0.95), quantileOf(toRow, 0.95))), nil
}

// inverseSoftplus returns the β of a width β⁺. From 5 on it is the width itself,
// as softplus is almost the identity there.
func inverseSoftplus(width float64) float64 {
	switch {
	case width < 5:
		return math.Log(min(max(math.Expm1(width), 1e-6), 1e4))
	case math.IsInf(width, 1):
		return 1e4
	}
	return width
}

// quantileOf returns the q-quantile of x by linear interpolation, as torch.quantile
// does. It sorts x.
func quantileOf(x []float64, q float64) float64 {
	slices.Sort(x)
	return linalg.Quantile(x, q)
}
