package features

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// Set is a feature set that is open for reading. Its methods may be called from
// several goroutines, Close excepted. What they return must not be written to,
// nor read after Close.
type Set struct {
	Dir  string // as it was given to Open
	Meta        // N, D and Classes are set for every feature set

	features *npy.Mapped // nil for a set of parts
	logits   *npy.Mapped // nil if there are none
	layers   *npy.Mapped // likewise
	labels   []int64
	memory   bool    // there is no folder
	copied   *copied // of a set in a bucket; nil for others

	parts []*Set // of a set of parts; nil for others
	order []spot // of their rows

	beside []besides // columns of the layers that follow the features of a row, see With

	whole struct { // what Features and Logits return where it does not lie in one map
		sync.Mutex
		features, logits []float32
	}
}

// Open opens the feature set in the folder dir, or at the URL of one in a bucket, and checks that its files agree with
// each other and with their checksums. It compares only size and header of features
// and logits; Verify compares the rest. Features and logits are mapped, so that a
// set may be larger than memory. A set of version 1 has no checksums; the lines of
// its images.jsonl are counted when they are read.
//
// Of a set of parts every part is opened. They must be all the shards of one whole, and
// those that the manifest names. A row takes 16 bytes of memory.
//
// A folder with features.npy but without features.json is a set of another program:
// it has no fingerprint, the label −1 everywhere unless there is a labels.npy (of
// any type that holds whole numbers), and the classes "0", "1", … up to its largest
// label.
//
// The error wraps fs.ErrNotExist if there is no such folder, ErrNotSet,
// ErrVersion, ErrDamaged, or, for a set of parts, ErrShards. A set in a bucket is copied, see
// [SetCopies], until ctx is cancelled.
func Open(ctx context.Context, dir string) (*Set, error) {
	p, err := placeOf(ctx, dir)
	if err != nil {
		return nil, err
	}
	return p.open(ctx)
}

// openOne opens a set that is not of parts.
func openOne(dir string) (_ *Set, err error) {
	s := &Set{Dir: dir}
	defer disk.OnError(&err, s.Close)
	if err := s.checkFolder(); err != nil {
		return nil, err
	}
	return s, s.load()
}

// load reads what there is to read of a set, and maps the rest.
func (s *Set) load() (err error) {
	if err := s.readMeta(); err != nil {
		return err
	}
	if err := s.checkSums(); err != nil {
		return err
	}
	if s.features, err = s.mapMatrix(featuresFile); err != nil {
		return err
	}
	n, d := s.features.Shape[0], s.features.Shape[1]
	foreign := s.Version == 0
	if !foreign && (n != s.N || d != s.D) {
		return s.damaged(featuresFile, "it has shape [%d %d], %s says [%d %d]", n, d, metaFile, s.N, s.D)
	}
	if d == 0 {
		return s.damaged(featuresFile, "its rows are empty")
	}
	s.N, s.D = n, d
	s.logits, err = s.mapMatrix(logitsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.logits != nil && s.logits.Shape[0] != n {
		return s.damaged(logitsFile, "it has %d rows, %s has %d", s.logits.Shape[0], featuresFile, n)
	}
	if d := LayersDim(s.Layers); d > 0 {
		if s.layers, err = s.mapMatrix(layersFile); err != nil {
			return err
		}
		if !slices.Equal(s.layers.Shape, []int{n, d}) {
			return s.damaged(layersFile, "it has shape %v, want %v", s.layers.Shape, []int{n, d})
		}
	}
	return s.readLabels(foreign)
}

// checkFolder returns an error for a folder that is not a feature set, and says how
// to make one.
func (s *Set) checkFolder() error {
	advice := "an extraction makes it"
	if _, err := os.Stat(partialDir(s.Dir)); err == nil {
		advice = fmt.Sprintf("an extraction was interrupted and left %s: run it again to finish it", partialDir(s.Dir))
	}
	if _, err := os.Stat(s.Dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("feature set %s: %w; %s", s.Dir, fs.ErrNotExist, advice)
	} else if err != nil {
		return fmt.Errorf("feature set %s: %w", s.Dir, err)
	}
	if _, err := os.Stat(s.path(featuresFile)); err != nil {
		return fmt.Errorf("%s is %w: it has no %s; an extraction makes one", s.Dir, ErrNotSet, featuresFile)
	}
	return nil
}

// path returns where a file of the set is; a file that there is not is at a path where
// there is none.
func (s *Set) path(name string) string {
	if s.copied == nil {
		return filepath.Join(s.Dir, name)
	}
	return cmp.Or(s.copied.paths[name], s.name(name))
}

// name names a file of the set to people.
func (s *Set) name(name string) string {
	if bucket.IsURL(s.Dir) {
		return s.Dir + "/" + name
	}
	return filepath.Join(s.Dir, name)
}

func (s *Set) damaged(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{ErrDamaged, s.name(name)}, args...)...)
}

// readMeta reads features.json if there is one.
func (s *Set) readMeta() error {
	data, err := disk.ReadFile(s.path(metaFile), disk.Meta)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		s.Meta, err = parseMeta(data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.path(metaFile), err)
	}
	return nil
}

// mapMatrix maps an array of two dimensions.
func (s *Set) mapMatrix(name string) (*npy.Mapped, error) {
	m, err := npy.Map(s.path(name))
	if errors.Is(err, npy.ErrFormat) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	if len(m.Shape) != 2 {
		return nil, errors.Join(s.damaged(name, "it has shape %v, want two dimensions", m.Shape), m.Close())
	}
	if _, ours := s.Files[name]; ours {
		if err := s.checkHeader(name, m.Shape); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// maxClasses bounds the labels of another program's set with fewer rows, and the
// classes of a backbone's own classifier. ImageNet-21k has 21,843.
const maxClasses = 1 << 15

// readLabels reads and checks the labels, and names the classes of another
// program's set.
func (s *Set) readLabels(foreign bool) error {
	labels, shape, err := npy.ReadUpTo[int64](s.path(labelsFile), s.N)
	switch {
	case foreign && errors.Is(err, fs.ErrNotExist):
		labels, shape = slices.Repeat([]int64{-1}, s.N), []int{s.N}
	case errors.Is(err, npy.ErrFormat) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return err
	}
	if !slices.Equal(shape, []int{s.N}) {
		return s.damaged(labelsFile, "it has shape %v, %s has %d rows", shape, featuresFile, s.N)
	}
	classes := int64(len(s.Classes))
	if foreign {
		// Every label up to the largest gets a name, and training takes memory for
		// every class: the bound prevents that one wrong number fills the memory.
		classes = max(maxClasses, int64(s.N))
	}
	for i, label := range labels {
		if label < -1 || label >= classes {
			return s.damaged(labelsFile, "label %d of row %d is none of the %d that there can be", label, i, classes)
		}
	}
	if foreign {
		for c := range slices.Max(append(labels, -1)) + 1 {
			s.Classes = append(s.Classes, strconv.FormatInt(c, 10))
		}
	}
	s.labels = labels
	return nil
}

// Features returns all features, [N, D] row by row. Those of a set of parts, and of
// float16, are copied into memory at the first call: Block and Row do not do that.
func (s *Set) Features() []float32 {
	if s.InPlace() {
		return s.features.Data
	}
	s.whole.Lock()
	defer s.whole.Unlock()
	if s.whole.features == nil {
		s.whole.features = s.Block(0, s.N)
	}
	return s.whole.features
}

// InPlace tells whether Features returns the map of one file, without a copy.
func (s *Set) InPlace() bool {
	return s.parts == nil && s.beside == nil && len(s.features.Data) == s.N*s.D
}

// Block returns the features of the rows from … to−1, copied where they do not lie in
// one map.
func (s *Set) Block(from, to int) []float32 {
	if s.parts == nil && s.beside == nil {
		return s.features.Values(from*s.D, to*s.D)
	}
	block := make([]float32, 0, (to-from)*s.D)
	for i := from; i < to; i++ {
		block = s.appendRow(block, i)
	}
	return block
}

// Read copies the features of row i into dst [D]; see Pages.
func (s *Set) Read(dst []float32, i int) error { return s.Pages().Read(dst, i*s.D) }

// Pages controls how the system reads the memory map of a file.
type Pages = spill.Pages

// Pages returns the pages of the features. Do not use them after Close.
func (s *Set) Pages() Pages {
	switch {
	case s.beside != nil:
		return widePages{s}
	case s.parts != nil:
		return partPages{s}
	}
	return s.features
}

// widePages are the pages of rows with layers, which the system reads as it likes.
type widePages struct{ *Set }

func (p widePages) Read(dst []float32, from int) error {
	for ; len(dst) > 0; from += p.D - from%p.D {
		dst = dst[copy(dst, p.Row(from / p.D)[from%p.D:]):]
	}
	return nil
}

func (widePages) Scatter()      {}
func (widePages) Need(_, _ int) {}
func (widePages) Release()      {}

// Row returns the D features of row i. It panics unless 0 ≤ i < N.
func (s *Set) Row(i int) []float32 {
	switch {
	case s.beside != nil:
		return s.appendRow(make([]float32, 0, s.D), i)
	case s.parts == nil:
		return s.features.Values(i*s.D, (i+1)*s.D)
	}
	at := s.order[i]
	return s.parts[at.part].Row(int(at.row))
}

// appendRow appends the D features of row i.
func (s *Set) appendRow(to []float32, i int) []float32 {
	if s.parts != nil {
		at := s.order[i]
		to = append(to, s.parts[at.part].Row(int(at.row))...)
	} else {
		d := s.own()
		to = append(to, s.features.Values(i*d, (i+1)*d)...)
	}
	if s.beside != nil {
		all := s.RowLayers(i)
		for _, l := range s.beside {
			to = append(to, all[l.from:l.from+l.d]...)
		}
	}
	return to
}

// Labels returns the N labels: indices into Classes, −1 for a row without one.
func (s *Set) Labels() []int64 { return s.labels }

// Logits returns the logits of the backbone's own classifier, [N, c] row by
// row. Without any it returns nil and 0. Those of a set of parts are copied into memory
// at the first call: RowLogits does not do that.
func (s *Set) Logits() (logits []float32, c int) {
	c = s.LogitsDim()
	if c == 0 {
		return nil, 0
	}
	if s.parts == nil {
		return s.logits.Data, c
	}
	s.whole.Lock()
	defer s.whole.Unlock()
	if s.whole.logits == nil {
		s.whole.logits = make([]float32, 0, s.N*c)
		for i := range s.N {
			s.whole.logits = append(s.whole.logits, s.RowLogits(i)...)
		}
	}
	return s.whole.logits, c
}

// LogitsDim returns how many logits a row has, 0 without any.
func (s *Set) LogitsDim() int {
	if s.parts != nil {
		return s.parts[0].LogitsDim()
	}
	if s.logits == nil {
		return 0
	}
	return s.logits.Shape[1]
}

// RowLogits returns the logits of row i.
func (s *Set) RowLogits(i int) []float32 {
	if s.parts == nil {
		c := s.LogitsDim()
		return s.logits.Data[i*c : (i+1)*c]
	}
	at := s.order[i]
	return s.parts[at.part].RowLogits(int(at.row))
}

// RowLayers returns the layers of row i, one after another; nil without any.
func (s *Set) RowLayers(i int) []float32 {
	switch {
	case s.parts != nil:
		at := s.order[i]
		return s.parts[at.part].RowLayers(int(at.row))
	case s.layers == nil:
		return nil
	}
	d := s.layers.Shape[1]
	return s.layers.Values(i*d, (i+1)*d)
}

// Patches returns the file of the model of patches that a layer of the set is by; nil without
// such a layer.
func (s *Set) Patches() ([]byte, error) {
	switch {
	case s.memory || !slices.ContainsFunc(s.Layers, Layer.OfPatches):
		return nil, nil
	case s.parts != nil:
		return s.parts[0].Patches()
	}
	data, err := disk.ReadFile(s.path(patchesFile), disk.Tensors)
	if err != nil {
		return nil, fmt.Errorf("the model of patches of features %s: %w; extract the images again", s.Dir, err)
	}
	return data, nil
}

// With puts these of the set's layers after the features of each row, in the order of the
// list, and no others: D, Row, Block and all else that reads rows has both from then on. The
// error wraps ErrLayers if the set lacks a layer.
func (s *Set) With(layers []Layer) error {
	s.D, s.beside = s.own(), nil
	for _, l := range layers {
		at := slices.Index(s.Layers, l)
		if at < 0 {
			var names []string
			for _, l := range layers {
				names = append(names, l.Name)
			}
			return fmt.Errorf("features %s %w, such as %s: extract the images again, with the layers %s", s.Dir, ErrLayers, l.Name, strings.Join(names, ","))
		}
		s.beside, s.D = append(s.beside, besides{LayersDim(s.Layers[:at]), l.D}), s.D+l.D
	}
	return nil
}

// besides are some columns of the layers.
type besides struct{ from, d int }

// own returns how many of the D values of a row are its features, and not of layers.
func (s *Set) own() int {
	d := s.D
	for _, l := range s.beside {
		d -= l.d
	}
	return d
}

// Classifier reads the last layer of the backbone's own classifier: weight is
// [C, D] row by row, bias [C], zeros if the set has only a weight. Without
// fc_weight.npy both are nil.
func (s *Set) Classifier() (weight, bias []float32, err error) {
	if s.memory {
		return nil, nil, nil
	}
	weight, shape, err := npy.ReadUpTo[float32](s.path(weightFile), maxClasses*s.D)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if len(shape) != 2 || shape[1] != s.D {
		return nil, nil, s.damaged(weightFile, "it has shape %v, want [C %d]", shape, s.D)
	}
	c := shape[0]
	bias, shape, err = npy.ReadUpTo[float32](s.path(biasFile), maxClasses)
	if errors.Is(err, fs.ErrNotExist) {
		return weight, make([]float32, c), nil
	}
	if err != nil {
		return nil, nil, err
	}
	if !slices.Equal(shape, []int{c}) {
		return nil, nil, s.damaged(biasFile, "it has shape %v, want [%d]", shape, c)
	}
	return weight, bias, nil
}

// Images reads images.jsonl: one Image for each row. Another program's set may have
// none; then the result is nil.
func (s *Set) Images() ([]Image, error) {
	var images []Image
	for img, err := range s.eachImage() {
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// ImagePath returns the path of the image of row i, "" where the set does not have
// it.
func (s *Set) ImagePath(i int) string {
	for img, err := range s.eachImage() {
		if err != nil {
			break
		}
		if i == 0 {
			return img.Path
		}
		i--
	}
	return ""
}

// ImagesAt reads the entries of images.jsonl for some rows, by row, without keeping
// the others. Another program's set may have none.
func (s *Set) ImagesAt(rows []int) (map[int]Image, error) {
	images := make(map[int]Image, len(rows))
	if len(rows) == 0 || s.memory {
		return images, nil
	}
	if s.parts != nil {
		return s.imagesOfParts(rows)
	}
	wanted := make(map[int]bool, len(rows))
	for _, row := range rows {
		wanted[row] = true
	}
	f, err := disk.Open(s.path(imagesFile), disk.Values)
	if s.Version == 0 && errors.Is(err, fs.ErrNotExist) {
		return images, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for row := 0; len(images) < len(wanted) && lines.Scan(); row++ {
		if !wanted[row] {
			continue
		}
		var l imageLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, s.damaged(imagesFile, "line %d: %w", row+1, err)
		}
		images[row] = Image{decodePath(s.Version, l.Path), l.Label, l.Bytes, l.MTime, l.SHA256}
	}
	if err := lines.Err(); err != nil {
		return nil, s.damaged(imagesFile, "%w", err)
	}
	if len(images) < len(wanted) {
		return nil, s.damaged(imagesFile, "it has fewer lines than %s has rows", featuresFile)
	}
	return images, nil
}

// imagesOfParts is ImagesAt for a set of parts.
func (s *Set) imagesOfParts(rows []int) (map[int]Image, error) {
	wanted, number := map[int32][]int{}, map[spot]int{}
	for _, row := range rows {
		at := s.order[row]
		wanted[at.part], number[at] = append(wanted[at.part], int(at.row)), row
	}
	images := make(map[int]Image, len(rows))
	for part, rows := range wanted {
		some, err := s.parts[part].ImagesAt(rows)
		if err != nil {
			return nil, err
		}
		for row, img := range some {
			images[number[spot{part, int32(row)}]] = img
		}
	}
	return images, nil
}

// eachImage gives every image, in the order of the rows, and finally an error if
// there are not N of them.
func (s *Set) eachImage() iter.Seq2[Image, error] {
	if s.parts != nil {
		return imagesInOrder(s.parts, slices.Values(s.order))
	}
	return func(yield func(Image, error) bool) {
		if s.memory {
			return
		}
		f, err := disk.Open(s.path(imagesFile), disk.Values)
		if s.Version == 0 && errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			yield(Image{}, fmt.Errorf("%w: %w", ErrDamaged, err))
			return
		}
		defer f.Close()
		n, enough := 0, errors.New("enough")
		err = readLines(f, func(l imageLine) error {
			img := Image{decodePath(s.Version, l.Path), l.Label, l.Bytes, l.MTime, l.SHA256}
			if n++; n > s.N || !yield(img, nil) {
				return enough
			}
			return nil
		})
		switch {
		case n > s.N:
			yield(Image{}, s.damaged(imagesFile, "it has %d lines or more, %s has %d rows", n, featuresFile, s.N))
		case err == enough:
		case err != nil:
			yield(Image{}, fmt.Errorf("%s: %w", s.name(imagesFile), err))
		case n != s.N:
			yield(Image{}, s.damaged(imagesFile, "it has %d lines, %s has %d rows", n, featuresFile, s.N))
		}
	}
}

// Errors reads errors.jsonl: the images that could not be read when the set was
// made. Without the file there are none.
func (s *Set) Errors() ([]Failure, error) {
	if s.memory {
		return nil, nil
	}
	if s.parts != nil {
		var all []Failure
		for _, part := range s.parts {
			failed, err := part.Errors()
			if err != nil {
				return nil, err
			}
			all = append(all, failed...)
		}
		sortFailures(all)
		return all, nil
	}
	f, err := disk.Open(s.path(errorsFile), disk.List)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	failures, err := readFailures(f, s.Version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(errorsFile), err)
	}
	return failures, nil
}

// readFailures reads an errors.jsonl of a version of the format.
func readFailures(r io.Reader, version int) (failures []Failure, err error) {
	err = readLines(r, func(l failureLine) error {
		failures = append(failures, Failure{decodePath(version, l.Path), l.Error})
		return nil
	})
	return failures, err
}

// InMemory tells whether [InMemory] made the set.
func (s *Set) InMemory() bool { return s.memory }

// Close unmaps the set's files.
func (s *Set) Close() error {
	errs := []error{closeAll(s.parts)}
	for _, m := range []*npy.Mapped{s.features, s.logits, s.layers} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if s.copied != nil {
		errs = append(errs, s.copied.leave())
		s.copied = nil
	}
	return errors.Join(errs...)
}

// Comparable tells whether features of two fingerprints may be compared: those that are
// not known, "", with all others.
func Comparable(a, b string) bool { return a == "" || b == "" || a == b }

// SameSpace returns an error that wraps ErrFingerprint and names both sets if their
// rows cannot be compared: they have different dimensions, or both have a
// fingerprint and these differ; layers do not count. Only the dimension of another
// program's set is known.
func SameSpace(a, b *Set) error {
	if a.own() != b.own() {
		return fmt.Errorf("%s has %d features a row, %s has %d: it was %w", a.Dir, a.own(), b.Dir, b.own(), ErrFingerprint)
	}
	if !Comparable(a.Space(), b.Space()) {
		return fmt.Errorf("%s and %s cannot be used together: one was %w than the other", a.Dir, b.Dir, ErrFingerprint)
	}
	return nil
}
