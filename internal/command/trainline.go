package command

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// trainLine returns the command that trains a detector again, as far as its file says: the
// command train, whose flags are given what differs from what they are without.
func trainLine(d *pipeline.Detector, out string) string {
	o, _, err := pipeline.RecordedOptions(d)
	if err != nil {
		return ""
	}
	t := newTraining()
	network := "residual"
	if _, ok := o.Head.(head.Paper); ok {
		network = "paper"
		paper, err := paperValues("")
		if err = errors.Join(err, t.Set("paper", "true"), t.heads.settle(paper)); err != nil {
			return ""
		}
	}
	values, err := flagValues(network, o.Head, o.Train)
	if err != nil {
		return ""
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	maps.Copy(values, map[string]string{
		"out": out, "conditioning": conditioningName(o.Conditioning), "shrinkage": number(o.Conditioning.Shrinkage), "pca-dims": strconv.Itoa(o.Conditioning.Dims),
		"val": o.Validation.String(), "calibration": o.Calibration.String(), "group-by": o.GroupBy, "seeds": (*Seeds)(&o.Seeds).String(),
		"max-false-alarms": number(math.Round((1-o.TargetTPR)*1e12) / 1e12), "per-class": strconv.FormatBool(o.PerClass), "no-assess": strconv.FormatBool(o.NoHoldOut),
	})
	shape := o.Head.Settings()
	if shape.NoDepression {
		values["depression"] = "none"
	}
	if o.Train.Balance {
		values["balance"] = "sample"
	}
	if shape.Residual || o.Score != pipeline.HeadScore {
		values["scores"] = o.Score
	}
	for _, dir := range o.Features {
		err = errors.Join(err, t.Set("features", dir))
	}
	for name, value := range values {
		if t.Lookup(name).Value.String() != value {
			err = errors.Join(err, t.Set(name, value))
		}
	}
	if err != nil {
		return ""
	}
	return t.line()
}

// corrected says which labels the training was given by an issues.csv, whose name the
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
	return fmt.Sprintf("by an issues.csv, %s left out and %s given another label: to repeat the training, add its --exclude or --relabel",
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
