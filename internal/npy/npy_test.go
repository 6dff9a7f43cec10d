package npy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"

	"pgregory.net/rapid"
)

// raw builds a file of any version around a header text, correct or not.
func raw(version byte, header string, data ...byte) []byte {
	out := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		out = binary.LittleEndian.AppendUint16(out, uint16(len(header)))
	} else {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(header)))
	}
	return append(append(out, header...), data...)
}

func dict(descr, order, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }   \n", descr, order, shape)
}

func TestReadHeader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file []byte
		want npy.Header
	}{
		{"matrix", raw(1, dict("<f4", "False", "(2, 3)")), npy.Header{DType: npy.Float32, Shape: []int{2, 3}}},
		{"version 2", raw(2, dict("<f8", "False", "(5,)")), npy.Header{DType: npy.Float64, Shape: []int{5}}},
		{"version 3", raw(3, dict("<i8", "False", "()")), npy.Header{DType: npy.Int64, Shape: []int{}}},
		{"Fortran order of one dimension", raw(1, dict("<i4", "True", "(7,)")), npy.Header{DType: npy.Int32, Shape: []int{7}}},
		{"other order, double quotes, no last comma", raw(1, `{"shape":(0,4),"descr":"<f4","fortran_order":False}`), npy.Header{DType: npy.Float32, Shape: []int{0, 4}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := bytes.NewReader(append(test.file, "rest"...))
			got, err := npy.ReadHeader(r)
			if err != nil {
				t.Fatal(err)
			}
			if got.DType != test.want.DType || !slices.Equal(got.Shape, test.want.Shape) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "rest" {
				t.Errorf("left %q to read", rest)
			}
		})
	}
}

func TestReadHeaderRefuses(t *testing.T) {
	t.Parallel()
	good := raw(1, dict("<f4", "False", "(2, 3)"))
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"nothing", nil, "cut short"},
		{"no version", good[:7], "cut short"},
		{"no length", good[:9], "cut short"},
		{"half a header", good[:30], "cut short"},
		{"another format", []byte("PK\x03\x04 a zip archive"), "begin with"},
		{"version 4", raw(4, dict("<f4", "False", "(2,)")), "version 4.0"},
		{"long header", raw(2, dict("<f4", "False", "(2,)")+strings.Repeat(" ", 64<<10)), "more than 65536"},
		{"big-endian", raw(1, dict(">f4", "False", "(2,)")), `type is ">f4"`},
		{"complex numbers", raw(1, dict("<c8", "False", "(2,)")), `type is "<c8"`},
		{"structured", raw(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"), "plain array"},
		{"Fortran order", raw(1, dict("<f4", "True", "(2, 3)")), "Fortran"},
		{"order is no bool", raw(1, dict("<f4", "Maybe", "(2,)")), "plain array"},
		{"negative", raw(1, dict("<f4", "False", "(-2,)")), "plain array"},
		{"shape is a number", raw(1, dict("<f4", "False", "(2)")), "plain array"},
		{"shape holds nothing", raw(1, dict("<f4", "False", "(,)")), "plain array"},
		{"more than an int", raw(1, dict("<f4", "False", "(9223372036854775808,)")), "plain array"},
		{"overflow", raw(1, dict("<f4", "False", "(4294967296, 2147483648)")), "too large"},
		{"overflow beside zero", raw(1, dict("<f4", "False", "(0, 9223372036854775807)")), "too large"},
		{"65 dimensions", raw(1, dict("<f4", "False", "("+strings.Repeat("1,", 65)+")")), "65 dimensions"},
		{"missing key", raw(1, "{'descr': '<f4', 'shape': (2,), }"), "lacks"},
		{"key twice", raw(1, "{'descr': '<f4', 'descr': '<f4', 'shape': (2,), }"), "twice"},
		{"extra key", raw(1, "{'descr': '<f4', 'order': 'C', 'shape': (2,), }"), "plain array"},
		{"words after it", raw(1, dict("<f4", "False", "(2,)")+"x"), "plain array"},
		{"no dict", raw(1, "import os"), "plain array"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h, err := npy.ReadHeader(bytes.NewReader(test.file))
			if !errors.Is(err, npy.ErrFormat) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %+v, %v; want an error with %q", h, err, test.want)
			}
		})
	}
	broken := errors.New("broken disk")
	if _, err := npy.ReadHeader(io.MultiReader(bytes.NewReader(good[:20]), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("a reader's own error became %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestFileSizeMustAgree compares headers with the file's size: a huge shape takes
// no memory, and a file that was cut or has grown is an error.
func TestFileSizeMustAgree(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"a petabyte", raw(1, dict("<f4", "False", "(281474976710656,)"), 1, 2, 3, 4), "cut short"},
		{"one byte less", raw(1, dict("<f4", "False", "(1,)"), 1, 2, 3), "cut short"},
		{"one byte more", raw(1, dict("<f4", "False", "(1,)"), 1, 2, 3, 4, 5), "too long"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.npy")
			if err := os.WriteFile(path, test.file, 0o666); err != nil {
				t.Fatal(err)
			}
			_, _, readErr := npy.Read[float32](path)
			_, mapErr := npy.Map(path)
			for _, err := range []error{readErr, mapErr} {
				if !errors.Is(err, npy.ErrFormat) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want %q and the path", err, test.want)
				}
			}
		})
	}
	if _, err := npy.Map("absent.npy"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if _, _, err := npy.Read[int64](t.TempDir()); err == nil {
		t.Error("a folder was read")
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		n, d := rapid.IntRange(0, 300).Draw(t, "n"), rapid.IntRange(0, 300).Draw(t, "d")
		one := rapid.Float32().Draw(t, "value")
		path := filepath.Join(dir, "a.npy")
		values := make([]float32, n*d)
		for i := range values {
			values[i] = one + float32(i)
		}
		if err := npy.WriteFile(path, values, n, d); err != nil {
			t.Fatal(err)
		}
		got, shape, err := npy.Read[float32](path)
		if err != nil || !slices.Equal(got, values) || !slices.Equal(shape, []int{n, d}) {
			t.Fatalf("read shape %v, %v", shape, err)
		}
		m, err := npy.Map(path)
		if err != nil || !slices.Equal(m.Data, values) || !slices.Equal(m.Shape, []int{n, d}) {
			t.Fatalf("map: %v", err)
		}
		if err := m.Close(); err != nil || m.Data != nil {
			t.Fatalf("close: %v", err)
		}
	})
}

func TestConversion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, file []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, file, 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	i4 := write("i4.npy", raw(1, dict("<i4", "False", "(2,)"), 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0))
	if got, _, err := npy.Read[int64](i4); err != nil || !slices.Equal(got, []int64{-1, 7}) {
		t.Errorf("int32 labels: %v, %v", got, err)
	}
	f8 := filepath.Join(dir, "f8.npy")
	for _, test := range []struct {
		value float64
		whole bool
	}{{3, true}, {-1, true}, {0.5, false}, {math.NaN(), false}, {math.Inf(1), false}, {1e300, false}, {1 << 63, false}} {
		if err := npy.WriteFile(f8, []float64{test.value}, 1); err != nil {
			t.Fatal(err)
		}
		labels, _, err := npy.Read[int64](f8)
		if ok := err == nil && labels[0] == int64(test.value); ok != test.whole {
			t.Errorf("%v as a label: %v, %v", test.value, labels, err)
		}
	}
	// A float64 array, and a float32 one that a header of odd length displaces,
	// cannot be viewed in place.
	if err := npy.WriteFile(f8, []float64{0.5, math.Inf(-1)}, 2); err != nil {
		t.Fatal(err)
	}
	odd := write("odd.npy", raw(1, dict("<f4", "False", "(2,)")+" ", 0, 0, 0, 0x3f, 0, 0, 0x80, 0xff))
	for _, path := range []string{f8, odd} {
		m, err := npy.Map(path)
		if err != nil || !slices.Equal(m.Data, []float32{0.5, float32(math.Inf(-1))}) {
			t.Errorf("%s: %v, %v", path, m, err)
			continue
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWriterKeepsToItsShape(t *testing.T) {
	t.Parallel()
	w, err := npy.NewWriter[int64](io.Discard, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]int64{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]int64{4, 5}); err == nil {
		t.Error("a fifth value was taken")
	}
	if err := w.Close(); err == nil {
		t.Error("a missing value went unnoticed")
	}
	for _, shape := range [][]int{{-1}, {math.MaxInt, 2}} {
		if _, err := npy.NewWriter[int64](io.Discard, shape...); err == nil {
			t.Errorf("shape %v was taken", shape)
		}
	}
	broken := errors.New("disk full")
	if _, err := npy.NewWriter[int64](failing{broken}, 1); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	path := filepath.Join(t.TempDir(), "a.npy")
	if err := npy.WriteFile(path, []float64{1}, 2); err == nil {
		t.Error("a short file was written")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestNumPy compares our files with NumPy's: NumPy must open ours, mapped, and
// numpy.save of the same array must give the same bytes.
func TestNumPy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name+".npy") }
	for _, err := range []error{
		npy.WriteFile(path("matrix"), []float32{1, -2.5, 0, 4, 5, 6}, 3, 2),
		npy.WriteFile(path("empty"), []float32{}, 0, 1280),
		npy.WriteFile(path("labels"), []int64{-1, 0, 1 << 40}, 3),
		npy.WriteFile(path("scores"), []float64{math.Pi, math.Inf(-1)}, 2),
		npy.WriteFile(path("cube"), make([]float32, 1234567), 1234567, 1, 1),
		npy.WriteFile(path("scalar"), []float64{7}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := testenv.Python(t, `
import sys, numpy as np
for name in "matrix empty labels scores cube scalar".split():
    file = f"{sys.argv[1]}/{name}.npy"
    a = np.load(file, mmap_mode="r" if name not in ("empty", "scalar") else None, allow_pickle=False)
    np.save(sys.argv[1] + "/again.npy", np.ascontiguousarray(a) if a.ndim else a)
    same = open(file, "rb").read() == open(sys.argv[1] + "/again.npy", "rb").read()
    print(name, a.dtype, a.shape, a.ravel()[:6].tolist(), same)
np.save(sys.argv[1] + "/theirs.npy", np.array([[1.5, 2], [3, 4]], "<f4"))
`, dir)
	want := `matrix float32 (3, 2) [1.0, -2.5, 0.0, 4.0, 5.0, 6.0] True
empty float32 (0, 1280) [] True
labels int64 (3,) [-1, 0, 1099511627776] True
scores float64 (2,) [3.141592653589793, -inf] True
cube float32 (1234567, 1, 1) [0.0, 0.0, 0.0, 0.0, 0.0, 0.0] True
scalar float64 () [7.0] True
`
	if got != want {
		t.Errorf("python printed\n%swant\n%s", got, want)
	}
	if values, shape, err := npy.Read[float32](path("theirs")); err != nil || !slices.Equal(values, []float32{1.5, 2, 3, 4}) || !slices.Equal(shape, []int{2, 2}) {
		t.Errorf("NumPy's own: %v %v %v", values, shape, err)
	}
}

// FuzzReadHeader checks that no header breaks the parser, and that an accepted
// header is the same after writing and reading.
func FuzzReadHeader(f *testing.F) {
	f.Add(raw(1, dict("<f4", "False", "(2, 3)")))
	f.Add(raw(2, dict("<i8", "True", "(2,)")))
	f.Add(raw(3, dict("<f8", "False", "()")))
	f.Add(raw(1, dict("<i4", "False", "(0, 99999999999)")))
	f.Add(raw(1, `{"shape":(1,2,3),"descr":"<f4","fortran_order":False}`))
	// What hostile files had: sizes that overflow, pickled objects, and code in the place
	// of a dictionary.
	for _, text := range []string{
		dict("<f4", "False", "(4294967296, 4294967296)"), dict("<f4", "False", "(9223372036854775807,)"), dict("<f4", "False", "(-1, 4)"),
		dict("<f4", "False", "(1e9,)"), dict("|O", "False", "(1,)"), dict("<f4", "False", strings.Repeat("(", 4000)), dict("[('a', '<f4')]", "False", "(1,)"),
		dict("<f4", "False", "("+strings.Repeat("1, ", 4000)+")"), `__import__("os").system("id")`, `{"shape": (1,), "shape": (2,)}`,
	} {
		f.Add(raw(1, text))
	}
	f.Add([]byte("\x93NUMPY\x02\x00\xff\xff\xff\xff{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := npy.ReadHeader(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, npy.ErrFormat) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		var again bytes.Buffer
		if _, err := npy.NewWriter[float64](&again, h.Shape...); err != nil {
			// A shape that just fits as float32 may not as float64.
			return
		}
		if again.Len()%64 != 0 {
			t.Fatalf("header of %d bytes", again.Len())
		}
		h2, err := npy.ReadHeader(&again)
		if err != nil || !slices.Equal(h2.Shape, h.Shape) {
			t.Fatalf("%v became %v, %v", h.Shape, h2.Shape, err)
		}
	})
}

func Example() {
	path := filepath.Join(os.TempDir(), "npy-example.npy")
	defer os.Remove(path)
	if err := npy.WriteFile(path, []float32{1, 2, 3, 4, 5, 6}, 3, 2); err != nil {
		fmt.Println(err)
		return
	}
	m, err := npy.Map(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	fmt.Println(m.Shape, m.Data[2:4])
	// Output: [3 2] [3 4]
}
