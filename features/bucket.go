package features

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/regular"
	"github.com/mlrbfn/mlrbfn/options"
)

// A set of parts in a bucket has objects instead of folders, of which none is ever
// changed into another while it can be read:
//
//	part-00001-of-00008-0123456789abcdef/  the files of a shard; the digits are of its checksum
//	part-00001-of-00008.json               a BucketPart, which says that these are all there
//	parts.json                             the manifest, which names the parts by these digits
//
// So a run that is killed leaves objects that nobody looks at, and a set whose shards are
// made again is the old one until the new manifest replaces the old.

// Bucket is a folder of a bucket that a set of parts is written to.
type Bucket struct{ folder *bucket.Folder }

// BucketPart is a finished shard in a bucket.
type BucketPart struct {
	Shard
	Name   string `json:"name"`   // of the folder of its objects
	SHA256 string `json:"sha256"` // of its features.json, as in parts.json
	Inputs string `json:"inputs"` // what identifies all that it was made of; "" if it must be made again
	Images []int  `json:"images"` // of each class
	// Objects are those in the folder, by their names, as the bucket lists them.
	Objects map[string]Stored `json:"objects,omitempty"`
	// Replaces are the folders of the parts before it, which are deleted when no manifest
	// names them any more.
	Replaces []string `json:"replaces,omitempty"`
}

// Stored is what a bucket's listing says of an object.
type Stored struct {
	Bytes int64  `json:"bytes"`
	ETag  string `json:"etag,omitempty"`
}

// OpenBucket opens the folder at a URL. It need not exist.
func OpenBucket(ctx context.Context, url string) (*Bucket, error) {
	folder, err := bucket.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Bucket{folder}, nil
}

// Folder returns the folder, for the states of runs that write parts there.
func (b *Bucket) Folder() *bucket.Folder { return b.folder }

// String returns the folder's URL, without a slash at the end.
func (b *Bucket) String() string { return strings.TrimSuffix(b.folder.String(), "/") }

// partObject returns the name of the object that tells of a shard.
func partObject(s Shard) string { return fmt.Sprintf(partName, s.Index, s.Count) + ".json" }

// listed are the objects of all parts in a bucket, by their folders and their names there.
type listed map[string]map[string]Stored

// list lists the objects that begin with prefix.
func (b *Bucket) list(ctx context.Context, prefix string) (parts []PartFolder, found listed, err error) {
	found = listed{}
	for o, err := range b.folder.List(ctx, prefix) {
		if err != nil {
			return nil, nil, err
		}
		if folder, name, ok := strings.Cut(o.Name, "/"); ok {
			if found[folder] == nil {
				found[folder] = map[string]Stored{}
			}
			found[folder][name] = Stored{o.Size, o.ETag}
			continue
		}
		var s Shard
		if _, err := fmt.Sscanf(o.Name, partName, &s.Index, &s.Count); err == nil && o.Name == partObject(s) && s.Index >= 1 && s.Index <= s.Count {
			parts = append(parts, PartFolder{Shard: s, Dir: b.folder.URL(strings.TrimSuffix(o.Name, ".json")), Finished: true})
		}
	}
	slices.SortFunc(parts, func(a, b PartFolder) int {
		return cmp.Or(cmp.Compare(a.Count, b.Count), cmp.Compare(a.Index, b.Index))
	})
	return parts, found, nil
}

// Parts lists the shards that are finished.
func (b *Bucket) Parts(ctx context.Context) (parts []PartFolder, err error) {
	parts, _, err = b.list(ctx, "part")
	return parts, err
}

// Whole compares the objects of a part with what it and its features.json say of them, by
// one request for a list of them and one for that file. Some stores give equal bytes another
// ETag each time, so an object of which only that differs is read. The error wraps
// ErrDamaged if the objects are not those that were written.
func (b *Bucket) Whole(ctx context.Context, p *BucketPart) error {
	s, err := b.look(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	_, found, err := b.list(ctx, p.Name+"/")
	if err != nil {
		return err
	}
	return b.compare(ctx, p, s.Meta, found)
}

// compare is Whole with a list of the objects and features.json. Nothing is read while an
// object is missing or has another size.
func (b *Bucket) compare(ctx context.Context, p *BucketPart, m Meta, found listed) error {
	sub := b.folder.Sub(p.Name)
	for name, sum := range m.Files {
		have, ok := found[p.Name][name]
		switch {
		case !ok:
			return fmt.Errorf("%w: %s is missing", ErrDamaged, sub.URL(name))
		case have.Bytes != sum.Bytes:
			return fmt.Errorf("%w: %s has %d bytes, %s says %d: it was cut short or altered", ErrDamaged, sub.URL(name), have.Bytes, metaFile, sum.Bytes)
		}
	}
	for name, sum := range m.Files {
		was, have := p.Objects[name].ETag, found[p.Name][name].ETag
		if was == "" || have == "" || was == have {
			continue
		}
		if err := fetchWhole(ctx, sub, name, sum, io.Discard); err != nil {
			return err
		}
	}
	return nil
}

// fetchWhole copies an object, and compares its checksum.
func fetchWhole(ctx context.Context, from *bucket.Folder, name string, sum Sum, to io.Writer) error {
	hash := sha256.New()
	if err := fetch(ctx, from, name, sum.Bytes, io.MultiWriter(to, hash)); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != sum.SHA256 {
		return fmt.Errorf("%w: %s: its checksum does not match", ErrDamaged, from.URL(name))
	}
	return nil
}

// Prepare makes sure that a shard may be written, and returns it if it is there already,
// or else nil.
func (b *Bucket) Prepare(ctx context.Context, shard Shard, o Options) (*BucketPart, error) {
	parts, err := b.Parts(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Count != shard.Count && !o.Force {
			return nil, options.Errorf("Force", "it is needed to write shard %s beside %s, of another number of shards; or write to another folder", shard, p.Dir)
		}
	}
	part, err := b.part(ctx, shard)
	if errors.Is(err, ErrDamaged) {
		return nil, nil // it is made again
	}
	return part, err
}

// part reads what is known of a shard; nil if it is not finished.
func (b *Bucket) part(ctx context.Context, shard Shard) (*BucketPart, error) {
	name := partObject(shard)
	text, _, err := b.folder.Read(ctx, name, regular.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &BucketPart{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, b.folder.URL(name), err)
	}
	if p.Shard != shard || !strings.HasPrefix(p.Name, strings.TrimSuffix(name, ".json")+"-") || strings.ContainsAny(p.Name, `/\`) {
		return nil, fmt.Errorf("%w: %s is of shard %s in %q", ErrDamaged, b.folder.URL(name), p.Shard, p.Name)
	}
	return p, nil
}

// Look reads what a finished part says of itself, and no rows.
func (b *Bucket) Look(ctx context.Context, shard Shard) (Meta, []Failure, error) {
	p, err := b.part(ctx, shard)
	if err == nil && p == nil {
		err = fmt.Errorf("%s: %w", b.folder.URL(partObject(shard)), fs.ErrNotExist)
	}
	if err != nil {
		return Meta{}, nil, err
	}
	s, err := b.look(ctx, p)
	if err != nil {
		return Meta{}, nil, err
	}
	sub := b.folder.Sub(p.Name)
	r, _, err := sub.OpenRange(ctx, errorsFile, 0, -1, "")
	if errors.Is(err, fs.ErrNotExist) {
		return s.Meta, nil, nil
	}
	if err != nil {
		return Meta{}, nil, err
	}
	failed, err := readFailures(r, s.Version)
	if err = errors.Join(err, r.Close()); err != nil {
		return Meta{}, nil, fmt.Errorf("%s: %w", sub.URL(errorsFile), err)
	}
	return s.Meta, failed, nil
}

// Unfinished says why there is no whole set yet; nil if there is one.
func (b *Bucket) Unfinished(ctx context.Context) (unfinished, err error) {
	_, err = b.folder.Stat(ctx, partsFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return notYet(ctx, b.folder), nil
}

// look returns a set of which there is only the Meta.
func (b *Bucket) look(ctx context.Context, p *BucketPart) (*Set, error) {
	sub := b.folder.Sub(p.Name)
	_, meta, err := readMetaOf(ctx, sub)
	if err == nil && meta.SHA256 != p.SHA256 {
		err = fmt.Errorf("%w: %s is not that of %s", ErrDamaged, sub.URL(metaFile), b.folder.URL(partObject(p.Shard)))
	}
	return &Set{Dir: strings.TrimSuffix(sub.String(), "/"), Meta: meta}, err
}

// Fetch copies a part to the folder dir, which must not exist, so that [Create] takes its
// rows. The error wraps ErrDamaged if a file has another checksum than it had.
func (b *Bucket) Fetch(ctx context.Context, p *BucketPart, dir string) error {
	sub := b.folder.Sub(p.Name)
	text, meta, err := readMetaOf(ctx, sub)
	if err != nil {
		return err
	}
	temp := dir + ".fetched"
	if err := errors.Join(disk.RemoveAll(temp), os.MkdirAll(temp, 0o777)); err != nil {
		return err
	}
	for name, sum := range meta.Files {
		if !filepath.IsLocal(name) || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("%w: %s: it names the file %q", ErrDamaged, sub.URL(metaFile), name)
		}
		f, err := os.Create(filepath.Join(temp, name))
		if err != nil {
			return err
		}
		if err := errors.Join(fetchWhole(ctx, sub, name, sum, f), f.Close()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(temp, metaFile), text, 0o666); err != nil {
		return err
	}
	return disk.Rename(temp, dir)
}

// Send writes the set in the folder dir as a part. When it returns the part is there as a
// whole; until then the one before is, or none.
func (b *Bucket) Send(ctx context.Context, shard Shard, dir, inputs string, images []int) (Meta, error) {
	s := &Set{Dir: dir}
	if err := s.readMeta(); err != nil {
		return Meta{}, err
	}
	p := BucketPart{Shard: shard, SHA256: s.SHA256, Inputs: inputs, Images: images}
	p.Name = strings.TrimSuffix(partObject(shard), ".json") + "-" + s.SHA256[:16]
	sub := b.folder.Sub(p.Name)
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(4)
	for name := range s.Files {
		group.Go(func() error { return sub.CreateOf(groupCtx, name, s.path(name)) })
	}
	if err := group.Wait(); err != nil {
		return Meta{}, err
	}
	if err := sub.CreateOf(ctx, metaFile, s.path(metaFile)); err != nil {
		return Meta{}, err
	}
	before, err := b.part(ctx, shard)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return Meta{}, err
	}
	// Of all parts that the shard ever had there is nothing left but of the last ones.
	_, found, err := b.list(ctx, strings.TrimSuffix(partObject(shard), ".json")+"-")
	if err != nil {
		return Meta{}, err
	}
	if before != nil {
		p.Replaces = slices.DeleteFunc(append([]string{before.Name}, before.Replaces...), func(name string) bool { return name == p.Name || found[name] == nil })
	}
	if err := b.compare(ctx, &p, s.Meta, found); err != nil {
		return Meta{}, err // the store does not have what it was sent
	}
	p.Objects = found[p.Name]
	return s.Meta, b.folder.Put(ctx, partObject(shard), jsonOf(p))
}

// Commit writes the manifest, if all shards are there and belong together; see
// [CommitParts]. Parts that these replaced are deleted then.
func (b *Bucket) Commit(ctx context.Context, count int, o Options) (unfinished, err error) {
	parts, err := b.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if lacking := lackingOf(parts, b.String(), count); lacking != nil {
		return lacking, nil
	}
	found, err := b.all(ctx, count)
	var objects listed
	for err == nil {
		if _, objects, err = b.list(ctx, "part"); err != nil {
			return nil, err
		}
		unfinished, err = b.commit(ctx, found, objects, o)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return nil, err
		}
		// Another run may have made a part again meanwhile, and written its manifest before
		// this one.
		before, failed := found, err
		if found, err = b.all(ctx, count); err == nil && slices.EqualFunc(before, found, func(x, y *BucketPart) bool { return x.Name == y.Name }) {
			if unfinished != nil || failed != nil {
				return cmp.Or(unfinished, failed), nil
			}
			break
		}
	}
	if err != nil {
		return nil, err
	}
	// Also what a run would have deleted that was killed before it could.
	for _, p := range found {
		for _, name := range p.Replaces {
			if objects[name] == nil {
				continue
			}
			if err := b.remove(ctx, p.Shard, name); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// all reads what is known of all shards, which must be finished.
func (b *Bucket) all(ctx context.Context, count int) ([]*BucketPart, error) {
	found := make([]*BucketPart, count)
	return found, b.each(ctx, count, func(ctx context.Context, i int) (err error) {
		if found[i], err = b.part(ctx, Shard{i + 1, count}); err == nil && found[i] == nil {
			err = fmt.Errorf("%w: %s is gone", ErrShards, b.folder.URL(partObject(Shard{i + 1, count})))
		}
		return err
	})
}

// each calls do for each shard, some at a time.
func (b *Bucket) each(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for i := range count {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// commit writes the manifest of these parts, if all their objects are there.
func (b *Bucket) commit(ctx context.Context, found []*BucketPart, objects listed, o Options) (unfinished, err error) {
	sets := make([]*Set, len(found))
	if err := b.each(ctx, len(found), func(ctx context.Context, i int) (err error) {
		if sets[i], err = b.look(ctx, found[i]); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if err == nil {
			err = b.compare(ctx, found[i], sets[i].Meta, objects)
		}
		return err
	}); err != nil {
		return nil, err
	}
	text, unfinished, err := manifestOf(sets, o)
	if text == nil {
		return unfinished, err
	}
	before, _, err := b.folder.Read(ctx, partsFile, regular.Meta)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if bytes.Equal(before, text) {
		return nil, nil
	}
	return nil, b.folder.Put(ctx, partsFile, text)
}

// remove deletes the objects of a part that a shard had.
func (b *Bucket) remove(ctx context.Context, shard Shard, name string) error {
	if !strings.HasPrefix(name, strings.TrimSuffix(partObject(shard), ".json")+"-") || strings.ContainsAny(name, `/\`) {
		return nil
	}
	var names []string
	for o, err := range b.folder.List(ctx, name+"/") {
		if err != nil {
			return err
		}
		names = append(names, o.Name)
	}
	for _, name := range names {
		if err := b.folder.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// jsonOf writes a value as a small object has it.
func jsonOf(v any) []byte {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err) // of strings and numbers
	}
	return append(text, '\n')
}
