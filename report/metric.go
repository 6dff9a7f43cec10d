package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// Metric is one of the metrics of a Result.
type Metric struct {
	Name     string
	Lower    bool // lower is better
	of       func(metrics.Measurement) float64
	interval func(metrics.Intervals) metrics.Interval
}

// The metrics of the paper's tables, and the other convention of FPR@95.
var (
	AUROC   = Metric{"AUROC", false, func(r metrics.Measurement) float64 { return r.AUROC }, func(i metrics.Intervals) metrics.Interval { return i.AUROC }}
	AUPROut = Metric{"AUPR-Out", false, func(r metrics.Measurement) float64 { return r.AUPROut }, func(i metrics.Intervals) metrics.Interval { return i.AUPROut }}
	AUPRIn  = Metric{"AUPR-In", false, func(r metrics.Measurement) float64 { return r.AUPRIn }, func(i metrics.Intervals) metrics.Interval { return i.AUPRIn }}
	FPR95   = Metric{"FPR@95", true, func(r metrics.Measurement) float64 { return r.FPR95 }, func(i metrics.Intervals) metrics.Interval { return i.FPR95 }}
	FPR95ID = Metric{"FPR@95-ID", true, func(r metrics.Measurement) float64 { return r.FPR95ID }, func(i metrics.Intervals) metrics.Interval { return i.FPR95ID }}
)

var accuracy = Metric{Name: "ID accuracy", of: func(r metrics.Measurement) float64 { return r.IDAcc }}

// Value is a mean over seeds with its standard deviation, both in [0, 1]. The mean
// is NaN if the value was not measured. The deviation is NaN for a single seed.
type Value struct{ Mean, Std float64 }

// none is a value that was not measured.
var none = Value{math.NaN(), math.NaN()}

// results finds results by method, seed, group and dataset.
type results map[[4]string]metrics.Measurement

func index(all []metrics.Measurement) results {
	found := results{}
	seeds := map[string][]string{}
	for _, r := range all {
		if r.Seed != "mean" && r.Seed != "std" {
			seeds[r.Method] = add(seeds[r.Method], r.Seed)
		}
	}
	for _, r := range all {
		if r.Seed == "std" && len(seeds[r.Method]) == 1 {
			continue // one seed has no deviation
		}
		found[[4]string{r.Method, r.Seed, r.Group, r.Dataset}] = r
	}
	return found
}

// value is a metric over the seeds of a method.
func (rs results) value(m Metric, method, group, dataset string) Value {
	mean, ok := rs[[4]string{method, "mean", group, dataset}]
	if !ok {
		return none
	}
	v := Value{m.of(mean), math.NaN()}
	if std, ok := rs[[4]string{method, "std", group, dataset}]; ok {
		v.Std = m.of(std)
	}
	return v
}

// accuracy returns a method's accuracy, which is the same in every group.
func (rs results) accuracy(method string) Value {
	if v := rs.value(accuracy, method, metrics.Near, "mean"); !math.IsNaN(v.Mean) {
		return v
	}
	return rs.value(accuracy, method, metrics.Far, "mean")
}

// percent prints a share in per cent with two decimals, as the paper does, or a
// dash for none.
func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.2f", 100*v)
}

// mostTied is how many values may be marked as the best. All scores of one network
// have the same accuracy, so marking all of them would be useless.
const mostTied = 3

// best reports for each value whether to mark it as the best: if it is the best to
// the digits printed, together with at most mostTied values and not with all.
func best(values []Value, lower bool) []bool {
	marks := make([]bool, len(values))
	top := math.NaN()
	for _, v := range values {
		if math.IsNaN(top) || lower && v.Mean < top || !lower && v.Mean > top {
			top = v.Mean
		}
	}
	tied, measured := 0, 0
	for i, v := range values {
		if !math.IsNaN(v.Mean) {
			measured++
			if marks[i] = percent(v.Mean) == percent(top); marks[i] {
				tied++
			}
		}
	}
	if tied > mostTied || tied == measured {
		clear(marks)
	}
	return marks
}

// order returns the distinct keys of results in the order of their first result.
func order(results []metrics.Measurement, key func(metrics.Measurement) string) (keys []string) {
	for _, r := range results {
		keys = add(keys, key(r))
	}
	return keys
}

// add appends the values that are missing.
func add(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
