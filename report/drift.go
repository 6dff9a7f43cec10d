package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// Drift holds what the page of a course of images shows.
type Drift struct {
	Frame             // Answer is whether there was an alarm
	Parts []DriftPart // of the course, in order
	// Threshold is the log wealth that raises the alarm.
	Threshold float64
	Classes   []DriftClass // that images were given
	Raised    []Finding    // the images that raised the alarm, the strangest first

}

// DriftPart is some images in a row. Intervals hold 95% of such parts if images are like
// the calibration images; nil where that is not known.
type DriftPart struct {
	From      int            `json:"from"` // the first, from 1 on
	To        int            `json:"to"`
	Begin     string         `json:"begin,omitempty"` // time of the first
	OOD       int            `json:"ood"`
	Expected  *[2]float64    `json:"flagged_interval"` // of the share of OOD images
	MeanP     float64        `json:"mean_p_value"`
	ExpectedP *[2]float64    `json:"mean_p_value_interval"`
	LogWealth float64        `json:"log_wealth"` // after the last image
	Classes   map[string]int `json:"classes"`    // that images were given
	// ExpectedClasses are the intervals of the shares of classes; nil where the calibration
	// images have no labels.
	ExpectedClasses map[string][2]float64 `json:"class_intervals"`
}

func (p *DriftPart) images() int { return p.To - p.From + 1 }

// Name names the images of the part.
func (p *DriftPart) Name() string {
	if p.From == p.To {
		return fmt.Sprint(p.From)
	}
	return fmt.Sprintf("%d–%d", p.From, p.To)
}

func (p *DriftPart) flagged() float64 { return float64(p.OOD) / float64(p.images()) }

func (p *DriftPart) share(class string) float64 {
	return float64(p.Classes[class]) / float64(p.images())
}

// DriftClass is a class that images were given.
type DriftClass struct {
	Name     string      `json:"class"`
	Images   int         `json:"images"`
	OOD      int         `json:"ood"`
	MeanP    float64     `json:"mean_p_value"`
	Alarm    *DriftAlarm `json:"alarm"` // nil for none
	Early    float64     `json:"-"`     // share of the images of the first half of the course
	Late     float64     `json:"-"`     // of the second
	Expected *[2]float64 `json:"-"`     // of both; nil where that is not known
}

// DriftAlarm names the image that raised an alarm.
type DriftAlarm struct {
	Image     int         `json:"image"` // from 1 on, among those that were read
	Path      string      `json:"path"`
	PathBytes []byte      `json:"path_bytes,omitempty"`
	Time      string      `json:"time,omitempty"`
	Since     *DriftAlarm `json:"since,omitempty"` // where the evidence began to grow
}

type driftView struct {
	Page       layout
	Tiles      []*tile // of the images that raised the alarm
	Charts     []*Chart
	Parts      table
	ClassTable *table
}

// WriteDrift writes the page of a course of images to a file.
func WriteDrift(file string, d Drift) error {
	if err := CheckPage(file); err != nil {
		return err
	}
	v := &driftView{Page: layout{Frame: d.titled("Drift"), Charts: true, Links: []link{{"course", "Course"}}}}
	if len(d.Raised) > 0 {
		v.Page.Album = &album{}
		v.Page.Links = append([]link{{"raised", "What raised the alarm"}}, v.Page.Links...)
		for _, f := range d.Raised {
			v.Tiles = append(v.Tiles, v.Page.Album.finding(f))
		}
		v.Page.Album.load()
	}
	if len(d.Parts) > 1 {
		v.Charts = []*Chart{d.evidence(),
			d.chart("flagged", "Share of flagged images", "flagged, %", func(p DriftPart) (float64, *[2]float64) { return p.flagged(), p.Expected }),
			d.chart("mean-p", "Mean p-value", "mean p-value, %", func(p DriftPart) (float64, *[2]float64) { return p.MeanP, p.ExpectedP })}
		if len(d.Classes) > 1 {
			v.Charts = append(v.Charts, d.classes())
		}
	}
	v.tables(d)
	return writePage(file, "drift.html", v)
}

// images is the axis of the course.
func (d *Drift) images() Axis {
	return Axis{Label: "image", Min: float64(d.Parts[0].From), Max: float64(d.Parts[len(d.Parts)-1].To)}
}

// mostEvidence is what a chart shows at most: beyond the alarm it does not matter.
const mostEvidence = 2

// evidence is the chart of the evidence that images changed.
func (d *Drift) evidence() *Chart {
	c := &Chart{Name: "evidence", Caption: "Evidence that the images are no longer like the calibration images, after each part. At 100% the alarm is raised.",
		X: d.images(), Y: Axis{Label: "evidence, %", Max: 1.1, Percent: true}}
	highest := 0.0
	points := []metrics.Point{{X: c.X.Min}}
	for _, p := range d.Parts {
		highest = max(highest, p.LogWealth/d.Threshold)
		points = append(points, metrics.Point{X: float64(p.To), Y: min(max(p.LogWealth/d.Threshold, 0), mostEvidence)})
	}
	c.Y.Max = max(c.Y.Max, min(highest, mostEvidence))
	c.Text = fmt.Sprintf("The highest evidence is %.0f%% of what raises the alarm.", 100*highest)
	c.Series = []Series{styled(lineStyles[0], "evidence", points), styled(lineStyles[1], "alarm", []metrics.Point{{X: c.X.Min, Y: 1}, {X: c.X.Max, Y: 1}})}
	return c
}

// chart is a figure of each part with its interval.
func (d *Drift) chart(name, what, label string, of func(DriftPart) (float64, *[2]float64)) *Chart {
	c := &Chart{Name: name, Caption: what + " of each part, with the interval for 95% of such parts if images are like the calibration images.", X: d.images(), Y: Axis{Label: label, Percent: true}}
	var line, low, high []metrics.Point
	outside := 0
	for _, p := range d.Parts {
		x := float64(p.From+p.To) / 2
		value, interval := of(p)
		line = append(line, metrics.Point{X: x, Y: value})
		c.Y.Max = max(c.Y.Max, value)
		if interval != nil {
			low, high = append(low, metrics.Point{X: x, Y: interval[0]}), append(high, metrics.Point{X: x, Y: interval[1]})
			c.Y.Max = max(c.Y.Max, interval[1])
			if value < interval[0] || value > interval[1] {
				outside++
			}
		}
	}
	c.Y.Max = math.Max(math.Min(1, 1.05*c.Y.Max), 0.01)
	c.Text = fmt.Sprintf("%s: %s%% at first, %s%% at last.", what, percent(line[0].Y), percent(line[len(line)-1].Y))
	c.Course(what, line, low, high)
	if len(high) > 0 {
		c.Text += fmt.Sprintf(" It is outside of the interval in %d of %d parts.", outside, len(line))
	}
	return c
}

// classes is the chart of the classes whose shares change most.
func (d *Drift) classes() *Chart {
	const most = 5
	change := func(class DriftClass) float64 {
		var counts, sizes []int
		for _, p := range d.Parts {
			counts, sizes = append(counts, p.Classes[class.Name]), append(sizes, p.images())
		}
		return ShareChange(counts, sizes)
	}
	shown := slices.Clone(d.Classes)
	slices.SortStableFunc(shown, func(a, b DriftClass) int { return cmp.Compare(change(b), change(a)) })
	shown = shown[:min(most, len(shown))]
	c := &Chart{Name: "classes", Caption: fmt.Sprintf("Share of each class in each part, of the %d classes that change most. Marked are shares outside the interval for 95%% of such parts if images are like the calibration images.", len(shown)),
		X: d.images(), Y: Axis{Label: "share, %", Percent: true}}
	var outside []metrics.Point
	for i, class := range shown {
		var line []metrics.Point
		for _, p := range d.Parts {
			at := metrics.Point{X: float64(p.From+p.To) / 2, Y: p.share(class.Name)}
			line = append(line, at)
			c.Y.Max = max(c.Y.Max, at.Y)
			if e, ok := p.ExpectedClasses[class.Name]; ok && (at.Y < e[0] || at.Y > e[1]) {
				outside = append(outside, at)
			}
		}
		c.Series = append(c.Series, styled(lineStyles[i], class.Name, line))
	}
	c.Y.Max = min(1, 1.05*c.Y.Max)
	c.Text = fmt.Sprintf("%s changes most: %s%% at first, %s%% at last.", shown[0].Name, percent(c.Series[0].Points[0].Y), percent(c.Series[0].Points[len(d.Parts)-1].Y))
	if len(outside) > 0 {
		c.Text += fmt.Sprintf(" %d shares of these classes are outside of their intervals.", len(outside))
		c.Series = append([]Series{{Name: "outside the interval", Points: outside, Colour: "wrong", Marker: "circle"}}, c.Series...)
	}
	return c
}

// ShareChange says how much a share changes over parts of the given sizes, by Pearson's χ²
// statistic of the counts in them: Σ (count − e)²/e, where e is what the share of all
// parts together would give. Parts of size 0 are left out; it is 0 if nothing was counted.
func ShareChange(counts, sizes []int) (chi2 float64) {
	var count, size int
	for i, n := range counts {
		count += n
		size += sizes[i]
	}
	for i, n := range counts {
		if e := float64(sizes[i]) * float64(count) / float64(size); e > 0 {
			chi2 += (float64(n) - e) * (float64(n) - e) / e
		}
	}
	return chi2
}

// tables fills the tables.
func (v *driftView) tables(d Drift) {
	share := func(value float64, interval *[2]float64) tableCell {
		return tableCell{Mean: percent(value), Sort: fmt.Sprint(value), Wrong: interval != nil && (value < interval[0] || value > interval[1])}
	}
	bounds := func(interval *[2]float64) tableCell {
		if interval == nil {
			return tableCell{Mean: "–"}
		}
		return tableCell{Mean: percent(interval[0]) + " to " + percent(interval[1]), Sort: fmt.Sprint(interval[0])}
	}
	plain := func(text string) tableCell { return tableCell{Mean: text, Sort: text} }
	v.Parts = table{Caption: "Parts of the course", Head: "images", Columns: []string{"from", "flagged, %", "expected", "mean p-value, %", "expected", "evidence, %"}}
	for _, p := range d.Parts {
		v.Parts.Rows = append(v.Parts.Rows, tableRow{p.Name(), []tableCell{plain(p.Begin), share(p.flagged(), p.Expected), bounds(p.Expected), share(p.MeanP, p.ExpectedP), bounds(p.ExpectedP),
			{Mean: percent(max(p.LogWealth/d.Threshold, 0)), Sort: fmt.Sprint(p.LogWealth / d.Threshold), Wrong: p.LogWealth/d.Threshold >= 1}}})
	}
	if len(d.Classes) < 2 {
		return
	}
	v.Page.Links = append(v.Page.Links, link{"classes", "Classes"})
	v.ClassTable = &table{Caption: "Classes that images were given", Head: "class", Columns: []string{"images", "first half, %", "second half, %", "expected", "flagged, %", "mean p-value, %", "alarm"}}
	for _, c := range d.Classes {
		alarm := tableCell{Mean: "–"}
		if c.Alarm != nil {
			alarm = plain(fmt.Sprintf("image %d", c.Alarm.Image))
			alarm.Wrong = true
		}
		v.ClassTable.Rows = append(v.ClassTable.Rows, tableRow{c.Name, []tableCell{plain(fmt.Sprint(c.Images)), share(c.Early, c.Expected), share(c.Late, c.Expected), bounds(c.Expected),
			share(float64(c.OOD)/float64(c.Images), nil), share(c.MeanP, nil), alarm}})
	}
}
