package report

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/disintegration/imaging"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// The parts that all pages are made of. A page is a template in web/ that calls
// "top" and "bottom" of web/parts.html with its layout, and in between sections
// that are made of the other parts: "table", "gallery", "figures", "repeat".

//go:embed web
var web embed.FS

var pages = template.Must(template.ParseFS(web, "web/*.html"))

// generator is in the head of every page.
const generator = `<meta name="generator" content="mlrbfn report">`

// Frame is what every page says around its sections.
type Frame struct {
	Title    string   // "" means the usual one of such pages
	Lead     []string // what the page says in a few sentences
	Answer   string   // the last of them, in bold
	Notes    []string // what is missing on the page, and why
	Commands []string // to repeat what the page shows
	Facts    []evaluation.Fact
}

// titled returns the frame with a title.
func (f Frame) titled(usual string) Frame {
	f.Title = cmp.Or(f.Title, usual)
	return f
}

// layout is a page as the templates of its parts read it.
type layout struct {
	Frame
	Links  []link // to the sections, without that of Commands and Facts
	Charts bool   // draw charts with Chart.js
	Script string // the page's own script in web/; "" for none
	Sheet  string // the page's own style sheet in web/, beside style.css; "" for none
	Album  *album // the page's thumbnails; nil for none
	Files  bool   // pictures may lie beside the page
}

// link is a link to a section.
type link struct{ ID, Text string }

func asset(name string) string {
	text, err := web.ReadFile("web/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return strings.TrimSpace(string(text))
}

// StyleSheet returns the style sheet of all pages, for pages that are made elsewhere.
func StyleSheet() string { return pageColours() + asset("style.css") }

// Charts returns the script that draws the charts of pages that are made elsewhere, those of
// the templates of Parts and what drawCharts is called with.
func Charts() string {
	library, _, _ := strings.Cut(chartJS, "\n//# sourceMappingURL") // that file is not part of the page
	return library + "\n" + asset("charts.js")
}

// Parts returns the templates of web/parts.html, for pages that are made elsewhere.
func Parts() *template.Template { return template.Must(template.ParseFS(web, "web/parts.html")) }

// Style returns the style sheet.
func (l layout) Style() template.CSS {
	css := StyleSheet()
	if l.Sheet != "" {
		css += "\n" + asset(l.Sheet)
	}
	return template.CSS(css)
}

// Scripts returns the scripts, in order. Without them the page can be read too.
func (l layout) Scripts() []template.JS {
	scripts := []template.JS{template.JS(asset("parts.js"))}
	if l.Charts {
		scripts = append(scripts, template.JS(Charts()))
	}
	if l.Script != "" {
		scripts = append(scripts, template.JS(asset(l.Script)))
	}
	return scripts
}

// Policy returns the content security policy: nothing from elsewhere is read, and no
// scripts run but those of the page.
func (l layout) Policy() template.HTML {
	var hashes strings.Builder
	for _, s := range l.Scripts() {
		sum := sha256.Sum256([]byte(s))
		fmt.Fprintf(&hashes, " 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
	}
	files := ""
	if l.Files {
		files = " 'self' file:"
	}
	return template.HTML(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:` + files + `; style-src 'unsafe-inline'; script-src` +
		hashes.String() + `; base-uri 'none'; form-action 'none'">` + "\n" + generator)
}

// CheckPage returns an error if a page could not be written to the file, unless that is "". Call
// it before long work. A file that this package did not make is never replaced.
func CheckPage(file string) error {
	if file == "" {
		return nil
	}
	text, err := disk.ReadFile(file, disk.Page)
	first := file // of what would be made
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for err = nil; filepath.Dir(first) != first; first = filepath.Dir(first) {
			if _, err := os.Stat(filepath.Dir(first)); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
	case err == nil && !strings.Contains(string(text), generator):
		err = fmt.Errorf("%s: %w", file, metrics.ErrForeign)
	}
	return failed(cmp.Or(err, disk.CheckWritable(first)))
}

// writePage writes a page to a file, by the template of this name. It makes the folder.
func writePage(file, name string, view any) error {
	err := os.MkdirAll(filepath.Dir(file), 0o777)
	if err == nil {
		err = disk.Write(file, func(w io.Writer) error { return pages.ExecuteTemplate(w, name, view) })
	}
	return failed(err)
}

// failed is an error of this package; nil stays nil.
func failed(err error) error {
	if err != nil {
		err = fmt.Errorf("report: %w", err)
	}
	return err
}

// tile is an image of a gallery, with what is known of it and the images beside it.
type tile struct {
	*picture
	Lines  []tileLine
	Beside string // says what the images beside it are
	Near   []nearTile
	Other  *tile // that shows the same, at its side; nil for none
	sized  bool
	// Class and Also are the classes by which the page's filter finds it; "" for none.
	Class, Also string
	// Review is the line of the list that a person marks the image in; "" for none. Mark says
	// what a tick means, and Ticked that there is one at first.
	Review, Mark string
	Ticked       bool
}

// Kept returns the size of the image and of its file, where these matter.
func (t *tile) Kept() string {
	if !t.sized || t.Missing() {
		return ""
	}
	text := fmt.Sprintf("%d × %d pixels", t.from.X, t.from.Y)
	if t.Size != nil {
		text += fmt.Sprintf(", %d KiB", (t.Size()+1023)/1024)
	}
	return text
}

// tileLine is one thing that is known of an image.
type tileLine struct {
	Name, Value string
	Wrong       bool // in the colour of what is wrong
}

// says adds lines, but for those without a value.
func (t *tile) says(lines ...tileLine) {
	t.Lines = append(t.Lines, slices.DeleteFunc(lines, func(l tileLine) bool { return l.Value == "" })...)
}

// nearTile is an image beside another.
type nearTile struct {
	*picture
	Text, Value string
}

// choice is a filter by which a page shows some of its images: those of which one of
// the keys, names of data attributes with spaces between them, has the value.
type choice struct {
	Label, Keys string
	Options     []string
}

// picture is an image as a page shows it.
type picture struct {
	images.Picture
	side int
	from image.Point // its size
	*thumb
}

// Missing reports whether the image could not be shown.
func (p picture) Missing() bool { return p.thumb == nil }

// thumb is a thumbnail. One that several pictures show is in the page once.
type thumb struct {
	URL           template.URL
	Width, Height int
	uses, number  int
}

// Shared reports whether several pictures show the thumbnail.
func (t *thumb) Shared() bool { return t.uses > 1 }

// ID names a shared thumbnail on the page.
func (t *thumb) ID() string { return fmt.Sprintf("t%d", t.number) }

// album holds the pictures of a page.
type album struct {
	pictures []*picture
	thumbs   []*thumb
}

// of returns a picture of an image that load will read, with its longer side of so
// many pixels.
func (a *album) of(img images.Picture, side int) *picture {
	img.Path, img.Label = strings.ToValidUTF8(img.Path, "\ufffd"), strings.ToValidUTF8(img.Label, "\ufffd")
	p := &picture{Picture: img, side: side}
	a.pictures = append(a.pictures, p)
	return p
}

// load reads the thumbnails of all pictures, on all cores.
func (a *album) load() {
	thumbs := make([]*thumb, len(a.pictures))
	parallel.Each(runtime.GOMAXPROCS(0), len(a.pictures), func(i int) {
		if p := a.pictures[i]; p.Decode != nil {
			thumbs[i], p.from = thumbnail(p.Decode, p.side)
		}
	})
	known := map[template.URL]*thumb{}
	for i, t := range thumbs {
		if t == nil {
			continue
		}
		if known[t.URL] == nil {
			t.number = len(a.thumbs)
			known[t.URL] = t
			a.thumbs = append(a.thumbs, t)
		}
		t = known[t.URL]
		t.uses++
		a.pictures[i].thumb = t
	}
}

// Shared returns the thumbnails that several pictures show.
func (a *album) Shared() (shared []*thumb) {
	if a == nil {
		return nil
	}
	for _, t := range a.thumbs {
		if t.Shared() {
			shared = append(shared, t)
		}
	}
	return shared
}

const (
	thumbnailSide    = 96
	thumbnailQuality = 80
)

// Thumbnail returns an image as the small JPEG that pages show, or nil if it cannot be
// read.
func Thumbnail(img images.Picture) []byte {
	if img.Decode == nil {
		return nil
	}
	small, _, _ := shrink(img.Decode, thumbnailSide)
	return small
}

// Thumbnails gives the thumbnails of images one after another, nil where there is none. Some
// are read at once.
func Thumbnails(of iter.Seq[images.Picture]) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		workers := runtime.GOMAXPROCS(0)
		var some []images.Picture
		give := func() bool {
			small := make([][]byte, len(some))
			parallel.Each(workers, len(some), func(i int) { small[i] = Thumbnail(some[i]) })
			some = some[:0]
			return !slices.ContainsFunc(small, func(file []byte) bool { return !yield(file) })
		}
		for p := range of {
			if some = append(some, p); len(some) == 8*workers && !give() {
				return
			}
		}
		give()
	}
}

// thumbnail is shrink for a page: missing images do not prevent one.
func thumbnail(decode func() (image.Image, error), side int) (t *thumb, from image.Point) {
	small, from, to := shrink(decode, side)
	if small == nil {
		return nil, from
	}
	return &thumb{URL: template.URL("data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(small)), Width: to.X, Height: to.Y}, from
}

// shrink returns an image as a small JPEG, or nil if it cannot be read, and both sizes.
func shrink(decode func() (image.Image, error), side int) (small []byte, size, to image.Point) {
	defer func() {
		if recover() != nil { // decoders of rare formats have panicked
			small = nil
		}
	}()
	from, err := decode()
	if err != nil || from.Bounds().Empty() {
		return nil, size, to
	}
	size = from.Bounds().Size()
	scale := float64(side) / float64(max(size.X, size.Y))
	width, height := max(1, int(scale*float64(size.X)+.5)), max(1, int(scale*float64(size.Y)+.5))
	filter := imaging.CatmullRom
	if scale > 1 {
		filter = imaging.NearestNeighbor // small images are shown as they are
	}
	canvas := imaging.Overlay(imaging.New(width, height, color.White), imaging.Resize(from, width, height, filter), image.Point{}, 1)
	var b bytes.Buffer
	if err := jpeg.Encode(&b, canvas, &jpeg.Options{Quality: thumbnailQuality}); err != nil {
		return nil, size, to
	}
	return b.Bytes(), size, canvas.Rect.Size()
}
