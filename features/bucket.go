package features

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// A set of parts in a bucket is as internal/parts says; what a shard made is the folder of
// its set, with the digits of its checksum:
//
//	part-00001-of-00008-0123456789abcdef/  the files of a shard
//	part-00001-of-00008.json               a BucketPart
//	parts.json                             the manifest

// Bucket is a folder of a bucket that a set of parts is written to.
type Bucket struct{ parts parts.Bucket[BucketPart] }

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
	return bucketOf(folder), nil
}

func bucketOf(folder *bucket.Folder) *Bucket {
	return &Bucket{parts.Bucket[BucketPart]{
		Folder: folder,
		Kind:   partKind,
		Ends:   []string{""},
		Parse: func(text []byte, url string) (*BucketPart, error) {
			p := &BucketPart{}
			if err := json.Unmarshal(text, p); err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, url, err)
			}
			return p, nil
		},
		Of: func(p *BucketPart) (shard, name string, replaces []string) {
			return p.Shard.String(), p.Name, p.Replaces
		},
		Manifest: partsFile,
		Names: func(text []byte, url string) (names []string, err error) {
			m, err := parseManifest(text, url)
			for _, line := range m.Parts {
				names = append(names, line.Name)
			}
			return names, err
		},
	}}
}

// Folder returns the folder, for the states of runs that write parts there.
func (b *Bucket) Folder() *bucket.Folder { return b.parts.Folder }

// String returns the folder's URL, without a slash at the end.
func (b *Bucket) String() string { return b.parts.String() }

// Parts lists the shards that are finished.
func (b *Bucket) Parts(ctx context.Context) (found []PartFolder, err error) {
	shards, _, err := b.parts.List(ctx, partKind+"-")
	for _, s := range shards {
		found = append(found, PartFolder{Shard: Shard(s), Dir: b.Folder().URL(parts.Name(partKind, s)), Finished: true})
	}
	return found, err
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
	_, found, err := b.parts.List(ctx, p.Name+"/")
	if err != nil {
		return err
	}
	return b.compare(ctx, p, s.Meta, found)
}

// compare is Whole with a list of the objects and features.json.
func (b *Bucket) compare(ctx context.Context, p *BucketPart, m Meta, found parts.Objects) error {
	var objects []parts.Written
	for name, sum := range m.Files {
		objects = append(objects, parts.Written{Name: name, Bytes: sum.Bytes, SHA256: sum.SHA256, ETag: p.Objects[name].ETag})
	}
	return parts.Check(ctx, b.Folder().Sub(p.Name), objects, found[p.Name])
}

// Prepare makes sure that a shard may be written, and returns it if it is there already,
// or else nil.
func (b *Bucket) Prepare(ctx context.Context, shard Shard, o Options) (*BucketPart, error) {
	found, err := b.Parts(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		if p.Count != shard.Count && !o.Force {
			return nil, options.Errorf("Force", "it is needed to write shard %s beside %s, of another number of shards; or write to another folder", shard, p.Dir)
		}
	}
	part, err := b.parts.Look(ctx, parts.Shard(shard))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		return nil, nil // it is made, or made again
	}
	return part, err
}

// Look reads what a finished part says of itself, and no rows.
func (b *Bucket) Look(ctx context.Context, shard Shard) (Meta, []Failure, error) {
	p, err := b.parts.Look(ctx, parts.Shard(shard))
	if err != nil {
		return Meta{}, nil, err
	}
	s, err := b.look(ctx, p)
	if err != nil {
		return Meta{}, nil, err
	}
	sub := b.Folder().Sub(p.Name)
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
	_, err = b.Folder().Stat(ctx, partsFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return notYet(ctx, b.Folder()), nil
}

// look returns a set of which there is only the Meta.
func (b *Bucket) look(ctx context.Context, p *BucketPart) (*Set, error) {
	sub := b.Folder().Sub(p.Name)
	_, meta, err := readMetaOf(ctx, sub)
	if err == nil && meta.SHA256 != p.SHA256 {
		err = fmt.Errorf("%w: %s is not that of %s", ErrDamaged, sub.URL(metaFile), b.Folder().URL(b.parts.Record(parts.Shard(p.Shard))))
	}
	return &Set{Dir: strings.TrimSuffix(sub.String(), "/"), Meta: meta}, err
}

// Fetch copies a part to the folder dir, which must not exist, so that [Create] takes its
// rows. The error wraps ErrDamaged if a file has another checksum than it had.
func (b *Bucket) Fetch(ctx context.Context, p *BucketPart, dir string) error {
	sub := b.Folder().Sub(p.Name)
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
		if err := errors.Join(parts.Written{Name: name, Bytes: sum.Bytes, SHA256: sum.SHA256}.Copy(ctx, sub, f), f.Close()); err != nil {
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
	p := BucketPart{Shard: shard, Name: b.parts.Made(parts.Shard(shard), s.SHA256), SHA256: s.SHA256, Inputs: inputs, Images: images}
	sub := b.Folder().Sub(p.Name)
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
	replaced, found, err := b.parts.Replaced(ctx, parts.Shard(shard), p.Name)
	if err != nil {
		return Meta{}, err
	}
	if err := b.compare(ctx, &p, s.Meta, found); err != nil {
		return Meta{}, err // the store does not have what it was sent
	}
	p.Replaces, p.Objects = replaced, map[string]Stored{}
	for name, o := range found[p.Name] {
		p.Objects[name] = Stored{o.Size, o.ETag}
	}
	return s.Meta, b.Folder().Put(ctx, b.parts.Record(parts.Shard(shard)), jsonOf(p))
}

// Commit writes the manifest, if all shards are there and belong together; see
// [CommitParts]. Parts that these replaced are deleted then.
func (b *Bucket) Commit(ctx context.Context, count int, o Options) (unfinished, err error) {
	found, err := b.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if lacking := lackingOf(found, b.String(), count); lacking != nil {
		return lacking, nil
	}
	unfinished, err = b.parts.Commit(ctx, count, func(found []*BucketPart, objects parts.Objects) (unfinished, err error) {
		return b.commit(ctx, found, objects, o)
	})
	if errors.Is(err, fs.ErrNotExist) { // a record was there just now
		err = fmt.Errorf("%w: a shard is gone: %w", ErrShards, err)
	}
	return unfinished, err
}

// commit writes the manifest of these parts, if all their objects are there.
func (b *Bucket) commit(ctx context.Context, found []*BucketPart, objects parts.Objects, o Options) (unfinished, err error) {
	sets := make([]*Set, len(found))
	if err := parts.Each(ctx, len(found), func(ctx context.Context, i int) (err error) {
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
	return nil, b.parts.Store(ctx, partsFile, text)
}

// jsonOf writes a value as a small object has it.
func jsonOf(v any) []byte {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err) // of strings and numbers
	}
	return append(text, '\n')
}
