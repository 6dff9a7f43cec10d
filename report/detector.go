package report

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"image"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// Detector is what the page of a detector shows: the summary, and what the caller says of
// it. A section with nothing to show is left out.
type Detector struct {
	*evaluation.Summary
	Frame
	Change *Change // what adding images did; nil for none
}

// Change says what adding images to a detector did.
type Change struct {
	Old     string // file of the detector before
	Added   []detector.AddedClass
	Note    string // which images the classes are compared on
	Classes []detector.ChangedClass
	All     detector.ChangedClass // of all classes that the old detector knew
}

// detectorView is a Detector as the page's template reads it.
type detectorView struct {
	Detector
	Page           layout
	ChangeTable    *table
	AddedTable     *table
	ClassTable     table
	ConfusionTable *confusionTable
	Confused       *table // where there are too many classes for a matrix
	HeldOutTable   *table
	HeldOutChart   []*Chart
	AlarmChart     []*Chart
	Training       []*Chart
	Plane          *mapView
	Tiles          []*tile
	LowestTiles    []*tile
	ReviewHead     string // first line of the list of these
	NotShown       []notShown

	mu sync.Mutex
}

// notShown is an image that could not be shown.
type notShown struct{ Path, Error string }

// WriteDetector writes the page of a detector to a file.
func WriteDetector(file string, d Detector) error {
	if err := CheckPage(file); err != nil {
		return err
	}
	v := &detectorView{Detector: d, Page: layout{
		Frame: d.titled("A detector"), Charts: true, Script: "map.js", Sheet: "map.css", Album: &album{},
	}}
	v.change()
	v.classes()
	v.confusion()
	v.heldOut()
	v.alarms()
	v.training()
	v.drawMap()
	v.closest()
	v.lowest()
	v.Page.Album.load()
	v.listNotShown()
	return writePage(file, "detector.html", v)
}

func (v *detectorView) link(id, text string) {
	v.Page.Links = append(v.Page.Links, link{id, text})
}

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

// picture adds an image to the page's album, and notes why it cannot be shown.
func (v *detectorView) picture(img images.Picture, side int) *picture {
	if decode := img.Decode; decode != nil {
		img.Decode = func() (_ image.Image, err error) {
			defer func() {
				if r := recover(); r != nil {
					err = errors.New("its decoder failed")
				}
				if err != nil {
					v.mu.Lock()
					defer v.mu.Unlock()
					v.NotShown = append(v.NotShown, notShown{img.Path, err.Error()})
				}
			}()
			return decode()
		}
	}
	return v.Page.Album.of(img, side)
}

// mostNotShown is how many images that could not be shown are listed.
const mostNotShown = 200

func (v *detectorView) listNotShown() {
	slices.SortFunc(v.NotShown, func(a, b notShown) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Error, b.Error))
	})
	v.NotShown = slices.Compact(v.NotShown)
	if n := len(v.NotShown); n > 0 {
		v.Page.Notes = append(v.Page.Notes, fmt.Sprintf("%s could not be shown: see the list below.", count(n)))
		v.link("not-shown", "Images not shown")
	}
}

// Listed returns the images that could not be shown, not more than a page holds.
func (v *detectorView) Listed() []notShown { return v.NotShown[:min(len(v.NotShown), mostNotShown)] }

func (v *detectorView) closest() {
	if len(v.Closest) == 0 {
		return
	}
	v.link("closest", "Closest to the threshold")
	for _, c := range v.Closest {
		t := &tile{picture: v.picture(c.Image, thumbnailSide), Class: c.Image.Label}
		side := "accepted"
		if c.OOD {
			side = "flagged"
		}
		t.says(tileLine{"label", c.Image.Label, false}, tileLine{"given", c.Given, c.Image.Label != "" && c.Image.Label != c.Given},
			tileLine{"score", number(c.Score), false}, tileLine{"threshold", number(c.Threshold), false}, tileLine{"so it is", side, c.OOD})
		v.Tiles = append(v.Tiles, t)
	}
}

// lowest shows the calibration images that a person may look through.
func (v *detectorView) lowest() {
	if len(v.Lowest) == 0 {
		return
	}
	v.link("lowest", "The lowest")
	csv := func(list ...training.ReviewedImage) string {
		var text strings.Builder
		_ = training.FormatReview(&text, list) // a Builder takes all
		return text.String()
	}
	v.ReviewHead = csv()
	for _, c := range v.Lowest {
		t := &tile{picture: v.picture(c.Image, thumbnailSide), Class: c.Label, Review: strings.TrimPrefix(csv(c.ReviewedImage), v.ReviewHead), Mark: "of no class"}
		t.says(tileLine{"label", c.Label, false}, tileLine{"given", c.Class, c.Label != "" && c.Label != c.Class}, tileLine{"score", number(c.Score), false}, tileLine{"p-value", number(c.PValue), false})
		v.LowestTiles = append(v.LowestTiles, t)
	}
}

// MoreLowest tells whether more images than are shown must be looked at.
func (v *detectorView) MoreLowest() bool {
	d := v.Detector.Detector
	return len(v.Lowest) <= detector.Rank(len(d.CalibrationScores), d.TargetTPR)
}

// The map is drawn as SVG, so that it can be seen without scripts.

const (
	mapWidth, mapHeight = 900, 600
	mapMargin           = 14
	mapThumbnail        = 72
)

// mapView is a SummaryMap as the template reads it.
type mapView struct {
	Note    string // which images, and what the axes are
	Axes    []string
	Classes []mapClass
	Views   []mapPlane
	Marks   []mapMark
}

// mapPlane is two axes that a map shows.
type mapPlane struct {
	First int // of the axes
	X, Y  string
}

// mapClass is a class with its mark.
type mapClass struct {
	Name          string
	Colour, Shape int
}

// mapMark is a point with its place in pixels.
type mapMark struct {
	evaluation.Point
	mapClass          // its label
	Places   []string // on each axis, in pixels
	Picture  *picture
	Text     string
}

// mapShapes are the marks of classes, of about the same area.
var mapShapes = []template.HTML{
	`<circle r="5.5"/>`, `<path d="M-5-5h10v10h-10z"/>`, `<path d="M0-7l6.5 11.5h-13z"/>`, `<path d="M0-7.2L7.2 0 0 7.2-7.2 0z"/>`, `<path d="M0 7l6.5-11.5h-13z"/>`,
}

// Shapes returns the marks.
func (m *mapView) Shapes() []template.HTML { return mapShapes }

// newMap says which images a map shows, and what its axes are.
func newMap(given *evaluation.SummaryMap) *mapView {
	m := &mapView{}
	for i, share := range given.Shares {
		label := fmt.Sprintf("axis %d", i+1)
		if share > 0 {
			label += fmt.Sprintf(" (%.0f%% of the variance between classes)", 100*share)
		}
		m.Axes = append(m.Axes, label)
	}
	m.Note = fmt.Sprintf("Features as the head reads them, on the axes that tell the classes apart best (linear discriminants); one unit is a standard deviation within a class. Shown are %d of %d labelled images, spread evenly over the classes.", len(given.Points), given.Images)
	switch {
	case given.Shares[1] > 0:
		m.Note += " Classes that lie on each other here may differ along other axes."
	case given.Shares[0] > 0:
		m.Note += " Two classes differ along one axis; the second is the one along which the images differ most otherwise."
	default:
		m.Note += " The axes are those along which the images differ most."
	}
	return m
}

func (v *detectorView) drawMap() {
	given := v.Map
	if given == nil || len(given.Points) == 0 {
		return
	}
	v.link("map", "Map")
	m := newMap(given)
	used := make([]*mapClass, len(v.Classes))
	for _, p := range given.Points {
		used[p.Class] = &mapClass{}
	}
	for i, c := range used {
		if n := len(m.Classes); c != nil {
			*c = mapClass{v.Classes[i].Name, n % len(lineStyles), n / len(lineStyles) % len(mapShapes)}
			m.Classes = append(m.Classes, *c)
		}
	}
	var places [][]string // by axis, then by point
	for axis := range m.Axes {
		places = append(places, placesOf(given.Points, axis))
	}
	for i, p := range given.Points {
		state := "accepted"
		if p.Verdict.OOD {
			state = "flagged"
		}
		mark := mapMark{Point: p, mapClass: *used[p.Class], Picture: v.picture(p.Image, mapThumbnail)}
		mark.Text = fmt.Sprintf("%s: %s, %s image, given %s, %s", mark.Name, p.Image.Path, p.Part, p.Verdict.Class, state)
		for axis := range m.Axes {
			mark.Places = append(mark.Places, places[axis][i])
		}
		m.Marks = append(m.Marks, mark)
	}
	for axis := 0; axis+1 < len(m.Axes); axis += 2 {
		m.Views = append(m.Views, mapPlane{axis, m.Axes[axis], m.Axes[axis+1]})
	}
	v.Plane = m
}

// placesOf returns where points are on the picture of the map, in pixels: an even axis
// goes to the right, an odd one up.
func placesOf(points []evaluation.Point, axis int) (places []string) {
	sign, pixels := 1., float64(mapWidth)
	if axis%2 == 1 {
		sign, pixels = -1, mapHeight
	}
	values := lists.Map(points, func(p evaluation.Point) float64 { return sign * p.At[axis] })
	slices.Sort(values)
	// A few far points must not push all others together: they are at the edge.
	n := len(values)
	low, high := values[n/200], values[n-1-n/200]
	slack := 0.15 * (high - low)
	low, high = max(values[0], low-slack), min(values[n-1], high+slack)
	for _, p := range points {
		share := 0.5
		if high > low {
			share = min(max((sign*p.At[axis]-low)/(high-low), 0), 1)
		}
		places = append(places, strconv.FormatFloat(mapMargin+share*(pixels-2*mapMargin), 'f', 1, 64))
	}
	return places
}
