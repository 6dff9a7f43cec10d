// Package pipetest makes feature sets and detectors for tests.
package pipetest

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

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
