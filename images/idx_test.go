package images

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// file builds an idx file.
func file(magic string, values []byte, sizes ...uint32) []byte {
	data := []byte(magic)
	for _, size := range sizes {
		data = binary.BigEndian.AppendUint32(data, size)
	}
	return append(data, values...)
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, rows, cols := rapid.IntRange(0, 5).Draw(rt, "n"), rapid.IntRange(1, 6).Draw(rt, "rows"), rapid.IntRange(1, 6).Draw(rt, "cols")
		pixels := rapid.SliceOfN(rapid.Byte(), n*rows*cols, n*rows*cols).Draw(rt, "pixels")
		data := file(imagesMagic, pixels, uint32(n), uint32(rows), uint32(cols))
		for _, data := range [][]byte{data, zip(t, data)} {
			m, err := ReadIDX(bytes.NewReader(data))
			if err != nil {
				rt.Fatal(err)
			}
			if m.N != n || m.Rows != rows || m.Cols != cols || !bytes.Equal(m.Pixels, pixels) {
				rt.Fatalf("%d images of %d×%d, %v", m.N, m.Rows, m.Cols, m.Pixels)
			}
			for i := range n {
				if !bytes.Equal(m.At(i), pixels[i*rows*cols:(i+1)*rows*cols]) {
					rt.Fatalf("image %d is %v", i, m.At(i))
				}
			}
		}
	})
}

func TestLabels(t *testing.T) {
	got, err := ReadIDXLabels(bytes.NewReader(file(labelsMagic, []byte{7, 0, 255}, 3)))
	if err != nil || !bytes.Equal(got, []byte{7, 0, 255}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestBroken(t *testing.T) {
	good := file(imagesMagic, make([]byte, 24), 2, 3, 4)
	zipped := zip(t, good)
	flipped := bytes.Clone(zipped)
	flipped[len(flipped)-6] ^= 1 // of the checksum
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"empty":                {nil, "cut short"},
		"half a header":        {good[:9], "cut short"},
		"half the pixels":      {good[:20], "promises 24 bytes and it has 4"},
		"too long":             {append(bytes.Clone(good), 0), "more than the 24 bytes"},
		"labels":               {file(labelsMagic, make([]byte, 24), 24), "00000801, want 00000803"},
		"floats":               {file("\x00\x00\x0d\x03", make([]byte, 24), 2, 3, 4), "00000d03"},
		"no pixels":            {file(imagesMagic, nil, 2, 0, 4), "no pixels"},
		"more than there is":   {file(imagesMagic, nil, 1<<20, 1, 1), "promises 1048576 bytes and it has 0"},
		"too many images":      {file(imagesMagic, nil, 1<<30, 1, 1), "more than 8388608"},
		"more than there can":  {file(imagesMagic, nil, 1<<31, 1<<31, 4), "more than"},
		"product overflows":    {file(imagesMagic, nil, 1<<32-1, 1<<32-1, 1<<32-1), "more than"},
		"half a gzip":          {zipped[:len(zipped)-12], "cut short"},
		"gzip without its sum": {zipped[:len(zipped)-4], "cut short"},
		"gzip altered":         {flipped, "checksum"},
		"no gzip":              {[]byte("\x1f\x8bnothing of the kind"), "gzip"},
	} {
		_, err := ReadIDX(bytes.NewReader(c.data))
		if !errors.Is(err, ErrIDX) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	images, labels := file(imagesMagic, make([]byte, 24), 2, 3, 4), file(labelsMagic, []byte{1, 2}, 2)
	for name, data := range map[string][]byte{
		"train-images-idx3-ubyte.gz": zip(t, images), "train-labels-idx1-ubyte.gz": zip(t, labels), "train-labels-idx1-ubyte": labels,
		"t10k-images.idx3-ubyte": images, "t10k-labels.idx1-ubyte.gz": zip(t, labels),
		"my images": images, "digits.gz": zip(t, images), "labels": labels, "text.gz": zip(t, []byte("text")), "empty": nil,
		"broken-images-idx3-ubyte": []byte("x"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"train-images-idx3-ubyte.gz": "train-labels-idx1-ubyte.gz",
		"t10k-images.idx3-ubyte":     "t10k-labels.idx1-ubyte.gz",
		"train-images-idx3-ubyte":    "train-labels-idx1-ubyte",
		"my images":                  "", "digits.gz": "",
	} {
		if want != "" {
			want = filepath.Join(dir, want)
		}
		if got := IDXLabelsOf(filepath.Join(dir, name)); got != want {
			t.Errorf("labels of %s are %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]bool{
		"train-images-idx3-ubyte.gz": true, "t10k-images.idx3-ubyte": true, "my images": true, "digits.gz": true, "broken-images-idx3-ubyte": true,
		"labels": false, "train-labels-idx1-ubyte.gz": false, "text.gz": false, "empty": false, "absent-images-idx3-ubyte": false, ".": false,
	} {
		if got := IsIDXImages(filepath.Join(dir, name)); got != want {
			t.Errorf("IsImages(%s) is %v", name, got)
		}
	}
	if m, err := OpenIDX(filepath.Join(dir, "digits.gz")); err != nil || m.N != 2 {
		t.Errorf("%v, %v", m, err)
	}
	for _, name := range []string{"broken-images-idx3-ubyte", "absent"} {
		if _, err := OpenIDX(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: %v does not name it", name, err)
		}
	}
	if got, err := OpenIDXLabels(filepath.Join(dir, "labels")); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

// FuzzRead: for any bytes, reading does not panic, errors are ErrFormat, and the
// result has the header's sizes.
func FuzzRead(f *testing.F) {
	good := file(imagesMagic, make([]byte, 24), 2, 3, 4)
	for _, data := range [][]byte{nil, good, good[:20], zip(f, good), file(labelsMagic, []byte{1, 2}, 2), file(imagesMagic, nil, 1<<31, 1<<31, 4),
		file(imagesMagic, nil, 1<<30, 1, 1), zip(f, file(imagesMagic, nil, 1<<24, 1, 1)), file(imagesMagic, nil, 1<<31, 0, 0),
		// What hostile files had: sizes whose product overflows, a file in a file, one that
		// is cut short, a header alone, and labels that are said to be many.
		file(imagesMagic, nil, 1<<31, 1<<16, 1<<17), file(imagesMagic, nil, 0, 1<<31, 1<<31), zip(f, zip(f, good)), zip(f, good)[:30], good[:3], good[:4], file(labelsMagic, nil, 1<<31),
		zip(f, file(labelsMagic, make([]byte, 1<<16), 1<<31))} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := ReadIDX(bytes.NewReader(data)); err == nil && len(m.Pixels) != m.N*m.Rows*m.Cols || err != nil && !errors.Is(err, ErrIDX) {
			t.Errorf("%+v, %v", m, err)
		}
		if labels, err := ReadIDXLabels(bytes.NewReader(data)); err != nil && !errors.Is(err, ErrIDX) || err == nil && len(labels) > len(data)*1100 {
			t.Errorf("%d labels, %v", len(labels), err)
		}
	})
}
