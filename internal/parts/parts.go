// Package parts has what all things have in common that processes make in parts, one for
// each shard: how parts are named, claimed, made, finished, kept in a bucket and looked at.
//
// On the disk a part lies in a folder, and names begin alike whatever it is of:
//
//	part-00001-of-00008…           what was made: a folder, or a file and its record
//	part-00001-of-00008.partial/   the work of a run, see [Claim]
//	part-00001-of-00008.progress   how far it has come, see [State]
//
// In a bucket, see [Set], a part appears as a whole:
//
//	KIND-00001-of-00008-0123456789abcdef…  what was made: an object, or a folder of objects; the digits are of its checksum
//	KIND-00001-of-00008.json               its record, which says that it is there
//	KIND-00001-of-00008.progress           how far the run has come that makes it
//
// A manifest names the parts when all are there. No object of a part is overwritten with
// other bytes: a run that is killed leaves objects that nobody reads, and a set of parts that
// are made again stays the old one until the new manifest replaces the old manifest.
package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// ErrDamaged says that a file or object is not as it was written, or is missing.
var ErrDamaged = errors.New("damaged data")

// Layout says how things of one kind with records R lie in a bucket.
type Layout[R any] struct {
	Kind string // what the names of shards begin with
	// Ends are what may follow the digits in the name of a part.
	Ends []string
	// Force says that parts may be made beside those of another number of shards, with Force.
	Force bool
	// Not, unless "", is an object that says that the folder is of another kind, Other.
	Not, Other string
	// Parse reads a record. Its error must wrap ErrDamaged if the text is no record: then the
	// shard is made again. It may return what it could read, too.
	Parse func(text []byte, url string) (*R, error)
	// Of returns of which shard a record is, in which object or folder its part is, and which
	// ones this replaces.
	Of func(*R) (shard, name string, replaces []string)
	// Objects returns of which objects a part is. It may read some, and keep in the record what
	// Whole needs of them.
	Objects func(ctx context.Context, folder *bucket.Folder, r *R) ([]Written, error)
	// Manifest is the name of the manifest. Whole returns its text for the records of all
	// shards, or says why they make up no whole.
	Manifest string
	Whole    func(records []*R) (text []byte, unfinished, err error)
	// Names returns the names of the parts in a manifest. Its error must wrap ErrDamaged if the
	// text is none.
	Names func(text []byte, url string) ([]string, error)
}

// Set is a folder of a bucket for parts with records R.
type Set[R any] struct {
	Folder *bucket.Folder
	Layout[R]
}

// Open opens the folder at a URL. It need not exist.
func Open[R any](ctx context.Context, url string, l Layout[R]) (*Set[R], error) {
	folder, err := bucket.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Set[R]{folder, l}, nil
}

// Objects are those in a folder, by their names.
type Objects map[string]bucket.Object

// of returns the names of the object, or of the objects of the folder, with a name.
func (o Objects) of(name string) (names []string) {
	for n := range o {
		if n == name || strings.HasPrefix(n, name+"/") {
			names = append(names, n)
		}
	}
	return names
}

// String returns the folder's URL, without a slash at the end.
func (s *Set[R]) String() string { return strings.TrimSuffix(s.Folder.String(), "/") }

// Record returns the name of a shard's record.
func (s *Set[R]) Record(shard Shard) string { return Name(s.Kind, shard) + ".json" }

// Made returns the name of what a shard made that has a checksum.
func (s *Set[R]) Made(shard Shard, sha256 string) string {
	return Name(s.Kind, shard) + "-" + sha256[:16]
}

// made tells whether a name can be that of what a shard made. The name of a user's copy may
// begin with such a name.
func (s *Set[R]) made(shard Shard, name string) bool {
	rest, ok := strings.CutPrefix(name, Name(s.Kind, shard)+"-")
	return ok && len(rest) >= 16 && strings.Trim(rest[:16], "0123456789abcdef") == "" && slices.Contains(s.Ends, rest[16:])
}

// list lists the objects whose names begin with a prefix, and the shards whose records are
// among them.
func (s *Set[R]) list(ctx context.Context, prefix string) (finished []Part, found Objects, err error) {
	found = Objects{}
	for o, err := range s.Folder.List(ctx, prefix) {
		if err != nil {
			return nil, nil, err
		}
		found[o.Name] = o
		record, ok := strings.CutSuffix(o.Name, ".json")
		if shard, is := Parse(s.Kind, record); ok && is {
			finished = append(finished, Part{Shard: shard, Path: s.Folder.URL(record), Finished: true})
		}
	}
	slices.SortFunc(finished, func(a, b Part) int { return a.Shard.Compare(b.Shard) })
	return finished, found, nil
}

// Finished lists the shards that have a record, in order.
func (s *Set[R]) Finished(ctx context.Context) ([]Part, error) {
	finished, _, err := s.list(ctx, s.Kind+"-")
	return finished, err
}

// Look reads the record of a shard. The error wraps fs.ErrNotExist if there is none. A record
// that is damaged, or of something else, is returned as far as it can be read, with an error
// that wraps ErrDamaged.
func (s *Set[R]) Look(ctx context.Context, shard Shard) (*R, error) {
	name := s.Record(shard)
	text, _, err := s.Folder.Read(ctx, name, disk.Meta)
	if err != nil {
		return nil, err
	}
	r, err := s.Parse(text, s.Folder.URL(name))
	if err != nil {
		return r, err
	}
	if of, made, _ := s.Of(r); of != shard.String() || !s.made(shard, made) {
		err = fmt.Errorf("%w: %s: it is of shard %s in %q", ErrDamaged, s.Folder.URL(name), of, made)
	}
	return r, err
}

// All reads the records of shards. If one is damaged the error says which shard to run again.
func (s *Set[R]) All(ctx context.Context, shards []Part) ([]*R, error) {
	records := make([]*R, len(shards))
	return records, each(ctx, len(shards), func(ctx context.Context, i int) (err error) {
		records[i], err = s.Look(ctx, shards[i].Shard)
		return runAgain(shards[i].Shard, err)
	})
}

// runAgain says which shard to run again if its part is damaged.
func runAgain(shard Shard, err error) error {
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("run shard %s again: %w", shard, err)
	}
	return err
}

// each calls do for 0 … n−1, some at a time.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Prepare makes sure that a shard may be written, and returns its record if there is one,
// or else nil. Where the record or its part are not those that were written, whole is false:
// the shard is to be made again. With force, which makes it again anyway, it is also false
// where the part cannot be read.
func (s *Set[R]) Prepare(ctx context.Context, shard Shard, force bool) (r *R, whole bool, err error) {
	finished, found, err := s.list(ctx, s.Kind+"-")
	if err == nil {
		err = Fits(shard, finished, s.String(), s.Force, force)
	}
	if err == nil && s.Not != "" {
		if _, err = s.Folder.Stat(ctx, s.Not); err == nil {
			err = options.Errorf("Out", "%s is %s: write to another folder", s, s.Other)
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, false, err
	}
	r, err = s.Look(ctx, shard)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil {
		err = s.check(ctx, r, found)
	}
	if errors.Is(err, ErrDamaged) || force && r != nil && ctx.Err() == nil {
		return r, err == nil, nil
	}
	return r, err == nil, err
}

// Written is an object as it was written.
type Written struct {
	Name      string
	Bytes     int64
	SHA256    string
	Unchecked bool   // Copy does not compare the checksum
	ETag      string // what the bucket said of it, "" if that is unknown
}

// check compares the objects of a part with a listing. Some stores give equal bytes another
// ETag each time, so an object of which only that differs is read; none is while one is
// missing or has another size. The error wraps ErrDamaged if one is another.
func (s *Set[R]) check(ctx context.Context, r *R, found Objects) error {
	objects, err := s.Layout.Objects(ctx, s.Folder, r)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	for _, w := range objects {
		if o, ok := found[w.Name]; !ok {
			return fmt.Errorf("%w: %s is missing", ErrDamaged, s.Folder.URL(w.Name))
		} else if o.Size != w.Bytes {
			return w.size(s.Folder, o.Size)
		}
	}
	for _, w := range objects {
		if now := found[w.Name].ETag; w.ETag == "" || now == "" || w.ETag == now {
			continue
		}
		if err := w.Copy(ctx, s.Folder, io.Discard); err != nil {
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

// Making says how a part is made that goes to a bucket.
type Making[R any] struct {
	Shard Shard
	Cache string // the folder on the disk in which it is made
	Force bool   // replace what Make would keep
	// Speculate lets several runs make the same part at the same time.
	Speculate bool
	// Make makes it in a folder of Cache. It is told the record of the part that is there, if
	// any, and whether that is whole; the recorder says how far it has come. It returns how to
	// send what it made, or nil if there is nothing to send.
	Make func(place string, before *R, whole bool, recorder *Recorder) (send func() error, err error)
}

// Make makes a part on the disk, sends it as a whole, and removes it from the disk. Then it
// writes the manifest if that was the last shard; unfinished says why it was not. An
// interrupted run is continued.
func (s *Set[R]) Make(ctx context.Context, m Making[R]) (unfinished, err error) {
	if m.Cache == "" {
		return nil, options.Errorf("Cache", "it is needed to write to %s: the folder on the disk in which a part is made before it is sent", s)
	}
	before, whole, err := s.Prepare(ctx, m.Shard, m.Force)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(s.String()))
	claim, err := Take(filepath.Join(m.Cache, fmt.Sprintf("%s-%d-of-%d", hex.EncodeToString(sum[:8]), m.Shard.Index, m.Shard.Count)), m.Speculate, nil)
	if errors.Is(err, ErrLocked) {
		err = fmt.Errorf("shard %s of %s: %w", m.Shard, s, err)
	}
	if err != nil {
		return nil, err
	}
	recorder := StartRecorder(Path(claim.Dir, m.Shard))
	recorder.SendTo(ctx, s.Folder, s.Kind, m.Shard)
	// After a panic err is nil, too: what was made is for the next run, and this one did not end.
	done := false
	defer func() {
		ended := err
		if !done && err == nil {
			ended = errors.New("a panic")
		}
		recorder.End(ended)
		if done && err == nil {
			err = claim.Clear()
		}
		err = errors.Join(err, claim.Release())
	}()
	send, err := m.Make(claim.Dir, before, whole, recorder)
	if err != nil {
		return nil, err
	}
	if send != nil {
		recorder.Sends()
		if err := send(); err != nil {
			return nil, fmt.Errorf("send a part: %w", err)
		}
	}
	unfinished, err = s.Commit(ctx, m.Shard.Count)
	done = true
	return unfinished, err
}

// File is a file on the disk that becomes an object.
type File struct{ Name, Path string }

// Send writes files as the part of a shard, whose object or folder is called name, the last of
// them when all others are there, and then its record, which record makes of the listing and of
// what the part replaces. When it returns the part is there as a whole; until then the one
// before is, or none.
func (s *Set[R]) Send(ctx context.Context, shard Shard, name string, files []File, record func(found Objects, replaces []string) *R) error {
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(4)
	last := files[len(files)-1]
	for _, f := range files[:len(files)-1] {
		group.Go(func() error { return s.Folder.CreateOf(groupCtx, f.Name, f.Path) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := s.Folder.CreateOf(ctx, last.Name, last.Path); err != nil {
		return err
	}
	replaced, found, err := s.replaced(ctx, shard, name)
	if err != nil {
		return err
	}
	r := record(found, replaced)
	if err := s.check(ctx, r, found); err != nil {
		return err // the store does not have what it was sent
	}
	return s.store(ctx, s.Record(shard), JSON(r))
}

// JSON writes a value as a small object has it.
func JSON(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		panic(err) // of strings and numbers
	}
	return text.Bytes()
}

// replaced lists all that a shard has in the bucket, and tells which parts of it the new part
// called made replaces: the one that its record names, and those that this one replaced and
// that are still there. A damaged record does not say that. Then it is the part that the
// manifest names; what else the shard has may belong to another run, and stays.
func (s *Set[R]) replaced(ctx context.Context, shard Shard, made string) (replaced []string, found Objects, err error) {
	before, err := s.Look(ctx, shard)
	switch {
	case err == nil:
		_, name, replaces := s.Of(before)
		replaced = append([]string{name}, replaces...)
	case errors.Is(err, ErrDamaged):
		if replaced, err = s.named(ctx); err != nil {
			return nil, nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, err
	}
	if _, found, err = s.list(ctx, Name(s.Kind, shard)+"-"); err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(replaced, func(name string) bool {
		return name == made || !s.made(shard, name) || len(found.of(name)) == 0
	}), found, nil
}

// named returns the names of the parts of all shards that the manifest has: none if there is
// no manifest, or a damaged one.
func (s *Set[R]) named(ctx context.Context) (names []string, err error) {
	text, _, err := s.Folder.Read(ctx, s.Manifest, disk.Meta)
	if err == nil {
		names, err = s.Names(text, s.Folder.URL(s.Manifest))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		return nil, nil
	}
	return names, err
}

// store writes a small object, unless it is there already.
func (s *Set[R]) store(ctx context.Context, name string, text []byte) error {
	before, _, err := s.Folder.Read(ctx, name, disk.Meta)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, bucket.ErrSize) {
		return err
	}
	if err == nil && bytes.Equal(before, text) {
		return nil
	}
	return s.Folder.Put(ctx, name, text)
}

// Commit writes the manifest, if the parts of all count shards are there and belong together;
// unfinished says why it cannot. If another run made a part again meanwhile, Commit begins
// anew: that run may have written its manifest before this one. In the end the parts are
// deleted that these parts replaced.
func (s *Set[R]) Commit(ctx context.Context, count int) (unfinished, err error) {
	shards, err := s.Finished(ctx)
	if err != nil {
		return nil, err
	}
	if lacking := Lacking(shards, s.String(), count); lacking != nil {
		return lacking, nil
	}
	shards = slices.DeleteFunc(shards, func(p Part) bool { return p.Count != count })
	var written []*R
	var found Objects
	for {
		records, err := s.All(ctx, shards)
		if errors.Is(err, ErrDamaged) {
			return err, nil
		}
		if errors.Is(err, fs.ErrNotExist) { // a record was there just now
			err = fmt.Errorf("%w: a shard is gone: %w", ErrShards, err)
		}
		if err != nil {
			return nil, err
		}
		if written != nil && slices.EqualFunc(written, records, func(x, y *R) bool { return s.name(x) == s.name(y) }) {
			if unfinished != nil {
				return unfinished, nil
			}
			return nil, s.remove(ctx, shards, records, found)
		}
		// Listed after the records were read, so that what they name is there.
		if _, found, err = s.list(ctx, s.Kind+"-"); err != nil {
			return nil, err
		}
		unfinished, err = s.write(ctx, shards, records, found)
		if errors.Is(err, ErrDamaged) {
			unfinished, err = err, nil
		}
		if err != nil {
			return nil, err
		}
		written = records
	}
}

func (s *Set[R]) name(r *R) string {
	_, name, _ := s.Of(r)
	return name
}

// write writes the manifest of these parts, if all their objects are there.
func (s *Set[R]) write(ctx context.Context, shards []Part, records []*R, found Objects) (unfinished, err error) {
	if err := each(ctx, len(records), func(ctx context.Context, i int) error {
		return runAgain(shards[i].Shard, s.check(ctx, records[i], found))
	}); err != nil {
		return nil, err
	}
	text, unfinished, err := s.Whole(records)
	if text == nil {
		return unfinished, err
	}
	return nil, s.store(ctx, s.Manifest, text)
}

// remove deletes what parts replaced, also what a run would have deleted that was killed
// before it could.
func (s *Set[R]) remove(ctx context.Context, shards []Part, records []*R, found Objects) error {
	for i, r := range records {
		_, own, replaces := s.Of(r)
		old := slices.DeleteFunc(slices.Clone(replaces), func(name string) bool {
			return !s.made(shards[i].Shard, name) || len(found.of(name)) == 0
		})
		if len(old) == 0 {
			continue
		}
		// Another run may have made one of them again since the records were read.
		now, err := s.Look(ctx, shards[i].Shard)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			return err
		}
		keep, err := s.named(ctx)
		if err != nil {
			return err
		}
		keep = append(keep, own, s.name(now))
		for _, name := range old {
			if slices.Contains(keep, name) {
				continue
			}
			for _, object := range found.of(name) {
				if err := s.Folder.Delete(ctx, object); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
