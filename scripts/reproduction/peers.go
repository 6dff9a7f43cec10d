package main

import (
	"cmp"
	"context"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// What others do with a folder, by the papers and with the defaults of the code that came
// with them, and what could be known of it at most.

// rtl is the score regressed on the features of the folder by least squares: Fan et al.,
// Test-Time Linear Out-of-Distribution Detection (CVPR 2024). With no more rows than
// features nothing is left of the regression but the score.
func rtl(rows [][]float32, scores []float64) []float64 {
	if len(rows) <= len(rows[0])+1 {
		return scores
	}
	return predict(rows, regress(rows, scores, 1e-6))
}

// told is how much a row is like the known ones, by a linear regression of what is new in
// the other four fifths of the folder, which tells what no method may know.
func told(training, folder [][]float32, known int) []float64 {
	const folds = 5
	values := make([]float64, len(folder))
	for k := range folds {
		x := slices.Clone(training)
		y := make([]float64, len(training), len(training)+len(folder))
		for i, row := range folder {
			if i%folds != k {
				x, y = append(x, row), append(y, 0)
				if i >= known {
					y[len(y)-1] = 1
				}
			}
		}
		f := regress(x, y, 1e3)
		for i, row := range folder {
			if i%folds == k {
				values[i] = -predict([][]float32{row}, f)[0]
			}
		}
	}
	return values
}

// regress returns an offset and weights by least squares with an L2 penalty on
// standardised features.
func regress(rows [][]float32, y []float64, penalty float64) []float64 {
	n, d := len(rows), len(rows[0])
	x := mat.NewDense(n, d, nil)
	target := mat.NewDense(n, 1, nil)
	var mean float64
	for _, v := range y {
		mean += v / float64(n)
	}
	for i, row := range rows {
		for j, v := range row {
			x.Set(i, j, float64(v))
		}
		target.Set(i, 0, y[i]-mean)
	}
	f := make([]float64, d+1)
	f[d] = mean
	centres, scales := make([]float64, d), make([]float64, d)
	for j := range d {
		column := mat.Col(nil, j, x)
		for _, v := range column {
			centres[j] += v / float64(n)
		}
		for _, v := range column {
			scales[j] += (v - centres[j]) * (v - centres[j]) / float64(n)
		}
		if scales[j] = math.Sqrt(scales[j]); scales[j] == 0 {
			scales[j] = 1
		}
		for i, v := range column {
			x.Set(i, j, (v-centres[j])/scales[j])
		}
	}
	var scatter mat.SymDense
	scatter.SymOuterK(1, x.T())
	for j := range d {
		scatter.SetSym(j, j, scatter.At(j, j)+penalty)
	}
	var right, w mat.Dense
	right.Mul(x.T(), target)
	var cholesky mat.Cholesky
	if !cholesky.Factorize(&scatter) || cholesky.SolveTo(&w, &right) != nil {
		return f
	}
	for j := range d {
		f[j] = w.At(j, 0) / scales[j]
		f[d] -= f[j] * centres[j]
	}
	return f
}

func predict(rows [][]float32, f []float64) []float64 {
	values := make([]float64, len(rows))
	for i, row := range rows {
		values[i] = f[len(row)]
		for j, v := range row {
			values[i] += f[j] * float64(v)
		}
	}
	return values
}

// queue is OODD (Yang et al., Out-of-Distribution Detection with Dynamic Dictionary, CVPR
// 2025) without outliers of its own making: the cosine to the 10th nearest of those training
// rows that are surest of each class, half of all, less the cosine to the 5th nearest of a
// queue of the 512 strangest rows so far. Rows come in random order, in batches of 512.
func queue(d *pipeline.Detector, training, folder [][]float32, order []int) []float64 {
	const nearKnown, nearStrange, length, batch = 10, 5, 512, 512
	type row struct {
		x      []float32
		class  string
		sure   float64
		before int // of its class
	}
	var rows []row
	verdicts, _ := d.Verdicts(context.Background(), slices.Concat(training...)) // fails only when cancelled
	for i, v := range verdicts {
		rows = append(rows, row{x: training[i], class: v.Class, sure: v.Confidence})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(b.sure, a.sure) })
	seen := map[string]int{}
	for i, r := range rows {
		rows[i].before = seen[r.class]
		seen[r.class]++
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.before, b.before) })
	var dictionary [][]float64
	for _, r := range rows[:len(rows)/2] {
		dictionary = append(dictionary, unit(r.x))
	}
	type strange struct {
		score float64
		x     []float64
	}
	var strangest []strange
	scores := make([]float64, len(folder))
	for part := range slices.Chunk(order, batch) {
		for _, i := range part {
			x := unit(folder[i])
			scores[i] = nearest(dictionary, x, nearKnown)
			strangest = append(strangest, strange{scores[i], x})
		}
		slices.SortStableFunc(strangest, func(a, b strange) int { return cmp.Compare(a.score, b.score) })
		strangest = strangest[:min(length, len(strangest))]
		var queued [][]float64
		for _, s := range strangest {
			queued = append(queued, s.x)
		}
		for _, i := range part {
			scores[i] -= nearest(queued, unit(folder[i]), nearStrange)
		}
	}
	return scores
}

func unit(x []float32) []float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	u := make([]float64, len(x))
	for i, v := range x {
		u[i] = float64(v) / math.Sqrt(sum)
	}
	return u
}

// nearest returns the k-th largest cosine.
func nearest(rows [][]float64, x []float64, k int) float64 {
	cosines := make([]float64, len(rows))
	for i, row := range rows {
		cosines[i] = kernels.Dot(row, x)
	}
	slices.Sort(cosines)
	return cosines[max(0, len(cosines)-k)]
}
