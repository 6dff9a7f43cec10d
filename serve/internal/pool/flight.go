package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// A Flight has the work that is being done. Its zero value is ready.
//
// It does work once for all who ask for the same at the same time.
type Flight[K comparable, V any] struct {
	mu   sync.Mutex
	work map[K]*call[V]
	all  sync.WaitGroup
}

type call[V any] struct {
	done    chan struct{} // closed once there is a result
	value   V
	err     error
	waiting int // guarded by Group.mu
	cancel  context.CancelFunc
}

// Do returns what do delivers for key. Whoever asks for a key whose result is still to
// come waits for that result; shared tells that it did. The context of do has the
// values of the first caller's, and is cancelled once nobody waits any more. After it
// has delivered, do may go on; its context then stays. A panic of do is an error.
func (g *Flight[K, V]) Do(ctx context.Context, key K, do func(ctx context.Context, deliver func(V, error))) (v V, shared bool, err error) {
	g.mu.Lock()
	c, shared := g.work[key]
	if !shared {
		if g.work == nil {
			g.work = map[K]*call[V]{}
		}
		c = &call[V]{done: make(chan struct{})}
		g.work[key] = c
		detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
		c.cancel = cancel
		g.all.Go(func() { g.run(detached, key, c, do) })
	}
	c.waiting++
	g.mu.Unlock()
	select {
	case <-c.done:
		return c.value, shared, c.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		select {
		case <-c.done: // and what follows the delivery goes on
		default:
			c.cancel()
			g.remove(key, c) // who asks from here on starts anew
		}
	}
	return v, shared, ctx.Err()
}

// run runs do, whose first delivery counts.
func (g *Flight[K, V]) run(ctx context.Context, key K, c *call[V], do func(context.Context, func(V, error))) {
	defer c.cancel()
	var once sync.Once
	deliver := func(v V, err error) {
		once.Do(func() {
			c.value, c.err = v, err
			g.mu.Lock()
			defer g.mu.Unlock()
			g.remove(key, c)
			close(c.done)
		})
	}
	defer func() {
		var none V
		if p := recover(); p != nil {
			deliver(none, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			return
		}
		deliver(none, fmt.Errorf("nothing was delivered"))
	}()
	do(ctx, deliver)
}

// remove forgets a call, if it is the one of its key.
func (g *Flight[K, V]) remove(key K, c *call[V]) {
	if g.work[key] == c {
		delete(g.work, key)
	}
}

// Wait waits until nothing is done any more.
func (g *Flight[K, V]) Wait() { g.all.Wait() }

// Gather gathers values by key. Its fields must not change once it is used.
//
// It does work of one kind together where that is cheaper than one by one,
// and where more of it is about to come: nothing waits that nothing follows.
type Gather[K comparable, V, R any] struct {
	// Most is how many values are worked on together at most.
	Most int
	// Coming tells how many more values of the key are likely to be added soon. Whoever
	// was counted calls [Group.Settle] when no value comes of it.
	Coming func(key K) int
	// Do works on values and returns as many results.
	Do func(key K, values []V) ([]R, error)

	mu      sync.Mutex
	waiting map[K]*block[V, R]
}

// block is values that wait.
type block[V, R any] struct {
	values  []V
	done    chan struct{} // closed when there are results
	results []R
	err     error
}

// Add adds a value. Its result comes once it is worked on: here, if nothing is to be
// waited for, or else by a later Add or Settle of somebody else, until which the result's
// function waits.
func (g *Gather[K, V, R]) Add(key K, value V) (result func() (R, error)) {
	g.mu.Lock()
	b := g.waiting[key]
	if b == nil {
		if g.waiting == nil {
			g.waiting = map[K]*block[V, R]{}
		}
		b = &block[V, R]{done: make(chan struct{})}
		g.waiting[key] = b
	}
	at := len(b.values)
	if b.values = append(b.values, value); len(b.values) == g.Most {
		delete(g.waiting, key)
		g.mu.Unlock()
		g.run(key, b)
	} else {
		g.mu.Unlock()
		g.Settle()
	}
	return func() (r R, err error) {
		if <-b.done; b.err != nil {
			return r, b.err
		}
		return b.results[at], nil
	}
}

// Settle works on the values that need not wait any longer: those that are at least half
// as many as are about to come.
func (g *Gather[K, V, R]) Settle() {
	g.mu.Lock()
	ready := map[K]*block[V, R]{}
	for key, b := range g.waiting {
		if 2*len(b.values) >= g.Coming(key) {
			ready[key] = b
			delete(g.waiting, key)
		}
	}
	g.mu.Unlock()
	for key, b := range ready {
		defer g.run(key, b) // also after a panic of another
	}
}

// run works on a block. Where Do panics, all its values have an error.
func (g *Gather[K, V, R]) run(key K, b *block[V, R]) {
	b.err = errors.New("this was worked on together with what failed")
	defer close(b.done)
	b.results, b.err = g.Do(key, b.values)
}
