package detector

import "math"

// Platt turns the largest confidence φ of a detector's heads into the chance that
// its class is right, σ(Slope·logit(φ) + Offset). Far from all training images φ is
// 0, and so is the chance. A φ above MostLogPhi counts as that, since Platt is fitted
// on no higher one. Its JSON names are those of detector files.
type Platt struct {
	Slope  float64 `json:"slope"` // > 0, so that the order of images stays
	Offset float64 `json:"offset"`
}

// chance returns the chance for log φ.
func (p Platt) chance(logPhi float64) float64 {
	return 1 / (1 + math.Exp(-p.Slope*logit(logPhi)-p.Offset))
}

// logit returns log φ − log(1 − φ) for log φ, at most mostLogit.
func logit(logPhi float64) float64 {
	logPhi = min(logPhi, MostLogPhi)
	return logPhi - math.Log(-math.Expm1(logPhi))
}

// usual is the prior that validation images pull Platt away from, with the weight of
// usualWeight: φ itself, for want of images.
var usual = Platt{Slope: 1}

const (
	usualWeight = 1
	mostLogit   = 20 // of an image that Platt is fitted on, so that none outweighs all others

	// MostLogPhi is the log φ whose logit is mostLogit, −log(1 + e^−20).
	MostLogPhi = -2.061153620314381e-09
	leastSlope = 0.01
)

// FitPlatt fits the chance on images that nothing else was fitted on: log φ of each,
// and whether its class is right. It is nil if φ says nothing about that.
func FitPlatt(logPhi []float64, right []bool) *Platt {
	p := usual
	// Newton's method for the logarithm of the likelihood with a normal prior.
	for range 100 {
		gs, gb := usualWeight*(p.Slope-usual.Slope), usualWeight*(p.Offset-usual.Offset)
		ss, sb, bb := float64(usualWeight), 0.0, float64(usualWeight)
		for i, l := range logPhi {
			z := max(logit(l), -mostLogit)
			c := 1 / (1 + math.Exp(-p.Slope*z-p.Offset))
			w, e := c*(1-c), c
			if right[i] {
				e--
			}
			gs, gb = gs+e*z, gb+e
			ss, sb, bb = ss+w*z*z, sb+w*z, bb+w
		}
		determinant := ss*bb - sb*sb
		ds, db := (bb*gs-sb*gb)/determinant, (ss*gb-sb*gs)/determinant
		step := 1 / max(1, math.Abs(ds), math.Abs(db))
		p.Slope, p.Offset = p.Slope-step*ds, p.Offset-step*db
		if math.Abs(ds)+math.Abs(db) < 1e-9 {
			break
		}
	}
	if !(p.Slope >= leastSlope) || math.IsInf(p.Slope, 0) || math.IsNaN(p.Offset) || math.IsInf(p.Offset, 0) {
		return nil
	}
	return &p
}
