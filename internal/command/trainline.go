package command

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// trainLine returns the command that trains a detector again, as far as its file says.
func trainLine(d *pipeline.Detector, out string) string {
	o, _, err := pipeline.RecordedOptions(d)
	if err != nil {
		return ""
	}
	words := []string{"train"}
	add := func(name, value, standard string) {
		if value != standard {
			words = append(words, "--"+name, value)
		}
	}
	for _, dir := range o.Features {
		add("features", dir, "")
	}
	add("out", out, "")
	if _, ok := o.Head.(head.Paper); ok {
		words = append(words, "--paper")
	}
	standard, err := flagValues("residual", head.Residual{}, head.TrainOptions{})
	if _, ok := o.Head.(head.Paper); ok && err == nil {
		standard, err = paperValues("")
	}
	is, err2 := flagValues(standard["network"], o.Head, o.Train)
	if err != nil || err2 != nil {
		return ""
	}
	is["conditioning"] = conditioningName(o.Conditioning)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		add(name, is[name], standard[name])
	}
	shape := o.Head.Settings()
	if shape.NoDepression {
		add("depression", "none", "")
	}
	if o.Train.Balance {
		add("balance", "sample", "")
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	add("shrinkage", number(o.Conditioning.Shrinkage), "0")
	add("pca-dims", strconv.Itoa(o.Conditioning.Dims), "0")
	add("val", o.Validation.String(), pipeline.Share{}.String())
	add("calibration", o.Calibration.String(), pipeline.Share{}.String())
	add("group-by", o.GroupBy, "")
	add("seeds", (*Seeds)(&o.Seeds).String(), "0")
	add("max-false-alarms", number(math.Round((1-o.TargetTPR)*1e12)/1e12), number(math.Round((1-pipeline.DefaultTargetTPR)*1e12)/1e12))
	if shape.Residual {
		add("scores", o.Score, pipeline.JoinedScore)
	} else if o.Score != pipeline.HeadScore {
		add("scores", o.Score, pipeline.JoinedScore)
	}
	if o.PerClass {
		words = append(words, "--per-class")
	}
	if o.NoHoldOut {
		words = append(words, "--no-assess")
	}
	return CommandLine("mlrbfn", words)
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
