package jpeg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// pixels are the pixels that Pillow reads from a file.
type pixels struct {
	Width, Height int
	SHA256        string // of RGB
}

// golden returns the files of testdata/golden.zip, which
// testdata/generate_golden.py writes.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	archive, err := zip.OpenReader("testdata/golden.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := map[string][]byte{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	return files
}

// answers returns Pillow's pixels of files, nil for an error.
func answers(t testing.TB, files map[string][]byte, name string) map[string]*pixels {
	t.Helper()
	var found map[string]*pixels
	if err := json.Unmarshal(files[name], &found); err != nil {
		t.Fatal(err)
	}
	if len(found) < 100 {
		t.Fatalf("%s has %d files only", name, len(found))
	}
	return found
}

// check compares Decode's result for a file with Pillow's.
func check(t *testing.T, name string, data []byte, want *pixels) {
	t.Helper()
	img, err := Decode(t.Context(), data, Options{})
	if (err != nil) != (want == nil) {
		t.Errorf("%s: error is %v, Pillow makes of it %v", name, err, want)
		return
	}
	if err != nil {
		return
	}
	config, err := DecodeConfig(data)
	if err != nil || config.Width != want.Width || config.Height != want.Height {
		t.Errorf("%s: header says %v (%v), want %d×%d", name, config, err, want.Width, want.Height)
	}
	if img.Rect != image.Rect(0, 0, want.Width, want.Height) {
		t.Errorf("%s: image is %v, want %d×%d", name, img.Rect, want.Width, want.Height)
	}
	var rgb []byte
	for i := 0; i < len(img.Pix); i += 4 {
		rgb = append(rgb, img.Pix[i:i+3]...)
		if img.Pix[i+3] != 255 {
			t.Fatalf("%s: pixel %d is not opaque", name, i/4)
		}
	}
	if sum := sha256.Sum256(rgb); hex.EncodeToString(sum[:]) != want.SHA256 {
		t.Errorf("%s: pixels differ from Pillow's", name)
	}
}

// TestEqualsPillow: files of every kind, also broken ones, have the pixels of
// Pillow 13, or are errors if Pillow raises one.
func TestEqualsPillow(t *testing.T) {
	files := golden(t)
	onEachPath(t, func(t *testing.T) {
		for name, want := range answers(t, files, "golden.json") {
			check(t, name, files[name], want)
		}
	})
}

// TestSharedEqualsPillow does the same for unusual files of other projects and for
// photographs.
func TestSharedEqualsPillow(t *testing.T) {
	dir := testenv.Shared(t, "data")
	for name, want := range answers(t, golden(t), "shared.json") {
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		check(t, name, data, want)
	}
}

func TestErrors(t *testing.T) {
	file := anyFile(t, "sequential-1x1")
	frame := bytes.Index(file, []byte{0xff, mSOF0})
	change := func(at int, b ...byte) []byte {
		changed := bytes.Clone(file)
		copy(changed[at:], b)
		return changed
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "cut short"},
		{"header only", file[:frame], "cut short"},
		{"half", file[:len(file)/2], "cut short"},
		{"text", []byte("no image"), "no SOI"},
		{"12 bits", change(frame+4, 12), "12-bit samples are not supported"},
		{"no height", change(frame+5, 0, 0), "×0"},
		{"too wide", change(frame+7, 0xff, 0xff), "above 65500"},
		{"two components", change(frame+9, 2), "wrong length"},
		{"lossless", change(frame+1, 0xcb), "lossless JPEG with arithmetic coding is not supported"},
		{"hierarchical", change(frame+1, 0xc5), "hierarchical JPEG is not supported"},
		{"sampling", change(frame+11, 0x51), "sampling factors are 5×1"},
		{"fraction", change(frame+11, 0x32, 0, 2, 0x21), "sampling of 2×1 beside 3×2"},
		{"quantization", change(frame+12, 7), "quantization table is missing"},
	}
	for _, tt := range tests {
		img, err := Decode(t.Context(), tt.data, Options{})
		if img != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one about %q", tt.name, err, tt.want)
		}
		if errors.Is(err, ErrTruncated) != (tt.want == "cut short") {
			t.Errorf("%s: error %v is ErrTruncated or is not", tt.name, err)
		}
	}
}

func anyFile(t testing.TB, prefix string) []byte {
	t.Helper()
	for name, data := range golden(t) {
		if strings.HasPrefix(name, prefix) {
			return data
		}
	}
	t.Fatalf("no file %s*", prefix)
	return nil
}

// TestScanBomb: a few bytes of a file can ask for a pass over all blocks. Files that do so
// far more often than any encoder are refused before anything is decoded.
func TestScanBomb(t *testing.T) {
	file := anyFile(t, "scans-dc-1x1")
	frame, scan := bytes.Index(file, []byte{0xff, mSOF2}), bytes.Index(file, []byte{0xff, mSOS})
	for _, tt := range []struct {
		side, scans int
		bad         bool
	}{{64, 1000, false}, {512, 20000, true}, {7000, 20, false}, {7000, 300, true}} {
		bomb := bytes.Clone(file[:len(file)-2])
		binary.BigEndian.PutUint16(bomb[frame+5:], uint16(tt.side))
		binary.BigEndian.PutUint16(bomb[frame+7:], uint16(tt.side))
		bomb = append(append(bomb, bytes.Repeat(file[scan:len(file)-2], tt.scans)...), 0xff, mEOI)
		_, err := Decode(&testenv.Countdown{Context: t.Context()}, bomb, Options{}) // which ends at the first row
		if bad := err != nil && strings.Contains(err.Error(), "too much work"); bad != tt.bad || err == nil {
			t.Errorf("%d scans of %d×%d: %v", tt.scans, tt.side, tt.side, err)
		}
	}
}

// TestStops: Decode returns the context's error whenever it is cancelled, and
// checks it at every row of MCUs.
func TestStops(t *testing.T) {
	for name, data := range golden(t) {
		config, err := DecodeConfig(data)
		if err != nil || strings.HasPrefix(name, "broken") {
			continue
		}
		for asked := 0; ; asked++ {
			img, err := Decode(&testenv.Countdown{Context: t.Context(), Left: asked}, data, Options{})
			if err == nil {
				if asked < config.Height/32 {
					t.Errorf("%s: the context was asked %d times for %d rows", name, asked, config.Height)
				}
				break
			}
			if img != nil || !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: after %d questions the error is %v", name, asked, err)
			}
		}
	}
}

// TestReuse: an image is decoded into existing memory, and nothing of the image
// before remains.
func TestReuse(t *testing.T) {
	files := golden(t)
	var names []string
	for name, want := range answers(t, files, "golden.json") {
		if want != nil {
			names = append(names, name)
		}
	}
	room := image.NewNRGBA(image.Rect(0, 0, 100, 100))
	for _, name := range names {
		want, err := Decode(t.Context(), files[name], Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range room.Pix[:cap(room.Pix)] {
			room.Pix[:cap(room.Pix)][i] = 99
		}
		got, err := Decode(t.Context(), files[name], Options{Reuse: room})
		if err != nil {
			t.Fatal(err)
		}
		if got.Rect != want.Rect || got.Stride != want.Stride || !bytes.Equal(got.Pix, want.Pix) {
			t.Errorf("%s: the image differs in memory that is used again", name)
		}
		if fits := len(want.Pix) <= cap(room.Pix); fits != (&got.Pix[0] == &room.Pix[0]) {
			t.Errorf("%s: memory is taken: %v, want %v", name, !fits, fits)
		}
	}
}

// TestSamples: the components without conversion, or converted colours whatever the file says.
func TestSamples(t *testing.T) {
	file := anyFile(t, "rgb-sequential")
	img, err := Decode(t.Context(), file, Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain, config, err := Samples(t.Context(), file, false, 1<<20)
	if err != nil || config != (Config{Width: img.Rect.Dx(), Height: img.Rect.Dy(), Components: 3}) {
		t.Fatalf("samples are %v (%v), want %v", config, err, img.Rect)
	}
	converted, _, err := Samples(t.Context(), file, true, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	rgba := make([]uint8, 4)
	for i := range config.Width * config.Height {
		p := plain[3*i : 3*i+3]
		if !bytes.Equal(p, img.Pix[4*i:4*i+3]) {
			t.Fatalf("samples of pixel %d are %v, want %v", i, p, img.Pix[4*i:4*i+3])
		}
		coloursPlain(rgba, p[:1], p[1:2], p[2:3])
		if !bytes.Equal(converted[3*i:3*i+3], rgba[:3]) {
			t.Fatalf("colours of pixel %d are %v, want %v", i, converted[3*i:3*i+3], rgba[:3])
		}
	}
	if _, _, err := Samples(t.Context(), file[:len(file)/2], false, 1<<20); err != nil {
		t.Errorf("of a strip that is cut short: %v", err)
	}
	if _, _, err := Samples(t.Context(), file, false, config.Width*config.Height-1); err == nil || !strings.Contains(err.Error(), "above") {
		t.Errorf("above the limit: error is %v", err)
	}
}

// TestWanted: the pixels of any part are the same whether only the part or all of
// the image is wanted, and so is the error.
func TestWanted(t *testing.T) {
	files := golden(t)
	var names []string
	for name := range answers(t, files, "golden.json") {
		names = append(names, name)
	}
	slices.Sort(names)
	other := anyFile(t, "sequential-2x2")
	onEachPath(t, func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			data := files[rapid.SampledFrom(names).Draw(rt, "name")]
			all, allErr := Decode(t.Context(), data, Options{})
			size := image.Pt(40, 40)
			if allErr == nil {
				size = all.Rect.Max
			}
			edge := func(from, to int, name string) int { // often between blocks
				v := rapid.IntRange(from, to).Draw(rt, name)
				if rapid.Bool().Draw(rt, "block") {
					v = max(from, v&^7)
				}
				return v
			}
			for range 10 {
				x, y := edge(0, size.X-1, "left"), edge(0, size.Y-1, "top")
				part := image.Rect(x, y, edge(x+1, size.X, "right"), edge(y+1, size.Y, "bottom"))
				// Decode another file first, so that reused memory does not hold the wanted pixels.
				if _, err := Decode(t.Context(), other, Options{}); err != nil {
					rt.Fatal(err)
				}
				got, err := Decode(t.Context(), data, Options{Wanted: part})
				if fmt.Sprint(err) != fmt.Sprint(allErr) {
					rt.Fatalf("error is %v, of all of it %v", err, allErr)
				}
				if err != nil {
					return
				}
				if got.Rect != all.Rect {
					rt.Fatalf("image is %v, want %v", got.Rect, all.Rect)
				}
				if !equalIn(part, got, all) {
					rt.Fatalf("%v differs", part)
				}
			}
		})
	})
}

// equalIn reports whether two images of one size are equal in a part.
func equalIn(part image.Rectangle, a, b *image.NRGBA) bool {
	for y := part.Min.Y; y < part.Max.Y; y++ {
		from, to := a.PixOffset(part.Min.X, y), a.PixOffset(part.Max.X, y)
		if !bytes.Equal(a.Pix[from:to], b.Pix[from:to]) {
			return false
		}
	}
	return true
}

func FuzzDecode(f *testing.F) {
	for name, data := range golden(f) {
		if strings.HasSuffix(name, ".jpg") {
			f.Add(data)
		}
	}
	const limit = 1 << 18
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := DecodeConfig(data)
		if err == nil && config.Width*config.Height > limit {
			return
		}
		img, decodeErr := Decode(t.Context(), data, Options{})
		if decodeErr != nil {
			return
		}
		if err != nil || img.Rect != image.Rect(0, 0, config.Width, config.Height) {
			t.Errorf("image is %v, its header says %v (%v)", img.Rect, config, err)
		}
		onEachPath(t, func(t *testing.T) {
			again, err := Decode(t.Context(), data, Options{})
			if err != nil || !bytes.Equal(again.Pix, img.Pix) {
				t.Errorf("pixels differ between paths (%v)", err)
			}
			w, h := img.Rect.Dx(), img.Rect.Dy()
			part := image.Rect(w/3, h/3, w-w/3, h-h/3)
			some, err := Decode(t.Context(), data, Options{Wanted: part})
			if err != nil || !equalIn(part, some, img) {
				t.Errorf("pixels of %v differ if it alone is wanted (%v)", part, err)
			}
		})
	})
}
