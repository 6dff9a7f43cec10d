package features_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
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
		s, err := features.Split(labels, nil, classes, val, cal, seed)
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
		again, err := features.Split(labels, nil, classes, val, cal, seed)
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
		s, err := features.Split(labels, nil, 10, 0.1, 0.1, seed)
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
		s, err := features.Split(labels, nil, 2001, 0.1, 0.1, 3)
		if err != nil {
			t.Fatal(err)
		}
		if v, c := len(s.Validation), len(s.Calibration); v < 20 || v > 21 || c < 20 || c > 21 {
			t.Errorf("one class of 200 among singletons gives %d and %d rows", v, c)
		}
	}
	if _, err := features.Split(labels, nil, 10, 0.5, 0.5, 0); err == nil {
		t.Error("a split that leaves nothing to train on was accepted")
	}
}

// TestSplitGroups: groups stay in one part, one row of each calibrates, and
// groups of one row are split as rows are.
func TestSplitGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.IntRange(1, 6).Draw(t, "classes")
		labels := make([]int64, rapid.IntRange(0, 200).Draw(t, "n"))
		groups, alone := make([]int, len(labels)), make([]int, len(labels))
		most := rapid.IntRange(1, 100).Draw(t, "groups")
		for i := range labels {
			labels[i] = int64(rapid.IntRange(-1, classes-1).Draw(t, "label"))
			groups[i] = rapid.IntRange(0, most).Draw(t, "group")
			alone[i] = 7 * (len(labels) - i)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		split := func(groups []int) features.Parts {
			s, err := features.Split(labels, groups, classes, 0.1, 0.2, seed)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		want := splitRows(labels, classes, 0.1, 0.2, seed)
		for _, s := range []features.Parts{split(nil), split(alone)} {
			if !slices.Equal(s.Train, want[0]) || !slices.Equal(s.Validation, want[1]) || !slices.Equal(s.Calibration, want[2]) || len(s.LeftOut) > 0 {
				t.Fatal("rows of no group are split in another way than ever")
			}
		}

		s := split(groups)
		part, of := map[int]int{}, map[int]int{} // of rows, of groups
		for p, rows := range [][]int{s.Train, s.Validation, slices.Concat(s.Calibration, s.LeftOut)} {
			if p < 2 && !slices.IsSorted(rows) {
				t.Fatalf("part %d is not ascending", p)
			}
			for _, r := range rows {
				if _, twice := part[r]; twice || labels[r] < 0 {
					t.Fatalf("row %d with label %d is in parts %d and %d", r, labels[r], part[r], p)
				}
				part[r] = p
				if q, known := of[groups[r]]; known && p != q {
					t.Fatalf("group %d is in parts %d and %d", groups[r], p, q)
				}
				of[groups[r]] = p
			}
		}
		trained := make([]bool, classes)
		for r, p := range part {
			trained[labels[r]] = trained[labels[r]] || p == 0
		}
		for r, y := range labels {
			if _, found := part[r]; y >= 0 && (!found || !trained[y]) {
				t.Fatalf("row %d of class %d is in a part: %v; its class has rows to train on: %v", r, y, found, trained[y])
			}
		}
		if len(of) != s.Groups {
			t.Fatalf("%d groups, want %d", s.Groups, len(of))
		}
		calibrate := map[int]int{}
		for _, r := range s.Calibration {
			calibrate[groups[r]]++
		}
		for g, p := range of {
			if p == 2 && calibrate[g] != 1 {
				t.Fatalf("%d rows of group %d calibrate", calibrate[g], g)
			}
		}
	})
}

// TestSplitDrawsFromGroups: any row of a group may calibrate.
func TestSplitDrawsFromGroups(t *testing.T) {
	labels, groups := make([]int64, 40), make([]int, 40)
	for i := range groups {
		groups[i] = i / 4
	}
	var drawn [4]int
	for seed := range uint64(400) {
		s, err := features.Split(labels, groups, 1, 0, 0.5, seed)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Calibration) < 4 || len(s.Calibration) > 5 || len(s.LeftOut) != 3*len(s.Calibration) {
			t.Fatalf("%d rows calibrate and %d are left out", len(s.Calibration), len(s.LeftOut))
		}
		for _, r := range s.Calibration {
			drawn[r%4]++
		}
	}
	for i, n := range drawn {
		if n < 400 || n > 600 { // about 2,000 in all
			t.Errorf("row %d of its group calibrates %d times: %v", i, n, drawn)
		}
	}
}

func TestSplitCountsClassesOfOneGroup(t *testing.T) {
	// Class 0: rows of two groups; class 1: two rows of one group; class 2: a row.
	s, err := features.Split([]int64{0, 1, 0, 1, 2, -1}, []int{5, 6, 7, 6, 8, 9}, 3, 0.4, 0.4, 1)
	if err != nil || !slices.Equal(s.OneGroup, []int{1, 3, 4}) || s.Groups != 4 {
		t.Errorf("rows %v of %d groups, %v", s.OneGroup, s.Groups, err)
	}
	for _, r := range s.OneGroup {
		if !slices.Contains(s.Train, r) {
			t.Errorf("row %d is not for training", r)
		}
	}
}

// splitRows is the split as it was when there were no groups.
func splitRows(labels []int64, classes int, validation, calibration float64, seed uint64) (parts [3][]int) {
	byClass := make([][]int, classes)
	for row, y := range labels {
		if y >= 0 {
			byClass[y] = append(byClass[y], row)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x73706c6974))
	dueValidation, dueCalibration := rng.Float64(), rng.Float64()
	for _, class := range rng.Perm(classes) {
		rows := byClass[class]
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		take := func(due *float64, fraction float64, from int) []int {
			*due += fraction * float64(len(rows))
			n := max(0, min(int(math.Floor(*due)), len(rows)-1-from))
			*due = min(*due-float64(n), 1)
			return rows[from : from+n]
		}
		v := take(&dueValidation, validation, 0)
		c := take(&dueCalibration, calibration, len(v))
		parts[0] = append(parts[0], rows[len(v)+len(c):]...)
		parts[1] = append(parts[1], v...)
		parts[2] = append(parts[2], c...)
	}
	for _, part := range parts {
		slices.Sort(part)
	}
	return parts
}

func TestOneOfEach(t *testing.T) {
	groups := []int{3, -1, 3, 0, 7, -1, 0}
	seen := map[int]bool{}
	for seed := range uint64(50) {
		rows := features.OneOfEach(groups, seed)
		if len(rows) != 3 || !slices.IsSorted(rows) {
			t.Fatalf("rows %v", rows)
		}
		of := map[int]bool{}
		for _, r := range rows {
			seen[r], of[groups[r]] = true, true
		}
		if len(of) != 3 || of[-1] {
			t.Fatalf("rows %v are of the groups %v", rows, of)
		}
	}
	if len(seen) != 5 {
		t.Errorf("rows %v are ever drawn", seen)
	}
}
