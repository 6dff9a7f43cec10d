package store

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Keep says which images are kept.
type Keep string

// Which images are kept.
const (
	KeepOOD  Keep = "ood" // those that are out of distribution
	KeepAll  Keep = "all"
	KeepNone Keep = "none"
)

// Images keeps the files of images in a folder, each under the SHA-256 of its bytes,
// so that equal images are kept once. One process at a time keeps the bounds of a
// folder; others may read it. Any number of goroutines may use it.
type Images struct {
	Keep     Keep          // "" means KeepOOD
	MaxBytes int64         // the oldest are removed beyond it; 0 means 10 GiB
	MaxAge   time.Duration // older ones are removed; 0 means never

	root *os.Root

	mu    sync.Mutex
	bytes int64
	kept  map[hash]keptImage
	old   []oldImage // in the order of keeping; may name images that were kept again later
}

type keptImage struct {
	bytes int64
	since time.Time
}

type oldImage struct {
	name  hash
	since time.Time
}

// maxImage bounds what is read as an image.
const maxImage = 1 << 30

// Open opens a folder of images, and creates it if there is none.
func (m *Images) Open(dir string) (err error) {
	switch m.Keep = cmp.Or(m.Keep, KeepOOD); m.Keep {
	case KeepOOD, KeepAll, KeepNone:
	default:
		return options.Errorf("Keep", "%q is none of %s, %s, %s", m.Keep, KeepOOD, KeepAll, KeepNone)
	}
	if m.MaxBytes = cmp.Or(m.MaxBytes, 10<<30); m.MaxBytes < 0 {
		return options.Errorf("MaxBytes", "%d is negative", m.MaxBytes)
	}
	if m.MaxAge < 0 {
		return options.Errorf("MaxAge", "%v is negative", m.MaxAge)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if m.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	m.kept = map[hash]keptImage{}
	if err := m.index(); err != nil {
		return errors.Join(fmt.Errorf("folder of images %s: %w", dir, err), m.root.Close())
	}
	m.Evict(time.Now())
	return nil
}

// index finds the images that are kept, and removes files that were not finished.
func (m *Images) index() error {
	folders, err := fs.ReadDir(m.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if !folder.IsDir() || len(folder.Name()) != 2 {
			continue
		}
		files, err := fs.ReadDir(m.root.FS(), folder.Name())
		if err != nil {
			return err
		}
		for _, file := range files {
			info, err := file.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue // removed since, or not ours
			}
			if name, err := parseHash(file.Name()); err == nil && fileOf(name) == path.Join(folder.Name(), file.Name()) {
				m.kept[name] = keptImage{info.Size(), info.ModTime()}
				m.bytes += info.Size()
				m.old = append(m.old, oldImage{name, info.ModTime()})
			} else if path.Ext(file.Name()) == ".tmp" {
				_ = m.root.Remove(path.Join(folder.Name(), file.Name())) // the next start tries again
			}
		}
	}
	slices.SortFunc(m.old, func(a, b oldImage) int { return a.since.Compare(b.since) })
	return nil
}

func parseHash(text string) (h hash, err error) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data) != len(h) {
		return h, fmt.Errorf("%q is no SHA-256", text)
	}
	copy(h[:], data)
	return h, nil
}

func fileOf(name hash) string {
	text := hex.EncodeToString(name[:])
	return text[:2] + "/" + text
}

// Close ends the use of the folder.
func (m *Images) Close() error { return m.root.Close() }

// Dir is the folder.
func (m *Images) Dir() string { return m.root.Name() }

// Wants says whether the image of a verdict is to be kept.
func (m *Images) Wants(v *Verdict) bool {
	return m.Keep == KeepAll || m.Keep == KeepOOD && v.OOD
}

// Put keeps the image with this SHA-256, if it is not kept yet, and removes the oldest
// ones beyond the bounds.
func (m *Images) Put(sum string, data []byte) error {
	name, err := parseHash(sum)
	if err != nil {
		return err
	}
	if int64(len(data)) > m.MaxBytes {
		return options.Errorf("MaxBytes", "%d: the image alone has %d bytes", m.MaxBytes, len(data))
	}
	m.mu.Lock()
	_, kept := m.kept[name]
	m.mu.Unlock()
	if kept {
		return nil
	}
	if err := m.write(fileOf(name), data); err != nil {
		return fmt.Errorf("keep an image: %w", err)
	}
	now := time.Now()
	m.mu.Lock()
	if before, ok := m.kept[name]; ok { // put by another goroutine meanwhile
		m.bytes -= before.bytes
	}
	m.kept[name] = keptImage{int64(len(data)), now}
	m.bytes += int64(len(data))
	m.old = append(m.old, oldImage{name, now})
	m.mu.Unlock()
	m.Evict(now)
	return nil
}

// write writes a file that appears when it is whole. It is not synced, as an image
// that is lost in a power failure is no lost verdict; one that is cut short is found
// by its hash.
func (m *Images) write(file string, data []byte) error {
	if err := m.root.Mkdir(path.Dir(file), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp := path.Dir(file) + "/" + rand.Text() + ".tmp"
	f, err := m.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		if err = m.root.Rename(temp, file); err == nil {
			return nil
		}
		// Windows may replace no file that another request reads; it has the same bytes then.
		if kept, readErr := m.read(file); readErr == nil && bytes.Equal(kept, data) {
			return m.root.Remove(temp)
		}
	}
	if err != nil {
		_ = m.root.Remove(temp) // the first error says more
	}
	return err
}

// Has says whether the image with a SHA-256 is kept, as far as this process knows.
func (m *Images) Has(sum string) bool {
	name, err := parseHash(sum)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, kept := m.kept[name]
	return kept
}

// Get returns the image with a SHA-256; the error wraps ErrNotFound if it is not
// kept, or no longer as it was.
func (m *Images) Get(sum string) ([]byte, error) {
	name, err := parseHash(sum)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	data, err := m.read(fileOf(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w", sum, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(data) != name {
		return nil, fmt.Errorf("image %s: %w: its file has other bytes", sum, ErrNotFound)
	}
	return data, nil
}

func (m *Images) read(file string) ([]byte, error) {
	info, err := m.root.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxImage {
		return nil, &fs.PathError{Op: "open", Path: file, Err: disk.ErrKind}
	}
	f, err := m.root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var data bytes.Buffer
	_, err = data.ReadFrom(f)
	return data.Bytes(), err
}

// Evict removes the images that are too old at a time, and the oldest ones beyond
// the bound of their size. Put calls it too; a service whose images come seldom
// calls it from time to time.
func (m *Images) Evict(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.old) > 0 {
		oldest := m.old[0]
		image, kept := m.kept[oldest.name]
		switch {
		case !kept || !image.since.Equal(oldest.since): // removed, or kept again later
		case m.bytes > m.MaxBytes || m.MaxAge > 0 && now.Sub(oldest.since) > m.MaxAge:
			if err := m.root.Remove(fileOf(oldest.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return // tried again next time
			}
			delete(m.kept, oldest.name)
			m.bytes -= image.bytes
		default:
			return
		}
		m.old = m.old[1:]
	}
}

// Bytes returns how large the images are together.
func (m *Images) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}
