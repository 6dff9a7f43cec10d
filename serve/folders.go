package serve

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file judges the images of folders that are watched.

// WatchedFolder is a folder whose images are judged by the first detector, and what they
// are called as a source.
type WatchedFolder struct{ Source, Dir string }

// folders are the folders that are watched. Files of them that could not be judged are in
// the store, each under the id of the file, so that each is told once.
type folders struct {
	watched   []*images.Watched
	detectors detectors
	judge     *judge
	store     store.Store
	explain   func(context.Context, error) (status int, text string)
	log       *slog.Logger

	mu     sync.Mutex
	broken map[string]brokenFile // nil until they were read from the store
}

type brokenFile struct {
	Source string    `json:"source"`
	Path   string    `json:"path"` // relative to the folder
	Error  string    `json:"error"`
	Time   time.Time `json:"time"`
}

const brokenKey = "folder/broken/"

// open begins to watch the folders of the options.
func (s *folders) open(o *Options) error {
	sources := map[string]bool{}
	for _, f := range o.Folders {
		switch {
		case o.Store == nil:
			return options.Errorf("Folders", "%s: a folder needs a store, which remembers the files that were judged", f.Dir)
		case !sourcePattern.MatchString(f.Source):
			return options.Errorf("Folders", "%q is no source: it has up to 64 letters, digits, spaces and . _ : / -", f.Source)
		case sources[f.Source]:
			return options.Errorf("Folders", "two folders have the source %q", f.Source)
		}
		sources[f.Source] = true
		watched := &images.Watched{
			Dir: f.Dir, Source: f.Source, Every: o.FolderEvery, Settle: o.FolderSettle, MaxBytes: o.MaxBody, Workers: o.Running, Log: s.log,
			Known: s.known,
			Image: func(ctx context.Context, img images.WatchedImage) error { return s.image(ctx, f.Source, img) },
		}
		if err := watched.Open(); err != nil {
			return options.Errorf("Folders", "%w", err)
		}
		s.watched = append(s.watched, watched)
	}
	return nil
}

// known returns which of the files with these ids were judged, or are broken.
func (s *folders) known(ctx context.Context, ids []string) (map[string]bool, error) {
	known, err := s.store.Has(ctx, ids)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		values, err := s.store.States(ctx, brokenKey)
		if err != nil {
			return nil, err
		}
		all := map[string]brokenFile{}
		for key, value := range values {
			if len(value) == 0 {
				continue // it was repaired
			}
			var b brokenFile
			if err := json.Unmarshal(value, &b); err != nil {
				return nil, err
			}
			all[key[len(brokenKey):]] = b
		}
		s.broken = all
	}
	for _, id := range ids {
		if _, ok := s.broken[id]; ok {
			known[id] = true
		}
	}
	return known, nil
}

// folderPause is the time before a thing is tried again that must wait.
const folderPause = 50 * time.Millisecond

// image judges an image of a folder and returns when its verdict is stored. It waits
// where a request would be refused.
func (s *folders) image(ctx context.Context, source string, img images.WatchedImage) error {
	if img.Err != nil {
		return s.note(ctx, source, img, img.Err)
	}
	client := clientOf(ctx)
	for s.judge.enter(client, 1, 0) != nil {
		if err := wait(ctx, folderPause); err != nil {
			return err
		}
	}
	defer s.judge.leave(client, 1, 0)
	ctx = context.WithValue(ctx, caller{}, who{address: "folder " + source})
	d := s.detectors.Use("")
	defer d.Release()
	o := s.judge.one(ctx, d, picture{id: img.ID, name: nameOf(img.Path), data: img.Data})
	if _, bad := errors.AsType[*pool.ImageError](o.err); bad || errors.Is(o.err, pool.ErrNoImages) {
		return s.note(ctx, source, img, o.err)
	}
	if o.err != nil {
		return o.err
	}
	// Before its verdict is stored, after which nobody looks at the file again.
	if err := s.repaired(ctx, source, nameOf(img.Path), ""); err != nil {
		return err
	}
	m := s.judge.memory
	v := m.note(d.Loaded, &o, source)
	for pause := folderPause; !m.store(ctx, v); pause = min(2*pause, 5*time.Second) {
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
	o.stored = true
	m.tell(d.Loaded, &o, &v)
	return nil
}

// wait returns after a time, or with the error of ctx.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// note notes a file that cannot be judged.
func (s *folders) note(ctx context.Context, source string, img images.WatchedImage, why error) error {
	_, text := s.explain(ctx, &pool.ImageError{Err: why})
	b := brokenFile{source, nameOf(img.Path), text, time.Now().UTC()}
	value, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := s.store.SetState(ctx, brokenKey+img.ID, value); err != nil {
		return err
	}
	s.mu.Lock()
	s.broken[img.ID] = b
	s.mu.Unlock()
	if err := s.repaired(ctx, source, b.Path, img.ID); err != nil {
		return err
	}
	s.log.Warn("a file of a folder cannot be judged", "source", source, "path", b.Path, "error", text)
	return nil
}

// repaired forgets what was wrong with a file whose content is another one now; that with the
// id stays.
func (s *folders) repaired(ctx context.Context, source, path, id string) error {
	s.mu.Lock()
	var gone []string
	for other, b := range s.broken {
		if b.Source == source && b.Path == path && other != id {
			gone = append(gone, other)
			delete(s.broken, other)
		}
	}
	s.mu.Unlock()
	for _, other := range gone {
		if err := s.store.SetState(ctx, brokenKey+other, nil); err != nil {
			return err
		}
	}
	return nil
}

// count is how many files of watched folders cannot be judged.
func (s *folders) count(ctx context.Context) (int, error) {
	if len(s.watched) > 0 {
		if _, err := s.known(ctx, nil); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.broken), nil
}

// maxBroken is how many broken files are listed at most.
const maxBroken = 1000

// listBroken answers GET /v1/broken: the files of watched folders that cannot be judged,
// the newest first.
func (s *folders) listBroken(ctx context.Context, _ *http.Request) (any, error) {
	if len(s.watched) > 0 {
		if _, err := s.known(ctx, nil); err != nil {
			return nil, asked(err)
		}
	}
	s.mu.Lock()
	all := slices.AppendSeq([]brokenFile{}, maps.Values(s.broken))
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b brokenFile) int { return b.Time.Compare(a.Time) })
	return map[string]any{"broken": all[:min(len(all), maxBroken)], "total": len(all)}, nil
}
