package detector_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// joined is a detector of d features that judges by several scores, with random
// numbers in the place of fitted ones.
func joined(d, classes int) *detector.Detector {
	rng := rand.New(rand.NewPCG(5, 1))
	det := pipetest.RandomDetector(rng, 2, 1, 1, d, true)
	det.Classes = make([]string, classes)
	density := pipetest.RandomDensity(rng, d, classes)
	det.Heads = []*head.Head{pipetest.RandomResidual(rng, density, 2, 50, classes)}
	det.Heads[0].Conditioning = &head.Conditioning{ConditioningOptions: head.ConditioningOptions{L2: true}, Mean: pipetest.RandomArray(rng, d, 0, 0.1), Matrix: pipetest.RandomArray(rng, d*d, 0, 1)}
	numbers := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	linear := &posthoc.Linear{In: d, Out: classes, Weights: numbers(classes * d), Bias: numbers(classes)}
	linear.Narrow()
	own := &posthoc.Linear{In: d, Out: classes, Weights: numbers(classes * d), Bias: numbers(classes)}
	own.Narrow()
	det.Scoring = &detector.Scoring{Name: "joined", Classifier: linear}
	mean, deviation := numbers(d), numbers(d)
	for _, part := range []struct {
		name string
		of   posthoc.Scorer
	}{
		{"react-s", &posthoc.Clip{Head: own, Low: math.Inf(-1), High: 1}}, {"vra-s", &posthoc.Clip{Head: own, Low: -1, High: 1}},
		{"fdbd-s", &posthoc.FDBD{Classes: classes, Mean: numbers(d), Distances: numbers(classes * classes)}},
		{"vim-s", &posthoc.ViM{Head: own, Residual: &posthoc.Residual{Origin: numbers(d), Basis: numbers(d * (d - 512))}, Alpha: 1}},
	} {
		s := &posthoc.Standardised{Mean: mean, Deviation: deviation, Of: part.of}
		det.Scoring.Parts = append(det.Scoring.Parts, detector.Part{Name: part.name, Score: s, Scale: detector.Unscaled})
	}
	det.Scoring.Parts = append(det.Scoring.Parts, detector.Part{Name: "gen", Score: &posthoc.GEN{}, Scale: detector.Unscaled},
		detector.Part{Name: detector.DensityPart, Scale: detector.Unscaled}, detector.Part{Name: detector.DecisionPart, Scale: detector.Unscaled})
	return det
}

// TestJudgeAlongside: a large detector, whose heads and other parts are computed at the
// same time, gives the verdicts of one after the other.
func TestJudgeAlongside(t *testing.T) {
	t.Parallel()
	const d, classes, n = 768, 400, 3
	det := joined(d, classes)
	x := pipetest.RandomArray(rand.New(rand.NewPCG(5, 2)), n*d, 0, 1)
	want, err := det.Verdicts(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	if got := det.VerdictFunc()(x); !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

// BenchmarkJudge judges one image, and as many at once as there can be, by each part of
// the default score, and by their sum.
func BenchmarkJudge(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 2))
	for _, size := range [][2]int{{768, 10}, {1280, 10}, {768, 1000}, {1280, 1000}} {
		d, det := size[0], joined(size[0], size[1])
		all := det.Scoring.Parts
		for i := range len(all) + 1 {
			name := "all"
			if det.Scoring.Parts = all; i < len(all) {
				name, det.Scoring.Parts = all[i].Name, all[i:i+1]
			}
			for _, n := range []int{1, detector.VerdictRows} {
				b.Run(fmt.Sprintf("%d features/%d classes/%s/%d rows", d, size[1], name, n), func(b *testing.B) {
					x := pipetest.RandomArray(rng, n*d, 0, 1)
					judge := det.VerdictFunc()
					for b.Loop() {
						judge(x)
					}
					b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N*n), "µs/row")
				})
			}
		}
	}
}
