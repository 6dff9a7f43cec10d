package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// This file judges the images of folders that are watched.

// WatchedFolder is a folder whose images are judged by the first detector, and what they
// are called as a source.
type WatchedFolder struct{ Source, Dir string }

// broken are the files of watched folders that could not be judged. They are in the
// store, each under the id of the file, so that each is told once.
type broken struct {
	mu  sync.Mutex
	all map[string]brokenFile // nil until they were read from the store
}

type brokenFile struct {
	Source string    `json:"source"`
	Path   string    `json:"path"` // relative to the folder
	Error  string    `json:"error"`
	Time   time.Time `json:"time"`
}

const brokenKey = "folder/broken/"

// openFolders starts to watch.
func (s *Server) openFolders() error {
	sources := map[string]bool{}
	for _, f := range s.opts.Folders {
		switch {
		case s.opts.Store == nil:
			return options.Errorf("Folders", "%s: a folder needs a store, which remembers the files that were judged", f.Dir)
		case !sourcePattern.MatchString(f.Source):
			return options.Errorf("Folders", "%q is no source: it has up to 64 letters, digits, spaces and . _ : / -", f.Source)
		case sources[f.Source]:
			return options.Errorf("Folders", "two folders have the source %q", f.Source)
		}
		sources[f.Source] = true
		watched, err := images.Watch(images.WatchOptions{
			Dir: f.Dir, Source: f.Source, Every: s.opts.FolderEvery, Settle: s.opts.FolderSettle, MaxBytes: s.opts.MaxBody, Workers: s.opts.Running, Log: s.log,
			Known: s.knownFiles,
			Image: func(ctx context.Context, img images.WatchedImage) error { return s.folderImage(ctx, f.Source, img) },
		})
		if err != nil {
			return options.Errorf("Folders", "%w", err)
		}
		s.folders = append(s.folders, watched)
	}
	return nil
}

// knownFiles returns which of the files with these ids were judged, or are broken.
func (s *Server) knownFiles(ctx context.Context, ids []string) (map[string]bool, error) {
	known, err := s.opts.Store.Has(ctx, ids)
	if err != nil {
		return nil, err
	}
	s.broken.mu.Lock()
	defer s.broken.mu.Unlock()
	if s.broken.all == nil {
		values, err := s.opts.Store.States(ctx, brokenKey)
		if err != nil {
			return nil, err
		}
		all := map[string]brokenFile{}
		for key, value := range values {
			var b brokenFile
			if err := json.Unmarshal(value, &b); err != nil {
				return nil, err
			}
			all[key[len(brokenKey):]] = b
		}
		s.broken.all = all
	}
	for _, id := range ids {
		if _, ok := s.broken.all[id]; ok {
			known[id] = true
		}
	}
	return known, nil
}

// folderPause is the time before a thing is tried again that must wait.
const folderPause = 50 * time.Millisecond

// folderImage judges an image of a folder and returns when its verdict is stored. It waits
// where a request would be refused.
func (s *Server) folderImage(ctx context.Context, source string, img images.WatchedImage) error {
	if img.Err != nil {
		return s.brokenImage(ctx, source, img, img.Err)
	}
	for !s.places.enter(1) {
		if err := wait(ctx, folderPause); err != nil {
			return err
		}
	}
	defer s.places.leave(1, 0)
	main, shadow := s.detectors.Use("")
	defer main.Release()
	defer shadow.Release()
	o := s.judge(ctx, main, shadow, picture{id: img.ID, name: nameOf(img.Path), data: img.Data})
	if _, bad := errors.AsType[*pool.ImageError](o.err); bad || errors.Is(o.err, pool.ErrNoImages) {
		return s.brokenImage(ctx, source, img, o.err)
	}
	if o.err != nil {
		return o.err
	}
	v := s.note(main, &o, source)
	s.keep(&v, img.Data)
	for pause := folderPause; ; pause = min(2*pause, 5*time.Second) {
		if o.stored = s.store(ctx, v); o.stored {
			break
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
	s.tell(main, &o, v)
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

// brokenImage notes a file that cannot be judged.
func (s *Server) brokenImage(ctx context.Context, source string, img images.WatchedImage, why error) error {
	_, text := s.explain(ctx, &pool.ImageError{Err: why})
	b := brokenFile{source, nameOf(img.Path), text, time.Now().UTC()}
	value, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := s.opts.Store.SetState(ctx, brokenKey+img.ID, value); err != nil {
		return err
	}
	s.broken.mu.Lock()
	s.broken.all[img.ID] = b
	s.broken.mu.Unlock()
	s.log.Warn("a file of a folder cannot be judged", "source", source, "path", b.Path, "error", text)
	return nil
}

// maxBroken is how many broken files are listed at most.
const maxBroken = 1000

// listBroken answers GET /v1/broken: the files of watched folders that cannot be judged,
// the newest first.
func (s *Server) listBroken(ctx context.Context, _ *http.Request) (any, error) {
	if len(s.folders) > 0 {
		if _, err := s.knownFiles(ctx, nil); err != nil {
			return nil, asked(err)
		}
	}
	all := []brokenFile{}
	s.broken.mu.Lock()
	for _, b := range s.broken.all {
		all = append(all, b)
	}
	s.broken.mu.Unlock()
	slices.SortFunc(all, func(a, b brokenFile) int { return b.Time.Compare(a.Time) })
	return map[string]any{"broken": all[:min(len(all), maxBroken)], "total": len(all)}, nil
}
