package pipetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// RandomArray returns n normal numbers.
func RandomArray(rng *rand.Rand, n int, mean, spread float64) []float32 {
	a := make([]float32, n)
	for i := range a {
		a[i] = float32(mean + spread*rng.NormFloat64())
	}
	return a
}

// RandomLayers makes layers that read d numbers, the hidden ones giving o, with
// which confidences for rows of about unit numbers are neither all 0 nor all 1.
func RandomLayers(rng *rand.Rand, layers, d, o, classes int) []head.Layer {
	const n = 7
	array := func(n int, mean float64) []float32 { return RandomArray(rng, n, mean, 0.5) }
	var made []head.Layer
	for range layers - 1 {
		made = append(made, head.Layer{
			In: d, N: n, Out: o, Centroids: array(n*d, 0), Beta: array(n, -2), InitBeta: -2.5, Projections: array(n*o, 0),
		})
		d = o
	}
	return append(made, head.Layer{In: d, N: classes, Centroids: array(classes*d, 0), Beta: array(classes, -2), InitBeta: -2})
}

func RandomHead(rng *rand.Rand, norm float64, layers, d, classes int, depression bool) *head.Head {
	return &head.Head{Network: &head.PaperNetwork{Norm: norm, Recovery: 1.1, NoDepression: !depression, Layers: RandomLayers(rng, layers, d, 5, classes)}}
}

// RandomDensity returns the density of a residual network for rows of d numbers of so many
// classes.
func RandomDensity(rng *rand.Rand, d, classes int) *head.Density {
	return &head.Density{D: d, Means: RandomArray(rng, classes*d, 0, 0.5), Middle: 0.3 * float64(d), Radius: 0.5 * float64(d)}
}

// RandomResidual makes a residual head that reads rows of d numbers, its layers
// the first e of them.
func RandomResidual(rng *rand.Rand, density *head.Density, layers, e, classes int) *head.Head {
	return &head.Head{Network: &head.ResidualNetwork{
		Recovery: 1.1, Density: density, Layers: RandomLayers(rng, layers, e, e, classes),
		Score: &head.HeadScore{
			Nearness: head.Scale{Mean: -4 + rng.Float64(), Deviation: 1 + rng.Float64()},
			Decision: head.Scale{Mean: -2 * rng.Float64(), Deviation: 1 + rng.Float64()},
		},
	}}
}

func RandomDetector(rng *rand.Rand, norm float64, layers, heads, d int, depression bool) *detector.Detector {
	det := &detector.Detector{Classes: []string{"cat", "dog", "Ä\n", "<x>"}, Threshold: -2, TargetTPR: 0.95, CalibrationScores: []float64{-5, -2, -2, -1.5, -0.5}}
	for i := range heads {
		det.Seeds = append(det.Seeds, uint64(i))
		det.Heads = append(det.Heads, RandomHead(rng, norm, layers, d, len(det.Classes), depression))
	}
	return det
}

// RandomResidualDetector is RandomDetector of residual heads, which all but the last of
// more than one class have seen training rows of.
func RandomResidualDetector(rng *rand.Rand, layers, heads, d, classes int) *detector.Detector {
	det := &detector.Detector{TargetTPR: 0.95}
	for c := range classes {
		det.Classes = append(det.Classes, fmt.Sprint(c))
	}
	density := RandomDensity(rng, d, max(1, classes-1))
	for i := range heads {
		if i == 2 {
			density = RandomDensity(rng, d, classes)
		}
		det.Seeds = append(det.Seeds, uint64(i))
		det.Heads = append(det.Heads, RandomResidual(rng, density, layers, d/2, classes))
	}
	Calibrate(det, RandomRows(rng, 20, d))
	return det
}

// Calibrate gives a detector the scores of the rows x, and their median as its
// threshold.
func Calibrate(det *detector.Detector, x []float32) {
	det.CalibrationScores = nil
	verdicts, _ := det.Verdicts(context.Background(), x) // fails only when cancelled
	for _, v := range verdicts {
		det.CalibrationScores = append(det.CalibrationScores, v.Score)
	}
	slices.Sort(det.CalibrationScores)
	det.Threshold = det.CalibrationScores[len(det.CalibrationScores)/2]
}

// Verdicts are a detector's on the rows x.
func Verdicts(t testing.TB, det *detector.Detector, x []float32) []detector.Verdict {
	t.Helper()
	verdicts, err := det.Verdicts(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// RandomRows returns rows near the centroids, every third far from them.
func RandomRows(rng *rand.Rand, n, d int) []float32 {
	x := make([]float32, n*d)
	for i := range x {
		x[i] = float32(0.5 * rng.NormFloat64())
		if i/d%3 == 2 {
			x[i] *= 30
		}
	}
	return x
}
