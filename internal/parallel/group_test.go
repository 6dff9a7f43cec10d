package parallel

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// A panic of a worker reaches whoever waits, with the stack where it happened.
func TestPanicReachesTheCaller(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	panicking := func(i int) {
		if i == 3 {
			panic("oh")
		}
	}
	for name, do := range map[string]func(){
		"Each":   func() { Each(2, 8, panicking) },
		"Blocks": func() { _ = Blocks(context.Background(), 8, 1, func(from, _ int) { panicking(from) }) },
		"Task":   func() { Start(func() error { panicking(3); return nil }).Wait() },
		"nested": func() { Each(2, 2, func(int) { Each(2, 8, panicking) }) },
	} {
		func() {
			defer func() {
				p, ok := recover().(*Panic)
				if !ok || p.Value != "oh" || !strings.Contains(p.Error(), "TestPanicReachesTheCaller.func") {
					t.Errorf("%s: recovered %v", name, p)
				}
			}()
			do()
			t.Errorf("%s: no panic", name)
		}()
	}
	if got := Start(func() int { return 7 }).Wait(); got != 7 {
		t.Errorf("a task answers %d", got)
	}
	group, ctx := WithContext(t.Context())
	failed := errors.New("failed")
	group.Go(func() error { return failed })
	group.Go(func() error { <-ctx.Done(); return ctx.Err() })
	if err := group.Wait(); err != failed {
		t.Errorf("the error is %v", err)
	}
}
