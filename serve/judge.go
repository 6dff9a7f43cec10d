package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

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
	stored  bool
	err     error
	reasons *detector.Explanation // nil unless asked for
}

// one judges an image and remembers the verdict.
func (s *Server) one(ctx context.Context, main, shadow *pool.Loaded, source string, p picture) outcome {
	o := s.judge(ctx, main, shadow, p)
	if o.err == nil {
		o.stored = s.remember(ctx, main, o, source, p.data)
	}
	return o
}

// judge judges an image, unless the same is being judged already.
func (s *Server) judge(ctx context.Context, main, shadow *pool.Loaded, p picture) outcome {
	key := flightKey{main, sha256.Sum256(p.data)}
	o := outcome{id: cmp.Or(p.id, store.NewID()), name: p.name, sha256: hex.EncodeToString(key.hash[:])}
	used := []*pool.Loaded{main, shadow} // by the flight, which may go on without this request
	if shadow == nil {
		used = used[:1]
	}
	release := func() {
		for _, l := range used {
			l.Release()
		}
	}
	for _, l := range used {
		l.Retain()
	}
	var shared bool
	o.rowVerdict, shared, o.err = s.flights.Do(ctx, key, func(ctx context.Context, deliver func(rowVerdict, error)) {
		defer release()
		v, err := s.compute(ctx, main, p.data)
		deliver(v, err)
		if shadow == nil || err != nil {
			return
		}
		// Whoever asked has the answer and may send more: a shadow runs within the limit too.
		if end, err := s.places.run(ctx); err == nil {
			defer end()
			s.compare(ctx, main, shadow, hex.EncodeToString(key.hash[:]), p.data, v)
		}
	})
	if shared {
		release()
		s.metrics.shared.Inc()
	}
	s.metrics.judged(main.Name, o)
	return o
}

// compute judges an image. While many wait, the features of some are judged together.
func (s *Server) compute(ctx context.Context, d *pool.Loaded, data []byte) (rowVerdict, error) {
	defer s.rowsOf.Settle() // whatever comes of this: rows may wait for it
	row, verdict, err := s.features(ctx, d, data)
	if err != nil {
		return rowVerdict{}, err
	}
	v, err := verdict()
	return rowVerdict{v, row}, err
}

// features computes the features of an image as one of those that run, and lets them be
// judged.
func (s *Server) features(ctx context.Context, d *pool.Loaded, data []byte) (row []float32, verdict func() (pipeline.Verdict, error), err error) {
	start := time.Now()
	d.Coming.Add(1)
	end, err := s.places.run(ctx)
	d.Coming.Add(-1)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	s.metrics.stage("wait", start)
	start = time.Now()
	if row, err = d.Features(ctx, data); err != nil {
		return nil, nil, err
	}
	s.metrics.stage("features", start)
	return row, s.rowsOf.Add(d, row), nil
}

// judgeRows judges rows of features together.
func (s *Server) judgeRows(d *pool.Loaded, rows [][]float32) ([]pipeline.Verdict, error) {
	defer s.metrics.stage("verdict", time.Now())
	return d.Judge(context.Background(), slices.Concat(rows...)) // it takes milliseconds
}

// all judges the images of a request, each on its own.
func (s *Server) all(ctx context.Context, main, shadow *pool.Loaded, source string, pictures []picture) []outcome {
	outcomes := make([]outcome, len(pictures))
	if len(pictures) == 1 {
		outcomes[0] = s.one(ctx, main, shadow, source, pictures[0])
		return outcomes
	}
	var group sync.WaitGroup
	for i, p := range pictures {
		group.Go(func() { outcomes[i] = s.one(ctx, main, shadow, source, p) })
	}
	group.Wait()
	return outcomes
}

// addReasons adds why images were judged as they were. Where that fails, the verdicts
// are answered without it, and the log says why.
func (s *Server) addReasons(ctx context.Context, d *pool.Loaded, outcomes []outcome) {
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
	all, err := s.reasons(ctx, d, rows, verdicts)
	if err != nil {
		id, _ := ctx.Value(requestID{}).(string)
		s.log.Warn("verdicts were not explained", "request", id, "detector", d.Name, "error", err)
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
func (s *Server) reasons(ctx context.Context, d *pool.Loaded, rows []float32, verdicts []pipeline.Verdict) ([]pipeline.Explanation, error) {
	e, err := d.Explainer(ctx)
	if err != nil {
		return nil, err
	}
	end, err := s.places.run(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	defer s.metrics.stage("explain", time.Now())
	return e.Explain(ctx, rows, verdicts)
}

// rows judges rows of features.
func (s *Server) rows(ctx context.Context, d *pool.Loaded, source string, rows []float32) ([]outcome, error) {
	end, err := s.places.run(ctx)
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
		s.metrics.judged(d.Name, o)
		outcomes[i] = o
	}
	s.rememberRows(ctx, d, outcomes, source)
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

func newShadows() *shadows { return &shadows{} }

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
func (s *Server) compare(ctx context.Context, main, shadow *pool.Loaded, hash string, data []byte, v rowVerdict) {
	row, err := v.features, error(nil)
	if !shadow.SharesFeatures(main) {
		row, err = shadow.Features(ctx, data)
	}
	var other []pipeline.Verdict
	if err == nil {
		other, err = shadow.Judge(ctx, row)
	}
	if err != nil {
		what := "error"
		if errors.Is(err, context.Canceled) {
			return
		}
		s.metrics.shadow(main.Name, what)
		s.log.Warn("the shadow has no verdict", "detector", main.Name, "error", err)
		return
	}
	w := other[0]
	switch {
	case v.OOD != w.OOD:
		s.metrics.shadow(main.Name, "ood")
	case v.Class != w.Class:
		s.metrics.shadow(main.Name, "class")
	default:
		s.metrics.shadow(main.Name, "agree")
		return
	}
	says := func(l *pool.Loaded, v pipeline.Verdict) opinion {
		return opinion{l.Name, l.Version(), v}
	}
	s.shadows.add(disagreement{time.Now(), hash, says(main, v.Verdict), says(shadow, w)})
}
