package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// miniature makes OpenOOD's data root for CIFAR-10 with few images, without MNIST,
// SVHN and Places365.
func miniature(t *testing.T) string {
	t.Helper()
	images, data := testenv.Shared(t, "data", "images"), t.TempDir()
	link := func(name, to string) {
		to = filepath.Join(data, classic, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.Symlink(filepath.Join(images, name), to)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cifar10", "cifar100", "tin", "texture"} {
		link(name, name)
	}
	lists := filepath.Join(data, "benchmark_imglist", "cifar10")
	if err := os.MkdirAll(lists, 0o777); err != nil {
		t.Fatal(err)
	}
	list := func(name, dir string, from, to int, labelled bool) {
		classes, err := os.ReadDir(filepath.Join(images, dir))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for i, class := range classes[:10] {
			files, err := os.ReadDir(filepath.Join(images, dir, class.Name()))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files[min(from, len(files)):min(to, len(files))] {
				label := -1
				if labelled {
					label = i
				}
				fmt.Fprintf(&text, "%s/%s/%s %d\n", dir, class.Name(), f.Name(), label)
			}
		}
		write(t, filepath.Join(lists, name+".txt"), text.String())
	}
	list("train_cifar10", "cifar10/train", 0, 16, true)
	list("test_cifar10", "cifar10/test", 0, 6, true)
	list("val_cifar10", "cifar10/test", 6, 9, true)
	list("test_cifar100", "cifar100/test", 0, 5, false)
	list("test_tin", "tin/val", 0, 5, false)
	list("test_texture", "texture", 0, 4, false)
	return data
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, elem ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReproduce(t *testing.T) {
	data, model := miniature(t), testenv.Shared(t, "models", "resnet20-cifar10")
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	out := filepath.Join(t.TempDir(), "out")
	reproduce := func(extra ...string) (stdout, stderr string) {
		t.Helper()
		args := append([]string{"cifar10", "--data", data, "--model", "CLIP=" + model, "--out", out, "--quiet", "--bootstrap", "0",
			"--methods", "mlrbfn,msp,knn", "--seeds", "0,1", "--epochs", "2"}, extra...)
		var o, e bytes.Buffer
		if err := run(context.Background(), args, &o, &e); err != nil {
			t.Fatalf("%v\n%s", err, e.String())
		}
		return o.String(), e.String()
	}
	stdout, _ := reproduce()
	comparison := read(t, out, "cifar10", "comparison.md")
	if !strings.HasPrefix(stdout, comparison) {
		t.Errorf("standard output is not the comparison that the folder has:\n%s", stdout)
	}
	for _, want := range []string{
		"svhn is left out: there is no " + filepath.Join(data, "benchmark_imglist", "cifar10", "test_svhn.txt"),
		"means over the sets that were found, the paper's over all; OpenOOD's scripts/download/download.py",
		"over the seeds 0,1; MLRBFNs trained for 2 epochs",
		"\n| the paper's MSP | DINOv2 | – | 86.74 ± 0.50 | – | 90.30 ± 1.59 | – | 98.13 ± 0.09 |\n",
		"\n| the paper's RMDS | CLIP | – | 17.33 ± 0.00 | – | 8.50 ± 0.00 | – | 95.92 ± 0.09 |\n",
	} {
		if !strings.Contains(comparison, want) {
			t.Errorf("no %q in\n%s", want, comparison)
		}
	}
	// The paper's numbers are printed next to those of the backbone of that name, for each head.
	for _, method := range []string{"mlrbfn", "mlrbfn (as published)", "msp", "msp (plain)", "msp (MLP)", "knn"} {
		lines := 0
		for line := range strings.Lines(comparison) {
			if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| "+method+" | CLIP | ") {
				lines++
				for i, cell := range cells[2:] {
					if strings.Contains(cell, "–") {
						t.Errorf("number %d is missing: %s", i, line)
					}
				}
			}
		}
		if lines != 3 {
			t.Errorf("%s has %d lines, want one for each of three metrics", method, lines)
		}
	}
	if tables := read(t, out, "tables.md"); !strings.Contains(tables, "Best Outlier Exp.") || !strings.Contains(tables, "msp (MLP), CLIP") {
		t.Errorf("tables.md:\n%s", tables)
	}
	if !exists(out, "cifar10", "reports", "CLIP", "paper", "report.html") || exists(out, "cifar10", "features", "CLIP", "svhn") {
		t.Error("no report, or features of a set that is not there")
	}

	kept := "CLIP/linear is up to date"
	if again, stderr := reproduce(); !strings.Contains(stderr, kept) || again != stdout {
		t.Errorf("the second run evaluated again or printed something else:\n%s%s", stderr, again)
	}
	if _, stderr := reproduce("--again"); strings.Contains(stderr, kept) {
		t.Errorf("--again kept a report:\n%s", stderr)
	}
	if _, stderr := reproduce("--seeds", "0,2"); strings.Contains(stderr, kept) {
		t.Errorf("the report of other seeds was kept:\n%s", stderr)
	}
}

func TestReproduceRefuses(t *testing.T) {
	empty := t.TempDir()
	for _, test := range []struct {
		args  []string
		texts []string
	}{
		{[]string{}, []string{"one data set"}},
		{[]string{"mnist"}, []string{"mnist", "cifar100", "heads"}},
		{[]string{"cifar10"}, []string{"--model is needed", "DINOv2"}},
		{[]string{"cifar10", "--model", "a=x", "--model", "a=y"}, []string{"distinct names"}},
		{[]string{"cifar10", "--model", "x", "--seeds", "a"}, []string{"seed"}},
		{[]string{"cifar10", "--model", "x", "--contests", "linear,none"}, []string{"--contests", "paper"}},
		{[]string{"imagenet1k", "--model", "x", "--data", empty}, []string{"train images", "train_imagenet.txt", "download.py"}},
	} {
		err := run(context.Background(), test.args, &bytes.Buffer{}, &bytes.Buffer{})
		if err == nil {
			t.Errorf("%q is taken", test.args)
			continue
		}
		for _, text := range test.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q: %v says nothing of %q", test.args, err, text)
			}
		}
		if _, wrong := errors.AsType[*command.UsageError](err); wrong == strings.Contains(test.texts[0], "images") {
			t.Errorf("%q: %v: a missing file must be a failure, other errors wrong usage", test.args, err)
		}
	}
}

// Every list of the paper's grids is one of OpenOOD's, and every stand-in is in
// the shared folder, which does not have ImageNet's training lists.
func TestGrids(t *testing.T) {
	data := testenv.Shared(t, "data")
	lists := read(t, data, "lists", "openood", "SOURCES.csv")
	paper, standIns := grids()
	for key, g := range paper {
		sets := append([]set{g.test, *g.val}, append(g.near, g.far...)...)
		if strings.HasPrefix(key, "cifar") {
			sets = append(sets, g.train)
		}
		for _, s := range sets {
			if name := strings.TrimPrefix(s.list, "benchmark_imglist/"); !strings.Contains(lists, "\n"+name+",") {
				t.Errorf("%s: OpenOOD has no list %s", key, name)
			}
		}
	}
	for key, g := range standIns {
		if _, ok := paper[key]; !ok || g.standIn == "" {
			t.Errorf("%s does not say what it stands for", key)
		}
		for _, s := range append([]set{g.train, g.test}, append(g.near, g.far...)...) {
			if path, err := s.absent(data); path != "" || err != nil {
				t.Errorf("%s: %s is not there: %v", key, path, err)
			}
		}
	}
}

// Each superclass has four classes that are known and one that is new, and its parts
// have every image of them once.
func TestSuperclasses(t *testing.T) {
	data := testenv.Shared(t, "data")
	all, err := superclasses(data)
	if err != nil || len(all) != 20 {
		t.Fatalf("%d superclasses: %v", len(all), err)
	}
	g := all["fish"]
	lines := map[string]int{}
	for _, s := range []set{g.train, g.test, g.near[0]} {
		opts, err := s.source(data, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(read(t, opts.List)) {
			path, label, _ := strings.Cut(strings.TrimSpace(line), " ")
			lines[s.name+" "+filepath.Dir(path)+" "+label]++
		}
	}
	want := map[string]int{"fish-new trout 0": 200}
	for i, class := range []string{"aquarium_fish", "flatfish", "ray", "shark"} {
		want[fmt.Sprintf("fish-train %s %d", class, i)], want[fmt.Sprintf("fish-test %s %d", class, i)] = 150, 50
	}
	if !maps.Equal(lines, want) {
		t.Errorf("%v, want %v", lines, want)
	}
}

func TestReadLogits(t *testing.T) {
	for _, m := range readLogits {
		if !slices.Contains(posthoc.Names(), m) {
			t.Errorf("there is no score %s", m)
		}
	}
}

// The parts of a tree are disjoint, and have every class with its own number.
func TestParts(t *testing.T) {
	data := testenv.Shared(t, "data")
	out := t.TempDir()
	seen := map[string]bool{}
	for _, part := range []int{trainPart, testPart} {
		opts, err := set{name: fmt.Sprint(part), root: "images/cifar100/test", part: part}.source(data, out)
		if err != nil {
			t.Fatal(err)
		}
		classes := map[string]string{}
		for line := range strings.Lines(read(t, opts.List)) {
			path, label, _ := strings.Cut(strings.TrimSpace(line), " ")
			if seen[path] {
				t.Fatalf("%s is in both parts", path)
			}
			seen[path], classes[label] = true, filepath.Dir(path)
		}
		if len(classes) != 100 {
			t.Errorf("part %d has %d classes", part, len(classes))
		}
	}
	if len(seen) != 2000 {
		t.Errorf("%d images in both parts", len(seen))
	}
}

// Every number is in the line of the paper that paper.csv names.
func TestPaperFigures(t *testing.T) {
	lines := strings.Split(read(t, testenv.Shared(t, "paper", "mlrbfn.tex")), "\n")
	for row := range strings.Lines(paperCSV) {
		fields := strings.Split(strings.TrimSpace(row), ",")
		if fields[0] == "metric" {
			continue
		}
		at, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		column := map[string]int{"CIFAR10": 0, "CIFAR100": 1, "ImageNet200": 2, "ImageNet1K": 3}[fields[2]]
		cells := strings.Split(lines[at-1], "&")
		cells = cells[len(cells)-12:][3*column:]
		for k, cell := range cells[:3] {
			for _, number := range fields[5+2*k : 7+2*k] {
				if !strings.Contains(cell, number) {
					t.Errorf("line %d: no %s in %s", at, number, cell)
				}
			}
		}
	}
	if all, err := readPaper(paperCSV); err != nil || len(all) != 226 {
		t.Errorf("%d cells, want 9 lines of 4 benchmarks but for two, and 3 × 16 of 4: %v", len(all), err)
	}
}
