package images

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Contents is what a unit turned out to hold.
type Contents struct {
	Images []Member
	Failed []Failure // of images, or of the unit itself
	// Given counts the images that the stream gave: those that were not to be skipped.
	Given int
	// Complete says that the unit was read to its end, or that another try would find the
	// same damage: there is no need to read it again.
	Complete bool
	// Lost is why the unit could not be read to its end, if another try may do it: a store
	// did not answer, say.
	Lost error
}

// Member is an image of a unit.
type Member struct {
	Path         string // that of the unit, a # and its name there
	Label        string // "" if it has none
	Bytes, MTime int64
}

// A Failure says why something could not be read.
type Failure struct {
	Path string
	Err  error
}

// StreamOptions tune a [Reading].
type StreamOptions struct {
	// Skip, where set, tells of images of tars and tables that are not wanted.
	Skip func(path string, bytes, mtime int64) bool
	// Ended, where set, is told what a unit held, by its index in the listing, when all of
	// it was read. The last images may not be through yet.
	Ended func(unit int, c Contents)
	// Failures has failures given too, as images with an error, after those of their unit.
	Failures bool
	// Before is the size of the units that are left out, as they were read before; see
	// [Reading.Share].
	Before int64
	// Memory bounds the bytes that are read ahead, and those of images that wait or are
	// in work: each takes half of it. 0 is 256 MiB.
	Memory int64
}

const (
	defaultMemory = 256 << 20
	mostRequests  = 64 // reads that are on their way at once
	pieceSize     = 4 << 20
	usualSize     = 100 << 10 // of an image
	unknownSize   = 1 << 20   // what is set aside for an image whose size nobody said, at first
	mostUnknown   = 8 << 20   // and when larger ones were seen
)

// A Reading is a [Stream] of the images of units, in order.
type Reading struct {
	listing  *Sources
	opts     StreamOptions
	units    []int
	images   *semaphore.Weighted
	ahead    *semaphore.Weighted
	half     int64
	total    int64 // bytes of all units
	expected int   // about how many images they have
	through  atomic.Int64
	waited   atomic.Int64 // nanoseconds
	guess    atomic.Int64 // bytes of an image whose size nobody said

	pieces  chan *piece
	next    *piece      // taken from pieces, and not used
	reads   chan *piece // to workers that wait for one
	workers int
	out     chan given
	cancel  context.CancelFunc
	group   *parallel.Group // whose workers return no errors; a panic ends ctx
}

type given struct {
	item Item
	held int64 // of s.images, until it is taken: a batch may need more than all of it
}

// piece is a part of a tar, or an image, that is read ahead.
type piece struct {
	unit  int
	off   int64
	data  []byte
	mtime int64
	err   error
	large bool // it is to be read when it is needed
	ready chan struct{}
	held  int64
}

// Stream begins to read the units with the given indices, one after another. It must be
// closed.
func (l *Sources) Stream(ctx context.Context, units []int, opts StreamOptions) *Reading {
	opts.Memory = cmp.Or(opts.Memory, defaultMemory)
	half := max(opts.Memory/2, pieceSize)
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := parallel.WithContext(ctx)
	s := &Reading{
		listing: l, opts: opts, units: units, half: half, cancel: cancel, group: group,
		images: semaphore.NewWeighted(half), ahead: semaphore.NewWeighted(half),
		pieces: make(chan *piece, mostRequests), reads: make(chan *piece), out: make(chan given, 64),
	}
	s.total = opts.Before
	for _, unit := range units {
		s.total += max(l.Units[unit].Size, 1)
		s.expected += int(max(l.Units[unit].Size/usualSize, 1))
	}
	s.through.Store(opts.Before)
	s.guess.Store(unknownSize)
	s.group.Go(func() error { s.fetch(ctx); return nil })
	s.group.Go(func() error {
		defer close(s.out)
		for _, unit := range units {
			if ctx.Err() != nil {
				return nil
			}
			before := s.through.Load()
			c := s.unit(ctx, unit)
			if ctx.Err() != nil {
				return nil
			}
			s.through.Store(before + max(l.Units[unit].Size, 1))
			if opts.Failures {
				for _, f := range c.Failed {
					if !s.give(ctx, unit, Member{Path: f.Path}, nil, f.Err, 0, nil) {
						return nil
					}
				}
			}
			if opts.Ended != nil {
				opts.Ended(unit, c)
			}
		}
		return nil
	})
	return s
}

// Share is about which part of all bytes was given, with StreamOptions.Before.
func (s *Reading) Share() float64 { return float64(s.through.Load()) / float64(max(s.total, 1)) }

// Total returns about how many images there are.
func (s *Reading) Total() (int, bool) { return s.expected, false }

// Waited is how long calls of Next waited for an image, all together. The caller may have
// other work under way meanwhile.
func (s *Reading) Waited() time.Duration { return time.Duration(s.waited.Load()) }

// Next returns the next image, and [io.EOF] after the last.
func (s *Reading) Next(ctx context.Context) (Item, error) {
	if len(s.out) == 0 {
		began := time.Now()
		defer func() { s.waited.Add(int64(time.Since(began))) }()
	}
	select {
	case g, ok := <-s.out:
		if !ok {
			s.Close() // which panics with what a worker panicked with
			if ctx.Err() != nil {
				return Item{}, ctx.Err()
			}
			return Item{}, io.EOF
		}
		s.images.Release(g.held)
		return g.item, nil
	case <-ctx.Done():
		return Item{}, ctx.Err()
	}
}

// Close ends the stream.
func (s *Reading) Close() {
	s.cancel()
	_ = s.group.Wait()
}

// fetch reads all pieces ahead of their use.
func (s *Reading) fetch(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			s.cancel() // before the pieces end, so that none counts as the last of a unit
			close(s.pieces)
			panic(parallel.Recovered(p))
		}
		close(s.pieces)
		close(s.reads)
	}()
	for _, unit := range s.units {
		u := &s.listing.Units[unit]
		if u.Err() != nil || u.kind == table || u.kind == tarball && u.whole {
			continue
		}
		if u.kind == single {
			size := u.Size
			if size < 0 {
				size = s.guess.Load()
			}
			if !s.send(ctx, &piece{unit: unit, off: -1, held: size}) {
				return
			}
			continue
		}
		for off := int64(0); off < u.Size; off += pieceSize {
			if !s.send(ctx, &piece{unit: unit, off: off, held: min(pieceSize, u.Size-off)}) {
				return
			}
		}
	}
}

// send begins to read a piece.
func (s *Reading) send(ctx context.Context, p *piece) bool {
	p.ready = make(chan struct{})
	if p.held > s.half {
		p.held, p.large = 0, true
	}
	if err := s.ahead.Acquire(ctx, p.held); err != nil {
		return false
	}
	select {
	case s.pieces <- p:
	case <-ctx.Done():
		return false
	}
	if p.large {
		close(p.ready)
		return true
	}
	select {
	case s.reads <- p:
		return true
	default:
	}
	if s.workers < mostRequests {
		s.workers++
		s.group.Go(func() error { s.work(ctx, p); return nil })
		return true
	}
	select {
	case s.reads <- p:
		return true
	case <-ctx.Done():
		p.err = ctx.Err()
		close(p.ready)
		return false
	}
}

// work reads pieces, the first of them p. A worker reads many, as the stack that a request
// needs is deep, and grows step by step.
func (s *Reading) work(ctx context.Context, p *piece) {
	for p != nil {
		if u := &s.listing.Units[p.unit]; p.off >= 0 {
			p.data = make([]byte, p.held)
			p.err = u.read(ctx, p.data, p.off)
		} else {
			s.whole(ctx, u, p)
		}
		close(p.ready)
		select {
		case p = <-s.reads:
		case <-ctx.Done():
			return
		}
	}
}

// whole reads a piece that is an image. If that is larger than what was set aside for it,
// it is read when it is needed, unless there is room now.
func (s *Reading) whole(ctx context.Context, u *Unit, p *piece) {
	var o bucket.Object
	p.data, o, p.err = u.readWhole(ctx, p.held)
	if u.Size < 0 && errors.Is(p.err, bucket.ErrSize) && o.Size > p.held && o.Size <= maxImage {
		for guess := s.guess.Load(); guess < min(o.Size, mostUnknown, s.half/4) && !s.guess.CompareAndSwap(guess, min(o.Size, mostUnknown, s.half/4)); {
			guess = s.guess.Load()
		}
		if more := o.Size - p.held; s.ahead.TryAcquire(more) {
			p.held += more
			p.data, o, p.err = u.readWhole(ctx, p.held)
		}
	}
	if errors.Is(p.err, bucket.ErrSize) {
		p.large, p.err = true, nil
	}
	if !o.Modified.IsZero() {
		p.mtime = o.Modified.UnixNano()
	}
	if surplus := p.held - int64(len(p.data)); surplus > 0 {
		s.ahead.Release(surplus)
		p.held -= surplus
	}
}

// take returns the next piece of a unit when it is read, or nil.
func (s *Reading) take(ctx context.Context, unit int) *piece {
	for {
		if s.next == nil {
			if s.next = <-s.pieces; s.next == nil {
				return nil
			}
		}
		p := s.next
		if p.unit > unit {
			return nil
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			return nil
		}
		if s.next = nil; p.unit == unit {
			return p
		}
		s.drop(p) // of a unit that was left before its end
	}
}

// drop lets go of a piece.
func (s *Reading) drop(p *piece) {
	s.ahead.Release(p.held)
	p.data, p.held = nil, 0
}

// unit reads a unit.
func (s *Reading) unit(ctx context.Context, unit int) (c Contents) {
	u := &s.listing.Units[unit]
	err := u.Err()
	if err == nil {
		switch u.kind {
		case single:
			return s.image(ctx, unit)
		case tarball:
			c.Complete = true
			err = s.tarball(ctx, unit, &c)
		case table:
			err = s.table(ctx, unit, &c)
			c.Complete = err == nil
		}
	}
	if err != nil {
		c.Failed = append(c.Failed, Failure{u.Path, err})
		if !gone(err) {
			c.Complete, c.Lost = false, err
		}
	}
	return c
}

// give gives an image of a unit whose bytes are on loan from s.images.
func (s *Reading) give(ctx context.Context, unit int, img Member, data []byte, err error, held int64, again func() ([]byte, error)) bool {
	u := &s.listing.Units[unit]
	item := Item{
		Path: img.Path, File: u.Name() + strings.TrimPrefix(img.Path, u.Path), Label: -1, Bytes: img.Bytes, MTime: img.MTime,
		Unit: int32(unit), memory: &inMemory{stream: &streamed{data, err, again}},
	}
	select {
	case s.out <- given{item, held}:
		return true
	case <-ctx.Done():
		return false
	}
}

// offer gives an image of a file of many if it is wanted. It is read when there is room.
func (s *Reading) offer(ctx context.Context, unit int, c *Contents, img Member, read, again func() ([]byte, error)) error {
	if s.opts.Skip != nil && s.opts.Skip(img.Path, img.Bytes, img.MTime) {
		c.Images = append(c.Images, img)
		return nil
	}
	held := min(img.Bytes, s.half)
	if err := s.images.Acquire(ctx, held); err != nil {
		return err
	}
	data, err := read()
	if err != nil {
		s.images.Release(held)
		return err
	}
	c.Images, c.Given = append(c.Images, img), c.Given+1
	if !s.give(ctx, unit, img, data, nil, held, again) {
		return ctx.Err()
	}
	return nil
}

// tooLarge is the error of an image of so many bytes.
func tooLarge(bytes int64) error {
	return fmt.Errorf("%w: it has %d bytes, and an image may have %d", bucket.ErrSize, bytes, maxImage)
}

// image gives a unit that is an image.
func (s *Reading) image(ctx context.Context, unit int) (c Contents) {
	u := &s.listing.Units[unit]
	p := s.take(ctx, unit)
	if p == nil {
		return c
	}
	defer s.drop(p)
	if p.large {
		if u.Size > maxImage {
			p.err = tooLarge(u.Size)
		} else {
			var o bucket.Object
			if p.data, o, p.err = u.readWhole(ctx, maxImage); !o.Modified.IsZero() {
				p.mtime = o.Modified.UnixNano()
			}
		}
	}
	img := Member{Path: u.Path, Label: u.Label, Bytes: int64(len(p.data)), MTime: cmp.Or(u.MTime, p.mtime)}
	held := min(img.Bytes, s.half)
	if s.images.Acquire(ctx, held) != nil {
		return c
	}
	again := func() ([]byte, error) {
		data, _, err := u.readWhole(context.WithoutCancel(ctx), maxImage)
		return data, err
	}
	if s.give(ctx, unit, img, p.data, p.err, held, again) {
		c.Images, c.Given, c.Complete = []Member{img}, 1, p.err == nil
		if !gone(p.err) {
			c.Lost = p.err
		}
	}
	return c
}

// table gives the images of a table.
func (s *Reading) table(ctx context.Context, unit int, c *Contents) error {
	u := &s.listing.Units[unit]
	r, done, err := u.readerAt(ctx)
	if err != nil {
		return err
	}
	defer done()
	return parquetRows(ctx, r, u.Size, func(row tableRow) error {
		img := Member{Path: fmt.Sprintf("%s#%d", u.Path, row.Number), Label: row.Label, Bytes: int64(len(row.Data)), MTime: u.MTime}
		if row.Err == nil && len(row.Data) > maxImage {
			row.Err = tooLarge(img.Bytes)
		}
		if row.Err != nil {
			c.Failed = append(c.Failed, Failure{img.Path, row.Err})
			return nil
		}
		return s.offer(ctx, unit, c, img, func() ([]byte, error) { return append([]byte{}, row.Data...), nil }, nil)
	})
}

// tarReader gives the bytes of a tar.
type tarReader struct {
	s     *Reading
	ctx   context.Context
	unit  int
	piece *piece
	rest  []byte
	err   error // that is not the tar's own
}

func (t *tarReader) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.piece != nil {
			t.s.drop(t.piece)
			t.piece = nil
		}
		next := t.s.take(t.ctx, t.unit)
		if next == nil {
			if t.err = t.ctx.Err(); t.err != nil {
				return 0, t.err
			}
			return 0, io.EOF
		}
		t.piece, t.rest = next, next.data
		if next.err != nil {
			t.rest, t.err = nil, next.err
			return 0, next.err
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	t.s.through.Add(int64(n))
	return n, nil
}

// inOneGo reads a tar from a server that sends no parts of files. Errors are noted where a
// tarReader notes them.
type inOneGo struct {
	r *bufio.Reader
	t *tarReader
}

func (r *inOneGo) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.t.err = err
	}
	return n, err
}

// tarball gives the images of a tar.
func (s *Reading) tarball(ctx context.Context, unit int, c *Contents) (err error) {
	u := &s.listing.Units[unit]
	t := &tarReader{s: s, ctx: ctx, unit: unit}
	defer func() {
		if t.piece != nil {
			s.drop(t.piece)
		}
		if t.err != nil {
			c.Complete, err = false, t.err
		}
	}()
	var in io.Reader = t
	if u.whole { // in one go
		folder, name := u.object()
		r, _, err := folder.OpenRange(ctx, name, 0, -1, u.etag())
		if err != nil {
			return err
		}
		defer r.Close()
		in = &inOneGo{bufio.NewReaderSize(r, 1<<20), t}
	}
	size := u.Size
	if lower := strings.ToLower(withoutQuery(u.Name())); !strings.HasSuffix(lower, ".tar") {
		unzip, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in, size = unzip, -1
	}
	w := &webdataset{s: s, ctx: ctx, unit: unit, u: u, contents: c, from: t, in: &counted{r: in}, size: size}
	return w.read()
}
