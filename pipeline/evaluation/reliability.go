package evaluation

import (
	"context"
	"fmt"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Reliability says how far the confidences of a detector, or of the heads of all
// seeds together, are probabilities on the labelled in-distribution test images. Error and
// Chance are means over the seeds, whose images are the same; Bins are of all together.
type Reliability struct {
	Images, Seeds int
	metrics.Reliability
}

func (r Reliability) String() string {
	seeds := ""
	if r.Seeds > 1 {
		seeds = fmt.Sprintf(", mean of %d seeds", r.Seeds)
	}
	return fmt.Sprintf("expected calibration error %.4f (%d bins, %d images%s); %.4f would be chance alone", r.Error, len(r.Bins), r.Images, seeds, r.Chance)
}

// reliability is that of the detector that is given, or of the heads, where there
// are any; else nil.
func (e *evaluation) reliability(ctx context.Context) (*Reliability, error) {
	all := lists.Map(e.heads, func(h trained) *detector.Detector { return h.heads })
	if e.opts.Detector != nil {
		all = []*detector.Detector{e.opts.Detector}
	}
	if len(all) == 0 || len(e.train.Classes) == 1 {
		return nil, nil
	}
	var confidences []float64
	var right []bool
	const bins = 15
	r := &Reliability{Seeds: len(all)}
	for _, d := range all {
		from := len(confidences)
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
		if r.Images = len(confidences) - from; r.Images == 0 {
			return nil, nil
		}
		one := metrics.Reliable(confidences[from:], right[from:], bins)
		r.Error, r.Chance = r.Error+one.Error/float64(len(all)), r.Chance+one.Chance/float64(len(all))
	}
	r.Bins = metrics.Reliable(confidences, right, bins).Bins
	return r, nil
}
