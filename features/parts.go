package features

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
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
func PartDir(dir string, shard Shard) string { return parts.Path(dir, shard) }

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
	there, err := parts.InFolder(dir, "")
	if err != nil {
		return err
	}
	return parts.Fits(shard, there, dir, true, o.Force)
}

// CommitParts writes the manifest of the set of parts in the folder dir, if its count
// shards are there and belong together. If not, it says why in unfinished, and what
// was there remains. Several processes may call it at once.
func CommitParts(dir string, count int, o Options) (unfinished, err error) {
	there, err := parts.InFolder(dir, "")
	if err != nil {
		return nil, err
	}
	if lacking := parts.Lacking(there, dir, count); lacking != nil {
		return lacking, nil
	}
	var sets []*Set
	for i := range count {
		s := &Set{Dir: PartDir(dir, Shard{Index: i + 1, Count: count})}
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
	return nil, disk.Write(path, disk.Bytes(text))
}

// manifestOf returns the manifest of the shards, of which only the Meta is needed, or why
// they make up no set.
func manifestOf(sets []*Set, o Options) (text []byte, unfinished, err error) {
	m := manifest{Version: partsVersion, SHA256: noSum}
	for _, s := range sets {
		m.Parts = append(m.Parts, partLine{path.Base(filepath.ToSlash(s.Dir)), s.N, s.SHA256})
	}
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
	text = parts.JSON(m)
	seal(text)
	return text, nil, nil
}

// drifted tells whether the probes of two sets differ so much that they are not mixed
// unless that was asked for.
func drifted(a, b *Set) bool {
	return a.Probe.Comparable(b.Probe) && a.Probe.Distance(b.Probe) > GreatDistance
}

// place is where a set is: a folder on the disk or in a bucket.
type place struct {
	dir    string
	folder *bucket.Folder // nil on the disk
}

// placeOf returns the place that a path or URL names.
func placeOf(ctx context.Context, at string) (p place, err error) {
	p.dir = at
	if bucket.IsURL(at) {
		p.folder, err = bucket.Open(ctx, at)
	}
	return p, err
}

// path names a file or folder in the place.
func (p place) path(name string) string {
	if p.folder != nil {
		return p.folder.URL(name)
	}
	return filepath.Join(p.dir, name)
}

// String returns the path of the place, or its URL without a slash at the end.
func (p place) String() string {
	if p.folder != nil {
		return strings.TrimSuffix(p.folder.String(), "/")
	}
	return p.dir
}

// manifest reads parts.json. The error wraps fs.ErrNotExist if there is none.
func (p place) manifest(ctx context.Context) (m manifest, err error) {
	var text []byte
	if p.folder != nil {
		text, _, err = p.folder.Read(ctx, partsFile, disk.Meta)
	} else {
		text, err = disk.ReadFile(p.path(partsFile), disk.Meta)
	}
	if err != nil {
		return m, err
	}
	return parseManifest(text, p.path(partsFile))
}

// one opens the set in a folder of the place, "" for the place itself, that is not of parts.
func (p place) one(ctx context.Context, name string) (*Set, error) {
	switch {
	case p.folder == nil:
		return openOne(filepath.Join(p.dir, name))
	case name == "":
		return openOneIn(ctx, p.folder)
	}
	return openOneIn(ctx, p.folder.Sub(name))
}

// open opens the set, of parts or not.
func (p place) open(ctx context.Context) (*Set, error) {
	m, err := p.manifest(ctx)
	if err == nil {
		return p.openParts(ctx, m)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s, err := p.one(ctx, "")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotSet) {
		err = p.notYet(err)
	}
	return s, err
}

// notYet says what a set of parts on the disk lacks that has no manifest. It returns none if
// no part is begun.
func (p place) notYet(none error) error {
	if p.folder != nil {
		return none
	}
	there, err := parts.InFolder(p.dir, "")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, none)
	}
	if len(there) == 0 {
		return none
	}
	count := there[len(there)-1].Count
	lacking := parts.Lacking(there, p.String(), count)
	if lacking == nil {
		lacking = fmt.Errorf("%w: all %d parts in %s are finished, but there is no %s: run one of them again", ErrShards, count, p, partsFile)
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

// openParts opens the parts that a manifest names.
func (p place) openParts(ctx context.Context, m manifest) (_ *Set, err error) {
	sets := make([]*Set, len(m.Parts))
	defer disk.OnError(&err, func() error { return closeAll(sets) })
	group, _ := parallel.WithContext(context.Background())
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, line := range m.Parts {
		group.Go(func() (err error) {
			if !filepath.IsLocal(line.Name) {
				return fmt.Errorf("%w: %s: it names the folder %q", ErrDamaged, p.path(partsFile), line.Name)
			}
			part, err := p.one(ctx, line.Name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotSet) {
				return fmt.Errorf("%w: the part %s is missing: %w", ErrShards, p.path(line.Name), err)
			}
			if err != nil {
				return err
			}
			sets[i] = part
			if part.SHA256 != line.SHA256 || part.N != line.N {
				return fmt.Errorf("%w: %s was made again after %s: the other shards must be, too; the last to finish writes %s", ErrShards, p.path(line.Name), p.path(partsFile), partsFile)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := belongTogether(sets); err != nil {
		return nil, err
	}
	for _, part := range sets[1:] {
		if !m.Drifted && drifted(sets[0], part) {
			return nil, fmt.Errorf("%w: %s and %s", ErrDrifted, sets[0].Dir, part.Dir)
		}
	}
	return join(p.String(), sets)
}

// closeAll closes sets, of which some may be nil.
func closeAll(sets []*Set) error {
	var errs []error
	for _, s := range sets {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// join makes one set of the shards of a whole, which belong together. It closes them.
func join(dir string, sets []*Set) (_ *Set, err error) {
	s := &Set{Dir: dir, parts: sets}
	failed, err := s.Errors()
	if err != nil {
		return nil, err
	}
	if s.Meta, err = wholeMeta(sets, len(failed)); err != nil {
		return nil, err
	}
	if s.order, err = inOrder(sets); err != nil {
		return nil, err
	}
	s.labels = make([]int64, s.N)
	for i, at := range s.order {
		s.labels[i] = sets[at.part].labels[at.row]
	}
	for _, part := range sets {
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

// inOrder returns the rows of all shards in the order of their places in the whole. Those of
// images of tars and the like leave gaps, as those of images that have failed do.
func inOrder(sets []*Set) (order []spot, err error) {
	whole := sets[0].Shard
	places := make([][]int64, len(sets))
	for i, s := range sets {
		var shape []int
		if places[i], shape, err = npy.ReadUpTo[int64](s.path(placesFile), s.N); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if !slices.Equal(shape, []int{s.N}) || !slices.IsSorted(places[i]) {
			return nil, s.damaged(placesFile, "it does not give %d rows their places in order", s.N)
		}
		for row, p := range places[i] {
			if whole.Units == 0 && (p < 0 || p >= int64(whole.Images)) {
				return nil, s.damaged(placesFile, "the place %d is none of %d", p, whole.Images)
			}
			order = append(order, spot{int32(i), int32(row)})
		}
	}
	place := func(at spot) int64 { return places[at.part][at.row] }
	slices.SortFunc(order, func(a, b spot) int { return cmp.Compare(place(a), place(b)) })
	for i, at := range order {
		if i > 0 && place(order[i-1]) == place(at) {
			return nil, sets[at.part].damaged(placesFile, "the place %d is taken", place(at))
		}
	}
	return order, nil
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
