package explanation

import (
	"cmp"
	"context"
	"image"
	"image/color"
	"image/draw"
	"runtime"
	"strconv"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
	"mlrbfn/pipeline/detector"
)

// Map says for each cell of a grid over an image how far that region made the score
// fall: how much higher the score is while the cell is hidden, on average. Negative:
// hiding the cell makes the score lower. A cell that the model never sees, as it is
// cropped away, has 0.
type Map struct {
	Width, Height int
	Values        []float32 // row after row, from the top left
}

// The grid of a Map: the shorter side of an image has shortCells, the longer one as
// many more as it is longer, up to longCells. Two by two cells are hidden at a time.
const (
	shortCells = 8
	longCells  = 16
	atOnce     = 1 << 28 // bytes of images with hidden cells
)

// Where finds which region of an image made its score fall. It hides two by two cells
// of a grid at a time by the mean colour of the image, at every place, runs these
// images through the backbone, and gives each cell the mean of how much higher the
// scores were that hid it. The same image always gives the same map. Of opts only
// the limits, Workers and Batch count.
func (e *Explainer) Where(ctx context.Context, backbone detector.Backbone, item extractor.Item, opts extractor.ExtractOptions) (*Map, error) {
	apply, err := e.detector.Source.AppliesEXIF()
	if err != nil {
		return nil, err
	}
	img, _, err := item.Image(ctx, preprocess.DecodeOptions{MaxPixels: cmp.Or(opts.MaxPixels, preprocess.DefaultMaxPixels), ApplyEXIF: apply})
	if err != nil {
		return nil, err
	}
	m := gridOf(img.Rect)
	windows := m.windows(img.Rect)
	run := extractor.ExtractOptions{
		Workers: cmp.Or(opts.Workers, runtime.GOMAXPROCS(0)), Batch: cmp.Or(opts.Batch, 1), // so that nothing is tried out
		MaxPixels: opts.MaxPixels, ImageTimeout: opts.ImageTimeout, NoHash: true,
	}
	scores := make([]float64, len(windows)+1) // the last one is of the image itself
	fill := image.NewUniform(meanColour(img))
	chunk := max(1, atOnce/len(img.Pix))
	for from := 0; from < len(scores); from += chunk {
		to := min(from+chunk, len(scores))
		items := make([]extractor.Item, to-from)
		for i := range items {
			hidden := img
			if from+i < len(windows) {
				hidden = &image.NRGBA{Pix: append([]uint8{}, img.Pix...), Stride: img.Stride, Rect: img.Rect}
				draw.Draw(hidden, windows[from+i].area, fill, image.Point{}, draw.Src)
			}
			items[i] = extractor.PixelsItem("window "+strconv.Itoa(from+i), hidden)
		}
		x := make([]float32, len(items)*e.detector.Dim())
		_, err := backbone.Extract(ctx, items, run, func(r extractor.Result) error {
			if r.Err != nil {
				return r.Err
			}
			copy(x[r.Index*e.detector.Dim():], r.Features)
			return nil
		})
		if err != nil {
			return nil, err
		}
		parts, err := e.detector.Parts(ctx, x)
		if err != nil {
			return nil, err
		}
		for i, v := range parts {
			scores[from+i/len(e.names)] += v
		}
	}
	m.fill(windows, scores)
	return m, nil
}

// gridOf returns an empty map over an image, of at most a cell for each pixel.
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

func meanColour(img *image.NRGBA) color.NRGBA {
	var sum [3]uint64
	for i := 0; i+3 < len(img.Pix); i += 4 {
		for c := range sum {
			sum[c] += uint64(img.Pix[i+c])
		}
	}
	n := uint64(max(len(img.Pix)/4, 1))
	return color.NRGBA{uint8((sum[0] + n/2) / n), uint8((sum[1] + n/2) / n), uint8((sum[2] + n/2) / n), 255}
}
