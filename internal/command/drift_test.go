package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stream is a folder with images of two kinds that a detector was trained on, then
// images of a third, one per minute. The names say the order but for their padding.
func stream(t *testing.T, calm, other int) (detector, folder string) {
	t.Helper()
	dir := t.TempDir()
	images, features := filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 120 {
		picture(t, filepath.Join(images, []string{"disc", "square"}[i%2], fmt.Sprintf("%03d.png", i)), i%2, uint64(i))
	}
	detector, folder = filepath.Join(dir, "detector.safetensors"), filepath.Join(dir, "camera")
	call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", images, "--out", features, "--quiet")
	call(t, 0, "train", "--features", features, "--out", detector, "--epochs", "3", "--calibration", "0.4", "--quiet")
	for i := range calm + other {
		kind := i % 2
		if i >= calm {
			kind = 2
		}
		// The folders come in the opposite order of time.
		name := filepath.Join(folder, fmt.Sprint(9-i/100), fmt.Sprintf("%d.png", i))
		picture(t, name, kind, uint64(1000+i))
		at := time.Date(2026, 1, 1, 0, i, 0, 0, time.UTC)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return detector, folder
}

func TestDrift(t *testing.T) {
	const calm, other = 160, 80
	detector, folder := stream(t, calm, other)
	text, _ := call(t, 0, "drift", "--detector", detector, "--json", "--quiet", "--rows", "12", folder)
	var got course
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Images != calm+other || got.Failed != 0 || len(got.Parts) != 12 {
		t.Errorf("%d images, %d failed, %d parts", got.Images, got.Failed, len(got.Parts))
	}
	if a := got.Alarm; a == nil || a.Image <= calm || a.Image > calm+40 {
		t.Fatalf("alarm %+v, want one soon after image %d", got.Alarm, calm)
	} else {
		if want := filepath.ToSlash(filepath.Join(folder, fmt.Sprint(9-(a.Image-1)/100), fmt.Sprintf("%d.png", a.Image-1))); a.Path != want {
			t.Errorf("image %d is %s, want %s", a.Image, a.Path, want)
		}
		if want := time.Date(2026, 1, 1, 0, a.Image-1, 0, 0, time.UTC).Format(time.RFC3339); a.Time != want {
			t.Errorf("image %d of %s, want %s", a.Image, a.Time, want)
		}
		if a.Since == nil || a.Since.Image < calm-60 || a.Since.Image > calm+10 {
			t.Errorf("since %+v, and the change is at %d", a.Since, calm)
		}
	}
	// The images of the third kind are new since then.
	if n := got.New; n == nil || n.Since != got.Alarm.Since.Image || n.Images != got.Images-n.Since+1 || n.NewAtLeast < other/2 || n.New < other*9/10 || len(n.Groups) == 0 {
		t.Errorf("%+v", n)
	} else {
		for _, path := range n.Groups[0].Typical {
			var i int
			if _, err := fmt.Sscanf(filepath.Base(path), "%d.png", &i); err != nil || i < calm {
				t.Errorf("%s is typical of the new ones", path)
			}
		}
	}
	first, last := got.Parts[0], got.Parts[11]
	if first.From != 1 || first.To != 20 || first.Begin != "2026-01-01T00:00:00Z" || first.Classes["disc"]+first.Classes["square"] != 20 {
		t.Errorf("%+v", first)
	}
	if p := first.ExpectedP; p == nil || first.MeanP < p[0]-0.1 || last.MeanP > p[0] {
		t.Errorf("mean p-values %v first and %v last, expected %v", first.MeanP, last.MeanP, p)
	}
	if last.OOD < 15 {
		t.Errorf("%d of the last 20 are flagged", last.OOD)
	}
	again, _ := call(t, 0, "drift", "--detector", detector, "--json", "--quiet", "--rows", "12", folder)
	if again != text {
		t.Error("another result for the same images")
	}

	page := filepath.Join(t.TempDir(), "drift.html")
	text, _ = call(t, foundOOD, "drift", "--detector", detector, "--fail-on-alarm", "--report", page, "--quiet", folder)
	if !strings.Contains(text, "ALARM, all images together: image ") || !strings.Contains(text, "*") || strings.Contains(text, "no alarm") {
		t.Errorf("it prints\n%s", text)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"240 images in the order of time", "Alarm: image ", "are called new, and at least ", "Group 0: ", "; the evidence began to grow at image ", "<td data-sort=\"", ">square</th>", "outside of the interval in", " changes most: ", "What raised the alarm", "nearest: disc, p-value 0.0"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	features := filepath.Join(filepath.Dir(detector), "features")
	if err := os.Rename(features, features+".moved"); err != nil {
		t.Fatal(err)
	}
	if text, _ = call(t, 0, "drift", "--detector", detector, "--quiet", folder); !strings.Contains(text, "new: which images are new needs the features") {
		t.Errorf("without features it prints\n%s", text)
	}
	if text, _ = call(t, 0, "drift", "--detector", detector, "--quiet", "--training", features+".moved", folder); !strings.Contains(text, "new: group 0: ") {
		t.Errorf("with moved features it prints\n%s", text)
	}
	if err := os.Rename(features+".moved", features); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "9", "0.png"), "no image")
	text, _ = call(t, partial, "drift", "--detector", detector, "--by", "name", "--quiet", filepath.Join(folder, "9"))
	if !strings.Contains(text, "no alarm in 99 images") {
		t.Errorf("it prints\n%s", text)
	}
	// A detector of too few calibration images: warned of, and parts of one image.
	few := filepath.Join(t.TempDir(), "few.safetensors")
	call(t, 0, "train", "--features", features, "--out", few, "--epochs", "3", "--calibration", "0.05", "--scores", "head", "--quiet")
	text, says := call(t, 0, "drift", "--detector", few, "--rows", "1000", "--quiet", filepath.Join(folder, "8"))
	if !strings.Contains(says, "flags nothing") || strings.Contains(text, "29–29") || !strings.Contains(text, "\n29 ") {
		t.Errorf("it warns %q and prints\n%s", says, text)
	}
	refused(t, "--alpha", "drift", "--detector", detector, "--alpha", "1", folder)
	refused(t, "folder", "drift", "--detector", detector)
	fails(t, "no such file", "drift", "--detector", detector, filepath.Join(folder, "none"))
}

func TestCompareNames(t *testing.T) {
	names := []string{"", "1", "2", "2.jpg", "02a", "10", "a", "a1b2", "a1b10", "a2b1", "b"}
	for i, a := range names {
		for j, b := range names {
			got := compareNames(a, b)
			if a == "2.jpg" && b == "02a" || a == "02a" && b == "2.jpg" {
				continue // '.' and 'a' decide, as they should
			}
			if (got < 0) != (i < j) && a != b || got != -compareNames(b, a) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
	if !slices.IsSortedFunc(names, compareNames) {
		t.Error("they are not in order")
	}
}
