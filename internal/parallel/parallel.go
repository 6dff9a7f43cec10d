// Package parallel divides loops among the processor's cores. The results must not
// depend on the number of cores.
package parallel

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Ranges divides 0 … n−1 into parts that begin at multiples of size, and processes
// them on all cores. It calls worker once per core; the function that worker
// returns processes the parts of one goroutine. The first error, or ctx, ends the
// loop.
func Ranges(ctx context.Context, n, size int, worker func() func(from, to int) error) error {
	return ranges(ctx, min(runtime.GOMAXPROCS(0), (n+size-1)/size), n, size, worker)
}

// ranges is Ranges on so many goroutines.
func ranges(ctx context.Context, workers, n, size int, worker func() func(from, to int) error) error {
	var next atomic.Int64
	work := func(ctx context.Context) error {
		do := worker()
		for {
			from := int(next.Add(int64(size))) - size
			if from >= n {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(from, min(from+size, n)); err != nil {
				return err
			}
		}
	}
	if workers == 1 {
		return work(ctx)
	}
	group, ctx := WithContext(ctx)
	for range workers {
		group.Go(func() error { return work(ctx) })
	}
	return group.Wait()
}

// Blocks calls do for parts of the range 0 … n−1 that begin at multiples of
// size, on all cores. It stops with ctx and returns its error.
func Blocks(ctx context.Context, n, size int, do func(from, to int)) error {
	return Ranges(ctx, n, size, func() func(from, to int) error {
		return func(from, to int) error {
			do(from, to)
			return nil
		}
	})
}

// Each calls do for 0 … n−1, on the given number of goroutines.
func Each(workers, n int, do func(i int)) {
	if workers = min(workers, n); workers <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	_ = ranges(context.Background(), workers, n, 1, func() func(from, to int) error { // there are no errors
		return func(i, _ int) error {
			do(i)
			return nil
		}
	})
}

// Group is an errgroup.Group whose Wait panics with what a worker panicked with. A panic on
// a goroutine that nobody recovers would end the process, of which a program in Python may
// be the main part. [WithContext] makes one.
type Group struct {
	group    *errgroup.Group
	panicked atomic.Pointer[Panic]
}

// Panic is a panic of a worker, with the stack where it happened.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n%s", p.Value, p.Stack) }

// WithContext returns a group whose context ends with its first error or panic, or when
// Wait returns.
func WithContext(ctx context.Context) (*Group, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &Group{group: group}, ctx
}

// Go lets a worker run.
func (g *Group) Go(work func() error) {
	g.group.Go(func() (err error) {
		defer func() {
			if p := Recovered(recover()); p != nil {
				g.panicked.CompareAndSwap(nil, p)
				err = p
			}
		}()
		return work()
	})
}

// SetLimit bounds the number of workers at a time; Go waits for a place.
func (g *Group) SetLimit(n int) { g.group.SetLimit(n) }

// Wait waits for all workers, and returns the first error.
func (g *Group) Wait() error {
	err := g.group.Wait()
	if p := g.panicked.Load(); p != nil {
		panic(p)
	}
	return err
}

// Task is work on a goroutine of its own. [Start] begins one.
type Task[T any] struct {
	done     chan struct{}
	answer   T
	panicked *Panic
}

// Start begins a task.
func Start[T any](work func() T) *Task[T] {
	t := &Task[T]{done: make(chan struct{})}
	go func() {
		defer func() {
			t.panicked = Recovered(recover())
			close(t.done)
		}()
		t.answer = work()
	}()
	return t
}

// Done is closed when the task has ended.
func (t *Task[T]) Done() <-chan struct{} { return t.done }

// Wait returns the answer of the task when it has ended, and panics with what the task
// panicked with.
func (t *Task[T]) Wait() T {
	<-t.done
	if t.panicked != nil {
		panic(t.panicked)
	}
	return t.answer
}

// Recovered makes a Panic of what recover returned, nil of nil. It is called where that
// happened, so that the stack is known; a Panic stays as it is.
func Recovered(value any) *Panic {
	if value == nil {
		return nil
	}
	if p, ok := value.(*Panic); ok {
		return p
	}
	return &Panic{value, debug.Stack()}
}
