package serve

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/access"
)

// places are the limits of the work: how many images are judged at once, how much memory
// those take together, and how many are let in, waiting or judged. Whose turn it is goes
// round among clients, by the work that was done for each.
type places struct {
	most      int // images that are let in
	perClient int // of them of one client; 0 is no bound
	slots     int // images that are judged at once
	memory    int64

	mu      sync.Mutex
	in      int
	of      map[string]share // by client
	bytes   int64            // of their files
	mean    float64          // seconds that an image is judged, a moving mean
	running int
	slow    int              // of those, that take long
	decoded int64            // memory that those take
	turns   []*turn          // that wait
	work    map[string]*work // of clients that have some
	least   float64          // seconds of work of the client that had the last turn: what a new one begins with
}

// turn is an image that waits to be judged.
type turn struct {
	client string
	cost   preprocess.Cost
	rank   time.Time // among those of its client
	begin  chan struct{}
}

// work is what was done for a client while it had turns.
type work struct {
	seconds float64
	turns   int // that wait or run
}

const (
	// takesLong is from which time of decoding on images may not have all places at
	// once, so that one is left for those of which there are many in a second.
	takesLong = 500 * time.Millisecond
	// overtakes is how many times its own time an image waits for others of its client that
	// came later and take less.
	overtakes = 10
	// usualWork is what an image takes beside decoding, about.
	usualWork = 10 * time.Millisecond
)

func newPlaces(running, waiting, perClient int, memory int64) *places {
	return &places{most: running + waiting, perClient: max(0, perClient), slots: running, memory: memory, of: map[string]share{}, work: map[string]*work{}}
}

// maxBytes bounds the bytes of the files of all images that are let in or read, beside half of
// the memory for decoding; one client may have half of them.
const maxBytes = 1 << 30

// share is what one client has of what is let in.
type share struct {
	images int
	bytes  int64
}

// enter lets n images of a client in, and bytes of their files, or nothing.
func (p *places) enter(client string, n int, bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	has, most := p.of[client], min(maxBytes, p.memory/2)
	switch {
	case n > 0 && p.in+n > p.most, p.bytes+bytes > most:
		return errBusy
	case p.perClient > 0 && (n > 0 && has.images > 0 && has.images+n > p.perClient || bytes > 0 && has.bytes+bytes > most/2):
		return errBusyClient
	}
	p.count(client, n, bytes)
	return nil
}

// leave gives back what enter let in.
func (p *places) leave(client string, n int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(client, -n, -bytes)
}

func (p *places) count(client string, n int, bytes int64) {
	p.in += n
	p.bytes += bytes
	has := p.of[client]
	if has = (share{has.images + n, has.bytes + bytes}); has == (share{}) {
		delete(p.of, client)
		return
	}
	p.of[client] = has
}

// run waits until work that takes little memory may be done. Its end is called when it is.
func (p *places) run(ctx context.Context) (end func(), err error) {
	return p.decode(ctx, preprocess.Cost{})
}

// decode is run of an image that costs so much.
func (p *places) decode(ctx context.Context, cost preprocess.Cost) (end func(), err error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	cost.Bytes = min(cost.Bytes, p.memory) // one that takes more is alone
	t := &turn{clientOf(ctx), cost, time.Now().Add(overtakes * cost.Time), make(chan struct{})}
	p.mu.Lock()
	if p.work[t.client] == nil {
		p.work[t.client] = &work{seconds: p.least}
	}
	p.work[t.client].turns++
	p.turns = append(p.turns, t)
	p.next()
	p.mu.Unlock()
	select {
	case <-t.begin:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		select {
		case <-t.begin: // meanwhile
			p.ended(t)
		default:
			p.turns = slices.DeleteFunc(p.turns, func(other *turn) bool { return other == t })
			p.left(t)
		}
		return nil, ctx.Err()
	}
	start := time.Now()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		took := time.Since(start)
		p.work[t.client].seconds += max(0, took-t.planned()).Seconds()
		p.mean += 0.05 * (took.Seconds() - p.mean)
		p.ended(t)
	}, nil
}

func (t *turn) planned() time.Duration { return t.cost.Time + usualWork }
func (t *turn) slow() bool             { return t.cost.Time >= takesLong }

// next gives turns while there are places: to the client for which least was done, if it
// has an image that fits. p.mu is held.
func (p *places) next() {
	for p.running < p.slots {
		var best *turn
		for _, t := range p.turns {
			if t.slow() && p.slow >= max(1, p.slots-1) || p.decoded+t.cost.Bytes > p.memory {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(p.work[t.client].seconds, p.work[best.client].seconds), t.rank.Compare(best.rank)) < 0 {
				best = t
			}
		}
		if best == nil {
			return
		}
		p.turns = slices.DeleteFunc(p.turns, func(t *turn) bool { return t == best })
		w := p.work[best.client]
		p.least = max(p.least, w.seconds)
		w.seconds += best.planned().Seconds()
		p.running++
		p.decoded += best.cost.Bytes
		if best.slow() {
			p.slow++
		}
		close(best.begin)
	}
}

// ended gives back what a turn had. p.mu is held.
func (p *places) ended(t *turn) {
	p.running--
	p.decoded -= t.cost.Bytes
	if t.slow() {
		p.slow--
	}
	p.left(t)
	p.next()
}

// left forgets a turn. p.mu is held.
func (p *places) left(t *turn) {
	w := p.work[t.client]
	if w.turns--; w.turns == 0 {
		delete(p.work, t.client)
	}
}

// counts returns how many images run and wait.
func (p *places) counts() (running, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, max(0, p.in-p.running)
}

// retryAfter is in how many seconds those will be done that are in.
func (p *places) retryAfter() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(math.Min(30, math.Ceil(1e-3+p.mean*float64(p.in)/float64(p.slots))))
}

// seats are the places that one request has, and the memory for its body.
type seats struct {
	places *places
	client string
	n      int
	bytes  int64
}

// take takes more of both, or nothing.
func (t *seats) take(n int, bytes int64) error {
	if err := t.places.enter(t.client, n, bytes); err != nil {
		return err
	}
	t.n += n
	t.bytes += bytes
	return nil
}

func (t *seats) leave() { t.places.leave(t.client, t.n, t.bytes) }

// caller is a key of contexts: who asks.
type caller struct{}

// who asks: by which token, and from where.
type who struct {
	access.Bearer
	address string
}

// clientOf is who asks, for taking turns; "" is the service itself.
func clientOf(ctx context.Context) string {
	w, _ := ctx.Value(caller{}).(who)
	return cmp.Or(w.Name, access.ClientOf(w.address))
}
