package report

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/png"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file makes the pages of Verdicts.

// Sizes of the pages. Tests make them smaller.
var (
	onePage = 2000 // images that one page may have alone
	perPage = 1000 // images of each page where there are several
)

const (
	verdictSide = 160 // pixels of a judged image
	nearSide    = 64  // pixels of a training image beside it
	leastBar    = 4.0 // standard deviations that fill a bar, at least
)

// verdictsView is one page of Verdicts as the template reads it.
type verdictsView struct {
	Page        layout
	Verdicts    *Verdicts
	Filters     []choice
	Items       []*verdictView
	First, Last int // numbers of the images of this page
	Total       int // images that the pages show

	// Detector and Control are for the script; see slider.
	Detector string
	Control  *slider
	Costs    *table
	Counts   *table
	Meanings []detector.ScorePart // the parts that mean the same for all images
	Bar      string               // how many standard deviations fill a bar
	Unshown  []*verdictView
	Failed   failures
	Pages    []pageLink
	Before   *pageLink // the pages beside this one; nil for none
	After    *pageLink

	fullBar float64
}

// pageLink is a line of the index of pages.
type pageLink struct {
	Number, First, Last int
	Lowest, Highest     string // p-values
	OOD                 int
	Here                bool
	file                string
	URL                 template.URL
}

// verdictView is an image of the page.
type verdictView struct {
	*Verdict
	Number  int
	Picture *picture
	Overlay template.URL // the map, drawn; "" for none
	Near    []nearTile
	Bars    []bar
}

// bar is a part of a score as the page draws it.
type bar struct {
	detector.ScorePart
	Value       float64
	Text        string
	Left, Width float64 // in per cent
	Explain     bool    // say what the part means here
}

// Path is as text, and Quoted as a shell reads it.
func (v verdictView) Path() string   { return strings.ToValidUTF8(v.Image.Path, "\ufffd") }
func (v verdictView) Quoted() string { return disk.Quote(v.Image.Path) }

// Exact prints a number with all its digits, for scripts.
func (v verdictView) Exact(x float64) string { return exact(x) }

// Short prints a number for people.
func (v verdictView) Short(x float64) string { return short(x) }

// Probability prints a probability for people.
func (v verdictView) Probability(x float64) string { return probability(x) }

func probability(x float64) string {
	switch {
	case math.IsNaN(x):
		return "–"
	case x < 0.001:
		return "<\u00a00.001"
	}
	return fmt.Sprintf("%.3f", x)
}

// exact writes a number as scripts read it.
func exact(x float64) string {
	switch {
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func short(x float64) string {
	switch {
	case math.IsNaN(x):
		return "–"
	case math.IsInf(x, 0):
		return strings.TrimSuffix(fmt.Sprintf("%.0f", x), "Inf") + "∞"
	}
	return strings.Replace(strconv.FormatFloat(x, 'g', 4, 64), "-", "−", 1)
}

// WriteVerdicts writes the page of judged images to the file: one page that needs
// nothing else, or where there are some thousand images the first of several, with
// the others in the folder NAME-pages beside it.
func WriteVerdicts(file string, v Verdicts) error {
	if err := checkPage(file); err != nil {
		return err
	}
	v.Title = cmp.Or(v.Title, "Which images are out of distribution")
	if v.Scores == nil {
		v.Scores = make([]float64, len(v.Items))
		for i, item := range v.Items {
			if v.Scores[i] = item.Score; v.ByPValue {
				v.Scores[i] = item.PValue
			}
		}
	}
	v.Scores = slices.Clone(v.Scores)
	slices.Sort(v.Scores)
	v.Items = slices.Clone(v.Items)
	slices.SortStableFunc(v.Items, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(a.PValue, b.PValue), cmp.Compare(a.Score, b.Score), strings.Compare(a.Image.Path, b.Image.Path))
	})
	v.Items = v.Items[:min(len(v.Items), MostVerdicts)]
	if err := writeVerdicts(file, &v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// laterPage matches the files of all pages but the first.
var laterPage = regexp.MustCompile(`^page-\d{4}\.html$`)

func writeVerdicts(file string, v *Verdicts) error {
	folder := strings.TrimSuffix(file, filepath.Ext(file)) + "-pages"
	if err := clearPages(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	size := perPage
	if len(v.Items) <= onePage {
		size = max(1, len(v.Items))
	}
	links := pageLinks(file, folder, size, v.Items)
	if len(links) > 1 {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	common := verdictsView{
		Verdicts: v, Total: len(v.Items), Detector: disk.Quote(v.Detector), Meanings: meanings(v.Items), Control: newSlider(v),
	}
	common.fullBar = fullBar(v.Items)
	common.Bar = short(common.fullBar)
	// The first page is written last: with it, all are complete.
	for i := len(links) - 1; i >= 0; i-- {
		page := common
		page.fill(links, i)
		if err := writePage(links[i].file, "verdicts.html", page); err != nil {
			return err
		}
	}
	return disk.SyncDir(filepath.Dir(file))
}

// clearPages removes the later pages of an earlier report.
func clearPages(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil // there are none; what else is wrong shows when pages are written
	}
	for _, e := range entries {
		page := filepath.Join(folder, e.Name())
		if !laterPage.MatchString(e.Name()) {
			continue
		}
		if err := checkPage(page); err != nil {
			return err
		}
		if err := os.Remove(page); err != nil {
			return err
		}
	}
	_ = os.Remove(folder) // if that was all
	return nil
}

// pageLinks divides the images into pages.
func pageLinks(file, folder string, size int, items []Verdict) (links []pageLink) {
	for first := 0; first == 0 || first < len(items); first += size {
		l := pageLink{Number: len(links) + 1, First: first + 1, Last: min(first+size, len(items)), file: file}
		if l.Number > 1 {
			l.file = filepath.Join(folder, fmt.Sprintf("page-%04d.html", l.Number))
		}
		for _, item := range items[first:l.Last] {
			if item.OOD {
				l.OOD++
			}
		}
		if l.Last > first {
			l.Lowest, l.Highest = probability(items[first].PValue), probability(items[l.Last-1].PValue)
		}
		links = append(links, l)
	}
	return links
}

// from returns the link to a page as another page writes it.
func (l pageLink) from(other pageLink) pageLink {
	name := url.PathEscape(filepath.Base(l.file))
	switch {
	case l.Number > 1 && other.Number == 1:
		name = url.PathEscape(filepath.Base(filepath.Dir(l.file))) + "/" + name
	case l.Number == 1 && other.Number > 1:
		name = "../" + name
	}
	l.URL, l.Here = template.URL("./"+name), l.Number == other.Number
	return l
}

// fill makes page i of the pages.
func (p *verdictsView) fill(links []pageLink, i int) {
	v := p.Verdicts
	here := links[i]
	p.First, p.Last = here.First, here.Last
	p.Page = layout{Title: v.Title, Script: "verdicts.js", Album: &album{}}
	if len(links) > 1 {
		p.Page.Title = fmt.Sprintf("%s: page %d of %d", v.Title, i+1, len(links))
		if i > 0 {
			before := links[i-1].from(here)
			p.Before = &before
		}
		if i+1 < len(links) {
			after := links[i+1].from(here)
			p.After = &after
		}
	}
	plain := map[string]bool{}
	for _, m := range p.Meanings {
		plain[m.Name] = true
	}
	classes := map[string]bool{}
	for n := here.First; n <= here.Last; n++ {
		item := &v.Items[n-1]
		classes[item.Class] = true
		view := &verdictView{Verdict: item, Number: n, Picture: p.Page.Album.of(item.Image, verdictSide), Overlay: overlay(item.Where)}
		for _, near := range item.Nearest {
			if near.Image.Path == "" {
				near.Image.Path = fmt.Sprintf("row %d", near.Row)
			}
			view.Near = append(view.Near, nearTile{p.Page.Album.of(near.Image, nearSide), near.Class, short(near.Distance)})
		}
		for _, part := range item.Parts {
			view.Bars = append(view.Bars, newBar(part, p.fullBar, !plain[part.Name]))
		}
		p.Items = append(p.Items, view)
	}
	p.Page.Album.load()
	for _, c := range v.Classes {
		if !classes[c] {
			classes[c] = false
		}
	}
	present := slices.DeleteFunc(slices.Clone(v.Classes), func(c string) bool { return !classes[c] })
	p.Filters = []choice{{"Class", "class", present}, {"Verdict", "verdict", []string{oodText, knownText}}}
	missing, near := 0, 0
	for _, item := range p.Items {
		if item.Picture.Missing() {
			p.Unshown = append(p.Unshown, item)
		}
		for _, n := range item.Near {
			if near++; n.Missing() {
				missing++
			}
		}
	}
	p.Page.Notes = slices.Clone(v.Notes)
	if missing > 0 {
		p.Page.Notes = append(p.Page.Notes, fmt.Sprintf("%d of %d pictures of training images cannot be shown: their folder was moved or deleted, or the files have changed.", missing, near))
	}
	if i == 0 {
		p.first(links)
	}
	p.Page.Links = append([]link{{"images", "Images"}}, p.Page.Links...)
	if len(p.Unshown) > 0 {
		p.Page.Links = append(p.Page.Links, link{"unshown", fmt.Sprintf("Not shown (%d)", len(p.Unshown))})
	}
}

// Words for the verdicts, which filters use too.
const (
	oodText   = "OOD"
	knownText = "in distribution"
)

// first adds what only the first page has.
func (p *verdictsView) first(links []pageLink) {
	v := p.Verdicts
	all, flagged := len(v.Scores), 0
	for _, item := range v.Items {
		if item.OOD {
			flagged++
		}
	}
	if all > len(v.Items) {
		flagged = p.Control.flagged(v, v.limit())
		p.Page.Notes = append(p.Page.Notes, fmt.Sprintf("Of %s, the %s that are most surprising are shown; detect --format csv lists all.", count(all), thousands(len(v.Items))))
	}
	lead := fmt.Sprintf("%s of %s %s flagged as out of distribution (OOD): the detector finds them unlike every class that it was trained on. The most surprising come first.",
		thousands(flagged), count(all), isAre(flagged))
	p.Page.Lead = []string{lead}
	if len(v.Items) == 0 {
		p.Page.Lead = []string{"No image was judged."}
	}
	p.Page.Commands, p.Page.Facts = v.Commands, v.Facts
	if len(links) > 1 {
		for _, l := range links {
			p.Pages = append(p.Pages, l.from(links[0]))
		}
		p.Page.Links = append(p.Page.Links, link{"pages", "All pages"})
	}
	if p.Costs = v.costs(); p.Costs != nil {
		p.Page.Links = append(p.Page.Links, link{"costs", "False alarms"})
	}
	if p.Counts = v.counts(); p.Counts != nil {
		p.Page.Links = append(p.Page.Links, link{"counts", "Classes"})
	}
	p.Failed = p.Page.failed(v.Failed)
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// counts is the table of the classes that images were given.
func (v *Verdicts) counts() *table {
	if len(v.Items) == 0 {
		return nil
	}
	t := &table{Caption: "How many images were given a class, and how many of them are flagged", Head: "class", Columns: []string{"images", oodText}}
	images, flagged := map[string]int{}, map[string]int{}
	for _, item := range v.Items {
		if images[item.Class]++; item.OOD {
			flagged[item.Class]++
		}
	}
	for _, class := range v.Classes {
		if images[class] > 0 {
			t.Rows = append(t.Rows, tableRow{class, []tableCell{whole(images[class]), whole(flagged[class])}})
		}
	}
	return t
}

func whole(n int) tableCell { return tableCell{Mean: strconv.Itoa(n), Sort: strconv.Itoa(n)} }

// meanings lists the parts that mean the same for all images.
func meanings(items []Verdict) (all []detector.ScorePart) {
	other := map[string]bool{}
	known := map[string]string{}
	for _, item := range items {
		for _, part := range item.Parts {
			meaning, ok := known[part.Name]
			if !ok {
				known[part.Name] = part.Meaning
				all = append(all, part)
			} else if meaning != part.Meaning {
				other[part.Name] = true
			}
		}
	}
	return slices.DeleteFunc(all, func(p detector.ScorePart) bool { return other[p.Name] || p.Meaning == "" })
}

// fullBar returns the standard deviations that fill a bar: few parts have more.
func fullBar(items []Verdict) float64 {
	var values []float64
	for _, item := range items {
		for _, part := range item.Parts {
			if v := math.Abs(barOf(part)); v <= math.MaxFloat64 {
				values = append(values, v)
			}
		}
	}
	slices.Sort(values)
	if len(values) == 0 {
		return leastBar
	}
	return max(leastBar, math.Ceil(values[len(values)*9/10]))
}

// barOf is how far a part is from usual: standard deviations, or of older detectors, which do
// not know these, what it adds to the score.
func barOf(p detector.ScorePart) float64 {
	if math.IsNaN(p.Deviations) {
		return p.Adds
	}
	return p.Deviations
}

func newBar(p detector.ScorePart, full float64, explain bool) bar {
	b := bar{ScorePart: p, Value: barOf(p), Explain: explain && p.Meaning != "", Left: 50}
	if math.IsNaN(b.Value) {
		b.Text = "–"
		return b
	}
	b.Width = 50 * min(math.Abs(b.Value)/full, 1)
	if b.Value < 0 {
		b.Left -= b.Width
	}
	b.Text = strings.Replace(fmt.Sprintf("%+.1f", b.Value), "-", "−", 1)
	return b
}

// overlay draws where the score fell: the more, the less transparent.
func overlay(m *detector.Map) template.URL {
	if m == nil || m.Width < 1 || m.Height < 1 || m.Width*m.Height != len(m.Values) {
		return ""
	}
	most := float32(0)
	for _, v := range m.Values {
		if v > most && !math.IsInf(float64(v), 0) { // NaN is not
			most = v
		}
	}
	if !(most > 0) {
		return ""
	}
	img := image.NewNRGBA(image.Rect(0, 0, m.Width, m.Height))
	for i, v := range m.Values {
		if v > 0 {
			img.SetNRGBA(i%m.Width, i/m.Width, color.NRGBA{255, 80, 0, uint8(min(v/most, 1) * 200)})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		return ""
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes()))
}

// Box returns the part of the picture that the map covers: its left and top edge,
// its width and its height in per cent.
func (v verdictView) Box() [4]float64 {
	a := v.Where.Area
	if a == ([4]float64{}) || !(a[0] < a[2] && a[1] < a[3]) {
		a = [4]float64{0, 0, 1, 1}
	}
	percent := func(share float64) float64 { return math.Round(1e4*share) / 100 }
	return [4]float64{percent(a[0]), percent(a[1]), percent(a[2] - a[0]), percent(a[3] - a[1])}
}
