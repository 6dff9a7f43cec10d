package command

import (
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// shownJSON is what show --json prints, as a program reads it.
type shownJSON struct {
	summaryJSON
	Classes []struct {
		Train *int     `json:"train"`
		Right *float64 `json:"right"`
	} `json:"classes"`
}

// TestShowOldDetectors: show has something to say of the files of all formats, and its
// page says what they lack.
func TestShowOldDetectors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.Root(t), "pipeline", "detector", "testdata", "version[1-5].safetensors"))
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	t.Chdir(t.TempDir())
	for _, file := range files {
		out, _ := call(t, done, "show", file)
		for _, want := range []string{"It knows 3 classes: 0, 1, 2. Trained on 240 images.", "trained by: mlrbfn train --features", "30 calibration images", "note: "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", file, want, out)
			}
		}
		if paper := strings.Contains(file, "version1"); strings.Contains(out, "--paper --") != paper {
			t.Errorf("%s: the command is wrong\n%s", file, out)
		}
		out, _ = call(t, done, "show", file, "--json", "--out", "old.html")
		var shown shownJSON
		if err := json.Unmarshal([]byte(out), &shown); err != nil {
			t.Fatal(err)
		}
		if recent := file >= filepath.Join(filepath.Dir(file), "version4"); len(shown.Classes) != 3 || shown.Threshold == nil || (shown.Classes[0].Right != nil) != strings.Contains(file, "version5") ||
			len(shown.Missing) == 0 || (shown.Assessment != nil) != recent {
			t.Errorf("%s: %s", file, out)
		}
		page := string(contents(t, "old.html"))
		for _, want := range []string{"What a threshold costs", "Loss by epoch", "There are no pictures and no map", "--features"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: the page has no %q", file, want)
			}
		}
	}
}

// TestShow follows a detector while its images and its features go away.
func TestShow(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	call(t, done, "train", "--features", "old.features", "--out", "d.safetensors", "--report", "d.html", "--epochs", "4", "--val", "0.2", "--max-false-alarms", "0.1", "--quiet")
	trained := string(contents(t, "d.html"))
	const shot = "data:image/jpeg;base64,"
	pictures := strings.Count(trained, shot)
	for _, want := range []string{"Confusion matrix", "Would a new class be noticed?", "What a threshold costs", "Map of the images", "Calibration images closest to the threshold", "Calibration images that score lowest",
		html.EscapeString(ramp()), "Content-Security-Policy", "mlrbfn train --features"} {
		if !strings.Contains(trained, want) {
			t.Errorf("the page of train has no %q", want)
		}
	}
	if strings.Contains(trained, ramp()) || strings.Contains(trained, "Images not shown") || pictures < 180 {
		t.Errorf("%d pictures, or markup", pictures)
	}
	call(t, done, "show", "d.safetensors", "--out", "shown.html")
	shown := string(contents(t, "shown.html"))
	day := func(page string) string { // the dates differ
		before, _, _ := strings.Cut(page, "date of this page")
		return before
	}
	if day(shown) != day(trained) {
		t.Error("show and train --report make different pages")
	}

	// The folder of the images is moved, then named.
	if err := os.Rename("images", "elsewhere"); err != nil {
		t.Fatal(err)
	}
	call(t, done, "show", "d.safetensors", "--out", "moved.html")
	if page := string(contents(t, "moved.html")); strings.Contains(page, shot) || !strings.Contains(page, "is gone or cannot be read") || !strings.Contains(page, "--images") ||
		!strings.Contains(page, "Images not shown") || !strings.Contains(page, "Map of the images") {
		t.Error("the page does not say that the images are gone")
	}
	call(t, done, "show", "d.safetensors", "--out", "named.html", "--images", "elsewhere")
	if n := strings.Count(string(contents(t, "named.html")), shot); n != pictures {
		t.Errorf("%d pictures, there were %d", n, pictures)
	}
	// A changed image is not shown for the one of the features.
	picture(t, "elsewhere/disc/00.png", 2, 99)
	call(t, done, "show", "d.safetensors", "--out", "changed.html", "--images", "elsewhere")
	if page := string(contents(t, "changed.html")); !strings.Contains(page, "1 image could not be shown") || !strings.Contains(page, "disc/00.png</span>: the features are of another image") {
		t.Error("the page does not list the image that has changed")
	}

	// The features are gone: what the file has is left.
	if err := os.Rename("old.features", "features2"); err != nil {
		t.Fatal(err)
	}
	out, _ := call(t, done, "show", "d.safetensors", "--out", "file.html")
	page := string(contents(t, "file.html"))
	if strings.Contains(page, "Map of the images") || !strings.Contains(page, "Confusion matrix") || !strings.Contains(out, "--features: the feature set that was at ") {
		t.Errorf("without features:\n%s", out)
	}
	call(t, done, "show", "d.safetensors", "--out", "file.html", "--features", "features2", "--images", "elsewhere")
	if !strings.Contains(string(contents(t, "file.html")), "Map of the images") {
		t.Error("named features are not used")
	}
	fails(t, "not the features that the detector was trained on", "show", "d.safetensors", "--features", "elsewhere", "--out", "file.html")

	write(t, "mine.html", "not a page of ours")
	fails(t, "mine.html", "show", "d.safetensors", "--out", "mine.html")
	refused(t, "DETECTOR", "show")
	fails(t, "not a usable detector", "show", "d.html")
}

// TestShowKinds: detectors with folds, thresholds by class, one class, and none that
// could be flagged.
func TestShowKinds(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	call(t, done, "extract", "--model", "pixels", "--size", "8", "--images", "new", "--class", "half", "--out", "one.features", "--quiet")
	for name, tt := range map[string]struct {
		says string
		args []string
	}{
		"folds":     {"no curve of false alarms", []string{"--features", "old.features", "--calibration", "cross:2", "--scores", "head"}},
		"per class": {"a threshold of its own", []string{"--features", "old.features", "--per-class", "--max-false-alarms", "0.2", "--no-assess"}},
		"one class": {"It knows 1 class: half", []string{"--features", "one.features", "--max-false-alarms", "0.2"}},
		"too few":   {"Nothing is flagged", []string{"--features", "old.features", "--calibration", "0"}},
		"own set":   {"It knows 3 classes", []string{"--features", "old.features", "--calibration", "one.features"}},
	} {
		call(t, done, append([]string{"train", "--out", name, "--epochs", "2", "--quiet", "--report", name + ".html"}, tt.args...)...)
		out, _ := call(t, done, "show", name)
		if !strings.Contains(out, tt.says) {
			t.Errorf("%s: %s", name, out)
		}
		if page := string(contents(t, name+".html")); !strings.Contains(page, "Map of the images") {
			t.Errorf("%s: no map", name)
		}
	}
}

// TestCalibrate: the list of the lowest calibration images comes back with a mark, the new
// detector has the threshold without that image, and show says so.
func TestCalibrate(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	out, _ := call(t, done, "calibrate", "--detector", "old.safetensors", "--lowest", "3")
	if lines := strings.Split(out, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], "p-value") || !strings.Contains(lines[1], ".png") {
		t.Error(out)
	}
	call(t, done, "calibrate", "--detector", "old.safetensors", "--lowest", "3", "--list", "list.csv")
	lines := strings.SplitAfter(string(contents(t, "list.csv")), "\n")
	lines[1] = strings.TrimSpace(lines[1]) + "x\n"
	write(t, "list.csv", strings.Join(lines, ""))
	out, _ = call(t, done, "calibrate", "--detector", "old.safetensors", "--trim", "list.csv", "--out", "new.safetensors", "--json")
	var result struct {
		Calibration int
		Review      detector.CalibrationReview
		Before      float64 `json:"threshold_before"`
		Threshold   float64
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.Review != (detector.CalibrationReview{Reviewed: 3, Removed: 1}) || result.Calibration != 17 || result.Threshold <= result.Before {
		t.Errorf("%v: %s", err, out)
	}
	if out, _ = call(t, done, "show", "new.safetensors"); !strings.Contains(out, "looked at the 3 calibration images that scored lowest and removed 1 of them; 17 remain") {
		t.Error(out)
	}
	write(t, "list.csv", lines[0])
	fails(t, "--lowest: with 0 of 0 images removed, the new threshold is not below 1 that nobody looked at", "calibrate", "--detector", "old.safetensors", "--trim", "list.csv", "--out", "new.safetensors")
	refused(t, "--out", "calibrate", "--detector", "old.safetensors", "--trim", "list.csv")
	refused(t, "--lowest", "calibrate", "--detector", "old.safetensors", "--trim", "list.csv", "--out", "new.safetensors", "--lowest", "4")
}
