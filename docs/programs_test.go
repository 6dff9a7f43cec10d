package docs_test

import (
	"fmt"
	"image"
	"image/color"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// build builds mlrbfn, with links to it that are one command each, and the example of the
// README.
func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "../cmd/mlrbfn", "../examples/gate").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"extract", "train", "detect"} {
		if err := os.Symlink("mlrbfn", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// output runs a program and returns what it prints.
func output(t *testing.T, dir string, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", program, args, err, out, &stderr)
	}
	return string(out)
}

// draw writes a noisy picture; those of one kind look alike.
func draw(t *testing.T, path string, kind int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(kind)))
	img := image.NewGray(image.Rect(0, 0, 64, 48))
	for y := range 48 {
		for x := range 64 {
			v := [3]int{(x / 16 % 2) * 150, (y / 12 % 2) * 150, (x*3 + y*5 + int(seed)*7) % 200}[kind]
			img.Set(x, y, color.Gray{uint8(v + rng.IntN(50))})
		}
	}
	testenv.SavePNG(t, path, img)
}

func TestPrograms(t *testing.T) {
	bin, dir := build(t), t.TempDir()
	for i := range 20 {
		draw(t, filepath.Join(dir, "images", "columns", fmt.Sprintf("%02d.png", i)), 0, uint64(i))
		draw(t, filepath.Join(dir, "images", "rows", fmt.Sprintf("%02d.png", i)), 1, uint64(i))
	}
	draw(t, filepath.Join(dir, "other.png"), 2, 0)
	program := func(name string) string { return filepath.Join(bin, name) }

	if got := output(t, dir, program("mlrbfn"), "--version"); !strings.HasPrefix(got, "mlrbfn ") {
		t.Errorf("--version prints %s", got)
	}
	// The three programs, and mlrbfn, do the same.
	output(t, dir, program("extract"), "--model", "pixels", "--size", "8", "--images", "images", "--out", "features")
	train := []string{"--features", "features", "--epochs", "2", "--calibration", "0.5"}
	output(t, dir, program("train"), append(train, "--out", "detector")...)
	output(t, dir, program("mlrbfn"), append([]string{"train", "--out", "again"}, train...)...)
	verdicts := output(t, dir, program("detect"), "--detector", "detector", "--json", "images/rows", "other.png")
	if got := output(t, dir, program("mlrbfn"), "detect", "--detector", "again", "--json", "images/rows", "other.png"); got != verdicts || strings.Count(got, "\n") != 21 {
		t.Errorf("mlrbfn detect prints\n%s\nand detect\n%s", got, verdicts)
	}

	t.Run("example", func(t *testing.T) {
		t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
		out := output(t, dir, program("gate"), testenv.Backbone(t), "images", "images/rows/00.png", "other.png")
		if rows := strings.Split(strings.TrimSpace(out), "\n"); len(rows) != 2 || !strings.Contains(rows[0], "00.png rows") || !strings.Contains(rows[1], "other.png") {
			t.Errorf("gate prints\n%s", out)
		}
	})
}

// TestShownExample: the program that the pages show is examples/gate.
func TestShownExample(t *testing.T) {
	source, err := os.ReadFile("../examples/gate/main.go")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for block := range strings.SplitSeq(string(text), "```go\n") {
			block, _, _ = strings.Cut(block, "```")
			if !strings.HasPrefix(block, "if _, err := pipeline.Extract(") {
				continue
			}
			shown++
			if indented := strings.ReplaceAll("\n"+block, "\n", "\n\t"); !strings.Contains(string(source), strings.TrimSuffix(indented, "\t")) {
				t.Errorf("%s shows other lines than examples/gate has", page)
			}
		}
	}
	if shown == 0 {
		t.Error("no page shows examples/gate")
	}
}
