package detector_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// checkScores holds scores and what follows from them against the detector's, to a
// millionth of the spread of the calibration scores. A p-value may be one rank off.
// Old operator sets leave NaN, for which the detector has the lowest number.
func (o outputs) checkScores(t testing.TB, d *detector.Detector, x []float32) {
	t.Helper()
	verdicts := pipetest.Verdicts(t, d, x)
	if len(o.Score) != len(verdicts) {
		t.Fatalf("%d scores of %d rows", len(o.Score), len(verdicts))
	}
	for i, v := range verdicts {
		near := math.Abs(o.Score[i]-v.Score) <= 1e-6*min(max(1, math.Abs(v.Score)), spread(d.CalibrationScores))
		if !(near || o.Score[i] == v.Score || math.IsNaN(o.Score[i]) && v.Score == -math.MaxFloat64) || int(o.Class[i]) != v.Label || o.OOD[i] != v.OOD || !(math.Abs(o.PValue[i]-v.PValue)*float64(len(d.CalibrationScores)+1) < 1.5) {
			t.Errorf("row %d: score %v (%+.1e), class %d, OOD %t, p-value %g; the detector has %+v", i, o.Score[i], o.Score[i]-v.Score, o.Class[i], o.OOD[i], o.PValue[i], v)
		}
	}
}

// spread is how far the middle nine tenths of scores, ascending, lie apart.
func spread(scores []float64) float64 {
	n := len(scores)
	return scores[n-1-n/20] - scores[n/20]
}

// exportedRows holds a detector's graph against it on rows, one at a time and all at
// once.
func exportedRows(t *testing.T, det *detector.Detector, opset int, x []float32) {
	t.Helper()
	m, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset})
	if err != nil {
		t.Fatal(err)
	}
	run, d := openGraph(t, exported(t, m), "features"), det.Dim()
	for _, rows := range [][]float32{x, x[:d]} {
		n := int64(len(rows) / d)
		run(tensorOf(t, rows, n, int64(d))).checkScores(t, det, rows)
	}
}

// TestExportedScores exports a detector of every post-hoc score and of ensembles, as
// users have them in files, for several opsets. A row is of zeros, one far away, and
// one has no number.
func TestExportedScores(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "detector", "testdata", "scores", "*.safetensors"))
	if err != nil || len(files) < len(posthoc.Names()) {
		t.Fatalf("%d detectors, %v", len(files), err)
	}
	rng := rand.New(rand.NewPCG(3, 11))
	for _, file := range files {
		det, err := detector.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		d := det.Dim()
		x := make([]float32, 60*d)
		for i := range x {
			x[i] = float32(max(1.5*rng.NormFloat64()+1, 0)) // as ReLU gives them
		}
		for i := range d {
			x[i] *= 100
		}
		x = append(x, make([]float32, 2*d)...)
		x[len(x)-1] = float32(math.NaN())
		for _, opset := range []int{onnx.MinOpset, detector.DefaultOpset, onnx.MaxOpset} {
			t.Run(fmt.Sprintf("%s/opset %d", det.ScoreName(), opset), func(t *testing.T) {
				if strings.HasPrefix(det.ScoreName(), "ash-") && opset < 11 {
					if _, err := detector.Head(detector.ExportOptions{Detector: det, Opset: opset}); err == nil || !strings.Contains(err.Error(), det.ScoreName()) {
						t.Errorf("got %v", err)
					}
					return
				}
				exportedRows(t, det, opset, x)
			})
		}
	}
}

// TestExportedScoresOfFeatures: real features, and scores that are fitted on them.
func TestExportedScoresOfFeatures(t *testing.T) {
	t.Parallel()
	folder := testenv.OpenOOD(t)
	weights, last := values[float32](t, folder, "fc_weight"), values[float32](t, folder, "fc_bias")
	linear, err := posthoc.NewLinear(weights, last)
	if err != nil {
		t.Fatal(err)
	}
	d, classes := linear.In, linear.Out
	data := func(set string) *posthoc.Data {
		data := posthoc.NewData(values[float32](t, folder, set+"_features"), d, values[int64](t, folder, set+"_labels"), classes)
		data.Logits = posthoc.Matrix(posthoc.MLP{linear}.OfFeatures(data.Features(0, data.N)), classes)
		return data
	}
	in := posthoc.Input{Train: data("train"), Val: data("val"), LastLayer: linear}
	known := in.Val.Features(0, in.Val.N)
	var x []float32
	for _, set := range []string{"id", "near", "far"} {
		x = append(x, values[float32](t, folder, set+"_features")[:40*d]...)
	}
	rng := rand.New(rand.NewPCG(3, 12))
	names := append(posthoc.Names(), "ensemble(mlrbfn,gen,fdbd,mds++,vim,residual,rmds++,relation,knn)")
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			det := pipetest.RandomResidualDetector(rng, 2, 1+i%3, d, classes)
			parts, _, err := detector.ScoreParts(name)
			if err != nil {
				t.Fatal(err)
			}
			det.Scoring = scoringOf(t, det, parts, linear, in)
			if det.Scoring.Name = name; len(parts) == 1 {
				det.Scoring.Parts[0].Scale = detector.Unscaled
			}
			pipetest.Calibrate(det, known)
			exportedRows(t, det, 0, x)
		})
	}
	for _, heads := range []int{1, 3} {
		t.Run(fmt.Sprintf("joined with a guard/%d heads", heads), func(t *testing.T) {
			det := pipetest.RandomResidualDetector(rng, 2, heads, d, classes)
			density := det.Heads[0].Network.(*head.ResidualNetwork).Density
			for _, h := range det.Heads { // all heads that were trained on the same rows share it
				h.Network.(*head.ResidualNetwork).Density = density
			}
			det.Scoring = scoringOf(t, det, []string{
				detector.HeadPart, detector.DensityPart, detector.DecisionPart, "gen", "energy", "mls", "fdbd", "vim", "react", "vra",
				"standardised fdbd", "standardised vim", "standardised vra", detector.OutliersPart,
			}, linear, in)
			nearness := det.Own(known).Nearness
			slices.Sort(nearness)
			n := len(nearness)
			det.Scoring.Name, det.Scoring.Guard = detector.JoinedScore, &detector.Guard{Low: nearness[n/3], Middle: nearness[n/2], Weight: 20}
			pipetest.Calibrate(det, known)
			exportedRows(t, det, 0, x)
		})
	}
}

// scoringOf fits parts by their names and scales them, as training does.
func scoringOf(t *testing.T, det *detector.Detector, parts []string, linear *posthoc.Linear, in posthoc.Input) *detector.Scoring {
	t.Helper()
	s := &detector.Scoring{Classifier: linear}
	x := in.Val.Features(0, in.Val.N)
	for _, name := range parts {
		part, scores := detector.Part{Name: name}, make([]float64, in.Val.N)
		var err error
		plain, standardised := strings.CutPrefix(name, "standardised ")
		switch {
		case slices.Contains([]string{detector.HeadPart, detector.DensityPart, detector.DecisionPart}, name):
			scores = part.Own(det.Own(x))
		case standardised:
			part.Score, err = posthoc.FitStandardised(t.Context(), plain, in)
		case name == detector.OutliersPart: // the last class is that of the outliers
			part.Score = &posthoc.Outliers{Head: linear}
		case name == "corp": // 2,048 random features take a minute to fit
			part.Score, err = posthoc.FitCoRP(t.Context(), in.Train, 128, 0, 0)
		default:
			part.Score, err = posthoc.Fit(t.Context(), name, in)
		}
		if err == nil && part.Score != nil {
			err = part.Score.Score(t.Context(), scores, posthoc.Batch{Features: x, Logits: posthoc.MLP{linear}.OfFeatures(x)})
		}
		if err != nil {
			t.Fatal(err)
		}
		part.Scale = head.ScaleOf(scores)
		s.Parts = append(s.Parts, part)
	}
	return s
}

func values[T npy.Element](t *testing.T, folder, name string) []T {
	t.Helper()
	v, _, err := npy.Read[T](filepath.Join(folder, name+".npy"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// unknownScore is a score of another package, which has no graph.
type unknownScore struct{}

func (unknownScore) Score(context.Context, []float64, posthoc.Batch) error { return nil }

// TestExportRefusesScoresWithoutGraph: the error names the score.
func TestExportRefusesScoresWithoutGraph(t *testing.T) {
	t.Parallel()
	det := pipetest.RandomDetector(rand.New(rand.NewPCG(3, 10)), 2, 1, 1, 4, true)
	out := filepath.Join(t.TempDir(), "d.onnx")
	for want, part := range map[error]detector.Part{
		posthoc.ErrNoGraph: {Name: "unknown", Score: unknownScore{}, Scale: detector.Unscaled},
		posthoc.ErrMissing: {Name: "energy", Score: posthoc.Energy{}, Scale: detector.Unscaled}, // without logits
	} {
		det.Scoring = &detector.Scoring{Name: part.Name, Parts: []detector.Part{part}}
		if err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: out}); !errors.Is(err, want) || !strings.Contains(err.Error(), part.Name) {
			t.Errorf("%s: %v", part.Name, err)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file was left: %v", err)
		}
	}
}
