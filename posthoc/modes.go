package posthoc

import (
	"context"
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// FitModes fits MDS++ with several centroids for each class, for classes that are of
// several kinds of things: −min (x−c)ᵀ Σ⁻¹ (x−c), x = f/‖f‖, over the centroids c of
// all classes, with Σ = S + s·tr(S)/D·I and the covariance S of the rows about the
// nearest centroid of their class. Reads features. With one centroid and s = 0 it is
// MDS++.
//
// The centroids are those of k-means on the directions x of the rows of each class.
// The number k, of 1, 2, 3 and 5, and s, of .01, .03, .1, .3, 1 and 3, are those with
// which a fifth of the rows of each class, held out, is most likely under its class,
// a mixture of Gaussians around its centroids. At most 20,000 rows choose them.
func FitModes(ctx context.Context, data *Data) (*MDS, error) {
	if err := data.need(featureRows | labelRows); err != nil {
		return nil, err
	}
	r := data.rows(true)
	k, shrinkage, err := chooseModes(ctx, r)
	if err != nil {
		return nil, err
	}
	m, err := findModes(ctx, r, k)
	if err != nil {
		return nil, err
	}
	moments, sigma, err := m.within(ctx, r)
	if err != nil {
		return nil, err
	}
	shrinkage *= sigma.Trace() / float64(r.D)
	for j := range r.D {
		sigma.SetSym(j, j, sigma.At(j, j)+shrinkage)
	}
	return newMDS(ctx, true, moments, sigma)
}

// mostChoosing is how many rows choose the number of modes.
const mostChoosing = 20_000

// chooseModes returns k and s.
func chooseModes(ctx context.Context, r linalg.Rows) (k int, shrinkage float64, err error) {
	var fit, held []int
	seen := make([]uint32, r.Classes)
	for i := 0; i < len(r.Index); i += (len(r.Index)-1)/mostChoosing + 1 {
		row := r.Index[i]
		c := r.Label(row)
		seen[c]++
		// Multiples of the golden ratio, so that rows with a period in them do not
		// leave out one of their kinds.
		if seen[c]*2654435769 < 1<<32/5 {
			held = append(held, row)
		} else {
			fit = append(fit, row)
		}
	}
	if len(held) == 0 { // the fifth row of a class is the first that is held out
		return 1, 0.1, nil
	}
	r.Index = fit
	best := math.Inf(-1)
	for _, n := range []int{1, 2, 3, 5} {
		m, err := findModes(ctx, r, n)
		if err != nil {
			return 0, 0, err
		}
		likelihoods, err := m.likelihoods(ctx, r, held)
		if err != nil {
			return 0, 0, err
		}
		for i, l := range likelihoods {
			if l > best {
				best, k, shrinkage = l, n, shrinkages[i]
			}
		}
	}
	return k, shrinkage, nil
}

var shrinkages = []float64{0.01, 0.03, 0.1, 0.3, 1, 3}

// modes are up to k centroids for each class.
type modes struct {
	k       int
	centres [][]float64 // [C][up to k, D]
}

// mostClustered is how many rows of a class find its centroids.
const mostClustered = 4096

// findModes runs k-means on the rows of each class.
func findModes(ctx context.Context, r linalg.Rows, k int) (*modes, error) {
	of := make([][]int, r.Classes)
	for _, row := range r.Index {
		of[r.Label(row)] = append(of[r.Label(row)], row)
	}
	m := &modes{k: k, centres: make([][]float64, r.Classes)}
	err := parallel.Blocks(ctx, r.Classes, 1, func(c, _ int) {
		var x []float64
		step := (len(of[c])-1)/mostClustered + 1
		for i := 0; i < len(of[c]); i += max(step, 1) {
			x = append(x, make([]float64, r.D)...)
			r.Read(x[len(x)-r.D:], of[c][i])
		}
		if len(x) > 0 {
			m.centres[c] = kMeans(x, r.D, k)
		}
	})
	return m, err
}

// kMeans returns up to k centroids of the rows x [·, d], the best of three runs. A run
// places centroids as k-means++ does, with a fixed number for the random ones.
func kMeans(x []float64, d, k int) []float64 {
	var best []float64
	least := math.Inf(1)
	n := len(x) / d
	starts := []float64{0.25, 0.5, 0.75}
	if k == 1 { // the mean, from wherever it starts
		starts = starts[:1]
	}
	for _, u := range starts {
		at := int(u * float64(n))
		centres := slices.Clone(x[at*d : (at+1)*d])
		for len(centres) < k*d {
			_, squares := nearest(centres, x, d)
			left := u * sum(squares)
			if left == 0 {
				break
			}
			at := 0
			for left -= squares[0]; left > 0 && at < n-1; left -= squares[at] {
				at++
			}
			centres = append(centres, x[at*d:(at+1)*d]...)
		}
		var before []int
		for range 50 {
			of, squares := nearest(centres, x, d)
			if total := sum(squares); total < least {
				least, best = total, slices.Clone(centres)
			}
			if slices.Equal(of, before) {
				break
			}
			before = of
			counts, sums := make([]float64, len(centres)/d), make([]float64, len(centres))
			for i, c := range of {
				counts[c]++
				for j, v := range x[i*d : (i+1)*d] {
					sums[c*d+j] += v
				}
			}
			for i := range sums {
				if counts[i/d] > 0 { // else it stays where it is
					centres[i] = sums[i] / counts[i/d]
				}
			}
		}
	}
	return best
}

// nearest returns the nearest of the centres for each row of x [·, d], and its squared
// distance.
func nearest(centres, x []float64, d int) (of []int, squares []float64) {
	of, squares = make([]int, len(x)/d), make([]float64, len(x)/d)
	for i := range of {
		squares[i] = math.Inf(1)
		for c := range len(centres) / d {
			if square := squaredDistance(x[i*d:(i+1)*d], centres[c*d:(c+1)*d]); square < squares[i] {
				of[i], squares[i] = c, square
			}
		}
	}
	return of, squares
}

// within returns the means of the rows of each centroid, which is the nearest of their
// class, and the covariance about them.
func (m *modes) within(ctx context.Context, r linalg.Rows) (*linalg.Moments, *mat.SymDense, error) {
	group := make([]int32, slices.Max(r.Index)+1) // by row
	err := parallel.Blocks(ctx, len(r.Index), blockRows, func(from, to int) {
		x := make([]float64, r.D)
		for i := from; i < to; i++ {
			r.Read(x, r.Index[i])
			c := r.Label(r.Index[i])
			of, _ := nearest(m.centres[c], x, r.D)
			group[r.Index[i]] = int32(c*m.k + of[0])
		}
	})
	if err != nil {
		return nil, nil, err
	}
	r.Classes *= m.k
	r.Label = func(row int) int { return int(group[row]) }
	moments, err := linalg.Means(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	sigma, err := moments.Within(ctx, r)
	return moments, sigma, err
}

// likelihoods returns the mean logarithm of the held rows' densities, for each of the
// shrinkages, but for a constant.
func (m *modes) likelihoods(ctx context.Context, r linalg.Rows, held []int) ([]float64, error) {
	moments, sigma, err := m.within(ctx, r)
	if err != nil {
		return nil, err
	}
	scale := sigma.Trace() / float64(r.D)
	if !(scale > 0) {
		return nil, errors.New("the directions of the training features do not vary within the classes")
	}
	values, vectors, err := eigen(ctx, sigma)
	if err != nil {
		return nil, err
	}
	each := make([]float64, len(held)*len(shrinkages))
	var packed right
	err = parallel.Blocks(ctx, len(held), 16, func(from, to int) {
		x := make([]float64, r.D)
		var offsets, weights []float64 // of the modes of all these rows' classes
		var counts []int               // of these modes, by row
		for i := from; i < to; i++ {
			r.Read(x, held[i])
			c := r.Label(held[i])
			before := len(weights)
			for g := c * m.k; g < (c+1)*m.k; g++ {
				if n := float64(moments.Counts[g]); n > 0 {
					weights = append(weights, n)
					for j, v := range moments.Means[g] {
						offsets = append(offsets, x[j]-v)
					}
				}
			}
			counts = append(counts, len(weights)-before)
		}
		z := make([]float64, len(offsets))
		packed.times(r.D, r.D, offsets, vectors.RawMatrix().Data, z)
		for i, count := range counts {
			whole, logs := sum(weights[:count]), make([]float64, count)
			for s, shrinkage := range shrinkages {
				for g, n := range weights[:count] {
					logs[g] = math.Log(n / whole)
					for j, v := range z[g*r.D : (g+1)*r.D] {
						logs[g] -= v * v / (2 * (max(values[j], 0) + shrinkage*scale))
					}
				}
				each[s*len(held)+from+i] = energy(logs, 1)
			}
			weights, z = weights[count:], z[count*r.D:]
		}
	})
	if err != nil {
		return nil, err
	}
	likelihoods := make([]float64, len(shrinkages))
	for s, shrinkage := range shrinkages {
		likelihoods[s] = sum(each[s*len(held):(s+1)*len(held)]) / float64(len(held))
		for _, v := range values {
			likelihoods[s] -= math.Log(max(v, 0)+shrinkage*scale) / 2
		}
	}
	return likelihoods, nil
}
