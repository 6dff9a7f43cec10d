package report

import (
	"fmt"
	"html/template"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mlrbfn/metrics"
)

// table is a table of the page: a row for each method.
type table struct {
	Caption string
	Groups  []columnGroup // headings above those of the columns
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
	Best                bool
	Sort                string // what the column is sorted by; "" is last
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
	t := table{Caption: caption}
	for _, head := range heads {
		t.Rows = append(t.Rows, tableRow{Head: head})
	}
	return t
}

// arrow says which way is better.
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
		at := slices.IndexFunc(v.Intervals, func(i Interval) bool {
			return i.Method == method && i.Group == group && i.Dataset == dataset
		})
		if at >= 0 {
			text = interval(m.of(v.Intervals[at].Intervals))
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
func (v *view) summary(rows []Row) table {
	rs, methods := index(rows), order(rows, func(r Row) string { return r.Method })
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
	t.addColumn(Near, false, near, nil)
	t.addColumn(Far, false, far, nil)
	t.Groups = append(t.Groups, columnGroup{Label: "accuracy ↑"})
	t.addColumn("ID", false, acc, nil)
	return &t
}

var numbered = regexp.MustCompile(`^(.+)-(\d+)$`)

// ablationFigures draws the methods that differ in a number: the paper's figure
// of AUROC over the number of layers.
func ablationFigures(rows []Row) []figure {
	type at struct {
		method string
		number float64
	}
	curves := map[string][]at{}
	var names []string
	low, high := math.Inf(1), math.Inf(-1)
	for _, method := range order(rows, func(r Row) string { return r.Method }) {
		match := numbered.FindStringSubmatch(method)
		if match == nil {
			continue
		}
		n, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			continue
		}
		if curves[match[1]] == nil {
			names = append(names, match[1])
		}
		curves[match[1]] = append(curves[match[1]], at{method, n})
		low, high = min(low, n), max(high, n)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return len(curves[name]) < 2 })
	if len(names) == 0 {
		return nil
	}
	rs := index(rows)
	type series struct {
		name, group string
		points      []metrics.Point
		deviations  []float64
	}
	var all []series
	lowest := 1.0
	for _, name := range names {
		for _, group := range groups(rows) {
			s := series{name: name, group: group}
			slices.SortFunc(curves[name], func(a, b at) int { return int(a.number - b.number) })
			for _, a := range curves[name] {
				if v := rs.value(AUROC, a.method, group, "mean"); !math.IsNaN(v.Mean) {
					std := v.Std
					if math.IsNaN(std) {
						std = 0
					}
					s.points, s.deviations = append(s.points, metrics.Point{X: a.number, Y: v.Mean}), append(s.deviations, std)
					lowest = min(lowest, v.Mean-std)
				}
			}
			all = append(all, s)
		}
	}
	title := "AUROC over the number of layers"
	var description []string
	for _, s := range all {
		var values []string
		for _, p := range s.points {
			values = append(values, fmt.Sprintf("%g: %s", p.X, percent(p.Y)))
		}
		description = append(description, fmt.Sprintf("%s, %s: %s", s.name, s.group, strings.Join(values, ", ")))
	}
	c := newChart(title+" in per cent. "+strings.Join(description, "; ")+".", 220+legendHeight(len(all)), legendHeight(len(all)))
	margin := max(0.05*(high-low), 0.05)
	c.xMin, c.xMax, c.yMin, c.yMax = low-margin, high+margin, max(0, math.Floor(lowest*20-1e-9)/20), 1
	var numbers []float64
	for n := low; n <= high; n++ {
		numbers = append(numbers, n)
	}
	if len(numbers) > 10 {
		numbers = ticks(low, high, 8)
	}
	c.axes("layers", "AUROC, %", numbers, ticks(c.yMin, 1, 5), 1, 100)
	var legend []legendEntry
	for i, s := range all {
		colour := "s" + strconv.Itoa(slices.Index(names, s.name)%styles)
		class, marker := colour+" n", "circle"
		if s.group == Far {
			class, marker = colour+" f", "square"
		}
		c.curve(class, fmt.Sprintf("%s, %s-OOD", s.name, s.group), s.points)
		for k, p := range s.points {
			if d := s.deviations[k]; d > 0 {
				fmt.Fprintf(c, `<path class="whisker %s" d="M%s %sV%s"/>`, colour, short(c.x(p.X)), short(c.y(p.Y-d)), short(c.y(min(p.Y+d, 1))))
			}
			c.mark(marker, colour, c.x(p.X), c.y(p.Y))
		}
		legend = append(legend, legendEntry{class, marker, all[i].name + ", " + s.group})
	}
	c.legend(legend)
	return []figure{{File: "ablation-layers.svg", Caption: title + "; whiskers are standard deviations over the seeds.", SVG: template.HTML(c.end())}}
}
