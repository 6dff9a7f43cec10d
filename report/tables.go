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
	var accuracies []Value
	for _, method := range methods {
		accuracies = append(accuracies, rs.accuracy(method))
	}
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
