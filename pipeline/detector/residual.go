package detector

import (
	"fmt"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file writes what a residual network has beside the paper's layers.

// density holds the inputs of a residual network's first layer and of its score, both [batch, 1].
type density struct {
	nearness onnx.Value // −m
	logDep   onnx.Value // log dep₀
}

// addDensity adds, for the conditioned rows z,
//
//	−m = max_k −‖z−μ_k‖²,  log dep₀ = min(t, 0) − log(1 + e^−|t|),  t = 4·(r − m)/reach
func addDensity(m *onnx.Model, d *head.Density, z onnx.Value) density {
	distances := addSquaredDistances(m, kernels.Converted[float64](d.Means), d.D, z)
	nearness := m.Reduce("ReduceMax", m.Op("Mul", distances, m.Number(-1)), true, 1)
	t := m.Op("Mul", m.Op("Add", nearness, m.Number(d.Radius)), m.Number(4/d.Reach()))
	small := m.Op("Exp", m.Op("Mul", m.Op("Abs", t), m.Number(-1)))
	logDep := m.Op("Sub", m.Op("Min", t, m.Number(0)), m.Op("Log", m.Op("Add", small, m.Number(1))))
	return density{nearness, logDep}
}

// addResidual adds one residual network for the conditioned rows z and log dep₀, and
// returns its log φ and log softmax(l), both [batch, C].
func addResidual(m *onnx.Model, n *head.ResidualNetwork, z, logDep onnx.Value) (logConfidences, logShares onnx.Value) {
	s, last := n.Settings(), len(n.Layers)-1
	u := m.First(z, n.Layers[0].In)
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

// addDecision adds G of a residual network's score [batch, 1].
func addDecision(m *onnx.Model, logShares onnx.Value, classes int) onnx.Value {
	decision, err := onnx.AddScore(m, posthoc.GEN{Gamma: head.DecisionPower, M: head.DecisionClasses}, onnx.ScoreRows{Logits: logShares, Classes: classes})
	if err != nil {
		panic(fmt.Sprintf("export: the decision's entropy: %v", err))
	}
	return decision
}
