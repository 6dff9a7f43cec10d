package parts

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// ErrShards says that parts are not all the shards of one whole.
var ErrShards = errors.New("not all the shards of one set")

// Shard says from which of several parts of a listing something is made. The zero value
// is the whole listing.
type Shard struct {
	Index int `json:"index"` // from 1 to Count
	Count int `json:"count"`
}

// maxShards bounds how many parts a whole can have.
const maxShards = 1 << 16

// ParseShard is the inverse of String.
func ParseShard(text string) (Shard, error) {
	i, n, ok := strings.Cut(text, "/")
	index, indexErr := strconv.Atoi(i)
	count, countErr := strconv.Atoi(n)
	if !ok || indexErr != nil || countErr != nil || index < 1 || index > count || count > maxShards {
		return Shard{}, fmt.Errorf("%q is no shard: it is i/n with i from 1 to n, and n at most %d", text, maxShards)
	}
	return Shard{index, count}, nil
}

// Holds tells whether the image with the given path belongs to the shard. That
// depends on the path alone: more images do not move others between shards.
func (s Shard) Holds(path string) bool {
	if s.Count == 0 {
		return true
	}
	sum := sha256.Sum256([]byte(path))
	return binary.LittleEndian.Uint64(sum[:])%uint64(s.Count) == uint64(s.Index-1)
}

// String returns i/n, or "" for the zero value.
func (s Shard) String() string {
	if s.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.Index, s.Count)
}

// Compare orders shards by their count, then by their index.
func (s Shard) Compare(o Shard) int {
	return cmp.Or(cmp.Compare(s.Count, o.Count), cmp.Compare(s.Index, o.Index))
}

// name is what the names of all that belongs to a shard begin with.
func name(s Shard) string { return fmt.Sprintf("part-%05d-of-%05d", s.Index, s.Count) }

// parse is the inverse of name; ok is false for other names.
func parse(text string) (s Shard, ok bool) {
	_, err := fmt.Sscanf(text, "part-%05d-of-%05d", &s.Index, &s.Count)
	return s, err == nil && text == name(s) && 1 <= s.Index && s.Index <= s.Count
}

// Path is what the names of all that belongs to a shard begin with in a folder.
func Path(dir string, s Shard) string { return filepath.Join(dir, name(s)) }

// Part is what there is of a shard.
type Part struct {
	Shard
	Path     string // what the names of all that belongs to it begin with
	Finished bool   // there is a finished part, perhaps an older one than is being made
	Begun    bool   // a run is at work on it, or was interrupted
}

// InFolder lists the parts in a folder, in order. done is how the name ends that
// a finished part has there.
func InFolder(dir, done string) ([]Part, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Part
	for _, e := range entries {
		base, rest, _ := strings.Cut(e.Name(), ".")
		shard, ok := parse(base)
		begun, finished := rest == "partial" || strings.HasPrefix(rest, "partial-"), e.Name() == base+done
		if !ok || !begun && !finished {
			continue
		}
		// The names are sorted, so those of a shard follow each other.
		if n := len(all); n == 0 || all[n-1].Shard != shard {
			all = append(all, Part{Shard: shard, Path: Path(dir, shard)})
		}
		p := &all[len(all)-1]
		p.Begun, p.Finished = p.Begun || begun, p.Finished || finished
	}
	slices.SortFunc(all, func(a, b Part) int { return a.Shard.Compare(b.Shard) })
	return all, nil
}

// Fits refuses to write a shard into a folder that has parts of another number of shards,
// unless forced. Where may is false nothing forces that.
func Fits(shard Shard, there []Part, dir string, may, forced bool) error {
	i := slices.IndexFunc(there, func(p Part) bool { return p.Count != shard.Count })
	switch {
	case i < 0 || may && forced:
		return nil
	case may:
		return options.Errorf("Force", "it is needed to write shard %s beside %s, of another number of shards; or write to another folder", shard, there[i].Path)
	}
	return options.Errorf("Out", "%s has parts of %d: write to another folder", dir, there[i].Count)
}

// Missing counts the shards that are finished, and names those that are not, some of them
// where they are many.
func Missing(there []Part, count int) (finished int, missing string) {
	is := make([]bool, count+1)
	for _, p := range there {
		if p.Count == count {
			is[p.Index] = p.Finished
		}
	}
	const most = 10
	var names []string
	for i := 1; i <= count; i++ {
		if is[i] {
			finished++
		} else if len(names) < most {
			names = append(names, Shard{i, count}.String())
		}
	}
	if count-finished > most {
		names = append(names, "…")
	}
	return finished, strings.Join(names, ", ")
}

// Lacking returns an error that says which of the shards in a folder are not finished, or nil.
// It wraps [ErrShards].
func Lacking(there []Part, dir string, count int) error {
	finished, missing := Missing(there, count)
	if missing == "" {
		return nil
	}
	return fmt.Errorf("%w: of %d parts in %s, %d are finished, and missing are %s", ErrShards, count, dir, finished, missing)
}
