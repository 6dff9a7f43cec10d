package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// Verdicts in a bucket are as internal/parts says; what a shard made is an object, with the
// digits of its checksum:
//
//	verdicts-00001-of-00008-0123456789abcdef.jsonl  the verdicts of a shard
//	verdicts-00001-of-00008.json                    the Record
//	verdicts.json                                   the Manifest

// VerdictBucket is a folder of a bucket that verdicts are written to.
type VerdictBucket struct{ parts parts.Bucket[VerdictRecord] }

// VerdictManifest says what the verdicts of all shards are, and adds them up.
type VerdictManifest struct {
	Version int            `json:"version"`
	Parts   []ManifestPart `json:"parts"`
	VerdictSummary
}

// ManifestPart is a line of a Manifest.
type ManifestPart struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Images int    `json:"images"`
}

const manifestObject = "verdicts.json"

// OpenVerdictBucket opens the folder at a URL. It need not exist.
func OpenVerdictBucket(ctx context.Context, url string) (*VerdictBucket, error) {
	folder, err := bucket.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &VerdictBucket{parts.Bucket[VerdictRecord]{
		Folder: folder,
		Kind:   parts.Verdicts,
		Ends:   []string{"." + JSONL, "." + Parquet},
		Parse:  parseRecord,
		Of: func(r *VerdictRecord) (shard, name string, replaces []string) {
			return r.Work.Shard, r.File, r.Replaces
		},

		Manifest: manifestObject,
		Names: func(text []byte, url string) (names []string, err error) {
			var m VerdictManifest
			if err := json.Unmarshal(text, &m); err != nil {
				return nil, fmt.Errorf("%w: %s: %w", features.ErrDamaged, url, err)
			}
			for _, p := range m.Parts {
				names = append(names, p.File)
			}
			return names, nil
		},
	}}, nil
}

// Folder returns the folder, for the states of runs that write verdicts there.
func (b *VerdictBucket) Folder() *bucket.Folder { return b.parts.Folder }

// String returns the folder's URL, without a slash at the end.
func (b *VerdictBucket) String() string { return b.parts.String() }

// list lists the finished shards, and all objects of verdicts.
func (b *VerdictBucket) list(ctx context.Context) ([]parts.Shard, parts.Objects, error) {
	return b.parts.List(ctx, parts.Verdicts+"-")
}

func (r *VerdictRecord) written() parts.Written {
	return parts.Written{Name: r.File, Bytes: r.Bytes, SHA256: r.SHA256, ETag: r.ETag}
}

// check compares the verdicts that a record tells of with a listing.
func (b *VerdictBucket) check(ctx context.Context, r *VerdictRecord, found parts.Objects) error {
	return parts.Check(ctx, b.Folder(), []parts.Written{r.written()}, found[""])
}

// Parts reads what is known of the shards that are finished.
func (b *VerdictBucket) Parts(ctx context.Context) (finished []VerdictPart, err error) {
	shards, _, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	records, err := b.parts.All(ctx, shards)
	if err != nil {
		return nil, err
	}
	for i, s := range shards {
		finished = append(finished, VerdictPart{Shard: features.Shard(s), Record: records[i]})
	}
	return finished, nil
}

// Prepare makes sure that a shard may be written, and returns its record if there is one,
// or else nil. Where the record or its verdicts are not those that were written, whole is
// false: the shard is to be made again.
func (b *VerdictBucket) Prepare(ctx context.Context, shard features.Shard) (r *VerdictRecord, whole bool, err error) {
	shards, found, err := b.list(ctx)
	if err != nil {
		return nil, false, err
	}
	if i := slices.IndexFunc(shards, func(s parts.Shard) bool { return s.Count != shard.Count }); i >= 0 {
		return nil, false, options.Errorf("Out", "%s has parts of %d: write to another folder", b, shards[i].Count)
	}
	if _, err := b.Folder().Stat(ctx, "parts.json"); err == nil {
		return nil, false, options.Errorf("Out", "%s is a feature set: write to another folder", b)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	r, err = b.parts.Look(ctx, parts.Shard(shard))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err == nil:
		err = b.check(ctx, r, found)
	}
	if errors.Is(err, features.ErrDamaged) {
		return r, false, nil
	}
	return r, err == nil, err
}

// Fetch writes the verdicts of a record to a file. The error wraps features.ErrDamaged if
// they are not those that were written, or gone.
func (b *VerdictBucket) Fetch(ctx context.Context, r *VerdictRecord, file string) error {
	return disk.Write(file, func(out io.Writer) error { return r.written().Copy(ctx, b.Folder(), out) })
}

// Send writes the finished part of a shard in the folder dir. When it returns the part is
// there as a whole; until then the one before is, or none.
func (b *VerdictBucket) Send(ctx context.Context, shard features.Shard, dir string, r *VerdictRecord) error {
	sent := *r
	sent.File = b.parts.Made(parts.Shard(shard), r.SHA256) + "." + r.Work.Format
	if err := b.Folder().CreateOf(ctx, sent.File, name(dir, shard)+"."+r.Work.Format); err != nil {
		return err
	}
	replaced, found, err := b.parts.Replaced(ctx, parts.Shard(shard), sent.File)
	if err != nil {
		return err
	}
	sent.ETag, sent.Replaces = found[""][sent.File].ETag, replaced
	if err := b.check(ctx, &sent, found); err != nil {
		return err // the store does not have what it was sent
	}
	return b.put(ctx, b.parts.Record(parts.Shard(shard)), &sent)
}

// put writes a small object of JSON.
func (b *VerdictBucket) put(ctx context.Context, name string, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	return b.parts.Store(ctx, name, text.Bytes())
}

// Commit writes the manifest, if all shards are there and belong together; unfinished says
// why they do not. Verdicts that these replaced are deleted then.
func (b *VerdictBucket) Commit(ctx context.Context, count int) (unfinished, err error) {
	shards, _, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	shards = slices.DeleteFunc(shards, func(s parts.Shard) bool { return s.Count != count })
	if len(shards) < count {
		return fmt.Errorf("%d of %d shards are there", len(shards), count), nil
	}
	return b.parts.Commit(ctx, count, func(records []*VerdictRecord, found parts.Objects) (unfinished, err error) {
		m := VerdictManifest{Version: version}
		m.init()
		for _, r := range records {
			if r.Work.Judge != records[0].Work.Judge || r.Work.Format != records[0].Work.Format {
				return fmt.Errorf("shards %s and %s were judged by different detectors, with different options or in different formats", records[0].Work.Shard, r.Work.Shard), nil
			}
			if err := b.check(ctx, r, found); err != nil {
				return nil, fmt.Errorf("judge shard %s again: %w", r.Work.Shard, err)
			}
			m.Parts = append(m.Parts, ManifestPart{r.File, r.Bytes, r.SHA256, r.Images})
			m.Add(r.VerdictSummary)
		}
		return nil, b.put(ctx, manifestObject, m)
	})
}
