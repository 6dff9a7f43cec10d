package pool

import (
	"context"
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
