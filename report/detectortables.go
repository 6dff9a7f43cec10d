package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// This file makes the tables and charts of the page of a detector.

func countCell(n int) tableCell {
	if n < 0 {
		return tableCell{Mean: "–"}
	}
	return tableCell{Mean: strconv.Itoa(n), Sort: strconv.Itoa(n)}
}

func shareCell(share float64) tableCell {
	if math.IsNaN(share) {
		return tableCell{Mean: "–"}
	}
	return tableCell{Mean: fmt.Sprintf("%.1f%%", 100*share), Sort: strconv.FormatFloat(share, 'g', -1, 64)}
}

func ofCell(n, of int) tableCell {
	if of == 0 {
		return tableCell{Mean: "–"}
	}
	c := shareCell(float64(n) / float64(of))
	c.Mean = fmt.Sprintf("%d of %d (%s)", n, of, c.Mean)
	return c
}

func aurocCell(v float64) tableCell {
	if math.IsNaN(v) {
		return tableCell{Mean: "–"}
	}
	return tableCell{Mean: fmt.Sprintf("%.3f", v), Sort: strconv.FormatFloat(v, 'g', -1, 64)}
}

func textCell(text string) tableCell { return tableCell{Mean: cmp.Or(text, "–"), Sort: text} }

// change makes the tables of what adding images did.
func (v *detectorView) change() {
	c := v.Detector.Change
	if c == nil {
		return
	}
	v.link("change", "Before and after")
	v.AddedTable = &table{Caption: "The images that were added", Head: "class",
		Columns: []string{"images added", "flagged before", "not trained on", "given the class now", "flagged now"}}
	for _, a := range c.Added {
		name := a.Class
		if a.New {
			name += " (new)"
		}
		v.AddedTable.Rows = append(v.AddedTable.Rows, tableRow{name, []tableCell{
			countCell(a.Images), ofCell(a.FlaggedBefore, a.Images), countCell(a.HeldOut), ofCell(a.Right, a.HeldOut), ofCell(a.FlaggedAfter, a.HeldOut)}})
	}
	v.ChangeTable = &table{Caption: "The classes that were known before", Head: "class",
		Columns: []string{"images", "right before", "right now", "falsely flagged before", "falsely flagged now"}}
	all := append([]detector.ChangedClass{c.All}, c.Classes...)
	assessed := slices.ContainsFunc(all, func(c detector.ChangedClass) bool { return !math.IsNaN(c.AUROCBefore) || !math.IsNaN(c.AUROCAfter) })
	if assessed {
		v.ChangeTable.Columns = append(v.ChangeTable.Columns, "AUROC if new, before", "AUROC if new, now")
	}
	for _, class := range all {
		row := tableRow{class.Class, []tableCell{countCell(class.Images), ofCell(class.RightBefore, class.Images), ofCell(class.RightAfter, class.Images),
			ofCell(class.FlaggedBefore, class.Images), ofCell(class.FlaggedAfter, class.Images)}}
		if assessed {
			row.Cells = append(row.Cells, aurocCell(class.AUROCBefore), aurocCell(class.AUROCAfter))
		}
		v.ChangeTable.Rows = append(v.ChangeTable.Rows, row)
	}
}

func (v *detectorView) classes() {
	v.link("classes", "Classes")
	v.ClassTable = table{Caption: "Classes", Head: "class",
		Columns: []string{"training images", "validation", "calibration", "right", "falsely flagged"}}
	for _, c := range v.Classes {
		v.ClassTable.Rows = append(v.ClassTable.Rows, tableRow{c.Name, []tableCell{
			countCell(c.Train), countCell(c.Validation), countCell(c.Calibration), shareCell(c.Right), shareCell(c.Flagged)}})
	}
}

// mostMatrix is the most classes that a matrix shows, and mostConfused how many lines
// the table instead of it has at most.
const (
	mostMatrix   = 30
	mostConfused = 100
)

// confusionTable is a matrix of labels and given classes.
type confusionTable struct {
	Classes []string
	Rows    []confusionRow
}

type confusionRow struct {
	Label string
	Cells []confusionCell
}

type confusionCell struct {
	Images int
	Right  bool
	Shade  int // per cent of the label's images, a multiple of 5
}

func (v *detectorView) confusion() {
	if len(v.Confusion) == 0 {
		return
	}
	v.link("confusion", "Confusion matrix")
	if len(v.Classes) > mostMatrix {
		v.Confused = &table{Caption: "Most frequent confusions", Head: "label", Columns: []string{"given", "images"}}
		wrong := slices.DeleteFunc(slices.Clone(v.Confusion), func(c Confusion) bool { return c.Label == c.Given })
		slices.SortStableFunc(wrong, func(a, b Confusion) int { return cmp.Compare(b.Images, a.Images) })
		for _, c := range wrong[:min(len(wrong), mostConfused)] {
			v.Confused.Rows = append(v.Confused.Rows, tableRow{c.Label, []tableCell{textCell(c.Given), countCell(c.Images)}})
		}
		return
	}
	t := &confusionTable{}
	number := map[string]int{}
	for i, c := range v.Classes {
		number[c.Name] = i
		t.Classes = append(t.Classes, c.Name)
		t.Rows = append(t.Rows, confusionRow{c.Name, make([]confusionCell, len(v.Classes))})
		t.Rows[i].Cells[i].Right = true
	}
	totals := make([]int, len(v.Classes))
	for _, c := range v.Confusion {
		t.Rows[number[c.Label]].Cells[number[c.Given]].Images += c.Images
		totals[number[c.Label]] += c.Images
	}
	for i, row := range t.Rows {
		for j, c := range row.Cells {
			if c.Images > 0 {
				row.Cells[j].Shade = max(5, (100*c.Images/totals[i]+2)/5*5)
			}
		}
	}
	v.ConfusionTable = t
}

func (v *detectorView) heldOut() {
	if len(v.HeldOut) == 0 {
		return
	}
	v.link("new", "New classes")
	t := &table{Caption: "Classes left out of the fitting, as if they were new", Head: "class",
		Groups:  []columnGroup{{"as a new class", 3}, {"caught, where these false alarms are accepted", len(v.Levels)}},
		Columns: []string{"AUROC", "images", "mostly taken for"}}
	for _, level := range v.Levels {
		t.Columns = append(t.Columns, fmt.Sprintf("%.3g%%", 100*level))
	}
	all := v.Mean
	all.Name = cmp.Or(all.Name, "all classes (mean)")
	hardest := slices.MinFunc(v.HeldOut, func(a, b HeldOutClass) int { return cmp.Compare(a.AUROC, b.AUROC) })
	for i, c := range append([]HeldOutClass{all}, v.HeldOut...) {
		images := c.Images
		if i == 0 {
			images = -1
		}
		row := tableRow{c.Name, []tableCell{aurocCell(c.AUROC), countCell(images), textCell(c.TakenFor)}}
		row.Cells[0].Wrong = i > 0 && c.Name == hardest.Name
		for l := range v.Levels {
			share := math.NaN()
			if l < len(c.Caught) {
				share = c.Caught[l]
			}
			row.Cells = append(row.Cells, shareCell(share))
		}
		t.Rows = append(t.Rows, row)
	}
	v.HeldOutTable = t
	n := len(v.CurveLevels)
	if n < 2 || len(v.Mean.Curve) != n {
		return
	}
	curve := func(c HeldOutClass) (points []metrics.Point) {
		for i, level := range v.CurveLevels[:min(n, len(c.Curve))] {
			points = append(points, metrics.Point{X: level, Y: c.Curve[i]})
		}
		return points
	}
	chart := Chart{Name: "held-out", Caption: "Share of the images of a new class that is caught, by the share of false alarms that is accepted. Grey: the other classes.",
		Text: fmt.Sprintf("On average %.0f%% of the images of a class that was left out are caught at %.3g%% false alarms, %.0f%% at %.3g%%.",
			100*v.Mean.Curve[0], 100*v.CurveLevels[0], 100*v.Mean.Curve[n-1], 100*v.CurveLevels[n-1]),
		X: Axis{Label: "false alarms, %", Max: v.CurveLevels[n-1], Percent: true}, Y: Axis{Label: "caught, %", Max: 1, Percent: true},
		Series: []Series{styled(lineStyles[0], "mean over the classes", curve(v.Mean)), styled(lineStyles[1], "hardest: "+hardest.Name, curve(hardest))},
	}
	for _, c := range v.HeldOut {
		if c.Name != hardest.Name && len(v.HeldOut) <= mostMatrix {
			s := styled(others, c.Name, curve(c))
			s.Hidden = true
			chart.Series = append(chart.Series, s)
		}
	}
	v.HeldOutChart = []*figure{{Chart: chart}}
}

// mostAlarms is the share of false alarms up to which the curve is drawn.
const mostAlarms = 0.3

func (v *detectorView) alarms() {
	points := slices.DeleteFunc(slices.Clone(v.FalseAlarms), func(f evaluation.FalseAlarms) bool {
		return math.IsInf(f.Threshold, 0) || math.IsNaN(f.Threshold)
	})
	if at := slices.IndexFunc(points, func(f evaluation.FalseAlarms) bool { return f.Share > mostAlarms }); at >= 0 {
		points = points[:at+1]
	}
	if len(points) < 2 {
		return
	}
	v.link("alarms", "False alarms")
	series := func(of func(evaluation.FalseAlarms) float64) (line []metrics.Point) {
		for _, f := range points {
			line = append(line, metrics.Point{X: f.Threshold, Y: of(f)})
		}
		return line
	}
	first, last := points[0], points[len(points)-1]
	c := Chart{Name: "false-alarms", Caption: "False alarms by threshold, with the interval that holds the long-run share with a chance of 95%.",
		Text: fmt.Sprintf("False alarms rise from %.1f%% at the threshold %s to %.1f%% at %s.", 100*first.Share, number(first.Threshold), 100*last.Share, number(last.Threshold)),
		X:    Axis{Label: "threshold of the score", Min: first.Threshold, Max: last.Threshold}, Y: Axis{Label: "false alarms, %", Percent: true},
	}
	for _, f := range points {
		c.Y.Max = max(c.Y.Max, f.High)
	}
	bound := lineStyles[2]
	bound.Width = 1
	upper, lower := styled(bound, "95% interval", series(func(f evaluation.FalseAlarms) float64 { return f.High })), styled(bound, "", series(func(f evaluation.FalseAlarms) float64 { return f.Low }))
	lower.Hidden = true
	c.Series = []Series{styled(lineStyles[0], "false alarms", series(func(f evaluation.FalseAlarms) float64 { return f.Share })), upper, lower}
	if t := v.Threshold; t >= c.X.Min && t <= c.X.Max {
		c.Series = append(c.Series, styled(lineStyles[1], "this detector's threshold", []metrics.Point{{X: t}, {X: t, Y: c.Y.Max}}))
	}
	v.AlarmChart = []*figure{{Chart: c}}
}

func (v *detectorView) training() {
	if len(v.History) < 2 {
		return
	}
	v.link("training", "Training")
	line := func(of func(EpochMean) float64) (points []metrics.Point, most float64) {
		for _, e := range v.History {
			points = append(points, metrics.Point{X: float64(e.Epoch), Y: of(e)})
			most = max(most, of(e))
		}
		return points, most
	}
	epochs := Axis{Label: "epoch", Min: float64(v.History[0].Epoch), Max: float64(v.History[len(v.History)-1].Epoch)}
	train, a := line(func(e EpochMean) float64 { return e.TrainLoss })
	val, b := line(func(e EpochMean) float64 { return e.ValLoss })
	last := v.History[len(v.History)-1]
	loss := Chart{Name: "loss", Caption: "Loss by epoch.", X: epochs, Y: Axis{Label: "loss", Max: max(a, b)},
		Text:   fmt.Sprintf("The training loss ends at %s, the validation loss at %s.", number(last.TrainLoss), number(last.ValLoss)),
		Series: []Series{styled(lineStyles[0], "validation", val), styled(lineStyles[1], "training", train)}}
	v.Training = append(v.Training, &figure{Chart: loss})
	if math.IsNaN(last.ValAccuracy) {
		return
	}
	right, _ := line(func(e EpochMean) float64 { return e.ValAccuracy })
	lowest := 1.
	for _, p := range right {
		lowest = min(lowest, p.Y)
	}
	accuracy := Chart{Name: "accuracy", Caption: "Accuracy on the validation images by epoch.", X: epochs,
		Y:      Axis{Label: "accuracy, %", Min: math.Floor(lowest*10) / 10, Max: 1, Percent: true},
		Text:   fmt.Sprintf("The accuracy on the validation images ends at %.1f%%.", 100*last.ValAccuracy),
		Series: []Series{styled(lineStyles[0], "validation", right)}}
	v.Training = append(v.Training, &figure{Chart: accuracy})
}
