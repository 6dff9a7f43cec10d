package report_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/report"
)

func TestDriftInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	between := &[2]float64{0.01, 0.2}
	d := report.Drift{Frame: report.Frame{Title: "Drift <b>", Lead: []string{"40 images."}, Answer: "Alarm: image 31."}, Threshold: 4.6,
		Raised:  []report.Finding{{Image: images.Picture{Path: "<i>31</i>.jpg"}, Score: "0.001", Suggested: "cat"}},
		Classes: []report.DriftClass{{Name: "<b>cat</b>", Images: 30, OOD: 9, MeanP: 0.4, Early: 0.9, Late: 0.4, Expected: between, Alarm: &report.DriftAlarm{Image: 31}}, {Name: "dog", Images: 10}}}
	for i := range 4 {
		d.Parts = append(d.Parts, report.DriftPart{From: 10*i + 1, To: 10*i + 10, OOD: 3 * i, Expected: between, MeanP: 0.1, ExpectedP: between, LogWealth: 2 * float64(i),
			Classes: map[string]int{"<b>cat</b>": 10 - 2*i, "dog": 2 * i}})
	}
	file := filepath.Join(t.TempDir(), "drift.html")
	if err := report.WriteDrift(file, d); err != nil {
		t.Fatal(err)
	}
	report.Look(t, b, "drift", file)
}

// Expected values are those of scipy.stats.chisquare.
func TestShareChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts, sizes []int
		want          float64
	}{
		{[]int{10, 20, 30}, []int{100, 100, 100}, 10},          // chisquare([10, 20, 30])
		{[]int{5, 8, 40}, []int{50, 100, 200}, 7.358490566038}, // chisquare([5, 8, 40], 53*np.array([50, 100, 200])/350)
		{[]int{7, 0, 7}, []int{70, 0, 70}, 0},
		{[]int{0, 0}, []int{3, 4}, 0},
		{nil, nil, 0},
	} {
		if got := report.ShareChange(c.counts, c.sizes); math.Abs(got-c.want) > 1e-10 {
			t.Errorf("%d of %d: %v, want %v", c.counts, c.sizes, got, c.want)
		}
	}
}
