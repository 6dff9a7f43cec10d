package pool_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// group doubles numbers and notes how many were doubled together.
func group(coming *int, sizes *[]int) *pool.Gather[string, int, int] {
	return &pool.Gather[string, int, int]{Most: 4, Coming: func(string) int { return *coming }, Do: func(_ string, values []int) ([]int, error) {
		*sizes = append(*sizes, len(values))
		results := make([]int, len(values))
		for i, v := range values {
			if v < 0 {
				return nil, errors.New("negative")
			}
			results[i] = 2 * v
		}
		return results, nil
	}}
}

func expect(t *testing.T, result func() (int, error), want int) {
	t.Helper()
	if got, err := result(); err != nil || got != want {
		t.Errorf("%d, %v, want %d", got, err, want)
	}
}

func TestNothingWaitsForNothing(t *testing.T) {
	coming, sizes := 0, []int(nil)
	g := group(&coming, &sizes)
	expect(t, g.Add("a", 1), 2)
	expect(t, g.Add("a", 2), 4)
	if len(sizes) != 2 {
		t.Errorf("blocks of %v", sizes)
	}
}

func TestManyAreDoneTogether(t *testing.T) {
	coming, sizes := 100, []int(nil)
	g := group(&coming, &sizes)
	var results []func() (int, error)
	for i := range 6 {
		results = append(results, g.Add("a", i))
	}
	other := g.Add("b", 50)
	if len(sizes) != 1 || sizes[0] != 4 {
		t.Fatalf("blocks of %v, want one of 4", sizes)
	}
	// What was about to come is over: nobody adds any more.
	coming = 0
	g.Settle()
	for i, r := range results {
		expect(t, r, 2*i)
	}
	expect(t, other, 100)
}

func TestAnErrorIsThatOfItsBlock(t *testing.T) {
	coming, sizes := 3, []int(nil)
	g := group(&coming, &sizes)
	bad := g.Add("a", -1)
	good := g.Add("b", 1)
	coming = 0
	g.Settle()
	if _, err := bad(); err == nil {
		t.Error("no error")
	}
	expect(t, good, 2)
}

func TestAPanicLeavesNobodyWaiting(t *testing.T) {
	coming := 3
	g := &pool.Gather[int, int, int]{Most: 4, Coming: func(int) int { return coming }, Do: func(int, []int) ([]int, error) { panic("no") }}
	first := g.Add(1, 1)
	coming = 0
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		g.Settle()
	}()
	if _, err := first(); err == nil {
		t.Error("no error")
	}
}

func TestFromManyGoroutines(t *testing.T) {
	g := &pool.Gather[int, int, int]{Most: 4, Coming: func(int) int { return 0 }, Do: func(_ int, values []int) ([]int, error) { return values, nil }}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { expect(t, g.Add(i%3, i), i) })
	}
	all.Wait()
}

// One key's value does not wait for what comes of another.
func TestKeysWaitAlone(t *testing.T) {
	g := &pool.Gather[string, int, int]{Most: 4, Coming: func(key string) int {
		if key == "busy" {
			return 100
		}
		return 0
	}, Do: func(_ string, values []int) ([]int, error) { return values, nil }}
	g.Add("busy", 1)
	if r, err := g.Add("rare", 2)(); r != 2 || err != nil {
		t.Errorf("%d, %v", r, err)
	}
}
