package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestScript runs the whole experiment with a small network on the committed
// data set (extractor/testdata/generate_pixels.py), which is easy.
func TestScript(t *testing.T) {
	for _, row := range reproduce(t, "testdata", 60, 64) {
		if row[0] < 0.9 || row[1] < 0.85 || row[2] < 0.85 || row[4] < 0.85 {
			t.Errorf("train, test, AUROC and FPR@95 twice: %v", row)
		}
	}
}

// TestScriptOnMNIST runs it on 2,000 of the real digits.
func TestScriptOnMNIST(t *testing.T) {
	from, dir := testenv.Shared(t, "data", "idx"), t.TempDir()
	for name, n := range map[string]uint32{"mnist/train": 2000, "mnist/t10k": 500, "fashion_mnist/t10k": 500, "kmnist/t10k": 500} {
		shorten(t, filepath.Join(from, name+"-images-idx3-ubyte.gz"), filepath.Join(dir, name+"-images-idx3-ubyte.gz"), n)
		shorten(t, filepath.Join(from, name+"-labels-idx1-ubyte.gz"), filepath.Join(dir, name+"-labels-idx1-ubyte.gz"), n)
	}
	for _, row := range reproduce(t, dir, 12, 784) {
		if row[0] < 0.6 || row[1] < 0.5 || row[2] < 0.6 || row[4] < 0.6 {
			t.Errorf("train, test, AUROC and FPR@95 twice: %v", row)
		}
	}
}

// shorten writes an idx file of the first n images or labels of another. Only its
// name says that it is gzipped: readers check the content.
func shorten(t *testing.T, from, to string, n uint32) {
	t.Helper()
	data, err := exec.Command("gzip", "-dc", from).Output()
	if err != nil {
		t.Skipf("gzip: %v", err)
	}
	head, size := 4+4*int(data[3]), 1
	for at := 8; at < head; at += 4 {
		size *= int(binary.BigEndian.Uint32(data[at:]))
	}
	binary.BigEndian.PutUint32(data[4:], n)
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data[:head+int(n)*size], 0o666); err != nil {
		t.Fatal(err)
	}
}

var built struct {
	sync.Once
	dir string
	err error
}

// programs builds what the script needs, once for all tests.
func programs(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "mlrbfn"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", built.dir, "github.com/mlrbfn/mlrbfn/cmd/mlrbfn", "github.com/mlrbfn/mlrbfn/scripts/mnist")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// reproduce runs the script with three seeds on dir, whose images have d pixels,
// checks its output files and returns the printed metrics of each seed.
func reproduce(t *testing.T, dir string, epochs, d int) [][]float64 {
	t.Helper()
	if testing.Short() {
		t.Skip("it trains three networks")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	cmd := exec.Command(bash, filepath.Join(testenv.Root(t), "scripts", "reproduce"), "mnist", "--data", dir, "--out", out, "--epochs", strconv.Itoa(epochs),
		"--batch", "50", "--centroids", "20", "--lr", "0.01", "--quiet")
	// No onnxruntime library is needed.
	cmd.Env = append(os.Environ(), "ONNXRUNTIME_SHARED_LIBRARY_PATH=/nowhere/libonnxruntime.so", "PROGRAMS="+programs(t))
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	set, err := features.Open(t.Context(), filepath.Join(out, "features", "train"))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if set.D != d || set.Model != "pixels" || set.Output != "pixels" || len(set.Classes) != 10 {
		t.Errorf("%+v", set.Meta)
	}
	img, err := os.Open(filepath.Join(out, "mnist.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if _, err := png.Decode(img); err != nil {
		t.Error(err)
	}
	if svg, err := os.ReadFile(filepath.Join(out, "mnist.svg")); err != nil || !strings.Contains(string(svg), "Fashion-MNIST") {
		t.Errorf("the SVG: %v", err)
	}
	_, table, ok := strings.Cut(stdout.String(), "seed ")
	lines := strings.Split(table, "\n")
	if !ok || len(lines) < 7 || !strings.Contains(lines[5], "paper") {
		t.Fatalf("it prints\n%s", stdout.String())
	}
	var rows [][]float64
	for seed, line := range lines[1:4] {
		cells := strings.Fields(line)
		if len(cells) != 7 || cells[0] != strconv.Itoa(seed) {
			t.Fatalf("the line of seed %d is %q", seed, line)
		}
		var row []float64
		for _, cell := range cells[1:] {
			v, err := strconv.ParseFloat(cell, 64)
			if err != nil || !(v >= 0 && v <= 1) {
				t.Fatalf("%q in %q: %v", cell, line, err)
			}
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestTable: the mean and the deviation are over the seeds.
func TestTable(t *testing.T) {
	var b bytes.Buffer
	results := []result{{metrics: []float64{1, 0.5, 0.25, 0}}, {metrics: []float64{0.5, 0.5, 0.75, 1}}}
	if err := writeTable(&b, []uint64{4, 9}, []string{"train", "test", "zoo"}, results); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	want := "seed train test zoo AUROC FPR@95 4 1.0000 0.5000 0.2500 0.0000 9 0.5000 0.5000 0.7500 1.0000 " +
		"mean ± std 0.7500 ± 0.2500 0.5000 ± 0.0000 0.5000 ± 0.2500 0.5000 ± 0.5000"
	if got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
}

func TestFigureOfConfidencesOfZero(t *testing.T) {
	dir := t.TempDir()
	scores := [][]float64{{0, -1, math.Inf(-1)}, {-1000}}
	if err := drawFigure([]string{"in", "out"}, scores, filepath.Join(dir, "f.svg")); err != nil {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--detector", "d", "--train", "f", "--test", "f", "--ood", "f"}, {"--detector", "d", "--train", "f", "--test", "f", "--ood", "n=f", "x"}} {
		err := run(t.Context(), args, io.Discard, io.Discard)
		if usage := new(command.UsageError); !errors.As(err, &usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
