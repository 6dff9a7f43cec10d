package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// drifts watches the scores of each source for a change. Where there is a store, the
// state is there: it outlives a restart, and replicas share it.
type drifts struct {
	alpha float64
	store store.Store // or nil
	log   *slog.Logger
	watch sync.Mutex // one update at a time
	// shared is when the histories in the store were read last.
	shared time.Time

	alarmsOf map[string]alarmsOf // by the key of the state; of whoever calls alarms

	mu      sync.Mutex
	sources map[sourceKey]*source
	missed  int // images that no martingale has seen
}

type sourceKey struct{ detector, source string } // the hash of a detector's file, and where images come from

// source is one source of images for one detector.
type source struct {
	name        string // of the detector
	version     string
	calibration func() evaluation.DriftCalibration
	waiting     []scored // to be seen
	state       *evaluation.DriftWatch
	sum         [sha256.Size]byte // of the state in the store
	history     evaluation.DriftHistory
	noted       time.Time // when the history was stored last
	unsaved     bool      // the history has what is not stored
}

type scored struct {
	class string
	score float64
}

// What the keys of states and of histories begin with.
const (
	driftKey   = "drift/"
	historyKey = "evidence/"
)

const (
	noteEvery   = time.Minute     // between two times that a history is stored
	driftEvery  = 5 * time.Second // between two updates
	maxSources  = 64              // beyond them images are not watched
	maxUnseen   = 100_000         // of one source
	driftUpdate = 10 * time.Second
)

// share takes over the states that are in the store for these detectors: those of before
// a restart, and of other replicas.
func (d *drifts) share(ctx context.Context, open []*pool.Loaded) error {
	if d.store == nil {
		return nil
	}
	values, err := d.store.States(ctx, driftKey)
	if err != nil {
		return err
	}
	d.watch.Lock()
	defer d.watch.Unlock()
	histories := map[string][]byte{}
	if at := time.Now(); at.Sub(d.shared) >= noteEvery { // others store them no more often
		for _, l := range open {
			some, err := d.store.States(ctx, historyKey+l.SHA256+"/")
			if err != nil {
				return err
			}
			maps.Copy(histories, some)
		}
		d.shared = at
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	sourceOf := func(key string) *source { // nil if it is of no detector that is open
		hash, name, _ := strings.Cut(key, "/")
		at := slices.IndexFunc(open, func(l *pool.Loaded) bool { return l.SHA256 == hash })
		if at < 0 {
			return nil
		}
		return d.of(open[at], name)
	}
	for key, value := range values {
		s, sum := sourceOf(strings.TrimPrefix(key, driftKey)), sha256.Sum256(value)
		if s == nil || s.sum == sum {
			continue
		}
		var state evaluation.DriftWatch
		if err := state.UnmarshalBinary(value); err != nil {
			return err
		}
		s.state, s.sum = &state, sum
	}
	for key, value := range histories {
		if s := sourceOf(strings.TrimPrefix(key, historyKey)); s != nil {
			var other evaluation.DriftHistory
			if err := other.UnmarshalBinary(value); err != nil {
				d.log.Warn("the evidence of drift over time cannot be read, and is begun anew", "source", key, "error", err)
				continue
			}
			s.history.Merge(time.Now(), &other)
		}
	}
	return nil
}

// of returns a source of a detector, nil where there are too many. d.mu is held.
func (d *drifts) of(l *pool.Loaded, name string) *source {
	key := sourceKey{l.SHA256, name}
	s := d.sources[key]
	if s == nil && len(d.sources) < maxSources {
		s = &source{name: l.Name, version: l.Version(), calibration: func() evaluation.DriftCalibration { return evaluation.DriftCalibrationOf(l.Detector) }}
		d.sources[key] = s
		if n := len(l.Detector.CalibrationScores); d.log != nil && evaluation.FewForDrift(n) {
			d.log.Info("with so few calibration images, a small part of images that is different from the first one on may never raise the alarm of drift", "detector", l.Name, "source", name, "calibration_images", n)
		}
	}
	return s
}

func newDrifts(alpha float64, s store.Store, log *slog.Logger) *drifts {
	return &drifts{alpha: alpha, store: s, log: log, sources: map[sourceKey]*source{}}
}

// add notes the verdict on an image, to be seen by the next update.
func (d *drifts) add(l *pool.Loaded, name string, v pipeline.Verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.of(l, name)
	if s == nil || len(s.waiting) == maxUnseen {
		d.missed++
		return
	}
	s.waiting = append(s.waiting, scored{v.Class, v.Score})
}

// run updates until ctx is cancelled, and once more then.
func (d *drifts) run(ctx context.Context, open detectors) {
	every(ctx, driftEvery, func() {
		d.takeOver(ctx, open)
		d.update(context.WithoutCancel(ctx), false)
	})
	d.update(context.WithoutCancel(ctx), true)
}

// takeOver is share, whose errors are logged.
func (d *drifts) takeOver(ctx context.Context, open detectors) {
	ctx, cancel := context.WithTimeout(ctx, driftUpdate)
	defer cancel()
	var used []*pool.Loaded
	for _, name := range open.Names() {
		one := open.Use(name)
		defer one.Release()
		used = append(used, one.Loaded)
	}
	if err := d.share(ctx, used); err != nil && ctx.Err() == nil {
		d.log.Debug("the states of drift cannot be read now", "error", err)
	}
}

// update lets the martingales see what waits. The last time it also stores the histories.
func (d *drifts) update(ctx context.Context, last bool) {
	d.watch.Lock()
	defer d.watch.Unlock()
	d.mu.Lock()
	var keys []sourceKey
	for key, s := range d.sources {
		if len(s.waiting) > 0 || s.unsaved {
			keys = append(keys, key)
		}
	}
	d.mu.Unlock()
	for _, key := range keys {
		ctx, cancel := context.WithTimeout(ctx, driftUpdate)
		if err := d.see(ctx, key); err != nil {
			d.log.Error("the drift of a source was not updated; its images wait", "source", key.source, "error", err)
		}
		d.note(ctx, key, last)
		cancel()
	}
}

// see lets the martingales of one source see what waits.
func (d *drifts) see(ctx context.Context, key sourceKey) error {
	d.mu.Lock()
	s := d.sources[key]
	seen, state := slices.Clone(s.waiting), s.state
	d.mu.Unlock()
	if len(seen) == 0 {
		return nil
	}
	var alarms []string
	var most float64 // evidence
	next, sum, err := d.change(ctx, key, s, state, func(next *evaluation.DriftWatch) {
		most, alarms = 0, nil
		for _, v := range seen {
			all, class := next.Add(v.class, v.score)
			most = max(most, all.LogWealth/next.All().Threshold())
			if all.Now {
				alarms = append(alarms, "")
			}
			if class.Now {
				alarms = append(alarms, v.class)
			}
		}
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.state, s.sum, s.waiting = next, sum, slices.Delete(s.waiting, 0, len(seen))
	s.history.Add(time.Now(), most)
	s.unsaved = true
	if len(alarms) > 0 {
		s.noted = time.Time{} // the history is stored at once
	}
	for _, class := range alarms {
		d.log.Error("DRIFT: the images are no longer like the calibration images", "detector", s.name, "source", key.source, "class", class, "chance_without_cause", d.alpha)
	}
	return nil
}

// change changes the state of a source, in the store if there is one, and returns it with
// its hash. do may be called again.
func (d *drifts) change(ctx context.Context, key sourceKey, s *source, now *evaluation.DriftWatch, do func(*evaluation.DriftWatch)) (next *evaluation.DriftWatch, sum [sha256.Size]byte, err error) {
	change := func(old []byte) ([]byte, error) {
		next = evaluation.NewDriftWatch(d.alpha, s.calibration(), seed())
		if old != nil {
			if err := next.UnmarshalBinary(old); err != nil {
				return nil, err
			}
		}
		do(next)
		value, err := next.MarshalBinary()
		sum = sha256.Sum256(value)
		return value, err
	}
	if d.store != nil {
		err = d.store.UpdateState(ctx, driftKey+key.detector+"/"+key.source, change)
		return next, sum, err
	}
	var old []byte
	if now != nil {
		if old, err = now.MarshalBinary(); err != nil {
			return nil, sum, err
		}
	}
	_, err = change(old)
	return next, sum, err
}

// note stores the history of a source once in a while, or now; it is for looking.
func (d *drifts) note(ctx context.Context, key sourceKey, now bool) {
	d.mu.Lock()
	s := d.sources[key]
	due := s.unsaved && (now || time.Since(s.noted) >= noteEvery)
	d.mu.Unlock()
	if d.store == nil || !due {
		return
	}
	at := time.Now()
	err := d.store.UpdateState(ctx, historyKey+key.detector+"/"+key.source, func(old []byte) ([]byte, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		var other evaluation.DriftHistory
		if old != nil && other.UnmarshalBinary(old) == nil { // a damaged one is replaced
			s.history.Merge(at, &other)
		}
		return s.history.MarshalBinary()
	})
	if err != nil {
		d.log.Debug("the evidence of drift over time is not stored now", "source", key.source, "error", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.noted, s.unsaved = at, false
}

// during returns the evidence of each source of these detectors, by their hashes, from one
// time to another.
func (d *drifts) during(from, to time.Time, hashes ...string) []sourceHistory {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []sourceHistory{}
	for key, s := range d.sources {
		if !slices.Contains(hashes, key.detector) {
			continue
		}
		points := slices.DeleteFunc(s.history.Since(from), func(p evaluation.DriftPoint) bool { return !p.Start.Before(to) })
		if len(points) > 0 {
			all = append(all, sourceHistory{s.name, s.version, key.source, points})
		}
	}
	slices.SortFunc(all, func(a, b sourceHistory) int {
		return slices.Compare([]string{a.Detector, a.Source, a.Version}, []string{b.Detector, b.Source, b.Version})
	})
	return all
}

// sourceHistory is the evidence of one source over time in JSON.
type sourceHistory struct {
	Detector string                  `json:"detector"`
	Version  string                  `json:"version"`
	Source   string                  `json:"source"`
	Points   []evaluation.DriftPoint `json:"points"`
}

// seed is a random one: whoever knows it could tell how ties are broken.
func seed() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// driftOf is the state of one martingale in JSON.
type driftOf struct {
	Class     string  `json:"class,omitempty"` // "" is all images together
	Images    uint64  `json:"images"`
	LogWealth float64 `json:"log_wealth"`
	Threshold float64 `json:"threshold"` // that raises the alarm
	Alarm     bool    `json:"alarm"`
	RaisedAt  uint64  `json:"raised_at,omitempty"` // at which image
}

func stateOf(class string, m *evaluation.Martingale) driftOf {
	return driftOf{class, m.Steps(), m.LogWealth(), m.Threshold(), m.RaisedAt() > 0, m.RaisedAt()}
}

// sourceDrift is the state of one source in JSON.
type sourceDrift struct {
	Detector string    `json:"detector"`
	Version  string    `json:"version"`
	Source   string    `json:"source"`
	Waiting  int       `json:"waiting"` // images that are not seen yet
	All      *driftOf  `json:"all"`     // null before the first update
	Classes  []driftOf `json:"classes"` // those with images
}

// Evidence is how much there is of what raises an alarm, for people.
func (s sourceDrift) Evidence() string {
	return fmt.Sprintf("%.0f%%", 100*max(0, min(1, s.All.LogWealth/s.All.Threshold)))
}

// Raised names what alarms are raised of; "" for none.
func (s sourceDrift) Raised() string {
	var raised []string
	if s.All != nil && s.All.Alarm {
		raised = append(raised, "all images")
	}
	for _, class := range s.Classes {
		if class.Alarm {
			raised = append(raised, class.Class)
		}
	}
	return strings.Join(raised, ", ")
}

// list returns the states of all sources.
func (d *drifts) list() []sourceDrift {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []sourceDrift{}
	for key, s := range d.sources {
		one := sourceDrift{s.name, s.version, key.source, len(s.waiting), nil, []driftOf{}}
		if s.state != nil {
			state := stateOf("", s.state.All())
			one.All = &state
			for _, class := range s.calibration().Classes {
				if m := s.state.Class(class); m != nil && m.Steps() > 0 {
					one.Classes = append(one.Classes, stateOf(class, m))
				}
			}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b sourceDrift) int {
		return slices.Compare([]string{a.Detector, a.Source, a.Version}, []string{b.Detector, b.Source, b.Version})
	})
	return all
}

// watch is what requests ask of the tests for drift.
type watch interface {
	list() []sourceDrift
	reset(context.Context) error
	during(from, to time.Time, detectors ...string) []sourceHistory
}

// driftRequests are the requests about drift.
type driftRequests struct {
	alpha     float64
	watch     watch
	counts    counter
	detectors detectors
}

// list answers GET /v1/drift.
func (d *driftRequests) list(context.Context, *http.Request) (any, error) {
	return map[string]any{"chance_without_cause": d.alpha, "sources": d.watch.list()}, nil
}

// reset answers POST /v1/drift/reset: all alarms have been dealt with, and new tests
// begin.
func (d *driftRequests) reset(ctx context.Context, r *http.Request) (any, error) {
	if err := d.watch.reset(ctx); err != nil {
		return nil, asked(err)
	}
	return d.list(ctx, r)
}

// reset begins new tests.
func (d *drifts) reset(ctx context.Context) (err error) {
	d.update(ctx, false)
	d.watch.Lock()
	defer d.watch.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, s := range d.sources {
		if s.state == nil {
			continue
		}
		next, sum, failed := d.change(ctx, key, s, s.state, (*evaluation.DriftWatch).Reset)
		if failed == nil {
			s.state, s.sum = next, sum
		}
		err = errors.Join(err, failed)
	}
	return err
}

// coursePart is one span of time of one source, beside what is to be expected if its
// images are like the calibration images.
type coursePart struct {
	Start    time.Time      `json:"start"`
	Detector string         `json:"detector"`
	Source   string         `json:"source"`
	Images   int            `json:"images"`
	OOD      int            `json:"ood"`
	MeanP    float64        `json:"mean_p_value"`
	Classes  map[string]int `json:"classes"`
	evaluation.ExpectedVerdicts
}

// Bounds of GET /v1/drift/course.
const (
	usualSpan = 24 * time.Hour
	maxParts  = 1000
)

// course answers GET /v1/drift/course: flagged images, p-values and classes of each
// source over time, with the intervals for images like the calibration images, and the
// evidence of drift. Of detectors that were replaced there is nothing.
func (d *driftRequests) course(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	name := q.Detector // here the name, as others may not know the hash
	if q.From.IsZero() {
		q.From = time.Now().Add(-usualSpan)
	}
	step, err := stepOf(r, time.Hour)
	if err != nil {
		return nil, err
	}
	to := q.To
	if to.IsZero() {
		to = time.Now()
	}
	if to.Sub(q.From) > maxParts*step {
		return nil, refuse(http.StatusBadRequest, "from and to may be %d steps apart", maxParts)
	}
	main, err := used(d.detectors, name)
	if err != nil {
		return nil, err
	}
	defer main.Release()
	q.Detector = main.SHA256
	counts, err := d.counts.Count(ctx, q, step)
	if err != nil {
		return nil, asked(err)
	}
	evidence := d.watch.during(q.From.Truncate(max(step, time.Hour)), to, main.SHA256)
	evidence = slices.DeleteFunc(evidence, func(h sourceHistory) bool { return q.Source != "" && h.Source != q.Source })
	return map[string]any{"parts": courseOf(main.Loaded, counts), "evidence": evidence}, nil
}

// courseOf puts the counts of all classes together.
func courseOf(d *pool.Loaded, counts []store.Count) []coursePart {
	parts := []coursePart{}
	for _, c := range counts {
		at := slices.IndexFunc(parts, func(p coursePart) bool { return p.Start.Equal(c.Start) && p.Source == c.Source })
		if at < 0 {
			at = len(parts)
			parts = append(parts, coursePart{Start: c.Start, Detector: d.Name, Source: c.Source, Classes: map[string]int{}})
		}
		p := &parts[at]
		p.MeanP += (c.MeanPValue - p.MeanP) * float64(c.N) / float64(p.Images+c.N)
		p.Images += c.N
		p.OOD += c.OOD
		p.Classes[c.Class] += c.N
	}
	for i := range parts {
		parts[i].ExpectedVerdicts = evaluation.ExpectVerdicts(d.Detector, parts[i].Images)
	}
	return parts
}
