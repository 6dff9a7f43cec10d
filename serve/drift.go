package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
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
	alpha  float64
	store  store.Store // or nil
	log    *slog.Logger
	watch  sync.Mutex // one update at a time
	shared time.Time  // when the histories in the store were read last
	failed time.Time  // when the log last said that drift is not updated; zero when it is

	alarmsOf map[string]alarmsOf // by the key of the state; of whoever calls alarms

	allowed   float64  // share of images that may be flagged; 0 is that of the detector
	names     []string // of the sources that are watched by themselves; nil is all
	unwatched func()   // is told of each image that is not

	mu      sync.Mutex
	sources map[sourceKey]*source
	others  int       // images of sources that are not watched by themselves, since the start
	told    time.Time // when the log last said so
}

// otherSources is the name of those that are not watched by themselves: no client can give it.
const otherSources = "(other sources)"

type sourceKey struct{ detector, source string } // the hash of a detector's file, and where images come from

// source is one source of images for one detector.
type source struct {
	name        string // of the detector
	version     string
	calibration func() evaluation.DriftCalibration
	waiting     []scored // to be seen
	promised    float64  // share of images that may be flagged; 0 where the detector promises none
	beside      beside
	last        time.Time // when an image came
	state       *evaluation.DriftWatch
	sum         [sha256.Size]byte // of the state in the store
	history     evaluation.DriftHistory
	noted       time.Time // when the history was stored last
	unsaved     bool      // the history has what is not stored
}

type scored struct {
	class string
	score float64
	ood   bool
}

// beside is what is known of a source beside the martingales.
type beside struct {
	Flagged *evaluation.FlaggedWatch `json:"flagged,omitempty"`
	// Since is when alarms were raised: "" of all images, of a class, or [tooMany].
	Since        map[string]time.Time `json:"since,omitempty"`
	Acknowledged *acknowledged        `json:"acknowledged,omitempty"`
}

// tooMany is the alarm that more images are flagged than promised; no class has this name.
const tooMany = "\x00flagged"

// acknowledged is who has seen an alarm.
type acknowledged struct {
	By   string    `json:"by"`
	Time time.Time `json:"time"`
}

// What the keys of states and of histories begin with.
const (
	driftKey   = "drift/"
	historyKey = "evidence/"
	besideKey  = "beside/"
)

const (
	noteEvery   = time.Minute     // between two times that a history is stored
	driftEvery  = 5 * time.Second // between two updates
	maxSources  = 64              // beyond them sources are watched together
	fewImages   = 100             // a source with fewer makes room for another one sooner
	idleFew     = 10 * time.Minute
	idleLong    = 24 * time.Hour
	maxUnseen   = 100_000 // of one source
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
	besides, err := d.store.States(ctx, besideKey)
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
		if s := d.sources[sourceKey{hash, name}]; s != nil || !d.room(time.Now()) || len(d.names) > 0 && !slices.Contains(d.names, name) && name != otherSources {
			return s
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
	for key, value := range besides {
		if s := sourceOf(strings.TrimPrefix(key, besideKey)); s != nil {
			var b beside
			if err := json.Unmarshal(value, &b); err != nil {
				return err
			}
			s.beside = b
		}
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

// of returns a source of a detector. Where there are too many, and for one that is not among
// those that are named, it is that of all others. d.mu is held.
func (d *drifts) of(l *pool.Loaded, name string) *source {
	if s := d.sources[sourceKey{l.SHA256, name}]; s != nil {
		return s
	}
	if name != otherSources && (len(d.names) > 0 && !slices.Contains(d.names, name) || !d.room(time.Now())) {
		return d.of(l, otherSources)
	}
	s := &source{
		name: l.Name, version: l.Version(), calibration: func() evaluation.DriftCalibration { return evaluation.DriftCalibrationOf(l.Detector) },
		promised: cmp.Or(d.allowed, 1-l.TargetTPR), last: time.Now(),
	}
	if !(s.promised > 0 && s.promised < 1) {
		s.promised = 0
	}
	d.sources[sourceKey{l.SHA256, name}] = s
	if n := len(l.Detector.CalibrationScores); d.log != nil && evaluation.FewForDrift(n) {
		d.log.Info("with so few calibration images, a small part of images that is different from the first one on may never raise the alarm of drift", "detector", l.Name, "source", name, "calibration_images", n)
	}
	return s
}

// room tells whether there is room for another source, and makes it where one has been idle:
// after a day, or after some minutes where it had few images. d.mu is held.
func (d *drifts) room(now time.Time) bool {
	var idlest sourceKey
	single := 0
	for key := range d.sources {
		if key.source != otherSources {
			single++
		}
	}
	if single < maxSources {
		return true
	}
	for key, s := range d.sources {
		idle := now.Sub(s.last)
		few := s.state == nil || s.state.All().Steps() < fewImages
		if len(s.waiting) > 0 || s.unsaved || key.source == otherSources || idle < idleFew || !few && idle < idleLong {
			continue
		}
		if d.sources[idlest] == nil || s.last.Before(d.sources[idlest].last) {
			idlest = key
		}
	}
	if d.sources[idlest] == nil {
		return false
	}
	delete(d.sources, idlest) // its state stays in the store, and is read when it comes again
	return true
}

func newDrifts(o *Options, unwatched func()) *drifts {
	return &drifts{alpha: o.Alpha, allowed: o.MaxFalseAlarms, names: o.Sources, store: o.Store, log: o.Log, unwatched: unwatched, sources: map[sourceKey]*source{}}
}

// add notes the verdict on an image, to be seen by the next update.
func (d *drifts) add(l *pool.Loaded, name string, v pipeline.Verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.of(l, name)
	alone := s == d.sources[sourceKey{l.SHA256, name}]
	if full := len(s.waiting) == maxUnseen; !alone || full {
		d.unwatched()
		d.others++
		if now := time.Now(); now.Sub(d.told) > time.Hour && (len(d.names) == 0 || full) {
			d.told = now
			d.log.Error("there are too many sources to watch each by itself: images of this one and of others are watched together. Name those that count by --source", "source", name, "sources", maxSources, "images", d.others)
		}
		if full {
			return
		}
	}
	s.last = time.Now()
	s.waiting = append(s.waiting, scored{v.Class, v.Score, v.OOD})
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
	var failed []string // sources
	var why error
	for _, key := range keys {
		ctx, cancel := context.WithTimeout(ctx, driftUpdate)
		if err := d.see(ctx, key); err != nil {
			failed, why = append(failed, key.source), err
		}
		d.note(ctx, key, last)
		cancel()
	}
	if now := time.Now(); why != nil && (last || now.Sub(d.failed) > noteEvery) {
		d.failed = now
		d.log.Error("the drift of sources is not updated; their images wait", "sources", failed, "error", why)
	} else if why == nil {
		d.failed = time.Time{}
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
	raised, err := d.changeBeside(ctx, key, s, func(b *beside) (raised []string) {
		if s.promised > 0 && (b.Flagged == nil || b.Flagged.Promised() != s.promised) {
			b.Flagged = evaluation.NewFlaggedWatch(d.alpha, s.promised)
		}
		for _, v := range seen {
			if b.Flagged != nil && b.Flagged.Add(v.ood).Now {
				raised = append(raised, tooMany)
			}
		}
		for _, alarm := range slices.Concat(alarms, raised) {
			if b.Since == nil {
				b.Since = map[string]time.Time{}
			}
			b.Since[alarm], b.Acknowledged = time.Now().UTC(), nil
		}
		return raised
	})
	if err != nil {
		d.log.Error("the share of flagged images was not counted", "source", key.source, "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for range raised {
		d.log.Error("MORE ARE FLAGGED THAN PROMISED", "detector", s.name, "source", key.source, "flagged", s.beside.Flagged.Flagged(), "images", s.beside.Flagged.Steps(), "promised", s.promised, "chance_without_cause", d.alpha)
	}
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

// changeBeside changes what is known of a source beside its martingales, in the store if there
// is one. do may be called again.
func (d *drifts) changeBeside(ctx context.Context, key sourceKey, s *source, do func(*beside) []string) (raised []string, err error) {
	var next beside
	if d.store != nil {
		err = store.UpdateValue(ctx, d.store, besideKey+key.detector+"/"+key.source, func(b *beside) error {
			raised = do(b)
			next = *b
			return nil
		})
		if err != nil {
			return nil, err
		}
	} else {
		next = s.beside
		raised = do(&next)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.beside = next
	return raised, nil
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

// evidenceOf is the state of a test in JSON.
type evidenceOf struct {
	Images    uint64  `json:"images"`
	LogWealth float64 `json:"log_wealth"`
	Threshold float64 `json:"threshold"` // that raises the alarm
	Alarm     bool    `json:"alarm"`
	RaisedAt  uint64  `json:"raised_at,omitempty"` // at which image
}

// test is one of drift, or of the share of flagged images.
type test interface {
	Steps() uint64
	LogWealth() float64
	Threshold() float64
	RaisedAt() uint64
}

func stateOf(t test) evidenceOf {
	return evidenceOf{t.Steps(), t.LogWealth(), t.Threshold(), t.RaisedAt() > 0, t.RaisedAt()}
}

// driftOf is the state of one martingale in JSON.
type driftOf struct {
	Class string `json:"class,omitempty"` // "" is all images together
	evidenceOf
}

// sourceDrift is the state of one source in JSON.
type sourceDrift struct {
	Detector string    `json:"detector"`
	Version  string    `json:"version"`
	Source   string    `json:"source"`
	Waiting  int       `json:"waiting"` // images that are not seen yet
	All      *driftOf  `json:"all"`     // null before the first update
	Classes  []driftOf `json:"classes"` // those with images

	Flagged      *flaggedOf    `json:"flagged"` // null where the detector promises no share, and before the first update
	Acknowledged *acknowledged `json:"acknowledged,omitempty"`
	Alarms       []alarmOf     `json:"alarms"`
}

// flaggedOf is the state of the watch over the share of flagged images in JSON.
type flaggedOf struct {
	evidenceOf
	Flagged  uint64  `json:"flagged"`
	Promised float64 `json:"promised"`
}

// Share is that of the flagged images, and Most the one that is promised, for people.
func (f *flaggedOf) Share() string { return percent(int(f.Flagged), int(f.Images)) }
func (f *flaggedOf) Most() string  { return fmt.Sprintf("%.3g%%", 100*f.Promised) }

// alarmOf is an alarm that is raised.
type alarmOf struct {
	Kind  string     `json:"kind"` // drift, or flagged
	Class string     `json:"class,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Text  string     `json:"text"`
}

// Evidence is how much there is of what raises an alarm, for people.
func (s sourceDrift) Evidence() string {
	return fmt.Sprintf("%.0f%%", 100*max(0, min(1, s.All.LogWealth/s.All.Threshold)))
}

// alarms gathers the alarms of a source.
func (s *sourceDrift) alarms(since map[string]time.Time) {
	s.Alarms = []alarmOf{}
	add := func(key, kind, class, text string) {
		a := alarmOf{Kind: kind, Class: class, Text: text}
		if at, ok := since[key]; ok {
			a.Since = &at
		}
		s.Alarms = append(s.Alarms, a)
	}
	if s.Flagged != nil && s.Flagged.Alarm {
		add(tooMany, "flagged", "", fmt.Sprintf("%s of %s flagged, and %.3g%% are promised", percent(int(s.Flagged.Flagged), int(s.Flagged.Images)), plural(int(s.Flagged.Images), "image was", "images were"), 100*s.Flagged.Promised))
	}
	if s.All != nil && s.All.Alarm {
		add("", "drift", "", fmt.Sprintf("the images are no longer like the calibration images, from the image %d on at the latest", s.All.RaisedAt))
	}
	for _, class := range s.Classes {
		if class.Alarm {
			add(class.Class, "drift", class.Class, fmt.Sprintf("the images that are called %s are no longer like those of before, from the image %d of them on at the latest", class.Class, class.RaisedAt))
		}
	}
}

// list returns the states of all sources.
func (d *drifts) list() []sourceDrift {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []sourceDrift{}
	for key, s := range d.sources {
		one := sourceDrift{Detector: s.name, Version: s.version, Source: key.source, Waiting: len(s.waiting), Classes: []driftOf{}, Acknowledged: s.beside.Acknowledged}
		if s.state != nil {
			one.All = &driftOf{evidenceOf: stateOf(s.state.All())}
			for _, class := range s.calibration().Classes {
				if m := s.state.Class(class); m != nil && m.Steps() > 0 {
					one.Classes = append(one.Classes, driftOf{class, stateOf(m)})
				}
			}
		}
		if f := s.beside.Flagged; f != nil {
			one.Flagged = &flaggedOf{stateOf(f), f.Flagged(), f.Promised()}
		}
		one.alarms(s.beside.Since)
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
	together() int
	reset(ctx context.Context, detector, source, by string) error
	acknowledge(ctx context.Context, detector, source, by string) error
	during(from, to time.Time, detectors ...string) []sourceHistory
}

// together is how many images came of sources that are not watched by themselves, since the
// start or since their tests began.
func (d *drifts) together() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.others
	for key, s := range d.sources {
		if key.source == otherSources && s.state != nil {
			n = max(n, int(s.state.All().Steps()))
		}
	}
	return n
}

// driftRequests are the requests about drift.
type driftRequests struct {
	alpha     float64
	watch     watch
	counts    counter
	detectors detectors
	acted     acted
}

// list answers GET /v1/drift.
func (d *driftRequests) list(context.Context, *http.Request) (any, error) {
	return map[string]any{"chance_without_cause": d.alpha, "sources": d.watch.list(), "watched_together": d.watch.together()}, nil
}

// errNoSource is for who names a source that is not watched.
var errNoSource = refuse(http.StatusNotFound, "no such source of that detector is watched")

// reset answers POST /v1/drift/reset: the alarms of a source have been dealt with, and new
// tests begin.
func (d *driftRequests) reset(ctx context.Context, r *http.Request) (any, error) {
	return d.deal(ctx, r, "drift/reset", d.watch.reset)
}

// acknowledge answers POST /v1/drift/acknowledge: somebody has seen the alarms of a source,
// which go on.
func (d *driftRequests) acknowledge(ctx context.Context, r *http.Request) (any, error) {
	return d.deal(ctx, r, "drift/acknowledge", d.watch.acknowledge)
}

// deal deals with the alarms of the source of a detector that a request must name.
func (d *driftRequests) deal(ctx context.Context, r *http.Request, what string, how func(ctx context.Context, detector, source, by string) error) (any, error) {
	detector, source := r.URL.Query().Get("detector"), r.URL.Query().Get("source")
	if detector == "" || source == "" {
		return nil, refuse(http.StatusBadRequest, "source and detector are needed: no alarm of another camera is dismissed")
	}
	if err := how(ctx, detector, source, byOf(ctx)); err != nil {
		return nil, asked(err)
	}
	if err := d.acted.did(ctx, what, detector+", "+source); err != nil {
		return nil, err
	}
	return d.list(ctx, r)
}

// reset begins new tests of a source.
func (d *drifts) reset(ctx context.Context, detector, name, _ string) error {
	d.update(ctx, false)
	return d.each(detector, name, func(key sourceKey, s *source) error {
		var failed error
		if s.state != nil {
			next, sum, err := d.change(ctx, key, s, s.state, (*evaluation.DriftWatch).Reset)
			if failed = err; err == nil {
				d.mu.Lock()
				s.state, s.sum = next, sum
				d.mu.Unlock()
			}
		}
		_, err := d.changeBeside(ctx, key, s, func(b *beside) []string {
			if b.Flagged != nil {
				b.Flagged.Reset()
			}
			b.Since, b.Acknowledged = nil, nil
			return nil
		})
		return errors.Join(failed, err)
	})
}

// acknowledge notes who has seen the alarms of a source.
func (d *drifts) acknowledge(ctx context.Context, detector, name, by string) error {
	return d.each(detector, name, func(key sourceKey, s *source) error {
		_, err := d.changeBeside(ctx, key, s, func(b *beside) []string {
			b.Acknowledged = &acknowledged{by, time.Now().UTC()}
			return nil
		})
		return err
	})
}

// each does something with the watched versions of a source, while none is updated.
func (d *drifts) each(detector, name string, do func(sourceKey, *source) error) (err error) {
	d.watch.Lock()
	defer d.watch.Unlock()
	d.mu.Lock()
	versions := map[sourceKey]*source{}
	for key, s := range d.sources {
		if s.name == detector && key.source == name {
			versions[key] = s
		}
	}
	d.mu.Unlock()
	if len(versions) == 0 {
		return errNoSource
	}
	for key, s := range versions {
		err = errors.Join(err, do(key, s))
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
