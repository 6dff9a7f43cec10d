package dataset_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mlrbfn/dataset"
	_ "mlrbfn/internal/testenv/fixedseed"
)

func TestSplitRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.IntRange(1, 12).Draw(t, "classes")
		labels := make([]int64, rapid.IntRange(0, 300).Draw(t, "n"))
		for i := range labels {
			labels[i] = int64(rapid.IntRange(-1, classes-1).Draw(t, "label"))
		}
		val := rapid.Float64Range(0, 0.45).Draw(t, "validation")
		cal := rapid.Float64Range(0, 0.45).Draw(t, "calibration")
		seed := rapid.Uint64().Draw(t, "seed")
		s, err := dataset.Split(labels, nil, classes, val, cal, seed)
		if err != nil {
			t.Fatal(err)
		}

		// Every labelled row is in exactly one part.
		all := slices.Concat(s.Train, s.Validation, s.Calibration)
		slices.Sort(all)
		var labelled []int
		count := make([]int, classes)
		for i, y := range labels {
			if y >= 0 {
				labelled = append(labelled, i)
				count[y]++
			}
		}
		if !slices.Equal(all, labelled) {
			t.Fatalf("parts hold rows %v, labelled are %v", all, labelled)
		}
		// Classes give their share, to within a row or two, and keep a row.
		for y, n := range count {
			of := func(rows []int) (in int) {
				for _, r := range rows {
					if labels[r] == int64(y) {
						in++
					}
				}
				return in
			}
			if n > 0 && of(s.Train) == 0 {
				t.Fatalf("class %d of %d rows has none to train on", y, n)
			}
			if n > 4 {
				if got, want := float64(of(s.Validation)), val*float64(n); math.Abs(got-want) > 2 {
					t.Fatalf("class %d of %d rows gives %g to validation, want %g", y, n, got, want)
				}
			}
		}
		again, err := dataset.Split(labels, nil, classes, val, cal, seed)
		if err != nil || !slices.Equal(again.Train, s.Train) || !slices.Equal(again.Calibration, s.Calibration) {
			t.Fatal("the same seed gave another split")
		}
	})
}

func TestSplitRowsExactly(t *testing.T) {
	labels := make([]int64, 1000)
	for i := range labels {
		labels[i] = int64(i % 10)
	}
	for seed := range uint64(20) {
		s, err := dataset.Split(labels, nil, 10, 0.1, 0.1, seed)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Validation) != 100 || len(s.Calibration) != 100 || len(s.Train) != 800 {
			t.Fatalf("seed %d: %d, %d and %d rows", seed, len(s.Train), len(s.Validation), len(s.Calibration))
		}
	}
	// A class of one image each but for one: that one gives its share and no
	// more, whichever comes first.
	for big := range 2 {
		var labels []int64
		for i := range 2000 {
			labels = append(labels, int64(i+1-big))
		}
		labels = append(labels, slices.Repeat([]int64{int64(2000 * big)}, 200)...)
		s, err := dataset.Split(labels, nil, 2001, 0.1, 0.1, 3)
		if err != nil {
			t.Fatal(err)
		}
		if v, c := len(s.Validation), len(s.Calibration); v < 20 || v > 21 || c < 20 || c > 21 {
			t.Errorf("one class of 200 among singletons gives %d and %d rows", v, c)
		}
	}
	if _, err := dataset.Split(labels, nil, 10, 0.5, 0.5, 0); err == nil {
		t.Error("a split that leaves nothing to train on was accepted")
	}
}
