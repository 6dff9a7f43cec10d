package hub

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// ErrDamaged is wrapped by the error of a file that is not what the hub's listing says.
var ErrDamaged = errors.New("it is not what the hub lists, and was removed; fetch it again")

// Fetch fetches one graph of a repository, the files that it keeps weights in, and the
// configuration, as far as the cache lacks them. It returns where the graph is, and the
// files. What was cut off goes on where it ended.
func (h *Hub) Fetch(ctx context.Context, r *Repo) (graph string, files []File, err error) {
	chosen, err := r.Graph()
	if err != nil {
		return "", nil, err
	}
	files = append(r.Configuration(), chosen)
	for i := 0; i < len(files); i++ {
		if err := h.fetch(ctx, r, files[i]); err != nil {
			return "", nil, fmt.Errorf("%s: %s: %w", r.Repo, files[i].Path, err)
		}
		if files[i].Path != chosen.Path {
			continue
		}
		graph = filepath.Join(h.Snapshot(r.Repo, r.Commit), filepath.FromSlash(chosen.Path))
		weights, err := weightsOf(graph)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %s: %w", r.Repo, chosen.Path, err)
		}
		for _, name := range weights {
			f, err := r.File(path.Join(path.Dir(chosen.Path), name))
			if err != nil {
				return "", nil, fmt.Errorf("the weights of %s: %w", chosen.Path, err)
			}
			files = append(files, f)
		}
	}
	if r.Name.Revision == r.Commit {
		return graph, files, nil
	}
	ref := filepath.Join(h.folder(r.Repo), "refs", filepath.FromSlash(r.Name.Revision))
	if err := os.MkdirAll(filepath.Dir(ref), 0o777); err != nil {
		return "", nil, err
	}
	return graph, files, disk.Write(ref, disk.Bytes([]byte(r.Commit)))
}

// weightsOf lists the files that a graph keeps weights in, relative to its folder.
func weightsOf(graph string) (names []string, err error) {
	data, unmap, err := disk.Map(graph, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	places, err := onnx.Externals(data)
	seen := map[string]bool{}
	for _, place := range places {
		if name := filepath.ToSlash(place.File); !place.Leftover && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, err
}

// fetch brings a file into the cache, and links it into the commit's folder.
func (h *Hub) fetch(ctx context.Context, r *Repo, f File) error {
	blob := filepath.Join(h.folder(r.Repo), "blobs", f.hash())
	locks := filepath.Join(h.Cache, ".locks", filepath.Base(h.folder(r.Repo)))
	link := filepath.Join(h.Snapshot(r.Repo, r.Commit), filepath.FromSlash(f.Path))
	for _, dir := range []string{filepath.Dir(blob), locks, filepath.Dir(link)} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	// The lock of the hub's own tools.
	lock := flock.New(filepath.Join(locks, f.hash()+".lock"))
	if _, err := lock.TryLockContext(ctx, time.Second); err != nil {
		return err
	}
	defer lock.Unlock()
	if info, err := os.Stat(blob); err != nil || info.Size() != f.Size {
		if err := h.download(ctx, r, f, blob+".incomplete"); err != nil {
			return err
		}
		if err := os.Rename(blob+".incomplete", blob); err != nil {
			return err
		}
	}
	if _, err := os.Stat(link); err == nil {
		return nil
	}
	os.Remove(link) // to nothing
	target, err := filepath.Rel(filepath.Dir(link), blob)
	if err == nil {
		err = os.Symlink(target, link)
	}
	if err != nil { // as Windows may, whose cache then has the file in the commit's folder
		return os.Rename(blob, link)
	}
	return nil
}

// attempts is how often a download goes on without having got anything.
const attempts = 5

// download writes what is listed into a file, after what is in it.
func (h *Hub) download(ctx context.Context, r *Repo, f File, file string) (err error) {
	address := h.Endpoint + "/" + r.Repo + "/resolve/" + r.Commit + "/" + escape(f.Path)
	out, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum := f.newHash()
	done, err := io.Copy(sum, out)
	if err != nil {
		return err
	}
	for failed := 0; done < f.Size; {
		n, err := h.part(ctx, address, f, out, sum, done)
		if n < 0 { // the hub sends it from the beginning
			done, sum = 0, f.newHash()
			continue
		}
		done += n
		again, ok := errors.AsType[*cutOff](err)
		switch {
		case err == nil && done >= f.Size:
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !ok:
			return err
		case n > 0:
			failed = 0
		default:
			if failed++; failed == attempts {
				return fmt.Errorf("the download was cut off: %w; the same command continues it", again)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(failed) * cmp.Or(h.Wait, time.Second)):
			}
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); done != f.Size || got != f.hash() {
		return errors.Join(fmt.Errorf("%d bytes with the hash %s, and %d with %s are listed: %w", done, got, f.Size, f.hash(), ErrDamaged), os.Remove(file))
	}
	return out.Sync()
}

// part appends what a request brings, from a byte on; it returns −1, and an empty file, if
// that is not where the answer begins.
func (h *Hub) part(ctx context.Context, address string, f File, out *os.File, sum hash.Hash, from int64) (int64, error) {
	answer, err := h.get(ctx, address, from)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if from > 0 && answer.StatusCode != http.StatusPartialContent {
		_, err := out.Seek(0, io.SeekStart)
		return -1, errors.Join(err, out.Truncate(0))
	}
	body := &counted{answer.Body, h, f, from}
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(body, f.Size-from+1))
	if err == nil && from+n < f.Size {
		err = io.ErrUnexpectedEOF
	}
	if _, local := errors.AsType[*os.PathError](err); err != nil && !local {
		err = &cutOff{err}
	}
	return n, err
}

// counted tells the progress of what is read.
type counted struct {
	io.Reader
	hub  *Hub
	file File
	done int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.done += int64(n); c.hub.Progress != nil {
		c.hub.Progress(c.file.Path, c.done, c.file.Size)
	}
	return n, err
}

// newHash returns what the name of the file's blob is computed by: SHA-256, or git's SHA-1
// of a blob.
func (f File) newHash() hash.Hash {
	if f.SHA256 != "" {
		return sha256.New()
	}
	sum := sha1.New()
	fmt.Fprintf(sum, "blob %d\x00", f.Size)
	return sum
}

// escape escapes the parts of a path.
func escape(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
