package features

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// ErrNoChecksums says that a set cannot be verified: it was made elsewhere, or
// by version 1 of the format.
var ErrNoChecksums = errors.New("it has no checksums")

// Sum is the entry of features.json for another file of the set.
type Sum struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // 64 lower-case hexadecimal digits
}

// noSum replaces the checksum of features.json while that is computed.
var noSum = strings.Repeat("0", 2*sha256.Size)

// seal puts the checksum into the text of a features.json that has noSum in its
// place. The checksum is the last field, so that no other field can be mistaken for
// it.
func seal(text []byte) {
	sum := sha256.Sum256(text)
	hex.Encode(text[bytes.LastIndex(text, []byte(noSum)):], sum[:])
}

// sealed tells whether the text of a features.json is as seal left it, given
// the checksum that it names.
func sealed(text []byte, sum string) bool {
	at := bytes.LastIndex(text, []byte(sum))
	if len(sum) != len(noSum) || at < 0 {
		return false
	}
	again := slices.Concat(text[:at], []byte(noSum), text[at+len(sum):])
	seal(again)
	return bytes.Equal(again, text)
}

// create writes a new file as atomicfile.Create does, until ctx is cancelled, and
// returns its sum.
func create(ctx context.Context, path string, fill func(io.Writer) error) (Sum, error) {
	hash := sha256.New()
	counted := &counter{ctx: ctx}
	err := disk.Create(path, func(w io.Writer) error { return fill(io.MultiWriter(counted, w, hash)) })
	return Sum{counted.n, hex.EncodeToString(hash.Sum(nil))}, err
}

// counter counts bytes, until ctx is cancelled.
type counter struct {
	ctx context.Context
	n   int64
}

func (c *counter) Write(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, c.ctx.Err()
	}
	c.n += int64(len(p))
	return len(p), nil
}

// matrices are the files that may be larger than memory: Open checks only their
// size and header.
var matrices = []string{featuresFile, logitsFile, layersFile, parquetFile}

// checkSums compares the files that features.json names with their entries, as far
// as that is quick.
func (s *Set) checkSums() error {
	for _, name := range s.fileNames() {
		sum := s.Files[name]
		if !filepath.IsLocal(name) {
			return s.damaged(metaFile, "it names the file %q", name)
		}
		info, err := os.Stat(s.path(name))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if info.Size() != sum.Bytes {
			return s.damaged(name, "it has %d bytes, %s says %d: it was cut short or altered", info.Size(), metaFile, sum.Bytes)
		}
		if slices.Contains(matrices, name) {
			continue
		}
		if err := s.checkSum(context.Background(), name); err != nil {
			return err
		}
	}
	return nil
}

// fileNames returns the names in features.json, but of a copy of a set only those that
// were copied.
func (s *Set) fileNames() []string {
	names := slices.Sorted(maps.Keys(s.Files))
	if s.copied == nil {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return s.copied.paths[name] == "" })
}

// checkSum reads a file wholly and compares its checksum.
func (s *Set) checkSum(ctx context.Context, name string) error {
	sum, err := s.sumOf(ctx, name)
	if err == nil && sum != s.Files[name].SHA256 {
		return s.damaged(name, "it was altered: its checksum is not that in %s", metaFile)
	}
	return err
}

// sumOf reads a file wholly and returns its checksum.
func (s *Set) sumOf(ctx context.Context, name string) (string, error) {
	if s.memory {
		return s.sumInMemory(ctx, name)
	}
	hash := sha256.New()
	if err := disk.Copy(ctx, hash, s.path(name), disk.Values); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Content returns a hash of what a training reads of the set: features, labels, layers and
// the names of the classes. It is made of the set's checksums; those that another
// program's set or one of version 1 lacks are computed, which takes as long as
// reading the files. A set that is moved keeps its content. A set of parts has another
// content than the set that Merge makes of it.
func (s *Set) Content(ctx context.Context) (string, error) {
	hash := sha256.New()
	for _, part := range s.parts { // which have checksums, and the whole has none of all rows
		fmt.Fprintf(hash, "%s\x00%s\x00", part.Files[featuresFile].SHA256, part.Files[labelsFile].SHA256)
	}
	names := []string{featuresFile, labelsFile}
	if len(s.Layers) > 0 {
		names = append(names, layersFile)
	}
	if s.parts != nil {
		names = nil
	}
	for _, name := range names {
		sum := s.Files[name].SHA256
		if sum == "" {
			var err error
			if sum, err = s.sumOf(ctx, name); errors.Is(err, fs.ErrNotExist) {
				sum = "none" // a set of another program need not have labels
			} else if err != nil {
				return "", err
			}
		}
		fmt.Fprintf(hash, "%s\x00", sum)
	}
	for _, class := range s.Classes {
		fmt.Fprintf(hash, "%s\x00", class)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// checkHeader compares the header of a matrix that this package wrote, byte by
// byte, with the expected one: another type of the same size would be read without
// an error.
func (s *Set) checkHeader(name string, shape []int) error {
	begin := npy.NewWriter[float32]
	if (name == featuresFile || name == layersFile) && s.DType == Float16 {
		begin = npy.NewHalfWriter
	}
	var want bytes.Buffer
	if _, err := begin(&want, shape...); err != nil {
		return err
	}
	f, err := disk.Open(s.path(name), disk.Values)
	if err != nil {
		return err
	}
	defer f.Close()
	have := make([]byte, want.Len())
	if _, err := io.ReadFull(f, have); err != nil || !bytes.Equal(have, want.Bytes()) {
		return s.damaged(name, "its header was altered")
	}
	return nil
}

// Verify reads all files of the set and compares them with their checksums; Open
// does this for all files but features and logits. The error wraps ErrDamaged and
// names the first file that differs, or wraps ErrNoChecksums. If ctx is cancelled,
// it is ctx.Err().
func (s *Set) Verify(ctx context.Context) error {
	for _, part := range s.parts {
		if err := part.Verify(ctx); err != nil {
			return err
		}
	}
	if s.parts != nil {
		return nil
	}
	if s.Version < 2 {
		return fmt.Errorf("%s cannot be verified: %w; an `extract` onto it gives it some", s.Dir, ErrNoChecksums)
	}
	for _, name := range s.fileNames() {
		if err := s.checkSum(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
