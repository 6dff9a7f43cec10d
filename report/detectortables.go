package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// This file makes the tables and charts of the page of a detector.

// countCell is a number of images, below 0 where it is not known.
func countCell(n int) tableCell {
	if n < 0 {
		return tableCell{Mean: "–"}
	}
	return whole(n)
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
			whole(a.Images), ofCell(a.FlaggedBefore, a.Images), whole(a.HeldOut), ofCell(a.Right, a.HeldOut), ofCell(a.FlaggedAfter, a.HeldOut)}})
	}
	v.ChangeTable = &table{Caption: "The classes that were known before", Head: "class",
		Groups:  []columnGroup{{"validation", 1}, {"right", 2}, {"falsely flagged", 2}},
		Columns: []string{"images", "before", "now", "before", "now"}}
	all := append([]detector.ChangedClass{c.All}, c.Classes...)
	assessed := slices.ContainsFunc(all, func(c detector.ChangedClass) bool { return !math.IsNaN(c.AUROCBefore) || !math.IsNaN(c.AUROCAfter) })
	if assessed {
		v.ChangeTable.Groups = append(v.ChangeTable.Groups, columnGroup{"AUROC if new", 2})
		v.ChangeTable.Columns = append(v.ChangeTable.Columns, "before", "now")
	}
	for _, class := range all {
		row := tableRow{class.Class, []tableCell{whole(class.Images), ofCell(class.RightBefore, class.Images), ofCell(class.RightAfter, class.Images),
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
		right, flagged := c.Shares()
		v.ClassTable.Rows = append(v.ClassTable.Rows, tableRow{c.Name, []tableCell{
			countCell(c.Train), countCell(c.Validation), countCell(c.Calibration), shareCell(right), shareCell(flagged)}})
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
	if v.Validation == nil || len(v.Validation.Confusion) == 0 {
		return
	}
	v.link("confusion", "Confusion matrix")
	classes, cells := v.Summary.Detector.Classes, v.Validation.Confusion
	if len(classes) > mostMatrix {
		v.Confused = &table{Caption: "Most frequent confusions", Head: "label", Columns: []string{"given", "images"}}
		wrong := slices.DeleteFunc(slices.Clone(cells), func(c detector.Confused) bool { return c.Label == c.Given })
		slices.SortStableFunc(wrong, func(a, b detector.Confused) int { return cmp.Compare(b.Images, a.Images) })
		for _, c := range wrong[:min(len(wrong), mostConfused)] {
			v.Confused.Rows = append(v.Confused.Rows, tableRow{classes[c.Label], []tableCell{textCell(classes[c.Given]), whole(c.Images)}})
		}
		return
	}
	t := &confusionTable{Classes: classes}
	for i, name := range classes {
		t.Rows = append(t.Rows, confusionRow{name, make([]confusionCell, len(classes))})
		t.Rows[i].Cells[i].Right = true
	}
	for _, c := range cells {
		_, images := v.Validation.Right(c.Label)
		cell := &t.Rows[c.Label].Cells[c.Given]
		cell.Images, cell.Shade = c.Images, max(5, (100*c.Images/images+2)/5*5)
	}
	v.ConfusionTable = t
}

// heldOut shows what class hold-out found: the mean, and each class.
func (v *detectorView) heldOut() {
	a := v.Summary.Detector.Assessment
	classes := slices.DeleteFunc(slices.Clone(v.Classes), func(c evaluation.SummaryClass) bool { return c.Assessed == nil })
	if len(classes) == 0 {
		return
	}
	v.link("new", "New classes")
	t := &table{Caption: "Classes left out of the fitting, as if they were new", Head: "class",
		Groups:  []columnGroup{{"as a new class", 3}, {"caught, where these false alarms are accepted", len(evaluation.AcceptedAlarms)}},
		Columns: []string{"AUROC", "images", "mostly taken for"}}
	for _, level := range evaluation.AcceptedAlarms {
		t.Columns = append(t.Columns, fmt.Sprintf("%.3g%%", 100*level))
	}
	add := func(name string, class *detector.AssessedClass, cells ...tableCell) {
		for _, share := range v.Caught(class) {
			cells = append(cells, shareCell(share))
		}
		t.Rows = append(t.Rows, tableRow{name, cells})
	}
	hardest := slices.MinFunc(classes, func(a, b evaluation.SummaryClass) int { return cmp.Compare(a.Assessed.AUROC, b.Assessed.AUROC) })
	add("all classes (mean)", nil, aurocCell(a.AUROC), countCell(-1), textCell(""))
	for _, c := range classes {
		auroc := aurocCell(c.Assessed.AUROC)
		auroc.Wrong = c.Name == hardest.Name
		add(c.Name, c.Assessed, auroc, whole(c.Assessed.Images), textCell(c.Assessed.TakenFor))
	}
	v.HeldOutTable = t
	levels, n := a.FalseAlarms, len(a.FalseAlarms)
	if n < 2 || len(a.Curve) != n {
		return
	}
	curve := func(caught []float64) (points []metrics.Point) {
		for i, level := range levels[:min(n, len(caught))] {
			points = append(points, metrics.Point{X: level, Y: caught[i]})
		}
		return points
	}
	chart := Chart{Name: "held-out", Caption: "Share of the images of a new class that is caught, by the share of false alarms that is accepted. Grey: the other classes.",
		Text: fmt.Sprintf("On average %.0f%% of the images of a class that was left out are caught at %.3g%% false alarms, %.0f%% at %.3g%%.",
			100*a.Curve[0], 100*levels[0], 100*a.Curve[n-1], 100*levels[n-1]),
		X: Axis{Label: "false alarms, %", Max: levels[n-1], Percent: true}, Y: Axis{Label: "caught, %", Max: 1, Percent: true},
		Series: []Series{styled(lineStyles[0], "mean over the classes", curve(a.Curve)), styled(lineStyles[1], "hardest: "+hardest.Name, curve(hardest.Assessed.Curve))},
	}
	for _, c := range classes {
		if c.Name != hardest.Name && len(classes) <= mostMatrix {
			s := styled(others, c.Name, curve(c.Assessed.Curve))
			s.Hidden = true
			chart.Series = append(chart.Series, s)
		}
	}
	v.HeldOutChart = []*Chart{&chart}
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
	// What lies far to the left of the others would leave these no room.
	for len(points) > 4 && points[len(points)/2].Threshold-points[0].Threshold > 4*(points[len(points)-1].Threshold-points[len(points)/2].Threshold) {
		points = points[1:]
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
	c.Course("false alarms", series(func(f evaluation.FalseAlarms) float64 { return f.Share }),
		series(func(f evaluation.FalseAlarms) float64 { return f.Low }), series(func(f evaluation.FalseAlarms) float64 { return f.High }))
	if t := v.Summary.Detector.Threshold; t >= c.X.Min && t <= c.X.Max {
		c.Series = append(c.Series, styled(lineStyles[1], "this detector's threshold", []metrics.Point{{X: t}, {X: t, Y: c.Y.Max}}))
	}
	v.AlarmChart = []*Chart{&c}
}

// history returns the mean metrics of the heads after each epoch.
func (v *detectorView) history() (all []head.Epoch) {
	d := v.Summary.Detector
	for h, epochs := range d.History {
		for i, e := range epochs {
			if h == 0 {
				all = append(all, head.Epoch{Epoch: e.Epoch})
			}
			if i >= len(all) {
				break
			}
			n := float64(len(d.History))
			all[i].TrainLoss += e.TrainLoss / n
			all[i].ValLoss += e.ValLoss / n
			all[i].ValAccuracy += e.ValAccuracy / n
		}
	}
	return all
}

func (v *detectorView) training() {
	history := v.history()
	if len(history) < 2 {
		return
	}
	v.link("training", "Training")
	line := func(of func(head.Epoch) float64) (points []metrics.Point, most float64) {
		for _, e := range history {
			points = append(points, metrics.Point{X: float64(e.Epoch), Y: of(e)})
			most = max(most, of(e))
		}
		return points, most
	}
	last := history[len(history)-1]
	epochs := Axis{Label: "epoch", Min: float64(history[0].Epoch), Max: float64(last.Epoch)}
	train, a := line(func(e head.Epoch) float64 { return e.TrainLoss })
	val, b := line(func(e head.Epoch) float64 { return e.ValLoss })
	loss := Chart{Name: "loss", Caption: "Loss by epoch.", X: epochs, Y: Axis{Label: "loss", Max: max(a, b)},
		Text:   fmt.Sprintf("The training loss ends at %s, the validation loss at %s.", number(last.TrainLoss), number(last.ValLoss)),
		Series: []Series{styled(lineStyles[0], "validation", val), styled(lineStyles[1], "training", train)}}
	v.Training = append(v.Training, &loss)
	if d := v.Summary.Detector; d.Training.Rows.Validation == 0 || len(d.Classes) == 1 {
		return
	}
	right, _ := line(func(e head.Epoch) float64 { return e.ValAccuracy })
	lowest := 1.
	for _, p := range right {
		lowest = min(lowest, p.Y)
	}
	accuracy := Chart{Name: "accuracy", Caption: "Accuracy on the validation images by epoch.", X: epochs,
		Y:      Axis{Label: "accuracy, %", Min: math.Floor(lowest*10) / 10, Max: 1, Percent: true},
		Text:   fmt.Sprintf("The accuracy on the validation images ends at %.1f%%.", 100*last.ValAccuracy),
		Series: []Series{styled(lineStyles[0], "validation", right)}}
	v.Training = append(v.Training, &accuracy)
}
