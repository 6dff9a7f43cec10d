// Package parallel divides loops among the processor's cores. The results must not
// depend on the number of cores.
package parallel

import (
	"context"
	"runtime"
	"sync/atomic"
)

// Ranges divides 0 … n−1 into parts that begin at multiples of size, and processes
// them on all cores. It calls worker once per core; the function that worker
// returns processes the parts of one goroutine. The first error, or ctx, ends the
// loop.
func Ranges(ctx context.Context, n, size int, worker func() func(from, to int) error) error {
	var next atomic.Int64
	workers := min(runtime.GOMAXPROCS(0), (n+size-1)/size)
	if workers == 1 {
		do := worker()
		for from := 0; from < n; from += size {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(from, min(from+size, n)); err != nil {
				return err
			}
		}
		return nil
	}
	group, ctx := WithContext(ctx)
	for range workers {
		group.Go(func() error {
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
		})
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
	var next atomic.Int64
	group, _ := WithContext(context.Background())
	for range workers {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
			return nil
		})
	}
	_ = group.Wait() // there are no errors
}
