package native

import (
	"fmt"
	"unsafe"
)

// number is a type of the values of buffers.
type number interface {
	uint8 | float32 | float64 | int64
}

// view returns the values of a buffer in place; nil for one that the caller left out.
func view[T number](buffers []Buffer, i int) ([]T, error) {
	if i >= len(buffers) || len(buffers[i]) == 0 {
		return nil, nil
	}
	b := buffers[i]
	size := int(unsafe.Sizeof(T(0)))
	if len(b)%size != 0 || uintptr(unsafe.Pointer(&b[0]))%uintptr(size) != 0 {
		return nil, fmt.Errorf("buffer %d has %d bytes or is not aligned", i, len(b))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/size), nil
}

// roomFor returns a buffer that must have room for n values; nil for one that the caller left
// out.
func roomFor[T number](buffers []Buffer, i, n int) ([]T, error) {
	to, err := view[T](buffers, i)
	if err == nil && to != nil && len(to) != n {
		err = fmt.Errorf("buffer %d has room for %d values, and there are %d", i, len(to), n)
	}
	return to, err
}

// fill copies values into a buffer, unless the caller left it out.
func fill[T number](buffers []Buffer, i int, values []T) error {
	to, err := roomFor[T](buffers, i, len(values))
	if err != nil {
		return err
	}
	copy(to, values)
	return nil
}
