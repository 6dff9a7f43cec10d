package npy_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// TestHalf: every float16 is read exactly, and every float32 becomes the nearest one.
// The numbers of the table are numpy.float16's.
func TestHalf(t *testing.T) {
	t.Parallel()
	for bits, want := range map[uint16]float32{
		0x0001: 5.960464477539063e-08, 0x03ff: 6.097555160522461e-05, 0x0400: 6.103515625e-05, 0x3555: 0.333251953125,
		0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x8000: float32(math.Copysign(0, -1)), 0x7c00: float32(math.Inf(1)),
	} {
		if got := npy.Widen(bits); math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("%#04x is %g, want %g", bits, got, want)
		}
	}
	for bits := range uint16(0x7c00) { // all finite ones that are not negative
		v := npy.Widen(bits)
		if npy.Narrow(v) != bits || npy.Narrow(-v) != bits|0x8000 {
			t.Fatalf("%g becomes %#04x, want %#04x", v, npy.Narrow(v), bits)
		}
		next := npy.Widen(bits + 1)
		if bits == 0x7bff {
			next = 65536 // as if exponents went on
		}
		middle := (v + next) / 2
		even := bits + bits&1
		for _, c := range []struct {
			v    float32
			want uint16
		}{{math.Nextafter32(middle, 0), bits}, {middle, even}, {math.Nextafter32(middle, math.MaxFloat32), bits + 1}} {
			if got := npy.Narrow(c.v); got != c.want {
				t.Fatalf("%g becomes %#04x, want %#04x", c.v, got, c.want)
			}
		}
	}
	if v := npy.Widen(npy.Narrow(float32(math.NaN()))); v == v {
		t.Errorf("NaN becomes %g", v)
	}
}

// TestHalfFile: a file of float16 is mapped and read alike, and a value that it cannot
// hold is an error.
func TestHalfFile(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	w, err := npy.NewHalfWriter(&file, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]float32{1, 2, 3, 65519}); err != nil {
		t.Fatal(err)
	}
	if w.Close() == nil {
		t.Error("values are missing, and it is said to be complete")
	}
	if err := w.Write([]float32{0, 65520}); err == nil {
		t.Error("65520 was written")
	}
	file.Truncate(file.Len())
	file.Write([]byte{0, 0x34, 1, 0x80})
	path := filepath.Join(t.TempDir(), "half.npy")
	if err := os.WriteFile(path, file.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	want := []float32{1, 2, 3, 65504, 0.25, -0x1p-24}
	all, _, err := npy.Read[float32](path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := npy.Map(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Data != nil || m.Len() != 6 {
		t.Errorf("%d values, Data %v", m.Len(), m.Data)
	}
	m.Scatter()
	m.Need(2, 6)
	values, one := m.Values(0, 6), make([]float32, 1)
	for i, v := range want {
		if err := m.Read(one, i); err != nil || all[i] != v || values[i] != v || one[0] != v {
			t.Errorf("value %d is %g, %g and %g, want %g: %v", i, all[i], values[i], one[0], v, err)
		}
	}
	m.Release()
}
