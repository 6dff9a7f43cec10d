package command

import (
	"encoding/csv"
	"encoding/json"
	"image"
	"image/color"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"golang.org/x/image/draw"
)

// drawing is a bright shape on a smooth background, in the left or the right half.
func drawing(seed uint64, right bool) *image.RGBA {
	random := rand.New(rand.NewPCG(seed, 7))
	coarse := image.NewRGBA(image.Rect(0, 0, 5, 5))
	for i := range coarse.Pix {
		coarse.Pix[i] = uint8(random.IntN(90))
		if i%4 == 3 {
			coarse.Pix[i] = 255
		}
	}
	img := image.NewRGBA(image.Rect(0, 0, 48, 48))
	draw.CatmullRom.Scale(img, img.Rect, coarse, coarse.Rect, draw.Src, nil)
	x, y := 2+random.IntN(6), 4+random.IntN(28)
	if right {
		x += 26
	}
	draw.Draw(img, image.Rect(x, y, x+12, y+10), image.NewUniform(color.White), image.Point{}, draw.Src)
	return img
}

func savePNG(t *testing.T, name string, img image.Image) {
	t.Helper()
	testenv.SavePNG(t, name, img)
}

// TestInspect: a wrong label, a copy and a leak are found, shown and acted on.
func TestInspect(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for i := range 40 {
		savePNG(t, filepath.Join("train", "left", "l"+strconv.Itoa(i)+".png"), drawing(uint64(i), false))
		savePNG(t, filepath.Join("train", "right", "<b>r"+strconv.Itoa(i)+".png"), drawing(uint64(100+i), true))
	}
	savePNG(t, "train/left/wrong.png", drawing(200, true))
	larger := image.NewRGBA(image.Rect(0, 0, 96, 96))
	draw.CatmullRom.Scale(larger, larger.Rect, drawing(3, false), image.Rect(0, 0, 48, 48), draw.Src, nil)
	savePNG(t, "train/left/zcopy.png", larger)
	savePNG(t, "train/left/zsame.png", drawing(5, false))
	savePNG(t, "train/right/blank.png", image.NewRGBA(image.Rect(0, 0, 400, 20)))
	for i := range 5 {
		savePNG(t, filepath.Join("test", "left", strconv.Itoa(i)+".png"), drawing(uint64(300+i), false))
	}
	if err := os.WriteFile("train/left/<i>cut.png", []byte("\x89PNG\r\n\x1a\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	savePNG(t, "test/right/leak.png", drawing(105, true))
	for set, code := range map[string]int{"train": partial, "test": done} {
		call(t, code, "extract", "--model", "pixels", "--size", "8x8", "--images", set, "--out", set+".features", "--quiet")
	}
	out, _ := call(t, done, "inspect", "--features", "train.features", "--test", "test.features", "--out", "new/report", "--json", "--quiet")
	var result struct {
		Rows, Test, Odd, Unread int
		Accuracy                float64
		Issues, Same            map[string]int
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	if result.Rows != 84 || result.Test != 6 || result.Unread != 0 || result.Odd < 1 || result.Accuracy < .8 || result.Issues["duplicate"] < 2 || result.Same["duplicate"] < 2 || result.Same["leak"] != 1 || result.Issues["leak"] != 1 || result.Issues["label"] < 1 {
		t.Errorf("%s", out)
	}
	f, err := os.Open("new/report/issues.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, line := range lines[1:] {
		found[line[2]+" "+line[0]] = line
	}
	if line := found["label left/wrong.png"]; line == nil || line[4] != "left" || line[5] != "right" {
		t.Errorf("the wrong label: %q", line)
	}
	// Of two copies the smaller one is listed, or else the later one.
	for worse, better := range map[string]string{"left/l3.png": "left/zcopy.png", "left/zsame.png": "left/l5.png"} {
		if line := found["duplicate "+worse]; line == nil || line[6] != better || line[3] < "0.998" || found["duplicate "+better] != nil {
			t.Errorf("the copy of %s: %q", better, line)
		}
	}
	if line := found["leak right/<b>r5.png"]; line == nil || line[6] != "right/leak.png" {
		t.Errorf("the leak: %q", line)
	}
	page, err := os.ReadFile("new/report/report.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"left/wrong.png", "data:image/jpeg", "&lt;b&gt;r5.png", "blank: all of one shade", "unusual shape", "Not read (1)", "left/&lt;i&gt;cut.png"} {
		if !strings.Contains(string(page), part) {
			t.Errorf("the page has no %q", part)
		}
	}
	if strings.Contains(string(page), "<b>r") {
		t.Error("the page has a name as markup")
	}

	issues := "new/report/issues.csv"
	train := []string{"train", "--features", "train.features", "--epochs", "1", "--scores", "head", "--quiet", "--json"}
	out, stderr := call(t, done, append(train, "--out", "a", "--exclude", issues)...)
	var trained struct {
		Rows struct{ Train, Validation, Calibration int }
	}
	if err := json.Unmarshal([]byte(out), &trained); err != nil {
		t.Fatal(err)
	}
	excluded := map[string]bool{}
	for _, line := range lines[1:] {
		excluded[line[0]] = true
	}
	r := trained.Rows
	// Wrong labels and outliers leave the training images alone.
	if left := r.Train + r.Validation + r.Calibration; left < 84-len(excluded) || left >= 84 || !strings.Contains(stderr, "stay among the validation") {
		t.Errorf("%d rows are left of 84 without %d\n%s", left, len(excluded), stderr)
	}
	_, stderr = call(t, done, append(train, "--out", "b", "--relabel", issues)...)
	if !strings.Contains(stderr, "images given another label: "+strconv.Itoa(result.Issues["label"])) {
		t.Errorf("%s", stderr)
	}
	write(t, "issues.csv", "path,row,kind,score,label,suggested,other\nleft/absent.png,99,label,1,left,right,\n")
	fails(t, "--exclude: the features have no image \"left/absent.png\"", append(train, "--out", "c", "--exclude", "issues.csv")...)

	// Images that are gone give a page without them, which says so.
	if err := os.Rename("train", "moved"); err != nil {
		t.Fatal(err)
	}
	_, stderr = call(t, done, "inspect", "--features", "train.features", "--out", "gone", "--quiet")
	if !strings.Contains(stderr, "84 images cannot be read any more") {
		t.Errorf("%s", stderr)
	}
	_, stderr = call(t, done, "inspect", "--features", "train.features", "--out", "gone", "--images", "moved", "--quiet")
	if strings.Contains(stderr, "cannot be read") {
		t.Errorf("%s", stderr)
	}
}
