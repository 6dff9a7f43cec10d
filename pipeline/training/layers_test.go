package training

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

var testLayers = []features.Layer{{Name: "a", D: 4, Pool: "mean"}, {Name: "b", D: 6, Pool: "mean"}}

// layeredRows returns rows of classes of which the embedding tells pairs; each class has values
// of its own in layer b, and those of the layer a are noise.
func layeredRows(seed uint64, n int, classes ...int64) (x, layers []float32, labels []int64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	normal := func(mean float64) float32 { return float32(mean + rng.NormFloat64()) }
	for i := range n {
		y := classes[i%len(classes)]
		for j := range 8 {
			mean := 10.
			if j == int(y)%2 { // classes are alike in pairs
				mean = 14
			}
			x = append(x, normal(mean))
		}
		for range 4 {
			layers = append(layers, normal(10))
		}
		for j := range 6 {
			mean := 10.
			if j == int(y) {
				mean = 16
			}
			layers = append(layers, normal(mean))
		}
		labels = append(labels, y)
	}
	return x, layers, labels
}

func layeredSet(t *testing.T, seed uint64, with bool) *features.Set {
	x, layers, labels := layeredRows(seed, 900, 0, 1, 2)
	set, err := features.InMemory(x, 8, labels, []string{"one", "two", "three"})
	if err == nil && with {
		err = set.SetLayers(testLayers, layers)
	}
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestLayersArePartsOfTheScore: a layer that tells a new class which the embedding takes for
// a known one gets a part of the score, and one of noise hardly any. The detector reads both,
// also from its file, with folds and with known outliers.
func TestLayersArePartsOfTheScore(t *testing.T) {
	t.Parallel()
	x, layers, labels := layeredRows(2, 400, 0, 1, 2, 3)
	judge := func(d *detector.Detector) (auroc float64) {
		var known, new []float64
		rows := x
		if len(d.Source.Layers) > 0 {
			rows = nil
			for i := range labels {
				rows = append(append(rows, x[8*i:8*i+8]...), layers[10*i:10*i+10]...)
			}
		}
		for i, v := range pipetest.Verdicts(t, d, rows) {
			if labels[i] == 3 {
				new = append(new, v.Score)
			} else {
				known = append(known, v.Score)
			}
		}
		return metrics.AUROC(known, new)
	}
	train := func(with bool, change func(*Options)) *detector.Detector {
		o := Options{Rows: layeredSet(t, 1, with), Seeds: []uint64{0}}
		pipetest.Small(&o.Head, &o.Train)
		if change != nil {
			change(&o)
		}
		d, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	plain, d := train(false, nil), train(true, nil)
	if !slices.Equal(d.Source.Layers, testLayers) || d.Dim() != 18 || !slices.Contains(d.PartNames(), "late:b") {
		t.Fatalf("layers %v, parts %v", d.Source.Layers, d.PartNames())
	}
	if without, with := judge(plain), judge(d); with < without+0.1 {
		t.Errorf("AUROC %.3f with layers, %.3f without", with, without)
	}
	file := filepath.Join(t.TempDir(), "d")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	loaded, err := detector.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	rows := slices.Concat(x[:8], layers[:10], x[8:16], layers[10:20])
	if !slices.Equal(pipetest.Verdicts(t, loaded, rows), pipetest.Verdicts(t, d, rows)) || !slices.Equal(loaded.VerdictFunc()(rows), pipetest.Verdicts(t, d, rows)) {
		t.Errorf("verdicts %v from the file, %v before", pipetest.Verdicts(t, loaded, rows), pipetest.Verdicts(t, d, rows))
	}
	// Leaving the parts out leaves a detector of the embedding.
	if none := train(true, func(o *Options) { o.WithoutParts = []string{"early:a", "late:b"} }); none.Dim() != 8 || none.Source.Layers != nil || judge(none) != judge(plain) {
		t.Errorf("without the parts: %d features, AUROC %.3f, want %.3f", none.Dim(), judge(none), judge(plain))
	}
	if crossed := train(true, func(o *Options) { o.Calibration = Share{Folds: 3} }); crossed.Folds[0].Dim() != 18 || judge(crossed) < judge(plain)+0.1 {
		t.Errorf("with folds: %d features, AUROC %.3f", crossed.Folds[0].Dim(), judge(crossed))
	}
}

// TestLayersOfSomeSets: sets that do not have the same layers are trained on without any.
func TestLayersOfSomeSets(t *testing.T) {
	t.Parallel()
	names := detector.LayerPart(testLayers, 0) + " " + detector.LayerPart(testLayers, 1)
	if want := "early:a late:b"; !strings.EqualFold(names, want) {
		t.Errorf("parts %s, want %s", names, want)
	}
	held := filepath.Join(t.TempDir(), "held")
	x, _, labels := layeredRows(3, 90, 0, 1, 2)
	w, err := features.Create(t.Context(), held, features.Header{D: 8, Fingerprint: "f"}, features.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	names3 := []string{"one", "two", "three"}
	var listing []features.Image
	for i, y := range labels {
		img := features.Image{Path: names3[y] + "/" + string(rune('a'+i%26)) + string(rune('a'+i/26)), Label: &names3[y], SHA256: strings.Repeat("0a", 32)}
		if err := w.Append(img, x[8*i:8*i+8], nil); err != nil {
			t.Fatal(err)
		}
		listing = append(listing, img)
	}
	if _, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: listing}}, Classes: names3}); err != nil {
		t.Fatal(err)
	}
	o := Options{Rows: layeredSet(t, 1, true), Seeds: []uint64{0}, Validation: Share{Features: held}}
	pipetest.Small(&o.Head, &o.Train)
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if d.Dim() != 8 || d.Source.Layers != nil {
		t.Errorf("%d features, layers %v", d.Dim(), d.Source.Layers)
	}
}
