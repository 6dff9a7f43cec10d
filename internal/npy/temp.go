package npy

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/edsrzf/mmap-go"
)

// Temp is a float32 matrix that is being written to a temporary file without a
// header. The file disappears when it is closed; if the system allows files without
// a name, also when the program ends.
type Temp struct {
	f    *os.File
	name string // if the file still has a name
	n, d int
}

// CreateTemp makes the file for n rows of d values in the folder dir, "" being
// the system's for temporary files.
func CreateTemp(dir string, n, d int) (*Temp, error) {
	f, err := os.CreateTemp(dir, ".mlrbfn.*.tmp")
	if err != nil {
		return nil, err
	}
	t := &Temp{f: f, n: n, d: d}
	if os.Remove(f.Name()) != nil { // an open file on Windows
		t.name = f.Name()
	}
	return t, nil
}

// Write puts rows into their place, the first of them being row at. It may be
// called from several goroutines, for different rows.
func (t *Temp) Write(at int, rows []float32) error {
	if len(rows) == 0 {
		return nil
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&rows[0])), 4*len(rows))
	_, err := t.f.WriteAt(bytes, int64(4*t.d*at))
	return err
}

// Map maps the matrix when all rows are written. The Mapped then owns the file and
// removes it on Close. After an error the file is removed.
func (t *Temp) Map() (*Mapped, error) {
	info, err := t.f.Stat()
	if want := int64(4 * t.n * t.d); err == nil && info.Size() != want {
		err = fmt.Errorf("%d bytes of a matrix of %d are written", info.Size(), want)
	}
	m := &Mapped{Shape: []int{t.n, t.d}, file: t.f, temp: t.name}
	if err == nil {
		m.mem, err = mmap.Map(t.f, mmap.RDONLY, 0)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	m.Data = unsafe.Slice((*float32)(unsafe.Pointer(&m.mem[0])), t.n*t.d)
	return m, nil
}

// Close removes the file of a matrix that will not be mapped.
func (t *Temp) Close() error {
	err := t.f.Close()
	if t.name != "" {
		err = errors.Join(err, os.Remove(t.name))
	}
	return err
}
