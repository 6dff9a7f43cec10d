package report

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// gallery holds the most extreme images of a set.
type gallery struct {
	Title, Caption string
	Tiles          []*tile
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

// missed holds the worst misses of one method.
type missed struct {
	Method    string
	Galleries []gallery
}

// gallerySize is how many images of each set are shown, and besideSize how many training
// images beside each.
const gallerySize, besideSize = 6, 3

// place is an image of a set.
type place struct {
	set *images.Set
	row int
}

// hardest collects the images that galleries show.
type hardest struct {
	*view
	places []place // of the tiles
	tiles  []*tile
}

// galleries shows the most OOD-looking test images and the most ID-looking OOD
// images: of each set by the scores of the gallery's method, and of all sets
// together by those of the other methods that have a style.
func (v *view) galleries() error {
	h := &hardest{view: v}
	for _, method := range v.methods[:len(v.style)] {
		run, ok := v.firstRun(method)
		if !ok {
			continue
		}
		lowest, err := h.most([]*images.Set{&v.ID}, run, gallerySize, false)
		if err != nil {
			return err
		}
		galleries := []gallery{{"Most OOD-looking of " + v.idName(), "Images of the training classes with the lowest scores, lowest first.", lowest}}
		var together []*images.Set
		for i := range v.OOD {
			set := &v.OOD[i]
			if together = append(together, set); method != v.GalleryMethod {
				continue
			}
			highest, err := h.most([]*images.Set{set}, run, gallerySize, true)
			if err != nil {
				return err
			}
			galleries = append(galleries, gallery{"Most ID-looking of " + set.Name,
				"OOD images (" + set.Group + ") with the highest scores, highest first. Any class that is predicted is wrong.", highest})
		}
		if method != v.GalleryMethod {
			highest, err := h.most(together, run, gallerySize, true)
			if err != nil {
				return err
			}
			galleries = append(galleries, gallery{"Most ID-looking OOD images", "Of all sets, highest first.", highest})
		}
		galleries = slices.DeleteFunc(galleries, func(g gallery) bool { return len(g.Tiles) == 0 })
		switch {
		case len(galleries) == 0:
		case method == v.GalleryMethod:
			v.Galleries = galleries
		default:
			v.Misses = append(v.Misses, missed{method, galleries})
		}
	}
	h.addNearest()
	return nil
}

// most returns the images of these sets, of which all have pictures, with the lowest
// or the highest scores.
func (h *hardest) most(sets []*images.Set, run evaluation.Run, n int, highest bool) (tiles []*tile, err error) {
	type scored struct {
		place
		score     float64
		predicted int
	}
	var all []scored
	for _, set := range sets {
		if set.Image == nil {
			continue
		}
		dataset := set.Name
		if set == &h.ID {
			dataset = "id"
		}
		scores, err := h.scores(run, dataset)
		if err != nil {
			return nil, err
		}
		for _, i := range extremes(scores, n, highest) {
			s := scored{place{set, i}, scores[i], -1}
			if predicted := run.Predicted[dataset]; i < len(predicted) {
				s.predicted = predicted[i]
			}
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		if highest {
			a, b = b, a
		}
		return cmp.Compare(a.score, b.score)
	})
	for _, s := range all[:min(n, len(all))] {
		t := &tile{picture: h.Page.Album.of(s.set.Image(s.row), thumbnailSide)}
		t.says(tileLine{Name: "label", Value: t.Label})
		if s.predicted >= 0 && s.predicted < len(h.Classes) {
			class := h.Classes[s.predicted]
			wrong := s.set == &h.ID && t.Label != "" && t.Label != class
			if wrong {
				class += " ✗ wrong"
			}
			t.Lines = append(t.Lines, tileLine{"predicted", class, wrong})
		}
		if len(sets) > 1 {
			t.Lines = append(t.Lines, tileLine{Name: "set", Value: s.set.Name})
		}
		t.Lines = append(t.Lines, tileLine{Name: "score", Value: number(s.score)})
		tiles, h.tiles, h.places = append(tiles, t), append(h.tiles, t), append(h.places, s.place)
	}
	return tiles, nil
}

// addNearest adds the nearest training images to all tiles.
func (h *hardest) addNearest() {
	if h.Train == nil || h.Train.Row == nil || h.Train.Image == nil {
		return
	}
	at := map[place]int{} // of those that several galleries show, only one is searched for
	var rows [][]float32
	for _, p := range h.places {
		if _, ok := at[p]; !ok && p.set.Row != nil {
			at[p] = len(rows)
			rows = append(rows, p.set.Row(p.row))
		}
	}
	best := nearest(h.Train, rows, besideSize)
	for i, p := range h.places {
		q, ok := at[p]
		if !ok {
			continue
		}
		t := h.tiles[i]
		t.Beside = "nearest in training"
		for _, f := range best[q] {
			near := h.Page.Album.of(h.Train.Image(f.row), thumbnailSide)
			t.Near = append(t.Near, nearTile{near, near.Label, fmt.Sprintf("%.3f", f.cosine)})
		}
	}
}

// nearest finds the k training images with the highest cosine to each row, in
// one pass over the training features. A row of zeros has the cosine 0.
func nearest(train *images.Set, rows [][]float32, k int) [][]found {
	best := make([][]found, len(rows))
	norms := lists.Map(rows, func(row []float32) float64 { return math.Sqrt(dot(row, row)) })
	const block = 256 // rows that stay in the cache while all others are compared with them
	rowNorms := make([]float64, block)
	for from := 0; from < train.N && len(rows) > 0; from += block {
		to := min(from+block, train.N)
		for i := from; i < to; i++ {
			rowNorms[i-from] = math.Sqrt(dot(train.Row(i), train.Row(i)))
		}
		parallel.Each(runtime.GOMAXPROCS(0), len(rows), func(q int) {
			for i := from; i < to; i++ {
				row := train.Row(i)
				if len(rows[q]) != len(row) {
					continue
				}
				f := found{row: i}
				if scale := rowNorms[i-from] * norms[q]; scale > 0 {
					f.cosine = dot(rows[q], row) / scale
				}
				best[q] = keep(best[q], f, k)
			}
		})
	}
	return best
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
