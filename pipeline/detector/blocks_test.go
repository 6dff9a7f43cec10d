package detector_test

import (
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestVerdictsOfBlocks: a row's verdict is bit-identical, whatever rows
// are judged with it.
func TestVerdictsOfBlocks(t *testing.T) {
	t.Parallel()
	const d, e = 70, 50
	rng := rand.New(rand.NewPCG(5, 5))
	condition := &head.Conditioning{ConditioningOptions: head.ConditioningOptions{L2: true}, Mean: pipetest.RandomRows(rng, 1, d), Matrix: pipetest.RandomRows(rng, d, e)}
	x := pipetest.RandomRows(rng, detector.VerdictRows, d)
	for name, det := range map[string]*detector.Detector{
		"k=1": pipetest.RandomDetector(rng, 1, 2, 2, e, true), "k=2": pipetest.RandomDetector(rng, 2, 3, 2, e, true), "residual": pipetest.RandomResidualDetector(rng, 2, 2, e, 7),
	} {
		for _, h := range det.Heads {
			h.Conditioning = condition
		}
		judge := det.VerdictFunc()
		for n := 1; n <= detector.VerdictRows; n++ {
			for i, got := range judge(x[:n*d]) {
				if alone := judge(x[i*d : (i+1)*d])[0]; got != alone {
					t.Fatalf("%s: row %d is %+v alone, and %+v among %d", name, i, alone, got, n)
				}
			}
		}
	}
}
