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
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/access"
	curve "github.com/mlrbfn/mlrbfn/metrics" // serve has metrics of its own
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/internal/webhook"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

//go:embed web
var web embed.FS

var pageTemplate = template.Must(report.Parts().Funcs(template.FuncMap{"plural": plural}).ParseFS(web, "web/page.html"))

// pageRequests are those of the page.
type pageRequests struct {
	store     verdicts // nil remembers nothing
	memory    keeper
	watch     watch
	detectors detectors
	alpha     float64 // of tests for drift
	token     bool    // one is needed
	version   string  // of the program
	queue     *store.Queue
	broken    func(context.Context) (int, error) // files of watched folders
	hook      *webhook.Webhook                   // or nil
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
		{pattern: "GET /{$}", role: access.Read, open: p.token, page: true, answer: p.show}, // where all is open, it counts as a request of its client
		{pattern: "GET /page", role: access.Read, page: true, answer: p.showCame},
		static("GET /style.css", "text/css; charset=utf-8", []byte(report.StyleSheet())),
		static("GET /charts.js", "text/javascript; charset=utf-8", []byte(report.Charts())),
	}
	for name, kind := range map[string]string{
		"page.js": "text/javascript; charset=utf-8", "learn.js": "text/javascript; charset=utf-8", "kinds.js": "text/javascript; charset=utf-8", "page.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
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
	Span     span
	Spans    []span
	Note     string // why nothing is known
	Lead     string
	Classes  []sum           // the first are all images
	Counts   []*report.Chart // p-values, and over time flagged images and p-values
	Shifts   []*report.Chart // classes over time
	Evidence []*report.Chart // of drift over time, by source
	Drift    []sourceDrift
	Blind    []string // detectors that flag nothing
	Percent  float64  // chance of an alarm without cause
	Flagged  []record
	Token    bool // one is needed

	Version             string
	Detectors           []*pool.Loaded
	Storing, NotStoring string
	Together            int  // images of sources that are not watched by themselves
	Raised              bool // an alarm is
	Broken              int
	Webhook             *webhookState
}

// webhookState is how the webhook does.
type webhookState struct{ Behind, Refused int }

// now gathers how the service does.
func (p *pageRequests) now(ctx context.Context, c *came) {
	c.Version, c.Together = p.version, p.watch.together()
	c.Storing = "Verdicts are stored."
	if p.queue == nil {
		c.NotStoring = "as the service was started without a store."
	} else if p.queue.Stats().Down != nil {
		waiting := 0
		for _, s := range c.Drift {
			waiting += s.Waiting
		}
		c.NotStoring = "as the disk is full or the database cannot be reached; the log says more. Answers go on, and nothing of what is stored is lost. The tests for drift wait, too: " + plural(waiting, "image is", "images are") + " not seen yet."
	}
	c.Raised = slices.ContainsFunc(c.Drift, func(s sourceDrift) bool { return len(s.Alarms) > 0 })
	if n, err := p.broken(ctx); err == nil {
		c.Broken = n
	}
	if p.hook != nil {
		c.Webhook = &webhookState{Behind: int(p.hook.Behind())}
		if all, err := p.hook.Refused(ctx); err == nil {
			c.Webhook.Refused = len(all)
		}
	}
}

// sum sums the verdicts of a class, or of a step of time.
type sum struct {
	Name    string
	N, OOD  int
	p       float64 // sum of the p-values
	classes map[string]int
}

// Share is that of flagged images.
func (s sum) Share() string { return percent(s.OOD, s.N) }

// show answers GET /. Without a token it shows all that can be seen without JavaScript.
func (p *pageRequests) show(ctx context.Context, r *http.Request) (any, error) {
	var data struct {
		Came   *came
		Token  bool   // it is needed
		Source string // of the flagged images; "" is all
	}
	data.Source = r.URL.Query().Get("source")
	if data.Token = p.token; !data.Token {
		data.Came = p.came(ctx, r)
	}
	return rendered("page", data)
}

// showCame answers GET /page: the part of the page that changes by itself.
func (p *pageRequests) showCame(ctx context.Context, r *http.Request) (any, error) {
	return rendered("parts", p.came(ctx, r))
}

func rendered(name string, data any) (any, error) {
	var text bytes.Buffer
	err := pageTemplate.ExecuteTemplate(&text, name, data)
	return file{kind: "text/html; charset=utf-8", data: text.Bytes()}, err
}

// came gathers what came in.
func (p *pageRequests) came(ctx context.Context, r *http.Request) *came {
	c := &came{Span: spanOf(r), Spans: spans, Drift: p.watch.list(), Percent: 100 * p.alpha, Token: p.token}
	now := time.Now()
	from := now.Add(-c.Span.Long)
	var hashes []string
	for _, name := range p.detectors.Names() {
		d := p.detectors.Use(name)
		hashes = append(hashes, d.SHA256)
		c.Detectors = append(c.Detectors, d.Loaded) // of which only what never changes is shown
		if d.FlagsNothing() {
			c.Blind = append(c.Blind, name)
		}
		d.Release()
	}
	p.now(ctx, c)
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
		if list, err = p.store.List(ctx, store.Query{OOD: &yes, Source: r.URL.Query().Get("source"), Limit: mostFlagged}); err == nil {
			for _, v := range list {
				c.Flagged = append(c.Flagged, p.memory.record(v))
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

// count fills the tables and charts of counts.
func (c *came) count(counts []store.Count, from, now time.Time, open detectors) {
	classes, steps := map[string]*sum{}, map[time.Time]*sum{}
	all := &sum{Name: "all"}
	var bins [store.PBins]int
	known := 0
	for _, one := range counts {
		if classes[one.Class] == nil {
			classes[one.Class] = &sum{Name: one.Class}
		}
		if steps[one.Start] == nil {
			steps[one.Start] = &sum{classes: map[string]int{}}
		}
		for _, to := range []*sum{classes[one.Class], steps[one.Start], all} {
			to.N += one.N
			to.OOD += one.OOD
			to.p += float64(one.N) * one.MeanPValue
		}
		steps[one.Start].classes[one.Class] += one.N
		for i, n := range one.PValues {
			bins[i] += n
			known += n
		}
	}
	c.Lead = fmt.Sprintf("%s came in the %s.", plural(all.N, "image"), c.Span.Label)
	if all.N == 0 {
		return
	}
	c.Lead += fmt.Sprintf(" %s flagged: %s.", plural(all.OOD, "was", "were"), all.Share())
	names := slices.SortedFunc(maps.Keys(classes), func(a, b string) int {
		return cmp.Or(cmp.Compare(classes[b].N, classes[a].N), cmp.Compare(a, b))
	})
	const most = 50
	c.Classes = []sum{*all}
	for _, name := range names[:min(most, len(names))] {
		c.Classes = append(c.Classes, *classes[name])
	}
	if rest := names[min(most, len(names)):]; len(rest) > 0 {
		more := sum{Name: fmt.Sprintf("%d more", len(rest))}
		for _, name := range rest {
			more.N, more.OOD = more.N+classes[name].N, more.OOD+classes[name].OOD
		}
		c.Classes = append(c.Classes, more)
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
	all := &report.Chart{
		Caption: "P-values. If all images were in-distribution, the bars would be about as high as the line.",
		Text:    fmt.Sprintf("Histogram of %s: %s lie in the lowest of %d bars, %.3g if they were even.", plural(known, "p-value"), percent(bins[0], known), len(bins), even),
		X:       report.Axis{Label: "p-value", Max: 1}, Y: report.Axis{Label: "images", Max: 1.05 * max(float64(slices.Max(bins)), 2*even)},
		Series: []report.Series{{Name: "images", Colour: "c0", Width: 1.5, Fill: 0.4},
			{Name: "if all were alike", Colour: "ink", Width: 1.2, Dashes: []float64{3, 3}, Points: []curve.Point{{Y: even}, {X: 1, Y: even}}}},
	}
	for _, n := range bins {
		all.Series[0].Bars = append(all.Series[0].Bars, float64(n))
	}
	c.Counts = append(c.Counts, all)
}

// mostCharts bounds the charts of classes, and those of sources.
const mostCharts = 6

// point is one step of time of a chart.
type point struct {
	at       time.Time
	of       *sum // nil without images
	expected evaluation.ExpectedVerdicts
}

// overTime draws the share of flagged images, the mean p-value and the shares of classes
// over time, each with the interval that it lies in with a chance of 95% if images are like
// the calibration images.
func (c *came) overTime(steps map[time.Time]*sum, classes []string, from, now time.Time, open detectors) {
	d := open.Use("")
	defer d.Release()
	one := len(open.Names()) == 1 // else there is no one calibration
	var points []point
	for at := range c.steps(from, now) {
		p := point{at: at, of: steps[at]}
		if one && p.of != nil {
			const enough = 5000 // from where on the interval is that of the threshold
			p.expected = evaluation.ExpectVerdicts(d.Detector, min(p.of.N, enough))
		}
		points = append(points, p)
	}
	shares := c.course(points, 0.1, "flagged", "Share of flagged images over time, with the interval that it lies in with a chance of 95% if images are like the calibration images.", func(p point) (float64, *[2]float64) {
		return float64(p.of.OOD) / float64(p.of.N), p.expected.Flagged
	})
	means := c.course(points, 1, "mean p-value", "Mean p-value over time, likewise. It falls when images become less like the training images.", func(p point) (float64, *[2]float64) {
		return p.of.p / float64(p.of.N), p.expected.MeanPValue
	})
	c.Counts = append(c.Counts, shares, means)
	if len(classes) < 2 {
		return
	}
	changes := map[string]float64{}
	for _, class := range classes {
		var counts, sizes []int
		for _, p := range points {
			of := cmp.Or(p.of, &sum{})
			counts, sizes = append(counts, of.classes[class]), append(sizes, of.N)
		}
		changes[class] = report.ShareChange(counts, sizes)
	}
	shown := slices.Clone(classes)
	slices.SortStableFunc(shown, func(a, b string) int { return cmp.Compare(changes[b], changes[a]) })
	for _, class := range shown[:min(mostCharts, len(shown))] {
		c.Shifts = append(c.Shifts, c.course(points, 0.1, "share of "+class, class, func(p point) (float64, *[2]float64) {
			share := float64(p.of.classes[class]) / float64(p.of.N)
			if interval, ok := p.expected.Classes[class]; ok {
				return share, &interval
			}
			return share, nil
		}))
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
		all := &report.Chart{Caption: one.Source, Text: fmt.Sprintf("Evidence of drift of %s over the %s, at most %.0f%%.", one.Source, c.Span.Label, 100*highest(one)),
			Y: report.Axis{Label: "evidence, %", Max: top, Percent: true}}
		var line []curve.Point
		for at := range c.steps(from, now) {
			if evidence, known := byStep[at]; known {
				line = append(line, curve.Point{X: float64(len(all.X.Names)), Y: min(evidence, top)})
			}
			c.name(&all.X, at)
		}
		all.Course("evidence", line, nil, nil)
		all.Series[0].Marker = "circle"
		all.Series = append(all.Series, report.Series{Name: "alarm", Colour: "wrong", Width: 1.5, Dashes: []float64{7, 3}, Points: []curve.Point{{Y: 1}, {X: all.X.Max, Y: 1}}})
		if len(sources) > 1 {
			all.Caption += ", " + one.Detector
		}
		c.Evidence = append(c.Evidence, all)
	}
}

// steps are the spans of time that charts show.
func (c *came) steps(from, now time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for at := from.UTC().Truncate(c.Span.Step); at.Before(now) && yield(at); at = at.Add(c.Span.Step) {
		}
	}
}

// name names the next step of an axis.
func (c *came) name(axis *report.Axis, at time.Time) {
	layout := "01-02 15:04"
	if c.Span.Step >= 24*time.Hour {
		layout = "2006-01-02"
	}
	axis.Names, axis.Label = append(axis.Names, at.UTC().Format(layout)), "UTC"
	axis.Max = float64(max(1, len(axis.Names)-1))
}

// course draws one figure of each step. highest is the least height of the chart.
func (c *came) course(points []point, highest float64, name, caption string, of func(point) (float64, *[2]float64)) *report.Chart {
	all := &report.Chart{Caption: caption, Y: report.Axis{Label: name + ", %", Max: highest, Percent: true}}
	var line, low, high []curve.Point
	for i, p := range points {
		c.name(&all.X, p.at)
		if p.of == nil {
			continue
		}
		value, interval := of(p)
		line, all.Y.Max = append(line, curve.Point{X: float64(i), Y: value}), max(all.Y.Max, value)
		if interval != nil {
			low, high = append(low, curve.Point{X: float64(i), Y: interval[0]}), append(high, curve.Point{X: float64(i), Y: interval[1]})
			all.Y.Max = max(all.Y.Max, interval[1])
		}
	}
	all.Text = fmt.Sprintf("%s over the %s, in steps of %v; the top is %.2g%%.", name, c.Span.Label, c.Span.Step, 100*all.Y.Max)
	all.Course(name, line, low, high)
	all.Series[0].Marker = "circle"
	return all
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
