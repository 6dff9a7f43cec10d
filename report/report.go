// Package report makes pages of results that a browser shows without a network: of an
// evaluation ([Write], which also makes tables in the paper's layout, in Markdown and
// LaTeX), of a detector, of judged images, of images judged together, of the faults of a set of images and of a
// course of images.
//
// The same input gives the same page: the caller supplies dates, versions and
// commands. Chart.js, which is part of the page, draws the charts; without
// JavaScript they are said in words. [Draw] makes pictures of them for files, so that
// programs without these do not need the plotting modules. The size of the page does
// not depend on the number of scores: histograms are binned, curves thinned, galleries
// short.
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Check returns an error if Write could not write to dir. Call it before long
// work. A report.html that this package did not make is never replaced. Dir need
// not exist yet.
func Check(dir string) error {
	return CheckPage(filepath.Join(dir, "report.html"))
}

// Write writes report.html, its charts as figures/*.svg, and the paper's tables,
// tables.md and tables.tex, to the folder dir, which it makes if necessary. It removes
// pictures of an earlier report that this one does not have. Only the first run of each
// method is drawn. Published are lines to compare with, such as those of [Benchmarks],
// each with one cell.
func Write(dir string, e *evaluation.Evaluation, published ...Line) error {
	if len(e.Results) == 0 {
		return errors.New("report: no results")
	}
	if err := Check(dir); err != nil {
		return err
	}
	figures := filepath.Join(dir, "figures")
	v, err := newView(e, published)
	if err == nil {
		err = os.MkdirAll(figures, 0o777)
	}
	if err == nil {
		err = v.writeFigures(figures)
	}
	if err != nil {
		return failed(err)
	}
	if err := writePage(filepath.Join(dir, "report.html"), "evaluation.html", v); err != nil {
		return err
	}
	return WriteTables(dir, []Study{{Benchmark: e.ID.Name, Results: e.Results}}, published)
}

// view is a report as the page's template reads it.
type view struct {
	*evaluation.Evaluation
	Page            layout
	Summary         table
	Histograms      []panel // one for each method
	ROC, PR         panel
	Selective       []*Chart
	AblationTable   *table
	AblationFigures []*Chart
	PublishedTable  *table
	Galleries       []gallery
	Misses          []missed // of the other methods
	Comparison      *comparison
	GalleryMethod   string
	Others          bool // some methods are drawn in grey

	results results
	methods []string       // in the order of the results
	style   map[string]int // of the methods that have one
}

// panel is charts below one heading.
type panel struct {
	Title   string
	Figures []*Chart
}

func newView(e *evaluation.Evaluation, published []Line) (*view, error) {
	v := &view{Evaluation: e, results: index(e.Results), methods: order(e.Results, func(r metrics.Measurement) string { return r.Method })}
	v.rank()
	v.Page = layout{Frame: Frame{Title: "Out-of-distribution detection", Commands: e.Commands, Facts: e.Facts}, Album: &album{}}
	v.chooseStyles()
	v.lead()
	v.Summary = v.summary(e.Results, v.methods)
	if err := v.drawRuns(); err != nil {
		return nil, err
	}
	if len(e.Ablation) > 0 {
		t := v.summary(e.Ablation, order(e.Ablation, func(r metrics.Measurement) string { return r.Method }))
		v.AblationTable, v.AblationFigures = &t, ablationFigures(e.Ablation)
	}
	if len(published) > 0 {
		v.PublishedTable = publishedTable(published)
	}
	if err := v.galleries(); err != nil {
		return nil, err
	}
	if err := v.compare(); err != nil {
		return nil, err
	}
	v.Page.Album.load()
	v.Page.Charts = len(v.figures()) > 0
	v.Page.Links = v.links()
	return v, nil
}

// links lists the sections of the page.
func (v *view) links() []link {
	links := []link{{"summary", "Methods"}}
	for _, l := range []struct {
		there bool
		link
	}{
		{v.Comparison != nil, link{"against", "Compared with the earlier report"}},
		{v.PublishedTable != nil, link{"published", "Published results"}},
		{v.Histograms != nil, link{"histograms", "Histograms"}},
		{v.ROC.Figures != nil, link{"curves", "ROC and PR"}},
		{v.Selective != nil, link{"selective", "Coverage"}},
		{v.AblationTable != nil, link{"ablation", "Ablation"}},
		{v.Galleries != nil || v.Misses != nil, link{"galleries", "Images"}},
	} {
		if l.there {
			links = append(links, l.link)
		}
	}
	return append(links, link{"metrics", "Metrics"})
}

// overall is a method's mean AUROC over all sets of both groups.
func (v *view) overall(method string) float64 {
	var sum float64
	var n int
	for _, r := range v.Results {
		if r.Method == method && r.Seed == "mean" && r.Dataset != "mean" && !math.IsNaN(r.AUROC) {
			sum, n = sum+r.AUROC, n+1
		}
	}
	return sum / float64(n)
}

// rank puts the method first that the report is about, and then those with the highest
// AUROC.
func (v *view) rank() {
	v.GalleryMethod = cmp.Or(v.Own, v.methods[0]) // and not the one that does best on these images
	key := func(method string) float64 {
		if method == v.GalleryMethod {
			return math.Inf(1)
		}
		return v.overall(method)
	}
	slices.SortStableFunc(v.methods, func(a, b string) int { return cmp.Compare(key(b), key(a)) }) // NaN is last
}

// chooseStyles gives a style of its own to the first methods. All others are grey.
func (v *view) chooseStyles() {
	v.style = map[string]int{}
	for i, m := range v.methods[:min(len(lineStyles), len(v.methods))] {
		v.style[m] = i
	}
	v.Others = len(v.methods) > len(lineStyles)
}

func (v *view) idName() string { return cmp.Or(v.ID.Name, "the in-distribution test set") }

// groups lists the groups of the results, near first.
func groups(rows []metrics.Measurement) []string {
	found := order(rows, func(r metrics.Measurement) string { return r.Group })
	slices.SortFunc(found, func(a, b string) int { return strings.Compare(b, a) })
	return found
}

// sets are the names of a group's sets.
func sets(rows []metrics.Measurement, group string) []string {
	return order(slices.DeleteFunc(slices.Clone(rows), func(r metrics.Measurement) bool {
		return r.Group != group || r.Dataset == "mean"
	}), func(r metrics.Measurement) string { return r.Dataset })
}

// lead writes the question and the answer at the top of the page.
func (v *view) lead() {
	sought := lists.Map(groups(v.Results), func(group string) string {
		return fmt.Sprintf("%s-OOD (%s)", group, strings.Join(sets(v.Results, group), ", "))
	})
	v.Page.Lead = []string{fmt.Sprintf("How well does each method tell images of the training classes (%s, %s) from out-of-distribution (OOD) images, which are of none of them: %s?",
		v.idName(), count(v.Results[0].NID), strings.Join(sought, " and "))}
	answers := v.Findings()
	if m, value, ok := v.winner(v.results.accuracy); ok {
		// All scores of one network have its accuracy.
		alike := slices.DeleteFunc(slices.Clone(v.methods), func(m string) bool { return percent(v.results.accuracy(m).Mean) != percent(value) })
		switch {
		case len(alike) > mostTied:
			m = fmt.Sprintf("shared by %d methods", len(alike))
		case len(alike) > 1:
			m = strings.Join(alike, ", ")
		}
		answers = append(answers, fmt.Sprintf("The highest accuracy on the training classes is %s%% (%s).", percent(value), m))
	}
	v.Page.Answer = strings.Join(answers, " ")
}

// winner is the method with the highest value.
func (v *view) winner(of func(method string) Value) (method string, value float64, ok bool) {
	for _, m := range v.methods {
		if x := of(m).Mean; !math.IsNaN(x) && (!ok || x > value) {
			method, value, ok = m, x, true
		}
	}
	return method, value, ok
}

func count(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	if n == 1 {
		return text + " image"
	}
	return text + " images"
}

// firstRun is the run of a method that is drawn.
func (v *view) firstRun(method string) (evaluation.Run, bool) {
	i := slices.IndexFunc(v.Runs, func(r evaluation.Run) bool { return r.Method == method && r.Scores != nil })
	if i < 0 {
		return evaluation.Run{}, false
	}
	return v.Runs[i], true
}

func (v *view) scores(r evaluation.Run, dataset string) ([]float64, error) {
	scores, err := r.Scores(dataset)
	if err != nil {
		return nil, fmt.Errorf("scores of %s, seed %s, %s: %w", r.Method, r.Seed, dataset, err)
	}
	want := v.ID.N
	if i := slices.IndexFunc(v.OOD, func(s images.Set) bool { return s.Name == dataset }); i >= 0 {
		want = v.OOD[i].N
	}
	if want != 0 && len(scores) != want {
		return nil, fmt.Errorf("scores of %s, seed %s, %s: there are %d, the set has %d images", r.Method, r.Seed, dataset, len(scores), want)
	}
	return scores, nil
}

// The largest numbers of points of a curve in colour and of one in grey.
const (
	curvePoints = 120
	otherPoints = 40
)

// thin thins a method's curve.
func (v *view) thin(method string, points []metrics.Point) []metrics.Point {
	if _, ok := v.style[method]; ok {
		return thin(points, curvePoints)
	}
	return thin(points, otherPoints)
}

// drawn is a method's curve in a chart with others.
type drawn struct {
	method string
	area   float64 // under the curve before it was thinned
	points []metrics.Point
}

// runDrawing holds the charts of one method's scores.
type runDrawing struct {
	selective  *drawn
	roc, pr    []drawn // of each set
	histograms []*Chart
}

// drawRuns draws what needs scores, on all cores.
func (v *view) drawRuns() error {
	drawings := make([]runDrawing, len(v.methods))
	err := onCores(len(v.methods), func(i int) (err error) {
		if run, ok := v.firstRun(v.methods[i]); ok {
			drawings[i], err = v.drawRun(run)
		}
		return err
	})
	if err != nil {
		return err
	}
	roc, pr := make([][]drawn, len(v.OOD)), make([][]drawn, len(v.OOD))
	var selective []drawn
	for i, d := range drawings {
		if d.selective != nil {
			selective = append(selective, *d.selective)
		}
		for s := range d.roc {
			roc[s], pr[s] = append(roc[s], d.roc[s]), append(pr[s], d.pr[s])
		}
		if i < len(v.style) && len(d.histograms) > 0 {
			run, _ := v.firstRun(v.methods[i])
			v.Histograms = append(v.Histograms, panel{fmt.Sprintf("%s (seed %s)", run.Method, run.Seed), d.histograms})
		}
	}
	for s, set := range v.OOD {
		if len(roc[s]) == 0 {
			continue
		}
		v.ROC.Figures = append(v.ROC.Figures, v.lines("roc-"+set.Name, fmt.Sprintf("ROC, %s (%s-OOD)", set.Name, set.Group),
			"AUROC", "OOD images caught, %", v.idName()+" flagged, %", []metrics.Point{{X: 0, Y: 0}, {X: 1, Y: 1}}, roc[s]).logarithmic())
		v.PR.Figures = append(v.PR.Figures, v.lines("pr-"+set.Name, fmt.Sprintf("Precision and recall, %s (%s-OOD)", set.Name, set.Group),
			"AUPR-Out", "precision, %", "recall (OOD images caught), %", nil, pr[s]))
	}
	if len(selective) > 0 {
		v.Selective = []*Chart{v.lines("selective", "Accuracy against coverage, "+v.idName(),
			"the mean accuracy", "accuracy of the accepted, %", "share accepted, %", nil, selective)}
	}
	return nil
}

func (v *view) drawRun(run evaluation.Run) (d runDrawing, err error) {
	id, err := v.scores(run, "id")
	if err != nil {
		return d, err
	}
	if predicted := run.Predicted["id"]; predicted != nil && v.Labels != nil {
		if len(predicted) != len(id) || len(v.Labels) != len(id) {
			return d, fmt.Errorf("%s, seed %s: %d predictions and %d labels for %d scores", run.Method, run.Seed, len(predicted), len(v.Labels), len(id))
		}
		points := metrics.Selective(id, predicted, v.Labels)
		d.selective = &drawn{run.Method, area(points), v.thin(run.Method, points)}
	}
	for _, set := range v.OOD {
		ood, err := v.scores(run, set.Name)
		if err != nil {
			return d, err
		}
		r, p := metrics.Curves(id, ood)
		d.roc = append(d.roc, drawn{run.Method, area(r), v.thin(run.Method, r)})
		d.pr = append(d.pr, drawn{run.Method, area(p), v.thin(run.Method, p)})
		d.histograms = append(d.histograms, v.histogram(run.Method, set, id, ood, area(r)))
	}
	return d, nil
}

func area(points []metrics.Point) float64 {
	if len(points) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for i, p := range points[1:] {
		sum += (p.X - points[i].X) * (p.Y + points[i].Y) / 2
	}
	return sum
}

// lines draws the curves of all methods in one chart. The y axis begins at 0
// unless all curves lie high.
func (v *view) lines(name, title, areaName, yLabel, xLabel string, chance []metrics.Point, curves []drawn) *Chart {
	slices.SortStableFunc(curves, func(a, b drawn) int { return cmp.Compare(b.area, a.area) })
	c := Chart{Name: fileName(name), Caption: fmt.Sprintf("%s; in the legend %s in per cent.", title, areaName),
		X: Axis{Label: xLabel, Max: 1, Percent: true}, Y: Axis{Label: yLabel, Max: 1, Percent: true}}
	lowest := 1.0
	var description []string
	var grey []Series
	for _, d := range curves {
		for _, p := range d.points {
			if p.X >= 0.02 { // an accuracy of only a few images is noise
				lowest = min(lowest, p.Y)
			}
		}
		text := fmt.Sprintf("%s %s", d.method, percent(d.area))
		description = append(description, text)
		if style, ok := v.style[d.method]; ok {
			c.Series = append(c.Series, styled(lineStyles[style], text, d.points))
			continue
		}
		s := styled(others, text, d.points)
		s.Hidden = true
		grey = append(grey, s)
	}
	if len(grey) > 0 {
		c.Series = append(c.Series, styled(others, fmt.Sprintf("%d others", len(grey)), nil))
	}
	c.Series = append(c.Series, grey...)
	if chance != nil {
		c.Series = append(c.Series, Series{Name: "chance", Hidden: true, Points: chance, Colour: "faint", Width: 1, Dashes: []float64{1, 4}})
	} else if lowest > 0.5 {
		c.Y.Min = min(math.Floor(lowest*20)/20, 0.95)
	}
	c.Text = fmt.Sprintf("%s; %s in per cent: %s.", title, areaName, strings.Join(description, ", "))
	return &c
}

// leastFlagged is the share from which ROC curves are drawn: they differ where few images of
// the known classes are flagged, which is a hair's breadth of a linear axis.
const leastFlagged = 1e-3

// logarithmic makes the X axis of a ROC curve logarithmic.
func (f *Chart) logarithmic() *Chart {
	f.X.Log, f.X.Min = true, leastFlagged
	for i := range f.Series {
		var points []metrics.Point
		for k, p := range f.Series[i].Points {
			// Between two points the curve is straight on a linear axis.
			for q := 1.0; k > 0 && q < 8; q++ {
				a := f.Series[i].Points[k-1]
				from := max(a.X, leastFlagged)
				if x := from * math.Pow(p.X/from, q/8); p.X > 1.5*from {
					points = append(points, metrics.Point{X: x, Y: a.Y + (p.Y-a.Y)*(x-a.X)/(p.X-a.X)})
				}
			}
			points = append(points, metrics.Point{X: max(p.X, leastFlagged), Y: p.Y})
		}
		f.Series[i].Points = points
	}
	return f
}

// histogram draws the distributions of the scores of both sets.
func (v *view) histogram(method string, set images.Set, id, ood []float64, auroc float64) *Chart {
	title := fmt.Sprintf("%s on %s (%s-OOD), AUROC %s%%", method, set.Name, set.Group, percent(auroc))
	low, high, ok := scoreRange(id, ood)
	idShares, oodShares := histogram(id, low, high), histogram(ood, low, high)
	c := Chart{
		Name: fileName("histogram-" + method + "-" + set.Name), Caption: title + ".", Text: "Histogram of scores: " + title + ".",
		X: Axis{Label: "score (higher: more in-distribution)", Min: low, Max: high},
		Y: Axis{Label: "share of the set, %", Max: 1.05 * max(slices.Max(idShares), slices.Max(oodShares)), Percent: true},
		Series: []Series{
			{Name: fmt.Sprintf("%s (%d)", v.idName(), len(id)), Colour: "c0", Width: 1.6, Fill: 0.35, Bars: idShares},
			{Name: fmt.Sprintf("%s (%d)", set.Name, len(ood)), Colour: "c1", Width: 1.6, Fill: 0.1, Dashes: []float64{5, 2}, Bars: oodShares},
		},
	}
	if !ok || c.Y.Max == 0 {
		c.Y.Max, c.X.Label = 1, "no finite scores to draw"
	}
	return &c
}

// scoreRange returns a range of nearly all finite scores, without the lowest and
// the highest half per cent of either set. It is never empty.
func scoreRange(sets ...[]float64) (low, high float64, ok bool) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, scores := range sets {
		finite := slices.DeleteFunc(slices.Clone(scores), func(s float64) bool { return math.IsNaN(s) || math.IsInf(s, 0) })
		if n := len(finite); n > 0 {
			slices.Sort(finite)
			low, high = min(low, finite[n/200]), max(high, finite[n-1-n/200])
		}
	}
	if low > high {
		return 0, 1, false
	}
	switch width := high - low; {
	case math.IsInf(width, 0):
		return -1e300, 1e300, true
	case width < 1e-9*max(math.Abs(low), math.Abs(high), 1e-30): // all the same
		room := max(math.Abs(low)/2, 0.5)
		return low - room, high + room, true
	}
	return low, high, true
}

// fileName makes a file name from names with any characters.
func fileName(name string) string { return url.PathEscape(name) }

// figureFile matches the file names of writeFigures.
var figureFile = regexp.MustCompile(`^(roc-.+|pr-.+|histogram-.+|selective|ablation-layers)\.svg$`)

// figures lists every chart of the page.
func (v *view) figures() (all []*Chart) {
	for _, p := range v.Histograms {
		all = append(all, p.Figures...)
	}
	return slices.Concat(all, v.ROC.Figures, v.PR.Figures, v.Selective, v.AblationFigures)
}

// writeFigures makes pictures of the charts and replaces those of an earlier report.
func (v *view) writeFigures(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if figureFile.MatchString(file.Name()) {
			if err := os.Remove(filepath.Join(dir, file.Name())); err != nil {
				return err
			}
		}
	}
	if Draw == nil {
		return nil
	}
	figures := v.figures()
	return onCores(len(figures), func(i int) (err error) {
		f := figures[i]
		svg, err := Draw(*f, "svg")
		if err != nil {
			return err
		}
		return disk.Write(filepath.Join(dir, f.Name+".svg"), disk.Bytes(svg))
	})
}

// onCores calls do for 0 … n−1 on all cores, up to the first error.
func onCores(n int, do func(i int) error) error {
	return parallel.Ranges(context.Background(), n, 1, func() func(i, _ int) error {
		return func(i, _ int) error { return do(i) }
	})
}
