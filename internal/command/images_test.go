package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
)

// sideways returns a JPEG whose EXIF orientation is 6, of 24×16 pixels.
func sideways(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "extractor", "preprocess", "testdata", "decode", "exif6.jpg"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestTurnedImages: images with an EXIF orientation, and such as are too small, are
// counted, and it is said what was done with them.
func TestTurnedImages(t *testing.T) {
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	for i := range 3 {
		write(t, filepath.Join(images, "a", fmt.Sprint(i, ".jpg")), sideways(t))
		picture(t, filepath.Join(images, "b", fmt.Sprint(i, ".png")), 0, uint64(i))
	}
	extract := func(out string, args ...string) (stdout, stderr string) {
		return call(t, 0, append([]string{"extract", "--model", "pixels", "--images", images, "--out", filepath.Join(dir, out)}, args...)...)
	}
	for out, tt := range map[string]struct {
		says string
		args []string
	}{
		"ignored":  {"of 6 new images, 3 have an EXIF orientation, which was ignored: the model sees photographs that lie on their side (--exif apply turns them upright)\n", []string{"--size", "12x12"}},
		"applied":  {"of 6 new images, 3 have an EXIF orientation and were turned upright (--exif ignore leaves images as they are)\n", []string{"--size", "12x12", "--exif", "apply"}},
		"enlarged": {"(--exif apply turns them upright), and 3 are smaller than what the model reads and were scaled up or padded\n", []string{"--size", "32x32"}},
	} {
		if _, stderr := extract(out, tt.args...); !strings.Contains(stderr, tt.says) {
			t.Errorf("%s: extract says %q", out, stderr)
		}
	}
	if _, stderr := extract("ignored", "--size", "12x12"); strings.Contains(stderr, "EXIF") {
		t.Errorf("nothing is new, and extract says %q", stderr)
	}
	text, _ := extract("json", "--size", "32x32", "--json", "--quiet")
	if got := lines(t, text)[0]; got["oriented"] != 3. || got["enlarged"] != 3. {
		t.Errorf("%v", got)
	}
}

// TestCheckOrientations: --check warns of images that the model sees turned.
func TestCheckOrientations(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 2 {
		write(t, filepath.Join(dir, "a", fmt.Sprint(i, ".jpg")), sideways(t))
		picture(t, filepath.Join(dir, "b", fmt.Sprint(i, ".png")), i, uint64(i))
	}
	check := func(code int, exif string) string {
		out, _ := call(t, code, "extract", "--check", "--model", w.model, "--images", dir, "--exif", exif, "--picture", filepath.Join(t.TempDir(), "deep", "check.png"))
		return out
	}
	if out := check(1, "ignore"); !strings.Contains(out, "warning: 2 of 4 images have an EXIF orientation, which is ignored") || !strings.Contains(out, "--exif apply") || !strings.Contains(out, "4 are smaller") || strings.Count(out, "EXIF") != 1 {
		t.Errorf("%s", out)
	}
	if out := check(0, "apply"); !strings.Contains(out, "of 4 images, 2 have an EXIF orientation and were turned upright") || !strings.Contains(out, "most images have less detail") || strings.Contains(out, "nothing looks wrong") {
		t.Errorf("%s", out)
	}
}

// TestUnlabelled: extract says how images get labels.
func TestUnlabelled(t *testing.T) {
	dir := t.TempDir()
	flat := filepath.Join(dir, "flat")
	picture(t, filepath.Join(flat, "1.png"), 0, 1)
	extract := func() string {
		_, stderr := call(t, 0, "extract", "--model", "pixels", "--size", "4", "--images", flat, "--out", filepath.Join(dir, "f"))
		return stderr
	}
	if stderr := extract(); !strings.Contains(stderr, "no labels") || !strings.Contains(stderr, "DIR/class/") {
		t.Errorf("%q", stderr)
	}
	picture(t, filepath.Join(flat, "class", "2.png"), 1, 2)
	if stderr := extract(); !strings.Contains(stderr, "1 image without a label") {
		t.Errorf("%q", stderr)
	}
}

// TestErrorsOfImages: what is stored and printed of an image's error names flags.
func TestErrorsOfImages(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 2 {
		picture(t, filepath.Join(dir, "images", fmt.Sprint(i, ".png")), i, uint64(i))
	}
	write(t, filepath.Join(dir, "images", "small.jpg"), sideways(t))
	limit := []string{"--max-pixels", "400"}
	out := filepath.Join(dir, "f")
	call(t, 3, append([]string{"extract", "--model", "pixels", "--size", "4", "--images", filepath.Join(dir, "images"), "--out", out}, limit...)...)
	listed, err := os.ReadFile(filepath.Join(out, "errors.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, row := range lines(t, string(listed)) {
		texts = append(texts, row["error"].(string))
	}
	for _, format := range []string{"jsonl", "csv", "table"} {
		judged, _ := call(t, 3, append([]string{"detect", "--detector", w.detector, "--format", format, filepath.Join(dir, "images", "0.png")}, limit...)...)
		texts = append(texts, judged)
	}
	if len(texts) != 5 {
		t.Fatalf("%q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(text, "--max-pixels: PNG of 64×48 pixels is above the limit of 400") {
			t.Errorf("%q", text)
		}
	}
}

// TestFastMath: a set, its fingerprint and the detectors that come of it say so, and judge
// by a model that is opened likewise.
func TestFastMath(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	features, trained := filepath.Join(dir, "features"), filepath.Join(dir, "detector.safetensors")
	_, stderr := call(t, 0, "extract", "--model", w.model, "--images", w.images, "--out", features, "--fast-math")
	if warned := strings.Contains(stderr, "--fast-math does nothing on this processor"); warned == extractor.HasFastMath() {
		t.Errorf("extract says %q", stderr)
	}
	call(t, 0, shortTraining("--features", features, "--out", trained, "--epochs", "2", "--layers", "2", "--calibration", "0.3")...)
	call(t, 0, "detect", "--detector", trained, "--model", w.model, filepath.Join(w.images, "disc"))
	meta := func(dir string) map[string]any {
		data, err := os.ReadFile(filepath.Join(dir, "features.json"))
		if err != nil {
			t.Fatal(err)
		}
		return lines(t, strings.ReplaceAll(string(data), "\n", ""))[0]
	}
	if fast, plain := meta(features), meta(w.features); fast["fingerprint"] == plain["fingerprint"] || fast["preprocess"].(map[string]any)["fast_math"] != true {
		t.Errorf("features.json: %v", fast)
	}
	fails(t, "another model or preprocessing", "extract", "--model", w.model, "--images", w.images, "--out", features)
	refused(t, "--fast-math", "extract", "--model", "pixels", "--images", w.images, "--out", filepath.Join(dir, "pixels"), "--fast-math")
}
