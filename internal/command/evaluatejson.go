package command

import (
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Names of the JSON object that evaluate prints. What was not measured is null.
type (
	evaluationJSON struct {
		Out         string                  `json:"out,omitempty"`
		Results     []resultJSON            `json:"results"` // the lines of results.csv
		Intervals   []intervalJSON          `json:"intervals"`
		Differences []evaluation.Difference `json:"differences"` // the lines of differences.csv
		Own         string                  `json:"own,omitempty"`
		Findings    []string                `json:"findings"`
		Confidence  *confidenceJSON         `json:"confidence"`
		Detector    []labelJSON             `json:"detector,omitempty"` // at its own threshold, by label
	}
	resultJSON struct {
		Method  string `json:"method"`
		Seed    string `json:"seed"`
		Group   string `json:"group"`
		Dataset string `json:"dataset"`
		NID     int    `json:"n_id"`
		NOOD    int    `json:"n_ood"`
		metricsJSON[*float64]
		IDAcc *float64 `json:"id_acc"`
	}
	intervalJSON struct {
		Method  string `json:"method"`
		Group   string `json:"group"`
		Dataset string `json:"dataset"`
		metricsJSON[[2]float64]
	}
	metricsJSON[T any] struct {
		AUROC   T `json:"auroc"`
		AUPROut T `json:"aupr_out"`
		AUPRIn  T `json:"aupr_in"`
		FPR95   T `json:"fpr95"`
		FPR95ID T `json:"fpr95_id"`
	}
	confidenceJSON struct {
		Error  float64                  `json:"expected_calibration_error"`
		Chance float64                  `json:"chance"`
		Images int                      `json:"images"`
		Seeds  int                      `json:"seeds"`
		Bins   []metrics.ReliabilityBin `json:"bins"`
	}
	labelJSON struct {
		Label   string `json:"label"`
		Known   bool   `json:"known"` // to the detector
		Images  int    `json:"images"`
		Right   int    `json:"right"`
		Flagged int    `json:"flagged"`
	}
)

// measured is null for what was not measured.
func measured(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

// add adds what the methods have.
func (j *evaluationJSON) add(e *evaluation.Evaluation) {
	j.Own, j.Findings = e.Own, append([]string{}, e.Findings()...)
	for _, r := range e.Results {
		j.Results = append(j.Results, resultJSON{r.Method, r.Seed, r.Group, r.Dataset, r.NID, r.NOOD, metricsJSON[*float64]{
			measured(r.AUROC), measured(r.AUPROut), measured(r.AUPRIn), measured(r.FPR95), measured(r.FPR95ID)}, measured(r.IDAcc)})
	}
	pair := func(i metrics.Interval) [2]float64 { return [2]float64{i.Low, i.High} }
	for _, i := range e.Intervals {
		j.Intervals = append(j.Intervals, intervalJSON{i.Method, i.Group, i.Dataset, metricsJSON[[2]float64]{
			pair(i.AUROC), pair(i.AUPROut), pair(i.AUPRIn), pair(i.FPR95), pair(i.FPR95ID)}})
	}
	j.Differences = append(j.Differences, e.Differences...)
}

// reliable adds how often confidences are right.
func (j *evaluationJSON) reliable(r evaluation.Reliability) {
	j.Confidence = &confidenceJSON{Error: r.Error, Chance: r.Chance, Images: r.Images, Seeds: r.Seeds, Bins: []metrics.ReliabilityBin{}}
	for _, b := range r.Bins {
		if b.N > 0 {
			j.Confidence.Bins = append(j.Confidence.Bins, b)
		}
	}
}

// assess adds the verdicts of the detector.
func (j *evaluationJSON) assess(a *labelCheck) {
	for name, l := range a.labels {
		j.Detector = append(j.Detector, labelJSON{name, slices.Contains(a.classes, name), l.images, l.right, l.flagged})
	}
	slices.SortFunc(j.Detector, func(a, b labelJSON) int {
		if a.Label < b.Label {
			return -1
		}
		return 1
	})
}
