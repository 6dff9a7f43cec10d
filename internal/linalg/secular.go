package linalg

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// secular finds the eigenvalues of diag(poles) + rho·z·zᵀ, rho > 0, for ascending
// poles and a z without zeros. It puts the eigenvector of value j into row j of rows, ld
// apart, whose element i is that of pole place[i].
//
// Eigenvectors come from the z for which the computed values are exact (Gu and
// Eisenstat 1994), so that they are orthogonal however near values are to each other.
func secular(rho float64, poles, z, values, rows []float64, ld int, place []int) {
	k := len(poles)
	row := func(j int) []float64 { return rows[j*ld : j*ld+k] }
	squares := make([]float64, k)
	for i, v := range z {
		squares[i] = v * v
	}
	const block = kernels.SecularWidth
	workers, blocks := workersOf(k), (k+block-1)/block
	parallel.Each(workers, blocks, func(at int) {
		for j := at * block; j < min(at*block+block, k); j++ {
			values[j] = root(j, rho, poles, squares, row(j))
		}
	})
	// Row j has pole_i − value_j. z_i² is −Π_j (pole_i − value_j) / Π_{j≠i} (pole_i − pole_j).
	exact := make([]float64, k)
	parallel.Each(workers, blocks, func(at int) {
		from, to := at*block, min(at*block+block, k)
		products := exact[from:to]
		for i := range products {
			products[i] = 1
		}
		few := func(first, past int) {
			for j := first; j < past; j++ {
				for i, difference := range row(j)[from:to] {
					if from+i != j {
						difference /= poles[from+i] - poles[j]
					}
					products[i] *= difference
				}
			}
		}
		if to-from < block {
			few(0, k)
		} else {
			kernels.Quotients(products, rows[from:], ld, poles[from:], poles[:from])
			few(from, to)
			if to < k {
				kernels.Quotients(products, rows[to*ld+from:], ld, poles[from:], poles[to:])
			}
		}
		for i, product := range products {
			products[i] = math.Copysign(math.Sqrt(-product), z[from+i])
		}
	})
	parallel.Each(workers, blocks, func(at int) {
		vector := make([]float64, k)
		for j := at * block; j < min(at*block+block, k); j++ {
			x := row(j)
			var sum float64
			for i, difference := range x {
				vector[i] = exact[i] / difference
				sum += vector[i] * vector[i]
			}
			scale := 1 / math.Sqrt(sum)
			for to, i := range place {
				x[to] = vector[i] * scale
			}
		}
	})
}

// root returns value j, the only one between pole j and the next, and puts
// pole_i − value into differences. It solves f(x) = 1/rho + Σ squares_i/(pole_i − x) = 0,
// with x relative to the nearer pole, by steps to the root of a function with two
// poles that agrees with f and its derivative (the middle way; Li 1993).
func root(j int, rho float64, poles, squares, differences []float64) (value float64) {
	k := len(poles)
	if k == 1 {
		x := rho * squares[0]
		differences[0] = -x
		return poles[0] + x
	}
	last := j == k-1
	p := min(j, k-2) // the poles of the function are p and p+1
	origin := poles[j]
	subtract(differences, poles, origin)
	// f at x: its terms up to pole p and their derivative, those of the other poles,
	// and how large an error of f can be, in units of the rounding.
	terms := func(x float64) (below, slopeBelow, above, slopeAbove, size float64) {
		var sizeAbove float64
		below, slopeBelow, size = kernels.SecularTerms(differences[:p+1], squares[:p+1], false, x)
		above, slopeAbove, sizeAbove = kernels.SecularTerms(differences[p+1:], squares[p+1:], true, x)
		return below, slopeBelow, above, slopeAbove, size + sizeAbove
	}

	var x, low, high float64
	gap := poles[p+1] - poles[p]
	if last {
		var sum float64
		for _, v := range squares {
			sum += v
		}
		high = rho * sum
		x = high / 2
	} else {
		x = gap / 2
	}
	below, _, above, _, _ := terms(x)
	f := 1/rho + below + above
	// c is what other poles add there; with the two, it gives the first x.
	c := f - squares[p]/(differences[p]-x) - squares[p+1]/(differences[p+1]-x)
	s0, s1 := squares[p], squares[p+1]
	switch {
	case last:
		a, b := -c*gap+s0+s1, s1*gap
		first := high
		if root := math.Sqrt(a*a + 4*b*c); a < 0 {
			first = 2 * b / (root - a)
		} else {
			first = (a + root) / (2 * c)
		}
		if f <= 0 {
			low = x
		} else {
			high = x
		}
		x = first
	case f > 0:
		high = x
		a, b := c*gap+s0+s1, s0*gap
		if root := math.Sqrt(math.Abs(a*a - 4*b*c)); a > 0 {
			x = 2 * b / (a + root)
		} else {
			x = (a - root) / (2 * c)
		}
	default:
		low, high = -x, 0
		origin = poles[j+1]
		subtract(differences, poles, origin)
		a, b := c*gap-s0-s1, s1*gap
		if root := math.Sqrt(math.Abs(a*a + 4*b*c)); a < 0 {
			x = 2 * b / (a - root)
		} else {
			x = -(a + root) / (2 * c)
		}
	}
	x = refine(x, low, high, rho, p, last, differences, terms)
	for i, v := range differences {
		differences[i] = v - x
	}
	return origin + x
}

// subtract puts poles − origin into differences.
func subtract(differences, poles []float64, origin float64) {
	for i, v := range poles {
		differences[i] = v - origin
	}
}

// refine takes steps from x, which is between low and high, to the root.
func refine(x, low, high, rho float64, p int, last bool, differences []float64, terms func(float64) (below, slopeBelow, above, slopeAbove, size float64)) float64 {
	for range 200 {
		if !(low < x && x < high) {
			x = low + (high-low)/2
		}
		below, slopeBelow, above, slopeAbove, size := terms(x)
		f, slope := 1/rho+below+above, slopeBelow+slopeAbove
		size += 8*(math.Abs(above)-below) + 3/rho + math.Abs(x)*slope
		if math.Abs(f) <= 0x1p-53*size {
			break
		}
		if f > 0 {
			high = x
		} else {
			low = x
		}
		d0, d1 := differences[p]-x, differences[p+1]-x
		a, b, c := (d0+d1)*f-d0*d1*slope, d0*d1*f, f-d0*slopeBelow-d1*slopeAbove
		root := math.Sqrt(math.Abs(a*a - 4*b*c))
		var step float64
		switch {
		case last && a >= 0:
			step = (a + root) / (2 * math.Abs(c))
		case last:
			step = 2 * b / (a - root)
		case a > 0:
			step = 2 * b / (a + root)
		default:
			step = (a - root) / (2 * c)
		}
		if !(f*step < 0) {
			step = -f / slope
		}
		if x+step == x {
			break
		}
		x += step
	}
	return x
}
