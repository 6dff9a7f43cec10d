package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Defaults of [Watched].
const (
	WatchEvery  = time.Second
	WatchSettle = 2 * time.Second
)

// WatchedImage is a file of the folder. A file that changes is another image.
type WatchedImage struct {
	ID   string // a UUID that follows from source, path, size and time of the last change
	Path string // relative to the folder, with forward slashes
	Data []byte
	Err  error // why it cannot be read
}

// Watched watches a folder that fills, and hands out each image in it once, when
// it is whole. It knows nothing of HTTP, of detectors and of stores.
//
// It looks at the folder every now and then, and needs no notices of the file system, so
// that folders of other machines (NFS, SMB) and of containers are the same to it. A file
// is whole when its size and the time of its last change have stayed the same for a
// while. Links are passed over, and nothing outside of the folder is ever read. Hidden
// files and folders are passed over too, and files with the names of unfinished ones
// (a.jpg.part); rename a file when it is whole, and it is seen at once as such.
type Watched struct {
	Dir    string
	Source string // is part of the ids of images
	// Every is the time between two looks; 0 is WatchEvery. A folder that takes long to
	// look through is looked at less often: a fifth of the time at most goes there.
	Every time.Duration
	// Settle is how long a file must not have changed; 0 is WatchSettle.
	Settle   time.Duration
	MaxBytes int64 // of a file; larger ones are handed out as errors
	Workers  int   // how many images are handed out at once; 0 is 1

	// Known returns which of these ids were handed out before, in an earlier run.
	Known func(ctx context.Context, ids []string) (map[string]bool, error)
	// Image takes an image. When it returns an error, the image is handed out again later.
	Image func(ctx context.Context, img WatchedImage) error
	Log   *slog.Logger // nil logs nothing

	files map[string]*watchedFile
	down  string // why the folder could not be looked at, as the log was told
}

// file is what is known about one.
type watchedFile struct {
	path        string
	size, mtime int64
	since       time.Time // when it was first seen so
	look        uint64    // the last one that it was there
	done        bool
}

// Open checks that the folder can be watched, which comes before Run.
func (f *Watched) Open() error {
	f.Every, f.Settle, f.Workers = cmp.Or(f.Every, WatchEvery), cmp.Or(f.Settle, WatchSettle), cmp.Or(f.Workers, 1)
	f.Log, f.files = cmp.Or(f.Log, slog.New(slog.DiscardHandler)), map[string]*watchedFile{}
	if f.Every < 0 || f.Settle < 0 {
		return options.Errorf("Settle", "a time must be positive")
	}
	dir, err := disk.OpenDir(f.Dir)
	if err != nil {
		return err
	}
	return dir.Close()
}

// Run watches until ctx is cancelled, and then waits for the images that were handed out.
func (f *Watched) Run(ctx context.Context) {
	for look := uint64(1); ; look++ {
		start := time.Now()
		err := f.look(ctx, look)
		pause := max(f.Every, 4*time.Since(start))
		if err == nil {
			err = f.hand(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		f.tell(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// tell logs what is wrong, once.
func (f *Watched) tell(err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	switch {
	case now == f.down:
	case err != nil:
		f.Log.Error("a folder cannot be watched now", "source", f.Source, "error", err)
	default:
		f.Log.Warn("a folder is watched again", "source", f.Source)
	}
	f.down = now
}

// look notes which files there are.
func (f *Watched) look(ctx context.Context, number uint64) error {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	now := time.Now()
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case name == ".":
			return err
		case unfinished(entry.Name()) && entry.IsDir():
			return fs.SkipDir
		case err != nil || !entry.Type().IsRegular() || unfinished(entry.Name()):
			return nil // a folder inside that cannot be read is tried again with the next look
		}
		info, err := entry.Info()
		if err != nil || info.Size() == 0 {
			return nil // it is gone, or somebody begins to write it
		}
		size, mtime := info.Size(), info.ModTime().UnixNano()
		known := f.files[name]
		if known == nil || known.size != size || known.mtime != mtime {
			known = &watchedFile{path: name, size: size, mtime: mtime, since: now}
			f.files[name] = known
		}
		known.look = number
		return nil
	})
	if err != nil {
		return err
	}
	for name, known := range f.files {
		if known.look != number {
			delete(f.files, name)
		}
	}
	return nil
}

// unfinished tells whether a file of that name is not for us, or not yet.
func unfinished(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~") || strings.HasSuffix(name, "~") {
		return true
	}
	return slices.Contains([]string{".part", ".partial", ".filepart", ".crdownload", ".download", ".tmp", ".temp", ".swp", ".inprogress"}, strings.ToLower(path.Ext(name)))
}

// hand hands out the files that are whole, the oldest first.
func (f *Watched) hand(ctx context.Context) error {
	var whole []*watchedFile
	var ids []string
	for _, one := range f.files {
		if !one.done && time.Since(one.since) >= f.Settle {
			whole = append(whole, one)
		}
	}
	if len(whole) == 0 {
		return nil
	}
	slices.SortFunc(whole, func(a, b *watchedFile) int {
		return cmp.Or(cmp.Compare(a.mtime, b.mtime), strings.Compare(a.path, b.path))
	})
	for _, one := range whole {
		ids = append(ids, f.id(one))
	}
	known, err := f.Known(ctx, ids)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	group, _ := parallel.WithContext(ctx) // the others go on where one fails
	group.SetLimit(f.Workers)
	for i, one := range whole {
		if one.done = known[ids[i]]; one.done || ctx.Err() != nil {
			continue
		}
		group.Go(func() error {
			img := WatchedImage{ID: ids[i], Path: one.path}
			var is bool
			if img.Data, is, img.Err = f.read(root, one); is {
				err := f.Image(ctx, img)
				one.done = err == nil
				return err
			}
			one.done = !errors.Is(img.Err, errChanged)
			return nil
		})
	}
	return group.Wait()
}

// errChanged is the error of a file that is not what it was when it was looked at.
var errChanged = errors.New("it changes")

// read reads a file, and tells whether it is an image that is to be handed out.
func (f *Watched) read(root *os.Root, one *watchedFile) (data []byte, is bool, err error) {
	in, err := disk.OpenIn(root, one.path, disk.Values)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, disk.ErrKind) {
		return nil, false, errChanged
	}
	named := preprocess.IsImage(one.path, nil)
	if err != nil {
		return nil, named, err
	}
	defer in.Close()
	same := func() bool {
		info, err := in.Stat()
		return err == nil && info.Size() == one.size && info.ModTime().UnixNano() == one.mtime
	}
	head := make([]byte, preprocess.HeadBytes)
	n, err := io.ReadFull(in, head)
	switch {
	case !same():
		return nil, false, errChanged
	case err != nil && err != io.ErrUnexpectedEOF:
		return nil, named, err
	case !preprocess.IsImage(one.path, head[:n]):
		return nil, false, nil
	case one.size > f.MaxBytes:
		return nil, true, options.Errorf("MaxBody", "it has %d bytes, and a file may have %d", one.size, f.MaxBytes)
	}
	data = make([]byte, one.size)
	copy(data, head[:n])
	if _, err = io.ReadFull(in, data[n:]); err != nil || !same() {
		return nil, false, errChanged // the next look shows what it is now
	}
	return data, true, nil
}

// id returns the id of a file as it is.
func (f *Watched) id(one *watchedFile) string {
	h := sha256.New()
	for _, text := range []string{"a file of a folder", f.Source, one.path} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		h.Write([]byte(text))
	}
	h.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(one.size)), uint64(one.mtime)))
	sum := h.Sum(nil)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // UUID version 8
	return uuid.UUID(sum[:16]).String()
}
