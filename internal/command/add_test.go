package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// ramp is a class whose name is markup, as far as the system allows.
func ramp() string {
	if runtime.GOOS == "windows" {
		return "b&ramp"
	}
	return "<b>ramp"
}

// shapes makes pictures of three classes and of a new one, and a detector of the
// former on their pixels, in the working directory.
func shapes(t *testing.T) {
	t.Helper()
	for i := range 60 {
		for kind, class := range []string{"disc", "square", ramp()} {
			picture(t, filepath.Join("images", class, fmt.Sprintf("%02d.png", i)), kind, uint64(i))
		}
		savePNG(t, filepath.Join("new", fmt.Sprint(i%2), fmt.Sprintf("%02d.png", i)), drawing(uint64(i), true))
	}
	call(t, done, "extract", "--model", "pixels", "--size", "8", "--images", "images", "--out", "old.features", "--quiet")
	call(t, done, "train", "--features", "old.features", "--out", "old.safetensors", "--epochs", "4", "--max-false-alarms", "0.1", "--quiet")
}

// added is what train --add prints with --json.
type added struct {
	Addition struct {
		Added   []detector.AddedClass
		Classes []detector.ChangedClass
		All     detector.ChangedClass
		HeldOut string `json:"held_out"`
	}
}

// TestAddAClass: a detector learns a class of which only the new images go through
// the model. What comes out is bit-identical to the detector that a training on all
// feature sets gives with the same options and the same images set aside.
func TestAddAClass(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	add := []string{"train", "--add", "<i>half=new", "--detector", "old.safetensors", "--out", "out/new.safetensors", "--json", "--quiet"}
	out, _ := call(t, done, append(add, "--report", "out/new.html")...)
	var result added
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	a := result.Addition
	if len(a.Added) != 1 || a.Added[0].Class != "<i>half" || !a.Added[0].New || a.Added[0].Images != 60 || a.Added[0].HeldOut != 6 ||
		a.Added[0].FlaggedBefore < 50 || a.Added[0].Right < 5 || a.HeldOut != "validation" || a.All.Images != 18 || len(a.Classes) != 3 || a.All.RightAfter < 15 {
		t.Errorf("%s", out)
	}
	features := a.Added[0].Features
	if features != filepath.Join("out", "new.%3Ci%3Ehalf.features") {
		t.Errorf("features go to %s", features)
	}
	want := contents(t, "out/new.safetensors")

	// The same from the library.
	old, err := pipeline.LoadDetector("old.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	opts, notes, err := training.OptionsOf(t.Context(), old, nil)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	opts.Features = append(opts.Features, features)
	d, _, err := pipeline.Train(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Save("again"); err != nil {
		t.Fatal(err)
	}
	again, err := pipeline.LoadDetector("again")
	if err != nil {
		t.Fatal(err)
	}
	new, err := pipeline.LoadDetector("out/new.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents(t, "again"), want) {
		t.Errorf("a training on both sets gives another detector: threshold %g and %g", again.Threshold, new.Threshold)
	}
	for _, part := range []string{"validation", "calibration"} {
		for _, row := range old.Splits[part] {
			if !slices.Contains(new.Splits[part], row) {
				t.Errorf("row %d is no %s row any more", row, part)
			}
		}
	}

	page := string(contents(t, "out/new.html"))
	for _, want := range []string{"Before and after", "&lt;i&gt;half (new)", html.EscapeString(ramp()), "Confusion matrix", "kept from the detector"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(page, ramp()) || strings.Contains(page, "<i>half") {
		t.Error("names are markup on the page")
	}

	// In words, and once more onto a known class, from the detector that was made so.
	out, stderr := call(t, partial, "train", "--add", "disc=more", "--detector", func() string {
		savePNG(t, "more/a.png", drawing(1000, false))
		for i := range 12 {
			picture(t, fmt.Sprintf("more/%d.png", i), 0, uint64(500+i))
		}
		write(t, "more/broken.png", "x")
		return "out/new.safetensors"
	}(), "--out", "third.safetensors", "--quiet")
	if !strings.Contains(out, "disc (known before): 13 images added") || !strings.Contains(out, "→") || !strings.Contains(stderr, "unreadable: broken.png") {
		t.Errorf("%s%s", out, stderr)
	}
	out, _ = call(t, done, "show", "third.safetensors", "--json")
	var shown shownJSON
	if err := json.Unmarshal([]byte(out), &shown); err != nil || len(shown.Features) != 3 || len(shown.Classes) != 4 || *shown.Classes[1].Train != 48 {
		t.Errorf("%v %s", err, out)
	}
}

// TestAddOutliers: a detector learns known outliers, and later more of them.
func TestAddOutliers(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	for i, dir := range []string{"new/0", "new/1"} {
		call(t, done, "extract", "--model", "pixels", "--size", "8", "--images", dir, "--out", fmt.Sprintf("junk%d", i), "--quiet")
	}
	call(t, done, "train", "--detector", "old.safetensors", "--outliers", "junk0", "--out", "one.safetensors", "--quiet")
	call(t, done, "train", "--detector", "one.safetensors", "--outliers", "junk1", "--out", "two.safetensors", "--quiet")
	for file, want := range map[string]int{"one.safetensors": 30, "two.safetensors": 60} {
		d, err := pipeline.LoadDetector(file)
		if err != nil {
			t.Fatal(err)
		}
		if a := d.Assessment; a == nil || a.Outliers == nil || a.Outliers.Images != want || len(d.Classes) != 3 {
			t.Errorf("%s: %+v", file, a)
		}
	}
}

// TestAddRefuses: --add says what is missing or does not fit.
func TestAddRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	add := []string{"train", "--add", "half=new", "--detector", "old.safetensors", "--out", "new.safetensors", "--quiet"}
	refused(t, "--epochs", append(add, "--epochs", "3")...)
	refused(t, "NAME=DIR", "train", "--add", "new", "--detector", "old.safetensors", "--out", "x")
	refused(t, "--detector", "train", "--add", "half=new", "--out", "x")
	refused(t, "--outliers", "train", "--features", "old.features", "--detector", "old.safetensors", "--out", "x")
	fails(t, "absent", "train", "--add", "half=absent", "--detector", "old.safetensors", "--out", "x", "--quiet")

	call(t, done, add...)
	want := contents(t, "new.safetensors")
	call(t, done, append(add, "--force")...) // the features of the new images are there
	if !bytes.Equal(contents(t, "new.safetensors"), want) {
		t.Error("adding again gives another detector")
	}

	// The old features are gone, are named, and are others.
	if err := os.Rename("old.features", "moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove("new.safetensors"); err != nil {
		t.Fatal(err)
	}
	fails(t, "--features: the feature set that was at ", add...)
	absent(t, "new.safetensors")
	call(t, done, append(add, "--features", "moved")...)
	if err := os.Remove("new.safetensors"); err != nil {
		t.Fatal(err)
	}
	picture(t, "images/disc/00.png", 0, 12345)
	call(t, done, "extract", "--model", "pixels", "--size", "8", "--images", "images", "--out", "moved", "--quiet")
	fails(t, "not the features that the detector was trained on", append(add, "--features", "moved")...)
}

// TestKilledAddGoesOn kills --add while it extracts and while it trains; the same
// command ends in the bytes of an undisturbed run.
func TestKilledAddGoesOn(t *testing.T) {
	t.Chdir(t.TempDir())
	shapes(t)
	for i := range 240 {
		savePNG(t, fmt.Sprintf("new/more%d.png", i), drawing(uint64(1000+i), i%2 == 0))
	}
	command := func() *exec.Cmd {
		return process(t, "train", "--add", "half=new", "--detector", "old.safetensors", "--out", "new.safetensors", "--checkpoint-every", "1ms", "--workers", "1", "--quiet")
	}
	finish(t, command(), done)
	want := contents(t, "new.safetensors")
	for _, name := range []string{"new.safetensors", "new.half.features"} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, sign := range []string{"new.half.features.partial", "new.safetensors.checkpoint"} {
		cmd := command()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for !exists(sign) && !exists("new.safetensors") {
			time.Sleep(100 * time.Microsecond)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if exists("new.safetensors") {
			t.Logf("it was quicker than the kill at %s", sign)
		}
	}
	finish(t, command(), done)
	if !bytes.Equal(contents(t, "new.safetensors"), want) {
		t.Error("killed, it ends in another detector")
	}
}
