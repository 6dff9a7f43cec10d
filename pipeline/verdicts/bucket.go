package verdicts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/bucket"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/atomicfile"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/regular"
	"github.com/mlrbfn/mlrbfn/options"
)

// Verdicts in a bucket are objects of which none is changed into another while it can be
// read:
//
//	verdicts-00001-of-00008-0123456789abcdef.jsonl  the verdicts of a shard; the digits are of their checksum
//	verdicts-00001-of-00008.json                    the Record, which says that these are there
//	verdicts.json                                   the Manifest, when all shards are

// Bucket is a folder of a bucket that verdicts are written to.
type Bucket struct{ folder *bucket.Folder }

// Manifest says what the verdicts of all shards are, and adds them up.
type Manifest struct {
	Version int            `json:"version"`
	Parts   []ManifestPart `json:"parts"`
	Summary
}

// ManifestPart is a line of a Manifest.
type ManifestPart struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Images int    `json:"images"`
}

const (
	manifestObject = "verdicts.json"
	recordObject   = "verdicts-%05d-of-%05d.json"
)

func objectOf(s features.Shard) string { return fmt.Sprintf(recordObject, s.Index, s.Count) }

// OpenBucket opens the folder at a URL. It need not exist.
func OpenBucket(ctx context.Context, url string) (*Bucket, error) {
	folder, err := bucket.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Bucket{folder}, nil
}

// String returns the folder's URL, without a slash at the end.
func (b *Bucket) String() string { return strings.TrimSuffix(b.folder.String(), "/") }

// list lists the finished shards, and all objects of verdicts.
func (b *Bucket) list(ctx context.Context, prefix string) (shards []features.Shard, found map[string]bucket.Object, err error) {
	found = map[string]bucket.Object{}
	for o, err := range b.folder.List(ctx, prefix) {
		if err != nil {
			return nil, nil, err
		}
		found[o.Name] = o
		var s features.Shard
		if _, err := fmt.Sscanf(o.Name, recordObject, &s.Index, &s.Count); err == nil && o.Name == objectOf(s) && s.Index >= 1 && s.Index <= s.Count {
			shards = append(shards, s)
		}
	}
	slices.SortFunc(shards, func(a, b features.Shard) int {
		return cmp.Or(cmp.Compare(a.Count, b.Count), cmp.Compare(a.Index, b.Index))
	})
	return shards, found, nil
}

// record reads the record of a shard.
func (b *Bucket) record(ctx context.Context, s features.Shard) (*Record, error) {
	name := objectOf(s)
	text, _, err := b.folder.Read(ctx, name, regular.Meta)
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(text, b.folder.URL(name))
	if err == nil && (r.Work.Shard != s.String() || !strings.HasPrefix(r.File, strings.TrimSuffix(name, ".json")+"-") || path.Base(r.File) != r.File) {
		err = fmt.Errorf("%s: %w: it is of shard %s in %q", b.folder.URL(name), features.ErrDamaged, r.Work.Shard, r.File)
	}
	return r, err
}

// whole tells whether the verdicts that a record tells of are in a listing.
func whole(r *Record, found map[string]bucket.Object) bool {
	o, ok := found[r.File]
	return ok && o.Size == r.Bytes && (r.ETag == "" || o.ETag == "" || o.ETag == r.ETag)
}

// Parts reads what is known of the shards that are finished.
func (b *Bucket) Parts(ctx context.Context) ([]Part, error) {
	shards, _, err := b.list(ctx, "verdicts-")
	if err != nil {
		return nil, err
	}
	records, err := b.records(ctx, shards)
	if err != nil {
		return nil, err
	}
	var parts []Part
	for i, s := range shards {
		parts = append(parts, Part{Shard: s, Record: records[i]})
	}
	return parts, nil
}

func (b *Bucket) records(ctx context.Context, shards []features.Shard) ([]*Record, error) {
	records := make([]*Record, len(shards))
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for i, s := range shards {
		group.Go(func() (err error) {
			records[i], err = b.record(ctx, s)
			return err
		})
	}
	return records, group.Wait()
}

// Prepare makes sure that a shard may be written, and returns its record if it is there as
// a whole, or else nil.
func (b *Bucket) Prepare(ctx context.Context, shard features.Shard) (*Record, error) {
	shards, found, err := b.list(ctx, "")
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(shards, func(s features.Shard) bool { return s.Count != shard.Count }); i >= 0 {
		return nil, options.Errorf("Out", "%s has parts of %d: write to another folder", b, shards[i].Count)
	}
	if _, ok := found["parts.json"]; ok {
		return nil, options.Errorf("Out", "%s is a feature set: write to another folder", b)
	}
	if !slices.Contains(shards, shard) {
		return nil, nil
	}
	r, err := b.record(ctx, shard)
	if errors.Is(err, features.ErrDamaged) || err == nil && !whole(r, found) {
		return nil, nil // it is made again
	}
	return r, err
}

// Fetch writes the verdicts of a record to a file.
func (b *Bucket) Fetch(ctx context.Context, r *Record, file string) error {
	in, _, err := b.folder.OpenRange(ctx, r.File, 0, -1, r.ETag)
	if err != nil {
		return err
	}
	defer in.Close()
	err = atomicfile.Write(file, func(out io.Writer) error {
		_, err := io.Copy(out, in)
		return err
	})
	if err != nil {
		return err
	}
	if n, sum, err := sumOf(file); err != nil || n != r.Bytes || sum != r.SHA256 {
		return errors.Join(fmt.Errorf("%s: %w: its checksum does not match", b.folder.URL(r.File), features.ErrDamaged), err)
	}
	return nil
}

// Send writes the finished part of a shard in the folder dir. When it returns the part is
// there as a whole; until then the one before is, or none.
func (b *Bucket) Send(ctx context.Context, shard features.Shard, dir string, r *Record) error {
	base := strings.TrimSuffix(objectOf(shard), ".json") + "-"
	sent := *r
	sent.File = base + r.SHA256[:16] + "." + r.Work.Format
	if err := b.folder.CreateOf(ctx, sent.File, name(dir, shard)+"."+r.Work.Format); err != nil {
		return err
	}
	before, err := b.record(ctx, shard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, features.ErrDamaged) {
		return err
	}
	_, found, listErr := b.list(ctx, base)
	if listErr != nil {
		return listErr
	}
	if sent.ETag = found[sent.File].ETag; !whole(&sent, found) {
		return fmt.Errorf("%s: %w: it was sent, and has %d bytes there and %d here", b.folder.URL(sent.File), features.ErrDamaged, found[sent.File].Size, sent.Bytes)
	}
	if err == nil {
		sent.Replaces = slices.DeleteFunc(append([]string{before.File}, before.Replaces...), func(name string) bool {
			_, there := found[name]
			return !there || name == sent.File || !strings.HasPrefix(name, base)
		})
	}
	return b.put(ctx, objectOf(shard), &sent)
}

// put writes a small object of JSON, unless it is there already.
func (b *Bucket) put(ctx context.Context, name string, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	before, _, err := b.folder.Read(ctx, name, regular.Meta)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, bucket.ErrSize) {
		return err
	}
	if err == nil && bytes.Equal(before, text.Bytes()) {
		return nil
	}
	return b.folder.Put(ctx, name, text.Bytes())
}

// Commit writes the manifest, if all shards are there. Verdicts that these replaced are
// deleted then.
func (b *Bucket) Commit(ctx context.Context, count int) error {
	for {
		shards, found, err := b.list(ctx, "verdicts-")
		if err != nil || len(shards) < count {
			return err
		}
		records, err := b.records(ctx, shards)
		if err != nil {
			return err
		}
		m := Manifest{Version: version}
		m.init()
		for i, r := range records {
			if !whole(r, found) || r.Work.Judge != records[0].Work.Judge || r.Work.Format != records[0].Work.Format {
				return nil // the manifest is written by whoever makes that shard again
			}
			m.Parts = append(m.Parts, ManifestPart{records[i].File, r.Bytes, r.SHA256, r.Images})
			m.Add(r.Summary)
		}
		if err := b.put(ctx, manifestObject, m); err != nil {
			return err
		}
		// Another run may have made a part again meanwhile, and written its manifest before
		// this one.
		now, err := b.records(ctx, shards)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(records, now, func(x, y *Record) bool { return x.File == y.File }) {
			continue
		}
		old := map[string]bool{}
		for _, r := range records {
			for _, name := range r.Replaces {
				if _, there := found[name]; there && strings.HasPrefix(name, "verdicts-") {
					old[name] = true
				}
			}
		}
		for _, r := range records {
			delete(old, r.File)
		}
		for _, name := range slices.Sorted(maps.Keys(old)) {
			if err := b.folder.Delete(ctx, name); err != nil {
				return err
			}
		}
		return nil
	}
}
