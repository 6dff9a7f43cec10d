package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
)

// store is a bucket with the limits for requests to it.
type store struct {
	driver Driver
	limits Limits
	slots  *semaphore.Weighted
}

func newStore(d Driver, l Limits) *store {
	l = l.orDefault()
	return &store{d, l, semaphore.NewWeighted(int64(l.Requests))}
}

// passes tells whether an error may be gone when the request is sent again.
func passes(err error) bool {
	var t temporary
	return errors.As(err, &t) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrStalled) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pause waits before another attempt, the longer the more there were: between half
// and all of the pause, so that clients do not come back all at once.
func (s *store) pause(ctx context.Context, attempt int) error {
	d := s.limits.Pause << min(attempt, 20)
	d = min(d, 100*s.limits.Pause)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// retry calls do until it succeeds or fails for good. Each attempt has a time limit.
func (s *store) retry(ctx context.Context, do func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := s.once(ctx, do)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !passes(err) {
			return err
		}
		if attempt+1 >= s.limits.Attempts {
			return fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		if err := s.pause(ctx, attempt); err != nil {
			return err
		}
	}
}

func (s *store) once(ctx context.Context, do func(context.Context) error) error {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.slots.Release(1)
	limited, cancel := context.WithTimeoutCause(ctx, s.limits.Stall, ErrStalled)
	defer cancel()
	err := do(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return ErrStalled
	}
	return err
}

// List gives the objects below the folder whose names start with prefix, in the order of
// their bytes. Objects whose key ends with a slash, which some programs make for folders,
// are left out.
func (f *Folder) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for page := ""; ; {
			var objects []Object
			var next string
			err := f.store.retry(ctx, func(ctx context.Context) (err error) {
				objects, next, err = f.store.driver.List(ctx, f.prefix+prefix, page)
				return err
			})
			if err != nil {
				yield(Object{}, fmt.Errorf("list %s%s: %w", f, prefix, err))
				return
			}
			for _, o := range objects {
				if len(o.Name) < len(f.prefix) || o.Name[len(o.Name)-1] == '/' {
					continue
				}
				if o.Name = o.Name[len(f.prefix):]; !yield(o, nil) {
					return
				}
			}
			if page = next; page == "" {
				return
			}
		}
	}
}

// Stat returns what is known of an object.
func (f *Folder) Stat(ctx context.Context, name string) (Object, error) {
	r, o, err := f.OpenRange(ctx, name, 0, 1, "")
	if err != nil {
		return Object{}, err
	}
	return o, r.Close()
}

// Read reads an object of up to limit bytes.
func (f *Folder) Read(ctx context.Context, name string, limit int64) ([]byte, Object, error) {
	r, o, err := f.OpenRange(ctx, name, 0, -1, "")
	if err != nil {
		return nil, o, err
	}
	defer r.Close()
	if o.Size > limit {
		return nil, o, fmt.Errorf("%s: %w: it has %d bytes, and such a file may have %d", f.URL(name), ErrSize, o.Size, limit)
	}
	var data []byte
	if o.Size >= 0 {
		data = make([]byte, o.Size)
		_, err = io.ReadFull(r, data)
	} else if data, err = io.ReadAll(io.LimitReader(r, limit+1)); err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s: %w: it has more than %d bytes", f.URL(name), ErrSize, limit)
	}
	o.Size = int64(len(data))
	return data, o, err
}

// OpenRange opens the bytes of an object from an offset on, n of them, or with −1 all.
// Where the connection breaks or stalls the reader goes on where it was with a new
// request, as long as the object is the same; etag, unless "", says which it must be.
// A reader must be closed.
func (f *Folder) OpenRange(ctx context.Context, name string, from, n int64, etag string) (io.ReadCloser, Object, error) {
	r := &reader{folder: f, name: name, at: from, left: n, etag: etag}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if err := r.connect(); err != nil {
		r.cancel(nil)
		return nil, Object{}, err
	}
	return r, r.object, nil
}

// reader reads an object by as many requests as it takes.
type reader struct {
	folder *Folder
	name   string
	ctx    context.Context
	cancel context.CancelCauseFunc
	object Object // complete after the first request
	known  bool
	etag   string
	at     int64 // the next byte
	left   int64 // bytes to come, −1 if all
	failed int   // attempts since the last byte

	body     io.ReadCloser // nil without a connection
	stop     context.CancelCauseFunc
	watchdog *time.Timer
	stalled  *atomic.Bool
}

// connect sends a request for what is left, several times if need be.
func (r *reader) connect() error {
	s := r.folder.store
	for {
		err := r.request()
		if err == nil {
			return nil
		}
		if err := r.again(err); err != nil {
			return err
		}
		if err := s.pause(r.ctx, r.failed-1); err != nil {
			return err
		}
	}
}

// again counts a failure and returns an error if that was the last attempt.
func (r *reader) again(err error) error {
	r.failed++
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case !passes(err):
		return fmt.Errorf("%s: %w", r.folder.URL(r.name), err)
	case r.failed >= r.folder.store.limits.Attempts:
		return fmt.Errorf("%s: after %d attempts: %w", r.folder.URL(r.name), r.failed, err)
	}
	return nil
}

func (r *reader) request() error {
	s := r.folder.store
	if err := s.slots.Acquire(r.ctx, 1); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(r.ctx)
	stalled := new(atomic.Bool)
	watchdog := time.AfterFunc(s.limits.Stall, func() {
		stalled.Store(true)
		stop(ErrStalled)
	})
	body, o, err := s.driver.Get(ctx, r.folder.prefix+r.name, r.at, r.left, r.etag)
	if err == nil && r.known && r.etag == "" && (o.Size != r.object.Size || !o.Modified.Equal(r.object.Modified)) {
		err = errors.Join(ErrChanged, body.Close())
	}
	if err != nil {
		watchdog.Stop()
		stop(nil)
		s.slots.Release(1)
		if stalled.Load() {
			err = ErrStalled
		}
		return err
	}
	if !r.known {
		o.Name = r.name
		r.object, r.known = o, true
		if r.etag == "" {
			r.etag = o.ETag
		}
		if o.Size >= 0 { // so that a connection that ends early is noticed
			rest := max(o.Size-r.at, 0)
			if r.left < 0 || r.left > rest {
				r.left = rest
			}
		}
	}
	r.body, r.stop, r.watchdog, r.stalled = body, stop, watchdog, stalled
	return nil
}

// disconnect ends the request at hand.
func (r *reader) disconnect() {
	if r.body == nil {
		return
	}
	r.watchdog.Stop()
	r.stop(nil)
	r.body.Close() // nothing is lost by its error: what was read was read
	r.body = nil
	r.folder.store.slots.Release(1)
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if r.left == 0 {
			r.disconnect()
			return 0, io.EOF
		}
		if r.body == nil {
			if err := r.connect(); err != nil {
				return 0, err
			}
		}
		if r.left > 0 && int64(len(p)) > r.left {
			p = p[:r.left]
		}
		r.watchdog.Reset(r.folder.store.limits.Stall)
		n, err := r.body.Read(p)
		r.at += int64(n)
		if r.left > 0 {
			r.left -= int64(n)
		}
		if n > 0 {
			r.failed = 0
			if err != nil {
				r.disconnect() // the next call sees to it
				if err == io.EOF && r.left < 0 {
					r.left = 0
				}
			}
			return n, nil
		}
		if err == nil {
			continue
		}
		r.disconnect()
		if err == io.EOF && r.left < 0 { // nobody said how much there is
			return 0, io.EOF
		}
		if r.stalled.Load() {
			err = ErrStalled
		}
		if r.ctx.Err() != nil {
			return 0, r.ctx.Err()
		}
		// Whatever broke the connection, the bytes are still there.
		if err := r.again(Temporary(noEOF(err))); err != nil {
			return 0, err
		}
		if err := r.folder.store.pause(r.ctx, r.failed-1); err != nil {
			return 0, err
		}
	}
}

// noEOF says that an end came too early.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *reader) Close() error {
	r.disconnect()
	r.cancel(fs.ErrClosed)
	return nil
}
