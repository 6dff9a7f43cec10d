package serve

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/report"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file has what a person needs to review images: groups of look-alikes, why an image
// was judged so, training images, and what thresholds cost.

// waitingImages is what these requests ask of the store.
type waitingImages interface {
	List(context.Context, store.Query) ([]store.Record, error)
	Get(ctx context.Context, id string) (store.Record, error)
	Features(ctx context.Context, ids []string) (map[string][]float32, error)
}

// explainer judges again, and says why, in the places that it gives.
type explainer interface {
	run(context.Context) (end func(), err error)
	addReasons(ctx context.Context, d *pool.Loaded, outcomes []outcome)
}

// mostInGroup bounds the images of a group.
const mostInGroup = 50

// reviewRequests are the requests of a person who reviews images.
type reviewRequests struct {
	store     waitingImages // nil remembers nothing
	detectors detectors
	judge     explainer
	memory    keeper
	learned   learned // nil does not learn
	log       *slog.Logger
	reaches   reaches
	together  chan struct{} // holds one value while images are judged together
}

const (
	queued     = 500 // images that are grouped, the strangest
	mostGroups = 100 // of an answer
)

// group is images that look alike, the strangest first.
type group struct {
	Images []record `json:"images"`
}

// queue is what waits for a person.
type queue struct {
	Detector string  `json:"detector"`
	Groups   []group `json:"groups"`
	Waiting  int     `json:"waiting"`        // flagged images without a review; of more than 500 the strangest
	More     bool    `json:"more"`           // there are more than these
	Reach    float64 `json:"reach"`          // 1 − cosine within which images are in one group
	Note     string  `json:"note,omitempty"` // what is missing
}

// reaches are the distances within which images look alike, by the hash of a detector.
type reaches struct {
	mu    sync.Mutex
	known map[string]float64
}

// reach returns that of a detector, and a note if it is not known.
func (m *reviewRequests) reach(ctx context.Context, d *pool.Loaded) (float64, string) {
	m.reaches.mu.Lock()
	defer m.reaches.mu.Unlock()
	reach, known := m.reaches.known[d.SHA256]
	if !known {
		e, err := d.Explainer(ctx)
		if err == nil {
			reach, _, err = features.Reach(ctx, e.Sets())
		}
		if err != nil {
			m.log.Warn("images are not grouped", "detector", d.Name, "error", err)
			return 0, "the training features cannot be read, and only equal images are in one group"
		}
		if m.reaches.known == nil || len(m.reaches.known) > 100 {
			m.reaches.known = map[string]float64{}
		}
		m.reaches.known[d.SHA256] = reach
	}
	if reach == 0 {
		return 0, "the training features are not found, and only equal images are in one group"
	}
	return reach, ""
}

// judgedBy returns the hashes of the files that served under a detector's name.
func (m *reviewRequests) judgedBy(ctx context.Context, d *pool.Loaded) (map[string]bool, error) {
	files := map[string]bool{d.SHA256: true}
	if m.learned == nil {
		return files, nil
	}
	v, err := m.learned.Versions(ctx, d.Name)
	for _, hash := range v.Hashes {
		files[hash] = true
	}
	return files, err
}

// queue answers GET /v1/queue: flagged images without a review, the strangest first,
// in groups of look-alikes. With first, the image of that verdict comes first, reviewed
// or not.
func (m *reviewRequests) queue(ctx context.Context, r *http.Request) (any, error) {
	limit := 20
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostGroups {
			return nil, refuse(http.StatusBadRequest, "limit=%s: it is a number from 1 to %d", text, mostGroups)
		}
	}
	d, err := used(m.detectors, r.URL.Query().Get("detector"))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	q := queue{Detector: d.Name, Groups: []group{}}
	list, err := m.waiting(ctx, d.Loaded, &q, r.URL.Query().Get("first"))
	if err != nil {
		return nil, asked(err)
	}
	ids, keys := make([]string, len(list)), make([]string, len(list))
	for i, v := range list {
		ids[i], keys[i] = v.ID, v.Image
	}
	known, err := m.store.Features(ctx, ids)
	if err != nil {
		return nil, asked(err)
	}
	rows := make([][]float32, len(list))
	for i, v := range list {
		if row := known[v.ID]; v.Model == d.Source.Fingerprint && len(row) == d.Dim() {
			rows[i] = row[:d.Heads[0].Dim()] // as in reach, without layers
		}
	}
	q.Reach, q.Note = m.reach(ctx, d.Loaded)
	end, err := m.judge.run(ctx)
	if err != nil {
		return nil, err
	}
	groups := features.LookAlikes(rows, keys, q.Reach, mostInGroup)
	end()
	for _, members := range groups[:min(limit, len(groups))] {
		var g group
		for _, i := range members {
			g.Images = append(g.Images, m.memory.record(list[i]))
		}
		q.Groups = append(q.Groups, g)
	}
	return q, nil
}

// waiting returns the images that wait, the strangest first, but for one that is to be
// the first.
func (m *reviewRequests) waiting(ctx context.Context, d *pool.Loaded, q *queue, first string) ([]store.Record, error) {
	files, err := m.judgedBy(ctx, d)
	if err != nil {
		return nil, err
	}
	yes, no := true, false
	var list []store.Record
	for skip := 0; ; skip += 2 * queued {
		some, err := m.store.List(ctx, store.Query{OOD: &yes, Reviewed: &no, Order: store.Strangest, Limit: 2 * queued, Skip: skip})
		if err != nil {
			return nil, err
		}
		for _, v := range some {
			if files[v.Detector] {
				list = append(list, v)
			}
		}
		if q.More = len(list) > queued; q.More || len(some) < 2*queued {
			break
		}
	}
	list = list[:min(queued, len(list))]
	q.Waiting = len(list)
	if first == "" {
		return list, nil
	}
	v, err := m.store.Get(ctx, first)
	if err != nil || !files[v.Detector] {
		return list, err
	}
	list = slices.DeleteFunc(list, func(other store.Record) bool { return other.ID == first })
	return slices.Insert(list, 0, v), nil
}

// reasonsOf says why an image of the store was judged so, by the detector that it would
// be judged by now; nil where its features are not known.
func (m *reviewRequests) reasonsOf(ctx context.Context, v *store.Record) *detector.Explanation {
	for _, name := range m.detectors.Names() {
		d := m.detectors.Use(name)
		reasons := m.reasonsBy(ctx, d.Loaded, v)
		d.Release()
		if reasons != nil {
			return reasons
		}
	}
	return nil
}

func (m *reviewRequests) reasonsBy(ctx context.Context, d *pool.Loaded, v *store.Record) *detector.Explanation {
	if files, err := m.judgedBy(ctx, d); err != nil || !files[v.Detector] {
		return nil
	}
	var row []float32
	if v.Model == d.Source.Fingerprint {
		known, err := m.store.Features(ctx, []string{v.ID})
		if err == nil {
			row = known[v.ID]
		}
	}
	if row == nil {
		data, err := m.memory.image(v.Image)
		if err != nil {
			return nil
		}
		if row, err = d.Features(ctx, data); err != nil {
			return nil
		}
	}
	if len(row) != d.Dim() {
		return nil
	}
	verdicts, err := d.Judge(ctx, row)
	if err != nil {
		return nil
	}
	o := []outcome{{rowVerdict: rowVerdict{verdicts[0], row}}}
	m.judge.addReasons(ctx, d, o)
	return o[0].reasons
}

// trainingImage answers GET /v1/detectors/NAME/images/ROW: a small picture of a training
// image, by its row among the training features.
func (m *reviewRequests) trainingImage(ctx context.Context, r *http.Request) (any, error) {
	d, err := used(m.detectors, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	missing := refuse(http.StatusNotFound, "this training image is not found")
	row, err := strconv.Atoi(r.PathValue("row"))
	e, failed := d.Explainer(ctx)
	if err != nil || failed != nil {
		return nil, missing
	}
	img, err := e.Picture(row)
	if err != nil {
		return nil, missing
	}
	end, err := m.judge.run(ctx)
	if err != nil {
		return nil, err
	}
	small := report.Thumbnail(img)
	end()
	if small == nil {
		return nil, missing
	}
	return file{kind: "image/jpeg", data: small}, nil
}

// mostScores is how many of the newest verdicts say what a threshold would flag.
const mostScores = 1000

// thresholds answers GET /v1/detectors/NAME/thresholds: what other thresholds would flag
// of the newest images, and how many false alarms they would give, as the slider of
// detect's page says.
func (m *reviewRequests) thresholds(ctx context.Context, r *http.Request) (any, error) {
	d, err := used(m.detectors, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	v := report.VerdictsOf(d.Detector, d.ByClass != nil || len(d.Folds) > 0)
	v.Scores = []float64{}
	if m.store != nil {
		list, err := m.store.List(ctx, store.Query{Detector: d.SHA256, Limit: mostScores})
		if err != nil {
			return nil, asked(err)
		}
		for _, one := range list {
			score := one.Score
			if v.ByPValue {
				score = one.PValue
			}
			if !math.IsNaN(score) {
				v.Scores = append(v.Scores, score)
			}
		}
		slices.Sort(v.Scores)
	}
	return struct {
		Detector string          `json:"detector"`
		Slider   json.RawMessage `json:"slider"`
	}{d.Name, report.Thresholds(&v)}, nil
}
