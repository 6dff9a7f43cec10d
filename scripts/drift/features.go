package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/drift"
)

// onFeatures streams the rows of a feature set in random orders through a detector, and from
// the middle on rows of another set among them, and prints how soon the alarm comes.
func onFeatures(file, calm, then string, runs int) error {
	d, err := detector.Load(file)
	if err != nil {
		return err
	}
	known, err := verdictsOf(d, calm)
	if err != nil {
		return err
	}
	strange, err := verdictsOf(d, then)
	if err != nil {
		return err
	}
	stream := func(seed int, share float64) int {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		w := drift.NewWatch(0.01, drift.CalibrationOf(d), uint64(seed))
		first, second := rng.Perm(len(known)), rng.Perm(len(strange))
		for i, row := range first {
			v := known[row]
			if i >= len(known)/2 && rng.Float64() < share && len(second) > 0 {
				v, second = strange[second[0]], second[1:]
			}
			if all, class := w.Add(v.Class, v.Score); all.Now || class.Now {
				return i + 1
			}
		}
		return 0
	}
	fmt.Printf("%d images of %s in %d random orders; from number %d on a share of them is of %s. Alarm with a chance of 0.01 for all images and classes together\n",
		len(known), calm, runs, len(known)/2+1, then)
	fmt.Printf("  %6s  %12s  %12s  %s\n", "share", "before", "none", "images until the alarm, median (90% quantile)")
	for _, share := range []float64{0, 0.05, 0.1, 0.2, 0.5, 1} {
		before, none := 0, 0
		var delays []int
		for seed := range runs {
			switch at := stream(seed, share); {
			case at == 0:
				none++
			case at <= len(known)/2:
				before++
			default:
				delays = append(delays, at-len(known)/2)
			}
		}
		for range none {
			delays = append(delays, len(known))
		}
		slices.Sort(delays)
		cell := func(i int) string {
			if i >= len(delays) || delays[i] == len(known) {
				return "none"
			}
			return fmt.Sprint(delays[i])
		}
		fmt.Printf("  %5.0f%%  %5d of %-4d  %5d of %-4d  %s (%s)\n", 100*share, before, runs, none, runs, cell(len(delays)/2), cell(len(delays)*9/10))
	}
	return nil
}

func verdictsOf(d *detector.Detector, dir string) (_ []detector.Verdict, err error) {
	set, err := features.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if set.D != d.Dim() {
		return nil, fmt.Errorf("%s has %d features, the detector takes %d", dir, set.D, d.Dim())
	}
	return d.Verdicts(set.Features()), nil
}
