package report

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
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

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Verdicts holds what the page of judged images shows: which were flagged, and why.
type Verdicts struct {
	Frame             // Lead and Answer are the page's own
	Detector string   // file of the detector, for copied commands
	Program  string   // as it was started, for these; "" means mlrbfn
	Classes  []string // of the detector

	// Threshold is the score below which an image is flagged, and MaxFalseAlarms the
	// share of in-distribution images that it was set to flag at most; 0 if unknown.
	Threshold, MaxFalseAlarms float64
	// Calibration are the calibration scores, ascending: what a threshold costs in
	// false alarms. With nil the page cannot say.
	Calibration []float64
	// ByPValue says that the detector does not have one threshold for all images, but
	// one for each class, or folds. The slider then goes by the p-value, copied
	// commands by the share of false alarms, and Calibration are those of the class
	// with the fewest; nil for folds.
	ByPValue bool

	// Items are the images, in any order; the page shows the most surprising first.
	// No more than MostVerdicts of them are shown.
	Items []Verdict
	// Scores are those of all images, or with ByPValue their p-values, in any order,
	// where Items are only the most surprising ones; nil means those of Items.
	Scores []float64
	Failed []features.Failure // images that could not be read
}

// MostVerdicts bounds how many images the pages of Verdicts show.
const MostVerdicts = 20_000

// VerdictsOf says what a detector's threshold costs; the rest is the caller's. ByPValue is as
// in Verdicts.
func VerdictsOf(d *detector.Detector, byPValue bool) Verdicts {
	v := Verdicts{Classes: d.Classes, Threshold: d.Threshold, MaxFalseAlarms: 1 - d.TargetTPR, Calibration: d.CalibrationScores, ByPValue: byPValue}
	if !byPValue {
		return v
	}
	v.Calibration = nil
	for c := range d.Classes {
		if s := d.ScoresOf(c); len(d.Folds) == 0 && (v.Calibration == nil || len(s) < len(v.Calibration)) {
			v.Calibration = s
		}
	}
	return v
}

// Verdict is a judged image and what explains its verdict.
type Verdict struct {
	Image images.Picture // Label is the class that a person gave it; "" if unknown
	detector.Verdict
	detector.Explanation
	Group int // of images that look alike: its number from 1 on; 0 for none
}

// failures are those of images that could not be read, as a page lists them.
type failures struct {
	Shown []features.Failure
	Total int
}

const mostFailed = 1000 // failures that a page lists

// failed lists failures, and links to the list.
func (l *layout) failed(all []features.Failure) failures {
	f := failures{Total: len(all)}
	if f.Total > 0 {
		l.Links = append(l.Links, link{"failed", fmt.Sprintf("Not read (%d)", f.Total)})
	}
	for _, one := range all[:min(f.Total, mostFailed)] {
		f.Shown = append(f.Shown, features.Failure{Path: strings.ToValidUTF8(one.Path, "\ufffd"), Error: strings.ToValidUTF8(one.Error, "\ufffd")})
	}
	return f
}

// onePage is how many images the page has in itself; the pictures of more lie in a folder
// beside it, which a browser reads as they are seen. Tests make it smaller.
var onePage = 2000

const (
	verdictSide = 200 // pixels of a judged image
	nearSide    = 64  // pixels of a training image beside it
	leastBar    = 4.0 // standard deviations that fill a bar, at least
	mostStatic  = 200 // images that one sees without scripts
)

// verdictsView is the page of Verdicts as the template reads it.
type verdictsView struct {
	Page     layout
	Verdicts *Verdicts
	Figures  []bigFigure
	Filters  []choice
	Folders  []string // of the images, for the filter
	Static   []*verdictView
	Total    int // images on the page
	Control  *slider
	Data     template.JS // see pageData
	Names    []scoreName // of the parts
	Costs    *table
	Counts   *table
	Unshown  []string // the first images without a picture
	Unseen   int      // how many have none
	Failed   failures
}

// bigFigure is a number that the page begins with.
type bigFigure struct{ Number, Text string }

// scoreName is what a bar is called, and the name and meaning of its score.
type scoreName struct{ Label, Name string }

// verdictView is an image that one sees without scripts.
type verdictView struct {
	*Verdict
	Picture *picture
}

// Words is what was decided of the image, for people.
func (v verdictView) Words() string {
	if v.OOD {
		return "OOD, nearest: " + v.Class
	}
	return v.Class
}

// Probability prints a probability for people.
func (v verdictView) Probability(x float64) string { return probability(x) }

// pageData is what the script reads.
type pageData struct {
	Detector string     `json:"detector"` // quoted, as is Program
	Program  string     `json:"program"`
	Classes  []string   `json:"classes"`
	Folders  []string   `json:"folders"`
	Parts    []string   `json:"parts"` // labels
	Full     float64    `json:"full"`  // standard deviations of a whole bar
	Near     []nearData `json:"near"`  // training images
	Items    []itemData `json:"items"`
	// Bars are the shares of all images by their scores, from one end to the other; the first
	// and the last have what lies beyond too.
	Bars     []float64  `json:"bars"`
	Ends     [2]float64 `json:"ends"`
	ByPValue bool       `json:"byPValue"`
}

// nearData is a training image.
type nearData struct {
	Path    string       `json:"p"`
	Class   string       `json:"c"`
	Picture template.URL `json:"t"`
}

// itemData is a judged image.
type itemData struct {
	Path       string       `json:"p"`
	Quoted     string       `json:"q"` // for a shell
	File       string       `json:"u,omitempty"`
	Class      int          `json:"c"`
	Folder     int          `json:"d"`
	Label      string       `json:"l,omitempty"`
	Group      int          `json:"g"`
	OOD        bool         `json:"o"`
	Score      any          `json:"s"`
	PValue     any          `json:"v"`
	Confidence string       `json:"f"`
	Why        string       `json:"w"`
	Picture    template.URL `json:"t"` // "" for none
	Parts      []any        `json:"b"`
	Near       [][2]any     `json:"n"` // numbers of training images, and distances
	Map        template.URL `json:"m,omitempty"`
	Box        *[4]float64  `json:"x,omitempty"`
}

// finite is x as JSON has it: text where it has no such number.
func finite(x float64) any {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return exact(x)
	}
	return x
}

// WriteVerdicts writes the page of judged images to the file: one page that needs nothing
// else, or where there are some thousand images one with their pictures in the folder
// NAME-pictures beside it.
func WriteVerdicts(file string, v Verdicts) error {
	if err := CheckPage(file); err != nil {
		return err
	}
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
	return writeVerdicts(file, &v)
}

// pictureFile matches the files of pictures.
var pictureFile = regexp.MustCompile(`^\d{5}\.jpg$`)

// clearPictures removes the pictures of an earlier page.
func clearPictures(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil // there are none; what else is wrong shows when pictures are written
	}
	for _, e := range entries {
		if pictureFile.MatchString(e.Name()) {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
				return err
			}
		}
	}
	_ = os.Remove(folder) // if that was all
	return nil
}

func writeVerdicts(file string, v *Verdicts) error {
	folder := strings.TrimSuffix(file, filepath.Ext(file)) + "-pictures"
	if _, err := os.Stat(file); err == nil { // or else they are not ours
		if err := clearPictures(folder); err != nil {
			return failed(err)
		}
	}
	inside := len(v.Items) <= onePage
	if !inside {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return failed(err)
		}
	}
	p := &verdictsView{Verdicts: v, Total: len(v.Items), Control: newSlider(v)}
	p.Page = layout{Frame: v.titled("Which images are out of distribution"), Charts: true, Script: "verdicts.js", Files: true}
	data := pageData{Detector: disk.Quote(v.Detector), Program: disk.Quote(cmp.Or(v.Program, "mlrbfn")), Classes: v.Classes, Full: fullBar(v.Items), ByPValue: v.ByPValue}
	data.draw(v)
	missing, err := p.fill(&data, file, folder, inside)
	if err != nil {
		return failed(err)
	}
	p.Folders = data.Folders
	text, err := json.Marshal(data)
	if err != nil {
		return failed(err)
	}
	p.Data = template.JS(text)
	p.about(missing)
	return writePage(file, "verdicts.html", p)
}

// draw counts the scores of all images. The ends of the histogram leave out the few that are
// far away, which would make all others one bar.
func (d *pageData) draw(v *Verdicts) {
	known := slices.DeleteFunc(slices.Clone(v.Scores), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(known) == 0 {
		d.Ends = [2]float64{0, 1}
		return
	}
	low, high := known[len(known)/200], known[len(known)-1]
	low = min(low, max(v.limit(), known[0]))
	if !(low < high) {
		high = low + 1
	}
	d.Bars = histogram(known, low, high)
	d.Ends = [2]float64{low, high}
}

// chunk is how many pictures are made at once where they are written to files.
const chunk = 1000

// fill adds the images, with their pictures inside the page or in the folder, and returns how
// many pictures of training images are missing.
func (p *verdictsView) fill(data *pageData, file, folder string, inside bool) (missing string, err error) {
	v := p.Verdicts
	classes, folders, parts := map[string]int{}, map[string]int{}, map[string]int{}
	for i, c := range v.Classes {
		classes[c] = i
	}
	near := map[string]int{}
	key := func(n detector.Neighbour) string { return n.Class + "\x00" + n.Image.Path }
	lost, of := 0, 0
	for first := 0; first < len(v.Items); first += chunk {
		all := &album{}
		var pictures []*picture
		var beside []*picture // new training images
		last := min(first+chunk, len(v.Items))
		for i := first; i < last; i++ {
			item := &v.Items[i]
			pictures = append(pictures, all.of(item.Image, verdictSide))
			for _, n := range item.Nearest {
				n = named(n)
				if _, known := near[key(n)]; !known {
					near[key(n)] = len(near)
					beside = append(beside, all.of(n.Image, nearSide))
					data.Near = append(data.Near, nearData{Path: strings.ToValidUTF8(n.Image.Path, "\ufffd"), Class: n.Class})
				}
			}
		}
		all.load()
		for k, pic := range beside {
			if !pic.Missing() {
				data.Near[len(data.Near)-len(beside)+k].Picture = pic.URL
			}
		}
		for i := first; i < last; i++ {
			item, pic := &v.Items[i], pictures[i-first]
			d := itemData{
				Path: strings.ToValidUTF8(item.Image.Path, "\ufffd"), Quoted: disk.Quote(item.Image.Path), File: fileURL(file, item.Image.Path),
				Class: indexOf(classes, &data.Classes, item.Class), Label: item.Image.Label, Group: item.Group, OOD: item.OOD,
				Score: finite(item.Score), PValue: finite(item.PValue), Confidence: probability(item.Confidence), Why: item.Why,
				Folder: indexOf(folders, &data.Folders, strings.ToValidUTF8(filepath.ToSlash(filepath.Dir(item.Image.Path)), "\ufffd")),
			}
			if d.Picture, err = p.pictureOf(d.Path, pic, i, folder, inside); err != nil {
				return "", err
			}
			for _, part := range item.Parts {
				at := indexOf(parts, &data.Parts, part.Name)
				d.Parts = append(d.Parts, [2]any{at, finite(barOf(part))})
			}
			for _, n := range item.Nearest {
				n = named(n)
				at := near[key(n)]
				if of++; data.Near[at].Picture == "" {
					lost++
				}
				d.Near = append(d.Near, [2]any{at, short(n.Distance)})
			}
			if d.Map = overlay(item.Where); d.Map != "" {
				box := boxOf(item.Where)
				d.Box = &box
			}
			if i < mostStatic {
				if own := pic.thumb; own != nil { // the script takes it from there
					pic = &picture{Picture: pic.Picture, thumb: &thumb{URL: d.Picture, Width: own.Width, Height: own.Height}}
					d.Picture = "static"
				}
				p.Static = append(p.Static, &verdictView{item, pic})
			}
			data.Items = append(data.Items, d)
		}
	}
	for i, name := range data.Parts {
		data.Parts[i] = detector.Saying(name)
		p.Names = append(p.Names, scoreName{data.Parts[i], name})
	}
	if lost > 0 {
		missing = fmt.Sprintf("%d of %d pictures of training images cannot be shown: their folder was moved or deleted, or the files have changed.", lost, of)
	}
	return missing, nil
}

// named returns a neighbour that has a name, that of its row if it has no file.
func named(n detector.Neighbour) detector.Neighbour {
	n.Image.Path = cmp.Or(n.Image.Path, fmt.Sprintf("row %d", n.Row))
	return n
}

// pictureOf returns where the picture of an item is: in the page itself, if it is inside, or in
// a file of the folder; "" if it is missing, which is listed.
func (p *verdictsView) pictureOf(path string, pic *picture, item int, folder string, inside bool) (template.URL, error) {
	switch {
	case pic.Missing():
		if p.Unseen++; p.Unseen <= mostFailed {
			p.Unshown = append(p.Unshown, path)
		}
		return "", nil
	case inside:
		return pic.URL, nil
	}
	return savePicture(folder, item, pic.URL)
}

// indexOf returns the number of a name in a list, to which it is added if need be.
func indexOf(known map[string]int, list *[]string, name string) int {
	at, ok := known[name]
	if !ok {
		at = len(*list)
		known[name] = at
		*list = append(*list, name)
	}
	return at
}

// fileURL is the way from the page to a file that a browser can show, "" if it is none.
func fileURL(page, file string) string {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	whole, err := filepath.Abs(file)
	from, fromErr := filepath.Abs(filepath.Dir(page))
	if err != nil || fromErr != nil {
		return ""
	}
	way, err := filepath.Rel(from, whole)
	if err != nil {
		return ""
	}
	parts := strings.Split(filepath.ToSlash(way), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "./" + strings.Join(parts, "/")
}

// savePicture writes a picture to the folder, and returns the way to it from the page.
func savePicture(folder string, number int, picture template.URL) (template.URL, error) {
	_, text, _ := strings.Cut(string(picture), ",")
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%05d.jpg", number)
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	return template.URL("./" + url.PathEscape(filepath.Base(folder)) + "/" + name), err
}

// Words for the verdicts, which filters use too.
const (
	oodText   = "OOD"
	knownText = "in distribution"
)

// about says what the page is of.
func (p *verdictsView) about(missing string) {
	v := p.Verdicts
	all, flagged := len(v.Scores), 0
	for _, item := range v.Items {
		if item.OOD {
			flagged++
		}
	}
	p.Page.Notes = slices.Clone(v.Notes)
	if missing != "" {
		p.Page.Notes = append(p.Page.Notes, missing)
	}
	if all > len(v.Items) {
		flagged = p.Control.flagged(v, v.limit())
		p.Page.Notes = append(p.Page.Notes, fmt.Sprintf("Of %s, the %s that are most surprising are shown; detect --format csv lists all.", count(all), thousands(len(v.Items))))
	}
	p.Page.Lead = []string{"The detector finds flagged images (OOD, out of distribution) unlike every class that it was trained on. The strangest come first."}
	if len(v.Items) == 0 {
		p.Page.Lead = []string{"No image was judged."}
	}
	p.Figures = []bigFigure{{thousands(all), plainly(all, "image judged", "images judged")}, {thousands(flagged), "flagged as OOD"}}
	if v.MaxFalseAlarms > 0 {
		p.Figures = append(p.Figures, bigFigure{fmt.Sprintf("≤ %.3g%%", 100*v.MaxFalseAlarms), "of images like the training images may be flagged falsely"})
	}
	if p.Failed = p.Page.failed(v.Failed); p.Failed.Total > 0 {
		p.Figures = append(p.Figures, bigFigure{thousands(p.Failed.Total), "could not be read"})
	}
	present := map[string]bool{}
	for _, item := range v.Items {
		present[item.Class] = true
	}
	p.Filters = []choice{{"Verdict", "o", []string{oodText, knownText}},
		{"Class", "c", slices.DeleteFunc(slices.Clone(v.Classes), func(c string) bool { return !present[c] })}}
	if len(p.Folders) > 1 && len(p.Folders) <= 500 {
		p.Filters = append(p.Filters, choice{"Folder", "d", p.Folders})
	}
	p.Page.Links = append([]link{{"images", "Images"}}, p.Page.Links...)
	if len(p.Unshown) > 0 {
		p.Page.Links = append(p.Page.Links, link{"unshown", fmt.Sprintf("Not shown (%d)", p.Unseen)})
	}
	if p.Costs = v.costs(); p.Costs != nil {
		p.Page.Links = append(p.Page.Links, link{"costs", "False alarms"})
	}
	if p.Counts = v.counts(); p.Counts != nil {
		p.Page.Links = append(p.Page.Links, link{"counts", "Classes"})
	}
}

func isAre(n int) string { return plainly(n, "is", "are") }

func plainly(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// Fact returns the value of a fact, "" if there is none.
func (p *verdictsView) Fact(name string) string {
	for _, f := range p.Page.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

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

// boxOf returns the part of the picture that the map covers: its left and top edge, its width
// and its height in per cent.
func boxOf(m *detector.Map) [4]float64 {
	a := m.Area
	if a == ([4]float64{}) || !(a[0] < a[2] && a[1] < a[3]) {
		a = [4]float64{0, 0, 1, 1}
	}
	percent := func(share float64) float64 { return math.Round(1e4*share) / 100 }
	return [4]float64{percent(a[0]), percent(a[1]), percent(a[2] - a[0]), percent(a[3] - a[1])}
}
