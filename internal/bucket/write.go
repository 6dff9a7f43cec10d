package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Put writes an object as a whole: readers see the old one or the new one, and never a
// part.
func (f *Folder) Put(ctx context.Context, name string, data []byte) error {
	err := f.store.retry(ctx, len(data), func(ctx context.Context) error {
		return f.store.driver.Put(ctx, f.prefix+name, data)
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", f.URL(name), err)
	}
	return nil
}

// Delete deletes an object, if there is one.
func (f *Folder) Delete(ctx context.Context, name string) error {
	err := f.store.retry(ctx, 0, func(ctx context.Context) error { return f.store.driver.Delete(ctx, f.prefix+name) })
	if err != nil {
		return fmt.Errorf("delete %s: %w", f.URL(name), err)
	}
	return nil
}

const (
	// partSize is the size of the parts of large objects: a store takes 10,000.
	partSize = 16 << 20
	// partsAtOnce is how many parts of an object are on their way at once.
	partsAtOnce = 4
)

// Create writes what fill writes as an object. It appears as a whole when fill has
// returned without an error, and not at all otherwise. A large object is sent in parts
// while fill writes; at most 5 parts of 16 MiB are in memory, and parts become larger
// where there are very many.
func (f *Folder) Create(ctx context.Context, name string, fill func(io.Writer) error) (err error) {
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	w := &writer{folder: f, ctx: groupCtx, group: group, key: f.prefix + name, size: partSize}
	complete := false
	defer func() { // after a panic, too
		if w.id == "" || complete {
			return
		}
		// Also after ctx was cancelled: parts that lie about cost money.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, f.store.retry(last, 0, func(ctx context.Context) error { return f.store.driver.Abort(ctx, w.key, w.id) }))
	}()
	err = fill(w)
	if err == nil && w.id == "" {
		return errors.Join(group.Wait(), f.Put(ctx, name, w.part))
	}
	if err == nil && len(w.part) > 0 {
		err = w.send()
	}
	err = errors.Join(err, group.Wait())
	if err == nil {
		err = f.store.retry(ctx, 0, func(ctx context.Context) error {
			return f.store.driver.Complete(ctx, w.key, w.id, w.etags)
		})
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.URL(name), err)
	}
	complete = true
	return nil
}

// CreateOf writes a file on the disk as an object, as Create does.
func (f *Folder) CreateOf(ctx context.Context, name, path string) error {
	in, err := disk.Open(path, disk.Values)
	if err != nil {
		return err
	}
	defer in.Close()
	return f.Create(ctx, name, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// writer collects and sends parts.
type writer struct {
	folder *Folder
	ctx    context.Context
	group  *parallel.Group
	key    string
	id     string // "" before the first part
	size   int    // of the next part
	part   []byte
	etags  []string
}

func (w *writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		take := min(len(p), w.size-len(w.part))
		w.part = append(w.part, p[:take]...)
		if p = p[take:]; len(w.part) == w.size && len(p) > 0 {
			if err := w.send(); err != nil {
				return n - len(p), err
			}
		}
	}
	return n, nil
}

// send sends the part at hand.
func (w *writer) send() error {
	store := w.folder.store
	if w.id == "" {
		err := store.retry(w.ctx, 0, func(ctx context.Context) (err error) {
			w.id, err = store.driver.Begin(ctx, w.key)
			return err
		})
		if err != nil {
			return err
		}
		w.etags = make([]string, 0, 10_000) // of which no other is made while parts are on their way
	}
	if len(w.etags) == cap(w.etags) {
		return fmt.Errorf("%w: an object has at most %d parts", ErrSize, cap(w.etags))
	}
	part, number := w.part, len(w.etags)+1
	w.etags = append(w.etags, "")
	etag := &w.etags[number-1]
	if number%1000 == 0 {
		w.size *= 2
	}
	w.part = make([]byte, 0, w.size)
	w.group.Go(func() error {
		return store.retry(w.ctx, len(part), func(ctx context.Context) (err error) {
			*etag, err = store.driver.Part(ctx, w.key, w.id, number, part)
			return err
		})
	})
	return context.Cause(w.ctx) // why another part could not be written
}
