package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// queueOptions bounds a [Queue]. The zero value is the usual way.
type queueOptions struct {
	Size    int           // how many verdicts wait at most; 0 means 4096
	Batch   int           // how many are stored together at most; 0 means 512
	Wait    time.Duration // how long Add waits at most; 0 means 2 s
	Timeout time.Duration // how long the store may take for a batch; 0 means 10 s
	Retry   time.Duration // how long to wait before a store that failed is tried again, up to 30 times as long while it fails; 0 means 1 s
	Log     *slog.Logger  // is told when storing ends and goes on; nil means slog.Default()
}

// Queue adds verdicts to a store in groups: while one group becomes durable the next
// gathers, so that thousands per second need few commits. Its Add returns within a
// bounded time whatever the store does: with a full disk or a stopped database
// storing ends, with an error in the log, and goes on by itself when it can.
type Queue struct {
	store Store
	opts  queueOptions
	stop  context.CancelFunc // ends what the store is doing
	done  chan struct{}      // the worker has ended

	mu     sync.Mutex
	wake   chan struct{} // holds a value when something waits or the queue is closed
	groups []*group      // that wait
	since  time.Time     // when the batch that is being stored began; zero if none is
	closed bool
	trying bool          // storing has ended, and the next batch is to show whether it goes on
	pause  time.Duration // before the store is tried again
	told   time.Time     // when the log was last told that storing has ended
	stats  QueueStats
}

// group is the verdicts of one call of Add.
type group struct {
	verdicts []Verdict
	result   chan error
}

// QueueStats says how a queue fares.
type QueueStats struct {
	Waiting int       // verdicts in the queue and in the batch that is being stored
	Stored  int64     // verdicts since the start
	Refused int64     // verdicts that Add returned an error for
	Batches int64     // that were stored
	Down    error     // why storing has ended; nil again when something was stored
	Since   time.Time // when it ended
}

// Close ends the queue when all that waits is stored, or when ctx ends. The store
// stays open.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.notify()
	select {
	case <-q.done:
	case <-ctx.Done():
		q.stop()
		<-q.done
	}
	q.stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats.Down
}

// NewQueue returns a queue before a store. Close ends it. log, or [slog.Default] where that is
// nil, is told when storing ends and goes on.
func NewQueue(s Store, log *slog.Logger) *Queue { return newQueue(s, queueOptions{Log: log}) }

func newQueue(s Store, opts queueOptions) *Queue {
	opts.Size, opts.Batch = cmp.Or(opts.Size, 4096), cmp.Or(opts.Batch, 512)
	opts.Wait, opts.Timeout, opts.Retry = cmp.Or(opts.Wait, 2*time.Second), cmp.Or(opts.Timeout, 10*time.Second), cmp.Or(opts.Retry, time.Second)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	ctx, stop := context.WithCancel(context.Background())
	q := &Queue{store: s, opts: opts, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go q.work(ctx)
	return q
}

// Stats returns how the queue fares now.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// Add stores verdicts together. When it returns nil they are durable, as [Store.Add]
// says. Any error wraps ErrNotStored: the verdicts may be lost. It comes at once
// while storing has ended or the queue is full, and after queueOptions.Wait at the
// latest.
func (q *Queue) Add(ctx context.Context, verdicts ...Verdict) error {
	if len(verdicts) == 0 {
		return nil
	}
	g := &group{verdicts, make(chan error, 1)}
	err := q.push(g)
	if err == nil {
		q.notify()
		patience := time.NewTimer(q.opts.Wait)
		defer patience.Stop()
		select {
		case err = <-g.result:
		case <-ctx.Done():
			err = ctx.Err()
		case <-patience.C:
			err = fmt.Errorf("the store took longer than %v", q.opts.Wait)
		}
	}
	if err == nil {
		return nil
	}
	q.mu.Lock()
	q.stats.Refused += int64(len(verdicts))
	q.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrNotStored, err)
}

// push puts a group into the queue unless it would wait in vain.
func (q *Queue) push(g *group) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errors.New("the queue is closed")
	case q.stats.Down != nil && !q.trying:
		return q.stats.Down
	case !q.since.IsZero() && time.Since(q.since) > q.opts.Wait:
		return fmt.Errorf("the store has not answered for %v", q.opts.Wait)
	case q.stats.Waiting+len(g.verdicts) > q.opts.Size:
		return fmt.Errorf("%d verdicts wait to be stored", q.stats.Waiting)
	}
	q.groups = append(q.groups, g)
	q.stats.Waiting += len(g.verdicts)
	return nil
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// work stores what waits until the queue is closed and empty.
func (q *Queue) work(ctx context.Context) {
	defer close(q.done)
	for {
		batch, n, closed := q.take()
		switch {
		case n == 0 && closed:
			return
		case n == 0:
			<-q.wake
			continue
		}
		err := q.add(ctx, batch, n)
		q.finish(batch, n, err)
		if err != nil {
			q.awaitStore(ctx)
		}
	}
}

// take returns the next groups to store together, and how many verdicts they have.
func (q *Queue) take() (batch []*group, n int, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.groups) > len(batch) && (n == 0 || n+len(q.groups[len(batch)].verdicts) <= q.opts.Batch) {
		n += len(q.groups[len(batch)].verdicts)
		batch = q.groups[:len(batch)+1]
	}
	if q.groups = q.groups[len(batch):]; n > 0 {
		q.since = time.Now()
	}
	return batch, n, q.closed
}

// add stores a batch. A connection that broke while nothing was asked shows only
// now, so a failure is tried once more; verdicts that are stored already are passed
// over.
func (q *Queue) add(ctx context.Context, batch []*group, n int) error {
	ctx, cancel := context.WithTimeout(ctx, q.opts.Timeout)
	defer cancel()
	verdicts := make([]Verdict, 0, n)
	for _, g := range batch {
		verdicts = append(verdicts, g.verdicts...)
	}
	err := q.store.Add(ctx, verdicts)
	if err != nil && ctx.Err() == nil {
		err = q.store.Add(ctx, verdicts)
	}
	return err
}

// finish tells the callers of Add what became of a batch, and after a failure also
// those that wait behind it.
func (q *Queue) finish(batch []*group, n int, err error) {
	q.mu.Lock()
	q.since = time.Time{}
	q.stats.Waiting -= n
	before, refused := q.stats, q.stats.Refused
	tell := false
	if err == nil {
		q.stats.Stored += int64(n)
		q.stats.Batches++
		q.stats.Down, q.stats.Since, q.trying, q.pause = nil, time.Time{}, false, 0
	} else {
		q.trying = false
		if q.stats.Down == nil {
			q.stats.Since = time.Now()
		}
		if tell = q.stats.Down == nil || time.Since(q.told) > reminder; tell {
			q.told = time.Now()
		}
		q.stats.Down = err
		batch = append(batch[:len(batch):len(batch)], q.groups...)
		q.groups, q.stats.Waiting = nil, 0
	}
	q.mu.Unlock()
	switch {
	case err == nil && before.Down != nil:
		q.opts.Log.Warn("storing goes on", "after", time.Since(before.Since).Round(time.Millisecond), "not_stored_since_start", refused)
	case tell:
		q.opts.Log.Error("storing has ended: verdicts are answered and not stored", "error", err, "not_stored_since_start", refused)
	}
	for _, g := range batch {
		g.result <- err
	}
}

const (
	reminder   = time.Minute // how often the log says that storing has not gone on
	mostPauses = 30          // the longest pause before a store is tried again, in those of queueOptions.Retry
)

// awaitStore returns when the store seems to be usable again, or the queue is closed.
// A full disk may take the little that Ping writes and no batch, so that the pauses
// grow until something was stored.
func (q *Queue) awaitStore(ctx context.Context) {
	for {
		q.pause = min(max(q.opts.Retry, 2*q.pause), mostPauses*q.opts.Retry)
		pause := time.NewTimer(q.pause)
		for waiting := true; waiting; {
			select {
			case <-pause.C:
				waiting = false
			case <-q.wake:
				q.mu.Lock()
				closed := q.closed
				q.mu.Unlock()
				if closed {
					pause.Stop()
					return
				}
			}
		}
		try, cancel := context.WithTimeout(ctx, q.opts.Timeout)
		err := q.store.Ping(try)
		cancel()
		q.mu.Lock()
		q.trying = err == nil
		down, refused := q.stats.Down, q.stats.Refused
		tell := err != nil && time.Since(q.told) > reminder
		if tell {
			q.told = time.Now()
		}
		q.mu.Unlock()
		if err == nil {
			return
		}
		if tell {
			q.opts.Log.Error("storing has not gone on", "error", err, "first", down, "not_stored_since_start", refused)
		}
	}
}
