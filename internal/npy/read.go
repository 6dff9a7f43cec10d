package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"unsafe"

	"github.com/edsrzf/mmap-go"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Element is a Go type that values are read into and written from.
type Element interface{ float32 | float64 | int64 }

// Read reads a whole .npy file and returns its values, in C order, and its
// shape.
//
// Values stored in another of the package's types are converted to T: a float64
// is rounded to float32; a float becomes an int64 only if it is a whole number,
// so that labels saved as floats can be read. Errors name the file; those about
// its content wrap ErrFormat. The size that the header promises is compared
// with the file's before memory is taken.
func Read[T Element](path string) ([]T, []int, error) { return ReadUpTo[T](path, math.MaxInt) }

// ReadUpTo is Read for an array of up to most values. If there are more, it takes
// no memory and returns an error that wraps ErrFormat.
func ReadUpTo[T Element](path string, most int) ([]T, []int, error) {
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if f.count > most {
		return nil, nil, fmt.Errorf("read %s: %w", path, formatErrorf("its shape %v has more than the %d values that are wanted", f.Shape, most))
	}
	values, err := read[T](f)
	if err != nil {
		return nil, nil, err
	}
	return values, f.Shape, nil
}

// file is an open .npy file whose size agrees with its header. Its position is at
// the first value.
type file struct {
	*os.File
	Header
	offset int64 // of the first value
	count  int   // of values
}

func open(path string) (_ *file, err error) {
	osFile, err := disk.Open(path, disk.Values)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s: %w", path, errors.Join(err, osFile.Close()))
		}
	}()
	f := &file{File: osFile}
	if f.Header, f.offset, err = readHeader(osFile); err != nil {
		return nil, err
	}
	if f.count, err = f.Header.count(); err != nil {
		return nil, err
	}
	info, err := osFile.Stat()
	if err != nil {
		return nil, err
	}
	have, want := info.Size()-f.offset, int64(f.count*f.DType.size())
	if have != want {
		what := "cut short"
		if have > want {
			what = "too long"
		}
		return nil, formatErrorf("it is %s: %d bytes follow the header, shape %v of %s takes %d", what, have, f.Shape, f.DType, want)
	}
	return f, nil
}

// read reads all values, by blocks.
func read[T Element](f *file) ([]T, error) {
	values, size := make([]T, f.count), f.DType.size()
	block := make([]byte, min(f.count*size, 1<<18))
	for done := 0; done < f.count; {
		n := min(len(block)/size, f.count-done)
		if _, err := io.ReadFull(f, block[:n*size]); err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		if err := decode(values[done:done+n], block, f.DType); err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		done += n
	}
	return values, nil
}

func decode[T Element](dst []T, src []byte, dtype DType) error {
	whole := T(1)/2 == 0
	for i := range dst {
		var f float64
		switch dtype {
		case Int32:
			dst[i] = T(int32(binary.LittleEndian.Uint32(src[4*i:])))
			continue
		case Int64:
			dst[i] = T(int64(binary.LittleEndian.Uint64(src[8*i:])))
			continue
		case Float16:
			f = float64(widen(binary.LittleEndian.Uint16(src[2*i:])))
		case Float32:
			f = float64(math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
		case Float64:
			f = math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:]))
		}
		if whole && (f != math.Trunc(f) || math.Abs(f) > 1<<53) {
			return formatErrorf("its value %v is not a whole number", f)
		}
		dst[i] = T(f)
	}
	return nil
}

// Mapped is an array in a mapped file. What it returns must not be written to,
// nor read after Close, nor while another program cuts the file short.
type Mapped struct {
	Data  []float32 // C order; nil for float16, of which Values and Read convert parts
	Shape []int
	half  []uint16  // the values of float16
	mem   mmap.MMap // nil if the values were read
	file  *os.File  // that mem is the map of
	first int       // bytes of mem before Data
	temp  string    // file to remove on Close; "" for none
}

// Map maps an .npy file into memory, read-only, so that arrays larger than memory
// can be used and several processes share one copy. Values of float16 stay as they
// are in the file. If other values cannot be viewed in place (they are neither
// float32 nor float16 or not aligned, or the machine is big-endian), they are read as
// by Read. Errors are those of Read.
func Map(path string) (*Mapped, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	m := &Mapped{Shape: f.Shape, file: f.File}
	defer func() {
		if m.mem == nil {
			f.Close()
		}
	}()
	littleEndian := binary.NativeEndian.Uint16([]byte{1, 0}) == 1
	if f.count > 0 && (f.DType == Float32 || f.DType == Float16) && f.offset%4 == 0 && littleEndian {
		if m.mem, err = mmap.Map(f.File, mmap.RDONLY, 0); err != nil {
			return nil, fmt.Errorf("map %s: %w", path, err)
		}
		m.first = int(f.offset)
		if first := unsafe.Pointer(&m.mem[m.first]); f.DType == Float16 {
			m.half = unsafe.Slice((*uint16)(first), f.count)
		} else {
			m.Data = unsafe.Slice((*float32)(first), f.count)
		}
		return m, nil
	}
	if m.Data, err = read[float32](f); err != nil {
		return nil, err
	}
	return m, nil
}

// Len returns the number of values.
func (m *Mapped) Len() int { return max(len(m.Data), len(m.half)) }

// Values returns the values from … to−1: a part of Data, or a copy of float16.
func (m *Mapped) Values(from, to int) []float32 {
	if m.half == nil {
		return m.Data[from:to:to]
	}
	values := make([]float32, to-from)
	for i, h := range m.half[from:to] {
		values[i] = widen(h)
	}
	return values
}

// Read copies len(dst) values from the index from on. For single rows of a file that
// is larger than memory it is better than Data, of which the system may map
// megabytes for one value.
func (m *Mapped) Read(dst []float32, from int) error {
	if m.half != nil {
		bytes := make([]byte, 2*len(dst))
		if _, err := m.file.ReadAt(bytes, int64(m.first+2*from)); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = widen(binary.LittleEndian.Uint16(bytes[2*i:]))
		}
		return nil
	}
	if m.mem == nil || len(dst) == 0 {
		copy(dst, m.Data[from:])
		return nil
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*len(dst))
	_, err := m.file.ReadAt(bytes, int64(m.first+4*from))
	return err
}

// Scatter tells the system that Read will read values at random places, so that it
// should not read ahead except as Need says.
func (m *Mapped) Scatter() {
	if m.mem != nil {
		scatter(m.file)
	}
}

// Need tells the system that the values from … to−1 will be read soon, so that
// it reads them from the disk meanwhile.
func (m *Mapped) Need(from, to int) {
	size := 4 // bytes of a value
	if m.half != nil {
		size = 2
	}
	if m.mem != nil {
		need(m.mem, m.first+size*from, m.first+size*to)
	}
}

// Release frees the memory of the pages read so far. Later reads take them from the
// system's cache or from the disk. Any goroutine may read Data meanwhile.
func (m *Mapped) Release() {
	if m.mem != nil {
		release(m.mem)
	}
}

// Close releases the mapping and sets Data to nil. A second call does nothing.
func (m *Mapped) Close() error {
	m.Data, m.half = nil, nil
	if m.mem == nil {
		return nil
	}
	err := errors.Join(m.mem.Unmap(), m.file.Close()) // the former makes mem nil
	if m.temp != "" {
		err = errors.Join(err, os.Remove(m.temp))
	}
	return err
}

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
