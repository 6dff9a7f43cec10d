package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// picture is an image that a request brought.
type picture struct {
	id   string // of its verdict; "" has one made
	name string // what the client calls it
	data []byte
}

// flightKey identifies equal work: the same bytes, judged by the same detector.
type flightKey struct {
	detector *pool.Loaded
	hash     [sha256.Size]byte
}

// rowVerdict is an image's verdict with its features.
type rowVerdict struct {
	pipeline.Verdict
	features []float32
}

// outcome is the answer for one image of a request: a verdict, or an error.
type outcome struct {
	id     string
	name   string
	sha256 string // "" for features that came without an image
	rowVerdict
	data    []byte // the image
	stored  bool
	err     error
	reasons *detector.Explanation // nil unless asked for
}

// judge judges images and features, as many at once as there are places, and has what
// it says remembered.
type judge struct {
	*places
	flights pool.Flight[flightKey, rowVerdict]
	rowsOf  pool.Gather[*pool.Loaded, []float32, pipeline.Verdict] // that wait to be judged
	shadows shadows
	judged  judgedImages
	memory  *memory
	metrics *metrics
	log     *slog.Logger
}

func newJudge(p *places, m *memory) *judge {
	j := &judge{places: p, memory: m, metrics: m.metrics, log: m.log}
	j.rowsOf.Most, j.rowsOf.Coming, j.rowsOf.Do = mostRows, func(d *pool.Loaded) int { return int(d.Coming.Load()) }, j.judgeRows
	return j
}

// seats are for a request, which must leave them.
func (j *judge) seats(ctx context.Context) *seats {
	return &seats{places: j.places, client: clientOf(ctx)}
}

// one judges an image, unless the same is being judged already.
func (j *judge) one(ctx context.Context, d *pool.Used, p picture) outcome {
	start := time.Now()
	key := flightKey{d.Loaded, sha256.Sum256(p.data)}
	o := outcome{id: cmp.Or(p.id, store.NewID()), name: p.name, sha256: hex.EncodeToString(key.hash[:]), data: p.data}
	d.Retain() // by the flight, which may go on without this request
	var shared bool
	o.rowVerdict, shared, o.err = j.flights.Do(ctx, key, func(ctx context.Context, deliver func(rowVerdict, error)) {
		defer d.Release()
		v, err := j.compute(ctx, d.Loaded, p.data)
		deliver(v, err)
		if d.Shadow == nil || err != nil {
			return
		}
		// Whoever asked has the answer and may send more: a shadow runs within the limit too.
		if end, err := j.decode(ctx, d.Cost(p.data)); err == nil {
			defer end()
			j.compare(ctx, d, o.sha256, p.data, v)
		}
	})
	if shared {
		d.Release()
		j.metrics.shared.Inc()
	}
	j.judged.add(d.Name, o.err != nil, start)
	j.metrics.judged(d.Name, o)
	return o
}

// compute judges an image. While many wait, the features of some are judged together.
func (j *judge) compute(ctx context.Context, d *pool.Loaded, data []byte) (rowVerdict, error) {
	defer j.rowsOf.Settle() // whatever comes of this: rows may wait for it
	row, verdict, err := j.features(ctx, d, data)
	if err != nil {
		return rowVerdict{}, err
	}
	v, err := verdict()
	return rowVerdict{v, row}, err
}

// comesSoon is within which time of decoding others may wait for an image, to be judged with it.
const comesSoon = 50 * time.Millisecond

// features computes the features of an image as one of those that run, and lets them be
// judged.
func (j *judge) features(ctx context.Context, d *pool.Loaded, data []byte) (row []float32, verdict func() (pipeline.Verdict, error), err error) {
	start := time.Now()
	cost, soon := d.Cost(data), int64(0)
	if cost.Time < comesSoon { // or those that are judged together would wait for large images
		soon = 1
	}
	d.Coming.Add(soon)
	end, err := j.decode(ctx, cost)
	d.Coming.Add(-soon)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if left, ok := errors.AsType[*preprocess.LeftBehind](err); ok {
			go func() { // it has its place until it ends
				<-left.Done
				end()
			}()
			return
		}
		end()
	}()
	j.metrics.stage("wait", start)
	start = time.Now()
	if row, err = d.Features(ctx, data); err != nil {
		return nil, nil, err
	}
	j.metrics.stage("features", start)
	return row, j.rowsOf.Add(d, row), nil
}

// judgeRows judges rows of features together.
func (j *judge) judgeRows(d *pool.Loaded, rows [][]float32) ([]pipeline.Verdict, error) {
	defer j.metrics.stage("verdict", time.Now())
	return d.Judge(context.Background(), slices.Concat(rows...)) // it takes milliseconds
}

// all judges the images of a request, each on its own, and remembers the verdicts.
func (j *judge) all(ctx context.Context, d *pool.Used, source string, pictures []picture) []outcome {
	outcomes := make([]outcome, len(pictures))
	parallel.Each(len(pictures), len(pictures), func(i int) {
		if outcomes[i] = j.one(ctx, d, pictures[i]); outcomes[i].err == nil {
			j.memory.remember(ctx, d.Loaded, source, outcomes[i:i+1])
		}
	})
	return outcomes
}

// addReasons adds why images were judged as they were. Where that fails, the verdicts
// are answered without it, and the log says why.
func (j *judge) addReasons(ctx context.Context, d *pool.Loaded, outcomes []outcome) {
	var rows []float32
	var verdicts []pipeline.Verdict
	var at []int
	for i, o := range outcomes {
		if o.err == nil {
			rows, verdicts, at = append(rows, o.features...), append(verdicts, o.Verdict), append(at, i)
		}
	}
	if len(at) == 0 {
		return
	}
	all, err := j.reasons(ctx, d, rows, verdicts)
	if err != nil {
		j.log.Warn("verdicts were not explained", "request", idOf(ctx), "detector", d.Name, "error", err)
		return
	}
	for i, e := range all {
		for k := range e.Nearest {
			if img := &e.Nearest[k].Image; !filepath.IsLocal(filepath.FromSlash(img.Path)) {
				img.Path = "" // it would name a folder of this machine
			}
		}
		outcomes[at[i]].reasons = &e
	}
}

// reasons explains verdicts, as one of the images that run.
func (j *judge) reasons(ctx context.Context, d *pool.Loaded, rows []float32, verdicts []pipeline.Verdict) ([]pipeline.Explanation, error) {
	e, err := d.Explainer(ctx)
	if err != nil {
		return nil, err
	}
	end, err := j.run(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	defer j.metrics.stage("explain", time.Now())
	return e.Explain(ctx, rows, verdicts)
}

// rows judges rows of features.
func (j *judge) rows(ctx context.Context, d *pool.Loaded, source string, rows []float32) ([]outcome, error) {
	end, err := j.run(ctx)
	if err != nil {
		return nil, err
	}
	verdicts, err := d.Judge(ctx, rows)
	end()
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(verdicts))
	for i, v := range verdicts {
		o := outcome{id: store.NewID(), rowVerdict: rowVerdict{v, slices.Clone(rows[i*d.Dim() : (i+1)*d.Dim()])}}
		j.metrics.judged(d.Name, o)
		outcomes[i] = o
	}
	j.memory.remember(ctx, d, source, outcomes)
	return outcomes, nil
}

// shadows keeps the images that a detector and its shadow last disagreed on.
type shadows struct {
	mu   sync.Mutex
	last []disagreement // oldest first
}

// maxDisagreements bounds what is kept.
const maxDisagreements = 100

// disagreement is an image of which two detectors say different things.
type disagreement struct {
	Time     time.Time `json:"time"`
	Image    string    `json:"image"` // SHA-256
	Detector opinion   `json:"detector"`
	Shadow   opinion   `json:"shadow"`
}

type opinion struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	detector.Verdict
}

func (s *shadows) add(d disagreement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) == maxDisagreements {
		s.last = slices.Delete(s.last, 0, 1)
	}
	s.last = append(s.last, d)
}

// answer answers GET /v1/shadows: them, the newest first.
func (s *shadows) answer(context.Context, *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]disagreement{}, s.last...)
	slices.Reverse(all)
	return map[string]any{"disagreements": all}, nil
}

// compare judges an image by the shadow too, and notes whether the two agree.
func (j *judge) compare(ctx context.Context, d *pool.Used, hash string, data []byte, v rowVerdict) {
	row, err := v.features, error(nil)
	if !d.Shadow.SharesFeatures(d.Loaded) {
		row, err = d.Shadow.Features(ctx, data)
	}
	var other []pipeline.Verdict
	if err == nil {
		other, err = d.Shadow.Judge(ctx, row)
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	if err != nil {
		j.metrics.shadow(d.Name, "error")
		j.log.Warn("the shadow has no verdict", "detector", d.Name, "error", err)
		return
	}
	w := other[0]
	switch {
	case v.OOD != w.OOD:
		j.metrics.shadow(d.Name, "ood")
	case v.Class != w.Class:
		j.metrics.shadow(d.Name, "class")
	default:
		j.metrics.shadow(d.Name, "agree")
		return
	}
	says := func(l *pool.Loaded, v pipeline.Verdict) opinion {
		return opinion{l.Name, l.Version(), v}
	}
	j.shadows.add(disagreement{time.Now(), hash, says(d.Loaded, v.Verdict), says(d.Shadow, w)})
}
