package serve

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

//go:embed web
var web embed.FS

var pageTemplate = template.Must(report.Parts().ParseFS(web, "web/page.html"))

// pageRequests are those of the page.
type pageRequests struct {
	store     verdicts // nil remembers nothing
	memory    keeper
	watch     watch
	detectors detectors
	alpha     float64 // of tests for drift
	token     bool    // one is needed
	log       *slog.Logger
}

// routes are the page and its files, which need no token. Where one is needed, the page
// holds nothing about images; what it shows it asks for.
func (p *pageRequests) routes() []route {
	static := func(pattern, kind string, data []byte) route {
		answer := file{kind: kind, data: data}
		return route{pattern: pattern, open: true, page: true, answer: func(context.Context, *http.Request) (any, error) { return answer, nil }}
	}
	routes := []route{
		{pattern: "GET /{$}", open: p.token, page: true, answer: p.show}, // where all is open, it counts as a request of its client
		{pattern: "GET /page", page: true, answer: p.showCame},
		static("GET /style.css", "text/css; charset=utf-8", []byte(report.StyleSheet())),
	}
	for name, kind := range map[string]string{
		"page.js": "text/javascript; charset=utf-8", "learn.js": "text/javascript; charset=utf-8", "page.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		data, err := web.ReadFile("web/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		routes = append(routes, static("GET /"+name, kind, data))
	}
	return routes
}

// span is a time that the page looks back.
type span struct {
	Name, Label string
	Long, Step  time.Duration
	Here        bool
}

var spans = []span{
	{Name: "hour", Label: "last hour", Long: time.Hour, Step: 5 * time.Minute},
	{Name: "day", Label: "last day", Long: 24 * time.Hour, Step: time.Hour},
	{Name: "month", Label: "last 30 days", Long: 30 * 24 * time.Hour, Step: 24 * time.Hour},
}

// spanOf is the one that a request asks for, the day without.
func spanOf(r *http.Request) span {
	for _, one := range spans {
		if one.Name == r.URL.Query().Get("span") {
			return one
		}
	}
	return spans[1]
}

// came is what the page shows of the images that came.
type came struct {
	Span      span
	Spans     []span
	Note      string // why nothing is known
	Stored    bool
	Lead      string
	Classes   *pageTable
	PValues   *bars
	Shares    *bars    // of flagged images, over time
	Means     *bars    // of p-values
	Shifts    []figure // classes over time
	Evidence  []figure // of drift over time, by source
	Drift     *pageTable
	Alarms    []string // of drift, and what else a person must know
	DriftNote string
	Flagged   []flaggedItem
}

// pageTable, pageRow and pageCell are what the template "table" of the report reads.
type (
	pageTable struct {
		Caption, Head string
		Groups        []struct {
			Label string
			Span  int
		}
		Columns []string
		Rows    []pageRow
	}
	pageRow struct {
		Head  string
		Cells []pageCell
	}
	pageCell struct {
		Mean, Sort, Std, Interval string
		Best, Wrong               bool
	}
)

// figure is a chart with its name.
type figure struct {
	Name  string
	Chart *bars
}

// bars is a chart of bars, 400 by 100.
type bars struct {
	Text string // says it in words
	Bars []bar
	Line float64 // height of a line across; negative for none
}

type bar struct {
	X, Y, Width, Height float64
	Low, High           float64 // of an interval, from the top; both 0 for none
	Text                string
}

// flaggedItem is a flagged image.
type flaggedItem struct {
	ID, Name, Class, P, When, Source, Said, Image string
	Kept, Direct                                  bool
}

// show answers GET /. Without a token it shows all that can be seen without JavaScript.
func (p *pageRequests) show(ctx context.Context, r *http.Request) (any, error) {
	var data struct {
		Came  *came
		Token bool // it is needed
	}
	if data.Token = p.token; !data.Token {
		data.Came = p.came(ctx, r)
	}
	return rendered("page", data)
}

// showCame answers GET /page: the part of the page that changes by itself.
func (p *pageRequests) showCame(ctx context.Context, r *http.Request) (any, error) {
	return rendered("came", p.came(ctx, r))
}

func rendered(name string, data any) (any, error) {
	var text bytes.Buffer
	err := pageTemplate.ExecuteTemplate(&text, name, data)
	return file{kind: "text/html; charset=utf-8", data: text.Bytes()}, err
}

// came gathers what came in.
func (p *pageRequests) came(ctx context.Context, r *http.Request) *came {
	c := &came{Span: spanOf(r), Spans: slices.Clone(spans), Stored: p.store != nil}
	for i := range c.Spans {
		c.Spans[i].Here = c.Spans[i].Name == c.Span.Name
	}
	now := time.Now()
	from := now.Add(-c.Span.Long)
	c.drift(p.watch.list(), p.alpha)
	var hashes []string
	for _, name := range p.detectors.Names() {
		d := p.detectors.Use(name)
		hashes = append(hashes, d.SHA256)
		if d.FlagsNothing() {
			c.Alarms = append(c.Alarms, fmt.Sprintf("The detector %s flags nothing: it had too few calibration images for a threshold.", name))
		}
		d.Release()
	}
	c.evidence(p.watch.during(from.Truncate(c.Span.Step), now, hashes...), from, now)
	if p.store == nil {
		c.Note = "This service remembers nothing: it was started without a store. Flagged images are shown as they come."
		return c
	}
	counts, err := p.store.Count(ctx, store.Query{From: from}, c.Span.Step)
	if err == nil {
		c.count(counts, from, now, p.detectors)
		yes := true
		var list []store.Record
		if list, err = p.store.List(ctx, store.Query{OOD: &yes, Limit: mostFlagged}); err == nil {
			for _, v := range list {
				c.Flagged = append(c.Flagged, p.flagged(v))
			}
			return c
		}
	}
	p.log.Error("the store cannot be asked", "error", err)
	c.Note = "The store cannot be asked now."
	return c
}

// mostFlagged is how many flagged images the page shows; its script knows it, too.
const mostFlagged = 60

func (p *pageRequests) flagged(v store.Record) flaggedItem {
	said := ""
	if v.Review != nil {
		if said = string(v.Review.Decision); v.Review.Class != "" {
			said = "it is " + v.Review.Class
		}
	}
	return flaggedItem{
		ID: v.ID, Name: v.Name, Class: v.Class, P: fmt.Sprintf("%.2g", v.PValue), When: v.Time.UTC().Format("2006-01-02 15:04:05 UTC"),
		Source: v.Source, Said: said, Image: v.Image, Kept: p.memory.record(v).Kept, Direct: !p.token,
	}
}

// count fills the tables and charts of counts.
func (c *came) count(counts []store.Count, from, now time.Time, open detectors) {
	classes, steps := map[string]stepSum{}, map[time.Time]stepSum{}
	var all stepSum
	var bins [store.PBins]int
	known := 0
	for _, one := range counts {
		class, step := classes[one.Class], steps[one.Start]
		for _, to := range []*stepSum{&class, &step, &all} {
			to.n += one.N
			to.ood += one.OOD
			to.p += float64(one.N) * one.MeanPValue
		}
		if step.classes == nil {
			step.classes = map[string]int{}
		}
		step.classes[one.Class] += one.N
		classes[one.Class], steps[one.Start] = class, step
		for i, n := range one.PValues {
			bins[i] += n
			known += n
		}
	}
	c.Lead = fmt.Sprintf("%s came in the %s.", plural(all.n, "image"), c.Span.Label)
	if all.n > 0 {
		c.Lead += fmt.Sprintf(" %s flagged: %s.", plural(all.ood, "was", "were"), percent(all.ood, all.n))
	}
	if all.n == 0 {
		return
	}
	c.Classes = &pageTable{Caption: "Verdicts by class, " + c.Span.Label, Head: "class", Columns: []string{"images", "OOD", "share"}}
	row := func(name string, v stepSum) {
		c.Classes.Rows = append(c.Classes.Rows, pageRow{name, []pageCell{{Mean: fmt.Sprint(v.n)}, {Mean: fmt.Sprint(v.ood)}, {Mean: percent(v.ood, v.n)}}})
	}
	row("all", all)
	names := []string{}
	for name := range classes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := classes[b].n - classes[a].n; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	const most = 50
	for _, name := range names[:min(most, len(names))] {
		row(name, classes[name])
	}
	if rest := names[min(most, len(names)):]; len(rest) > 0 {
		var v stepSum
		for _, name := range rest {
			v.n, v.ood = v.n+classes[name].n, v.ood+classes[name].ood
		}
		row(fmt.Sprintf("%d more", len(rest)), v)
	}
	c.pValues(bins[:], known)
	c.overTime(steps, names, from, now, open)
}

// pValues draws the histogram of p-values.
func (c *came) pValues(bins []int, known int) {
	if known == 0 {
		return
	}
	even := float64(known) / float64(len(bins))
	highest := max(float64(slices.Max(bins)), 2*even)
	c.PValues = &bars{Line: 100 - 100*even/highest, Text: fmt.Sprintf("Histogram of %s: %s lie in the lowest of %d bars, %.3g if they were even", plural(known, "p-value"), percent(bins[0], known), len(bins), even)}
	for i, n := range bins {
		height := 100 * float64(n) / highest
		c.PValues.Bars = append(c.PValues.Bars, bar{X: 20*float64(i) + 1, Width: 18, Y: 100 - height, Height: height,
			Text: fmt.Sprintf("%.2g to %.2g: %d", float64(i)/float64(len(bins)), float64(i+1)/float64(len(bins)), n)})
	}
}

// stepSum sums the verdicts of a step of time.
type stepSum struct {
	n, ood  int
	p       float64 // sum of the p-values
	classes map[string]int
}

// mostCharts bounds the charts of classes, and those of sources.
const mostCharts = 6

// point is one step of time of a chart.
type point struct {
	at       time.Time
	of       stepSum
	expected evaluation.ExpectedVerdicts
}

// overTime draws the share of flagged images, the mean p-value and the shares of classes
// over time, each with the interval that it lies in with a chance of 95% if images are like
// the calibration images.
func (c *came) overTime(steps map[time.Time]stepSum, classes []string, from, now time.Time, open detectors) {
	d := open.Use("")
	defer d.Release()
	one := len(open.Names()) == 1 // else there is no one calibration
	var points []point
	for at := range c.steps(from, now) {
		p := point{at: at, of: steps[at]}
		if one && p.of.n > 0 {
			const enough = 5000 // from where on the interval is that of the threshold
			p.expected = evaluation.ExpectVerdicts(d.Detector, min(p.of.n, enough))
		}
		points = append(points, p)
	}
	c.Shares = c.course(points, 0.1, "flagged", func(p point) (float64, *[2]float64) {
		return float64(p.of.ood) / float64(p.of.n), p.expected.Flagged
	})
	c.Means = c.course(points, 1, "mean p-value", func(p point) (float64, *[2]float64) {
		return p.of.p / float64(p.of.n), p.expected.MeanPValue
	})
	if len(classes) < 2 {
		return
	}
	changes := map[string]float64{}
	for _, class := range classes {
		var counts, sizes []int
		for _, p := range points {
			counts, sizes = append(counts, p.of.classes[class]), append(sizes, p.of.n)
		}
		changes[class] = report.ShareChange(counts, sizes)
	}
	shown := slices.Clone(classes)
	slices.SortStableFunc(shown, func(a, b string) int { return cmp.Compare(changes[b], changes[a]) })
	for _, class := range shown[:min(mostCharts, len(shown))] {
		c.Shifts = append(c.Shifts, figure{class, c.course(points, 0.1, "share of "+class, func(p point) (float64, *[2]float64) {
			if interval, ok := p.expected.Classes[class]; ok {
				return float64(p.of.classes[class]) / float64(p.of.n), &interval
			}
			return float64(p.of.classes[class]) / float64(p.of.n), nil
		})})
	}
}

// evidence draws the evidence of drift of the sources that have most.
func (c *came) evidence(sources []sourceHistory, from, now time.Time) {
	highest := func(h sourceHistory) float64 {
		return slices.MaxFunc(h.Points, func(a, b evaluation.DriftPoint) int { return cmp.Compare(a.Evidence, b.Evidence) }).Evidence
	}
	slices.SortStableFunc(sources, func(a, b sourceHistory) int { return cmp.Compare(highest(b), highest(a)) })
	for _, one := range sources[:min(mostCharts, len(sources))] {
		const top = 2.0 // beyond the alarm it does not matter how much it is
		byStep := map[time.Time]float64{}
		for _, p := range one.Points {
			at := p.Start.Truncate(c.Span.Step)
			byStep[at] = max(byStep[at], p.Evidence)
		}
		all := &bars{Line: 100 - 100/top, Text: fmt.Sprintf("evidence of drift of %s over the %s, at most %.0f%%", one.Source, c.Span.Label, 100*highest(one))}
		steps := slices.Collect(c.steps(from, now))
		for i, at := range steps {
			evidence, known := byStep[at]
			text := "no images"
			if known {
				text = fmt.Sprintf("evidence %.0f%%", 100*evidence)
			}
			all.add(i, len(steps), at, min(evidence, top)/top, text)
		}
		name := one.Source
		if len(sources) > 1 {
			name += ", " + one.Detector
		}
		c.Evidence = append(c.Evidence, figure{name, all})
	}
}

// steps are the spans of time that charts show.
func (c *came) steps(from, now time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for at := from.UTC().Truncate(c.Span.Step); at.Before(now) && yield(at); at = at.Add(c.Span.Step) {
		}
	}
}

// course draws one figure of each step. highest is the least height of the chart.
func (c *came) course(points []point, highest float64, name string, of func(point) (float64, *[2]float64)) *bars {
	for _, p := range points {
		if p.of.n > 0 {
			value, interval := of(p)
			highest = max(highest, value)
			if interval != nil {
				highest = max(highest, interval[1])
			}
		}
	}
	all := &bars{Line: -1, Text: fmt.Sprintf("%s over the %s, in steps of %v; the top is %.2g", name, c.Span.Label, c.Span.Step, highest)}
	for i, p := range points {
		if p.of.n == 0 {
			all.add(i, len(points), p.at, 0, "no images")
			continue
		}
		value, interval := of(p)
		b := all.add(i, len(points), p.at, value/highest, fmt.Sprintf("%s %.3f of %s", name, value, plural(p.of.n, "image")))
		if interval != nil {
			b.Low, b.High = 100-100*interval[0]/highest, 100-100*interval[1]/highest
			b.Text += fmt.Sprintf("; %.3f to %.3f if they are like the calibration images", interval[0], interval[1])
		}
	}
	return all
}

// add adds bar i of n, of a height from 0 to 1.
func (all *bars) add(i, n int, at time.Time, height float64, text string) *bar {
	width := 400 / float64(n)
	all.Bars = append(all.Bars, bar{X: width*float64(i) + 1, Width: math.Max(1, width-2), Y: 100 - 100*height, Height: 100 * height,
		Text: at.Format("2006-01-02 15:04 UTC") + ": " + text})
	return &all.Bars[i]
}

// Band is the rectangle of an interval.
func (b bar) Band() float64 { return b.Low - b.High }

// drift fills the table of drift.
func (c *came) drift(sources []sourceDrift, alpha float64) {
	c.DriftNote = fmt.Sprintf("Evidence of 100%% raises the alarm. If images stay like the calibration images, an alarm is ever raised with a chance of at most %g%% for each source.", 100*alpha)
	if len(sources) == 0 {
		return
	}
	c.Drift = &pageTable{Caption: "Tests for drift", Head: "source", Columns: []string{"detector", "images", "evidence", "alarm"}}
	for _, one := range sources {
		row := pageRow{one.Source, []pageCell{{Mean: one.Detector}, {Mean: "0"}, {Mean: "–"}, {Mean: "–"}}}
		if one.All != nil {
			row.Cells[1].Mean = fmt.Sprint(one.All.Images)
			row.Cells[2].Mean = fmt.Sprintf("%.0f%%", 100*max(0, min(1, one.All.LogWealth/one.All.Threshold)))
			var raised []string
			if one.All.Alarm {
				raised = append(raised, "all images")
			}
			for _, class := range one.Classes {
				if class.Alarm {
					raised = append(raised, class.Class)
				}
			}
			if len(raised) > 0 {
				row.Cells[3] = pageCell{Mean: strings.Join(raised, ", "), Wrong: true}
				c.Alarms = append(c.Alarms, fmt.Sprintf("The images of %s are no longer like the calibration images (%s).", one.Source, strings.Join(raised, ", ")))
			}
		}
		c.Drift.Rows = append(c.Drift.Rows, row)
	}
}

func percent(n, of int) string {
	if of == 0 {
		return "–"
	}
	share := 100 * float64(n) / float64(of)
	if share > 0 && share < 10 {
		return fmt.Sprintf("%.1f%%", share)
	}
	return fmt.Sprintf("%.0f%%", share)
}

// plural counts things: of one word with an s, of two the first for one.
func plural(n int, words ...string) string {
	word := words[len(words)-1]
	if len(words) == 1 && n != 1 {
		word += "s"
	}
	if len(words) == 2 && n == 1 {
		word = words[0]
	}
	return fmt.Sprintf("%d %s", n, word)
}
