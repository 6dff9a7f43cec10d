package report

import (
	"fmt"
	"math"

	"mlrbfn/metrics"
)

// Metric is one of the figures of a Row.
type Metric struct {
	Name   string
	Lower  bool // lower is better
	figure func(Row) float64
	of     func(metrics.Intervals) metrics.Interval // nil where there are none
}

// The metrics of the paper's tables, and the other convention of the last.
var (
	AUROC   = Metric{"AUROC", false, func(r Row) float64 { return r.AUROC }, func(i metrics.Intervals) metrics.Interval { return i.AUROC }}
	AUPROut = Metric{"AUPR-Out", false, func(r Row) float64 { return r.AUPROut }, func(i metrics.Intervals) metrics.Interval { return i.AUPROut }}
	AUPRIn  = Metric{"AUPR-In", false, func(r Row) float64 { return r.AUPRIn }, func(i metrics.Intervals) metrics.Interval { return i.AUPRIn }}
	FPR95   = Metric{"FPR@95", true, func(r Row) float64 { return r.FPR95 }, func(i metrics.Intervals) metrics.Interval { return i.FPR95 }}
	FPR95ID = Metric{"FPR@95-ID", true, func(r Row) float64 { return r.FPR95ID }, func(i metrics.Intervals) metrics.Interval { return i.FPR95ID }}
)

var accuracy = Metric{Name: "ID accuracy", figure: func(r Row) float64 { return r.IDAcc }}

// Value is a mean over seeds with its standard deviation, both in [0, 1]. A NaN
// mean stands for no figure, a NaN deviation for a figure without one.
type Value struct{ Mean, Std float64 }

// none is no figure.
var none = Value{math.NaN(), math.NaN()}

// results finds rows by what they are of.
type results map[[4]string]Row // method, seed, group, dataset

func index(rows []Row) results {
	found := results{}
	seeds := map[string][]string{}
	for _, r := range rows {
		if r.Seed != "mean" && r.Seed != "std" {
			seeds[r.Method] = add(seeds[r.Method], r.Seed)
		}
	}
	for _, r := range rows {
		if r.Seed == "std" && len(seeds[r.Method]) == 1 {
			continue // one seed deviates from nothing
		}
		found[[4]string{r.Method, r.Seed, r.Group, r.Dataset}] = r
	}
	return found
}

// value is a figure over the seeds of a method.
func (rs results) value(m Metric, method, group, dataset string) Value {
	mean, ok := rs[[4]string{method, "mean", group, dataset}]
	if !ok {
		return none
	}
	v := Value{m.figure(mean), math.NaN()}
	if std, ok := rs[[4]string{method, "std", group, dataset}]; ok {
		v.Std = m.figure(std)
	}
	return v
}

// accuracy is that of whichever group a method has.
func (rs results) accuracy(method string) Value {
	if v := rs.value(accuracy, method, Near, "mean"); !math.IsNaN(v.Mean) {
		return v
	}
	return rs.value(accuracy, method, Far, "mean")
}

// percent prints a share, with two digits behind the point as the paper does;
// none is a dash.
func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.2f", 100*v)
}

// best reports for each value whether it is the best, to the digits printed.
// Where all are the same none is.
func best(values []Value, lower bool) []bool {
	marks := make([]bool, len(values))
	top := ""
	found, worse := math.NaN(), false
	for _, v := range values {
		if math.IsNaN(v.Mean) {
			continue
		}
		if math.IsNaN(found) || lower && v.Mean < found || !lower && v.Mean > found {
			found, top = v.Mean, percent(v.Mean)
		}
	}
	for i, v := range values {
		marks[i] = !math.IsNaN(v.Mean) && percent(v.Mean) == top
		worse = worse || !math.IsNaN(v.Mean) && !marks[i]
	}
	if !worse {
		clear(marks)
	}
	return marks
}
