package features

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// ErrShards says that sets are not all the shards of one whole.
var ErrShards = errors.New("not all the shards of one set")

// Merge makes the feature set in the folder dir from all shards of a whole, given
// in any order, or of the folder of a set of parts. It is bit-identical to the set of
// one run over the whole listing.
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
	shards, err = shardsIn(ctx, shards)
	if err != nil {
		return Meta{}, err
	}
	for _, shard := range shards {
		s, err := openShard(ctx, shard)
		if err != nil {
			return Meta{}, err
		}
		sets = append(sets, s)
		if _, err := os.Stat(partialDir(shard)); err == nil {
			return Meta{}, fmt.Errorf("an extraction to %s is running or was interrupted: it left %s; run the same command again before merging", shard, partialDir(shard))
		}
	}
	if err := belongTogether(sets); err != nil {
		return Meta{}, err
	}
	if err := CheckProbes(sets, o.AllowDriftedFeatures, o.Drifted); err != nil {
		return Meta{}, err
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
	w, err := begin(dir, Header{D: m.D, DType: m.DType, Root: m.Root, Fingerprint: m.Fingerprint}, o)
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

// shardsIn replaces folders of sets of parts by those of the parts that their manifests
// name.
func shardsIn(ctx context.Context, dirs []string) (shards []string, err error) {
	for _, dir := range dirs {
		if bucket.IsURL(dir) {
			some, err := partsAt(ctx, dir)
			if err != nil {
				return nil, err
			}
			shards = append(shards, some...)
			continue
		}
		if !hasParts(dir) {
			shards = append(shards, dir)
			continue
		}
		m, err := readManifest(dir)
		if err != nil {
			return nil, err
		}
		for _, line := range m.Parts {
			shards = append(shards, filepath.Join(dir, line.Name))
		}
	}
	return shards, nil
}

// belongTogether makes sure that the sets are the shards of one whole, each
// once, and puts them in order.
func belongTogether(sets []*Set) error {
	uniteClasses(sets)
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
		columns, others := first.LogitsDim(), s.LogitsDim()
		switch a, b := first.Shard, s.Shard; {
		case a.Count != b.Count:
			return fmt.Errorf("%w: %s is shard %s, %s is shard %s", ErrShards, first.Dir, a, s.Dir, b)
		case b.Index < 1 || b.Index > b.Count || b.Images < 0:
			return s.damaged(metaFile, "it is shard %s of %d images", b, b.Images)
		case first.DType != s.DType:
			return fmt.Errorf("%w: the features of %s are float16, and those of the others are not", ErrShards, map[bool]string{true: first.Dir, false: s.Dir}[first.DType != ""])
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
	b := &build{columns: sets[0].LogitsDim()}
	for _, s := range sets {
		failed, err := s.Errors()
		if err != nil {
			return nil, err
		}
		b.failed = append(b.failed, failed...)
	}
	var err error
	if b.meta, err = wholeMeta(sets, len(b.failed)); err != nil {
		return nil, err
	}
	if b.sources, err = sourcesOf(sets); err != nil {
		return nil, err
	}
	shardOf, err := interleaved(sets)
	if err != nil {
		return nil, err
	}
	places := func(yield func(spot) bool) {
		next := make([]int32, len(sets))
		for _, part := range shardOf {
			if part < 0 {
				continue
			}
			if !yield(spot{part, next[part]}) {
				return
			}
			next[part]++
		}
	}
	b.features = sequence(places, func(at spot) []float32 { return sets[at.part].Row(int(at.row)) })
	if b.columns > 0 {
		b.logits = sequence(places, func(at spot) []float32 { return sets[at.part].RowLogits(int(at.row)) })
	}
	b.labels = sequence(places, func(at spot) int64 { return sets[at.part].labels[at.row] })
	b.images = imagesInOrder(sets, places)
	return b, nil
}

// sequence gives the value of of for every row of the whole.
func sequence[T any](places iter.Seq[spot], of func(spot) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at := range places {
			if !yield(of(at), nil) {
				return
			}
		}
	}
}

// imagesInOrder gives the images of the rows of the whole, of which each set has its own
// in their order.
func imagesInOrder(sets []*Set, places iter.Seq[spot]) iter.Seq2[Image, error] {
	return func(yield func(Image, error) bool) {
		next := make([]func() (Image, error, bool), len(sets))
		for i, s := range sets {
			pull, stop := iter.Pull2(s.eachImage())
			defer stop()
			next[i] = pull
		}
		for at := range places {
			img, err, ok := next[at.part]()
			if !ok {
				err = sets[at.part].damaged(imagesFile, "it is shorter than it was")
			}
			if !yield(img, err) || err != nil {
				return
			}
		}
	}
}
