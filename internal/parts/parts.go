// Package parts has what all things have in common that processes make in parts, one for
// each shard: the names of parts, and how they are kept in a bucket.
//
//	KIND-00001-of-00008-0123456789abcdef…  what was made: an object, or a folder of objects; the digits are of its checksum
//	KIND-00001-of-00008.json               its record, which says that it is there
//
// A manifest names the parts when all are there. No object of a part is overwritten with
// other bytes: a run that is killed leaves objects that nobody reads, and a set of parts that
// are made again stays the old one until the new manifest replaces the old manifest.
package parts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// ErrDamaged says that a file or object is not as it was written, or is missing.
var ErrDamaged = errors.New("damaged data")

// Shard is one of Count, Index from 1 on.
type Shard struct{ Index, Count int }

// Compare orders shards by their count, then by their index.
func (s Shard) Compare(o Shard) int {
	return cmp.Or(cmp.Compare(s.Count, o.Count), cmp.Compare(s.Index, o.Index))
}

// String returns i/n.
func (s Shard) String() string { return fmt.Sprintf("%d/%d", s.Index, s.Count) }

// Name is what the names of a shard begin with.
func Name(kind string, s Shard) string { return fmt.Sprintf("%s-%05d-of-%05d", kind, s.Index, s.Count) }

// Parse is the inverse of Name; ok is false for other names.
func Parse(kind, name string) (s Shard, ok bool) {
	_, err := fmt.Sscanf(name, kind+"-%05d-of-%05d", &s.Index, &s.Count)
	return s, err == nil && name == Name(kind, s) && 1 <= s.Index && s.Index <= s.Count
}

// Bucket is a folder of a bucket that has parts with records R.
type Bucket[R any] struct {
	Folder *bucket.Folder
	Kind   string // what the names of shards begin with
	// Ends are what may follow the digits in the name of a part.
	Ends []string
	// Parse reads a record. Its error must wrap ErrDamaged if the text is no record: then the
	// shard is made again. It may return what it could read, too.
	Parse func(text []byte, url string) (*R, error)
	// Of returns of which shard a record is, in which object or folder its part is, and which
	// ones this replaces.
	Of func(*R) (shard, name string, replaces []string)
	// Manifest is the name of the manifest. Names returns the names of the parts in it; its
	// error must wrap ErrDamaged if the text is no manifest.
	Manifest string
	Names    func(text []byte, url string) ([]string, error)
}

// Objects are those in a folder, by the folders in it, "" for the folder itself, and by
// their names there.
type Objects map[string]map[string]bucket.Object

// has tells whether there is an object, or a folder, of this name.
func (o Objects) has(name string) bool {
	_, ok := o[""][name]
	return ok || o[name] != nil
}

// String returns the folder's URL, without a slash at the end.
func (b *Bucket[R]) String() string { return strings.TrimSuffix(b.Folder.String(), "/") }

// Record returns the name of a shard's record.
func (b *Bucket[R]) Record(s Shard) string { return Name(b.Kind, s) + ".json" }

// Made returns the name of what a shard made that has a checksum.
func (b *Bucket[R]) Made(s Shard, sha256 string) string { return Name(b.Kind, s) + "-" + sha256[:16] }

// made tells whether a name can be that of what a shard made. The name of a user's copy may
// begin with such a name.
func (b *Bucket[R]) made(s Shard, name string) bool {
	rest, ok := strings.CutPrefix(name, Name(b.Kind, s)+"-")
	return ok && len(rest) >= 16 && strings.Trim(rest[:16], "0123456789abcdef") == "" && slices.Contains(b.Ends, rest[16:])
}

// List lists the objects whose names begin with a prefix, and the shards whose records are
// among them.
func (b *Bucket[R]) List(ctx context.Context, prefix string) (shards []Shard, found Objects, err error) {
	found = Objects{}
	for o, err := range b.Folder.List(ctx, prefix) {
		if err != nil {
			return nil, nil, err
		}
		folder, name, ok := strings.Cut(o.Name, "/")
		if !ok {
			folder, name = "", o.Name
		}
		if found[folder] == nil {
			found[folder] = map[string]bucket.Object{}
		}
		found[folder][name] = o
		record, ok := strings.CutSuffix(o.Name, ".json")
		if s, is := Parse(b.Kind, record); ok && is {
			shards = append(shards, s)
		}
	}
	slices.SortFunc(shards, Shard.Compare)
	return shards, found, nil
}

// Look reads the record of a shard. The error wraps fs.ErrNotExist if there is none. A record
// that is damaged, or of something else, is returned as far as it can be read, with an error
// that wraps ErrDamaged.
func (b *Bucket[R]) Look(ctx context.Context, s Shard) (*R, error) {
	name := b.Record(s)
	text, _, err := b.Folder.Read(ctx, name, disk.Meta)
	if err != nil {
		return nil, err
	}
	r, err := b.Parse(text, b.Folder.URL(name))
	if err != nil {
		return r, err
	}
	if of, made, _ := b.Of(r); of != s.String() || !b.made(s, made) {
		err = fmt.Errorf("%w: %s: it is of shard %s in %q", ErrDamaged, b.Folder.URL(name), of, made)
	}
	return r, err
}

// All reads the records of shards. If one is damaged the error says which shard to run again.
func (b *Bucket[R]) All(ctx context.Context, shards []Shard) ([]*R, error) {
	records := make([]*R, len(shards))
	return records, Each(ctx, len(shards), func(ctx context.Context, i int) (err error) {
		if records[i], err = b.Look(ctx, shards[i]); errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("run shard %s again: %w", shards[i], err)
		}
		return err
	})
}

// Each calls do for 0 … n−1, some at a time.
func Each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Written is an object as it was written.
type Written struct {
	Name      string
	Bytes     int64
	SHA256    string
	Unchecked bool   // Copy does not compare the checksum
	ETag      string // what the bucket said of it, "" if that is unknown
}

// Check compares objects with a list of those in a folder. Some stores give equal bytes
// another ETag each time, so an object of which only that differs is read; none is while
// one is missing or has another size. The error wraps ErrDamaged if one is another.
func Check(ctx context.Context, folder *bucket.Folder, objects []Written, found map[string]bucket.Object) error {
	for _, w := range objects {
		if o, ok := found[w.Name]; !ok {
			return fmt.Errorf("%w: %s is missing", ErrDamaged, folder.URL(w.Name))
		} else if o.Size != w.Bytes {
			return w.size(folder, o.Size)
		}
	}
	for _, w := range objects {
		if now := found[w.Name].ETag; w.ETag == "" || now == "" || w.ETag == now {
			continue
		}
		if err := w.Copy(ctx, folder, io.Discard); err != nil {
			return err
		}
	}
	return nil
}

func (w Written) size(folder *bucket.Folder, bytes int64) error {
	return fmt.Errorf("%w: %s has %d bytes, %d were written: it was cut short or altered", ErrDamaged, folder.URL(w.Name), bytes, w.Bytes)
}

// Copy copies an object. The error wraps ErrDamaged if it is not as it was written, and not if
// it is replaced while it is read ([bucket.ErrChanged]): another run may have sent the same
// bytes again.
func (w Written) Copy(ctx context.Context, from *bucket.Folder, to io.Writer) error {
	in, o, err := from.OpenRange(ctx, w.Name, 0, -1, "")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	if o.Size > w.Bytes {
		return errors.Join(w.size(from, o.Size), in.Close())
	}
	hash := sha256.New()
	if !w.Unchecked {
		to = io.MultiWriter(to, hash)
	}
	n, err := io.Copy(to, io.LimitReader(in, w.Bytes+1))
	switch err = errors.Join(err, in.Close()); {
	case err != nil:
		return err
	case n != w.Bytes:
		return w.size(from, n)
	case !w.Unchecked && hex.EncodeToString(hash.Sum(nil)) != w.SHA256:
		return fmt.Errorf("%w: %s: its checksum does not match", ErrDamaged, from.URL(w.Name))
	}
	return nil
}

// Replaced lists all that a shard has in the bucket, and tells which parts of it the new part
// called made replaces: the one that its record names, and those that this one replaced and
// that are still there. A damaged record does not say that. Then it is the part that the
// manifest names; what else the shard has may belong to another run, and stays.
func (b *Bucket[R]) Replaced(ctx context.Context, s Shard, made string) (replaced []string, found Objects, err error) {
	before, err := b.Look(ctx, s)
	switch {
	case err == nil:
		_, name, replaces := b.Of(before)
		replaced = append([]string{name}, replaces...)
	case errors.Is(err, ErrDamaged):
		if replaced, err = b.named(ctx); err != nil {
			return nil, nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, err
	}
	if _, found, err = b.List(ctx, Name(b.Kind, s)+"-"); err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(replaced, func(name string) bool { return name == made || !found.has(name) || !b.made(s, name) }), found, nil
}

// named returns the names of the parts of all shards that the manifest has: none if there is
// no manifest, or a damaged one.
func (b *Bucket[R]) named(ctx context.Context) (names []string, err error) {
	text, _, err := b.Folder.Read(ctx, b.Manifest, disk.Meta)
	if err == nil {
		names, err = b.Names(text, b.Folder.URL(b.Manifest))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		return nil, nil
	}
	return names, err
}

// Store writes a small object, unless it is there already.
func (b *Bucket[R]) Store(ctx context.Context, name string, text []byte) error {
	before, _, err := b.Folder.Read(ctx, name, disk.Meta)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, bucket.ErrSize) {
		return err
	}
	if err == nil && bytes.Equal(before, text) {
		return nil
	}
	return b.Folder.Put(ctx, name, text)
}

// Commit reads the records of count shards, which must be there, lists the objects of all
// parts, and calls write with both, to write the manifest. If it cannot be written as a record
// or part is damaged, or as write says, unfinished is the reason. If another run made a part
// again meanwhile, Commit begins anew: that run may have written its manifest before this one.
// In the end the parts are deleted that these parts replaced.
func (b *Bucket[R]) Commit(ctx context.Context, count int, write func(records []*R, found Objects) (unfinished, err error)) (unfinished, err error) {
	shards := make([]Shard, count)
	for i := range shards {
		shards[i] = Shard{i + 1, count}
	}
	var written []*R
	var found Objects
	for {
		records, err := b.All(ctx, shards)
		if errors.Is(err, ErrDamaged) {
			return err, nil
		}
		if err != nil {
			return nil, err
		}
		if written != nil && slices.EqualFunc(written, records, func(x, y *R) bool { return b.name(x) == b.name(y) }) {
			if unfinished != nil {
				return unfinished, nil
			}
			return nil, b.remove(ctx, shards, records, found)
		}
		// Listed after the records were read, so that what they name is there.
		if _, found, err = b.List(ctx, b.Kind+"-"); err != nil {
			return nil, err
		}
		unfinished, err = write(records, found)
		if errors.Is(err, ErrDamaged) {
			unfinished, err = err, nil
		}
		if err != nil {
			return nil, err
		}
		written = records
	}
}

func (b *Bucket[R]) name(r *R) string {
	_, name, _ := b.Of(r)
	return name
}

// remove deletes what parts replaced, also what a run would have deleted that was killed
// before it could.
func (b *Bucket[R]) remove(ctx context.Context, shards []Shard, records []*R, found Objects) error {
	for i, r := range records {
		_, own, replaces := b.Of(r)
		old := slices.DeleteFunc(slices.Clone(replaces), func(name string) bool { return !found.has(name) || !b.made(shards[i], name) })
		if len(old) == 0 {
			continue
		}
		// Another run may have made one of them again since the records were read.
		now, err := b.Look(ctx, shards[i])
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			return err
		}
		keep, err := b.named(ctx)
		if err != nil {
			return err
		}
		keep = append(keep, own, b.name(now))
		for _, name := range old {
			if slices.Contains(keep, name) {
				continue
			}
			if _, ok := found[""][name]; ok {
				if err := b.Folder.Delete(ctx, name); err != nil {
					return err
				}
			}
			for _, o := range found[name] {
				if err := b.Folder.Delete(ctx, o.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
