package features

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/npy"
)

// build is a set that is being put together in a folder of its own.
type build struct {
	w      *Writer
	dir    string
	meta   Meta
	images []Image // of the rows, as they were listed
	labels []int64
	failed []Failure
}

// newBuild checks the arguments of Commit and gathers what each row is made of.
func (w *Writer) newBuild(listing []Image, labels []int64, classes []string, failed []Failure) (*build, error) {
	if len(labels) != len(listing) {
		return nil, fmt.Errorf("%d labels for %d images", len(labels), len(listing))
	}
	b := &build{w: w, dir: w.partial(newDir), failed: slices.Clone(failed)}
	// In an order that does not depend on which worker was quicker.
	slices.SortFunc(b.failed, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Error, b.Error))
	})
	left := make(map[string]bool, len(failed))
	for _, f := range failed {
		left[f.Path] = true
	}
	for i, img := range listing {
		if left[img.Path] {
			continue
		}
		l, ok := w.known[img.Path]
		if !ok || l.bytes != img.Bytes || l.mtime != img.MTime {
			return nil, fmt.Errorf("there is no row of %s as it is now, and it has not failed", img.Path)
		}
		if labels[i] < -1 || labels[i] >= int64(len(classes)) {
			return nil, fmt.Errorf("label %d of %s is none of the %d classes", labels[i], img.Path, len(classes))
		}
		b.images = append(b.images, img)
		b.labels = append(b.labels, labels[i])
	}
	h := w.header
	b.meta = Meta{
		Version: Version, N: len(b.images), D: h.D, Classes: []string{}, Root: h.Root, Model: h.Model,
		ModelSHA256: h.ModelSHA256, Output: h.Output, Pool: h.Pool, Preprocess: h.Preprocess,
		Fingerprint: h.Fingerprint, Tool: h.Tool,
	}
	for _, class := range classes {
		b.meta.Classes = append(b.meta.Classes, readable(class))
	}
	return b, nil
}

// readable makes a name UTF-8 that is a folder's and may be anything.
func readable(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return EncodePath(name)
}

// write writes and syncs all files. The classifier is taken over from old, a set
// of the same model, unless that is nil.
func (b *build) write(old *Set) error {
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	if err := os.Mkdir(b.dir, 0o777); err != nil {
		return err
	}
	if err := b.writeMatrix(featuresFile, 0, b.meta.D); err != nil {
		return err
	}
	if c := b.w.header.LogitsDim; c > 0 {
		if err := b.writeMatrix(logitsFile, b.meta.D, c); err != nil {
			return err
		}
	}
	if old != nil {
		for _, name := range []string{weightFile, biasFile} {
			if err := copyFile(b.path(name), old.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	err := atomicfile.Create(b.path(labelsFile), func(w io.Writer) error {
		out, err := npy.NewWriter[int64](w, len(b.labels))
		if err != nil {
			return err
		}
		return out.Write(b.labels)
	})
	if err != nil {
		return err
	}
	err = writeLines(b.path(imagesFile), b.images, func(img Image) Image {
		sha := b.w.known[img.Path].sha256
		img.SHA256 = hex.EncodeToString(sha[:])
		img.Path = EncodePath(img.Path)
		if img.Label != nil {
			label := readable(*img.Label)
			img.Label = &label
		}
		return img
	})
	if err != nil {
		return err
	}
	err = writeLines(b.path(errorsFile), b.failed, func(f Failure) Failure {
		f.Path = EncodePath(f.Path)
		return f
	})
	if err != nil {
		return err
	}
	text, err := b.meta.encode()
	if err != nil {
		return fmt.Errorf("write %s: %w", b.path(metaFile), err)
	}
	err = atomicfile.Create(b.path(metaFile), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(b.dir)
}

func (b *build) path(name string) string { return filepath.Join(b.dir, name) }

// writeMatrix writes some columns of all rows.
func (b *build) writeMatrix(name string, first, columns int) error {
	return atomicfile.Create(b.path(name), func(w io.Writer) error {
		out, err := npy.NewWriter[float32](w, len(b.images), columns)
		if err != nil {
			return err
		}
		values := make([]float32, columns)
		for _, img := range b.images {
			if err := b.w.read(values, b.w.known[img.Path], first); err != nil {
				return err
			}
			if err := out.Write(values); err != nil {
				return err
			}
		}
		return out.Close()
	})
}

// read fills values with the columns of a row from first on: 0 for its features,
// D for its logits.
func (w *Writer) read(values []float32, l location, first int) error {
	if !l.old {
		return w.journal.read(values, l.row, first)
	}
	from := w.old.Features()
	if first > 0 {
		from, _ = w.old.Logits()
	}
	copy(values, from[l.row*len(values):])
	return nil
}

// writeLines writes a file of one JSON object a line.
func writeLines[T any](path string, all []T, encode func(T) T) error {
	return atomicfile.Create(path, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for _, v := range all {
			if err := enc.Encode(encode(v)); err != nil {
				return err
			}
		}
		return nil
	})
}

func copyFile(to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return atomicfile.Create(to, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	})
}
