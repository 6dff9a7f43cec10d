package detector

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file writes a detector as ONNX nodes. They compute in float64, as the
// detector does: onnxruntime then answers what detect answers.

// verdictOutputs are the outputs of the graph and what they mean.
var verdictOutputs = map[string]string{
	"log_confidences": "float64 [batch, C]: natural logarithm of confidences",
	"confidences":     "float64 [batch, C]: for each class how confident it is, in [0, 1], that the image is of it; they need not add up to 1",
	"class":           "int64 [batch]: index in classes of the most confident one",
	"confidence":      "float64 [batch]: the chance that class is right, made of the largest of confidences",
	"score":           "float64 [batch]: higher is more in-distribution",
	"ood":             "bool [batch]: score is below threshold, the image is of none of the classes",
	"p_value":         "float64 [batch]: the chance that an image like the training images scores this low",
}

// addDetector adds all of a detector, from features [batch, D] of any float
// type to the outputs; batch is the number of rows, or onnx.Batch.
func addDetector(m *onnx.Model, d *Detector, features onnx.Value, batch int) error {
	logConfidences, score, err := addJudging(m, d, features)
	if err == nil {
		addVerdict(m, d, logConfidences, score, batch)
	}
	return err
}

// addJudging adds what a verdict is made of: log φ [batch, C] and the score [batch, 1].
func addJudging(m *onnx.Model, d *Detector, features onnx.Value) (logConfidences, score onnx.Value, err error) {
	all := m.Cast(features, onnx.Double)
	some := func(from, to int) onnx.Value {
		if to-from == d.Dim() {
			return all
		}
		var at []int64
		for i := from; i < to; i++ {
			at = append(at, int64(i))
		}
		return m.Node("Gather", []onnx.Value{all, m.Int64s(at...)}, onnx.Int("axis", 1))
	}
	end := d.Heads[0].Dim()
	x, layers := some(0, end), map[string]onnx.Value{}
	for _, l := range d.Source.Layers {
		layers[l.Name] = some(end, end+l.D)
		end += l.D
	}
	own := addHeads(m, d.Heads, x)
	score = own.score
	if d.Scoring != nil {
		if score, err = addScoring(m, d.Scoring, x, layers, own); err != nil {
			return "", "", options.Errorf("Detector", "it cannot be exported: %w", err)
		}
	}
	return own.logConfidences, score, nil
}

// addScoring adds what a detector judges the rows x, with their layers, by, of which the heads
// say own.
func addScoring(m *onnx.Model, s *Scoring, x onnx.Value, layers map[string]onnx.Value, own outputs) (onnx.Value, error) {
	rows := onnx.ScoreRows{Features: x}
	if c := s.Classifier; c != nil {
		rows.Logits, rows.Classes = m.Op("Add", m.Times(x, c.Weights, c.In), m.Vector(c.Bias)), c.Out
	}
	var terms []onnx.Value
	for _, p := range s.Parts {
		score := own.part(p.Name)
		if p.Score != nil {
			reads, err := rows, error(nil)
			if p.Layer != "" {
				reads = onnx.ScoreRows{Features: layers[p.Layer]}
			}
			if score, err = onnx.AddScore(m, p.Score, reads); err != nil {
				return "", fmt.Errorf("score %s: %w", p.Name, err)
			}
		}
		if score == "" {
			return "", fmt.Errorf("score %s: only a residual head has it", p.Name)
		}
		terms = append(terms, addStandard(m, score, p.Scale))
	}
	if guard := s.Guard; guard != nil {
		if own.nearness == "" {
			return "", errors.New("a guard needs a residual head")
		}
		near := addStandard(m, own.nearness, head.Scale{Mean: guard.Low, Deviation: guard.Middle - guard.Low})
		terms = append(terms, m.Op("Mul", m.Op("Min", near, m.Number(0)), m.Number(guard.Weight)))
	}
	return m.Op("Sum", terms...), nil
}

// addStandard adds (v − mean) / deviation.
func addStandard(m *onnx.Model, v onnx.Value, by head.Scale) onnx.Value {
	return m.Op("Div", m.Op("Sub", v, m.Number(by.Mean)), m.Number(by.Deviation))
}

// addConditioning adds x ← x/‖x‖₂ if L2 is set, then x ← (x − mean)·W, for
// rows x.
func addConditioning(m *onnx.Model, x onnx.Value, c *head.Conditioning) onnx.Value {
	if c.L2 {
		// By the largest value first, so that no square overflows or vanishes.
		tiny := m.Number(math.SmallestNonzeroFloat32)
		x = m.Op("Div", x, m.Op("Max", m.Reduce("ReduceMax", m.Op("Abs", x), true, 1), tiny))
		length := m.Op("Sqrt", m.Reduce("ReduceSum", m.Op("Mul", x, x), true, 1))
		x = m.Op("Div", x, m.Op("Max", length, tiny))
	}
	x = m.Op("Sub", x, m.Doubles(kernels.Converted[float64](c.Mean), c.In()))
	if c.Scale != nil {
		return m.Op("Mul", x, m.Doubles(kernels.Converted[float64](c.Scale), c.In()))
	}
	return m.Op("MatMul", x, m.Doubles(kernels.Converted[float64](c.Matrix), c.In(), c.Out()))
}

// outputs are the outputs of a detector's heads, as means over the heads.
type outputs struct {
	logConfidences     onnx.Value // [batch, C], the logarithm of the mean confidence
	score              onnx.Value // [batch, 1]
	nearness, decision onnx.Value // [batch, 1], terms of a residual head's score; "" of other heads
}

// part returns the output of the heads that is a part of a detector's score.
func (o outputs) part(name string) onnx.Value {
	switch name {
	case DensityPart:
		return o.nearness
	case DecisionPart:
		return o.decision
	}
	return o.score
}

// addHeads adds the heads for the rows x.
func addHeads(m *onnx.Model, heads []*head.Head, x onnx.Value) outputs {
	if c := heads[0].Conditioning; c != nil { // one for all
		x = addConditioning(m, x, c)
	}
	var logs, scores, nearness, decisions []onnx.Value
	for _, h := range heads {
		switch n := h.Network.(type) {
		case *head.PaperNetwork:
			logs = append(logs, addPaper(m, n, x))
		case *head.ResidualNetwork:
			near := addDensity(m, n.Density, x) // heads that were trained on the same rows share it
			logConfidences, logShares := addResidual(m, n, x, near.logDep)
			logs = append(logs, logConfidences)
			if n.Score != nil {
				decision := addDecision(m, logShares, n.Classes())
				nearness, decisions = append(nearness, near.nearness), append(decisions, decision)
				scores = append(scores, m.Op("Add", addStandard(m, near.nearness, n.Score.Nearness), addStandard(m, decision, n.Score.Decision)))
			}
		default:
			panic(fmt.Sprintf("export: a network of type %T cannot be exported", n))
		}
	}
	all := outputs{logConfidences: addLogMean(m, logs)}
	if !heads[0].Network.HasScore() {
		all.score = m.Largest(all.logConfidences)
		return all
	}
	all.score, all.nearness, all.decision = addMean(m, scores), addMean(m, nearness), addMean(m, decisions)
	return all
}

// addLogMean adds the logarithm of the mean of what logs are the logarithms of.
func addLogMean(m *onnx.Model, logs []onnx.Value) onnx.Value {
	if len(logs) == 1 {
		return logs[0]
	}
	// The largest is taken out before the exponentials; it is finite where all
	// are −Inf.
	largest := m.Op("Max", append(logs, m.Number(-math.MaxFloat64))...)
	powers := lists.Map(logs, func(l onnx.Value) onnx.Value { return m.Op("Exp", m.Op("Sub", l, largest)) })
	return m.Op("Add", m.Op("Log", addMean(m, powers)), largest)
}

func addMean(m *onnx.Model, values []onnx.Value) onnx.Value {
	return m.Op("Div", m.Op("Sum", values...), m.Number(float64(len(values))))
}

// addPaper adds one of the paper's networks for the rows x and returns its
// log φ [batch, C].
func addPaper(m *onnx.Model, n *head.PaperNetwork, x onnx.Value) onnx.Value {
	s, last := n.Settings(), len(n.Layers)-1
	var logDep onnx.Value // none before the first layer, where it is 0
	for i := range last {
		x, logDep = addHidden(m, s, &n.Layers[i], x, logDep)
	}
	return addLayer(m, s, &n.Layers[last], x, logDep)
}

// addHidden adds a hidden layer for the rows x and log dep [batch, 1], and
// returns Σ_c a_c n_c [batch, o] and the log dep after it.
func addHidden(m *onnx.Model, s head.Settings, l *head.Layer, x, logDep onnx.Value) (out, after onnx.Value) {
	logN := addLayer(m, s, l, x, logDep)
	out = m.Op("Exp", logN)
	if !s.NoProjections {
		out = m.Op("MatMul", out, m.Doubles(kernels.Converted[float64](l.Projections), l.N, l.Out))
	}
	return out, m.Reduce("ReduceMax", logN, true, 1)
}

// addLayer adds
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c d_c + min(log dep + log rec, 0)
//
// [batch, N] for the rows x, without the ratio in the last layer or where the
// head has none, and without the ratio and the cap where there is no depression.
func addLayer(m *onnx.Model, s head.Settings, l *head.Layer, x, logDep onnx.Value) onnx.Value {
	widths, initial := l.Widths()
	logN := m.Op("Mul", addDistances(m, s.Norm, l, x), m.Doubles(scaled(-1, widths), l.N))
	if s.NoDepression {
		return logN
	}
	if l.Out > 0 && !s.NoRatio {
		ratio := make([]float64, l.N)
		for c, w := range widths {
			ratio[c] = math.Log(w) - math.Log(initial)
		}
		logN = m.Op("Add", logN, m.Doubles(ratio, l.N))
	}
	if logDep != "" {
		logN = m.Op("Add", logN, addCap(m, s, logDep))
	}
	return logN
}

// addCap adds min(log dep + log rec, 0).
func addCap(m *onnx.Model, s head.Settings, logDep onnx.Value) onnx.Value {
	recovered := m.Op("Add", logDep, m.Number(math.Log(s.Recovery)))
	return m.Op("Min", recovered, m.Number(0))
}

// addDistances adds ‖x−c‖_k^k [batch, N] of the rows x [batch, d] from the
// centroids, for k ≠ 2 from all differences [batch, N, d].
func addDistances(m *onnx.Model, k float64, l *head.Layer, x onnx.Value) onnx.Value {
	centroids := kernels.Converted[float64](l.Centroids)
	if k == 2 {
		return addSquaredDistances(m, centroids, l.In, x)
	}
	rows := m.Op("Reshape", x, m.Int64s(0, 1, int64(l.In))) // 0: as many as there are
	powers := m.Op("Abs", m.Op("Sub", rows, m.Doubles(centroids, l.N, l.In)))
	if k != 1 {
		powers = m.Op("Pow", powers, m.Number(k))
	}
	return m.Reduce("ReduceSum", powers, false, 2)
}

// addSquaredDistances adds ‖x−c‖² [batch, N] of the rows x [batch, d] from the
// points c [N, d] as ‖x‖² − 2x·c + ‖c‖², which float64 has the digits for.
func addSquaredDistances(m *onnx.Model, points []float64, d int, x onnx.Value) onnx.Value {
	squares := make([]float64, len(points)/d)
	for i, v := range points {
		squares[i/d] += v * v
	}
	products := m.Times(x, scaled(-2, points), d)
	lengths := m.Dot(x, x)
	sum := m.Op("Add", m.Op("Add", lengths, products), m.Vector(squares))
	return m.Op("Max", sum, m.Number(0))
}

// addVerdict adds the outputs for log φ [batch, C] and the score [batch, 1].
func addVerdict(m *onnx.Model, d *Detector, logConfidences, score onnx.Value, batch int) {
	confidences := m.Op("Exp", logConfidences)
	class := m.ArgMax(logConfidences)
	score = m.Op("Reshape", score, m.Int64s(0))
	ood := m.Op("Not", m.AtLeast(score, addThreshold(m, d, class)))
	pValue := addPValue(m, d.CalibrationScores, score)
	if d.ByClass != nil {
		pValue = addPValueByClass(m, d, score, class)
	}

	m.Output("log_confidences", logConfidences, onnx.Double, batch, len(d.Classes))
	m.Output("confidences", confidences, onnx.Double, batch, len(d.Classes))
	m.Output("class", class, onnx.Int64, batch)
	m.Output("confidence", addKnown(m, addConfidence(m, d.Confidence, logConfidences), 0), onnx.Double, batch)
	lowest, highest := m.Number(-math.MaxFloat64), m.Number(math.MaxFloat64)
	m.Output("score", m.Op("Max", lowest, m.Op("Min", highest, addKnown(m, score, -math.MaxFloat64))), onnx.Double, batch)
	m.Output("ood", ood, onnx.Bool, batch)
	m.Output("p_value", pValue, onnx.Double, batch)
}

// addKnown replaces NaN, where the operator set has Where (from 9 on).
func addKnown(m *onnx.Model, v onnx.Value, unknown float64) onnx.Value {
	if m.Opset() < 9 {
		return v
	}
	return m.Op("Where", m.AtLeast(v, m.Number(math.Inf(-1))), v, m.Number(unknown))
}

// below returns what a score is compared with for being at least s: the
// threshold and the calibration scores are scores of images, and those must
// reach them though their sums are taken in another order here, from features
// that another batch may have rounded otherwise. It is nearer than a thousandth of
// the distance to the next calibration score, as scores such as softmax
// probabilities lie very close.
func below(calibration []float64, s float64) float64 {
	slack := 1e-6 * max(1, math.Abs(s))
	if at, _ := slices.BinarySearch(calibration, s); at > 0 {
		return s - min(slack, 1e-3*(s-calibration[at-1]))
	}
	for _, next := range calibration {
		if next > s {
			return s - min(slack, 1e-3*(next-s))
		}
	}
	return s - slack
}

// addPValue adds (1 + #{scores ≤ score}) / (n + 1) [batch].
func addPValue(m *onnx.Model, scores []float64, score onnx.Value) onnx.Value {
	// Kernels differ in what they make of no elements at all, so there is one
	// that no score reaches.
	among := []float64{math.Inf(1)}
	for _, s := range scores {
		among = append(among, below(scores, s))
	}
	column := m.Op("Reshape", score, m.Int64s(0, 1))
	notAbove := m.Cast(m.AtLeast(column, m.Vector(among)), onnx.Double)
	count := m.Op("Add", m.Reduce("ReduceSum", notAbove, false, 1), m.Number(1))
	return m.Op("Div", count, m.Number(float64(len(scores)+1)))
}

// scaled returns s·values.
func scaled(s float64, values []float64) []float64 {
	return lists.Map(values, func(v float64) float64 { return s * v })
}

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
