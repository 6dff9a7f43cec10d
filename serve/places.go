package serve

import (
	"context"
	"math"
	"sync"
	"time"
)

// places are the two limits: how many images are judged at once, and how many are let
// in, waiting or judged.
type places struct {
	running chan struct{}
	most    int

	mu    sync.Mutex
	in    int
	bytes int64   // of their files
	mean  float64 // seconds that an image is judged, a moving mean
}

func newPlaces(running, most int) *places {
	return &places{running: make(chan struct{}, running), most: most}
}

// maxBytes bounds the bytes of the files of all images that are let in.
const maxBytes = 1 << 30

// enter lets n images in, and bytes of their files, or nothing.
func (p *places) enter(n int, bytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.in+n > p.most || p.bytes+bytes > maxBytes {
		return false
	}
	p.in += n
	p.bytes += bytes
	return true
}

// leave gives back what enter let in.
func (p *places) leave(n int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in -= n
	p.bytes -= bytes
}

// run waits until an image may be judged. Its end is called when it is.
func (p *places) run(ctx context.Context) (end func(), err error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	select {
	case p.running <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	start := time.Now()
	return func() {
		<-p.running
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mean += 0.05 * (time.Since(start).Seconds() - p.mean)
	}, nil
}

// counts returns how many images run and wait.
func (p *places) counts() (running, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	running = len(p.running)
	return running, max(0, p.in-running)
}

// retryAfter is in how many seconds those will be done that are in.
func (p *places) retryAfter() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(math.Min(30, math.Ceil(1e-3+p.mean*float64(p.in)/float64(cap(p.running)))))
}

// seats are the places that one request has, and the memory for its body.
type seats struct {
	places *places
	n      int
	bytes  int64
}

// take takes more of both, or nothing.
func (t *seats) take(n int, bytes int64) error {
	if !t.places.enter(n, bytes) {
		return errBusy
	}
	t.n += n
	t.bytes += bytes
	return nil
}

func (t *seats) leave() { t.places.leave(t.n, t.bytes) }
