// Package safetensors writes and reads files of named tensors in Hugging Face's
// safetensors format (https://github.com/huggingface/safetensors), with a
// checksum of the whole file, so that a file that was cut short or altered is
// refused.
//
// A file is the length of the header as eight bytes, little-endian; the header,
// a JSON object that gives for each tensor its dtype, shape and place in the
// data, and under __metadata__ a map of strings; then the data.
//
// The checksum is the metadata's key sha256. Its value is the SHA-256, as 64
// lower-case hexadecimal digits, of the whole file with 64 zeros ('0') in place
// of that value. Other readers take it for any other metadata.
package safetensors

import (
	"errors"
	"fmt"
	"sync"
)

// Element is a type that a tensor's values can have: F32, F64, I64 and U8.
type Element interface {
	float32 | float64 | int64 | uint8
}

// Tensor is a named array.
type Tensor struct {
	Name  string
	Shape []int // empty for a scalar
	Data  any   // []float32, []float64, []int64 or []uint8, in C order
}

// File is the contents of a safetensors file.
type File struct {
	Metadata map[string]string // without the checksum
	Tensors  []Tensor          // in the order of their data; do not change it after the first call of Tensor

	index  sync.Once
	byName map[string]int
}

// Tensor returns the tensor called name.
func (f *File) Tensor(name string) (t Tensor, found bool) {
	f.index.Do(func() {
		f.byName = make(map[string]int, len(f.Tensors))
		for i, t := range f.Tensors {
			f.byName[t.Name] = i
		}
	})
	i, found := f.byName[name]
	if found {
		t = f.Tensors[i]
	}
	return t, found
}

// Errors of Read, Parse and Get, to be tested for with errors.Is.
var (
	// ErrFormat says that the file is not well-formed, or of a kind that this
	// package does not read.
	ErrFormat = errors.New("not a safetensors file that can be read")
	// ErrChecksum says that the bytes are not those that were written.
	ErrChecksum = errors.New("the file was altered or damaged: its checksum does not match")
	// ErrNoChecksum says that the file is well-formed and has no checksum, so that
	// it was not written by this package or was altered since. The File is returned
	// with it.
	ErrNoChecksum = errors.New("the file has no checksum")
	// ErrNoTensor says that a tensor is absent.
	ErrNoTensor = errors.New("no such tensor")
)

func formatErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

// Get returns the values and the shape of the tensor called name. The error
// wraps ErrNoTensor if there is none, and ErrFormat if its values have another
// type.
func Get[T Element](f *File, name string) ([]T, []int, error) {
	t, found := f.Tensor(name)
	if !found {
		return nil, nil, fmt.Errorf("tensor %q: %w", name, ErrNoTensor)
	}
	values, ok := t.Data.([]T)
	if !ok {
		return nil, nil, formatErrorf("tensor %q holds %T, want %T", name, t.Data, values)
	}
	return values, t.Shape, nil
}

// Reader reads tensors of a file until one is absent or of another type, which Err
// says then.
type Reader struct {
	File *File
	Err  error
}

// Values returns the values of a tensor and its shape; nothing after an error.
func Values[T Element](r *Reader, name string) (values []T, shape []int) {
	if r.Err == nil {
		values, shape, r.Err = Get[T](r.File, name)
	}
	return values, shape
}

// Optional is Values of a tensor that may be absent; found is false then, and after an
// error.
func Optional[T Element](r *Reader, name string) (values []T, shape []int, found bool) {
	if _, found = r.File.Tensor(name); found {
		values, shape = Values[T](r, name)
	}
	return values, shape, found && r.Err == nil
}

const (
	metadataName = "__metadata__"
	checksumKey  = "sha256"
	checksumZero = "0000000000000000000000000000000000000000000000000000000000000000"
	// maxHeader is the bound that the reference implementation has.
	maxHeader = 100_000_000
	// Each of these takes some 300 bytes of memory, however few its file takes. A
	// detector has some twenty tensors for a head.
	maxTensors  = 1 << 16
	maxMetadata = 1 << 10
	maxDims     = 16
)

// dtypeSizes are the bytes of one value of the types that are read.
var dtypeSizes = map[string]int{"F64": 8, "I64": 8, "F32": 4, "U8": 1}
