package pipeline

import (
	"bytes"
	"context"
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

	"pgregory.net/rapid"

	"mlrbfn/conditioning"
	"mlrbfn/head"
	"mlrbfn/internal/safetensors"
	"mlrbfn/internal/testenv"
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
		Scores:   []float64{-3, -1.5, -1, -0.5},
		Source:   Source{Fingerprint: "f", Model: "models/m\xff", SHA256: "a", Output: "features", Preprocess: []byte(`{"exif":"ignore"}`)},
		Training: TrainingRecord{Features: []string{"x"}, Layers: 2, Validation: "0.1", Calibration: "0.1"},
		Splits:   map[string][]int{"validation": {1, 5}, "calibration": {2, 7, 9}},
	}
	for i := range heads {
		d.Seeds = append(d.Seeds, uint64(i))
		d.History = append(d.History, []head.Epoch{{Epoch: 1, Steps: 3, TrainLoss: 0.5}})
		d.Heads = append(d.Heads, &head.MLRBFN{Norm: 2, Recovery: 1.1, Layers: []head.Layer{
			{In: 4, N: 5, Out: 2, Centroids: array(20), Beta: array(5), InitBeta: 0.25, Projections: array(10)},
			{In: 2, N: 3, Centroids: array(6), Beta: array(3), InitBeta: 1},
		}})
	}
	return d
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
	c := &conditioning.Conditioning{
		Options: conditioning.Options{Kind: conditioning.Whiten, L2: true, Shrinkage: 0.25},
		Mean:    []float32{0.5, 0.25, -1}, Matrix: []float32{1, 2, 0, 0.5, -1, 3, 0.5, 0, 0, 1, -2, 1},
	}
	for _, h := range d.Heads {
		h.Conditioning = c
	}
	return d
}

func TestDetectorRoundTrip(t *testing.T) {
	scaled := detectorOf(1)
	scaled.Heads[0].Conditioning = &conditioning.Conditioning{
		Options: conditioning.Options{Kind: conditioning.Standardise}, Mean: []float32{1, 2, 3, 4}, Scale: []float32{5, 6, 7, 8},
	}
	for i, want := range []*Detector{detectorOf(1), detectorOf(3), conditioned(detectorOf(1)), conditioned(detectorOf(2)), scaled} {
		got, err := LoadDetector(save(t, want))
		if err != nil {
			t.Fatal(err)
		}
		for h := range want.Heads { // an empty array is as good as none
			for l := range want.Heads[h].Layers {
				if len(got.Heads[h].Layers[l].Projections) == 0 {
					got.Heads[h].Layers[l].Projections = want.Heads[h].Layers[l].Projections
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("detector %d: wrote %+v\nread  %+v", i, want, got)
		}
	}
	never := detectorOf(1)
	never.Threshold, never.Scores = math.Inf(-1), nil
	got, err := LoadDetector(save(t, never))
	if err != nil || !math.IsInf(got.Threshold, -1) || len(got.Scores) != 0 {
		t.Errorf("a detector without threshold came back with %g, %v", got.Threshold, err)
	}
}

// TestAblatedDetectorRoundTrip trains heads without one of the paper's steps;
// read again, they say the same, and not what a head with that step says.
func TestAblatedDetectorRoundTrip(t *testing.T) {
	points := clouds(t, 1, 40, twoLabels, two...)
	for name, change := range map[string]func(*head.Config){
		"depression":  func(c *head.Config) { c.NoDepression = true },
		"ratio":       func(c *head.Config) { c.NoRatio = true },
		"projections": func(c *head.Config) { c.NoProjections = true },
		"mean loss":   func(c *head.Config) { c.SumLoss = true },
	} {
		opts := quick(points)
		opts.Paper = true
		change(&opts.Head)
		want, _, err := Train(context.Background(), opts)
		if err != nil {
			t.Fatal(err)
		}
		path := save(t, want)
		got, err := LoadDetector(path)
		if err != nil {
			t.Fatal(err)
		}
		x := []float32{0, 0.5, 3, 1, 2, 2}
		if a, b := want.LogConfidences(x), got.LogConfidences(x); !slices.Equal(a, b) {
			t.Errorf("without %s: wrote %v, read %v", name, a, b)
		}
		if got.Training.SumLoss != opts.Head.SumLoss {
			t.Errorf("without %s: sum loss is %v", name, got.Training.SumLoss)
		}
		paper, _, err := Train(context.Background(), quick(points))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(paper.LogConfidences(x), got.LogConfidences(x)) {
			t.Errorf("without %s: the same confidences as with it", name)
		}
	}
}

// TestDetectorInPython recomputes a detector's scores from its file with NumPy
// alone, by the equations and not by our code.
func TestDetectorInPython(t *testing.T) {
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
	if !slices.Equal(got.Classes, d.Classes) || got.Threshold != d.Threshold || !slices.Equal(got.Calibration, d.Scores) {
		t.Errorf("Python reads %+v", got)
	}
	for i, want := range d.LogConfidences(x) {
		if math.Abs(got.Scores[i]-want) > 1e-12 {
			t.Errorf("log φ %d is %g, Python has %g", i, want, got.Scores[i])
		}
	}
}

func TestLoadDetectorRefuses(t *testing.T) {
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
	tests := map[string]struct {
		data []byte
		says string
	}{
		"empty":              {nil, ""},
		"cut short":          {good[:len(good)-1], ""},
		"one bit altered":    {altered, "altered"},
		"newer version":      {replace(`"version":2`, `"version":4`), "version 4"},
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
			d, err := LoadDetector(path)
			if d != nil || !errors.Is(err, ErrDetector) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := LoadDetector(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file gives %v", err)
	}
}

func TestThreshold(t *testing.T) {
	ascending := func(n int) []float64 {
		s := make([]float64, n)
		for i := range s {
			s[i] = float64(i + 1)
		}
		return s
	}
	for _, tt := range []struct {
		n    int
		tpr  float64
		want float64 // the rank, as scores are their ranks
	}{
		{0, 0.95, math.Inf(-1)}, {18, 0.95, math.Inf(-1)}, {19, 0.95, 1}, {39, 0.95, 2}, {100, 0.95, 5},
		{999, 0.95, 50}, {9, 0.9, 1}, {8, 0.9, math.Inf(-1)}, {99, 0.99, 1}, {3, 0.01, 3},
	} {
		if got := threshold(ascending(tt.n), tt.tpr); got != tt.want {
			t.Errorf("n=%d tpr=%g: rank %g, want %g", tt.n, tt.tpr, got, tt.want)
		}
	}
}

func TestPValue(t *testing.T) {
	scores := []float64{-3, -2, -2, -1}
	for _, tt := range []struct{ score, want float64 }{
		{-4, 1. / 5}, {-3, 2. / 5}, {-2.5, 2. / 5}, {-2, 4. / 5}, {-1, 1}, {0, 1}, {math.Inf(-1), 1. / 5},
	} {
		if got := pValue(scores, tt.score); got != tt.want {
			t.Errorf("p(%g) = %g, want %g", tt.score, got, tt.want)
		}
	}
	if got := pValue(nil, 1); got != 1 {
		t.Errorf("without calibration p = %g", got)
	}
}

// TestThresholdKeepsItsPromise: of scores drawn like the calibration scores at
// most a share 1−tpr is flagged, on average over calibration sets.
func TestThresholdKeepsItsPromise(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	const rounds, n, tpr = 20000, 50, 0.9
	flagged := 0
	scores := make([]float64, n)
	for range rounds {
		for i := range scores {
			scores[i] = rng.NormFloat64()
		}
		slices.Sort(scores)
		if rng.NormFloat64() < threshold(scores, tpr) {
			flagged++
		}
	}
	// The share is at most 5/51; its standard error here is 0.0021.
	if got := float64(flagged) / rounds; got > 5./51+0.007 || got < 5./51-0.03 {
		t.Errorf("%g of fresh scores are flagged, promised at most %g", got, 1-tpr)
	}
}

func TestHeadsAreAveraged(t *testing.T) {
	d := detectorOf(3)
	x := []float32{0.5, 0, -0.5, 1, 9, 9, 9, 9}
	got := d.LogConfidences(x)
	for i := range got {
		var mean float64
		for _, h := range d.Heads {
			mean += math.Exp(h.LogConfidences(x)[i]) / 3
		}
		if mean > 0 && math.Abs(got[i]-math.Log(mean)) > 1e-12*math.Abs(got[i]) {
			t.Errorf("log φ %d = %g, want %g", i, got[i], math.Log(mean))
		}
	}
	judge := d.judge()
	for i, want := range d.Verdicts(x) {
		got := judge(x[i*4 : (i+1)*4])[0]
		if got.Class != want.Class || got.OOD != want.OOD || math.Abs(got.Score-want.Score) > 1e-9*math.Abs(want.Score) {
			t.Errorf("row %d alone: %+v, among others %+v", i, got, want)
		}
		if want.Confidence < 0 || want.Confidence > 1 || want.OOD != (want.Score < d.Threshold) {
			t.Errorf("verdict %+v", want)
		}
	}
}

func TestOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		indices := make([]int, rapid.IntRange(0, 50).Draw(t, "n"))
		for i := range indices {
			indices[i] = i
		}
		var got []int
		put := ordered(func(v int) error { got = append(got, v); return nil })
		for _, i := range rapid.Permutation(indices).Draw(t, "order") {
			if err := put(i, i); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, indices) {
			t.Fatalf("came out as %v", got)
		}
	})
}

// TestVerdictsOfBlocks: a row's verdict is the same, to the bit, whatever rows
// are judged with it.
func TestVerdictsOfBlocks(t *testing.T) {
	const d, e = 70, 50
	rng := rand.New(rand.NewPCG(5, 5))
	condition := &conditioning.Conditioning{Options: conditioning.Options{L2: true}, Mean: randomRows(rng, 1, d), Matrix: randomRows(rng, d, e)}
	x := randomRows(rng, judgeBlock, d)
	for name, det := range map[string]*Detector{
		"k=1": randomDetector(rng, 1, 2, 2, e, true), "k=2": randomDetector(rng, 2, 3, 2, e, true), "open": randomOpenDetector(rng, 2, 2, e, 7),
	} {
		for _, h := range det.Heads {
			h.Conditioning = condition
		}
		judge := det.judge()
		for n := 1; n <= judgeBlock; n++ {
			for i, got := range judge(x[:n*d]) {
				if alone := judge(x[i*d : (i+1)*d])[0]; got != alone {
					t.Fatalf("%s: row %d is %+v alone, and %+v among %d", name, i, alone, got, n)
				}
			}
		}
	}
}
