package training

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

const (
	farRows   = 500 // made-up rows
	farAway   = 4.  // standard deviations of each feature that are added at random
	leastSeen = 0.5 // share of them that a score must flag without a word
)

// warnOfFar notes that a score that was chosen flags few rows that are unlike all training
// rows: some of these plus noise of four times the deviation of each feature. Scores that read
// nothing but logits take such rows for clear cases. They need a guard, as the default score has.
func (t *Data) warnOfFar(ctx context.Context, r *Result, d *detector.Detector) error {
	if t.Options.Score == detector.JoinedScore || t.Options.Score == detector.HeadScore || math.IsInf(d.Threshold, -1) {
		return nil
	}
	rows := features.Every(t.Rows.Labelled().Index, farRows)
	x := slices.Clone(t.Table.Gather(rows)) // which may be the rows themselves
	rng := rand.New(rand.NewPCG(t.Options.Seeds[0], 0x666172))
	for j := range t.D {
		var sum, squares float64
		for i := range rows {
			v := float64(x[i*t.D+j])
			sum, squares = sum+v, squares+v*v
		}
		n := float64(len(rows))
		deviation := math.Sqrt(max(0, squares/n-sum/n*sum/n))
		for i := range rows {
			x[i*t.D+j] += float32(farAway * deviation * rng.NormFloat64())
		}
	}
	verdicts, err := d.VerdictsContext(ctx, x)
	if err != nil {
		return err
	}
	flagged := 0
	for _, v := range verdicts {
		if v.OOD {
			flagged++
		}
	}
	if share := float64(flagged) / float64(len(verdicts)); share < leastSeen {
		r.Warnings = append(r.Warnings, fmt.Sprintf(
			"the score %s has no guard against far images: of made-up images that are unlike all training images it flags %.0f%%; the default score has one, and evaluate with a set of far images says what is true of yours", t.Options.Score, 100*share))
	}
	return nil
}
