package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/internal/testenv"

	"pgregory.net/rapid"
)

var (
	metadata = map[string]string{"mlrbfn": `{"version":1,"classes":["cat","Ähre"]}`, "about": "a <test>"}
	tensors  = []safetensors.Tensor{
		{Name: "layers.0.centroids", Shape: []int{2, 3}, Data: []float32{1, -2, 0.5, 4, 5, float32(math.Inf(-1))}},
		{Name: "calibration.scores", Shape: []int{3}, Data: []float64{-1e300, 0, math.Pi}},
		{Name: "labels", Shape: []int{2, 1}, Data: []int64{-1, 1 << 60}},
		{Name: "mask", Shape: []int{3}, Data: []uint8{0, 1, 255}},
		{Name: "none", Shape: []int{0, 7}, Data: []float32{}},
		{Name: "scalar", Shape: []int{}, Data: []float32{7}},
	}
)

// write writes a file and fails the test on an error.
func write(t testing.TB, metadata map[string]string, tensors []safetensors.Tensor) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Write(&b, metadata, tensors); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// raw builds a file around any header.
func raw(header string, data ...byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

func byName(tensors []safetensors.Tensor) map[string]safetensors.Tensor {
	m := make(map[string]safetensors.Tensor)
	for _, t := range tensors {
		m[t.Name] = t
	}
	return m
}

func TestRoundTripThroughAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.safetensors")
	data := write(t, metadata, tensors)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(f.Metadata, metadata) {
		t.Errorf("metadata %v", f.Metadata)
	}
	if !reflect.DeepEqual(byName(f.Tensors), byName(tensors)) {
		t.Errorf("tensors %v", f.Tensors)
	}
	if begin := 8 + binary.LittleEndian.Uint64(data); begin%8 != 0 {
		t.Errorf("data begin at %d", begin)
	}
	if again := write(t, f.Metadata, f.Tensors); !bytes.Equal(again, data) {
		t.Error("what was read is not written the same")
	}
}

func TestBytesDoNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	want := write(t, metadata, tensors)
	rapid.Check(t, func(rt *rapid.T) {
		if !bytes.Equal(write(t, metadata, rapid.Permutation(tensors).Draw(rt, "order")), want) {
			rt.Error("other bytes")
		}
	})
}

func TestRoundTripOfAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String()
		meta := rapid.MapOf(text.Filter(func(s string) bool { return s != "sha256" }), text).Draw(rt, "metadata")
		names := rapid.SliceOfNDistinct(text.Filter(func(s string) bool { return s != "" && s != "__metadata__" }), 0, 6, rapid.ID[string]).Draw(rt, "names")
		var in []safetensors.Tensor
		for _, name := range names {
			n := rapid.IntRange(0, 5).Draw(rt, "n")
			data := rapid.SampledFrom([]any{make([]float32, n), make([]float64, n), make([]int64, n), make([]uint8, n)}).Draw(rt, "data")
			in = append(in, safetensors.Tensor{Name: name, Shape: []int{1, n}, Data: data})
		}
		f, err := safetensors.Parse(write(t, meta, in))
		if err != nil {
			rt.Fatal(err)
		}
		if !maps.Equal(f.Metadata, meta) || !reflect.DeepEqual(byName(f.Tensors), byName(in)) {
			rt.Fatalf("got %+v", f)
		}
	})
}

func TestGet(t *testing.T) {
	t.Parallel()
	f := &safetensors.File{Tensors: tensors}
	values, shape, err := safetensors.Get[int64](f, "labels")
	if err != nil || !slices.Equal(values, []int64{-1, 1 << 60}) || !slices.Equal(shape, []int{2, 1}) {
		t.Errorf("got %v %v %v", values, shape, err)
	}
	if _, _, err := safetensors.Get[int64](f, "label"); !errors.Is(err, safetensors.ErrNoTensor) || !strings.Contains(err.Error(), `"label"`) {
		t.Errorf("absent: %v", err)
	}
	if _, _, err := safetensors.Get[float64](f, "labels"); !errors.Is(err, safetensors.ErrFormat) || !strings.Contains(err.Error(), "[]int64, want []float64") {
		t.Errorf("of another type: %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	one := []float32{1}
	tests := []struct {
		name     string
		metadata map[string]string
		tensors  []safetensors.Tensor
		want     string
	}{
		{"no name", nil, []safetensors.Tensor{{Name: "", Data: one}}, `name ""`},
		{"reserved name", nil, []safetensors.Tensor{{Name: "__metadata__", Data: one}}, "__metadata__"},
		{"name is not UTF-8", nil, []safetensors.Tensor{{Name: "\xff", Data: one}}, `"\xff"`},
		{"same name", nil, []safetensors.Tensor{{Name: "a", Data: one}, {Name: "a", Data: one}}, `two tensors are called "a"`},
		{"unknown type", nil, []safetensors.Tensor{{Name: "a", Data: []int32{1}}}, "[]int32"},
		{"no data", nil, []safetensors.Tensor{{Name: "a"}}, "<nil>"},
		{"shape", nil, []safetensors.Tensor{{Name: "a", Shape: []int{2, 3}, Data: one}}, "shape [2 3] and 1 values"},
		{"negative shape", nil, []safetensors.Tensor{{Name: "a", Shape: []int{-1, 0}, Data: []float32{}}}, "shape [-1 0]"},
		{"reserved key", map[string]string{"sha256": "x"}, nil, "sha256"},
		{"key is not UTF-8", map[string]string{"\xff": "x"}, nil, `"\xff"`},
		{"value is not UTF-8", map[string]string{"x": "\xff"}, nil, `"\xff"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			err := safetensors.Write(&b, test.metadata, test.tensors)
			if err == nil || !strings.Contains(err.Error(), test.want) || b.Len() > 0 {
				t.Errorf("got %v and %d bytes, want %q", err, b.Len(), test.want)
			}
		})
	}
}

// list repeats a format for the numbers 0 … n−1.
func list(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ",")
}

// TestAsManyTensorsAsAFileCanHold finds each of them; the time must be proportional
// to their number.
func TestAsManyTensorsAsAFileCanHold(t *testing.T) {
	t.Parallel()
	many := make([]safetensors.Tensor, 1<<16)
	for i := range many {
		many[i] = safetensors.Tensor{Name: fmt.Sprint(i), Shape: []int{1}, Data: []int64{int64(i)}}
	}
	file, err := safetensors.Parse(write(t, nil, many))
	if err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if got, _, err := safetensors.Get[int64](file, fmt.Sprint(i)); err != nil || got[0] != int64(i) {
			t.Fatalf("tensor %d is %v: %v", i, got, err)
		}
	}
	if err := safetensors.Write(io.Discard, nil, append(many, safetensors.Tensor{Name: "x", Shape: []int{0}, Data: []uint8{}})); err == nil {
		t.Error("one more was written")
	}
}

// disk fails after some bytes.
type disk struct{ room int }

var errFull = errors.New("disk full")

func (d *disk) Write(p []byte) (int, error) {
	if d.room -= len(p); d.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteReportsEveryFailure(t *testing.T) {
	t.Parallel()
	size := len(write(t, metadata, tensors))
	for room := range size {
		if err := safetensors.Write(&disk{room}, metadata, tensors); !errors.Is(err, errFull) {
			t.Fatalf("with room for %d of %d bytes: %v", room, size, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const a = `"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`
	four := []byte{0, 0, 0, 0}
	entry := func(dtype, shape, offsets string) []byte {
		return raw(fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), four...)
	}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"nothing", nil, "0 bytes"},
		{"a length alone", raw("")[:7], "7 bytes"},
		{"length beyond the file", raw("{}")[:9], "1 follow"},
		{"length beyond all bounds", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "another format"},
		{"no header", raw(""), "not a JSON object"},
		{"a list", raw("[]"), "not a JSON object"},
		{"space first", raw(" {}"), "not a JSON object"},
		{"unfinished", raw(`{"a":`), "not a JSON object"},
		{"trailing comma", raw(`{` + a + `,}`), "not a JSON object"},
		{"two objects", raw(`{}{}`), "not a JSON object"},
		{"not UTF-8", raw("{\"\xff\":1}"), "not a JSON object"},
		{"same name", raw(`{`+a+`,`+a+`}`, four...), `"a" appears twice`},
		{"same name, escaped", raw(`{`+a+`,`+strings.Replace(a, "a", `\u0061`, 1)+`}`, four...), `"a" appears twice`},
		{"same field", raw(`{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four...), `"dtype" appears twice`},
		{"unknown field", raw(`{"a":{"dtype":"F32","shape":[1],"offsets":[0,4]}}`, four...), `"offsets": it is unknown`},
		{"missing field", raw(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, four...), "lacks"},
		{"tensor is a number", raw(`{"a":1}`), "want an object"},
		{"half precision", entry(`"F16"`, `[2]`, `[0,4]`), "it is F16"},
		{"dtype is null", entry(`null`, `[1]`, `[0,4]`), "want F32"},
		{"too many dimensions", entry(`"F32"`, `[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]`, `[0,4]`), "more than 16"},
		{"too many offsets", entry(`"F32"`, `[1]`, `[0,4,4]`), "more than 2"},
		{"too many keys", raw(`{"__metadata__":{` + list(1<<10+1, `"%d":""`) + `}}`), "more than 1024 keys"},
		{"too many tensors", raw(`{` + list(160_000, `"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`) + `}`), "more than 65536 tensors"},
		{"shape is null", entry(`"F32"`, `null`, `[0,4]`), "want an array"},
		{"shape holds null", entry(`"F32"`, `[null]`, `[0,4]`), "want sizes"},
		{"shape below zero", entry(`"F32"`, `[-1]`, `[0,4]`), "want sizes"},
		{"shape is a fraction", entry(`"F32"`, `[1.0]`, `[0,4]`), "want sizes"},
		{"shape above an int", entry(`"F32"`, `[9223372036854775808]`, `[0,4]`), "want sizes"},
		{"shape overflows", entry(`"F32"`, `[4294967296,1073741824]`, `[0,4]`), "too large"},
		{"shape overflows to the right size", entry(`"F32"`, `[4294967297,4294967296,1]`, `[0,4]`), "too large"},
		{"shape overflows beside zero", entry(`"F32"`, `[0,9223372036854775807]`, `[0,4]`), "too large"},
		{"shape too small", entry(`"F32"`, `[0]`, `[0,4]`), "takes 0"},
		{"shape too big", entry(`"F64"`, `[1]`, `[0,4]`), "takes 8"},
		{"one offset", entry(`"F32"`, `[1]`, `[0]`), "1 numbers"},
		{"offsets reversed", entry(`"F32"`, `[1]`, `[4,0]`), "lies at 4 to 0"},
		{"offsets backwards", entry(`"F32"`, `[1]`, `[0,-4]`), "want sizes"},
		{"offsets beyond the end", entry(`"F32"`, `[2]`, `[0,8]`), "lies at 0 to 8"},
		{"hole at the front", entry(`"F32"`, `[0]`, `[4,4]`), "begin at 0"},
		{"hole at the back", entry(`"U8"`, `[3]`, `[0,3]`), "take 3 bytes, 4 are there"},
		{"overlap", raw(`{`+a+`,"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 0, 0, 0, 0, 0), "begin at 4"},
		{"two at one place", raw(`{`+a+`,`+strings.Replace(a, "a", "b", 1)+`}`, four...), "begin at 4"},
		{"metadata is a string", raw(`{"__metadata__":"x"}`), "want an object"},
		{"metadata twice", raw(`{"__metadata__":{},"__metadata__":{}}`), "twice"},
		{"metadata key twice", raw(`{"__metadata__":{"k":"1","k":"2"}}`), `"k" appears twice`},
		{"metadata value is a number", raw(`{"__metadata__":{"k":1}}`), "want a string"},
		{"checksum is short", raw(`{"__metadata__":{"sha256":"00"}}`), "64 digits"},
		{"checksum is escaped", raw(`{"__metadata__":{"sha256":"\u0030` + strings.Repeat("0", 63) + `"}}`), "64 digits"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, err := safetensors.Parse(test.file)
			if !errors.Is(err, safetensors.ErrFormat) || !strings.Contains(err.Error(), test.want) || f != nil {
				t.Errorf("got %v, %v; want %q", f, err, test.want)
			}
		})
	}
}

func TestNoChecksum(t *testing.T) {
	t.Parallel()
	f, err := safetensors.Parse(raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  `, 3, 4))
	if !errors.Is(err, safetensors.ErrNoChecksum) || f == nil || !reflect.DeepEqual(f.Tensors[0].Data, []uint8{3, 4}) {
		t.Errorf("got %v, %v", f, err)
	}
}

// TestEveryDamageIsNoticed flips every bit, alone and all of a byte together,
// and cuts the file at every length.
func TestEveryDamageIsNoticed(t *testing.T) {
	t.Parallel()
	good := write(t, map[string]string{"mlrbfn": "{}"}, tensors[:3])
	check := func(what string, data []byte) {
		t.Helper()
		if _, err := safetensors.Parse(data); err == nil {
			t.Errorf("%s went unnoticed", what)
		}
	}
	for i := range good {
		check(fmt.Sprintf("the cut at %d", i), good[:i])
		for _, x := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255} {
			bad := bytes.Clone(good)
			bad[i] ^= x
			check(fmt.Sprintf("byte %d (%q) ^ %#x", i, good[i], x), bad)
		}
	}
	check("a byte at the end", append(bytes.Clone(good), 0))

	bad := bytes.Clone(good)
	bad[len(bad)-1] ^= 1
	if _, err := safetensors.Parse(bad); !errors.Is(err, safetensors.ErrChecksum) {
		t.Errorf("damaged data: %v", err)
	}
	if _, err := safetensors.Parse(bytes.Replace(good, []byte("sha256"), []byte("sha257"), 1)); !errors.Is(err, safetensors.ErrNoChecksum) {
		t.Errorf("checksum by another name: %v", err)
	}
}

func TestReadNamesTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := safetensors.Read(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	path := filepath.Join(dir, "bad.safetensors")
	for _, data := range [][]byte{nil, []byte("PK\x03\x04 a zip archive")} {
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := safetensors.Read(path); !errors.Is(err, safetensors.ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", data, err)
		}
	}
	if _, err := safetensors.Read(dir); err == nil {
		t.Error("a folder was read")
	}
}

// TestPython compares our files with those of Python's safetensors, in both
// directions, and computes the checksum in Python as the package comment says.
func TestPython(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ours"), write(t, metadata, tensors), 0o666); err != nil {
		t.Fatal(err)
	}
	got := testenv.Python(t, `
import hashlib, sys, numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
with safe_open(sys.argv[1] + "/ours", "np") as f:
    meta = f.metadata()
    for name in sorted(f.keys()):
        a = f.get_tensor(name)
        print(name, a.dtype, a.shape, a.ravel().tolist())
    print(meta["mlrbfn"], meta["about"])
data = open(sys.argv[1] + "/ours", "rb").read()
digest = meta["sha256"]
print(hashlib.sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest)
save_file({"b": np.arange(3.0), "a": np.ones((2, 2), "f4")}, sys.argv[1] + "/theirs", {"k": "v"})
`, dir)
	want := `calibration.scores float64 (3,) [-1e+300, 0.0, 3.141592653589793]
labels int64 (2, 1) [-1, 1152921504606846976]
layers.0.centroids float32 (2, 3) [1.0, -2.0, 0.5, 4.0, 5.0, -inf]
mask uint8 (3,) [0, 1, 255]
none float32 (0, 7) []
scalar float32 () [7.0]
{"version":1,"classes":["cat","Ähre"]} a <test>
True
`
	if got != want {
		t.Errorf("python printed\n%swant\n%s", got, want)
	}
	f, err := safetensors.Read(filepath.Join(dir, "theirs"))
	if !errors.Is(err, safetensors.ErrNoChecksum) {
		t.Fatalf("a file without checksum: %v", err)
	}
	if b, _, err := safetensors.Get[float64](f, "b"); err != nil || !slices.Equal(b, []float64{0, 1, 2}) || f.Metadata["k"] != "v" {
		t.Errorf("theirs: %v %v %v", b, f.Metadata, err)
	}
}

// FuzzParse checks that no file breaks the parser, and that what it accepts can
// be written and read again.
func FuzzParse(f *testing.F) {
	f.Add(write(f, metadata, tensors))
	f.Add(write(f, nil, nil))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 3, 4))
	f.Add(raw(`{"a":{"dtype":"F64","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}}`))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"))
	f.Add(raw(`{"a":{"dtype":"F32","shape":[4294967296,1073741824],"data_offsets":[0,0]}}`))
	// What hostile files had: places that overlap, lie outside or count twice, sizes that
	// overflow, headers that are no object of tensors, and many tensors.
	for _, header := range []string{
		`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`,
		`{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}}`,
		`{"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}}`,
		`{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`,
		`{"a":{"dtype":"F32","shape":[-1,-4],"data_offsets":[0,16]}}`,
		`{"a":{"dtype":"F32","shape":[1e18],"data_offsets":[0,4]}}`,
		`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"":{"dtype":"F16","shape":[0],"data_offsets":[4,4]}}`,
		`{"__metadata__":{"mlrbfn":{"version":4}}}`, `{"__metadata__":null,"a":null}`, `[]`, `null`,
		`{"a":` + strings.Repeat(`{"a":`, 2000) + `1` + strings.Repeat(`}`, 2001),
		`{` + strings.Repeat(`"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},`, 300) + `"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`,
	} {
		f.Add(raw(header, make([]byte, 16)...))
	}
	f.Add(raw(`{"__metadata__":{"k":"v"},"b":{"dtype":"I64","shape":[],"data_offsets":[0,8]}} `, 1, 2, 3, 4, 5, 6, 7, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := safetensors.Parse(data)
		if file == nil {
			if !errors.Is(err, safetensors.ErrFormat) && !errors.Is(err, safetensors.ErrChecksum) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		var b bytes.Buffer
		if err := safetensors.Write(&b, file.Metadata, file.Tensors); err != nil {
			// The format allows an empty name, which we do not write.
			return
		}
		again, err := safetensors.Parse(b.Bytes())
		if err != nil || !maps.Equal(again.Metadata, file.Metadata) || len(again.Tensors) != len(file.Tensors) {
			t.Fatalf("written and read again: %v", err)
		}
	})
}

func Example() {
	var file bytes.Buffer
	err := safetensors.Write(&file, map[string]string{"classes": "cat,dog"}, []safetensors.Tensor{
		{Name: "layers.0.centroids", Shape: []int{2, 2}, Data: []float32{0, 1, 1, 0}},
		{Name: "layers.0.beta", Shape: []int{2}, Data: []float32{0.5, 0.25}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.Parse(file.Bytes())
	if err != nil {
		fmt.Println(err)
		return
	}
	beta, shape, err := safetensors.Get[float32](f, "layers.0.beta")
	fmt.Println(f.Metadata["classes"], beta, shape, err)

	file.Bytes()[file.Len()-1] ^= 1
	_, err = safetensors.Parse(file.Bytes())
	fmt.Println(err)
	// Output:
	// cat,dog [0.5 0.25] [2] <nil>
	// the file was altered or damaged: its checksum does not match
}
