package detector

import (
	"cmp"
	"context"
	"image"
	"image/color"
	"image/draw"
	"runtime"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
)

// Map says for each cell of a grid over what the model sees of an image how far that
// region made the score fall: how much higher the score is while the cell is hidden,
// on average. Negative: hiding the cell makes the score lower. [MapOf] has other values.
type Map struct {
	Width  int       `json:"width"`
	Height int       `json:"height"`
	Values []float32 `json:"values"` // row after row, from the top left
	// Area is the part of the image that the grid covers, as the model sees no more:
	// left, top, right and bottom as shares of the image's width and height.
	Area [4]float64 `json:"area"`
}

// MapOf returns the map that the model of patches gives of an image, in the pass of its
// verdict: its values are how far each place is beyond the worst ones that are usual, as a
// share. It is nil without such a model.
func MapOf(r extractor.Row) *Map {
	if r.Map == nil {
		return nil
	}
	return &Map{r.Map.Width, r.Map.Height, r.Map.Values, r.Map.Area}
}

// The grid of a Map: its shorter side has shortCells, the longer one as many more as
// it is longer, up to longCells. Two by two cells are hidden at a time.
const (
	shortCells = 8
	longCells  = 16
	atOnce     = 1 << 28 // bytes of images with hidden cells
)

// Mapped is the map of an image, or why there is none.
type Mapped struct {
	*Map
	Err error
}

// masked is an image as the model sees it, with the places to hide.
type masked struct {
	at      int // its item
	crop    *preprocess.Cropped
	seen    image.Rectangle
	windows []window
	scores  []float64 // of each window, and of the image itself
}

// Where finds which region of each image made its score fall. It hides two by two
// cells of a grid at a time by the mean colour of the image, at every place, runs these
// images through the backbone, many at a time, and gives each cell the mean of how much
// higher the scores were that hid it. The same image always gives the same map. Of opts
// only the limits, Workers and Batch count. It fails only when cancelled.
func (e *Explainer) Where(ctx context.Context, backbone extractor.Backbone, items []images.Item, opts extractor.Options) ([]Mapped, error) {
	all := make([]Mapped, len(items))
	var some []*masked
	bytes := 0
	for i, item := range items {
		m, err := e.mask(ctx, item, opts.MaxPixels, &all[i])
		if all[i].Err = err; err == nil {
			m.at = i
			some = append(some, m)
			bytes += len(m.scores) * len(m.crop.Pix)
		}
		if len(some) > 0 && (bytes >= atOnce || i == len(items)-1) {
			e.score(ctx, backbone, some, opts, all)
			some, bytes = some[:0], 0
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return all, nil
}

// mask prepares an image and an empty map.
func (e *Explainer) mask(ctx context.Context, item images.Item, maxPixels int64, to *Mapped) (*masked, error) {
	reading, err := e.detector.Source.Reading()
	if err != nil {
		return nil, err
	}
	spec, err := e.detector.Source.Spec()
	if err != nil {
		return nil, err
	}
	img, _, err := item.Image(ctx, preprocess.DecodeOptions{MaxPixels: maxPixels, Reading: reading})
	if err != nil {
		return nil, err
	}
	m := &masked{}
	if m.crop, err = spec.Crop(img); err != nil {
		return nil, err
	}
	var area [4]float64
	m.seen, area = spec.Seen(img.Rect.Dx(), img.Rect.Dy())
	to.Map = gridOf(m.seen)
	to.Area = area
	m.windows = to.windows(m.seen)
	m.scores = make([]float64, len(m.windows)+1)
	return m, nil
}

// score fills the maps of some images.
func (e *Explainer) score(ctx context.Context, backbone extractor.Backbone, some []*masked, opts extractor.Options, all []Mapped) {
	type place struct {
		of    *masked
		score int
	}
	var places []place
	var items []images.Item
	for _, m := range some {
		fill := image.NewUniform(meanColour((*image.NRGBA)(m.crop), m.seen))
		for i := range m.scores {
			hidden := m.crop
			if i < len(m.windows) {
				hidden = &preprocess.Cropped{Pix: slices.Clone(m.crop.Pix), Stride: m.crop.Stride, Rect: m.crop.Rect}
				draw.Draw((*image.NRGBA)(hidden), m.windows[i].area, fill, image.Point{}, draw.Src)
			}
			places = append(places, place{m, i})
			items = append(items, images.CroppedItem("window "+strconv.Itoa(i), hidden))
		}
	}
	opts.Workers, opts.Batch = cmp.Or(opts.Workers, runtime.GOMAXPROCS(0)), cmp.Or(opts.Batch, 1) // so that nothing is tried out
	opts.NoHash, opts.Progress, opts.Chosen = true, nil, nil
	d := e.detector.Dim()
	x := make([]float32, len(items)*d)
	failed := map[*masked]error{}
	_, err := backbone.Extract(ctx, images.Of(items...), opts, func(r extractor.Row) error {
		if of := places[r.Index].of; r.Err != nil && failed[of] == nil {
			failed[of] = r.Err
		}
		copy(x[r.Index*d:(r.Index+1)*d], r.Features)
		return nil
	})
	var parts []float64
	if err == nil {
		parts, err = e.detector.Parts(ctx, x)
	}
	for i, v := range parts {
		p := places[i/len(e.names)]
		p.of.scores[p.score] += v
	}
	for _, m := range some {
		to := &all[m.at]
		if to.Err = cmp.Or(err, failed[m]); to.Err != nil {
			to.Map = nil
			continue
		}
		to.fill(m.windows, m.scores)
	}
}

// gridOf returns an empty map over a part of a crop, of at most a cell for each pixel.
func gridOf(area image.Rectangle) *Map {
	w, h := area.Dx(), area.Dy()
	cells := func(side, other int) int {
		return min(side, longCells, max(shortCells, (2*shortCells*side+other)/(2*other)))
	}
	m := &Map{Width: cells(w, h), Height: cells(h, w)}
	m.Values = make([]float32, m.Width*m.Height)
	return m
}

// window is cells that are hidden together.
type window struct {
	x, y, endX, endY int // cells
	area             image.Rectangle
}

// windows returns all places of two by two cells.
func (m *Map) windows(area image.Rectangle) []window {
	var all []window
	at := func(cell, cells, from, to int) int { return from + cell*(to-from)/cells }
	for y := range max(1, m.Height-1) {
		for x := range max(1, m.Width-1) {
			w := window{x: x, y: y, endX: min(x+2, m.Width), endY: min(y+2, m.Height)}
			w.area = image.Rect(
				at(w.x, m.Width, area.Min.X, area.Max.X), at(w.y, m.Height, area.Min.Y, area.Max.Y),
				at(w.endX, m.Width, area.Min.X, area.Max.X), at(w.endY, m.Height, area.Min.Y, area.Max.Y))
			all = append(all, w)
		}
	}
	return all
}

// fill gives each cell the mean of the windows that hid it; the last score is that of
// the image itself.
func (m *Map) fill(windows []window, scores []float64) {
	counts, base := make([]float64, len(m.Values)), scores[len(windows)]
	sums := make([]float64, len(m.Values))
	for i, w := range windows {
		for y := w.y; y < w.endY; y++ {
			for x := w.x; x < w.endX; x++ {
				sums[y*m.Width+x] += scores[i] - base
				counts[y*m.Width+x]++
			}
		}
	}
	for i, sum := range sums {
		m.Values[i] = float32(sum / counts[i])
	}
}

// meanColour returns the mean colour of a part of an image.
func meanColour(img *image.NRGBA, of image.Rectangle) color.NRGBA {
	var sum [3]uint64
	for y := of.Min.Y; y < of.Max.Y; y++ {
		for x := of.Min.X; x < of.Max.X; x++ {
			for c := range sum {
				sum[c] += uint64(img.Pix[img.PixOffset(x, y)+c])
			}
		}
	}
	n := uint64(max(of.Dx()*of.Dy(), 1))
	return color.NRGBA{uint8((sum[0] + n/2) / n), uint8((sum[1] + n/2) / n), uint8((sum[2] + n/2) / n), 255}
}
