package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// Verdicts in a bucket are as internal/parts says; what a shard made is an object, with the
// digits of its checksum:
//
//	verdicts-00001-of-00008-0123456789abcdef.jsonl  the verdicts of a shard
//	verdicts-00001-of-00008.json                    the Record
//	verdicts.json                                   the Manifest

// VerdictBucket is a folder of a bucket that verdicts are written to.
type VerdictBucket struct{ *parts.Set[VerdictRecord] }

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

// OpenVerdictBucket opens the folder at a URL. It need not exist.
func OpenVerdictBucket(ctx context.Context, url string) (*VerdictBucket, error) {
	set, err := parts.Open(ctx, url, parts.Layout[VerdictRecord]{
		Kind:  parts.Verdicts,
		Ends:  []string{"." + JSONL, "." + Parquet},
		Not:   "parts.json",
		Other: "a feature set",
		Parse: parseRecord,
		Of: func(r *VerdictRecord) (shard, name string, replaces []string) {
			return r.Work.Shard, r.File, r.Replaces
		},
		Objects: func(_ context.Context, _ *bucket.Folder, r *VerdictRecord) ([]parts.Written, error) {
			return []parts.Written{r.written()}, nil
		},
		Manifest: "verdicts.json",
		Whole:    wholeVerdicts,
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
	})
	return &VerdictBucket{set}, err
}

// wholeVerdicts returns the manifest of the records of all shards.
func wholeVerdicts(records []*VerdictRecord) (text []byte, unfinished, err error) {
	m := VerdictManifest{Version: version}
	m.init()
	for _, r := range records {
		if r.Work.Judge != records[0].Work.Judge || r.Work.Format != records[0].Work.Format {
			return nil, fmt.Errorf("shards %s and %s were judged by different detectors, with different options or in different formats", records[0].Work.Shard, r.Work.Shard), nil
		}
		m.Parts = append(m.Parts, ManifestPart{r.File, r.Bytes, r.SHA256, r.Images})
		m.Add(r.VerdictSummary)
	}
	return parts.JSON(m), nil, nil
}

func (r *VerdictRecord) written() parts.Written {
	return parts.Written{Name: r.File, Bytes: r.Bytes, SHA256: r.SHA256, ETag: r.ETag}
}

// Fetch writes the verdicts of a record to a file. The error wraps features.ErrDamaged if
// they are not those that were written, or gone.
func (b *VerdictBucket) Fetch(ctx context.Context, r *VerdictRecord, file string) error {
	return disk.Write(file, func(out io.Writer) error { return r.written().Copy(ctx, b.Folder, out) })
}

// SendPart writes the finished part of a shard in the folder dir. When it returns the part is
// there as a whole; until then the one before is, or none.
func (b *VerdictBucket) SendPart(ctx context.Context, shard features.Shard, dir string, r *VerdictRecord) error {
	end := "." + r.Work.Format
	name := b.Made(shard, r.SHA256) + end
	return b.Send(ctx, shard, name, []parts.File{{Name: name, Path: parts.Path(dir, shard) + end}}, func(found parts.Objects, replaces []string) *VerdictRecord {
		sent := *r
		sent.File, sent.ETag, sent.Replaces = name, found[name].ETag, replaces
		return &sent
	})
}
