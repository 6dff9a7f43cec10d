package pool

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestOnce: who asks for the same meanwhile gets the same, and who asks later has it
// done anew.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Flight[string, int]
		runs := 0
		release := make(chan struct{})
		ask := func() (int, bool, error) {
			return g.Do(t.Context(), "a", func(_ context.Context, deliver func(int, error)) {
				runs++
				<-release
				deliver(runs, nil)
			})
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		waited := 0
		for range 10 {
			all.Go(func() {
				v, shared, err := ask()
				if v != 1 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if shared {
					waited++
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		if runs != 1 || waited != 9 {
			t.Errorf("%d runs, %d shared one", runs, waited)
		}
		if v, shared, err := ask(); v != 2 || shared || err != nil {
			t.Errorf("later: %d, %v, %v", v, shared, err)
		}
		g.Wait()
	})
}

// TestCancel: one who leaves disturbs no other; the last one ends the work.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Flight[int, int]
		ended := errors.New("ended")
		release := make(chan struct{})
		do := func(ctx context.Context, deliver func(int, error)) {
			select {
			case <-release:
				deliver(7, nil)
			case <-ctx.Done():
				deliver(0, ended)
			}
		}
		first, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, _, err := g.Do(first, 1, do); !errors.Is(err, context.Canceled) {
				t.Errorf("who left got %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if v, shared, err := g.Do(t.Context(), 1, do); v != 7 || !shared || err != nil {
				t.Errorf("who stayed got %d, %v, %v", v, shared, err)
			}
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		close(release)
		all.Wait()

		release = make(chan struct{})
		last, leave := context.WithCancel(t.Context())
		all.Go(func() { _, _, _ = g.Do(last, 1, do) })
		synctest.Wait()
		leave()
		all.Wait()
		g.Wait() // which never returns if the work goes on
	})
}

// TestAfterDelivery: work goes on after its result is out, and Wait waits for it.
func TestAfterDelivery(t *testing.T) {
	var g Flight[int, int]
	ctx, cancel := context.WithCancel(t.Context())
	went := false
	release := make(chan struct{})
	v, _, err := g.Do(ctx, 1, func(ctx context.Context, deliver func(int, error)) {
		deliver(3, nil)
		<-release
		went = ctx.Err() == nil
	})
	cancel()
	if v != 3 || err != nil {
		t.Error(v, err)
	}
	close(release)
	if g.Wait(); !went {
		t.Error("what follows the delivery was cancelled")
	}
}

// TestPanic: a panic is an error of those who asked.
func TestPanic(t *testing.T) {
	var g Flight[int, int]
	if _, _, err := g.Do(t.Context(), 1, func(context.Context, func(int, error)) { panic("boom") }); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Error(err)
	}
	if _, _, err := g.Do(t.Context(), 1, func(context.Context, func(int, error)) {}); err == nil {
		t.Error("no result is no error")
	}
}
