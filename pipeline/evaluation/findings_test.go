package evaluation_test

import (
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// TestFindings: equal methods share the first place, one that the images do not tell from
// others is not called ahead, and a choice on test images says what it costs.
func TestFindings(t *testing.T) {
	t.Parallel()
	e := &evaluation.Evaluation{Own: "mlrbfn"}
	add := func(method string, near, far float64) {
		for group, v := range map[string]float64{metrics.Near: near, metrics.Far: far} {
			e.Results = append(e.Results, metrics.Measurement{Method: method, Seed: "mean", Group: group, Dataset: "mean", Result: metrics.Result{AUROC: v}})
		}
	}
	add("mlrbfn", 0.90, 1)
	add("react", 0.93, 0.60)
	add("knn", 0.70, 1)
	says := func(wants ...string) {
		t.Helper()
		text := strings.Join(e.Findings(), "\n")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s\nlacks %q", text, want)
			}
		}
	}
	says("On near-OOD react has the highest mean AUROC, 93.00%; without intervals nobody knows",
		"on far-OOD it has 60.00%, 40.00 points below the highest", "mlrbfn is 3.00 points below it",
		"On far-OOD 2 of 3 methods share the highest mean AUROC, 100.00%: mlrbfn, knn.", "chosen on these test images, from 3")
	e.Differences = []evaluation.Difference{
		{"mlrbfn", "react", metrics.Near, -0.03, metrics.Interval{Low: -0.07, High: 0.01}},
		{"react", "knn", metrics.Near, 0.23, metrics.Interval{Low: 0.2, High: 0.25}},
	}
	says("but these images and sets do not tell it from mlrbfn", "3.00 points below it (-1.00 to 7.00)")
	e.Differences[0].Interval = metrics.Interval{Low: -0.04, High: -0.02}
	says("On near-OOD react is ahead of the other methods, with a mean AUROC of 93.00%", "3.00 points below it (2.00 to 4.00)")
	e.Own = "react"
	if text := strings.Join(e.Findings(), " "); strings.Contains(text, "chosen on") {
		t.Errorf("the method that the detector judges by was not chosen: %s", text)
	}
}
