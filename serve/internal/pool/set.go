package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Named is a detector file and the name that requests call it by.
type Named struct{ Name, File string }

// Options says which detectors are open, and how.
type Options struct {
	// Detectors are these detectors; the first is that of requests that name none.
	Detectors []Named
	// Shadows are others, each run beside the detector with its name.
	Shadows []Named
	// Load loads a detector file; nil is detector.Load.
	Load func(file string) (*detector.Detector, error)
	// Model is the folder of the backbone of all of them; "" has each one's found.
	Model string
	// Backbone says where backbones run, and what an image may take.
	Backbone extractor.Options
	Log      *slog.Logger // nil logs nothing
	// Changed is called after each attempt to replace a detector or shadow.
	Changed func(name string, shadow bool, err error)
}

// run is how one image is extracted. Callers bring the concurrency.
func (o *Options) run() extractor.Options {
	return extractor.Options{Workers: 1, Batch: 1, MaxPixels: o.Backbone.MaxPixels, ImageTimeout: o.Backbone.ImageTimeout, NoHash: true}
}

// Set is the detectors that are open.
type Set struct {
	opts    Options
	changes sync.Mutex // one change at a time

	mu        sync.Mutex
	places    []*place
	backbones []*backbone
}

// place is where a detector is, one after the other.
type place struct {
	Named
	shadow bool
	now    *Loaded
	other  string // file of the detector that Replace put here; "" for File; guarded by Set.changes
	stamp  string // of the file that was tried last; guarded by Set.changes
}

// backbone is open once for all detectors of the same features.
type backbone struct {
	extractor.Backbone
	source detector.Source
	users  int // guarded by Set.mu
}

// Open loads and tests all detectors.
func Open(ctx context.Context, opts Options) (_ *Set, err error) {
	if len(opts.Detectors) == 0 {
		return nil, options.Errorf("Detectors", "no detector is named")
	}
	if opts.Load == nil {
		opts.Load = detector.Load
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Set{opts: opts}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, named := range opts.Detectors {
		if s.find(named.Name, false) != nil {
			return nil, options.Errorf("Detectors", "two detectors have the name %q", named.Name)
		}
		s.places = append(s.places, &place{Named: named})
	}
	for _, named := range opts.Shadows {
		switch {
		case s.find(named.Name, false) == nil:
			return nil, options.Errorf("Shadows", "there is no detector %q for it to run beside", named.Name)
		case s.find(named.Name, true) != nil:
			return nil, options.Errorf("Shadows", "the detector %q has two", named.Name)
		}
		s.places = append(s.places, &place{Named: named, shadow: true})
	}
	for _, p := range s.places {
		stamp := p.stampNow()
		if p.now, err = s.load(ctx, p); err != nil {
			return nil, err
		}
		p.stamp = stamp
	}
	return s, nil
}

// find returns the place of a detector, or of its shadow, or nil.
func (s *Set) find(name string, shadow bool) *place {
	at := slices.IndexFunc(s.places, func(p *place) bool { return p.Name == name && p.shadow == shadow })
	if at < 0 {
		return nil
	}
	return s.places[at]
}

// Names are the names of the detectors, in order.
func (s *Set) Names() []string {
	return lists.Map(s.opts.Detectors, func(named Named) string { return named.Name })
}

// Use returns the detector with a name ("" for the first), and what runs beside it. It
// must be released. Without such a detector it returns nil.
func (s *Set) Use(name string) *Used {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(cmp.Or(name, s.places[0].Name), false)
	if p == nil {
		return nil
	}
	p.now.users++
	u := &Used{Loaded: p.now}
	if beside := s.find(p.Name, true); beside != nil {
		beside.now.users++
		u.Shadow = beside.now
	}
	return u
}

// Reload replaces a detector by what its file is now, and its shadow likewise if it has
// one. What cannot be loaded or fails its test is refused, and the old one stays.
func (s *Set) Reload(ctx context.Context, name string) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	var err error
	for _, p := range s.places {
		if p.Name == name {
			err = errors.Join(err, s.replace(ctx, p))
		}
	}
	return err
}

// Replace puts the detector of a file in the place of the one with a name; "" is the file
// that it was opened with. One that cannot be loaded or fails its test is refused, and the
// old one stays.
func (s *Set) Replace(ctx context.Context, name, file string) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	p := s.find(name, false)
	if p == nil {
		return fmt.Errorf("there is no detector %q", name)
	}
	last := p.other
	p.other = file
	err := s.replace(ctx, p)
	if err != nil {
		p.other = last
		p.stamp = p.stampNow()
	}
	return err
}

// Replaced tells whether another file than that of File serves.
func (s *Set) Replaced(name string) bool {
	s.changes.Lock()
	defer s.changes.Unlock()
	p := s.find(name, false)
	return p != nil && p.other != ""
}

// File is the file that a detector was opened with.
func (s *Set) File(name string) string { return s.find(name, false).File }

// Watch reloads detectors whose files change, until ctx is cancelled. It looks at them
// so often, and reloads a file that was the same two times.
func (s *Set) Watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	seen := make([]string, len(s.places))
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, p := range s.places {
			s.changes.Lock()
			stamp := p.stampNow()
			if stamp != "" && stamp != p.stamp && stamp == seen[i] {
				_ = s.replace(ctx, p) // which logs it
			}
			s.changes.Unlock()
			seen[i] = stamp
		}
	}
}

// replace puts what a place's file is now there. Set.changes is held.
func (s *Set) replace(ctx context.Context, p *place) error {
	stamp := p.stampNow()
	next, err := s.load(ctx, p)
	if ctx.Err() == nil {
		p.stamp = stamp // a file that is refused is not tried over and over
	}
	if s.opts.Changed != nil {
		s.opts.Changed(p.Name, p.shadow, err)
	}
	if err != nil {
		s.opts.Log.Error("a detector was refused, and the old one stays", "detector", p.Name, "shadow", p.shadow, "error", err)
		return err
	}
	s.mu.Lock()
	last := p.now
	p.now, last.replaced = next, true
	closing := last.users == 0
	s.mu.Unlock()
	if closing {
		last.close()
	}
	s.opts.Log.Info("a detector was replaced", "detector", p.Name, "shadow", p.shadow, "version", next.Version(), "before", last.Version())
	return nil
}

// FileOf is the file of a detector, which may be in a folder of that name.
func FileOf(name string) string {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return filepath.Join(name, detector.BundleFile)
	}
	return name
}

func (p *place) file() string { return FileOf(cmp.Or(p.other, p.File)) }

// stampNow tells the file, with its signature, from what it was before; "" where there
// is none.
func (p *place) stampNow() string { return disk.Stamp(p.file(), p.file()+".minisig") }

// load loads and tests a detector.
func (s *Set) load(ctx context.Context, p *place) (_ *Loaded, err error) {
	hash, err := disk.SHA256(p.file(), disk.Tensors)
	if err != nil {
		return nil, err
	}
	d, err := s.opts.Load(cmp.Or(p.other, p.File))
	if err != nil {
		return nil, err
	}
	if again, err := disk.SHA256(p.file(), disk.Tensors); err != nil || again != hash {
		return nil, fmt.Errorf("detector %s changed while it was read", p.Name)
	}
	l := &Loaded{Detector: d, Name: p.Name, SHA256: hash, Since: time.Now(), set: s}
	l.judges.New = func() any { return d.VerdictFunc() }
	if l.backbone, err = s.open(ctx, d); err != nil {
		return nil, err
	}
	if err := l.test(ctx); err != nil {
		l.close()
		return nil, fmt.Errorf("detector %s failed its test: %w", p.Name, err)
	}
	if l.FlagsNothing() {
		s.opts.Log.Warn("this detector flags nothing, as it had too few calibration images; train --calibration cross:10 calibrates by all images", "detector", p.Name)
	}
	return l, nil
}

// open returns the backbone of a detector. One that is open already is shared.
func (s *Set) open(ctx context.Context, d *detector.Detector) (*backbone, error) {
	if d.Source.Model == "" && d.Source.Fingerprint == "" && s.opts.Model == "" {
		return nil, nil
	}
	s.mu.Lock()
	for _, b := range s.backbones {
		if b.source.Fingerprint != "" && b.source.Fingerprint == d.Source.Fingerprint && b.source.SHA256 == d.Source.SHA256 && b.Dim() == d.Dim() {
			b.users++
			s.mu.Unlock()
			if err := d.CheckBackbone(ctx, b, s.opts.Backbone); err != nil {
				return nil, errors.Join(err, s.drop(b))
			}
			return b, nil
		}
	}
	s.mu.Unlock()
	opened, err := d.OpenBackbone(ctx, s.opts.Model, s.opts.Backbone)
	if err != nil {
		return nil, err
	}
	b := &backbone{opened, d.Source, 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backbones = append(s.backbones, b)
	return b, nil
}

// drop lets go of a backbone, and closes it after the last.
func (s *Set) drop(b *backbone) error {
	s.mu.Lock()
	b.users--
	last := b.users == 0
	if last {
		s.backbones = slices.DeleteFunc(s.backbones, func(other *backbone) bool { return other == b })
	}
	s.mu.Unlock()
	if last {
		return b.Close()
	}
	return nil
}

// Close lets go of all detectors. Nobody may use one any more.
func (s *Set) Close() {
	s.changes.Lock()
	defer s.changes.Unlock()
	for _, p := range s.places {
		if p.now != nil {
			p.now.close()
			p.now = nil
		}
	}
}
