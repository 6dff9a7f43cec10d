package pool

import (
	"errors"
	"sync"
)

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
