package parallel

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

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
