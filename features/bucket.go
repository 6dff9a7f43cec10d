package features

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// A set of parts in a bucket is as internal/parts says; what a shard made is the folder of
// its set, with the digits of its checksum:
//
//	part-00001-of-00008-0123456789abcdef/  the files of a shard
//	part-00001-of-00008.json               a BucketPart
//	parts.json                             the manifest

// Bucket is a folder of a bucket that a set of parts is written to.
type Bucket struct{ *parts.Set[BucketPart] }

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

	set *Set // with only its Meta, once that was read
}

// Stored is what a bucket's listing says of an object.
type Stored struct {
	Bytes int64  `json:"bytes"`
	ETag  string `json:"etag,omitempty"`
}

// OpenBucket opens the folder at a URL. It need not exist. The options say which parts
// belong together.
func OpenBucket(ctx context.Context, url string, o Options) (*Bucket, error) {
	set, err := parts.Open(ctx, url, layout(o))
	return &Bucket{set}, err
}

// layout says how the parts of a set lie in a bucket.
func layout(o Options) parts.Layout[BucketPart] {
	return parts.Layout[BucketPart]{
		Kind:  parts.PartKind,
		Ends:  []string{""},
		Force: true,
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
		Objects: func(ctx context.Context, folder *bucket.Folder, p *BucketPart) ([]parts.Written, error) {
			if err := p.look(ctx, folder); err != nil {
				return nil, err
			}
			return p.written(), nil
		},
		Manifest: partsFile,
		Whole: func(records []*BucketPart) (text []byte, unfinished, err error) {
			sets := make([]*Set, len(records))
			for i, p := range records {
				sets[i] = p.set
			}
			return manifestOf(sets, o)
		},
		Names: func(text []byte, url string) (names []string, err error) {
			m, err := parseManifest(text, url)
			for _, line := range m.Parts {
				names = append(names, line.Name)
			}
			return names, err
		},
	}
}

// look reads what a part says of itself, and no rows.
func (p *BucketPart) look(ctx context.Context, folder *bucket.Folder) error {
	sub := folder.Sub(p.Name)
	_, meta, err := readMetaOf(ctx, sub)
	if err == nil && meta.SHA256 != p.SHA256 {
		err = fmt.Errorf("%w: %s is not that of the record of shard %s", ErrDamaged, sub.URL(metaFile), p.Shard)
	}
	p.set = &Set{Dir: strings.TrimSuffix(sub.String(), "/"), Meta: meta}
	return err
}

// written returns the objects that the features.json of the part names.
func (p *BucketPart) written() (objects []parts.Written) {
	for _, name := range slices.Sorted(maps.Keys(p.set.Files)) {
		sum := p.set.Files[name]
		objects = append(objects, parts.Written{Name: path.Join(p.Name, name), Bytes: sum.Bytes, SHA256: sum.SHA256, ETag: p.Objects[name].ETag})
	}
	return objects
}

// LookAt reads what a finished part says of itself, and no rows.
func (b *Bucket) LookAt(ctx context.Context, shard Shard) (Meta, []Failure, error) {
	p, err := b.Look(ctx, shard)
	if err == nil {
		err = p.look(ctx, b.Folder)
	}
	if err != nil {
		return Meta{}, nil, err
	}
	sub := b.Folder.Sub(p.Name)
	r, _, err := sub.OpenRange(ctx, errorsFile, 0, -1, "")
	if errors.Is(err, fs.ErrNotExist) {
		return p.set.Meta, nil, nil
	}
	if err != nil {
		return Meta{}, nil, err
	}
	failed, err := readFailures(r, p.set.Version)
	if err = errors.Join(err, r.Close()); err != nil {
		return Meta{}, nil, fmt.Errorf("%s: %w", sub.URL(errorsFile), err)
	}
	return p.set.Meta, failed, nil
}

// Unfinished says why there is no whole set yet; nil if there is one.
func (b *Bucket) Unfinished(ctx context.Context) (unfinished, err error) {
	_, err = b.Folder.Stat(ctx, partsFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return place{folder: b.Folder}.notYet(ctx, fmt.Errorf("feature set %s: %w", b, fs.ErrNotExist)), nil
}

// Fetch copies a part to the folder dir, which must not exist, so that [Create] takes its
// rows. The error wraps ErrDamaged if a file has another checksum than it had.
func (b *Bucket) Fetch(ctx context.Context, p *BucketPart, dir string) error {
	text, meta, err := readMetaOf(ctx, b.Folder.Sub(p.Name))
	if err != nil {
		return err
	}
	p.set = &Set{Meta: meta}
	temp := dir + ".fetched"
	if err := errors.Join(disk.RemoveAll(temp), os.MkdirAll(temp, 0o777)); err != nil {
		return err
	}
	for _, w := range p.written() {
		name, ok := strings.CutPrefix(w.Name, p.Name+"/")
		if !ok || !filepath.IsLocal(name) || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("%w: %s: it names the file %q", ErrDamaged, b.Folder.Sub(p.Name).URL(metaFile), name)
		}
		f, err := os.Create(filepath.Join(temp, name))
		if err != nil {
			return err
		}
		if err := errors.Join(w.Copy(ctx, b.Folder, f), f.Close()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(temp, metaFile), text, 0o666); err != nil {
		return err
	}
	return disk.Rename(temp, dir)
}

// SendPart writes the set in the folder dir as a part, made of inputs, with so many images of
// each class. When it returns the part is there as a whole; until then the one before is, or
// none.
func (b *Bucket) SendPart(ctx context.Context, shard Shard, dir, inputs string, images []int) error {
	s := &Set{Dir: dir}
	if err := s.readMeta(); err != nil {
		return err
	}
	p := &BucketPart{Shard: shard, Name: b.Made(shard, s.SHA256), SHA256: s.SHA256, Inputs: inputs, Images: images}
	var files []parts.File
	for _, name := range append(slices.Sorted(maps.Keys(s.Files)), metaFile) {
		files = append(files, parts.File{Name: path.Join(p.Name, name), Path: s.path(name)})
	}
	return b.Send(ctx, shard, p.Name, files, func(found parts.Objects, replaces []string) *BucketPart {
		p.Replaces, p.Objects = replaces, map[string]Stored{}
		for name, o := range found {
			if name, ok := strings.CutPrefix(name, p.Name+"/"); ok {
				p.Objects[name] = Stored{o.Size, o.ETag}
			}
		}
		return p
	})
}
