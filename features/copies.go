package features

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// Copies says where the files of sets in buckets are while these sets are open. The zero
// value keeps them in memory.
type Copies struct {
	// Dir, unless "", is a folder for temporary files.
	Dir string
	// Memory bounds the bytes of all copies in memory; 0 is half of the machine's.
	Memory int64
}

// copies are the files of sets in buckets that are open now. A set that is opened twice
// shares them.
var copies struct {
	sync.Mutex
	Copies
	used int64 // bytes in memory
	open map[string]*copied
}

// copied are the files of a part, or of a set that is not of parts.
type copied struct {
	id     string
	users  int
	cancel context.CancelFunc // of what follows, when nobody waits for it any more
	filled *parallel.Task[error]
	paths  map[string]string // by their names in the set
	held   int64             // bytes in memory
	close  []func() error
}

// SetCopies says where the sets in buckets that are opened from now on are copied to.
func SetCopies(c Copies) {
	copies.Lock()
	defer copies.Unlock()
	copies.Copies = c
}

// copyAll copies the files of the set in a folder of a bucket, as its features.json names
// them, which has the given text.
func copyAll(ctx context.Context, folder *bucket.Folder, text []byte, meta Meta) (_ *copied, err error) {
	id := folder.String() + " " + meta.SHA256
	copies.Lock()
	c := copies.open[id]
	if c == nil {
		c = &copied{id: id}
		if copies.open == nil {
			copies.open = map[string]*copied{}
		}
		copies.open[id] = c
		// For all users, of whom the first may leave.
		var whole context.Context
		whole, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
		c.filled = parallel.Start(func() error { return c.fill(whole, folder, text, meta) })
	}
	c.users++
	copies.Unlock()
	filled := false
	defer func() {
		if !filled {
			err = errors.Join(err, c.leave())
		}
	}()
	select {
	case <-c.filled.Done():
		err = c.filled.Wait()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	filled = true
	return c, nil
}

// leave lets go of the files when nobody uses them any more.
func (c *copied) leave() error {
	copies.Lock()
	if c.users--; c.users > 0 {
		copies.Unlock()
		return nil
	}
	delete(copies.open, c.id)
	copies.Unlock()
	c.cancel()
	<-c.filled.Done()
	copies.Lock()
	copies.used -= c.held
	copies.Unlock()
	var errs []error
	for _, done := range c.close {
		errs = append(errs, done())
	}
	return errors.Join(errs...)
}

// fill copies the files.
func (c *copied) fill(ctx context.Context, folder *bucket.Folder, text []byte, meta Meta) error {
	need := int64(len(text))
	names := slices.Sorted(maps.Keys(meta.Files))
	names = slices.DeleteFunc(names, func(name string) bool { return name == parquetFile }) // which is for others
	for _, name := range names {
		if strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("%w: %s: it names the file %q", ErrDamaged, folder.URL(metaFile), name)
		}
		size := meta.Files[name].Bytes
		if size < 0 || size > math.MaxInt64-1-need {
			return fmt.Errorf("%w: %s: it says that %s has %d bytes", ErrDamaged, folder.URL(metaFile), name, size)
		}
		need += size
	}
	copies.Lock()
	where, most := copies.Dir, copies.Memory
	if most == 0 {
		most = spill.Default()
	}
	if where == "" {
		if used := copies.used; need > most-used {
			copies.Unlock()
			return options.Errorf("Copies", "%s has %d MiB beside the %d MiB of other sets in memory, where sets from buckets may take %d: name a folder for temporary files", folder, need>>20, used>>20, most>>20)
		}
		copies.used += need
		c.held = need
	}
	copies.Unlock()
	c.paths = map[string]string{}
	var mu sync.Mutex
	add := func(name string, fill func(io.Writer) error) error {
		path, done, err := temporary(where, fill)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		c.paths[name] = path
		c.close = append(c.close, done)
		return nil
	}
	if err := add(metaFile, disk.Bytes(text)); err != nil {
		return err
	}
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(4)
	for _, name := range names {
		group.Go(func() error {
			size := meta.Files[name].Bytes
			return add(name, func(w io.Writer) error {
				return copyObject(ctx, folder, name, size, w)
			})
		})
	}
	return group.Wait()
}

// copyObject copies an object that is to have so many bytes. Its checksum is compared when
// the set is verified.
func copyObject(ctx context.Context, folder *bucket.Folder, name string, size int64, to io.Writer) error {
	in, o, err := folder.OpenRange(ctx, name, 0, -1, "")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	n := o.Size
	if n <= size {
		n, err = io.Copy(to, io.LimitReader(in, size+1))
	}
	if err = errors.Join(err, in.Close()); err == nil && n != size {
		err = fmt.Errorf("%w: %s has %d bytes, %d were written: it was cut short or altered", ErrDamaged, folder.URL(name), n, size)
	}
	return err
}

// readMetaOf reads the features.json of a set in a bucket.
func readMetaOf(ctx context.Context, folder *bucket.Folder) (text []byte, m Meta, err error) {
	text, _, err = folder.Read(ctx, metaFile, disk.Meta)
	if err != nil {
		return nil, m, err
	}
	if m, err = parseMeta(text); err == nil && len(m.Files) == 0 {
		err = fmt.Errorf("%w: it has no checksums, and says not which files there are: copy it to a disk to read it", ErrNotSet)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", folder.URL(metaFile), err)
	}
	return text, m, err
}

// openOneIn opens a set in a folder of a bucket that is not of parts.
func openOneIn(ctx context.Context, folder *bucket.Folder) (_ *Set, err error) {
	text, meta, err := readMetaOf(ctx, folder)
	if err != nil {
		return nil, err
	}
	s := &Set{Dir: strings.TrimSuffix(folder.String(), "/")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", s.Dir, err), s.Close())
		}
	}()
	if s.copied, err = copyAll(ctx, folder, text, meta); err != nil {
		return nil, err
	}
	return s, s.load()
}
