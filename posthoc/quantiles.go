package posthoc

import (
	"context"
	"math"
	"runtime"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// quantiles returns the quantiles q, each in [0, 1], of all features, interpolated
// linearly, as numpy.percentile does. They are exact and take a fixed memory: the
// bits of float32 values sort as the values do, so one pass counts the upper 16
// bits, and another the lower 16 bits of the values with the upper bits in
// question.
func (data *Data) quantiles(ctx context.Context, q ...float64) ([]float64, error) {
	last := float64(data.N*data.D - 1)
	var ranks []int
	for _, q := range q {
		at := math.Floor(q * last)
		ranks = append(ranks, int(at), int(min(at+1, last)))
	}
	upper, err := data.countKeys(ctx, func(key uint32) (uint32, bool) { return key >> 16, true })
	if err != nil {
		return nil, err
	}
	buckets, within := make([]uint32, len(ranks)), make([]int, len(ranks))
	lower := map[uint32][]int{}
	for i, rank := range ranks {
		buckets[i], within[i] = find(upper, rank)
		b := buckets[i]
		if lower[b] != nil {
			continue
		}
		lower[b], err = data.countKeys(ctx, func(key uint32) (uint32, bool) { return key & 0xffff, key>>16 == b })
		if err != nil {
			return nil, err
		}
	}
	values := make([]float64, len(ranks))
	for i, b := range buckets {
		low, _ := find(lower[b], within[i])
		values[i] = fromKey(b<<16 | low)
	}
	found := make([]float64, len(q))
	for i, q := range q {
		a, b := values[2*i], values[2*i+1]
		found[i] = a + (b-a)*(q*last-math.Floor(q*last))
	}
	return found, nil
}

// countKeys counts, on all cores, one half of each value's key. Keys sort as values
// do. half returns the half to count, if any.
func (data *Data) countKeys(ctx context.Context, half func(key uint32) (uint32, bool)) ([]int, error) {
	rooms := make(chan []int, runtime.GOMAXPROCS(0))
	for range cap(rooms) {
		rooms <- make([]int, 1<<16)
	}
	err := parallel.Blocks(ctx, data.N, 4*blockRows, func(from, to int) {
		counts := <-rooms
		for _, v := range data.Features(from, to) {
			bits := math.Float32bits(v)
			if at, ok := half(bits ^ (uint32(int32(bits)>>31) | 1<<31)); ok {
				counts[at]++
			}
		}
		rooms <- counts
	})
	all := <-rooms
	for range cap(rooms) - 1 {
		for at, n := range <-rooms {
			all[at] += n
		}
	}
	return all, err
}

func fromKey(key uint32) float64 {
	if key&(1<<31) != 0 {
		return float64(math.Float32frombits(key &^ (1 << 31)))
	}
	return float64(math.Float32frombits(^key))
}

// find returns the bucket with the value of a rank, and the value's rank in it.
func find(counts []int, rank int) (bucket uint32, left int) {
	for b, count := range counts {
		if rank < count {
			return uint32(b), rank
		}
		rank -= count
	}
	panic("posthoc: a rank beyond the values")
}
