package pipeline

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/columns"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parts"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Formats of parts.
const (
	JSONL   = "jsonl"
	Parquet = "parquet"
)

// Work says of what a part is made. Parts of the same Work but the shard belong
// together.
type Work struct {
	Shard    string `json:"shard"`
	Judge    string `json:"judge"`   // identifies detector and options
	Images   int    `json:"images"`  // of the shard; −1 where tars and tables must be read to know
	Listing  string `json:"listing"` // of their paths, sizes and times
	Format   string `json:"format"`
	Detector string `json:"detector"` // its file, for people
	// Thumbnails has Parquet with a picture of each image and its place on the map.
	Thumbnails bool `json:"thumbnails,omitempty"`
}

// unnamed is the Work without what is only for people.
func (w Work) unnamed() Work {
	w.Detector = ""
	return w
}

// VerdictRecord is the file of a finished part.
type VerdictRecord struct {
	Version int    `json:"version"`
	Work    Work   `json:"work"`
	Bytes   int64  `json:"bytes"` // of the file of verdicts
	SHA256  string `json:"sha256"`
	// Unread are tars and tables that could not be read to their end, for a reason that
	// may pass, and those of which nobody says whether they have changed: a run that can
	// read one makes the part again.
	Unread []string `json:"unread,omitempty"`
	VerdictSummary
}

const version = 1

// Bins is how many equal intervals of the p-value are counted.
const Bins = 20

// VerdictSummary counts verdicts. Summaries add up.
type VerdictSummary struct {
	Images         int                     `json:"images"`
	InDistribution int                     `json:"in_distribution"`
	OOD            int                     `json:"ood"`
	Failed         int                     `json:"failed"`
	Classes        map[string]VerdictClass `json:"classes"`
	Errors         map[string]int          `json:"errors,omitempty"` // by their kind
	PValues        [Bins]int               `json:"p_values"`         // those in [0, 1/20), …, [19/20, 1]
}

// VerdictClass counts the images that were given a class.
type VerdictClass struct {
	Images int `json:"images"`
	OOD    int `json:"ood"`
}

// Add adds another summary.
func (s *VerdictSummary) Add(o VerdictSummary) {
	s.Images += o.Images
	s.InDistribution += o.InDistribution
	s.OOD += o.OOD
	s.Failed += o.Failed
	s.init()
	for name, c := range o.Classes {
		own := s.Classes[name]
		s.Classes[name] = VerdictClass{own.Images + c.Images, own.OOD + c.OOD}
	}
	for kind, n := range o.Errors {
		s.Errors[kind] += n
	}
	for i, n := range o.PValues {
		s.PValues[i] += n
	}
}

func (s *VerdictSummary) init() {
	if s.Classes == nil {
		s.Classes = map[string]VerdictClass{}
	}
	if s.Errors == nil {
		s.Errors = map[string]int{}
	}
}

// VerdictLine is what a line of a part says.
type VerdictLine struct {
	Path string `json:"path"`
	detector.Verdict
	Error     string   `json:"error"`
	Thumbnail []byte   `json:"thumbnail,omitempty"` // a JPEG; it and the next are in Parquet alone
	X         *float64 `json:"x,omitempty"`         // on the first axis of the detector's map, as Y on the second
	Y         *float64 `json:"y,omitempty"`
}

// count adds a line.
func (s *VerdictSummary) count(l VerdictLine) {
	s.init()
	s.Images++
	if l.Error != "" {
		s.Failed++
		s.Errors[parts.KindOf(l.Error, l.Path)]++
		return
	}
	c := s.Classes[l.Class]
	c.Images++
	if l.OOD {
		s.OOD++
		c.OOD++
	} else {
		s.InDistribution++
	}
	s.Classes[l.Class] = c
	s.PValues[min(max(int(l.PValue*Bins), 0), Bins-1)]++
}

func readRecord(path string) (*VerdictRecord, error) {
	text, err := disk.ReadFile(path, disk.Meta)
	if err != nil {
		return nil, err
	}
	return parseRecord(text, path)
}

func parseRecord(text []byte, path string) (*VerdictRecord, error) {
	var r VerdictRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", features.ErrDamaged, path, err)
	}
	if r.Version > version {
		return nil, fmt.Errorf("%s: %w", path, features.ErrVersion)
	}
	if len(r.SHA256) != hex.EncodedLen(sha256.Size) {
		err := fmt.Errorf("%w: %s: it has no checksum", features.ErrDamaged, path)
		if r.Work.Judge == "" {
			return nil, err
		}
		return &r, err
	}
	return &r, nil
}

// verdictWriter writes a part. Its lines are appended in the order of the images.
//
// It stores the verdicts on many images in a folder, in parts: one for
// each shard, however many processes write them.
//
//	part-00001-of-00008.jsonl     one JSON object per image, or .parquet
//	part-00001-of-00008.json      the [VerdictRecord]: the part is finished
//	part-00001-of-00008.partial/  the work of a part that is not
//
// A killed run goes on where it ended, and the bytes of a part do not depend on that.
type verdictWriter struct {
	base  string // of the part's names
	work  Work
	claim *parts.Claim // the unfinished part; nil after Close
	lines *disk.File
	end   int64
	n     int
	done  *VerdictRecord
	saved time.Time

	again func(file string) bool // see createVerdicts

	mu     sync.Mutex
	unread []string
	noted  map[string]bool // those in unread
}

// createVerdicts begins or continues the part of a shard. Where there are lines of an interrupted
// run, known is asked for each in turn whether the next image has this path; from the
// first on that it denies they are made again. So is a part of other images, by path, size
// or time, and one that lacks files of which again, where set, says that they may be read
// now. The error wraps features.ErrLocked if another process writes the part.
func createVerdicts(to VerdictParts, work Work, known, again func(path string) bool) (_ *verdictWriter, err error) {
	dir, shard := to.Out, to.Shard
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	there, err := parts.InFolder(dir, ".json")
	if err == nil {
		err = parts.Fits(shard, there, dir, false, false)
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "parts.json")); err == nil {
		return nil, options.Errorf("Out", "%s is a feature set: write to another folder", dir)
	}
	work.Shard = shard.String()
	w := &verdictWriter{base: parts.Path(dir, shard), work: work, again: again, saved: time.Now(), noted: map[string]bool{}}
	w.claim, err = parts.Take(w.base+".partial", to.Speculate, nil)
	if errors.Is(err, features.ErrLocked) {
		err = fmt.Errorf("%s: %w", w.base, err)
	}
	if err != nil {
		return nil, err
	}
	defer disk.OnError(&err, w.Close)
	if to.Force {
		return w, w.recover(known)
	}
	old, err := readRecord(w.base + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return w, w.recover(known)
	}
	if err == nil {
		err = w.mayReplace(old)
	}
	if err != nil {
		return nil, err
	}
	if w.same(old) {
		w.done, w.n = old, old.VerdictSummary.Images
		return w, nil
	}
	return w, w.recover(known)
}

// mayReplace refuses to replace a finished part of another detector or format.
func (w *verdictWriter) mayReplace(r *VerdictRecord) error {
	if r.Work.Judge == w.work.Judge && r.Work.Format == w.work.Format {
		return nil
	}
	return options.Errorf("Force", "it is needed to replace %s, which was judged by another detector (%s), with other options or in another format; or write to another folder", w.base+"."+r.Work.Format, r.Work.Detector)
}

func (w *verdictWriter) partial(file string) string { return w.claim.Path(file) }

// there tells whether the file of a finished part is there.
func (w *verdictWriter) there(r *VerdictRecord) bool {
	info, err := os.Stat(w.base + "." + r.Work.Format)
	return err == nil && info.Size() == r.Bytes
}

// same tells whether a finished part is the wanted one, and lacks nothing that may be had.
func (w *verdictWriter) same(r *VerdictRecord) bool {
	may := w.again
	if may == nil {
		may = func(string) bool { return true }
	}
	return r.Work.unnamed() == w.work.unnamed() && !slices.ContainsFunc(r.Unread, may) && w.there(r)
}

// recover opens the lines that an earlier run wrote, if they are of the same work, and
// cuts off what is not whole.
func (w *verdictWriter) recover(known func(path string) bool) error {
	want, err := json.Marshal(w.work.unnamed())
	if err != nil {
		return err
	}
	have, err := disk.ReadFile(w.partial("work.json"), disk.Config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !bytes.Equal(have, want) {
		for _, file := range []string{"lines.jsonl", unreadFile, oldUnreadFile} {
			if err := os.Remove(w.partial(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := disk.Write(w.partial("work.json"), disk.Bytes(want)); err != nil {
			return err
		}
	}
	if w.lines, err = disk.OpenForWriting(w.partial("lines.jsonl"), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	if err := w.recoverUnread(); err != nil {
		return err
	}
	in := bufio.NewReaderSize(w.lines, 1<<20)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var l VerdictLine
		if json.Unmarshal(text, &l) != nil || !known(disk.DecodePath(l.Path)) {
			break
		}
		w.n++
		w.end += int64(len(text))
	}
	return w.lines.Truncate(w.end)
}

// Len returns how many images have a line.
func (w *verdictWriter) Len() int { return w.n }

// Finished tells whether the part was finished before.
func (w *verdictWriter) Finished() bool { return w.done != nil }

// Append adds the line of the next image, a JSON object that ends with a new line. It
// is written to the operating system at once, and synced within seconds.
func (w *verdictWriter) Append(line []byte) error {
	if _, err := w.lines.WriteAt(line, w.end); err != nil {
		return err
	}
	w.end += int64(len(line))
	w.n++
	if time.Since(w.saved) < 2*time.Second {
		return nil
	}
	w.saved = time.Now()
	return w.lines.Sync()
}

// Unread notes that a tar or table could not be read to its end for a reason that may pass,
// before the first line of another is appended.
func (w *verdictWriter) Unread(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noted[path] {
		return nil
	}
	w.note(path)
	text, err := json.Marshal(path)
	if err != nil {
		return err
	}
	list, err := disk.OpenForWriting(w.partial(unreadFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = list.Write(append(text, '\n'))
	return errors.Join(err, list.Sync(), list.Close())
}

// note adds to the list of Unread.
func (w *verdictWriter) note(path string) {
	if !w.noted[path] {
		w.noted[path] = true
		w.unread = append(w.unread, path)
	}
}

// recoverUnread reads the list of Unread of an interrupted run. It cuts off a line that was
// not written to its end.
func (w *verdictWriter) recoverUnread() error {
	text, err := disk.ReadFile(w.partial(oldUnreadFile), disk.Values)
	if err == nil {
		var old []string
		if err = json.Unmarshal(text, &old); err != nil {
			return fmt.Errorf("%s: %w", w.partial(oldUnreadFile), err)
		}
		for _, path := range old {
			w.note(path)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err = disk.ReadFile(w.partial(unreadFile), disk.Values)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range bytes.Lines(whole) {
		var path string
		if err := json.Unmarshal(line, &path); err != nil {
			return fmt.Errorf("%s: %w", w.partial(unreadFile), err)
		}
		w.note(path)
	}
	if len(whole) == len(text) {
		return nil
	}
	return os.Truncate(w.partial(unreadFile), int64(len(whole)))
}

const (
	// unreadFile is the list of Unread in a work folder, a JSON string in each line.
	unreadFile = "unread.jsonl"
	// oldUnreadFile is the list as earlier versions wrote it: one JSON array.
	oldUnreadFile = "unread.json"
)

// count counts the lines of a file in r, and returns the file of the part: that one, or a
// Parquet file that it makes of it.
func (w *verdictWriter) count(r *VerdictRecord, lines string) (string, error) {
	write := func(VerdictLine) error { return nil }
	from, end := lines, func() error { return nil }
	if w.work.Format == Parquet {
		table, err := os.Create(w.partial("lines.parquet"))
		if err != nil {
			return "", err
		}
		defer table.Close()
		var rows io.Closer
		if w.work.Thumbnails {
			rows, write = newVerdictTable(table, newPicturedLine, parquet.MaxRowsPerRowGroup(1<<13), columns.Pictures)
		} else {
			rows, write = newVerdictTable(table, newParquetLine, parquet.MaxRowsPerRowGroup(1<<17))
		}
		from = table.Name()
		end = func() error { return errors.Join(rows.Close(), table.Sync(), table.Close()) } // Windows renames no file that is open
	}
	for text, err := range linesOf(lines) {
		var l VerdictLine
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", lines, err)
		}
		r.count(l)
		if err := write(l); err != nil {
			return "", err
		}
	}
	return from, end()
}

// Commit finishes the part when all images have a line, and closes w.
func (w *verdictWriter) Commit() (*VerdictRecord, error) {
	if w.done != nil {
		return w.done, errors.Join(w.removeOther(), w.release(true))
	}
	if first, err := readRecord(w.base + ".json"); err == nil && w.same(first) {
		return first, w.release(true) // another run was first
	}
	if w.work.Images >= 0 && w.n != w.work.Images {
		return nil, fmt.Errorf("%d lines of %d images", w.n, w.work.Images)
	}
	if err := w.lines.Sync(); err != nil {
		return nil, err
	}
	r := &VerdictRecord{Version: version, Work: w.work, Unread: w.unread}
	r.init()
	from, err := w.count(r, w.partial("lines.jsonl"))
	if err != nil {
		return nil, err
	}
	if r.SHA256, err = disk.SHA256(from, disk.Values); err != nil {
		return nil, err
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	r.Bytes = info.Size()
	if err := w.lines.Close(); err != nil {
		return nil, err
	}
	w.lines = nil
	// The record of the part before remains until it is replaced. Its size tells that the file
	// is another; where it does not, the record is removed first.
	to := w.base + "." + w.work.Format
	if old, err := readRecord(w.base + ".json"); err == nil && old.Work.Format == w.work.Format && old.Bytes == r.Bytes && old.SHA256 != r.SHA256 {
		if err := os.Remove(w.base + ".json"); err != nil {
			return nil, err
		}
	}
	if err := disk.Rename(from, to); err != nil {
		return nil, err
	}
	if err := disk.SyncDir(filepath.Dir(to)); err != nil {
		return nil, err
	}
	err = disk.Write(w.base+".json", disk.Bytes(parts.JSON(r)))
	if err != nil {
		return nil, err
	}
	return r, errors.Join(w.removeOther(), w.release(true))
}

// removeOther removes the verdicts that the part had in another format.
func (w *verdictWriter) removeOther() error {
	for _, format := range []string{JSONL, Parquet} {
		if format == w.work.Format {
			continue
		}
		if err := os.Remove(w.base + "." + format); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close releases the lock; the lines remain for the next run. After Commit it does
// nothing.
func (w *verdictWriter) Close() error { return w.release(false) }

func (w *verdictWriter) release(done bool) error {
	if w.claim == nil {
		return nil
	}
	var errs []error
	if w.lines != nil {
		errs = append(errs, w.lines.Close())
	}
	// Also where Create failed before it looked at them, lines of an earlier run remain.
	info, err := os.Stat(w.partial("lines.jsonl"))
	if done || errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		errs = append(errs, w.claim.Clear())
	}
	errs = append(errs, w.claim.Release())
	w.claim, w.lines = nil, nil
	return errors.Join(errs...)
}

// linesOf gives the lines of a file.
func linesOf(path string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := disk.Open(path, disk.Values)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		for in := bufio.NewReaderSize(f, 1<<20); ; {
			text, err := in.ReadBytes('\n')
			if err == io.EOF || !yield(text, err) || err != nil {
				return
			}
		}
	}
}

// newVerdictTable begins a Parquet file of rows that are made of lines.
func newVerdictTable[T any](to io.Writer, row func(VerdictLine) T, o ...parquet.WriterOption) (io.Closer, func(VerdictLine) error) {
	rows := parquet.NewGenericWriter[T](to, append(o, parquet.CreatedBy("mlrbfn", "1", ""))...)
	return rows, func(l VerdictLine) error {
		_, err := rows.Write([]T{row(l)})
		return err
	}
}

// parquetLine is a row of a Parquet part. What an image that could not be read lacks is
// null, but ood is true, so that no filter for what is not OOD lets it pass.
type parquetLine struct {
	Path       string   `parquet:"path,zstd"`
	Class      *string  `parquet:"class,optional,dict"`
	Confidence *float64 `parquet:"confidence,optional"`
	Score      *float64 `parquet:"score,optional"`
	OOD        *bool    `parquet:"ood,optional"`
	PValue     *float64 `parquet:"p_value,optional"`
	Error      *string  `parquet:"error,optional"`
}

func newParquetLine(l VerdictLine) parquetLine {
	if l.Error != "" {
		unread := true
		return parquetLine{Path: l.Path, OOD: &unread, Error: &l.Error}
	}
	return parquetLine{Path: l.Path, Class: &l.Class, Confidence: &l.Confidence, Score: &l.Score, OOD: &l.OOD, PValue: &l.PValue}
}

// picturedLine is a row of a part with thumbnails.
type picturedLine struct {
	parquetLine
	Image *columns.Picture `parquet:"image,optional"`
	X     *float64         `parquet:"x,optional"`
	Y     *float64         `parquet:"y,optional"`
}

func newPicturedLine(l VerdictLine) picturedLine {
	return picturedLine{newParquetLine(l), columns.NewPicture(l.Thumbnail, l.Path), l.X, l.Y}
}
