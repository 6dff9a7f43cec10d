package evaluation

import (
	"context"
	"fmt"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Reliability says how far the confidences of a detector, or of the heads of all
// seeds together, are probabilities on the labelled in-distribution test images.
type Reliability struct {
	Images int
	metrics.Reliability
}

func (r Reliability) String() string {
	return fmt.Sprintf("expected calibration error %.4f (%d bins, %d images)", r.Error, len(r.Bins), r.Images)
}

// reliability is that of the detector that is given, or of the heads, where there
// are any; else nil.
func (e *evaluation) reliability(ctx context.Context) (*Reliability, error) {
	var all []*detector.Detector
	for _, h := range e.heads {
		all = append(all, h.heads)
	}
	if e.opts.Detector != nil {
		all = []*detector.Detector{e.opts.Detector}
	}
	if len(all) == 0 || len(e.train.Classes) == 1 {
		return nil, nil
	}
	var confidences []float64
	var right []bool
	for _, d := range all {
		own := *d
		own.Scoring, own.Folds = nil, nil // the confidence is the heads'
		verdicts, err := verdictsOn(ctx, &own, e.id)
		if err != nil {
			return nil, err
		}
		for i, y := range e.idLabels {
			if y >= 0 {
				confidences, right = append(confidences, verdicts[i].Confidence), append(right, int64(verdicts[i].Label) == y)
			}
		}
	}
	if len(confidences) == 0 {
		return nil, nil
	}
	const bins = 15
	return &Reliability{len(confidences), metrics.Reliable(confidences, right, bins)}, nil
}
