package verdicts

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

// Folder returns the folder, for the states of runs that write verdicts there.
func (b *Bucket) Folder() *bucket.Folder { return b.folder }

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

// whole tells whether the verdicts that a record tells of are in a listing. Some stores give
// equal bytes another ETag each time, so where only that differs the verdicts are read.
func (b *Bucket) whole(ctx context.Context, r *Record, found map[string]bucket.Object) (bool, error) {
	o, ok := found[r.File]
	if !ok || o.Size != r.Bytes || r.ETag == "" || o.ETag == "" || o.ETag == r.ETag {
		return ok && o.Size == r.Bytes, nil
	}
	err := b.copy(ctx, r, io.Discard)
	if gone(err) {
		return false, nil
	}
	return err == nil, err
}

// gone tells whether an error says that an object is not the one that was written.
func gone(err error) bool {
	return errors.Is(err, features.ErrDamaged) || errors.Is(err, bucket.ErrChanged) || errors.Is(err, fs.ErrNotExist)
}

// copy copies the verdicts of a record, and compares their checksum.
func (b *Bucket) copy(ctx context.Context, r *Record, to io.Writer) error {
	in, _, err := b.folder.OpenRange(ctx, r.File, 0, -1, "")
	if err != nil {
		return err
	}
	defer in.Close()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, hash), in)
	if err != nil {
		return err
	}
	if n != r.Bytes || hex.EncodeToString(hash.Sum(nil)) != r.SHA256 {
		return fmt.Errorf("%s: %w: its checksum does not match", b.folder.URL(r.File), features.ErrDamaged)
	}
	return nil
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

// Prepare makes sure that a shard may be written, and returns its record if there is one,
// or else nil. Where the record or its verdicts are not those that were written, whole is
// false: the shard is to be made again.
func (b *Bucket) Prepare(ctx context.Context, shard features.Shard) (r *Record, whole bool, err error) {
	shards, found, err := b.list(ctx, "verdicts-")
	if err != nil {
		return nil, false, err
	}
	if i := slices.IndexFunc(shards, func(s features.Shard) bool { return s.Count != shard.Count }); i >= 0 {
		return nil, false, options.Errorf("Out", "%s has parts of %d: write to another folder", b, shards[i].Count)
	}
	if _, err := b.folder.Stat(ctx, "parts.json"); err == nil {
		return nil, false, options.Errorf("Out", "%s is a feature set: write to another folder", b)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if !slices.Contains(shards, shard) {
		return nil, false, nil
	}
	r, err = b.record(ctx, shard)
	if errors.Is(err, features.ErrDamaged) {
		return r, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	whole, err = b.whole(ctx, r, found)
	return r, whole, err
}

// Fetch writes the verdicts of a record to a file.
func (b *Bucket) Fetch(ctx context.Context, r *Record, file string) error {
	return atomicfile.Write(file, func(out io.Writer) error { return b.copy(ctx, r, out) })
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
	o, ok := found[sent.File]
	if sent.ETag = o.ETag; !ok || o.Size != sent.Bytes {
		return fmt.Errorf("%s: %w: it was sent, and has %d bytes there and %d here", b.folder.URL(sent.File), features.ErrDamaged, o.Size, sent.Bytes)
	}
	var replaced []string
	switch {
	case err == nil:
		replaced = append([]string{before.File}, before.Replaces...)
	case errors.Is(err, features.ErrDamaged): // which does not say what it replaced
		replaced = slices.Sorted(maps.Keys(found))
	}
	if len(replaced) > 0 {
		sent.Replaces = slices.DeleteFunc(replaced, func(name string) bool {
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

// Commit writes the manifest, if all shards are there and belong together; unfinished says
// why they do not. Verdicts that these replaced are deleted then.
func (b *Bucket) Commit(ctx context.Context, count int) (unfinished, err error) {
	for {
		shards, _, err := b.list(ctx, "verdicts-")
		if err != nil {
			return nil, err
		}
		if len(shards) < count {
			return fmt.Errorf("%d of %d shards are there", len(shards), count), nil
		}
		records, err := b.records(ctx, shards)
		if errors.Is(err, features.ErrDamaged) {
			return err, nil
		}
		if err != nil {
			return nil, err
		}
		// Listed after the records were read, so that what they name is there.
		_, found, err := b.list(ctx, "verdicts-")
		if err != nil {
			return nil, err
		}
		m := Manifest{Version: version}
		m.init()
		for i, r := range records {
			if r.Work.Judge != records[0].Work.Judge || r.Work.Format != records[0].Work.Format {
				return fmt.Errorf("shards %s and %s were judged by different detectors, with different options or in different formats", shards[0], shards[i]), nil
			}
			if ok, err := b.whole(ctx, r, found); err != nil {
				return nil, err
			} else if !ok {
				return fmt.Errorf("%w: %s is not as it was written: judge shard %s again", features.ErrDamaged, b.folder.URL(r.File), shards[i]), nil
			}
			m.Parts = append(m.Parts, ManifestPart{records[i].File, r.Bytes, r.SHA256, r.Images})
			m.Add(r.Summary)
		}
		if err := b.put(ctx, manifestObject, m); err != nil {
			return nil, err
		}
		// Another run may have made a part again meanwhile, and written its manifest before
		// this one.
		now, err := b.records(ctx, shards)
		if err != nil {
			return nil, err
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
				return nil, err
			}
		}
		return nil, nil
	}
}
