package pipeline

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// probeModel writes a model of 12 random features of images of 8×8 pixels, computed in
// float32 or, as some devices do whatever the model says, with half floats; mean is what
// the preprocessing subtracts.
func probeModel(t *testing.T, half bool, seed uint64, mean string) string {
	t.Helper()
	dir := t.TempDir()
	m, err := onnx.New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	weights := make([]float32, 192*12)
	state := seed
	for i := range weights {
		state = state*6364136223846793005 + 1442695040888963407
		weights[i] = float32(int32(state>>32)) / (1 << 31) / 8
	}
	x, w := m.Op("Reshape", m.Input("image", onnx.Float, onnx.Batch, 3, 8, 8), m.Int64s(-1, 192)), m.Floats(weights, 192, 12)
	const float16 = onnx.Element(10)
	if half {
		x, w = m.Cast(x, float16), m.Cast(w, float16)
	}
	m.Output("features", m.Cast(m.Op("Tanh", m.Op("MatMul", x, w)), onnx.Float), onnx.Float, onnx.Batch, 12)
	var graph bytes.Buffer
	err = errors.Join(m.Write(&graph), os.WriteFile(filepath.Join(dir, "model.onnx"), graph.Bytes(), 0o666), os.WriteFile(filepath.Join(dir, "preprocessor_config.json"),
		[]byte(`{"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}, "resample": 2, "image_mean": [`+mean+`], "image_std": [0.25, 0.25, 0.25]}`), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestProbeEverywhere: from extraction to verdicts, a model that gives other features
// than before is noticed wherever it is opened.
func TestProbeEverywhere(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	images, set := filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 60 {
		tile(t, filepath.Join(images, []string{"a", "b"}[i%2], string(rune('A'+i))+".png"), uint64(i))
	}
	model := probeModel(t, false, 1, "0.5, 0.5, 0.5")
	extract(t, ExtractOptions{Model: model, Images: images, Out: set})
	o := quick(set)
	o.Calibration.Fraction = 0.4
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if d.Probe == nil || len(d.Probe.Rows) == 0 {
		t.Fatalf("the detector has the probe %+v", d.Probe)
	}
	// Another export of the model has another graph. It is opened if it gives the same
	// features of images that are prepared in the same way; extract never mixes them.
	for name, c := range map[string]struct{ model, says string }{
		"another export":           {probeModel(t, true, 1, "0.5, 0.5, 0.5"), ""},
		"another model":            {probeModel(t, false, 2, "0.5, 0.5, 0.5"), "its graph is another than the one at " + model + ", and features differ by"},
		"another export, prepared": {probeModel(t, true, 1, "0.5, 0.5, 0.6"), "its preprocessing differs"},
	} {
		judge, err := NewJudge(t.Context(), d, c.model, extractor.Options{AllowDriftedFeatures: true})
		if err == nil {
			err = judge.Close()
		}
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrOtherModel) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Extract(t.Context(), ExtractOptions{Detector: d, Model: c.model, Images: images, Out: filepath.Join(dir, "mixed")}); !errors.Is(err, ErrOtherModel) {
			t.Errorf("%s, extracted: %v", name, err)
		}
	}
	// What follows is as on another processor or device, where the graph is the same.
	d.Source.SHA256, d.Source.Fingerprint = "", ""
	for _, c := range []struct {
		name, model string
		broken      bool
	}{
		{"the same", model, false},
		{"half floats", probeModel(t, true, 1, "0.5, 0.5, 0.5"), false}, // which no verdict shows
		{"another model of the same shape", probeModel(t, false, 2, "0.5, 0.5, 0.5"), true},
		{"another normalisation", probeModel(t, false, 1, "0.1, 0.4, 0.9"), true},
	} {
		for _, allowed := range []bool{false, true} {
			said := ""
			judge, err := NewJudge(t.Context(), d, c.model, extractor.Options{
				AllowDriftedFeatures: allowed, Drifted: func(text string) { said += text },
			})
			if err == nil {
				err = judge.Close()
			}
			refused := c.broken && !allowed
			if refused != errors.Is(err, features.ErrDrifted) || !refused && err != nil || strings.Contains(said, "standard deviations") != (c.broken && allowed) {
				t.Errorf("%s, allowed %v: %v, warned %q", c.name, allowed, err, said)
			}
		}
	}
	drifted := probeModel(t, false, 2, "0.5, 0.5, 0.5")
	for what, open := range map[string]func() error{
		"detect": func() error {
			_, err := Detect(t.Context(), DetectOptions{Detector: d, Model: drifted, Paths: []string{images}}, func(Judgement) error { return nil })
			return err
		},
		"export": func() error {
			return Export(t.Context(), ExportOptions{Detector: d, Model: drifted, WithBackbone: true, Out: filepath.Join(dir, "all.onnx")})
		},
		"extract for a detector": func() error {
			_, err := Extract(t.Context(), ExtractOptions{Detector: d, Model: drifted, Images: images, Out: filepath.Join(dir, "more")})
			return err
		},
	} {
		if err := open(); !errors.Is(err, features.ErrDrifted) || !strings.Contains(err.Error(), drifted) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// A set that another kind of processor made: its features are others, and all
	// checksums are the same.
	meta, err := features.Open(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	header := features.Header{
		D: meta.D, Root: meta.Root, Model: meta.Model, ModelSHA256: meta.ModelSHA256, Output: meta.Output, Pool: meta.Pool, Preprocess: meta.Preprocess,
		Fingerprint: meta.Fingerprint, Tool: meta.Tool, Probe: &features.Probe{Version: meta.Probe.Version, Images: meta.Probe.Images},
	}
	for _, v := range meta.Probe.Features {
		header.Probe.Features = append(header.Probe.Features, 1.5*v)
	}
	if err := meta.Close(); err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(dir, "there")
	w, err := features.Create(t.Context(), there, header, features.Options{})
	if err == nil {
		_, err = w.Commit(t.Context(), features.Contents{})
	}
	if err != nil {
		t.Fatal(err)
	}
	onto := ExtractOptions{Model: model, Images: images, Out: there}
	if _, err := Extract(t.Context(), onto); !errors.Is(err, features.ErrDrifted) || !strings.Contains(err.Error(), "AllowDriftedFeatures") {
		t.Error(err)
	}
	said := 0
	onto.Options = extractor.Options{AllowDriftedFeatures: true, Drifted: func(string) { said++ }}
	if _, err := Extract(t.Context(), onto); err != nil || said != 1 {
		t.Error(err, said)
	}

	// What was made before there were probes is opened as ever.
	d.Probe = nil
	if err := d.CheckBackbone(t.Context(), extractor.Backbone(nil), extractor.Options{}); err != nil {
		t.Error(err)
	}
}
