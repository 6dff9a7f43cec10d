package head

import "math"

// plateau halves the learning rate when the loss has not improved by a relative
// 1e-4 for more than patience epochs, as torch's ReduceLROnPlateau with mode min
// and factor 0.5. NaN is not an improvement.
type plateau struct {
	lr       float64
	patience int
	best     float64 // lowest loss so far; +Inf before the first
	bad      int     // epochs since then
}

func newPlateau(lr float64, patience int) *plateau {
	return &plateau{lr: lr, patience: patience, best: math.Inf(1)}
}

func (p *plateau) step(loss float64) {
	const factor, threshold, smallest = 0.5, 1e-4, 1e-8
	if loss < p.best*(1-threshold) {
		p.best, p.bad = loss, 0
	} else {
		p.bad++
	}
	if p.bad > p.patience {
		p.bad = 0
		if p.lr-p.lr*factor > smallest {
			p.lr *= factor
		}
	}
}
