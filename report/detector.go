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

	"mlrbfn/metrics"
)

// Detector holds what the page of a detector shows. A section with nothing to show is
// left out.
type Detector struct {
	Title    string // "" means "A detector"
	Lead     []string
	Notes    []string // what is missing, and why
	Commands []string
	Facts    []Fact

	Classes   []DetectorClass
	Confusion []Confusion // of the validation images

	// Levels are shares of false alarms, and HeldOut says what is caught of each class
	// that was left out where so many are accepted; the curves have CurveLevels. Caught,
	// Curve and AUROC of Mean are the means over all classes.
	Levels, CurveLevels []float64
	HeldOut             []HeldOutClass
	Mean                HeldOutClass

	// Threshold is the score below which an image is flagged, −Inf for none, and
	// MaxFalseAlarms what it was set to flag at most.
	Threshold, MaxFalseAlarms float64
	FalseAlarms               []FalseAlarms // by rising thresholds

	History []EpochMean // mean over the heads

	Map     *FeatureMap
	Closest []ClosestImage
	Change  *Change // what adding images did; nil for none

	// Draw makes the static picture of a chart; see Report.Draw.
	Draw func(c Chart, format string) ([]byte, error)
}

// DetectorClass is a line of the table of classes. Counts below 0 are not known.
type DetectorClass struct {
	Name                           string
	Train, Validation, Calibration int
	Right, Flagged                 float64 // shares of the validation images; NaN if unknown
}

// Confusion says how many validation images of a class are given a class.
type Confusion struct {
	Label, Given string
	Images       int
}

// HeldOutClass says how well a class would be noticed if it were new.
type HeldOutClass struct {
	Name     string
	AUROC    float64
	Images   int
	TakenFor string
	Caught   []float64 // at Detector.Levels; NaN if unknown
	Curve    []float64 // at Detector.CurveLevels; nil if unknown
}

// FalseAlarms is the cost of a threshold: the share of in-distribution images that are
// flagged, with an interval.
type FalseAlarms struct{ Threshold, Share, Low, High float64 }

// EpochMean holds the mean metrics of the heads after an epoch.
type EpochMean struct {
	Epoch                           int
	TrainLoss, ValLoss, ValAccuracy float64 // the last is NaN without validation images
}

// FeatureMap shows images where their features lie on axes, two at a time.
type FeatureMap struct {
	Note   string   // which images, and what the axes are
	Axes   []string // labels, an even number
	Points []MapPoint
}

// MapPoint is an image on a map.
type MapPoint struct {
	At    []float64 // on each axis
	Image Image
	Class string // its label
	Part  string // what it was used for
	Given string // the class that the detector gives it
	OOD   bool
}

// ClosestImage is a calibration image that is close to the threshold.
type ClosestImage struct {
	Image            Image
	Score, Threshold float64
	Given            string
	OOD              bool
}

// Change says what adding images to a detector did.
type Change struct {
	Old     string // file of the detector before
	Added   []AddedClass
	Note    string // which images the classes are compared on
	Classes []ChangedClass
	All     ChangedClass // of all classes that the old detector knew
	// AUROC before and after, of class hold-out; NaN if unknown.
	AUROCBefore, AUROCAfter float64
}

// AddedClass says whether a class that images were added to is known now.
type AddedClass struct {
	Name           string
	New            bool // the old detector did not know it
	Images         int  // that were added
	FlaggedBefore  int  // of them, by the old detector
	HeldOut, Right int  // of the added images, that were not trained on, and those given the class
	FlaggedAfter   int  // of HeldOut
}

// ChangedClass compares the detectors on images that neither was trained on.
type ChangedClass struct {
	Name                        string
	Images                      int
	RightBefore, RightAfter     int
	FlaggedBefore, FlaggedAfter int
	AUROCBefore, AUROCAfter     float64 // of class hold-out; NaN if unknown
}

// CheckDetector returns an error if WriteDetector could not write to the file. Call it
// before long work. A file that this package did not make is never replaced.
func CheckDetector(file string) error { return checkPage(file) }

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
	HeldOutChart   []*figure
	AlarmChart     []*figure
	Training       []*figure
	Map            *mapView
	Tiles          []*tile
	NotShown       []notShown

	mu sync.Mutex
}

// notShown is an image that could not be shown.
type notShown struct{ Path, Error string }

// WriteDetector writes the page of a detector to a file.
func WriteDetector(file string, d Detector) error {
	if err := checkPage(file); err != nil {
		return err
	}
	v := &detectorView{Detector: d, Page: layout{
		Title: cmp.Or(d.Title, "A detector"), Lead: d.Lead, Notes: d.Notes, Commands: d.Commands, Facts: d.Facts,
		Charts: true, Script: "map.js", Sheet: "map.css", Album: &album{},
	}}
	v.change()
	v.classes()
	v.confusion()
	v.heldOut()
	v.alarms()
	v.training()
	v.drawMap()
	v.closest()
	v.Page.Album.load()
	v.listNotShown()
	err := v.draw()
	if err == nil {
		err = writePage(file, "detector.html", v)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (v *detectorView) link(id, text string) {
	v.Page.Links = append(v.Page.Links, link{id, text})
}

// Cells of tables.

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
		name := a.Name
		if a.New {
			name += " (new)"
		}
		v.AddedTable.Rows = append(v.AddedTable.Rows, tableRow{name, []tableCell{
			countCell(a.Images), ofCell(a.FlaggedBefore, a.Images), countCell(a.HeldOut), ofCell(a.Right, a.HeldOut), ofCell(a.FlaggedAfter, a.HeldOut)}})
	}
	v.ChangeTable = &table{Caption: "The classes that were known before", Head: "class",
		Columns: []string{"images", "right before", "right now", "falsely flagged before", "falsely flagged now", "AUROC if new, before", "AUROC if new, now"}}
	for _, class := range append([]ChangedClass{c.All}, c.Classes...) {
		row := tableRow{class.Name, []tableCell{countCell(class.Images), ofCell(class.RightBefore, class.Images), ofCell(class.RightAfter, class.Images),
			ofCell(class.FlaggedBefore, class.Images), ofCell(class.FlaggedAfter, class.Images), aurocCell(class.AUROCBefore), aurocCell(class.AUROCAfter)}}
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
	points := slices.DeleteFunc(slices.Clone(v.FalseAlarms), func(f FalseAlarms) bool {
		return math.IsInf(f.Threshold, 0) || math.IsNaN(f.Threshold)
	})
	if at := slices.IndexFunc(points, func(f FalseAlarms) bool { return f.Share > mostAlarms }); at >= 0 {
		points = points[:at+1]
	}
	if len(points) < 2 {
		return
	}
	v.link("alarms", "False alarms")
	series := func(of func(FalseAlarms) float64) (line []metrics.Point) {
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
	upper, lower := styled(bound, "95% interval", series(func(f FalseAlarms) float64 { return f.High })), styled(bound, "", series(func(f FalseAlarms) float64 { return f.Low }))
	lower.Hidden = true
	c.Series = []Series{styled(lineStyles[0], "false alarms", series(func(f FalseAlarms) float64 { return f.Share })), upper, lower}
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

// draw makes the static pictures of the charts.
func (v *detectorView) draw() error {
	if v.Draw == nil {
		return nil
	}
	for _, f := range slices.Concat(v.HeldOutChart, v.AlarmChart, v.Training) {
		var err error
		if f.svg, err = v.Draw(f.Chart, "svg"); err != nil {
			return fmt.Errorf("chart %s: %w", f.Name, err)
		}
	}
	return nil
}

// picture adds an image to the page's album, and notes why it cannot be shown.
func (v *detectorView) picture(img Image, side int) *picture {
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
		v.Page.Notes = append(v.Page.Notes, fmt.Sprintf("%s could not be shown; they are listed below.", count(n)))
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
		for _, line := range []tileLine{{"label", c.Image.Label, false}, {"given", c.Given, c.Image.Label != "" && c.Image.Label != c.Given},
			{"score", number(c.Score), false}, {"threshold", number(c.Threshold), false}, {"so it is", side, c.OOD}} {
			if line.Value != "" {
				t.Lines = append(t.Lines, line)
			}
		}
		v.Tiles = append(v.Tiles, t)
	}
}

// The map is drawn as SVG, so that it can be seen without scripts.

const (
	mapWidth, mapHeight = 900, 600
	mapMargin           = 14
	mapThumbnail        = 72
)

// mapView is a FeatureMap as the template reads it.
type mapView struct {
	FeatureMap
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
	Places        []string // on each axis, in pixels
	Colour, Shape int
	MapPoint
	Picture *picture
	Text    string
}

// mapShapes are the marks of classes, of about the same area.
var mapShapes = []template.HTML{
	`<circle r="5.5"/>`, `<path d="M-5-5h10v10h-10z"/>`, `<path d="M0-7l6.5 11.5h-13z"/>`, `<path d="M0-7.2L7.2 0 0 7.2-7.2 0z"/>`, `<path d="M0 7l6.5-11.5h-13z"/>`,
}

// Shapes returns the marks.
func (m *mapView) Shapes() []template.HTML { return mapShapes }

func (v *detectorView) drawMap() {
	given := v.Detector.Map
	if given == nil || len(given.Points) == 0 {
		return
	}
	v.link("map", "Map")
	m := &mapView{FeatureMap: *given}
	number := map[string]int{}
	for _, p := range given.Points {
		number[p.Class] = 0
	}
	for _, c := range v.Classes {
		if _, used := number[c.Name]; used {
			number[c.Name] = len(m.Classes)
			m.Classes = append(m.Classes, mapClass{c.Name, len(m.Classes) % len(lineStyles), len(m.Classes) / len(lineStyles) % len(mapShapes)})
		}
	}
	var places [][]string // by axis, then by point
	for axis := range given.Axes {
		places = append(places, placesOf(given.Points, axis))
	}
	for i, p := range given.Points {
		c := m.Classes[number[p.Class]]
		state := "accepted"
		if p.OOD {
			state = "flagged"
		}
		text := fmt.Sprintf("%s: %s, %s image, given %s, %s", p.Class, p.Image.Path, p.Part, p.Given, state)
		mark := mapMark{Colour: c.Colour, Shape: c.Shape, MapPoint: p, Picture: v.picture(p.Image, mapThumbnail), Text: text}
		for axis := range given.Axes {
			mark.Places = append(mark.Places, places[axis][i])
		}
		m.Marks = append(m.Marks, mark)
	}
	for axis := 0; axis+1 < len(given.Axes); axis += 2 {
		m.Views = append(m.Views, mapPlane{axis, given.Axes[axis], given.Axes[axis+1]})
	}
	v.Map = m
}

// placesOf returns where points are on the picture of the map, in pixels: an even axis
// goes to the right, an odd one up.
func placesOf(points []MapPoint, axis int) (places []string) {
	sign, pixels := 1., float64(mapWidth)
	if axis%2 == 1 {
		sign, pixels = -1, mapHeight
	}
	values := make([]float64, len(points))
	for i, p := range points {
		values[i] = sign * p.At[axis]
	}
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
