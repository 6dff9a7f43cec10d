package features

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Names of a journal's files.
const (
	journalHeadFile = "journal.json"  // how the rows were made
	journalRowsFile = "rows.f32"      // rows, one after another
	journalLineFile = "rows.jsonl"    // one journalLine for each row
	journalMachines = "machines.json" // the machines that rows were made on
	journalProbe    = "probe.json"    // what the model answered on the first of them
	newSuffix       = ".new"          // suffix of a file while it is written
)

// journalVersion is the version of the journal's format, which differs from that of a set.
const journalVersion = 1

// syncEvery is how much work a power failure may cost. A killed process loses
// nothing: every row is written immediately, without a buffer.
const syncEvery = 2 * time.Second

// journalHead says for which set rows can be used. The root is part of it because
// paths are relative to it.
type journalHead struct {
	Version     int    `json:"version"`
	Fingerprint string `json:"fingerprint"`
	Root        string `json:"root"`
	D           int    `json:"d"`
	LogitsDim   int    `json:"logits_dim"`
}

// journalLine describes a row. Its Path is encoded.
type journalLine struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	MTime  int64  `json:"mtime"`
	SHA256 string `json:"sha256"`
	CRC    uint32 `json:"crc"` // see sum
}

// image returns the image of the line.
func (l journalLine) image() Image {
	return Image{Path: disk.DecodePercent(l.Path), Bytes: l.Bytes, MTime: l.MTime, SHA256: l.SHA256}
}

// sum returns the CRC-32C of a row and of its line.
func (l journalLine) sum(row []byte) uint32 {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	h.Write(row)
	fmt.Fprintf(h, "%q %d %d %q", l.Path, l.Bytes, l.MTime, l.SHA256)
	return h.Sum32()
}

// journal holds rows in the order in which they were made. It is only appended to.
// After a crash it is valid up to the first line that is incomplete or whose row is
// missing or differs.
type journal struct {
	rows, lines *disk.File
	marks       marks  // of the lines
	n           int    // rows
	recovered   bool   // whether recover has read all that is valid
	end         int64  // of the lines, in bytes
	row         []byte // buffer of a row's size
	synced      time.Time
}

// openJournal opens the journal in the folder dir, or starts one; see recover. A journal
// with another head is removed if it has no rows or with force; otherwise it is an error.
func openJournal(dir string, head journalHead, force bool) (_ *journal, err error) {
	want, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	headPath := filepath.Join(dir, journalHeadFile)
	have, err := disk.ReadFile(headPath, disk.Config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if !bytes.Equal(have, want) {
		rows, err := os.Stat(filepath.Join(dir, journalRowsFile))
		if err == nil && rows.Size() > 0 && !force {
			return nil, options.Errorf("Force", "it is needed to delete %s, an unfinished extraction %w or %w; or write to another folder", dir, ErrFingerprint, ErrOtherImages)
		}
		if err := removeJournal(dir); err != nil {
			return nil, err
		}
		if err := writeJournalFile(dir, journalHeadFile, want); err != nil {
			return nil, err
		}
	}
	j := &journal{row: make([]byte, 4*(head.D+head.LogitsDim)), synced: time.Now()}
	defer disk.OnError(&err, j.close)
	if j.rows, err = disk.OpenForWriting(filepath.Join(dir, journalRowsFile), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if j.lines, err = disk.OpenForWriting(filepath.Join(dir, journalLineFile), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	return j, nil
}

// writeJournalFile replaces a file in the folder dir as a whole, or does not change
// it.
func writeJournalFile(dir, name string, content []byte) error {
	path := filepath.Join(dir, name)
	// The temporary name is fixed, so that the next run replaces the file of a killed one.
	if err := disk.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := disk.Create(path+newSuffix, disk.Bytes(content))
	if err == nil {
		err = disk.Rename(path+newSuffix, path)
	}
	if err == nil {
		err = disk.SyncDir(dir)
	}
	return err
}

// readNote returns what writeNote wrote into a file of the journal in dir; nil if it did not.
func readNote[T []Machine | *Probe](dir, name string) (note T, err error) {
	data, err := disk.ReadFile(filepath.Join(dir, name), disk.Meta)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &note)
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal in %s: %w", dir, err)
	}
	return note, nil
}

func writeNote(dir, name string, note any) error {
	data, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return writeJournalFile(dir, name, data)
}

// recover reads the valid part, calls each for every line of it, and cuts off the rest.
func (j *journal) recover(each func(journalLine) error) error {
	rows, lines := bufio.NewReaderSize(j.rows, 1<<17), bufio.NewReaderSize(j.lines, maxLine)
	for {
		text, err := lines.ReadSlice('\n')
		if err == nil {
			_, err = io.ReadFull(rows, j.row)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF || err == bufio.ErrBufferFull {
			break
		}
		if err != nil {
			return err
		}
		var line journalLine
		if json.Unmarshal(text, &line) != nil || line.sum(j.row) != line.CRC {
			break
		}
		if err := each(line); err != nil {
			return err
		}
		j.marks.add(j.n, j.end)
		j.n++
		j.end += int64(len(text))
	}
	if err := j.rows.Truncate(j.at(j.n)); err != nil {
		return err
	}
	if err := j.lines.Truncate(j.end); err != nil {
		return err
	}
	j.recovered = true
	return nil
}

// at returns the place of a row.
func (j *journal) at(row int) int64 { return int64(row) * int64(len(j.row)) }

// append adds a row. After a failure the journal is as it was before.
func (j *journal) append(line journalLine, parts ...[]float32) error {
	row := j.row[:0]
	var err error
	for _, part := range parts {
		if row, err = binary.Append(row, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	line.CRC = line.sum(row)
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if _, err := j.rows.WriteAt(row, j.at(j.n)); err != nil {
		return err
	}
	if _, err := j.lines.WriteAt(text, j.end); err != nil {
		return err
	}
	j.marks.add(j.n, j.end)
	j.n++
	j.end += int64(len(text))
	if time.Since(j.synced) < syncEvery {
		return nil
	}
	return j.sync()
}

func (j *journal) sync() error {
	j.synced = time.Now()
	return errors.Join(j.rows.Sync(), j.lines.Sync())
}

// read fills values with the columns of a row from first on.
func (j *journal) read(values []float32, row, first int) error {
	b := j.row[:4*len(values)]
	if _, err := j.rows.ReadAt(b, j.at(row)+4*int64(first)); err != nil {
		return err
	}
	_, err := binary.Decode(b, binary.LittleEndian, values)
	return err
}

// close closes what is open.
func (j *journal) close() error {
	var errs []error
	for _, f := range []*disk.File{j.rows, j.lines} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// removeJournal removes the journal in the folder dir, if there is one.
func removeJournal(dir string) error {
	// The head is removed last: without rows it is harmless.
	for _, name := range []string{sourcesFile, journalLineFile, journalRowsFile, journalMachines + newSuffix, journalMachines, journalProbe + newSuffix, journalProbe, journalHeadFile + newSuffix, journalHeadFile} {
		if err := disk.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
