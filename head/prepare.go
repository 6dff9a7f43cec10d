package head

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"mlrbfn/internal/spill"
)

// Prepared is rows to train heads on, one per seed: what these have in common
// is found once. Any number of goroutines may train on it.
type Prepared struct {
	cfg        Config
	train, val Data // what the layers read
	given      Data // the rows that an open head's score is fitted on, conditioned
	classes    int
	density    *Density // of an open head
}

// Prepare makes rows ready for heads of cfg's shape. What it makes of them is
// kept in space; nil means in memory. Close frees it, when no head is in training
// any more.
func Prepare(ctx context.Context, cfg Config, train, val Data, classes int, space *spill.Space) (_ *Prepared, err error) {
	if cfg, err = cfg.WithDefaults(); err != nil {
		return nil, err
	}
	if err := checkBoth(train, val, classes); err != nil {
		return nil, err
	}
	p := &Prepared{cfg: cfg, train: train, val: val, classes: classes}
	if !cfg.Open {
		return p, nil
	}
	if p.given = val; len(val.Rows) == 0 {
		p.given = train
	}
	if p.density, err = fitDensity(ctx, train, val, classes); err != nil {
		return nil, err
	}
	e := newHead(cfg, train.D, classes).Layers[0].In
	if p.train, err = p.density.reduce(ctx, train, e, space); err != nil {
		return nil, err
	}
	if p.val, err = p.density.reduce(ctx, val, e, space); err != nil {
		return nil, errors.Join(err, p.train.Pages.Close())
	}
	return p, nil
}

// Window returns how many rows are shuffled together, 0 where all are.
func (p *Prepared) Window(batch int) int { return newWindows(p.train, batch).window }

// Train trains a head as the function of that name does.
func (p *Prepared) Train(ctx context.Context, opts TrainOptions) (*MLRBFN, []Epoch, error) {
	opts, err := opts.WithDefaults()
	if err != nil {
		return nil, nil, err
	}
	rng := newRand(opts.Seed)
	d := p.train.D
	if p.cfg.Open {
		d = p.density.D
	}
	m := newHead(p.cfg, d, p.classes)
	m.Density = p.density
	if !m.Open {
		for _, l := range m.Layers {
			for i := range l.Projections {
				l.Projections[i] = float32(rng.NormFloat64())
			}
		}
	}
	t := &trainer{network: networkOf[float32](m, opts.Batch), head: m, val: p.val}
	t.sumLoss = p.cfg.SumLoss
	epochs, err := fit(ctx, t, p.train, p.val, p.classes, opts, rng)
	if err != nil {
		return nil, epochs, err
	}
	t.copyTo(m)
	if m.Open {
		// Nothing of a head that is trained is lost for want of this moment.
		if m.Score, err = m.fitScore(context.WithoutCancel(ctx), p.given); err != nil {
			return nil, epochs, err
		}
	}
	return m, epochs, nil
}

// Close frees what Prepare made.
func (p *Prepared) Close() error {
	if !p.cfg.Open {
		return nil // the rows are the caller's
	}
	return errors.Join(p.train.Pages.Close(), p.val.Pages.Close())
}

// share calls the functions that worker makes, one for each core, for parts of
// the range 0 … n−1 that begin at multiples of size.
func share(ctx context.Context, n, size int, worker func() func(from, to int) error) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), (n+size-1)/size) {
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
