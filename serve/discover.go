package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file judges remembered images together.

// mostTogether bounds the images of a window, and atOnce how many are read from the store at
// a time. Tests make them smaller.
var mostTogether, atOnce = 20_000, 1000

// newKinds says what is new among the images of a window.
type newKinds struct {
	Detector string    `json:"detector"`
	From     time.Time `json:"from"` // of the first image that was judged
	To       time.Time `json:"to"`   // and of the last
	More     bool      `json:"more"` // the window has more images than these, which are the newest
	*pipeline.Discovery
	Groups []newKind `json:"groups"`
}

// newKind is a group of new images.
type newKind struct {
	Images  int       `json:"images"`
	Waiting int       `json:"waiting"` // of them, without a review
	Nearest string    `json:"nearest"` // the class that most of them are given
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	IDs     []string  `json:"ids"`     // those without a review first, the newest first
	Typical []record  `json:"typical"` // at most nine
}

// discover answers GET /v1/discover: what is new among the remembered images of a window,
// judged together: of those that the detector or an earlier version has judged the newest
// ones whose features are kept.
func (m *reviewRequests) discover(ctx context.Context, r *http.Request) (any, error) {
	for name := range r.URL.Query() {
		if !slices.Contains([]string{"from", "to", "source", "detector"}, name) {
			return nil, refuse(http.StatusBadRequest, "nobody knows %q", name)
		}
	}
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	d, err := used(m.detectors, q.Detector)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	select { // as one of these takes much memory
	case m.together <- struct{}{}:
		defer func() { <-m.together }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	k := &newKinds{Detector: d.Name, Groups: []newKind{}}
	list, rows, err := m.window(ctx, d.Loaded, q, k)
	if err != nil {
		return nil, asked(err)
	}
	end, err := m.judge.run(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	k.Discovery, err = pipeline.Discover(ctx, pipeline.DiscoverOptions{Detect: pipeline.DetectOptions{Detector: d.Detector}, Rows: rows})
	about, of := errors.AsType[*options.Error](err)
	switch {
	case of && about.Option == "Detector":
		return nil, refuse(http.StatusUnprocessableEntity, "%v", about.Err)
	case of || errors.Is(err, detector.ErrTrainingSets):
		m.log.Warn("images cannot be judged together", "request", idOf(ctx), "detector", d.Name, "error", err)
		return nil, refuse(http.StatusUnprocessableEntity, "the features that the detector was trained and calibrated on are not found, or have changed")
	case err != nil:
		return nil, err
	}
	if k.More {
		k.Notes = append(k.Notes, fmt.Sprintf("the window has more images than the newest %d, which were judged: the features of the others are not kept, or they are too many", len(list)))
	}
	m.kinds(k, list)
	return k, nil
}

// window returns the images of a window, the newest first, and their features.
func (m *reviewRequests) window(ctx context.Context, d *pool.Loaded, q store.Query, k *newKinds) (list []store.Record, rows []float32, err error) {
	files, err := m.judgedBy(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	rows = []float32{} // none, and not no choice
	q.Detector, q.Limit = "", atOnce
	for !k.More {
		some, err := m.store.List(ctx, q)
		if err != nil || len(some) == 0 {
			return list, rows, err
		}
		q.UntilSeq = some[len(some)-1].Seq - 1
		some = slices.DeleteFunc(some, func(v store.Record) bool { return !files[v.Detector] || v.Model != d.Source.Fingerprint })
		ids := make([]string, len(some))
		for i, v := range some {
			ids[i] = v.ID
		}
		known, err := m.store.Features(ctx, ids)
		if err != nil {
			return nil, nil, err
		}
		for _, v := range some {
			row := known[v.ID]
			// Of older images only those have features that were reviewed, which are not like all.
			if k.More = len(list) == mostTogether || len(row) != d.Dim(); k.More {
				break
			}
			list, rows = append(list, v), append(rows, row...)
			if k.From = v.Time; k.To.IsZero() {
				k.To = v.Time
			}
		}
		if q.UntilSeq == 0 {
			break
		}
	}
	return list, rows, nil
}

// kinds tells the groups of the images.
func (m *reviewRequests) kinds(k *newKinds, list []store.Record) {
	for _, g := range k.Discovery.Groups[:min(mostGroups, len(k.Discovery.Groups))] {
		kind := newKind{Images: g.Images, Nearest: g.Nearest}
		for _, i := range g.Typical {
			kind.Typical = append(kind.Typical, m.memory.record(list[i]))
		}
		k.Groups = append(k.Groups, kind)
	}
	for _, reviewed := range []bool{false, true} {
		for i, f := range k.Found {
			v := list[i]
			if f.Group < 0 || f.Group >= len(k.Groups) || (v.Review != nil) != reviewed {
				continue
			}
			g := &k.Groups[f.Group]
			g.IDs = append(g.IDs, v.ID)
			if !reviewed {
				g.Waiting++
			}
			if g.First.IsZero() || v.Time.Before(g.First) {
				g.First = v.Time
			}
			if v.Time.After(g.Last) {
				g.Last = v.Time
			}
		}
	}
}
