package command

import (
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Names of the JSON object that show prints.
type (
	summaryJSON struct {
		Detector    string                      `json:"detector"`
		Out         string                      `json:"out,omitempty"`
		Classes     []evaluation.SummaryClass   `json:"classes"`
		Confusion   []confusedJSON              `json:"confusion"` // of validation images
		Threshold   *float64                    `json:"threshold"`
		TargetTPR   float64                     `json:"target_tpr"`
		FalseAlarms *[2]float64                 `json:"false_alarms"`
		Review      *detector.CalibrationReview `json:"calibration_review,omitempty"`
		Score       string                      `json:"scores"`
		Assessment  *pipeline.Assessment        `json:"assessment"`
		Seeds       []uint64                    `json:"seeds"`
		Rows        detector.RowCount           `json:"rows"`
		Model       string                      `json:"model,omitempty"`
		ModelSHA256 string                      `json:"model_sha256,omitempty"`
		Fingerprint string                      `json:"fingerprint,omitempty"`
		Features    []detector.TrainingSet      `json:"features"`
		Tool        string                      `json:"tool,omitempty"`
		Command     string                      `json:"command"`
		Missing     []string                    `json:"missing"`
	}
	confusedJSON struct {
		Label  string `json:"label"`
		Given  string `json:"given"`
		Images int    `json:"images"`
	}
)

func (c *command) summaryJSON(s *pipeline.Summary, file, out string) summaryJSON {
	d := s.Detector
	j := summaryJSON{
		Detector: file, Out: out, Classes: append([]evaluation.SummaryClass{}, s.Classes...), Confusion: []confusedJSON{}, TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Score: d.ScoreName(),
		Assessment: d.Assessment, Seeds: d.Seeds, Rows: d.Training.Rows, Model: d.Source.Model, ModelSHA256: d.Source.SHA256, Fingerprint: d.Source.Fingerprint,
		Features: append([]detector.TrainingSet{}, d.Training.Sets...), Tool: d.Training.Tool, Command: trainLine(d, file), Missing: []string{},
	}
	j.Threshold, j.Review = thresholdOf(d.Threshold), d.Training.Review
	if s.Validation != nil {
		for _, cell := range s.Validation.Confusion {
			j.Confusion = append(j.Confusion, confusedJSON{d.Classes[cell.Label], d.Classes[cell.Given], cell.Images})
		}
	}
	for _, err := range s.Missing {
		j.Missing = append(j.Missing, c.advise(err).Error())
	}
	return j
}
