package features

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/pathtext"
	"github.com/mlrbfn/mlrbfn/internal/regular"
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

// readSources reads the sources of the work folder, up to where a killed run stopped.
func (w *Writer) readSources() error {
	w.sources = map[string]Source{}
	f, err := disk.OpenFile(w.partial(sourcesFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w.sourceLog = f
	lines := bufio.NewReaderSize(io.NewSectionReader(f, 0, regular.Values), 1<<16)
	for {
		text, err := lines.ReadBytes('\n')
		var line sourceLine
		if err != nil || json.Unmarshal(text, &line) != nil {
			break
		}
		w.sourceEnd += int64(len(text))
		s := Source{Path: pathtext.Decode(line.Path), Bytes: line.Bytes, Version: line.Version}
		for _, r := range line.Rows {
			s.Images = append(s.Images, Image{Path: pathtext.Decode(r.Path), Label: r.Label, Bytes: r.Bytes, MTime: r.MTime})
		}
		for _, r := range line.Failures {
			s.Failed = append(s.Failed, Failure{pathtext.Decode(r.Path), r.Error})
		}
		w.sources[s.Path] = s
	}
	return f.Truncate(w.sourceEnd)
}

// AddSource notes that a source was read to its end, after the rows of its images were
// appended.
func (w *Writer) AddSource(s Source) error {
	line := sourceLine{Path: pathtext.Encode(s.Path), Bytes: s.Bytes, Version: s.Version, Images: len(s.Images), Failed: len(s.Failed)}
	for _, img := range s.Images {
		line.Rows = append(line.Rows, sourceRow{pathtext.Encode(img.Path), img.Label, img.Bytes, img.MTime})
	}
	for _, f := range s.Failed {
		line.Failures = append(line.Failures, sourceFail{pathtext.Encode(f.Path), f.Error})
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sourceLog == nil {
		if w.sourceLog, err = disk.OpenFile(w.partial(sourcesFile), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
			return err
		}
	}
	if _, err := w.sourceLog.WriteAt(text, w.sourceEnd); err != nil {
		return err
	}
	w.sourceEnd += int64(len(text))
	return nil
}

// Source returns what is known of a source with that size and version, if there is a row
// for each of its images.
func (w *Writer) Source(path string, size int64, version string) (Source, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sources[path]
	if !ok || s.Bytes != size || s.Version != version {
		return Source{}, false
	}
	failed := map[string]bool{}
	for _, f := range s.Failed {
		failed[f.Path] = true
	}
	for _, img := range s.Images {
		if l, ok := w.known[img.Path]; !failed[img.Path] && (!ok || l.bytes != img.Bytes || l.mtime != img.MTime) {
			return Source{}, false
		}
	}
	return s, true
}

// HasSource tells whether there are rows of a source, or of an image with that path,
// whatever its version.
func (w *Writer) HasSource(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.sources[path]; ok && len(s.Images) > 0 {
		return true
	}
	_, ok := w.known[path]
	return ok
}

// sourceOf returns which of the sources an image or a failure is of.
func sourceOf(sources map[string]*Source, path string) *Source {
	if s := sources[path]; s != nil {
		return s
	}
	for at := range path {
		if path[at] == '#' && sources[path[:at]] != nil {
			return sources[path[:at]]
		}
	}
	return nil
}

// readOldSources adds the sources of the set at dir that are not in the work folder.
func (w *Writer) readOldSources() error {
	lines, err := w.old.sourceLines()
	if err != nil || len(lines) == 0 {
		return err
	}
	old := map[string]*Source{}
	for _, line := range lines {
		s := &Source{Path: pathtext.Decode(line.Path), Bytes: line.Bytes, Version: line.Version}
		old[s.Path] = s
	}
	for img, err := range w.old.eachImage() {
		if err != nil {
			return err
		}
		if s := sourceOf(old, img.Path); s != nil {
			s.Images = append(s.Images, Image{Path: img.Path, Label: img.Label, Bytes: img.Bytes, MTime: img.MTime})
		}
	}
	failed, err := w.old.Errors()
	if err != nil {
		return err
	}
	for _, f := range failed {
		if s := sourceOf(old, f.Path); s != nil {
			s.Failed = append(s.Failed, f)
		}
	}
	for _, line := range lines {
		s := old[pathtext.Decode(line.Path)]
		if len(s.Images) != line.Images || len(s.Failed) < line.Failed {
			continue // it is read again
		}
		if _, newer := w.sources[s.Path]; !newer {
			w.sources[s.Path] = *s
		}
	}
	return nil
}

// sourceLines reads sources.jsonl; a set of single files has none.
func (s *Set) sourceLines() (lines []sourceLine, err error) {
	f, err := regular.Open(s.path(sourcesFile), regular.Values)
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

// newSourceLine returns the line of a set's sources.jsonl for a source whose images have rows
// unless they failed.
func newSourceLine(s Source) sourceLine {
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
	return sourceLine{Path: pathtext.Encode(s.Path), Bytes: s.Bytes, Version: s.Version, Images: rows, Failed: len(s.Failed)}
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
	same := func(name string, fill func(io.Writer) error) bool {
		f, err := regular.Open(w.old.path(name), regular.Values)
		if err != nil {
			return false
		}
		defer f.Close()
		c := &comparison{file: bufio.NewReaderSize(f, 1<<16)}
		if fill(c) != nil {
			return false
		}
		_, err = c.file.ReadByte()
		return err == io.EOF
	}
	return same(imagesFile, func(w io.Writer) error { return writeLines(w, b.images, b.imageLine) }) &&
		same(errorsFile, func(w io.Writer) error { return writeLines(w, each(b.failed), b.failureLine) }) &&
		same(sourcesFile, func(w io.Writer) error { return writeLines(w, each(b.sources), func(l sourceLine) any { return l }) }) &&
		same(labelsFile, func(w io.Writer) error { return writeNumbers(w, b.labels, b.meta.N) }) &&
		(b.places == nil || same(placesFile, func(w io.Writer) error { return writeNumbers(w, b.places, b.meta.N) }))
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
