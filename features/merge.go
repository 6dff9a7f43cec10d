package features

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

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
	var sets []*Set
	defer func() { err = errors.Join(err, closeAll(sets)) }()
	for _, at := range shards {
		if sets, err = openShards(ctx, sets, at); err != nil {
			return Meta{}, err
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
	whole, err := join(dir, sets)
	if err != nil {
		return Meta{}, err
	}
	set, err := buildOf(whole)
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

// openShards opens a shard, or the shards that the manifest of a set of parts names, and adds
// them to sets.
func openShards(ctx context.Context, sets []*Set, at string) ([]*Set, error) {
	p, err := placeOf(ctx, at)
	if err != nil {
		return sets, err
	}
	names := []string{""}
	m, err := p.manifest(ctx)
	if err == nil {
		names = nil
		for _, line := range m.Parts {
			names = append(names, line.Name)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return sets, err
	}
	for _, name := range names {
		s, err := p.one(ctx, name)
		if name == "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotSet)) {
			err = p.notYet(err)
		}
		if err != nil {
			return sets, err
		}
		sets = append(sets, s)
		if _, err := os.Stat(partialDir(s.Dir)); err == nil {
			return sets, fmt.Errorf("an extraction to %s is running or was interrupted: it left %s; run the same command again before merging", s.Dir, partialDir(s.Dir))
		}
	}
	return sets, nil
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
		if first.Fingerprint != s.Fingerprint {
			return fmt.Errorf("%w: %s and %s have other layers", ErrShards, first.Dir, s.Dir)
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
	var there []parts.Part
	for i, s := range sets {
		if i > 0 && s.Shard.Index == sets[i-1].Shard.Index {
			return fmt.Errorf("%w: %s and %s are both shard %s", ErrShards, sets[i-1].Dir, s.Dir, s.Shard)
		}
		there = append(there, parts.Part{Shard: s.Shard.Shard, Finished: true})
	}
	if _, missing := parts.Missing(there, first.Shard.Count); missing != "" {
		return fmt.Errorf("%w: missing are %s", ErrShards, missing)
	}
	return nil
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

// SortClasses sorts the names of classes: by their values where all are numbers.
func SortClasses(names []string) {
	numbers := make(map[string]int, len(names))
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			slices.Sort(names)
			return
		}
		numbers[name] = n
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(numbers[a], numbers[b]), cmp.Compare(a, b))
	})
}

// uniteClasses gives shards of tars and the like the classes of all: a shard knows only
// those of its own images, as nobody else has read the others.
func uniteClasses(sets []*Set) {
	var all []string
	for _, s := range sets {
		if s == nil || s.Shard == nil || s.Shard.Units == 0 {
			return
		}
		all = append(all, s.Classes...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	SortClasses(all)
	index := make(map[string]int64, len(all))
	for i, name := range all {
		index[name] = int64(i)
	}
	for _, s := range sets {
		for i, label := range s.labels {
			if label >= 0 {
				s.labels[i] = index[s.Classes[label]]
			}
		}
		s.Classes = slices.Clone(all)
	}
}

// sourcesOf returns the lines of sources.jsonl of all sets, in order.
func sourcesOf(sets []*Set) (all []sourceLine, err error) {
	for _, s := range sets {
		lines, err := s.sourceLines()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	slices.SortFunc(all, func(a, b sourceLine) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}
