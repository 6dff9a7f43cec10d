package features

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"mlrbfn/internal/npy"
	"mlrbfn/options"
)

// ErrShards says that sets are not all the shards of one whole.
var ErrShards = errors.New("not all the shards of one set")

// Merge makes the feature set in the folder dir from all shards of a whole, given
// in any order. It is bit-identical to the set of one run over the whole listing.
// The shards are verified and read in the order of the rows; a row takes some bytes
// of memory, whatever its length.
//
// A set at dir is replaced as by [Create] and Commit. After an error it is
// unchanged. The error wraps ErrShards if shards are missing, given twice, or of
// different listings, ErrFingerprint if they were made by different models,
// ErrDrifted if a model gave other features for some, and what Open and Create return.
func Merge(ctx context.Context, dir string, shards []string, o Options) (_ Meta, err error) {
	sets := make([]*Set, 0, len(shards))
	defer func() {
		for _, s := range sets {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, shard := range shards {
		s, err := Open(shard)
		if err != nil {
			return Meta{}, err
		}
		sets = append(sets, s)
		if _, err := os.Stat(partialDir(shard)); err == nil {
			return Meta{}, fmt.Errorf("an extraction to %s is running or was interrupted: it left %s; run the same command again before merging", shard, partialDir(shard))
		}
	}
	uniteClasses(sets)
	if err := belongTogether(sets); err != nil {
		return Meta{}, err
	}
	for _, s := range sets[1:] {
		if err := o.check(sets[0].Probe, s.Probe, sets[0].Dir+" and "+s.Dir); err != nil {
			return Meta{}, err
		}
	}
	for _, s := range sets {
		if err := s.Verify(ctx); err != nil {
			return Meta{}, err
		}
	}
	set, err := merged(sets)
	if err != nil {
		return Meta{}, err
	}
	m := sets[0].Meta
	w, err := begin(dir, Header{D: m.D, Root: m.Root, Fingerprint: m.Fingerprint}, o)
	if err != nil {
		return Meta{}, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if rows, err := os.Stat(w.partial(journalRowsFile)); err == nil && rows.Size() > 0 && !o.Force {
		return Meta{}, options.Errorf("Force", "it is needed to delete %s, an unfinished extraction; or finish that, or write to another folder", w.partial(""))
	}
	if old, err := w.inspect(); err != nil {
		return Meta{}, err
	} else if old != nil {
		other := old.Root != m.Root
		if err := old.Close(); err != nil {
			return Meta{}, err
		}
		if other && !o.Force {
			return Meta{}, options.Errorf("Force", "it is needed to replace %s, which was %w, %s; or write to another folder", w.dir, ErrOtherImages, old.Root)
		}
	}
	return w.finish(ctx, set)
}

// belongTogether makes sure that the sets are the shards of one whole, each
// once, and puts them in order.
func belongTogether(sets []*Set) error {
	if len(sets) == 0 {
		return fmt.Errorf("%w: none are given", ErrShards)
	}
	first := sets[0]
	for _, s := range sets {
		if s.Shard == nil {
			return fmt.Errorf("%w: %s is no shard of a set", ErrShards, s.Dir)
		}
		if err := SameSpace(first, s); err != nil {
			return err
		}
		_, columns := first.Logits()
		_, others := s.Logits()
		switch a, b := first.Shard, s.Shard; {
		case a.Count != b.Count:
			return fmt.Errorf("%w: %s is shard %s, %s is shard %s", ErrShards, first.Dir, a, s.Dir, b)
		case b.Index < 1 || b.Index > b.Count || b.Images < 0:
			return s.damaged(metaFile, "it is shard %s of %d images", b, b.Images)
		case columns != others:
			return fmt.Errorf("%w: %s has %d logits a row, %s %d", ErrShards, first.Dir, columns, s.Dir, others)
		case first.Root != s.Root:
			return fmt.Errorf("%w: %s is of images in %s, %s of images in %s", ErrShards, first.Dir, first.Root, s.Dir, s.Root)
		case a.Listing != b.Listing || a.Images != b.Images || a.Units != b.Units || !slices.Equal(first.Classes, s.Classes):
			return fmt.Errorf("%w: images came or went between %s and %s; extract every shard once more, which takes only what is new", ErrShards, first.Dir, s.Dir)
		}
	}
	slices.SortStableFunc(sets, func(a, b *Set) int { return a.Shard.Index - b.Shard.Index })
	var missing []string
	next := 1
	for i, s := range sets {
		if i > 0 && s.Shard.Index == sets[i-1].Shard.Index {
			return fmt.Errorf("%w: %s and %s are both shard %s", ErrShards, sets[i-1].Dir, s.Dir, s.Shard)
		}
		for ; next < s.Shard.Index; next++ {
			missing = append(missing, Shard{next, s.Shard.Count}.String())
		}
		next++
	}
	for ; next <= first.Shard.Count && len(missing) <= 10; next++ {
		missing = append(missing, Shard{next, first.Shard.Count}.String())
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: missing are %s", ErrShards, strings.Join(missing[:min(len(missing), 10)], ", "))
	}
	return nil
}

// merged returns the whole of the shards.
func merged(sets []*Set) (*build, error) {
	first := sets[0]
	b := &build{meta: first.Meta}
	b.meta.N, b.meta.Machines, b.meta.Shard = 0, nil, nil
	for _, s := range sets {
		failed, err := s.Errors()
		if err != nil {
			return nil, err
		}
		b.meta.N += s.N
		b.meta.Machines = union(b.meta.Machines, s.Machines)
		if s.Probe == nil {
			b.meta.Probe = nil // not known of all rows
		}
		b.failed = append(b.failed, failed...)
	}
	// Every image has a row or has failed.
	if first.Shard.Images > b.meta.N+len(b.failed) {
		return nil, first.damaged(metaFile, "it is of %d images, and all shards have %d rows and %d failures", first.Shard.Images, b.meta.N, len(b.failed))
	}
	shardOf := slices.Repeat([]int32{-1}, first.Shard.Images) // −1 for images that have failed
	for i, s := range sets {
		if s.Shard.Units > 0 {
			break
		}
		places, shape, err := npy.ReadUpTo[int64](s.path(placesFile), s.N)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if !slices.Equal(shape, []int{s.N}) || !slices.IsSorted(places) {
			return nil, s.damaged(placesFile, "it does not give %d rows their places in order", s.N)
		}
		for _, p := range places {
			if p < 0 || p >= int64(len(shardOf)) || shardOf[p] >= 0 {
				return nil, s.damaged(placesFile, "the place %d is taken or none of %d", p, len(shardOf))
			}
			shardOf[p] = int32(i)
		}
	}
	if first.Shard.Units > 0 {
		var err error
		if shardOf, err = unitsInOrder(sets); err != nil {
			return nil, err
		}
	}
	var err error
	if b.sources, err = sourcesOf(sets); err != nil {
		return nil, err
	}
	b.features = sequence(shardOf, sets, func(s *Set, i int) ([]float32, error) { return s.Row(i), nil })
	if _, b.columns = first.Logits(); b.columns > 0 {
		b.logits = sequence(shardOf, sets, func(s *Set, i int) ([]float32, error) {
			logits, c := s.Logits()
			return logits[i*c : (i+1)*c], nil
		})
	}
	b.labels = sequence(shardOf, sets, func(s *Set, i int) (int64, error) { return s.labels[i], nil })
	b.images = func(yield func(Image, error) bool) {
		next := make(map[*Set]func() (Image, error, bool), len(sets))
		for _, s := range sets {
			pull, stop := iter.Pull2(s.eachImage())
			defer stop()
			next[s] = pull
		}
		sequence(shardOf, sets, func(s *Set, _ int) (Image, error) {
			img, err, ok := next[s]()
			if !ok {
				err = s.damaged(imagesFile, "it is shorter than it was")
			}
			return img, err
		})(yield)
	}
	return b, nil
}

// sequence gives the value of of for every row of the whole: row i of the set s.
// shardOf says which of the sets holds each image, −1 for none.
func sequence[T any](shardOf []int32, sets []*Set, of func(s *Set, i int) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next := make([]int, len(sets))
		for _, s := range shardOf {
			if s < 0 {
				continue
			}
			v, err := of(sets[s], next[s])
			if !yield(v, err) || err != nil {
				return
			}
			next[s]++
		}
	}
}
