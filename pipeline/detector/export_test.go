package detector_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/x448/float16"
	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// outputs is what onnxruntime gives for an exported graph.
type outputs struct {
	LogConfidences, Confidences, Confidence, Score, PValue []float64
	Class                                                  []int64
	OOD                                                    []bool
}

// runGraph runs an exported graph with onnxruntime.
func runGraph(t testing.TB, model []byte, input string, x ort.Value) outputs {
	t.Helper()
	return openGraph(t, model, input)(x)
}

// openGraph opens an exported graph and returns a function that runs it.
func openGraph(t testing.TB, model []byte, input string) (run func(x ort.Value) outputs) {
	t.Helper()
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	threads, err := ort.NewSessionOptions()
	if err != nil {
		t.Fatal(err)
	}
	defer threads.Destroy()
	if err := threads.SetIntraOpNumThreads(1); err != nil { // to start and stop threads takes longer than all else
		t.Fatal(err)
	}
	names := []string{"log_confidences", "confidences", "class", "confidence", "score", "ood", "p_value"}
	session, err := ort.NewDynamicAdvancedSessionWithONNXData(model, []string{input}, names, threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Destroy() })
	return func(x ort.Value) outputs {
		t.Helper()
		made := make([]ort.Value, len(names))
		if err := session.Run([]ort.Value{x}, made); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, v := range made {
				v.Destroy()
			}
		}()
		double := func(i int) []float64 { return slices.Clone(made[i].(*ort.Tensor[float64]).GetData()) }
		return outputs{
			double(0), double(1), double(3), double(4), double(6),
			slices.Clone(made[2].(*ort.Tensor[int64]).GetData()), slices.Clone(made[5].(*ort.Tensor[bool]).GetData()),
		}
	}
}

// check compares a graph's outputs with the detector's own for the rows x, to
// tolerance times their size.
func (o outputs) check(t testing.TB, d *detector.Detector, x []float32, tolerance float64) {
	t.Helper()
	near := func(what string, row int, got, want float64) {
		t.Helper()
		if !(got == want || math.IsNaN(got) && math.IsNaN(want) || math.Abs(got-want) <= tolerance*max(1, math.Abs(want))) {
			t.Errorf("row %d: %s is %v, the detector has %v", row, what, got, want)
		}
	}
	classes := len(d.Classes)
	logs, verdicts := d.Own(x).LogConfidences, pipetest.Verdicts(t, d, x)
	if len(o.LogConfidences) != len(logs) || len(o.Score) != len(verdicts) {
		t.Fatalf("%d log confidences and %d scores, want %d and %d", len(o.LogConfidences), len(o.Score), len(logs), len(verdicts))
	}
	for i, want := range logs {
		near(fmt.Sprintf("log confidence %d", i%classes), i/classes, o.LogConfidences[i], want)
		near(fmt.Sprintf("confidence %d", i%classes), i/classes, o.Confidences[i], math.Exp(want))
	}
	for i, v := range verdicts {
		near("score", i, o.Score[i], v.Score)
		near("confidence", i, o.Confidence[i], v.Confidence)
		if int(o.Class[i]) != v.Label || o.OOD[i] != v.OOD || o.PValue[i] != v.PValue {
			t.Errorf("row %d: class %d, OOD %t, p-value %g; the detector has %+v", i, o.Class[i], o.OOD[i], o.PValue[i], v)
		}
	}
}

// exact is the tolerance where both have bit-identical rows: a
// ten-thousandth of what is promised.
const exact = 1e-9

func tensorOf(t testing.TB, x []float32, shape ...int64) ort.Value {
	t.Helper()
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	v, err := ort.NewTensor(shape, x)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Destroy() })
	return v
}

func exported(t testing.TB, m *onnx.Model) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExportedHeadIsTheHead(t *testing.T) {
	t.Parallel()
	const d = 12
	rng := rand.New(rand.NewPCG(3, 1))
	for _, norm := range []float64{1, 1.5, 2, 3} {
		for layers := 1; layers <= 4; layers++ {
			for _, heads := range []int{1, 3} {
				for _, depression := range []bool{true, false} {
					t.Run(fmt.Sprintf("k=%g/%d layers/%d heads/depression %t", norm, layers, heads, depression), func(t *testing.T) {
						det := pipetest.RandomDetector(rng, norm, layers, heads, d, depression)
						m, err := detector.Head(detector.ExportOptions{Detector: det})
						if err != nil {
							t.Fatal(err)
						}
						graph := exported(t, m)
						for _, batch := range []int{1, 7} {
							x := pipetest.RandomRows(rng, batch, d)
							runGraph(t, graph, "features", tensorOf(t, x, int64(batch), d)).check(t, det, x, exact)
						}
					})
				}
			}
		}
	}
}

// TestExportedResidualHead compares rows near and far, without length and without
// numbers.
func TestExportedResidualHead(t *testing.T) {
	t.Parallel()
	const d = 12
	rng := rand.New(rand.NewPCG(3, 8))
	odd := make([]float32, 2*d)
	odd[d+1] = float32(math.NaN())
	white := &head.Conditioning{ConditioningOptions: head.ConditioningOptions{L2: true}, Mean: pipetest.RandomArray(rng, d, 0, 0.1), Matrix: pipetest.RandomArray(rng, d*d, 0, 1)}
	for layers := 1; layers <= 4; layers++ {
		for _, heads := range []int{1, 3} {
			for _, classes := range []int{1, 2, 10, 150} {
				for _, condition := range []*head.Conditioning{nil, white} {
					t.Run(fmt.Sprintf("%d layers/%d heads/%d classes/conditioning %t", layers, heads, classes, condition != nil), func(t *testing.T) {
						det := pipetest.RandomResidualDetector(rng, layers, heads, d, classes)
						for _, h := range det.Heads {
							h.Conditioning = condition
							if err := h.Validate(); err != nil {
								t.Fatal(err)
							}
						}
						m, err := detector.Head(detector.ExportOptions{Detector: det})
						if err != nil {
							t.Fatal(err)
						}
						graph := exported(t, m)
						for _, batch := range []int{1, 7} {
							x := pipetest.RandomRows(rng, batch, d)
							if batch > 2 {
								x = append(x[:(batch-2)*d], odd...)
							}
							runGraph(t, graph, "features", tensorOf(t, x, int64(batch), d)).check(t, det, x, exact)
						}
					})
				}
			}
		}
	}
}

// TestExportedResidualHeadsShare: what heads have in common is in the file once.
func TestExportedResidualHeadsShare(t *testing.T) {
	t.Parallel()
	const d = 12
	det := pipetest.RandomResidualDetector(rand.New(rand.NewPCG(3, 9)), 2, 2, d, 4)
	size := func() int {
		m, err := detector.Head(detector.ExportOptions{Detector: det})
		if err != nil {
			t.Fatal(err)
		}
		return len(exported(t, m))
	}
	first, second := det.Heads[0].Network.(*head.ResidualNetwork), det.Heads[1].Network.(*head.ResidualNetwork)
	means := 8 * len(first.Density.Means)
	shared := size()
	other := *first.Density
	other.Radius *= 2
	if second.Density = &other; size() < shared+means {
		t.Errorf("%d bytes with the same density, %d with two", shared, size())
	}
	same := *first.Density
	if second.Density = &same; size() != shared {
		t.Errorf("%d bytes, %d with an equal density", shared, size())
	}
}

func TestExportedHeadInEachOpset(t *testing.T) {
	t.Parallel()
	const d = 12
	rng := rand.New(rand.NewPCG(3, 2))
	for opset := onnx.MinOpset; opset <= onnx.MaxOpset; opset++ {
		for _, det := range []*detector.Detector{
			pipetest.RandomDetector(rng, 1.5, 2, 2, d, true), pipetest.RandomDetector(rng, 2, 2, 2, d, true), pipetest.RandomResidualDetector(rng, 2, 2, d, 4), pipetest.RandomResidualDetector(rng, 2, 2, d, 150),
		} {
			m, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset})
			if err != nil {
				t.Fatal(err)
			}
			x := pipetest.RandomRows(rng, 7, d)
			runGraph(t, exported(t, m), "features", tensorOf(t, x, 7, d)).check(t, det, x, exact)
		}
	}
	for _, opset := range []int{onnx.MinOpset - 1, onnx.MaxOpset + 1} {
		if _, err := detector.Head(detector.ExportOptions{Detector: pipetest.RandomDetector(rng, 2, 1, 1, d, true), Opset: opset}); err == nil {
			t.Errorf("opset %d is taken", opset)
		}
	}
}

// TestExportedCalibration: confidences that are probabilities, and thresholds and
// p-values by class, some of which share theirs.
func TestExportedCalibration(t *testing.T) {
	t.Parallel()
	const d, n = 12, 60
	rng := rand.New(rand.NewPCG(3, 5))
	for _, det := range []*detector.Detector{pipetest.RandomDetector(rng, 2, 2, 2, d, true), pipetest.RandomResidualDetector(rng, 2, 1, d, 5)} {
		det.Confidence = &detector.Platt{Slope: 0.6, Offset: -0.3, High: 0.9}
		det.TargetTPR = 0.9
		var scores []float64
		var labels []int
		for _, v := range pipetest.Verdicts(t, det, pipetest.RandomRows(rng, n, d)) {
			scores, labels = append(scores, v.Score), append(labels, v.Label)
		}
		det.CalibrationScores = slices.Sorted(slices.Values(scores))
		det.Threshold = detector.Threshold(det.CalibrationScores, det.TargetTPR)
		if few := det.CalibrateByClass(scores, labels); len(few) == 0 || len(few) == len(det.Classes) {
			t.Fatalf("%d of %d classes have too few scores", len(few), len(det.Classes))
		}
		for _, opset := range []int{9, 17} {
			m, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset})
			if err != nil {
				t.Fatal(err)
			}
			x := pipetest.RandomRows(rng, n, d)
			runGraph(t, exported(t, m), "features", tensorOf(t, x, n, d)).check(t, det, x, exact)
		}
	}
}

// TestExportedEdges: what is no number is out of distribution as detect has it,
// confidences that underflow stay ordered, and without a threshold or
// calibration nothing is flagged.
func TestExportedEdges(t *testing.T) {
	t.Parallel()
	const d = 4
	rng := rand.New(rand.NewPCG(3, 3))
	x := slices.Concat(pipetest.RandomRows(rng, 1, d), []float32{1e18, 0, 0, 0, 1e38, -1e38, 1e38, 1e38}, []float32{float32(math.NaN()), 0, 0, 0})
	for _, opset := range []int{9, 11, 17} {
		for _, heads := range []int{1, 2} {
			for name, det := range map[string]*detector.Detector{
				"k=1": pipetest.RandomDetector(rng, 1, 3, heads, d, true), "k=2": pipetest.RandomDetector(rng, 2, 3, heads, d, true),
				"k=8":      pipetest.RandomDetector(rng, 8, 3, heads, d, true), // (1e38)⁸·4 is +Inf
				"residual": pipetest.RandomResidualDetector(rng, 3, heads, d, 3), "residual, no layers": pipetest.RandomResidualDetector(rng, 1, heads, d, 1),
			} {
				for _, flags := range []bool{true, false} {
					if !flags {
						det.Threshold, det.CalibrationScores = math.Inf(-1), nil
					}
					m, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset})
					if err != nil {
						t.Fatal(err)
					}
					got := runGraph(t, exported(t, m), "features", tensorOf(t, x, 4, d))
					for i, v := range pipetest.Verdicts(t, det, x) {
						same := got.Score[i] == v.Score || math.IsNaN(got.Score[i]) && math.IsNaN(v.Score) || math.Abs(got.Score[i]/v.Score-1) < exact
						if !same || got.OOD[i] != v.OOD || math.Abs(got.PValue[i]-v.PValue) > 1e-15 {
							t.Errorf("opset %d, %s, row %d: score %g, OOD %t, p-value %g; the detector has %+v", opset, name, i, got.Score[i], got.OOD[i], got.PValue[i], v)
						}
					}
				}
			}
		}
	}
}

// TestExportedTies: images that set the threshold and the p-values get them.
func TestExportedTies(t *testing.T) {
	t.Parallel()
	const d, n = 12, 40
	rng := rand.New(rand.NewPCG(3, 7))
	for _, det := range []*detector.Detector{pipetest.RandomDetector(rng, 1.5, 3, 3, d, true), pipetest.RandomDetector(rng, 2, 3, 3, d, true), pipetest.RandomResidualDetector(rng, 3, 3, d, 4)} {
		x := pipetest.RandomRows(rng, n, d)
		pipetest.Calibrate(det, x)
		m, err := detector.Head(detector.ExportOptions{Detector: det})
		if err != nil {
			t.Fatal(err)
		}
		got := runGraph(t, exported(t, m), "features", tensorOf(t, x, n, d))
		for i, v := range pipetest.Verdicts(t, det, x) {
			if got.OOD[i] != v.OOD || got.PValue[i] != v.PValue {
				t.Errorf("row %d: OOD %t, p-value %g; the detector has %+v", i, got.OOD[i], got.PValue[i], v)
			}
		}
	}
}

// TestExportedConditioning exports heads that share a conditioning of each form,
// and gives them a row without length too.
func TestExportedConditioning(t *testing.T) {
	t.Parallel()
	const d, e, n = 6, 4, 5
	rng := rand.New(rand.NewPCG(3, 4))
	mean, scale, matrix := pipetest.RandomRows(rng, 1, d), pipetest.RandomRows(rng, 1, d), pipetest.RandomRows(rng, 1, d*e)
	for _, tt := range []struct {
		e int
		c *head.Conditioning
	}{
		{d, &head.Conditioning{ConditioningOptions: head.ConditioningOptions{L2: true}, Mean: mean, Scale: scale}},
		{d, &head.Conditioning{Mean: mean, Scale: scale}},
		{e, &head.Conditioning{ConditioningOptions: head.ConditioningOptions{L2: true}, Mean: mean, Matrix: matrix}},
		{e, &head.Conditioning{Mean: mean, Matrix: matrix}},
	} {
		for _, opset := range []int{9, 17, 18} {
			x := append(pipetest.RandomRows(rng, n-1, d), make([]float32, d)...)
			det := pipetest.RandomDetector(rng, 2, 2, 2, tt.e, true)
			for _, h := range det.Heads {
				h.Conditioning = tt.c
			}
			m, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset})
			if err != nil {
				t.Fatal(err)
			}
			runGraph(t, exported(t, m), "features", tensorOf(t, x, n, d)).check(t, det, x, 1e-9)
		}
	}
}

// TestExportedHeadInPython has the file checked and run by the onnx package.
func TestExportedHeadInPython(t *testing.T) {
	t.Parallel()
	const d = 8
	rng := rand.New(rand.NewPCG(3, 5))
	white := &head.Conditioning{ConditioningOptions: head.ConditioningOptions{Kind: head.Whiten, L2: true, Shrinkage: 0.25}, Mean: pipetest.RandomArray(rng, d, 0, 0.1), Matrix: pipetest.RandomArray(rng, d*d, 0, 1)}
	three, many := pipetest.RandomResidualDetector(rng, 3, 3, d, 4), pipetest.RandomResidualDetector(rng, 1, 1, d, 150)
	for _, h := range three.Heads {
		h.Conditioning = white
	}
	for _, det := range []*detector.Detector{pipetest.RandomDetector(rng, 1, 3, 2, d, true), pipetest.RandomDetector(rng, 2, 3, 2, d, true), pipetest.RandomDetector(rng, 3, 3, 2, d, true), three, many} {
		det.Source = detector.Source{Fingerprint: "f", SHA256: "a", Output: "features", Preprocess: []byte(`{"exif":"ignore"}`)}
		out := filepath.Join(t.TempDir(), "head.onnx")
		if err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: out}); err != nil {
			t.Fatal(err)
		}
		x := pipetest.RandomRows(rng, 7, d)
		text := testenv.Python(t, `
import json, sys, numpy as np, onnx
from onnx.reference import ReferenceEvaluator
m = onnx.load(sys.argv[1])
onnx.checker.check_model(m, full_check=True)
x = np.array(json.loads(sys.argv[2]), np.float32).reshape(7, -1)
names = [o.name for o in m.graph.output]
got = dict(zip(names, ReferenceEvaluator(m).run(None, {"features": x})))
meta = {p.key: json.loads(p.value) for p in m.metadata_props}
assert set(names) == set(meta["mlrbfn.outputs"]), names
print(json.dumps({"meta": meta, "LogConfidences": got["log_confidences"].ravel().tolist(), "Confidences": got["confidences"].ravel().tolist(),
  "Confidence": got["confidence"].tolist(), "Score": got["score"].tolist(), "PValue": got["p_value"].tolist(),
  "Class": got["class"].tolist(), "OOD": got["ood"].tolist()}))
`, out, jsonText(t, x))
		var got struct {
			outputs
			Meta map[string]any
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		got.check(t, det, x, exact)
		want := map[string]any{
			"classes": det.Classes, "threshold": det.Threshold, "target_tpr": 0.95, "preprocess": map[string]any{"exif": "ignore"},
			"fingerprint": "f", "model_sha256": "a", "output": "features", "pool": "", "norm": det.Heads[0].Network.Settings().Norm, "seeds": det.Seeds,
			"network": "paper", "conditioning": nil,
		}
		if det.Heads[0].Network.Settings().Residual {
			want["network"] = "open"
		}
		if det == three {
			want["conditioning"] = map[string]any{"kind": "whiten", "l2": true, "shrinkage": 0.25, "dims": 0}
		}
		for key, value := range want {
			if jsonText(t, got.Meta["mlrbfn."+key]) != jsonText(t, value) {
				t.Errorf("metadata %s is %v, want %v", key, got.Meta["mlrbfn."+key], value)
			}
		}
	}
}

func jsonText(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// backbonesScript writes, each into a folder of its own, small graphs with what
// backbones in the wild have: pooling left to do, other opsets, float16,
// channels last, weights beside the graph, weights that are inputs, subgraphs,
// functions, operators of other domains, names that the head wants.
const backbonesScript = `
import os, sys, numpy as np, onnx
from onnx import helper as h, numpy_helper as nh, TensorProto as T
rng = np.random.default_rng(1)
def save(name, nodes, output, opset=17, ir=8, elem=T.FLOAT, shape=("batch", 3, 8, 8), weights={}, extra=(), external=False, inputs=(), domains=(), functions=()):
    os.makedirs(f"{sys.argv[1]}/{name}")
    info = lambda n, e, s: h.make_tensor_value_info(n, e, s)
    g = h.make_graph(nodes, "test", [info("x", elem, shape), *inputs], [info(output[0], elem, output[1]), *extra],
                     [nh.from_array(v, k) for k, v in weights.items()])
    m = h.make_model(g, opset_imports=[h.make_opsetid("", opset), *[h.make_opsetid(d, 1) for d in domains]], ir_version=ir, functions=list(functions))
    onnx.helper.set_model_props(m, {"theirs": "kept", "mlrbfn.classes": "not this"})
    onnx.save(m, f"{sys.argv[1]}/{name}/model.onnx", save_as_external_data=external, size_threshold=0, location="weights.bin")
n = h.make_node
f32 = lambda *s: rng.normal(size=s).astype(np.float32)
pool = [n("ReduceMean", ["x"], ["pooled"], axes=[2, 3], keepdims=0)]
w = {"w": f32(3, 6), "b": f32(6)}
dense = pool + [n("MatMul", ["pooled", "w"], ["xw"]), n("Add", ["xw", "b"], ["features"])]
out = ("features", ["batch", 6])
save("plain", dense, out, weights=w)
for opset in (9, 11, 13): save(f"opset{opset}", dense, out, opset=opset, weights=w)
save("old", dense, out, opset=9, ir=3, weights=w, inputs=[h.make_tensor_value_info(k, T.FLOAT, v.shape) for k, v in w.items()])
save("external", dense, out, weights=w, external=True)
save("fixed", dense, ("features", [2, 6]), weights=w, shape=(2, 3, 8, 8))
save("half", [n("GlobalAveragePool", ["x"], ["p"]), n("Flatten", ["p"], ["pooled"]), n("MatMul", ["pooled", "w"], ["features"])], out, elem=T.FLOAT16, weights={"w": w["w"].astype(np.float16)})
conv = n("Conv", ["x", "k"], ["features"])
save("map", [conv], ("features", ["batch", 6, 6, 6]), weights={"k": f32(6, 3, 3, 3)})
save("map-last", [n("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), n("Conv", ["t", "k"], ["y"]), n("Transpose", ["y"], ["features"], perm=[0, 2, 3, 1])],
     ("features", ["batch", 6, 7, 5]), shape=("batch", 8, 8, 3), weights={"k": f32(5, 3, 3, 2)})
patches = [n("Conv", ["x", "k"], ["y"], strides=[4, 4]), n("Reshape", ["y", "s"], ["z"])]
columns = lambda v: n("Transpose", [v], ["last_hidden_state"], perm=[0, 2, 1])
w_tokens = {"k": f32(6, 3, 4, 4), "s": np.array([0, 6, -1])}
save("patches", patches + [columns("z")], ("last_hidden_state", ["batch", 4, 6]), weights=w_tokens)
save("tokens", patches + [n("ReduceMax", ["z"], ["class"], axes=[2]), n("Concat", ["class", "z"], ["all"], axis=2), columns("all")],
     ("last_hidden_state", ["batch", 5, 6]), weights=w_tokens)
# The head's own names, values and a classifier of theirs that goes.
save("names", pool + [n("MatMul", ["pooled", "w"], ["score"]), n("Add", ["score", "mlrbfn/constant_1"], ["mlrbfn/Cast_1"]), n("Identity", ["mlrbfn/Cast_1"], ["features"]),
     n("MatMul", ["features", "class"], ["logits"])], out, weights={"w": w["w"], "mlrbfn/constant_1": w["b"], "class": f32(6, 9)},
     extra=[h.make_tensor_value_info("logits", T.FLOAT, ["batch", 9])])
save("output-score", pool + [n("MatMul", ["pooled", "w"], ["score"])], ("score", ["batch", 6]), weights=w)
# A branch that takes the weight from outside, and one from a Constant inside.
then = h.make_graph([n("MatMul", ["pooled", "w"], ["xw"])], "then", [], [h.make_tensor_value_info("xw", T.FLOAT, ["batch", 6])])
other = h.make_graph([n("Constant", [], ["c"], value=nh.from_array(f32(3, 6))), n("MatMul", ["pooled", "c"], ["xc"])], "else", [], [h.make_tensor_value_info("xc", T.FLOAT, ["batch", 6])])
branch = pool + [n("If", ["yes"], ["xw_"], then_branch=then, else_branch=other), n("Identity", ["xw_"], ["features"])]
for yes in (True, False): save(f"branch-{yes}", branch, out, weights={"w": w["w"], "yes": np.array(yes)})
save("contrib", pool + [n("FusedMatMul", ["pooled", "w"], ["features"], domain="com.microsoft", alpha=0.5)], out, weights=w, domains=["com.microsoft"])
twice = h.make_function("my.domain", "Twice", ["score"], ["class"], [n("Add", ["score", "score"], ["class"])], [h.make_opsetid("", 17)])
save("function", pool + [n("MatMul", ["pooled", "w"], ["xw"]), n("Twice", ["xw"], ["features"], domain="my.domain")], out, weights=w, domains=["my.domain"], functions=[twice])
`

func TestExportWithBackbones(t *testing.T) {
	t.Parallel()
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	testenv.Python(t, backbonesScript, root)
	folders, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		dir := filepath.Join(root, folder.Name())
		config := `{"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}`
		if err := os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		pools := []string{""}
		if folder.Name() == "tokens" {
			pools = []string{"cls", "mean"}
		}
		for _, pool := range pools {
			for _, keep := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s%s, keep %t", folder.Name(), pool, keep), func(t *testing.T) {
					exportWith(t, dir, filepath.Join(dir, fmt.Sprintf("%s%t.onnx", pool, keep)), pool, keep)
				})
			}
		}
	}
	testenv.Python(t, `
import glob, json, os, sys, onnx
for file in glob.glob(sys.argv[1] + "/*/*e.onnx"):
    keep = file.endswith("true.onnx")
    theirs, ours = [onnx.load(f, load_external_data=False) for f in (os.path.dirname(file) + "/model.onnx", file)]
    if not any(n.domain for n in theirs.graph.node): onnx.checker.check_model(ours, full_check=True)
    props = {p.key: p.value for p in ours.metadata_props}
    assert props["theirs"] == "kept" and len(json.loads(props["mlrbfn.classes"])) == 4, props
    assert ours.ir_version == theirs.ir_version and list(ours.opset_import) == list(theirs.opset_import), file
    assert ours.functions == theirs.functions and not any(t.external_data for t in ours.graph.initializer), file
    outputs = [o.name for o in ours.graph.output if o.name not in json.loads(props["mlrbfn.outputs"])]
    want = [o.name for o in theirs.graph.output] if keep else []
    assert [o.removeprefix("backbone/") for o in outputs] == want, (file, outputs)
    makes = {o for n in ours.graph.node for o in n.output} | {t.name for t in ours.graph.initializer}
    if "/names/" in file: assert keep == ("logits" in makes) == ("backbone/class" in makes) and "backbone/score" in makes, makes
`, root)
}

// TestExportWithSharedBackbones: half floats, channels last, one image at a time.
func TestExportWithSharedBackbones(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"squeezenet11-fp16io", "mobilenetv1-nhwc", "vit-tiny-p16-int8"} {
		t.Run(name, func(t *testing.T) {
			dir := testenv.Shared(t, "models", name)
			if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
				t.Fatal(err)
			}
			exportWith(t, dir, filepath.Join(t.TempDir(), "all.onnx"), "", false)
		})
	}
}

// exportWith exports detectors with the backbone in dir and compares what each
// file makes of made-up images with what its detector makes of their features.
func exportWith(t *testing.T, dir, out, pool string, keep bool) {
	model, err := extractor.OpenModel(t.Context(), dir, extractor.Options{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	rng := rand.New(rand.NewPCG(3, 6))
	batch := model.Batch(3)
	runner, err := model.NewRunner(batch)
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	var images, features []float32
	for i := range batch {
		for j := range runner.Input(i) {
			runner.Input(i)[j] = float16.Fromfloat32(float32(rng.NormFloat64())).Float32()
		}
		images = append(images, runner.Input(i)...)
	}
	if err := runner.Run(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i := range batch {
		features = append(features, runner.Features(i)...)
	}
	height, width := int64(model.Spec.Height), int64(model.Spec.Width)
	shape := []int64{int64(batch), 3, height, width}
	if model.Layout() == preprocess.NHWC {
		shape = []int64{int64(batch), height, width, 3}
	}
	var input ort.Value
	if model.Inputs[0].Type == "float16" {
		var raw []byte
		for _, v := range images {
			bits := float16.Fromfloat32(v).Bits()
			raw = append(raw, byte(bits), byte(bits>>8))
		}
		if input, err = ort.NewCustomDataTensor(shape, raw, ort.TensorElementDataTypeFloat16); err != nil {
			t.Fatal(err)
		}
		defer input.Destroy()
	} else {
		input = tensorOf(t, images, shape...)
	}
	for _, det := range []*detector.Detector{pipetest.RandomResidualDetector(rng, 2, 2, model.Dim(), 4), pipetest.RandomDetector(rng, 2, 2, 2, model.Dim(), true)} {
		det.Source = detector.Source{Fingerprint: model.Fingerprint(), Model: dir, SHA256: model.SHA256, Output: model.Output(), Pool: model.Pool()}
		if err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: out, WithBackbone: true, KeepOutputs: keep}); err != nil {
			t.Fatal(err)
		}
		graph, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		runGraph(t, graph, model.Inputs[0].Name, input).check(t, det, features, 1e-5)
	}
}

// TestExportWithDefaultBackbone: from the pixels of photographs to the verdicts
// that Detect gives.
func TestExportWithDefaultBackbone(t *testing.T) {
	t.Parallel()
	dir := testenv.Backbone(t)
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	photos, err := filepath.Glob(filepath.Join(testenv.Root(t), ".setup", "photos", "*.*g"))
	if err != nil || len(photos) < 10 {
		t.Fatalf("%d photographs, %v", len(photos), err)
	}
	work := t.TempDir()
	for i, file := range photos[:10] {
		folder := filepath.Join(work, "images", []string{"a", "b"}[i%2])
		if err := errors.Join(os.MkdirAll(folder, 0o777), os.Symlink(file, filepath.Join(folder, filepath.Base(file)))); err != nil {
			t.Fatal(err)
		}
	}
	auto := []string{extractor.AutoLayers}
	exportedAsDetected(t, dir, work, photos, extractor.Options{Layers: auto, PatchNodes: auto})
	det, model := exportedAsDetected(t, dir, work, photos, extractor.Options{})
	opts := detector.ExportOptions{Detector: det, WithBackbone: true}

	// What cannot be exported is refused, and leaves nothing.
	for says, change := range map[string]func(*detector.ExportOptions){
		"opset 11":                       func(o *detector.ExportOptions) { o.Opset = 11 },
		"not the detector's backbone":    func(o *detector.ExportOptions) { other := *det; other.Source.Fingerprint = "x"; o.Detector = &other },
		"the backbone itself":            func(o *detector.ExportOptions) { o.Out = model.File },
		"absent":                         func(o *detector.ExportOptions) { o.Model = filepath.Join(work, "absent") },
		filepath.Join(work, "no", "dir"): func(o *detector.ExportOptions) { o.Out = filepath.Join(work, "no", "dir") },
	} {
		bad := opts
		bad.Out = filepath.Join(work, "bad.onnx")
		change(&bad)
		if err := detector.Export(t.Context(), bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
		if _, err := os.Stat(filepath.Join(work, "bad.onnx")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a file was left: %v", says, err)
		}
	}
}

// exportedAsDetected trains a detector on images in a folder, whose score reads layers and
// patches if there are any, and compares what the graph of it and of its backbone makes of photographs
// with what Detect does. It returns both.
func exportedAsDetected(t *testing.T, dir, work string, photos []string, opts extractor.Options) (*detector.Detector, *extractor.Model) {
	t.Helper()
	folder := filepath.Join(work, fmt.Sprint("features", len(opts.Layers)))
	extracted, err := pipeline.Extract(t.Context(), pipeline.ExtractOptions{Model: dir, Images: filepath.Join(work, "images"), Out: folder, Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	det, _, err := pipeline.Train(t.Context(), pipeline.TrainOptions{
		Features: []string{folder}, Head: head.Residual{Layers: 2, Centroids: 4}, Train: head.TrainOptions{Epochs: 5},
		Conditioning: head.ConditioningOptions{Kind: head.Whiten, L2: true},
		Validation:   pipeline.Share{None: true}, Calibration: pipeline.Share{None: true}, Seeds: []uint64{1, 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	det.Threshold, det.CalibrationScores = -0.5, []float64{-0.9, -0.6, -0.3}
	if det.Source.Layers != nil {
		t.Fatalf("without validation images nothing says that layers help, and %v are read", det.Source.Layers)
	}
	if all := extracted.Meta.Layers; len(all) > 0 {
		set, err := features.Open(t.Context(), folder)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		file, err := set.Patches()
		if err == nil {
			det.Source.Patches, err = extractor.ReadPatches(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		det.Source = det.Source.With(all)
		s := &detector.Scoring{Name: detector.JoinedScore, Parts: []detector.Part{{Name: detector.DensityPart, Scale: head.Scale{Mean: 3, Deviation: 2}}}}
		for i, from := 0, 0; i < len(all); i++ {
			var x []float32
			for row := range set.N {
				x = append(x, set.RowLayers(row)[from:from+all[i].D]...)
			}
			from += all[i].D
			mds, err := posthoc.FitLayer(t.Context(), posthoc.NewData(x, all[i].D, set.Labels(), 2))
			if err != nil {
				t.Fatal(err)
			}
			s.Parts = append(s.Parts, detector.Part{Name: detector.LayerPart(all, i), Layer: all[i].Name, Score: mds, Scale: head.Scale{Mean: 1, Deviation: 3}})
		}
		det.Scoring, det.Probe = s, nil
	}
	out := filepath.Join(work, fmt.Sprint("all", len(opts.Layers), ".onnx"))
	if err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: out, WithBackbone: true}); err != nil {
		t.Fatal(err)
	}
	graph, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	model, err := extractor.OpenModel(t.Context(), dir, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	var images []float32
	for _, file := range photos {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		img, err := preprocess.Decode(t.Context(), data, preprocess.DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		image := make([]float32, 3*model.Spec.Height*model.Spec.Width)
		if err := model.Spec.Tensor(image, img, model.Layout()); err != nil {
			t.Fatal(err)
		}
		images = append(images, image...)
	}
	spec := model.Spec
	got := runGraph(t, graph, model.Inputs[0].Name, tensorOf(t, images, int64(len(photos)), 3, int64(spec.Height), int64(spec.Width)))
	i := 0
	_, err = pipeline.Detect(t.Context(), pipeline.DetectOptions{Detector: det, Paths: photos}, func(j pipeline.Judgement) error {
		if j.Err != nil {
			return j.Err
		}
		if math.Abs(got.Score[i]-j.Score) > 1e-5*max(1, math.Abs(j.Score)) || math.Abs(got.Confidence[i]-j.Confidence) > 1e-5 || int(got.Class[i]) != j.Label || got.OOD[i] != j.OOD || got.PValue[i] != j.PValue {
			t.Errorf("%s: score %g, class %d, OOD %t, p-value %g; detect says %+v", j.Path, got.Score[i], got.Class[i], got.OOD[i], got.PValue[i], j.Verdict)
		}
		i++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return det, model
}
