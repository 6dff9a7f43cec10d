package detector

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// addConfidence adds the confidence [batch] of a verdict for log φ [batch, C]: the
// largest φ, or the chance that the detector makes of it.
func addConfidence(m *onnx.Model, p *Platt, logConfidences onnx.Value) onnx.Value {
	largest := m.Reduce("ReduceMax", logConfidences, false, 1)
	if p == nil {
		return m.Op("Exp", largest)
	}
	one := m.Number(1)
	logPhi := m.Op("Min", largest, m.Number(MostLogPhi))
	rest := m.Op("Log", m.Op("Sub", one, m.Op("Exp", logPhi)))
	exponent := m.Op("Sum", m.Op("Mul", logPhi, m.Number(-p.Slope)), m.Op("Mul", rest, m.Number(p.high())), m.Number(-p.Offset))
	return m.Op("Div", one, m.Op("Add", one, m.Op("Exp", exponent)))
}

// addThreshold adds the threshold of a class [batch].
func addThreshold(m *onnx.Model, d *Detector, class onnx.Value) onnx.Value {
	thresholds := make([]float64, len(d.Classes))
	for c := range thresholds {
		thresholds[c] = below(d.ScoresOf(c), d.ThresholdOf(c))
	}
	return m.Op("Gather", m.Vector(thresholds), class)
}

// addPValueByClass adds (1 + #{scores of the class ≤ score}) / (n + 1) [batch] for a
// detector whose classes have calibration scores of their own. Classes may share
// them.
func addPValueByClass(m *onnx.Model, d *Detector, score, class onnx.Value) onnx.Value {
	var lists [][]float64
	// Kernels differ in what they make of no elements at all, so there is one
	// that no score reaches.
	among, list := []float64{math.Inf(1)}, []int64{-1} // the scores, and which list each is of
	of, sizes := make([]int64, len(d.Classes)), make([]float64, len(d.Classes))
	for c := range d.Classes {
		scores := d.ScoresOf(c)
		sizes[c] = float64(len(scores) + 1)
		at := 0
		for at < len(lists) && !sameSlice(lists[at], scores) {
			at++
		}
		of[c] = int64(at)
		if at == len(lists) {
			lists = append(lists, scores)
			for _, s := range scores {
				among, list = append(among, below(scores, s)), append(list, int64(at))
			}
		}
	}
	own := m.Op("Reshape", m.Op("Gather", m.Int64s(of...), class), m.Int64s(0, 1))
	column := m.Op("Reshape", score, m.Int64s(0, 1))
	counted := m.Op("And", m.AtLeast(column, m.Vector(among)), m.Op("Equal", own, m.Int64s(list...)))
	count := m.Op("Add", m.Reduce("ReduceSum", m.Cast(counted, onnx.Double), false, 1), m.Number(1))
	return m.Op("Div", count, m.Op("Gather", m.Vector(sizes), class))
}

// sameSlice tells whether two lists are the same memory.
func sameSlice(a, b []float64) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
