package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// table is a table that a click sorts: a row for each method, class or the like.
type table struct {
	Caption string
	Head    string        // of the first column
	Groups  []columnGroup // headings above those of the columns; nil for none
	Columns []string
	Rows    []tableRow
}

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

// summary is the table of the groups' means.
func (v *view) summary(rows []metrics.Measurement) table {
	rs, methods := index(rows), order(rows, func(r metrics.Measurement) string { return r.Method })
	t := newTable("Means over the sets of each group, in per cent", methods)
	for _, m := range []Metric{AUROC, FPR95, AUPROut} {
		t.Groups = append(t.Groups, columnGroup{Label: m.arrow()})
		for _, group := range groups(rows) {
			values, intervals := v.column(rs, methods, m, group, "mean")
			t.addColumn(group, m.Lower, values, intervals)
		}
	}
	var accuracies []Value
	for _, method := range methods {
		accuracies = append(accuracies, rs.accuracy(method))
	}
	t.Groups = append(t.Groups, columnGroup{Label: "accuracy ↑"})
	t.addColumn("ID", false, accuracies, nil)
	return t
}

// perSet makes a table of each metric over the single sets.
func (v *view) perSet() {
	for _, m := range []Metric{AUROC, FPR95, AUPROut, AUPRIn, FPR95ID} {
		t := newTable(m.arrow()+", in per cent", v.methods)
		for _, group := range groups(v.Results) {
			t.Groups = append(t.Groups, columnGroup{Label: group + "-OOD"})
			for _, set := range sets(v.Results, group) {
				values, intervals := v.column(v.results, v.methods, m, group, set)
				t.addColumn(set, m.Lower, values, intervals)
			}
		}
		v.PerSet = append(v.PerSet, t)
	}
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
