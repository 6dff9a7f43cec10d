package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// table is a table that a click sorts: a row for each method, class or the like.
type table struct {
	Caption string
	Head    string        // of the first column
	Groups  []columnGroup // headings above those of the columns; nil for none
	Columns []string
	further []int // columns that wait until they are asked for
	Rows    []tableRow
}

// Further tells whether a column waits until it is asked for; without scripts none does.
func (t table) Further(column int) bool { return slices.Contains(t.further, column) }

type columnGroup struct {
	Label string
	Span  int
}

type tableRow struct {
	Head  string
	Cells []tableCell
}

type tableCell struct {
	Mean, Std, Interval string // as printed
	Best, Wrong         bool
	Sort                string // the sort key of the cell; "" is last
}

// addColumn adds a column of values, one for each row, under the last group.
func (t *table) addColumn(label string, lower bool, values []Value, intervals []string) {
	t.Columns = append(t.Columns, label)
	t.Groups[len(t.Groups)-1].Span++
	marks := best(values, lower)
	for i, v := range values {
		c := tableCell{Mean: percent(v.Mean), Best: marks[i]}
		if !math.IsNaN(v.Mean) {
			c.Sort = strconv.FormatFloat(v.Mean, 'g', -1, 64)
			if !math.IsNaN(v.Std) {
				c.Std = percent(v.Std)
			}
			if intervals != nil {
				c.Interval = intervals[i]
			}
		}
		t.Rows[i].Cells = append(t.Rows[i].Cells, c)
	}
}

func newTable(caption string, heads []string) table {
	t := table{Caption: caption, Head: "method"}
	for _, head := range heads {
		t.Rows = append(t.Rows, tableRow{Head: head})
	}
	return t
}

// arrow shows whether higher or lower is better.
func (m Metric) arrow() string {
	if m.Lower {
		return m.Name + " ↓"
	}
	return m.Name + " ↑"
}

// column gathers a metric of all methods.
func (v *view) column(rs results, methods []string, m Metric, group, dataset string) (values []Value, intervals []string) {
	for _, method := range methods {
		values = append(values, rs.value(m, method, group, dataset))
		text := ""
		at := slices.IndexFunc(v.Intervals, func(i evaluation.Interval) bool {
			return i.Method == method && i.Group == group && i.Dataset == dataset
		})
		if at >= 0 {
			text = interval(m.interval(v.Intervals[at].Intervals))
		}
		intervals = append(intervals, text)
	}
	return values, intervals
}

func interval(i metrics.Interval) string {
	if math.IsNaN(i.Low) || math.IsNaN(i.High) || i == (metrics.Interval{}) {
		return ""
	}
	return fmt.Sprintf("%s to %s", percent(i.Low), percent(i.High))
}

// summary is the table of the groups' means and, where a group has several, of its sets.
func (v *view) summary(rows []metrics.Measurement, methods []string) table {
	rs := index(rows)
	t := newTable("Methods by group and set of OOD images, in per cent", methods)
	accuracies := lists.Map(methods, rs.accuracy)
	for i, m := range []Metric{AUROC, FPR95, AUPROut, AUPRIn, FPR95ID} {
		t.Groups = append(t.Groups, columnGroup{Label: m.arrow()})
		add := func(label, group, set string, further bool) {
			if further {
				t.further = append(t.further, len(t.Columns))
			}
			values, intervals := v.column(rs, methods, m, group, set)
			t.addColumn(label, m.Lower, values, intervals)
		}
		for _, group := range groups(rows) {
			of := sets(rows, group)
			if len(of) == 1 {
				add(group+": "+of[0], group, "mean", i > 2)
				continue
			}
			add(group, group, "mean", i > 2)
			for _, set := range of {
				add(set, group, set, true)
			}
		}
		if i == 0 {
			t.Groups = append(t.Groups, columnGroup{Label: "accuracy ↑"})
			t.addColumn("ID", false, accuracies, nil)
		}
	}
	return t
}

func publishedTable(lines []Line) *table {
	var names []string
	var near, far, acc []Value
	for _, l := range lines {
		cell := Cell{none, none, none}
		if len(l.Cells) > 0 {
			cell = l.Cells[0]
		}
		names = append(names, l.name())
		near, far, acc = append(near, cell.Near), append(far, cell.Far), append(acc, cell.Acc)
	}
	t := newTable("Published results, in per cent", names)
	t.Groups = []columnGroup{{Label: "AUROC ↑"}}
	t.addColumn(metrics.Near, false, near, nil)
	t.addColumn(metrics.Far, false, far, nil)
	t.Groups = append(t.Groups, columnGroup{Label: "accuracy ↑"})
	t.addColumn("ID", false, acc, nil)
	return &t
}

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
