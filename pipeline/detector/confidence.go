package detector

import "math"

// Platt turns the largest confidence φ of a detector's heads into the chance that
// its class is right, σ(Slope·log φ − High·log(1 − φ) + Offset): beta calibration (Kull,
// Silva Filho and Flach 2017), and with High = Slope Platt's σ(Slope·logit(φ) + Offset).
// Far from all training images φ is 0, and so is the chance. A φ above MostLogPhi counts as
// that, since Platt is fitted on no higher one. Its JSON names are those of detector files.
type Platt struct {
	Slope  float64 `json:"slope"` // > 0, so that the order of images stays
	Offset float64 `json:"offset"`
	High   float64 `json:"slope_high,omitempty"` // > 0 likewise; 0 means Slope
}

// chance returns the chance for log φ.
func (p Platt) chance(logPhi float64) float64 {
	low, high := logs(logPhi)
	return 1 / (1 + math.Exp(-p.Slope*low-p.high()*high-p.Offset))
}

func (p Platt) high() float64 {
	if p.High == 0 {
		return p.Slope
	}
	return p.High
}

// valid reports whether the map is one, which keeps the order of images.
func (p Platt) valid() bool {
	slope := func(v float64) bool { return v > 0 && v <= math.MaxFloat64 }
	return slope(p.Slope) && slope(p.high()) && math.Abs(p.Offset) <= math.MaxFloat64
}

// logs returns log φ and −log(1 − φ), whose sum is the logit, at most mostLogit.
func logs(logPhi float64) (low, high float64) {
	logPhi = min(logPhi, MostLogPhi)
	return logPhi, -math.Log(-math.Expm1(logPhi))
}

const (
	// usualWeight is the weight of the prior that validation images pull the map away
	// from: φ itself, for want of images. Of 1, 2, 3, 4, 5 and 10 the likelihood of fresh images
	// is largest with 3, on the tasks of either backbone of docs/promise.md.
	usualWeight = 3
	mostLogit   = 20 // of an image that Platt is fitted on, so that none outweighs all others

	// MostLogPhi is the log φ whose logit is mostLogit, −log(1 + e^−20).
	MostLogPhi = -2.061153620314381e-09
	leastSlope = 0.01
)

// FitPlatt fits the chance on images that nothing else was fitted on: log φ of each,
// and whether its class is right. Where the two slopes of beta calibration do not keep the
// order of images, there is one. It is nil if φ says nothing about being right.
func FitPlatt(logPhi []float64, right []bool) *Platt {
	rows := make([][3]float64, len(logPhi))
	for i, l := range logPhi {
		low, high := logs(max(l, -mostLogit))
		rows[i] = [3]float64{low, high, 1}
	}
	t := logistic(rows, right, [3]float64{1, 1, 0})
	if t[0] >= leastSlope && t[1] >= leastSlope {
		if p := (Platt{Slope: t[0], High: t[1], Offset: t[2]}); p.valid() {
			return &p
		}
	}
	for i, r := range rows {
		rows[i] = [3]float64{max(r[0]+r[1], -mostLogit), 0, 1}
	}
	t = logistic(rows, right, [3]float64{1, 0, 0})
	if p := (Platt{Slope: t[0], Offset: t[2]}); t[0] >= leastSlope && p.valid() {
		return &p
	}
	return nil
}

// logistic maximises the likelihood of a logistic regression with a normal prior around
// usual, by Newton's method.
func logistic(rows [][3]float64, right []bool, usual [3]float64) [3]float64 {
	t := usual
	for range 100 {
		var g [3]float64
		var h [3][3]float64
		for j := range t {
			g[j], h[j][j] = usualWeight*(t[j]-usual[j]), usualWeight
		}
		for i, r := range rows {
			c := 1 / (1 + math.Exp(-t[0]*r[0]-t[1]*r[1]-t[2]*r[2]))
			w, e := c*(1-c), c
			if right[i] {
				e--
			}
			for j, v := range r {
				g[j] += e * v
				for k, u := range r {
					h[j][k] += w * v * u
				}
			}
		}
		d := solve(h, g)
		sum := math.Abs(d[0]) + math.Abs(d[1]) + math.Abs(d[2])
		step := 1 / max(1, sum)
		for j := range t {
			t[j] -= step * d[j]
		}
		if sum < 1e-9 {
			break
		}
	}
	return t
}

// solve solves h·x = g for a positive definite h, by elimination.
func solve(h [3][3]float64, g [3]float64) (x [3]float64) {
	for k := range g {
		for i := k + 1; i < len(g); i++ {
			f := h[i][k] / h[k][k]
			for j := k; j < len(g); j++ {
				h[i][j] -= f * h[k][j]
			}
			g[i] -= f * g[k]
		}
	}
	for k := len(g) - 1; k >= 0; k-- {
		x[k] = g[k]
		for j := k + 1; j < len(g); j++ {
			x[k] -= h[k][j] * x[j]
		}
		x[k] /= h[k][k]
	}
	return x
}
