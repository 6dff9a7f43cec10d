package features

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// A set of parts is a folder of shards and a manifest:
//
//	part-00001-of-00008/   a shard, which is a feature set
//	…
//	parts.json             which shards make up the set, with their checksums
//
// The manifest is written when all shards are there. Only then is there a set; its
// rows, in their order, are those that Merge would write.

const (
	partsFile    = "parts.json"
	partsVersion = 1
	partKind     = "part" // see internal/parts
)

// manifest is parts.json.
type manifest struct {
	Version     int        `json:"version"`
	Fingerprint string     `json:"fingerprint"`
	Images      int        `json:"images"`  // in the whole listing
	Listing     string     `json:"listing"` // as in Part
	Drifted     bool       `json:"drifted"` // parts were mixed whose probes differ much
	Parts       []partLine `json:"parts"`   // by their index
	SHA256      string     `json:"sha256"`  // of parts.json itself, as in features.json
}

// partLine is the entry of parts.json for a shard.
type partLine struct {
	Name   string `json:"name"`   // of its folder
	N      int    `json:"n"`      // rows
	SHA256 string `json:"sha256"` // that of its features.json, which has those of its other files
}

// PartDir returns the folder of a shard in a set of parts.
func PartDir(dir string, shard Shard) string {
	return filepath.Join(dir, parts.Name(partKind, parts.Shard(shard)))
}

// PartFolder is a shard in the folder of a set of parts.
type PartFolder struct {
	Shard
	Dir      string
	Finished bool // there is a feature set, perhaps an older one than is being made
	Begun    bool // there is a work folder: a run is at work on it, or was interrupted
}

// ListParts lists the shards in the folder of a set of parts that are there, or begun.
func ListParts(dir string) ([]PartFolder, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[Shard]*PartFolder{}
	for _, e := range entries {
		name, work, begun := strings.Cut(e.Name(), ".partial")
		if work != "" && !strings.HasPrefix(work, "-") {
			continue
		}
		shard, ok := parts.Parse(partKind, name)
		if !ok {
			continue
		}
		s := Shard(shard)
		p := found[s]
		if p == nil {
			p = &PartFolder{Shard: s, Dir: PartDir(dir, s)}
			found[s] = p
		}
		p.Begun, p.Finished = p.Begun || begun, p.Finished || !begun
	}
	var all []PartFolder
	for _, p := range found {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b PartFolder) int { return parts.Shard(a.Shard).Compare(parts.Shard(b.Shard)) })
	return all, nil
}

// PreparePart makes sure that a shard may be written into the folder of a set of parts.
func PreparePart(dir string, shard Shard, o Options) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "part") && !strings.HasPrefix(e.Name(), ".") {
			return fmt.Errorf("%s is %w of parts: it holds %s; write to another folder", dir, ErrNotSet, e.Name())
		}
	}
	parts, err := ListParts(dir)
	if err != nil || o.Force {
		return err
	}
	for _, p := range parts {
		if p.Count != shard.Count {
			return options.Errorf("Force", "it is needed to write shard %s beside %s, of another number of shards; or write to another folder", shard, p.Dir)
		}
	}
	return nil
}

// CommitParts writes the manifest of the set of parts in the folder dir, if its count
// shards are there and belong together. If not, it says why in unfinished, and what
// was there remains. Several processes may call it at once.
func CommitParts(dir string, count int, o Options) (unfinished, err error) {
	parts, err := ListParts(dir)
	if err != nil {
		return nil, err
	}
	if lacking := lackingOf(parts, dir, count); lacking != nil {
		return lacking, nil
	}
	var sets []*Set
	for i := range count {
		s := &Set{Dir: PartDir(dir, Shard{i + 1, count})}
		if err := s.readMeta(); err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	text, unfinished, err := manifestOf(sets, o)
	if text == nil {
		return unfinished, err
	}
	path := filepath.Join(dir, partsFile)
	if old, err := disk.ReadFile(path, disk.Meta); err == nil && bytes.Equal(old, text) {
		return nil, nil
	}
	return nil, disk.Write(path, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// manifestOf returns the manifest of the shards, of which only the Meta is needed, or why
// they make up no set.
func manifestOf(sets []*Set, o Options) (text []byte, unfinished, err error) {
	m := manifest{Version: partsVersion, SHA256: noSum}
	for _, s := range sets {
		m.Parts = append(m.Parts, partLine{path.Base(filepath.ToSlash(s.Dir)), s.N, s.SHA256})
	}
	uniteClasses(sets)
	if err := belongTogether(sets); err != nil {
		if errors.Is(err, ErrShards) || errors.Is(err, ErrFingerprint) {
			return nil, err, nil
		}
		return nil, nil, err
	}
	for _, s := range sets[1:] {
		if err := o.check(sets[0].Probe, s.Probe, sets[0].Dir+" and "+s.Dir); err != nil {
			return nil, nil, err
		}
		m.Drifted = m.Drifted || drifted(sets[0], s)
	}
	m.Fingerprint, m.Images, m.Listing = sets[0].Fingerprint, sets[0].Shard.Images, sets[0].Shard.Listing
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	if err := enc.Encode(m); err != nil {
		return nil, nil, err
	}
	seal(b.Bytes())
	return b.Bytes(), nil, nil
}

// drifted tells whether the probes of two sets differ so much that they are not mixed
// unless that was asked for.
func drifted(a, b *Set) bool {
	return a.Probe.Comparable(b.Probe) && a.Probe.Distance(b.Probe) > GreatDistance
}

// lackingOf returns an error that says which of the shards are not finished, or nil.
func lackingOf(parts []PartFolder, dir string, count int) error {
	finished := make([]bool, count+1)
	for _, p := range parts {
		if p.Count == count {
			finished[p.Index] = p.Finished
		}
	}
	var missing []string
	n := 0
	for i := 1; i <= count; i++ {
		if finished[i] {
			n++
		} else if missing = append(missing, (Shard{i, count}).String()); len(missing) > 10 {
			missing[10] = "…"
			missing = missing[:11]
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: of %d parts in %s, %d are finished, and missing are %s", ErrShards, count, dir, n, strings.Join(missing, ", "))
	}
	return nil
}

// hasParts tells whether a folder is, or is to become, a set of parts.
func hasParts(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, partsFile)); err == nil {
		return true
	}
	if _, err := os.Stat(filepath.Join(dir, featuresFile)); err == nil {
		return false
	}
	parts, err := ListParts(dir)
	return err == nil && len(parts) > 0
}

// readManifest reads parts.json.
func readManifest(dir string) (m manifest, err error) {
	path := filepath.Join(dir, partsFile)
	text, err := disk.ReadFile(path, disk.Meta)
	if errors.Is(err, fs.ErrNotExist) {
		parts, err := ListParts(dir)
		if err != nil {
			return m, err
		}
		return m, noManifest(parts, dir)
	}
	if err != nil {
		return m, err
	}
	return parseManifest(text, path)
}

// noManifest says why there is none in a folder with parts.
func noManifest(parts []PartFolder, dir string) error {
	count := parts[len(parts)-1].Count
	lacking := lackingOf(parts, dir, count)
	if lacking == nil {
		lacking = fmt.Errorf("%w: all %d parts in %s are finished, but there is no %s: run one of them again", ErrShards, count, dir, partsFile)
	}
	return fmt.Errorf("%w; extract them: the last to finish writes %s", lacking, partsFile)
}

// parseManifest reads the text of parts.json.
func parseManifest(text []byte, path string) (m manifest, err error) {
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	switch {
	case m.Version > partsVersion:
		return m, fmt.Errorf("%s: %w: it has version %d, %d is the newest known here", path, ErrVersion, m.Version, partsVersion)
	case !sealed(text, m.SHA256):
		return m, fmt.Errorf("%w: %s: it was altered or cut short: its checksum does not match", ErrDamaged, path)
	case len(m.Parts) == 0:
		return m, fmt.Errorf("%w: %s: it names no parts", ErrDamaged, path)
	}
	return m, nil
}

// openParts opens a set of parts.
func openParts(dir string) (*Set, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	return openPartsOf(m, dir, func(name string) (*Set, error) { return openOne(filepath.Join(dir, name)) })
}

// openPartsOf opens the parts that a manifest names.
func openPartsOf(m manifest, dir string, open func(name string) (*Set, error)) (_ *Set, err error) {
	s := &Set{Dir: dir, parts: make([]*Set, len(m.Parts))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	group, _ := parallel.WithContext(context.Background())
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, line := range m.Parts {
		group.Go(func() error {
			if !filepath.IsLocal(line.Name) {
				return s.damaged(partsFile, "it names the folder %q", line.Name)
			}
			path := s.name(line.Name)
			part, err := open(line.Name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotSet) {
				return fmt.Errorf("%w: the part %s is missing: %w", ErrShards, path, err)
			}
			if err != nil {
				return err
			}
			s.parts[i] = part
			if part.SHA256 != line.SHA256 || part.N != line.N {
				return fmt.Errorf("%w: %s was made again after %s: the other shards must be, too; the last to finish writes %s", ErrShards, path, s.name(partsFile), partsFile)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	uniteClasses(s.parts)
	if err := belongTogether(s.parts); err != nil {
		return nil, err
	}
	for _, part := range s.parts[1:] {
		if !m.Drifted && drifted(s.parts[0], part) {
			return nil, fmt.Errorf("%w: %s and %s", ErrDrifted, s.parts[0].Dir, part.Dir)
		}
	}
	failed, err := s.Errors()
	if err != nil {
		return nil, err
	}
	if s.Meta, err = wholeMeta(s.parts, len(failed)); err != nil {
		return nil, err
	}
	shardOf, err := interleaved(s.parts)
	if err != nil {
		return nil, err
	}
	s.order, s.labels = make([]spot, 0, s.N), make([]int64, 0, s.N)
	next := make([]int32, len(s.parts))
	for _, part := range shardOf {
		if part < 0 {
			continue
		}
		row := next[part]
		next[part]++
		s.order = append(s.order, spot{part, row})
		s.labels = append(s.labels, s.parts[part].labels[row])
	}
	for _, part := range s.parts {
		part.labels = nil
	}
	return s, nil
}

// spot says where a row of a set of parts lies.
type spot struct{ part, row int32 }

// wholeMeta returns the Meta of the whole of some shards, of whose images so many have
// failed.
func wholeMeta(sets []*Set, failed int) (Meta, error) {
	first := sets[0]
	m := first.Meta
	m.N, m.Machines, m.Shard, m.Files, m.SHA256 = 0, nil, nil, nil, ""
	for _, s := range sets {
		m.N += s.N
		m.Version = max(m.Version, s.Version)
		m.Machines = union(m.Machines, s.Machines)
		if s.Probe == nil {
			m.Probe = nil // not known of all rows
		}
	}
	// Every image has a row or has failed.
	if first.Shard.Images > m.N+failed {
		return m, first.damaged(metaFile, "it is of %d images, and all shards have %d rows and %d failures", first.Shard.Images, m.N, failed)
	}
	return m, nil
}

// interleaved returns which of the sets has the row of each image of the whole listing,
// −1 for those that have failed. The rows of a set follow each other.
func interleaved(sets []*Set) ([]int32, error) {
	if sets[0].Shard.Units > 0 {
		return unitsInOrder(sets)
	}
	shardOf := slices.Repeat([]int32{-1}, sets[0].Shard.Images)
	for i, s := range sets {
		places, shape, err := npy.ReadUpTo[int64](s.path(placesFile), s.N)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if !slices.Equal(shape, []int{s.N}) || !slices.IsSorted(places) {
			return nil, s.damaged(placesFile, "it does not give %d rows their places in order", s.N)
		}
		for _, p := range places {
			if p < 0 || p >= int64(len(shardOf)) || shardOf[p] >= 0 {
				return nil, s.damaged(placesFile, "the place %d is taken or none of %d", p, len(shardOf))
			}
			shardOf[p] = int32(i)
		}
	}
	return shardOf, nil
}

// contentOfParts is Content for a set of parts, which has no checksum of all rows.
func (s *Set) contentOfParts() string {
	hash := sha256.New()
	for _, part := range s.parts {
		fmt.Fprintf(hash, "%s\x00%s\x00", part.Files[featuresFile].SHA256, part.Files[labelsFile].SHA256)
	}
	for _, class := range s.Classes {
		fmt.Fprintf(hash, "%s\x00", class)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// verifyParts is Verify for a set of parts.
func (s *Set) verifyParts(ctx context.Context) error {
	for _, part := range s.parts {
		if err := part.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// partPages are the pages of the features of a set of parts.
type partPages struct{ *Set }

func (p partPages) Read(dst []float32, from int) error {
	for ; len(dst) > 0; from += p.D - from%p.D {
		at, column := p.order[from/p.D], from%p.D
		n := min(len(dst), p.D-column)
		if err := p.parts[at.part].features.Read(dst[:n], int(at.row)*p.D+column); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

func (p partPages) Scatter() {
	for _, part := range p.parts {
		part.features.Scatter()
	}
}

func (p partPages) Need(from, to int) {
	type span struct{ from, to int32 }
	spans := make(map[int32]span)
	for _, at := range p.order[from/p.D : min((to+p.D-1)/p.D, p.N)] {
		s, ok := spans[at.part]
		if !ok {
			s.from = at.row
		}
		s.to = at.row + 1
		spans[at.part] = s
	}
	for part, s := range spans {
		p.parts[part].features.Need(int(s.from)*p.D, int(s.to)*p.D)
	}
}

func (p partPages) Release() {
	for _, part := range p.parts {
		part.features.Release()
	}
}

// Work is an extraction to a set that is not finished.
type Work struct {
	Rows         int // in the work folder
	Began, Moved time.Time
}

// Unfinished says how far an extraction to the set in dir has come, from its work folder;
// false if there is none.
func Unfinished(dir string) (Work, bool) {
	partial := partialDir(dir)
	info, err := os.Stat(filepath.Join(partial, journalHeadFile))
	rows, rowsErr := os.Stat(filepath.Join(partial, journalRowsFile))
	if err != nil || rowsErr != nil {
		return Work{}, false
	}
	text, err := disk.ReadFile(filepath.Join(partial, journalHeadFile), disk.Config)
	var head journalHead
	if err != nil || json.Unmarshal(text, &head) != nil || head.D < 1 {
		return Work{}, false
	}
	return Work{int(rows.Size() / int64(4*(head.D+head.LogitsDim))), info.ModTime(), rows.ModTime()}, true
}

// Glance reads what a set says of itself, and no rows: of the Set that it returns only the
// Meta and Errors can be used. It need not be closed.
func Glance(dir string) (*Set, error) {
	s := &Set{Dir: dir}
	if err := s.checkFolder(); err != nil {
		return nil, err
	}
	return s, s.readMeta()
}
