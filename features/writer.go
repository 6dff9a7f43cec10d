package features

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// Header describes a set before its first image is added: what all rows have in
// common. Fields without a comment are those of Meta.
type Header struct {
	D           int     // features of a row, at least 1
	DType       string  // Float16 rounds features when the set is made; "" is float32
	Parquet     bool    // the set also has features.parquet
	Layers      []Layer // after the features of a row in Append; nil for a set without
	Patches     []byte  // the file of the model of patches that a layer is by; nil without one
	LogitsDim   int     // logits of a row; 0 for a set without
	Root        string
	Model       string
	ModelSHA256 string
	Output      string
	Pool        string
	Preprocess  json.RawMessage // nil is written as null
	Fingerprint string          // must not be empty
	Embedding   string          // with Layers
	Tool        string
	Machine     Machine // zero if unknown
	Probe       *Probe  // nil if unknown
	Shard       Shard   // zero for a whole set
}

// width returns how many values Append takes of a row, but its logits.
func (h Header) width() int { return h.D + LayersDim(h.Layers) }

// Options change what Create accepts. The zero value is the careful one.
type Options struct {
	// Force allows that a feature set with another fingerprint or root, another
	// shard, a damaged set, or the work of an unfinished run is replaced. A folder
	// that is not a feature set is never replaced.
	Force bool
	// AllowDriftedFeatures allows that rows are mixed whose probes say that the model
	// gave other features where the others were made.
	AllowDriftedFeatures bool
	// Speculate lets several runs make the same set at the same time, each with a work
	// folder of its own. The first that finishes counts: the others find the set there.
	Speculate bool
	// Drifted, where set, is told of features that differ by more than rounding.
	Drifted func(text string)
}

// Writer writes a feature set. Rows may be appended in any order and survive a
// crash; only Commit makes a set of them. Append and Has may be called from several
// goroutines.
type Writer struct {
	dir     string
	work    *parts.Claim // the work folder
	closed  bool
	header  Header
	options Options

	mu      sync.Mutex
	journal *journal
	old     *Set // the set at dir, if its rows can be used
	known   map[string]location
	sources map[string]*record // by path; rows of their images need not be in known
	// oldMarks are those of the lines of old's images.jsonl.
	oldMarks marks
	// sourceLog is where those of unfinished work are, sourceEnd its length.
	sourceLog *disk.File
	sourceEnd int64
	// machines are those of the journal's rows, probe what the model answered on the first.
	machines []Machine
	probe    *Probe
}

// location says where the row of an image is, and from which state of its file it was made.
type location struct {
	bytes, mtime int64
	sha256       [32]byte
	row          int // in the journal, or ^ that in the old set: there are millions of these
}

// inOld returns the index of the row in the old set, if it is there.
func (l location) inOld() (row int, ok bool) { return ^l.row, l.row < 0 }

// partialDir returns the work folder of the set in dir.
func partialDir(dir string) string { return filepath.Clean(dir) + ".partial" }

// Names in the work folder, besides the journal's.
const (
	planFile = "plan" // see plan
	newDir   = "new"  // the set that Commit builds
	oldDir   = "old"  // the set that it replaces, if names cannot be exchanged
)

// Create begins or continues to write the feature set in the folder dir.
//
// All work is done in the work folder DIR.partial, which is locked. Rows that an
// earlier run left there, and rows of a set at dir, are reused if fingerprint, root
// and dimensions are the same: Has tells which. With another fingerprint or root
// they are an error, unless Force is set; then rows in the work folder are
// discarded, and Commit replaces the set at dir. That set is read completely and
// compared with its checksums, so that damage is not copied. Nothing at dir changes
// before Commit.
//
// The error wraps ErrLocked if another process writes to the set, ErrFingerprint,
// ErrOtherImages, ErrOtherShard, ErrDrifted, ErrDamaged, or ErrNotSet if dir holds
// anything that does not belong to a feature set. If ctx is cancelled, it is ctx.Err().
func Create(ctx context.Context, dir string, header Header, options Options) (_ *Writer, err error) {
	if header.D < 1 || header.LogitsDim < 0 || header.Fingerprint == "" {
		return nil, fmt.Errorf("features: header with %d features, %d logits and fingerprint %q", header.D, header.LogitsDim, header.Fingerprint)
	}
	w, err := begin(dir, header, options)
	if err != nil {
		return nil, err
	}
	defer disk.OnError(&err, w.Close)
	if err := w.readOld(ctx); err != nil {
		return nil, err
	}
	head := journalHead{journalVersion, header.Fingerprint, disk.EncodePercent(header.Root), header.width(), header.LogitsDim}
	if w.journal, err = openJournal(w.partial(""), head, options.Force); err != nil {
		return nil, err
	}
	if err := w.readSources(ctx); err != nil {
		return nil, err
	}
	row := 0
	err = w.journal.recover(func(line journalLine) (err error) {
		if img := line.image(); !w.journalRow(img.Path, row) {
			w.known[img.Path], err = locate(img, row)
		}
		row++
		return errors.Join(err, ctx.Err())
	})
	if err != nil {
		return nil, fmt.Errorf("read the journal in %s: %w", w.work.Dir, err)
	}
	if w.machines, err = readNote[[]Machine](w.partial(""), journalMachines); err != nil {
		return nil, err
	}
	if w.probe, err = readNote[*Probe](w.partial(""), journalProbe); err != nil {
		return nil, err
	}
	if w.old != nil {
		err = options.check(w.old.Probe, header.Probe, "compared with "+w.dir)
	}
	if err == nil {
		err = options.check(w.probe, header.Probe, "compared with the unfinished "+w.partial(""))
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// begin locks the work folder of the set at dir and finishes an interrupted Commit.
func begin(dir string, header Header, options Options) (*Writer, error) {
	// The folder itself is replaced, not a link to it.
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	}
	w := &Writer{dir: dir, header: header, options: options, known: map[string]location{}, sources: map[string]*record{}}
	if w.work, err = parts.Take(partialDir(dir), options.Speculate, ErrNotSet); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if err := w.tidy(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Writer) partial(name string) string { return w.work.Path(name) }

// tidy finishes an interrupted Commit.
func (w *Writer) tidy() error {
	if _, err := os.Lstat(w.dir); errors.Is(err, fs.ErrNotExist) {
		if err := disk.Rename(w.partial(oldDir), w.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return w.removeSets()
}

func (w *Writer) removeSets() error {
	return errors.Join(w.removeUnfinished(), disk.RemoveAll(w.partial(oldDir)))
}

// removeUnfinished removes what an interrupted Commit is of no use for the next one.
func (w *Writer) removeUnfinished() error {
	return errors.Join(disk.RemoveAll(w.partial(newDir)), disk.RemoveAll(w.partial(planFile)))
}

// readOld opens the set at dir and records its rows, if they can be used.
func (w *Writer) readOld(ctx context.Context) error {
	old, err := w.inspect()
	if old == nil || err != nil {
		return err
	}
	logits := old.LogitsDim()
	if old.D != w.header.D || logits != w.header.LogitsDim {
		return old.Close()
	}
	if old.Root != w.header.Root {
		err := old.Close()
		if err == nil && !w.options.Force {
			err = options.Errorf("Force", "it is needed to replace %s, which was %w, %s; or write to another folder", w.dir, ErrOtherImages, old.Root)
		}
		return err
	}
	if err = w.knowRowsOf(ctx, old); err == nil {
		w.old = old
		return nil
	}
	clear(w.known)
	clear(w.sources)
	if ctx.Err() == nil {
		err = w.unlessForced(err)
	}
	return errors.Join(err, old.Close())
}

// knowRowsOf verifies a set, if it has checksums, and records its rows.
func (w *Writer) knowRowsOf(ctx context.Context, old *Set) error {
	if err := old.Verify(ctx); err != nil && !errors.Is(err, ErrNoChecksums) {
		return err
	}
	if err := w.readOldSources(old); err != nil {
		return err
	}
	row, found := 0, map[*record]int{}
	for img, err := range old.eachImage() {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		l, err := locate(img, ^row)
		if err != nil {
			return old.damaged(imagesFile, "%w", err)
		}
		if r := w.sourceOf(img.Path); r != nil {
			r.old.add(row)
			found[r]++
		} else {
			w.known[img.Path] = l
		}
		row++
	}
	for _, r := range w.sources {
		r.whole = r.whole && found[r] == r.images
		r.images = found[r]
	}
	return nil
}

// inspect makes sure that what is at dir, if anything, may be replaced. It returns
// the set at dir if that has the right fingerprint.
func (w *Writer) inspect() (*Set, error) {
	entries, err := os.ReadDir(w.dir)
	if info, statErr := os.Stat(w.dir); statErr == nil && !info.IsDir() {
		err = errors.New("it is no folder") // Windows says that there is none
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %w; write to another folder: %w", w.dir, ErrNotSet, err)
	}
	for _, e := range entries {
		switch e.Name() {
		case featuresFile, parquetFile, labelsFile, logitsFile, layersFile, patchesFile, imagesFile, errorsFile, placesFile, sourcesFile, metaFile, weightFile, biasFile:
		default:
			return nil, fmt.Errorf("%s is %w that could be replaced: it holds %s; write to another folder", w.dir, ErrNotSet, e.Name())
		}
	}
	old, err := openOne(w.dir)
	if errors.Is(err, ErrNotSet) {
		return nil, err
	}
	if err != nil {
		return nil, w.unlessForced(err)
	}
	if shard := old.shard(); shard != w.header.Shard && !w.options.Force {
		return nil, errors.Join(options.Errorf("Force", "it is needed to replace %s, which is %w; or write to another folder", w.dir, otherShard(shard)), old.Close())
	}
	if rounded := old.DType != "" && w.header.DType == ""; rounded {
		if err := old.Close(); err != nil || w.options.Force {
			return nil, err
		}
		return nil, options.Errorf("Force", "it is needed to replace %s, whose features are rounded to float16, by float32; or write to another folder", w.dir)
	}
	if old.Fingerprint == w.header.Fingerprint {
		return old, nil
	}
	if err := old.Close(); err != nil || w.options.Force {
		return nil, err
	}
	return nil, options.Errorf("Force", "it is needed to replace %s, which was %w; or write to another folder", w.dir, ErrFingerprint)
}

// shard returns the part of a whole that the set is.
func (s *Set) shard() Shard {
	if s.Shard == nil {
		return Shard{}
	}
	return s.Shard.Shard
}

// otherShard is the error for a set that is that shard instead of the wanted one.
func otherShard(shard Shard) error {
	if shard == (Shard{}) {
		return fmt.Errorf("%w: it is a whole set", ErrOtherShard)
	}
	return fmt.Errorf("%w: it is shard %s", ErrOtherShard, shard)
}

// unlessForced returns the error of reading a set that is to be replaced, or nil
// if it does not matter.
func (w *Writer) unlessForced(err error) error {
	if w.options.Force {
		return nil
	}
	return options.Errorf("Force", "it is needed to replace %s: %w; or write to another folder", w.dir, err)
}

// locate returns the location of an image's row.
func locate(img Image, row int) (location, error) {
	l := location{bytes: img.Bytes, mtime: img.MTime, row: row}
	if n, err := hex.Decode(l.sha256[:], []byte(img.SHA256)); err != nil || n != len(l.sha256) {
		return location{}, fmt.Errorf("image %s has %q for its SHA-256", img.Path, img.SHA256)
	}
	return l, nil
}

// Has tells whether there is already a row of the image, made from a file of the
// same size in bytes and with the same modification time in nanoseconds.
func (w *Writer) Has(path string, bytes, mtime int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.known[path]
	return ok && l.bytes == bytes && l.mtime == mtime
}

// Known returns the size and time of the file that the row of an image was made from.
func (w *Writer) Known(path string) (bytes, mtime int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.known[path]
	return l.bytes, l.mtime, ok
}

// Append adds the row of an image, its features followed by its layers, and ignores its
// Label. It replaces an earlier row for the same path. When Append returns, the row is written to the operating
// system; it is synced within seconds.
func (w *Writer) Append(img Image, features, logits []float32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(features) != w.header.width() || len(logits) != w.header.LogitsDim {
		return fmt.Errorf("features: %d features and %d logits of %s, want %d and %d", len(features), len(logits), img.Path, w.header.width(), w.header.LogitsDim)
	}
	line := journalLine{Path: disk.EncodePercent(img.Path), Bytes: img.Bytes, MTime: img.MTime, SHA256: img.SHA256}
	l, err := locate(img, w.journal.n)
	if err != nil {
		return fmt.Errorf("features: %w", err)
	}
	if w.header.Machine != (Machine{}) && !slices.Contains(w.machines, w.header.Machine) {
		machines := union(w.machines, []Machine{w.header.Machine})
		if err := writeNote(w.partial(""), journalMachines, machines); err != nil {
			return err
		}
		w.machines = machines
	}
	if w.header.Probe != nil && w.journal.n == 0 {
		if err := writeNote(w.partial(""), journalProbe, w.header.Probe); err != nil {
			return err
		}
		w.probe = w.header.Probe
	}
	if err := w.journal.append(line, features, logits); err != nil {
		return fmt.Errorf("add %s to %s: %w", img.Path, w.work.Dir, err)
	}
	w.known[img.Path] = l
	return nil
}

// Touch says that the file of an image that has a row now has this size and time,
// but still the content from which the row was made.
func (w *Writer) Touch(path string, bytes, mtime int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.known[path]
	l.bytes, l.mtime = bytes, mtime
	w.known[path] = l
}

// SHA256 returns the hash of the file from which the row of an image was made, in
// hexadecimal, or "" if there is no row.
func (w *Writer) SHA256(path string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.known[path]
	if !ok {
		return ""
	}
	return hex.EncodeToString(l.sha256[:])
}

// Commit makes the set from the rows, puts it into place as a whole, and closes w.
//
// The set has one row for each of the images, in their order, except for those that
// failed; Has must be true for each. If the operating system can exchange two
// folders, and there was a set at dir before, there is one at every moment.
//
// The bytes of the set depend only on the header, the rows and the arguments, not
// on interruptions. Contents without images, or whose images have all failed, make
// a set without rows. After an error, also one of ctx, the journal remains, and
// Close must be called.
func (w *Writer) Commit(ctx context.Context, c Contents) (Meta, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set, err := w.newBuild(ctx, c)
	if err != nil {
		return Meta{}, fmt.Errorf("features: %w", err)
	}
	return w.finish(ctx, set)
}

// finish writes a set, puts it into place and closes w.
func (w *Writer) finish(ctx context.Context, set *build) (Meta, error) {
	if w.unchanged(set) {
		return w.old.Meta, w.release(true)
	}
	// The files at dir may have changed since Create.
	old, err := w.inspect()
	if err != nil {
		return Meta{}, err
	}
	err = set.write(ctx, w.partial(newDir), old)
	if old != nil {
		err = errors.Join(err, old.Close())
	}
	if err != nil {
		return Meta{}, err
	}
	if w.old != nil { // Windows moves no folder that has an open file
		if err := w.old.Close(); err != nil {
			return Meta{}, err
		}
		w.old = nil
	}
	if w.options.Speculate && sameSet(w.dir, set.meta) {
		return set.meta, w.release(true) // another run was first
	}
	if err := putInPlace(w.partial(newDir), w.dir, w.partial(oldDir)); err != nil {
		return Meta{}, errors.Join(fmt.Errorf("put the new set into place: %w", err), w.release(false))
	}
	return set.meta, w.release(true)
}

// sameSet tells whether the set in dir is the one that meta describes.
func sameSet(dir string, meta Meta) bool {
	there := &Set{Dir: dir}
	return there.readMeta() == nil && there.SHA256 != "" && there.SHA256 == meta.SHA256
}

// Close releases the lock; the rows remain for the next run. Append fails after
// Close. After Commit, Close does nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.release(false)
}

// release closes everything and releases the lock. It removes the work folder if
// the work is done, or if nothing in it can be continued.
func (w *Writer) release(done bool) error {
	if w.closed {
		return nil
	}
	var errs []error
	if w.old != nil {
		errs = append(errs, w.old.Close())
	}
	if w.journal != nil {
		if !done {
			errs = append(errs, w.journal.sync())
		}
		if w.sourceLog != nil {
			errs = append(errs, w.sourceLog.Close())
		}
		errs = append(errs, w.journal.close())
		if done || w.journal.recovered && w.journal.n == 0 {
			errs = append(errs, removeJournal(w.partial("")))
		}
	}
	if done {
		errs = append(errs, w.removeSets())
	} else { // half a set is useless, and may fill the disk
		errs = append(errs, w.removeUnfinished())
	}
	errs = append(errs, w.work.Release())
	w.closed = true
	return errors.Join(errs...)
}

// putInPlace puts the folder from at the name to. A folder at that name is exchanged
// with it, or moved to aside.
func putInPlace(from, to, aside string) error {
	err := disk.Rename(from, to) // never replaces a folder
	if _, statErr := os.Lstat(to); err != nil && statErr == nil {
		err = disk.Exchange(from, to)
		if err != nil {
			err = swapBySteps(from, to, aside)
		}
	}
	if err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(to))
}

// swapBySteps replaces exchange where that is not supported. If it is killed
// half-way, tidy restores the old folder.
func swapBySteps(from, to, aside string) error {
	if err := disk.Rename(to, aside); err != nil {
		return err
	}
	if err := disk.Rename(from, to); err != nil {
		return errors.Join(err, disk.Rename(aside, to))
	}
	return nil
}
