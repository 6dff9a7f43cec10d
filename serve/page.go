package serve

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"mlrbfn/report"
	"mlrbfn/serve/drift"
	"mlrbfn/serve/store"
)

//go:embed web
var web embed.FS

var pageTemplate = template.Must(report.Parts().ParseFS(web, "web/page.html"))

// pageRoutes are the page and its files, which need no token. Where one is needed, the
// page holds nothing about images; what it shows it asks for.
func (s *Server) pageRoutes() []route {
	file := func(pattern, name, kind string) route {
		data, err := web.ReadFile(path.Join("web", name))
		if err != nil {
			panic(err) // it is embedded
		}
		return page(pattern, kind, data)
	}
	return []route{
		{pattern: "GET /{$}", open: s.tokens != nil, page: true, answer: s.showPage}, // where all is open, it counts as a request of its client
		{pattern: "GET /page", page: true, answer: s.showCame},
		file("GET /page.js", "page.js", "text/javascript; charset=utf-8"),
		file("GET /learn.js", "learn.js", "text/javascript; charset=utf-8"),
		file("GET /page.css", "page.css", "text/css; charset=utf-8"),
		file("GET /icon.svg", "icon.svg", "image/svg+xml"),
		page("GET /style.css", "text/css; charset=utf-8", []byte(report.StyleSheet())),
	}
}

// page answers with a file of the page.
func page(pattern, kind string, data []byte) route {
	return route{pattern: pattern, open: true, page: true, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data) // whoever has left gets no answer
	}}
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
	Shares    *bars
	Drift     *pageTable
	Alarms    []string
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

// showPage answers GET /. Without a token it shows all that can be seen without
// JavaScript.
func (s *Server) showPage(w http.ResponseWriter, r *http.Request) {
	var data struct {
		Came  *came
		Token bool // it is needed
	}
	if data.Token = s.tokens != nil; !data.Token {
		data.Came = s.cameIn(r)
	}
	s.render(w, r, "page", data)
}

// showCame answers GET /page: the part of the page that changes by itself.
func (s *Server) showCame(w http.ResponseWriter, r *http.Request) {
	s.render(w, r, "came", s.cameIn(r))
}

func (s *Server) render(w http.ResponseWriter, r *http.Request, name string, data any) {
	var text bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&text, name, data); err != nil {
		s.log.Error("the page cannot be shown", "error", err)
		s.fail(w, r, http.StatusInternalServerError, "an error of this program; its log has more")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // whoever has left gets no answer
}

// cameIn gathers what came in.
func (s *Server) cameIn(r *http.Request) *came {
	c := &came{Span: spanOf(r), Spans: slices.Clone(spans), Stored: s.opts.Store != nil}
	for i := range c.Spans {
		c.Spans[i].Here = c.Spans[i].Name == c.Span.Name
	}
	c.drift(s.drift.list(), s.opts.Alpha)
	if s.opts.Store == nil {
		c.Note = "This service remembers nothing: it was started without a store. Flagged images are shown as they come."
		return c
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	now := time.Now()
	from := now.Add(-c.Span.Long)
	counts, err := s.opts.Store.Count(ctx, store.Query{From: from}, c.Span.Step)
	if err == nil {
		c.count(counts, from, now, s)
		yes := true
		var list []store.Record
		if list, err = s.opts.Store.List(ctx, store.Query{OOD: &yes, Limit: mostFlagged}); err == nil {
			for _, v := range list {
				c.Flagged = append(c.Flagged, s.flagged(&v))
			}
			return c
		}
	}
	s.log.Error("the store cannot be asked", "error", err)
	c.Note = "The store cannot be asked now."
	return c
}

// mostFlagged is how many flagged images the page shows; its script knows it, too.
const mostFlagged = 60

func (s *Server) flagged(v *store.Record) flaggedItem {
	said := ""
	if v.Review != nil {
		if said = string(v.Review.Decision); v.Review.Class != "" {
			said = "it is " + v.Review.Class
		}
	}
	return flaggedItem{
		ID: v.ID, Name: v.Name, Class: v.Class, P: fmt.Sprintf("%.2g", v.PValue), When: v.Time.UTC().Format("2006-01-02 15:04:05 UTC"),
		Source: v.Source, Said: said, Image: v.Image, Kept: s.images != nil && s.images.Has(v.Image), Direct: s.tokens == nil,
	}
}

// count fills the tables and charts of counts.
func (c *came) count(counts []store.Count, from, now time.Time, s *Server) {
	type sum struct{ n, ood int }
	classes, steps := map[string]sum{}, map[time.Time]sum{}
	var all sum
	var bins [store.PBins]int
	known := 0
	for _, one := range counts {
		class, step := classes[one.Class], steps[one.Start]
		for _, to := range []*sum{&class, &step, &all} {
			to.n += one.N
			to.ood += one.OOD
		}
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
	row := func(name string, v sum) {
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
		var v sum
		for _, name := range rest {
			v.n, v.ood = v.n+classes[name].n, v.ood+classes[name].ood
		}
		row(fmt.Sprintf("%d more", len(rest)), v)
	}
	c.pValues(bins[:], known)
	c.shares(func(at time.Time) (int, int) { v := steps[at]; return v.n, v.ood }, from, now, s)
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

// shares draws the share of flagged images over time, with the interval that it lies in
// with a chance of 95% if images are like the calibration images.
func (c *came) shares(of func(time.Time) (n, ood int), from, now time.Time, s *Server) {
	d, shadow := s.detectors.Use("")
	defer d.Release()
	defer shadow.Release()
	m, k := 0, 0
	if len(s.detectors.Names()) == 1 && d.ByClass == nil && len(d.Folds) == 0 { // else there is no one threshold
		m = len(d.CalibrationScores)
		below, exact := slices.BinarySearch(d.CalibrationScores, d.Threshold)
		if k = below; exact {
			k++
		}
	}
	type point struct {
		at        time.Time
		n, ood    int
		low, high float64
	}
	var points []point
	highest := 0.1
	for at := from.Truncate(c.Span.Step); at.Before(now); at = at.Add(c.Span.Step) {
		p := point{at: at, low: 0, high: 0}
		p.n, p.ood = of(at.UTC())
		if p.n > 0 {
			highest = max(highest, float64(p.ood)/float64(p.n))
			if k > 0 {
				const enough = 5000 // from where on the interval is that of the threshold
				p.low, p.high = drift.Flagged(min(p.n, enough), m, k)
				highest = max(highest, min(1, p.high))
			}
		}
		points = append(points, p)
	}
	c.Shares = &bars{Line: -1, Text: fmt.Sprintf("Share of flagged images over the %s, in steps of %v; the highest bar is %.0f%%", c.Span.Label, c.Span.Step, 100*highest)}
	width := 400 / float64(len(points))
	for i, p := range points {
		b := bar{X: width*float64(i) + 1, Width: math.Max(1, width-2), Y: 100, Text: p.at.UTC().Format("2006-01-02 15:04") + ": no images"}
		if p.n > 0 {
			b.Height = 100 * float64(p.ood) / float64(p.n) / highest
			b.Y = 100 - b.Height
			b.Text = fmt.Sprintf("%s UTC: %d of %d flagged", p.at.UTC().Format("2006-01-02 15:04"), p.ood, p.n)
			if p.high > 0 {
				b.Low, b.High = 100-100*p.low/highest, 100-100*p.high/highest
				b.Text += fmt.Sprintf("; %.0f%% to %.0f%% if they are like the calibration images", 100*p.low, 100*p.high)
			}
		}
		c.Shares.Bars = append(c.Shares.Bars, b)
	}
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
