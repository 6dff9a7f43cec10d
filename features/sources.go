package features

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// A Source is a file of many images, such as a tar, that was read to its end. The path of
// an image in it is that of the file, a # and a name.
type Source struct {
	Path    string
	Bytes   int64
	Version string    // of its content
	Images  []Image   // Path, Label, Bytes and MTime, in the order of the file
	Failed  []Failure // of its images, and of the file itself
}

// sourceLine is a line of sources.jsonl, in a set with the numbers of images and
// failures, which are in other files there, and in a work folder with themselves.
type sourceLine struct {
	Path     string       `json:"path"`
	Bytes    int64        `json:"bytes"`
	Version  string       `json:"version"`
	Images   int          `json:"images"`
	Failed   int          `json:"failed"`
	Rows     []sourceRow  `json:"rows,omitempty"`
	Failures []sourceFail `json:"failures,omitempty"`
}

type sourceRow struct {
	Path  string  `json:"path"`
	Label *string `json:"label,omitempty"`
	Bytes int64   `json:"bytes"`
	MTime int64   `json:"mtime"`
}

type sourceFail struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// record is what a Writer keeps of a source. Its images are on the disk: there may be
// millions.
type record struct {
	bytes   int64
	version string
	whole   bool // it was read to its end in this version, and has this number of images with rows
	images  int
	failed  []Failure
	// Where its images are listed: in the work folder's sources.jsonl, or, where size is
	// 0, in the images.jsonl of the set at dir.
	at, size int64
	// Where their rows are, and perhaps rows of others. A row of the journal is newer.
	journal, old spans
}

// line returns the line of a set's sources.jsonl.
func (r *record) line(path string) sourceLine {
	return sourceLine{Path: disk.EncodePath(path), Bytes: r.bytes, Version: r.version, Images: r.images, Failed: len(r.failed)}
}

// rowed counts the images of a source that have rows.
func (s Source) rowed() int {
	failed := map[string]bool{}
	for _, f := range s.Failed {
		failed[f.Path] = true
	}
	rows := 0
	for _, img := range s.Images {
		if !failed[img.Path] {
			rows++
		}
	}
	return rows
}

// source returns what a line of the work folder tells.
func (l sourceLine) source() Source {
	s := Source{Path: disk.DecodePath(l.Path), Bytes: l.Bytes, Version: l.Version}
	for _, r := range l.Rows {
		s.Images = append(s.Images, Image{Path: disk.DecodePath(r.Path), Label: r.Label, Bytes: r.Bytes, MTime: r.MTime})
	}
	for _, r := range l.Failures {
		s.Failed = append(s.Failed, Failure{disk.DecodePath(r.Path), r.Error})
	}
	return s
}

// addRecord notes a source whose line lies at sourceEnd.
func (w *Writer) addRecord(s Source, size int) {
	r := w.sources[s.Path]
	if r == nil {
		r = &record{}
		w.sources[s.Path] = r
	}
	r.bytes, r.version, r.whole, r.images, r.failed = s.Bytes, s.Version, true, s.rowed(), s.Failed
	r.at, r.size = w.sourceEnd, int64(size)
	w.sourceEnd += r.size
}

// readSources reads the sources of the work folder, up to where a killed run stopped.
func (w *Writer) readSources(ctx context.Context) error {
	f, err := disk.OpenForWriting(w.partial(sourcesFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w.sourceLog = f
	lines := bufio.NewReaderSize(io.NewSectionReader(f, 0, disk.Values), 1<<16)
	for {
		text, err := lines.ReadBytes('\n')
		var line sourceLine
		if err != nil || json.Unmarshal(text, &line) != nil {
			break
		}
		w.addRecord(line.source(), len(text))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return f.Truncate(w.sourceEnd)
}

// readOldSources reads the sources of the set at dir.
func (w *Writer) readOldSources(old *Set) error {
	lines, err := old.sourceLines()
	if err != nil || len(lines) == 0 {
		return err
	}
	for _, line := range lines {
		w.sources[disk.DecodePath(line.Path)] = &record{bytes: line.Bytes, version: line.Version, images: line.Images, whole: true}
	}
	failed, err := old.Errors()
	if err != nil {
		return err
	}
	for _, f := range failed {
		if r := w.sourceOf(f.Path); r != nil {
			r.failed = append(r.failed, f)
		}
	}
	for _, line := range lines {
		r := w.sources[disk.DecodePath(line.Path)]
		r.whole = len(r.failed) >= line.Failed
	}
	f, err := disk.Open(old.path(imagesFile), disk.Values)
	if err != nil {
		return err
	}
	defer f.Close()
	w.oldMarks, err = markLines(f)
	return err
}

// journalRow notes a row of the journal that is of an image of a source.
func (w *Writer) journalRow(path string, row int) bool {
	r := w.sourceOf(path)
	if r == nil {
		return false
	}
	r.journal.add(row)
	return true
}

// sourceOf returns which of the sources an image or a failure is of; nil for none.
func (w *Writer) sourceOf(path string) *record {
	if r := w.sources[path]; r != nil {
		return r
	}
	for at := range path {
		if path[at] == '#' && w.sources[path[:at]] != nil {
			return w.sources[path[:at]]
		}
	}
	return nil
}

// rowsOf returns the rows of the images of a source, whatever its version.
func (w *Writer) rowsOf(r *record) (map[string]location, error) {
	rows := make(map[string]location, r.images)
	for img, err := range w.oldImagesOf(r) {
		if err == nil {
			rows[img.Path], err = locate(img.Image, ^img.row)
		}
		if err != nil {
			return nil, err
		}
	}
	err := w.journal.marks.read(w.journal.lines, r.journal, func(row int, text []byte) error {
		var line journalLine
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		img := line.image()
		if w.sourceOf(img.Path) != r {
			return nil
		}
		l, err := locate(img, row)
		rows[img.Path] = l
		return err
	})
	return rows, err
}

// oldImage is an image of the set at dir.
type oldImage struct {
	Image
	row int
}

// oldImagesOf gives the images of a source that are in the set at dir.
func (w *Writer) oldImagesOf(r *record) iter.Seq2[oldImage, error] {
	return func(yield func(oldImage, error) bool) {
		if len(r.old) == 0 {
			return
		}
		f, err := disk.Open(w.old.path(imagesFile), disk.Values)
		if err != nil {
			yield(oldImage{}, err)
			return
		}
		defer f.Close()
		enough := errors.New("enough")
		err = w.oldMarks.read(f, r.old, func(row int, text []byte) error {
			var l imageLine
			if err := json.Unmarshal(text, &l); err != nil {
				return err
			}
			img := Image{decodePath(w.old.Version, l.Path), l.Label, l.Bytes, l.MTime, l.SHA256}
			if w.sourceOf(img.Path) == r && !yield(oldImage{img, row}, nil) {
				return enough
			}
			return nil
		})
		if err != nil && err != enough {
			yield(oldImage{}, err)
		}
	}
}

// imagesOf gives the images of a source, in its order.
func (w *Writer) imagesOf(r *record) iter.Seq2[Image, error] {
	return func(yield func(Image, error) bool) {
		if r.size == 0 {
			for img, err := range w.oldImagesOf(r) {
				if !yield(img.Image, err) {
					return
				}
			}
			return
		}
		text := make([]byte, r.size)
		_, err := w.sourceLog.ReadAt(text, r.at)
		var line sourceLine
		if err == nil {
			err = json.Unmarshal(text, &line)
		}
		if err != nil {
			yield(Image{}, err)
			return
		}
		for _, img := range line.source().Images {
			if !yield(img, nil) {
				return
			}
		}
	}
}

// AddSource notes that a source was read to its end, after the rows of its images were
// appended.
func (w *Writer) AddSource(s Source) error {
	line := sourceLine{Path: disk.EncodePath(s.Path), Bytes: s.Bytes, Version: s.Version, Images: len(s.Images), Failed: len(s.Failed)}
	for _, img := range s.Images {
		line.Rows = append(line.Rows, sourceRow{disk.EncodePath(img.Path), img.Label, img.Bytes, img.MTime})
	}
	for _, f := range s.Failed {
		line.Failures = append(line.Failures, sourceFail{disk.EncodePath(f.Path), f.Error})
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sourceLog == nil {
		if w.sourceLog, err = disk.OpenForWriting(w.partial(sourcesFile), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
			return err
		}
	}
	if _, err := w.sourceLog.WriteAt(text, w.sourceEnd); err != nil {
		return err
	}
	w.addRecord(s, len(text))
	w.forget(s)
	return nil
}

// forget notes where the rows of a source are, and keeps them in memory no longer.
func (w *Writer) forget(s Source) {
	var journal, old []int
	for _, img := range s.Images {
		l, ok := w.known[img.Path]
		if !ok {
			continue
		}
		if row, inOld := l.inOld(); inOld {
			old = append(old, row)
		} else {
			journal = append(journal, l.row)
		}
		delete(w.known, img.Path)
	}
	r := w.sources[s.Path]
	r.journal, r.old = nil, nil
	for rows, to := range map[*[]int]*spans{&journal: &r.journal, &old: &r.old} {
		slices.Sort(*rows)
		for _, row := range *rows {
			to.add(row)
		}
	}
}

// Source tells whether a source with that size and version was read to its end, and there is
// a row for each of its images that did not fail. It returns their number and the failures.
func (w *Writer) Source(path string, size int64, version string) (images int, failed []Failure, ok bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.sources[path]
	if r == nil {
		return 0, nil, false, nil
	}
	same := r.whole && r.bytes == size && r.version == version
	if same && r.size == 0 && len(r.journal) == 0 { // as the set at dir has it
		return r.images, r.failed, true, nil
	}
	rows, err := w.rowsOf(r)
	if err != nil {
		return 0, nil, false, err
	}
	if same {
		lost := map[string]bool{}
		for _, f := range r.failed {
			lost[f.Path] = true
		}
		for img, err := range w.imagesOf(r) {
			if err != nil {
				return 0, nil, false, err
			}
			if l, ok := rows[img.Path]; !lost[img.Path] && (!ok || l.bytes != img.Bytes || l.mtime != img.MTime) {
				same = false
			}
		}
	}
	if !same { // it is read again, and Has tells of its images
		maps.Copy(w.known, rows)
		return 0, nil, false, nil
	}
	return r.images, r.failed, true, nil
}

// HasSource tells whether there are rows of a source, or of an image with that path,
// whatever its version.
func (w *Writer) HasSource(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.sources[path]; r != nil && r.images > 0 {
		return true
	}
	_, ok := w.known[path]
	return ok
}

// sourceLines reads sources.jsonl; a set of single files has none.
func (s *Set) sourceLines() (lines []sourceLine, err error) {
	f, err := disk.Open(s.path(sourcesFile), disk.Values)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	err = readLines(f, func(line sourceLine) error {
		lines = append(lines, line)
		return nil
	})
	return lines, err
}

// unchanged tells whether a set is the one that is at dir already, so that it need not be
// written. Nothing was added, and each file that a person can change has the same content.
func (w *Writer) unchanged(b *build) bool {
	if w.old == nil || w.old.Version == 0 || w.journal == nil || w.journal.n > 0 || len(b.sources) == 0 {
		return false
	}
	if _, ok := w.old.Files[parquetFile]; b.parquet && !ok {
		return false
	}
	sortFailures(b.failed)
	before := w.old.Meta
	b.meta.Version, b.meta.Files, b.meta.SHA256 = before.Version, before.Files, before.SHA256
	after, err := b.meta.encode()
	was, wasErr := before.encode()
	if err != nil || wasErr != nil || !bytes.Equal(after, was) {
		return false
	}
	return !slices.ContainsFunc(b.lists(), func(c content) bool {
		return c.wanted && c.name != parquetFile && !w.old.holds(c)
	})
}

// holds tells whether a file of the set has the content.
func (s *Set) holds(c content) bool {
	f, err := disk.Open(s.path(c.name), disk.Values)
	if err != nil {
		return false
	}
	defer f.Close()
	compared := &comparison{file: bufio.NewReaderSize(f, 1<<16)}
	if c.fill(compared) != nil {
		return false
	}
	_, err = compared.file.ReadByte()
	return err == io.EOF
}

// comparison is a writer that fails when what is written is not what a file holds.
type comparison struct {
	file *bufio.Reader
	have []byte
}

func (c *comparison) Write(p []byte) (int, error) {
	c.have = append(c.have[:0], p...)
	if _, err := io.ReadFull(c.file, c.have); err != nil || !bytes.Equal(c.have, p) {
		return 0, errOther
	}
	return len(p), nil
}

var errOther = errors.New("the file holds something else")

// Finished opens the set in dir if it has nothing but what an extraction with this header
// of these sources, of which Path, Bytes and Version are looked at, and of this part would
// put there, so that no image need be looked at. Otherwise it returns nil: [Create] says
// what is to be done.
func Finished(dir string, h Header, sources []Source, part *Part) (*Set, error) {
	if _, err := os.Lstat(partialDir(dir)); err == nil {
		return nil, nil // unfinished work
	}
	if _, err := os.Stat(filepath.Join(dir, sourcesFile)); err != nil {
		return nil, nil
	}
	s, err := openOne(dir)
	if err != nil {
		return nil, nil
	}
	same, err := s.madeOf(h, sources, part)
	if err != nil || !same {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// madeOf tells whether a set was made with this header of these sources alone.
func (s *Set) madeOf(h Header, sources []Source, part *Part) (bool, error) {
	preprocess, err := json.Marshal(h.Preprocess)
	if err != nil {
		return false, err
	}
	if s.Version == 0 || s.D != h.D || s.DType != h.DType || s.LogitsDim() != h.LogitsDim || s.Root != h.Root || s.Model != h.Model || s.ModelSHA256 != h.ModelSHA256 ||
		s.Output != h.Output || s.Pool != h.Pool || s.Fingerprint != h.Fingerprint || s.Tool != h.Tool || !sameJSON(s.Preprocess, preprocess) {
		return false, nil
	}
	if _, ok := s.Files[parquetFile]; h.Parquet && !ok || (s.Shard == nil) != (part == nil) || part != nil && *s.Shard != *part {
		return false, nil
	}
	lines, err := s.sourceLines()
	if err != nil || len(lines) != len(sources) {
		return false, err
	}
	failed, err := s.Errors()
	if err != nil {
		return false, err
	}
	rows, failures := 0, 0
	for i, line := range lines {
		if disk.DecodePath(line.Path) != sources[i].Path || line.Bytes != sources[i].Bytes || line.Version != sources[i].Version {
			return false, nil
		}
		rows, failures = rows+line.Images, failures+line.Failed
	}
	return rows == s.N && failures == len(failed), nil
}

// sameJSON tells whether two texts are the same but for white space.
func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// marks are the places of some lines of a file, so that lines in the middle of it can be
// read: that of each markEvery-th line.
type marks []int64

const markEvery = 256

// add is told where the line of a row begins, of each row in turn.
func (m *marks) add(row int, at int64) {
	if row%markEvery == 0 {
		*m = append(*m, at)
	}
}

// markLines returns the marks of a file.
func markLines(r io.Reader) (m marks, err error) {
	lines := bufio.NewReaderSize(r, 1<<16)
	at := int64(0)
	for row := 0; ; row++ {
		text, err := readLine(lines)
		if len(text) > 0 {
			m.add(row, at)
		}
		if at += int64(len(text)); err == io.EOF {
			return m, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// read calls each for the lines of some rows. The text is valid until each returns.
func (m marks) read(r io.ReaderAt, some spans, each func(row int, text []byte) error) error {
	var lines *bufio.Reader
	for _, span := range some {
		at, row := m[span.from/markEvery], span.from/markEvery*markEvery
		in := io.NewSectionReader(r, at, 1<<62)
		if lines == nil {
			lines = bufio.NewReaderSize(in, 1<<16)
		} else {
			lines.Reset(in)
		}
		for ; row < span.to; row++ {
			text, err := readLine(lines)
			if err == io.EOF && len(text) > 0 {
				err = nil
			}
			if err == nil && row >= span.from {
				err = each(row, text)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readLine reads a line, which is valid until the next.
func readLine(r *bufio.Reader) ([]byte, error) {
	text, err := r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return text, err
	}
	text = slices.Clone(text)
	rest, err := r.ReadBytes('\n')
	return append(text, rest...), err
}

// spans are rows, among which there may be some others.
type spans []span

type span struct{ from, to int } // to is not part of it

// add adds a row behind the others.
func (s *spans) add(row int) {
	if n := len(*s); n > 0 && row-(*s)[n-1].to < markEvery {
		(*s)[n-1].to = row + 1
		return
	}
	*s = append(*s, span{row, row + 1})
}
