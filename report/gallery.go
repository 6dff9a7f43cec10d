package report

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"runtime"
	"slices"

	"golang.org/x/image/draw"
	"gonum.org/v1/gonum/blas/blas32"

	"mlrbfn/internal/parallel"
)

// gallery holds the most extreme images of a set.
type gallery struct {
	Title, Caption string
	Items          []*galleryItem
}

// galleryItem is an image with its score and the training images nearest to it.
type galleryItem struct {
	picture
	Predicted string // the class; "" if unknown
	Wrong     bool   // Predicted is not the label
	Score     string
	Nearest   []neighbour

	row []float32
}

type neighbour struct {
	picture
	Cosine string
}

// picture is an image as the page shows it.
type picture struct {
	Image
	Thumbnail template.URL // "" if the image could not be read
}

// extremes returns the indices of the n lowest or highest scores, in order. It
// skips NaN. Equal scores are in the order of the images.
func extremes(scores []float64, n int, highest bool) []int {
	var places []int
	for i, s := range scores {
		if !math.IsNaN(s) {
			places = append(places, i)
		}
	}
	slices.SortStableFunc(places, func(a, b int) int {
		if highest {
			a, b = b, a
		}
		return cmp.Compare(scores[a], scores[b])
	})
	return places[:min(n, len(places))]
}

// galleries shows the most OOD-looking test images and the most ID-looking OOD
// images of each set.
func (v *view) galleries() ([]gallery, error) {
	run, ok := v.firstRun(v.GalleryMethod)
	if !ok {
		return nil, nil
	}
	size := cmp.Or(v.GallerySize, 6)
	thumbnails := thumbnails{}
	var all []gallery
	var items []*galleryItem
	add := func(set *Set, dataset, title, caption string, highest bool) error {
		if set.Image == nil {
			return nil
		}
		scores, err := v.scores(run, dataset)
		if err != nil {
			return err
		}
		predicted := run.Predicted[dataset]
		g := gallery{Title: title, Caption: caption}
		for _, i := range extremes(scores, size, highest) {
			item := &galleryItem{picture: thumbnails.of(set, i), Score: number(scores[i])}
			if set.Row != nil {
				item.row = set.Row(i)
			}
			if i < len(predicted) && predicted[i] >= 0 && predicted[i] < len(v.Classes) {
				item.Predicted = v.Classes[predicted[i]]
				item.Wrong = dataset == "id" && item.Label != "" && item.Label != item.Predicted
			}
			g.Items = append(g.Items, item)
		}
		if len(g.Items) > 0 {
			items = append(items, g.Items...)
			all = append(all, g)
		}
		return nil
	}
	err := add(&v.ID, "id", "Most OOD-looking of "+v.idName(),
		"Images of the training classes with the lowest scores, lowest first.", false)
	if err != nil {
		return nil, err
	}
	for i := range v.OOD {
		set := &v.OOD[i]
		err := add(set, set.Name, "Most ID-looking of "+set.Name,
			"OOD images ("+set.Group+") with the highest scores, highest first. Any class that is predicted is wrong.", true)
		if err != nil {
			return nil, err
		}
	}
	if v.Train != nil && v.Train.Row != nil && v.Train.Image != nil {
		nearest(v.Train, items, cmp.Or(v.Neighbours, 3), thumbnails)
	}
	return all, nil
}

// nearest finds the k training images with the highest cosine to each item, in
// one pass over the training features. A row of zeros has the cosine 0.
func nearest(train *Set, items []*galleryItem, k int, thumbnails thumbnails) {
	best := make([][]found, len(items))
	norms := make([]float64, len(items))
	for q, item := range items {
		norms[q] = math.Sqrt(dot(item.row, item.row))
	}
	const block = 256 // rows that stay in the cache while all items are compared with them
	rowNorms := make([]float64, block)
	for from := 0; from < train.N; from += block {
		to := min(from+block, train.N)
		for i := from; i < to; i++ {
			rowNorms[i-from] = math.Sqrt(dot(train.Row(i), train.Row(i)))
		}
		parallel.Each(runtime.GOMAXPROCS(0), len(items), func(q int) {
			for i := from; i < to; i++ {
				row := train.Row(i)
				if len(items[q].row) != len(row) {
					continue
				}
				f := found{row: i}
				if scale := rowNorms[i-from] * norms[q]; scale > 0 {
					f.cosine = dot(items[q].row, row) / scale
				}
				best[q] = keep(best[q], f, k)
			}
		})
	}
	for q, item := range items {
		for _, f := range best[q] {
			item.Nearest = append(item.Nearest, neighbour{thumbnails.of(train, f.row), fmt.Sprintf("%.3f", f.cosine)})
		}
	}
}

// found is a training image and its cosine to an item.
type found struct {
	row    int
	cosine float64
}

// keep inserts f into the best k, sorted; equal ones stay in the order of arrival.
func keep(best []found, f found, k int) []found {
	if len(best) == k && f.cosine <= best[k-1].cosine {
		return best
	}
	at := len(best)
	for at > 0 && best[at-1].cosine < f.cosine {
		at--
	}
	best = slices.Insert(best, at, f)
	return best[:min(k, len(best))]
}

// dot sums in float64, so that neighbours that differ little are ordered right.
func dot(a, b []float32) float64 {
	return blas32.DDot(blas32.Vector{N: len(a), Inc: 1, Data: a}, blas32.Vector{N: len(b), Inc: 1, Data: b})
}

// thumbnails caches pictures by set and row, as images may share neighbours.
type thumbnails map[place]picture

type place struct {
	set *Set
	row int
}

func (t thumbnails) of(set *Set, row int) picture {
	p, ok := t[place{set, row}]
	if !ok {
		p.Image = set.Image(row)
		if p.Decode != nil {
			p.Thumbnail = thumbnail(p.Decode)
		}
		t[place{set, row}] = p
	}
	return p
}

const (
	thumbnailSide    = 96
	thumbnailQuality = 80
)

// thumbnail returns an image as a small JPEG in a URL, or "" if it cannot be read:
// missing images do not prevent a report.
func thumbnail(decode func() (image.Image, error)) (url template.URL) {
	defer func() {
		if recover() != nil { // decoders of rare formats have panicked
			url = ""
		}
	}()
	from, err := decode()
	if err != nil || from.Bounds().Empty() {
		return ""
	}
	size := from.Bounds().Size()
	scale := float64(thumbnailSide) / float64(max(size.X, size.Y))
	to := image.NewRGBA(image.Rect(0, 0, max(1, int(scale*float64(size.X)+.5)), max(1, int(scale*float64(size.Y)+.5))))
	draw.Draw(to, to.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
	var scaler draw.Scaler = draw.CatmullRom
	if scale > 1 {
		scaler = draw.NearestNeighbor // small images are shown as they are
	}
	scaler.Scale(to, to.Bounds(), from, from.Bounds(), draw.Over, nil)
	var b bytes.Buffer
	if err := jpeg.Encode(&b, to, &jpeg.Options{Quality: thumbnailQuality}); err != nil {
		return ""
	}
	return template.URL("data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(b.Bytes()))
}
