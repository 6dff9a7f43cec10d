package command

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// trainLine returns the command that trains a detector again, as far as its file says: the
// command train, whose flags are given what differs from what they are without.
func trainLine(d *pipeline.Detector, out string) string {
	was, _, err := training.Recorded(d)
	if err != nil {
		return ""
	}
	t := commands["train"].make().of.(*fitting)
	h, o := t.heads, &t.heads.options
	if _, paper := was.Head.(head.Paper); paper {
		h.network = "paper"
		err = errors.Join(t.Set("paper", "true"), h.takePaper(""))
	}
	without := map[string]string{}
	t.VisitAll(func(f *pflag.Flag) { without[f.Name] = f.Value.String() })
	if err = errors.Join(err, h.take(h.network, was.Head, was.Train)); err != nil {
		return ""
	}
	t.out, t.alarms, h.conditioning = out, math.Round((1-was.TargetTPR)*1e12)/1e12, conditioningName(was.Conditioning)
	o.Features, o.Seeds, o.GroupBy, o.PerClass, o.NoHoldOut = was.Features, was.Seeds, was.GroupBy, was.PerClass, was.NoHoldOut
	o.Outliers = was.Outliers
	o.Conditioning, o.Validation, o.Calibration = was.Conditioning, was.Validation, was.Calibration
	if h.shape.Residual || was.Score != detector.HeadScore {
		o.Score = was.Score
	}
	t.VisitAll(func(f *pflag.Flag) { f.Changed = f.Changed || !f.Hidden && f.Value.String() != without[f.Name] })
	return t.line()
}

// corrected says which labels the training was given by an issues.csv or a review of calibration images, whose name the
// detector does not have; "" for none.
func corrected(d *pipeline.Detector) string {
	if len(d.Relabelled) == 0 {
		return ""
	}
	left := 0
	for _, class := range d.Relabelled {
		if class < 0 {
			left++
		}
	}
	return fmt.Sprintf("by an issues.csv or a review of calibration images, %s left out and %s given another label: to repeat the training, add --exclude or --relabel",
		plural(left, "%d image was", "%d images were"), plural(len(d.Relabelled)-left, "%d image was", "%d images were"))
}

// conditioningName is the value of --conditioning.
func conditioningName(o head.ConditioningOptions) string {
	switch {
	case o.L2 && (o.Kind == head.None || o.Kind == ""):
		return "l2"
	case o.L2:
		return "l2+" + string(o.Kind)
	}
	return string(cmp.Or(o.Kind, head.None))
}
