package main

import (
	"math"
	"math/rand/v2"
)

// shift is the distance in both coordinates between the first two moons and their
// copies, the third and the fourth (paper, appendix B).
const shift = 2

// classes is the number of moons.
const classes = 4

// point is a point of the plane.
type point struct{ x, y float64 }

// arc returns the point of a class's moon at the angle t in [0, π], as in
// scikit-learn's make_moons: the outer half circle (cos t, sin t), the inner one
// (1 − cos t, 1 − sin t − 0.5), and both shifted by (shift, shift).
func arc(class int, t float64) point {
	p := point{math.Cos(t), math.Sin(t)}
	if class%2 == 1 {
		p = point{1 - math.Cos(t), 1 - math.Sin(t) - 0.5}
	}
	if class >= 2 {
		p.x, p.y = p.x+shift, p.y+shift
	}
	return p
}

// makeMoons returns n points, n/4 of each class, evenly along its moon with
// Gaussian noise of the given standard deviation in both coordinates.
func makeMoons(n int, noise float64, rng *rand.Rand) (points []point, labels []int64) {
	each := n / classes
	for class := range classes {
		for i := range each {
			p := arc(class, math.Pi*float64(i)/float64(each-1))
			points = append(points, point{p.x + noise*rng.NormFloat64(), p.y + noise*rng.NormFloat64()})
			labels = append(labels, int64(class))
		}
	}
	return points, labels
}

// density returns the probability density at p of a class's points: that of the
// noise, averaged along its moon.
func density(class int, noise float64, p point) float64 {
	steps := int(math.Ceil(2 * math.Pi / noise)) // half a deviation apart
	var sum float64
	for i := range steps {
		a := arc(class, math.Pi*(float64(i)+0.5)/float64(steps))
		sum += math.Exp(-((p.x-a.x)*(p.x-a.x) + (p.y-a.y)*(p.y-a.y)) / (2 * noise * noise))
	}
	return sum / float64(steps) / (2 * math.Pi * noise * noise)
}

// bayes returns the class that is most likely at p, and its density.
func bayes(noise float64, p point) (class int, top float64) {
	for c := range classes {
		if d := density(c, noise, p); d > top {
			class, top = c, d
		}
	}
	return class, top
}

// bayesLimit returns the best possible accuracy, ∫ max_c p(c) p(x|c) dx, by the
// midpoint rule on a grid that is finer than the noise and extends far beyond it.
func bayesLimit(noise float64) float64 {
	step, margin := noise/3, 5*noise
	var sum float64
	for x := -1 - margin; x < 2+shift+margin; x += step {
		for y := -0.5 - margin; y < 1+shift+margin; y += step {
			_, top := bayes(noise, point{x + step/2, y + step/2})
			sum += top / classes
		}
	}
	return sum * step * step
}
