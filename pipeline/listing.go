package pipeline

import (
	"context"
	"io"
	"sync"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// listing is a listing of images in the making, and a stream of those that it has found:
// they are taken from it while more are being found.
type listing struct {
	wake chan struct{} // has a value when something has changed

	mu       sync.Mutex
	blocks   [][]images.Item        // found, and neither taken nor known; in blocks, to let go of them one by one
	n        int                    // images in blocks
	taken    int                    // images that were taken
	known    func(images.Item) bool // nothing is to be done of those; nil knows none
	complete *images.Listing        // nil until all are found
}

// list begins to list images, those that belong to the shard. If that fails it
// cancels ctx with the error. The function that it returns waits for the end.
func list(ctx context.Context, cancel context.CancelCauseFunc, opts ExtractOptions) (*listing, func()) {
	l := &listing{wake: make(chan struct{}, 1)}
	listed := parallel.Start(func() error {
		defer func() {
			if p := parallel.Recovered(recover()); p != nil {
				cancel(p)
				panic(p)
			}
		}()
		found := func(item images.Item) error {
			if opts.Shard.Holds(item.Path) {
				l.add(item)
			}
			return nil
		}
		all := opts.Listing
		if all == nil {
			var err error
			if all, err = images.ListContext(ctx, images.ListOptions{Root: opts.Images, ListFile: opts.List, NamesFile: opts.Names, Found: found}); err != nil {
				cancel(err)
				return err
			}
		} else {
			for _, item := range all.Items {
				_ = found(item)
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.complete = all
		l.changed()
		return nil
	})
	return l, func() { _ = listed.Wait() }
}

func (l *listing) changed() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listing) add(item images.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || !l.known(item) {
		l.push(item)
		l.changed()
	}
}

func (l *listing) push(item images.Item) {
	last := len(l.blocks) - 1
	if last < 0 || len(l.blocks[last]) == cap(l.blocks[last]) {
		l.blocks = append(l.blocks, make([]images.Item, 0, firstImages))
		last++
	}
	l.blocks[last] = append(l.blocks[last], item)
	l.n++
}

// wait waits until there are n images to take, or no more to come, and returns
// the first of them, and the listing if it is complete.
func (l *listing) wait(ctx context.Context, n int) ([]images.Item, *images.Listing, error) {
	for {
		if left, complete := l.look(); left >= n || complete != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.n == 0 {
				return nil, complete, nil
			}
			return l.blocks[0], complete, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-l.wake:
		}
	}
}

// look returns how many images there are to take, and the listing if it is
// complete.
func (l *listing) look() (int, *images.Listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n, l.complete
}

// take takes up to most images, and waits for the first. There are none at the end.
func (l *listing) take(ctx context.Context, most int) ([]images.Item, error) {
	if _, _, err := l.wait(ctx, 1); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return nil, nil
	}
	first := l.blocks[0]
	n := min(most, len(first))
	if l.blocks[0] = first[n:]; n == len(first) {
		l.blocks[0] = nil // which the array under blocks would keep
		l.blocks = l.blocks[1:]
	}
	l.n -= n
	l.taken += n
	return first[:n:n], nil
}

// Next is that of [images.Stream].
func (l *listing) Next(ctx context.Context) (images.Item, error) {
	items, err := l.take(ctx, 1)
	if err != nil {
		return images.Item{}, err
	}
	if len(items) == 0 {
		return images.Item{}, io.EOF
	}
	return items[0], nil
}

// Total is that of [images.Stream].
func (l *listing) Total() (n int, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken + l.n, l.complete != nil
}

// leaveOut says of which images nothing is to be done.
func (l *listing) leaveOut(known func(images.Item) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	blocks := l.blocks
	l.known, l.blocks, l.n = known, nil, 0
	for _, block := range blocks {
		for _, item := range block {
			if !known(item) {
				l.push(item)
			}
		}
	}
}
