package command

import (
	"math"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/report"
)

// Names of the JSON object that show prints.
type (
	summaryJSON struct {
		Detector    string                 `json:"detector"`
		Out         string                 `json:"out,omitempty"`
		Classes     []summaryClassJSON     `json:"classes"`
		Confusion   []report.Confusion     `json:"confusion"` // of validation images
		Threshold   *float64               `json:"threshold"`
		TargetTPR   float64                `json:"target_tpr"`
		FalseAlarms *[2]float64            `json:"false_alarms"`
		Score       string                 `json:"scores"`
		Assessment  *pipeline.Assessment   `json:"assessment"`
		Seeds       []uint64               `json:"seeds"`
		Rows        detector.RowCount      `json:"rows"`
		Model       string                 `json:"model,omitempty"`
		ModelSHA256 string                 `json:"model_sha256,omitempty"`
		Fingerprint string                 `json:"fingerprint,omitempty"`
		Features    []detector.TrainingSet `json:"features"`
		Tool        string                 `json:"tool,omitempty"`
		Command     string                 `json:"command"`
		Missing     []string               `json:"missing"`
	}
	summaryClassJSON struct {
		Class       string   `json:"class"`
		Train       *int     `json:"train"` // null: not known
		Validation  *int     `json:"validation"`
		Calibration *int     `json:"calibration"`
		Right       *float64 `json:"right"`
		Flagged     *float64 `json:"flagged"`
	}
)

func (c *command) summaryJSON(s *pipeline.Summary, file, out string) summaryJSON {
	d := s.Detector
	j := summaryJSON{
		Detector: file, Out: out, Classes: []summaryClassJSON{}, Confusion: confusionOf(s), TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Score: d.ScoreName(),
		Assessment: d.Assessment, Seeds: d.Seeds, Rows: d.Training.Rows, Model: d.Source.Model, ModelSHA256: d.Source.SHA256, Fingerprint: d.Source.Fingerprint,
		Features: append([]detector.TrainingSet{}, d.Training.Sets...), Tool: d.Training.Tool, Command: trainLine(d, file), Missing: []string{},
	}
	if !math.IsInf(d.Threshold, -1) {
		j.Threshold = &d.Threshold
	}
	known := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	number := func(v float64) *float64 {
		if math.IsNaN(v) {
			return nil
		}
		return &v
	}
	for _, class := range s.Classes {
		j.Classes = append(j.Classes, summaryClassJSON{class.Name, known(class.Train), known(class.Validation), known(class.Calibration),
			number(share(class.Right, class.Validation)), number(share(class.Flagged.Flagged, class.Flagged.Images))})
	}
	for _, err := range s.Missing {
		j.Missing = append(j.Missing, c.advise(err).Error())
	}
	return j
}
