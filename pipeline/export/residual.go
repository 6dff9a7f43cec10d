package export

import (
	"mlrbfn/head"
	"mlrbfn/head/residual"
	"mlrbfn/internal/onnx"
)

// This file writes what a residual network has beside the paper's layers.

// density is what a residual network's layers and score begin with, both [batch, 1].
type density struct {
	nearness onnx.Value // −m
	logDep   onnx.Value // log dep₀
}

// addDensity adds, for the conditioned rows z,
//
//	−m = max_k −‖z−μ_k‖²,  log dep₀ = min(t, 0) − log(1 + e^−|t|),  t = 4·(r − m)/reach
func addDensity(m *onnx.Model, d *residual.Density, z onnx.Value) density {
	number := func(v float64) onnx.Value { return m.Doubles([]float64{v}) }
	distances := addSquaredDistances(m, doubles(d.Means), d.D, z)
	nearness := m.Reduce("ReduceMax", m.Op("Mul", distances, number(-1)), true, 1)
	t := m.Op("Mul", m.Op("Add", nearness, number(d.Radius)), number(4/d.Reach()))
	small := m.Op("Exp", m.Op("Mul", m.Op("Abs", t), number(-1)))
	logDep := m.Op("Sub", m.Op("Min", t, number(0)), m.Op("Log", m.Op("Add", small, number(1))))
	return density{nearness, logDep}
}

// addResidual adds one residual network for the conditioned rows z and log dep₀, and
// returns its log φ and log softmax(l), both [batch, C].
func addResidual(m *onnx.Model, n *residual.Network, z, logDep onnx.Value) (logConfidences, logShares onnx.Value) {
	s, last := n.Settings(), len(n.Layers)-1
	u := addFirst(m, z, n.Layers[0].In)
	for i := range last {
		var change onnx.Value
		change, logDep = addHidden(m, s, &n.Layers[i], u, logDep)
		u = m.Op("Add", u, change)
	}
	if last > 0 {
		logDep = addCap(m, s, logDep)
	}
	logShares = m.Op("LogSoftmax", addLayer(m, s, &n.Layers[last], u, ""))
	return m.Op("Add", logShares, logDep), logShares
}

// addFirst adds the first n columns of x.
func addFirst(m *onnx.Model, x onnx.Value, n int) onnx.Value {
	columns := make([]int64, n)
	for i := range columns {
		columns[i] = int64(i)
	}
	return m.Node("Gather", []onnx.Value{x, m.Int64s(columns...)}, onnx.Int("axis", 1))
}

// addScore adds a residual network's score [batch, 1].
func addScore(m *onnx.Model, s *residual.Score, nearness, logShares onnx.Value, classes int) onnx.Value {
	standard := func(v onnx.Value, by head.Scale) onnx.Value {
		return m.Op("Div", m.Op("Sub", v, m.Doubles([]float64{by.Mean})), m.Doubles([]float64{by.Deviation}))
	}
	return m.Op("Add", standard(nearness, s.Nearness), standard(addDecision(m, logShares, classes), s.Decision))
}

// addDecision adds G = −Σ_c p_c^γ (1−p_c)^γ [batch, 1] over the largest p. The
// 1−p of the largest is the sum of all others, as [residual.Score] has it.
func addDecision(m *onnx.Model, logShares onnx.Value, classes int) onnx.Value {
	largest, others := make([]float64, classes), make([]float64, classes)
	for c := range classes {
		others[c] = 1
	}
	largest[0], others[0] = 1, 0
	p := m.Op("Exp", m.TopK(logShares, classes))
	rest := m.Reduce("ReduceSum", m.Op("Mul", p, m.Doubles(others, classes)), true, 1)
	rest = m.Op("Add", m.Op("Mul", rest, m.Doubles(largest, classes)),
		m.Op("Mul", m.Op("Sub", m.Doubles([]float64{1}), p), m.Doubles(others, classes)))
	products := m.Op("Mul", p, rest)
	if classes > residual.DecisionClasses {
		products = addFirst(m, products, residual.DecisionClasses)
	}
	powers := m.Op("Pow", products, m.Doubles([]float64{residual.DecisionPower}))
	return m.Op("Mul", m.Reduce("ReduceSum", powers, true, 1), m.Doubles([]float64{-1}))
}
