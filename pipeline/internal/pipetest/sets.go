// Package pipetest makes feature sets and detectors for tests.
package pipetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// Clouds writes a feature set as another program would, without features.json: n
// points in the plane around each of the centres, labelled by their order; nil
// labels leave labels.npy out, a −1 among them says no label.
func Clouds(t *testing.T, seed uint64, n int, labels []int64, centres ...[2]float64) string {
	t.Helper()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 7))
	var x []float32
	var y []int64
	for i := range n * len(centres) {
		c := i % len(centres)
		x = append(x, float32(centres[c][0]+0.3*rng.NormFloat64()), float32(centres[c][1]+0.3*rng.NormFloat64()))
		if labels != nil {
			y = append(y, labels[c])
		}
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(x)/2, 2); err != nil {
		t.Fatal(err)
	}
	if labels != nil {
		if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), y, len(y)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Layered writes a feature set as an extraction does: n points in the plane around the centres,
// labelled by their names, where there are any, and beside each a layer of width values, where
// that is above 0.
func Layered(t *testing.T, seed uint64, width int, value func(*rand.Rand) float64, n int, names []string, centres ...[2]float64) string {
	t.Helper()
	dir, random := filepath.Join(t.TempDir(), "set"), rand.New(rand.NewPCG(seed, 8))
	h := features.Header{D: 2, Fingerprint: "f"}
	if width > 0 {
		h.Layers, h.Embedding = []features.Layer{{Name: "block", D: width}}, "f"
		h.Fingerprint = features.LayersFingerprint("f", h.Layers)
	}
	w, err := features.Create(t.Context(), dir, h, features.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var all []features.Image
	for i := range n {
		c := i % len(centres)
		row := []float32{float32(centres[c][0] + .3*random.NormFloat64()), float32(centres[c][1] + .3*random.NormFloat64())}
		for range width {
			row = append(row, float32(value(random)))
		}
		img := features.Image{Path: fmt.Sprint(i), SHA256: strings.Repeat("0a", 32)}
		if names != nil {
			img.Label = &names[c]
		}
		if err := w.Append(img, row, nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, img)
	}
	if _, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: all}}, Classes: names}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TwoLabels and Two are the labels and the centres of two clouds.
var (
	TwoLabels = []int64{0, 1}
	Two       = [][2]float64{{0, 0}, {4, 0}}
)

// OpenOOD makes feature sets of the real problem on which OpenOOD's own classes
// were run: ResNet-20's features and logits of CIFAR-10 (train, val, id),
// CIFAR-100 (near) and textures (far).
func OpenOOD(t *testing.T) func(set string) string {
	t.Helper()
	from, to := testenv.OpenOOD(t), t.TempDir()
	for _, set := range []string{"train", "val", "id", "near", "far"} {
		dir := filepath.Join(to, set)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		for as, name := range map[string]string{
			"features": set + "_features", "logits": set + "_logits", "labels": set + "_labels",
			"fc_weight": "fc_weight", "fc_bias": "fc_bias",
		} {
			text, err := os.ReadFile(filepath.Join(from, name+".npy"))
			if errors.Is(err, os.ErrNotExist) && as == "labels" {
				continue // out-of-distribution images have none
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, as+".npy"), text, 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if labels, _, err := npy.Read[float32](filepath.Join(dir, "labels.npy")); err == nil {
			whole := make([]int64, len(labels))
			for i, y := range labels {
				whole[i] = int64(y)
			}
			if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), whole, len(whole)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func(set string) string { return filepath.Join(to, set) }
}

// SmallPaper and SmallResidual are networks that train in a moment.
var (
	SmallPaper    = head.Paper{Layers: 2, Centroids: 8, Projection: 4}
	SmallResidual = head.Residual{Layers: 2, Centroids: 8, Projection: 4}
)

// Small makes a residual network that trains in a moment.
func Small(c *head.Config, o *head.TrainOptions) {
	*c = SmallResidual
	o.Epochs, o.LR, o.Batch = 20, 0.02, 32
}
