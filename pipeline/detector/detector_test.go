package detector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// detectorOf makes a small detector with the given number of heads.
func detectorOf(heads int) *Detector {
	rng := rand.New(rand.NewPCG(uint64(heads), 1))
	array := func(n int) []float32 {
		a := make([]float32, n)
		for i := range a {
			a[i] = float32(rng.NormFloat64())
		}
		return a
	}
	d := &Detector{
		Classes: []string{"cat", "dog", "Ä\n"}, Threshold: -1.5, TargetTPR: 0.95,
		CalibrationScores: []float64{-3, -1.5, -1, -0.5},
		Source:            Source{Fingerprint: "f", Model: "models/m\xff", SHA256: "a", Output: "features", Preprocess: []byte(`{"exif":"ignore"}`)},
		Training:          TrainingRecord{Features: []string{"x"}, Layers: 2, Validation: "0.1", Calibration: "0.1"},
		Splits:            map[string][]int{"validation": {1, 5}, "calibration": {2, 7, 9}},
	}
	for i := range heads {
		d.Seeds = append(d.Seeds, uint64(i))
		d.History = append(d.History, []head.Epoch{{Epoch: 1, Steps: 3, TrainLoss: 0.5}})
		d.Heads = append(d.Heads, &head.Head{Network: &head.PaperNetwork{Norm: 2, Recovery: 1.1, Layers: []head.Layer{
			{In: 4, N: 5, Out: 2, Centroids: array(20), Beta: array(5), InitBeta: 0.25, Projections: array(10)},
			{In: 2, N: 3, Centroids: array(6), Beta: array(3), InitBeta: 1},
		}}})
	}
	return d
}

func verdictsOf(t *testing.T, d *Detector, x []float32) []Verdict {
	t.Helper()
	verdicts, err := d.Verdicts(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	return verdicts
}

func save(t *testing.T, d *Detector) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.safetensors")
	if err := d.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// conditioned gives a detector of detectorOf a conditioning from 3 features to
// the 4 that its heads read.
func conditioned(d *Detector) *Detector {
	c := &head.Conditioning{
		ConditioningOptions: head.ConditioningOptions{Kind: head.Whiten, L2: true, Shrinkage: 0.25},
		Mean:                []float32{0.5, 0.25, -1}, Matrix: []float32{1, 2, 0, 0.5, -1, 3, 0.5, 0, 0, 1, -2, 1},
	}
	for _, h := range d.Heads {
		h.Conditioning = c
	}
	return d
}

func TestDetectorRoundTrip(t *testing.T) {
	t.Parallel()
	scaled := detectorOf(1)
	scaled.Heads[0].Conditioning = &head.Conditioning{
		ConditioningOptions: head.ConditioningOptions{Kind: head.Standardise}, Mean: []float32{1, 2, 3, 4}, Scale: []float32{5, 6, 7, 8},
	}
	for i, want := range []*Detector{detectorOf(1), detectorOf(3), conditioned(detectorOf(1)), conditioned(detectorOf(2)), scaled} {
		got, err := Load(save(t, want))
		if err != nil {
			t.Fatal(err)
		}
		for h := range want.Heads { // an empty array is as good as none
			from, to := want.Heads[h].Network.(*head.PaperNetwork), got.Heads[h].Network.(*head.PaperNetwork)
			for l := range from.Layers {
				if len(to.Layers[l].Projections) == 0 {
					to.Layers[l].Projections = from.Layers[l].Projections
				}
			}
		}
		got.file = ""
		if !reflect.DeepEqual(got, want) {
			t.Errorf("detector %d: wrote %+v\nread  %+v", i, want, got)
		}
	}
	never := detectorOf(1)
	never.Threshold, never.CalibrationScores = math.Inf(-1), nil
	got, err := Load(save(t, never))
	if err != nil || !math.IsInf(got.Threshold, -1) || len(got.CalibrationScores) != 0 {
		t.Errorf("a detector without threshold came back with %g, %v", got.Threshold, err)
	}
}

// TestDetectorInPython recomputes a detector's scores from its file with NumPy
// alone, by the equations and not by our code.
func TestDetectorInPython(t *testing.T) {
	t.Parallel()
	d := conditioned(detectorOf(2))
	x := []float32{0.125, -0.375, 0.25, 0.75, 1, 0} // exact as decimals
	out := testenv.Python(t, `
import json, sys
import numpy as np
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as f:
    meta = json.loads(f.metadata()["mlrbfn"])
    t = {k: f.get_tensor(k).astype(np.float64) for k in f.keys()}
x = np.array(json.loads(sys.argv[2])).reshape(-1, 3)
if meta["conditioning"]["l2"]:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
x = (x - t["conditioning.mean"]) @ t["conditioning.matrix"]
sp = lambda v: np.log1p(np.exp(v))
total = 0
for h in range(len(meta["seeds"])):
    phi, dep, layer = x, np.ones(len(x)), 0
    while True:
        p = f"heads.{h}.layers.{layer}."
        c, beta = t[p + "centroids"], sp(t[p + "beta"])
        dist = (np.abs(phi[:, None] - c[None]) ** meta["norm"]).sum(-1)
        cap = np.minimum(dep * meta["recovery"], 1)[:, None]
        s = np.exp(-beta * dist) * cap
        if p + "projections" not in t:
            total = total + s
            break
        s *= beta / sp(t[p + "init_beta"])
        phi, dep, layer = s @ t[p + "projections"], s.max(1), layer + 1
print(json.dumps({"classes": meta["classes"], "threshold": meta["threshold"],
                  "scores": np.log(total / len(meta["seeds"])).ravel().tolist(),
                  "calibration": t["calibration.scores"].tolist()}))
`, save(t, d), fmt.Sprint("[", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(x)), ","), "[]"), "]"))
	var got struct {
		Classes             []string
		Threshold           float64
		Scores, Calibration []float64
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Classes, d.Classes) || got.Threshold != d.Threshold || !slices.Equal(got.Calibration, d.CalibrationScores) {
		t.Errorf("Python reads %+v", got)
	}
	for i, want := range d.Own(x).LogConfidences {
		if math.Abs(got.Scores[i]-want) > 1e-12 {
			t.Errorf("log φ %d is %g, Python has %g", i, want, got.Scores[i])
		}
	}
}

func TestLoadDetectorRefuses(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(save(t, detectorOf(1)))
	if err != nil {
		t.Fatal(err)
	}
	altered := slices.Clone(good)
	altered[len(altered)-3] ^= 4
	// rewrite passes the good file's parts through change and writes them with
	// a checksum that fits.
	rewrite := func(change func(map[string]string, *[]safetensors.Tensor)) []byte {
		file, err := safetensors.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		change(file.Metadata, &file.Tensors)
		var b bytes.Buffer
		if err := safetensors.Write(&b, file.Metadata, file.Tensors); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	replace := func(old, new string) []byte {
		return rewrite(func(meta map[string]string, _ *[]safetensors.Tensor) {
			if !strings.Contains(meta["mlrbfn"], old) {
				t.Fatalf("no %s in %s", old, meta["mlrbfn"])
			}
			meta["mlrbfn"] = strings.Replace(meta["mlrbfn"], old, new, 1)
		})
	}
	without := func(name string) []byte {
		return rewrite(func(_ map[string]string, tensors *[]safetensors.Tensor) {
			*tensors = slices.DeleteFunc(*tensors, func(s safetensors.Tensor) bool { return s.Name == name })
		})
	}
	calibrated := func(scores ...float64) []byte {
		return rewrite(func(_ map[string]string, tensors *[]safetensors.Tensor) {
			at := slices.IndexFunc(*tensors, func(s safetensors.Tensor) bool { return s.Name == "calibration.scores" })
			(*tensors)[at].Shape, (*tensors)[at].Data = []int{len(scores)}, scores
		})
	}
	nan := math.NaN()
	tests := map[string]struct {
		data []byte
		says string
	}{
		"scores of NaN":      {calibrated(nan, nan, nan), `"calibration.scores" holds NaN`},
		"one score of NaN":   {calibrated(nan, 1, 2), `"calibration.scores" holds NaN`},
		"infinite scores":    {calibrated(1, math.Inf(1)), "infinite"},
		"unsorted scores":    {calibrated(2, 1), "ascending"},
		"threshold of NaN":   {replace(`"threshold":`, `"threshold":NaN,"x":`), "metadata"},
		"threshold of 1e400": {replace(`"threshold":`, `"threshold":1e400,"x":`), "metadata"},
		"target_tpr of 2":    {replace(`"target_tpr":`, `"target_tpr":2,"x":`), "target_tpr"},
		"class twice":        {replace(`"cat",`, `"dog",`), `the name "dog" twice`},
		"class without name": {replace(`"cat",`, `"",`), "classes"},
		"folds below 0":      {replace(`"version":2`, `"version":4,"folds":-1`), "-1 folds"},
		"folds without end":  {replace(`"version":2`, `"version":4,"folds":4611686018427387904`), "fold 0 is missing"},
		"empty":              {nil, ""},
		"cut short":          {good[:len(good)-1], ""},
		"one bit altered":    {altered, "altered"},
		"newer version":      {replace(`"version":2`, `"version":9`), "version 9"},
		"no metadata":        {rewrite(func(m map[string]string, _ *[]safetensors.Tensor) { delete(m, "mlrbfn") }), "mlrbfn"},
		"class too few":      {replace(`"cat",`, ""), "classes"},
		"norm below 1":       {replace(`"norm":2`, `"norm":0.5`), "norm"},
		"no such depression": {replace(`"depression":"paper"`, `"depression":"x"`), "depression"},
		"layer missing":      {without("layers.1.centroids"), "layer"},
		"β missing":          {without("layers.1.beta"), "beta"},
		"scores missing":     {without("calibration.scores"), "calibration.scores"},
		"two seeds, one set": {replace(`"seeds":[0]`, `"seeds":[0,1]`), "head"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			if err := os.WriteFile(path, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := Load(path)
			if d != nil || !errors.Is(err, ErrDetector) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file gives %v", err)
	}
}

func TestHeadsAreAveraged(t *testing.T) {
	t.Parallel()
	d := detectorOf(3)
	x := []float32{0.5, 0, -0.5, 1, 9, 9, 9, 9}
	got := d.Own(x).LogConfidences
	for i := range got {
		var mean float64
		for _, h := range d.Heads {
			mean += math.Exp(h.Outputs(x).LogConfidences[i]) / 3
		}
		if mean > 0 && math.Abs(got[i]-math.Log(mean)) > 1e-12*math.Abs(got[i]) {
			t.Errorf("log φ %d = %g, want %g", i, got[i], math.Log(mean))
		}
	}
	judge := d.VerdictFunc()
	for i, want := range verdictsOf(t, d, x) {
		got := judge(x[i*4 : (i+1)*4])[0]
		if got.Class != want.Class || got.OOD != want.OOD || math.Abs(got.Score-want.Score) > 1e-9*math.Abs(want.Score) {
			t.Errorf("row %d alone: %+v, among others %+v", i, got, want)
		}
		if want.Confidence < 0 || want.Confidence > 1 || want.OOD != (want.Score < d.Threshold) {
			t.Errorf("verdict %+v", want)
		}
	}
}
