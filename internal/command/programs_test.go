package command

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

var temporary string // holds the world; removed at the end

// asProgram makes the test binary be the program.
const asProgram = "MLRBFN_TEST_AS_PROGRAM"

// peakFile names the file to which the program writes what Linux says of its
// memory. The resource usage of a process would not do: it begins with that of the
// process that started it.
const peakFile = "MLRBFN_TEST_PEAK"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if file := os.Getenv(peakFile); file != "" {
			code := Run(context.Background(), os.Args[1:], Streams{os.Stdin, os.Stdout, os.Stderr})
			if status, err := os.ReadFile("/proc/self/status"); err == nil {
				os.WriteFile(file, status, 0o666)
			}
			os.Exit(code)
		}
		Main()
	}
	var err error
	if temporary, err = os.MkdirTemp("", "mlrbfn"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(temporary)
	os.Exit(code)
}

// process prepares a command in a process of its own, which is this test's
// binary.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// finish runs a process and checks its exit code.
func finish(t *testing.T, cmd *exec.Cmd, code int) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%s: exit code %d, want %d\n%s%s", strings.Join(cmd.Args, " "), got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// try runs a command in this process and returns its error.
func try(t *testing.T, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	s := Streams{stdin, &out, &errs}
	ran, err := execute(t.Context(), newRoot(), args, s)
	tell(&errs, ran.CommandPath(), err)
	return out.String(), errs.String(), err
}

// call runs a command in this process and checks its exit code.
func call(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := try(t, strings.NewReader(""), args...)
	if got := exitCode(err); got != code {
		t.Fatalf("%s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	return stdout, stderr
}

// fails runs a command that must fail with one line that says something.
func fails(t *testing.T, says string, args ...string) {
	t.Helper()
	_, stderr := call(t, failed, args...)
	line := strings.TrimSuffix(stderr, "\n")
	if !strings.HasPrefix(line, "mlrbfn "+args[0]+": ") || strings.Contains(line, "\n") || !strings.Contains(line, says) {
		t.Errorf("%s says %q, want one line with %q", strings.Join(args, " "), stderr, says)
	}
}

// refused runs a command whose arguments are wrong; the error is about the
// flags or the words that are named.
func refused(t *testing.T, about string, args ...string) {
	t.Helper()
	stdout, _, err := try(t, strings.NewReader(""), args...)
	e, ok := errors.AsType[*UsageError](err)
	if !ok || exitCode(err) != usage || stdout != "" {
		t.Errorf("%s: %v, want a UsageError", strings.Join(args, " "), err)
	} else if !strings.Contains(e.Error(), about) {
		t.Errorf("%s: %v says nothing of %s", strings.Join(args, " "), err, about)
	}
}

// picture draws a noisy disc, square or ramp; kinds look different to any
// backbone.
func picture(t *testing.T, path string, kind int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(kind)))
	img := image.NewNRGBA(image.Rect(0, 0, 64, 48))
	dx, dy := rng.IntN(20)-10, rng.IntN(12)-6
	for y := range 48 {
		for x := range 64 {
			v := 40
			switch fx, fy := x-32-dx, y-24-dy; kind {
			case 0:
				if fx*fx+fy*fy < 220 {
					v = 220
				}
			case 1:
				if max(fx, -fx, fy, -fy) < 9 && (fx+fy)%5 != 0 {
					v = 200
				}
			default:
				v = (x*3 + y*5 + int(seed)*7) % 256
			}
			n := rng.IntN(30)
			img.Set(x, y, color.NRGBA{uint8(min(v+n, 255)), uint8(min(v+n*kind, 255)), uint8(255 - min(v+n, 255)), 255})
		}
	}
	testenv.SavePNG(t, path, img)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
		t.Fatal(err)
	}
}

// world is a folder of pictures of two classes, features of it, those of pixels
// too, and a detector.
type world struct{ dir, model, images, features, pixels, detector string }

var (
	worldOnce sync.Once
	theWorld  world
)

// shortTraining returns the command train with these arguments, and without what takes
// long with 1,280 features.
func shortTraining(args ...string) []string {
	return append([]string{"train", "--conditioning", "standardise", "--scores", detector.HeadScore}, args...)
}

func newWorld(t *testing.T) world {
	t.Helper()
	model := testenv.Backbone(t)
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	worldOnce.Do(func() {
		dir := filepath.Join(temporary, "world")
		w := world{dir, model, filepath.Join(dir, "images"), filepath.Join(dir, "features"), filepath.Join(dir, "pixels"), filepath.Join(dir, "detector.safetensors")}
		for i := range 60 {
			picture(t, filepath.Join(w.images, "disc", fmt.Sprintf("%02d.png", i)), 0, uint64(i))
			picture(t, filepath.Join(w.images, "square", fmt.Sprintf("%02d.png", i)), 1, uint64(i))
		}
		write(t, filepath.Join(w.images, "labels.csv"), "no image\n")
		call(t, 0, "extract", "--model", model, "--images", w.images, "--out", w.features)
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", w.pixels)
		call(t, 0, shortTraining("--features", w.features, "--out", w.detector, "--epochs", "30", "--layers", "2",
			"--centroids", "10", "--projection", "10", "--calibration", "0.3", "--batch", "32", "--lr", "0.01")...)
		theWorld = w
	})
	if theWorld.dir == "" {
		t.Skip("the chain did not run")
	}
	return theWorld
}

func lines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var rows []map[string]any
	for line := range strings.Lines(text) {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		rows = append(rows, row)
	}
	return rows
}

func TestChain(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 10 {
		picture(t, filepath.Join(dir, "new", "known", fmt.Sprintf("d%d.png", i)), 0, uint64(100+i))
		picture(t, filepath.Join(dir, "new", "strange", fmt.Sprintf("%d.png", i)), 2, uint64(i))
	}
	out, stderr := call(t, 0, "detect", "--detector", w.detector, "--format", "jsonl", filepath.Join(dir, "new"))
	rows := lines(t, out)
	if len(rows) != 20 || !strings.Contains(stderr, "20 images") {
		t.Fatalf("%d rows; %s", len(rows), stderr)
	}
	right, caught := 0, 0
	for i, r := range rows {
		want := filepath.ToSlash(filepath.Join(dir, "new", "known", fmt.Sprintf("d%d.png", i)))
		if i >= 10 {
			want = filepath.ToSlash(filepath.Join(dir, "new", "strange", fmt.Sprintf("%d.png", i-10)))
		}
		if r["path"] != want || len(r) != 6 {
			t.Errorf("row %d: %v, want path %s and six fields", i, r, want)
		}
		confidence, p := r["confidence"].(float64), r["p_value"].(float64)
		if _, ok := r["score"].(float64); !ok || !(confidence >= 0 && confidence <= 1) || !(p > 0 && p <= 1) {
			t.Errorf("row %d: %v", i, r)
		}
		if i < 10 && r["class"] == "disc" {
			right++
		}
		if i >= 10 && r["ood"] == true {
			caught++
		}
	}
	if right < 9 || caught < 8 {
		t.Errorf("%d of 10 discs recognised, %d of 10 OOD images caught", right, caught)
	}

	table, _ := call(t, 0, "detect", "--detector", w.detector, filepath.Join(dir, "new"))
	if got := strings.Count(table, "\n"); got != 21 || strings.Count(table, "OOD") != strings.Count(out, `"ood":true`) {
		t.Errorf("the table has %d lines:\n%s", got, table)
	}
	text, _ := call(t, 0, "detect", "--detector", w.detector, "--format", "csv", filepath.Join(dir, "new"))
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(records) != 21 || strings.Join(records[0], ",") != "path,class,confidence,score,ood,p_value,error" {
		t.Errorf("CSV: %v, %v", err, records)
	}
	if _, stderr := call(t, 4, "detect", "--detector", w.detector, "--fail-on-ood", filepath.Join(dir, "new")); !strings.Contains(stderr, "out of distribution") {
		t.Error(stderr)
	}
	all, _ := call(t, 0, "detect", "--detector", w.detector, "--json", "--quiet", "--threshold", "100", filepath.Join(dir, "new"))
	if strings.Count(all, `"ood":true`) != 20 {
		t.Errorf("with a threshold above every score:\n%s", all)
	}
}

// TestPixels runs the chain on pixels, without an onnxruntime library: image
// folders, lists and idx files, interrupted and repeated.
func TestPixels(t *testing.T) {
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", "/nowhere/libonnxruntime.so")
	dir := t.TempDir()
	at := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	for i := range 20 {
		picture(t, at("images", "disc", fmt.Sprintf("%02d.png", i)), 0, uint64(i))
		picture(t, at("images", "square", fmt.Sprintf("%02d.png", i)), 1, uint64(i))
	}
	extract := func(code int, args ...string) map[string]any {
		t.Helper()
		out, _ := call(t, code, append([]string{"extract", "--model", "pixels", "--json", "--quiet"}, args...)...)
		return lines(t, out)[0]
	}
	small := []string{"--size", "16x12", "--mean", "0.5", "--std", "0.25,0.25,0.25"}
	text, _ := finish(t, process(t, append(append([]string{"extract", "--model", "pixels", "--json"}, small...), "--images", at("images"), "--out", at("features"))...), 0)
	if got := lines(t, text)[0]; got["d"] != 16*12*3. || got["new"] != 40. {
		t.Errorf("%v", got)
	}
	picture(t, at("images", "disc", "new.png"), 0, 99)
	if got := extract(0, append(small, "--images", at("images"), "--out", at("features"))...); got["new"] != 1. || got["reused"] != 40. {
		t.Errorf("one image more: %v", got)
	}
	fails(t, "--force", "extract", "--model", "pixels", "--images", at("images"), "--out", at("features"), "--size", "16x12", "--quiet")
	write(t, at("list.txt"), "disc/01.png 0\nsquare/02.png 1\n")
	if got := extract(0, "--size", "16x12", "--channels", "grey", "--images", at("images"), "--list", at("list.txt"), "--out", at("listed")); got["d"] != 16*12. || got["n"] != 2. {
		t.Errorf("a list: %v", got)
	}
	// Without --size the first image tells the size, and others are errors.
	write(t, at("images", "square", "zz.gif"), "GIF87a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")
	out, stderr := call(t, 3, "extract", "--model", "pixels", "--images", at("images"), "--out", at("own size"))
	if !strings.Contains(out, "41 images × 9216 features") || !strings.Contains(stderr, "square/zz.gif: --size: image of another size: 1×1 pixels, want 64×48") {
		t.Errorf("%s%s", out, stderr)
	}

	call(t, 0, "train", "--features", at("features"), "--out", at("detector"), "--epochs", "20", "--layers", "2",
		"--centroids", "10", "--projection", "10", "--batch", "16", "--lr", "0.01", "--calibration", "0.5", "--quiet")
	verdicts, _ := finish(t, process(t, "detect", "--detector", at("detector"), "--json", "--quiet", at("images", "disc"), at("images", "square", "zz.gif")), 0)
	if rows := lines(t, verdicts); len(rows) != 22 || rows[21]["class"] == nil {
		t.Errorf("%d verdicts, the last %v", len(rows), rows[len(rows)-1])
	}
	digits := filepath.Join("..", "..", "scripts", "mnist", "testdata", "mnist")
	verdicts, _ = call(t, 0, "detect", "--detector", at("detector"), "--json", "--quiet", filepath.Join(digits, "t10k-images-idx3-ubyte.gz"), at("images", "disc", "01.png"))
	rows := lines(t, verdicts)
	if want := filepath.ToSlash(digits) + "/t10k-images-idx3-ubyte.gz#99"; len(rows) != 101 || rows[99]["path"] != want || rows[99]["score"] == nil {
		t.Errorf("%d verdicts, number 99 is %v, want path %s", len(rows), rows[99], want)
	}
	fails(t, "trained on pixels", "detect", "--detector", at("detector"), "--model", at("images"), "--quiet", at("images"))

	fails(t, "name one of them", "extract", "--model", "pixels", "--images", digits, "--out", at("digits"), "--quiet")
	for says, args := range map[string][]string{
		"--size 0":        {"--size", "0"},
		"--size 3x":       {"--size", "3x"},
		"--channels blue": {"--channels", "blue"},
		"--pool":          {"--pool", "cls"},
		"--device":        {"--device", "cpu"},
	} {
		refused(t, says, append([]string{"extract", "--model", "pixels", "--images", at("images"), "--out", at("x")}, args...)...)
	}
	refused(t, "--size", "extract", "--model", at("model"), "--images", at("images"), "--out", at("x"), "--size", "8")
}

func TestTrainJSON(t *testing.T) {
	w := newWorld(t)
	out, _ := call(t, 0, "train", "--features", w.pixels, "--out", filepath.Join(t.TempDir(), "d"), "--epochs", "3", "--seeds", "0,5", "--calibration", "0.3", "--json", "--quiet")
	rows := lines(t, out)
	last := rows[len(rows)-1]
	for _, key := range []string{"epochs", "steps", "steps_per_second", "seconds", "train_loss", "val_loss", "val_accuracy", "threshold"} {
		if _, ok := last[key].(float64); !ok {
			t.Errorf("%s is %v", key, last[key])
		}
	}
	if interval, ok := last["false_alarms"].([]any); !ok || len(interval) != 2 || last["scores"] != "mlrbfn" {
		t.Errorf("false alarms %v of the score %v", last["false_alarms"], last["scores"])
	}
	if last["epochs"] != 3. || last["steps"] != 6. { // 72 rows, one batch, two heads
		t.Errorf("%v", last)
	}
}

// A detector that judges by an ensemble: its threshold is of that score.
func TestTrainScores(t *testing.T) {
	w := newWorld(t)
	detector := filepath.Join(t.TempDir(), "d.safetensors")
	out, _ := call(t, 0, "train", "--features", w.pixels, "--out", detector, "--epochs", "3", "--calibration", "0.3", "--max-false-alarms", "0.2", "--scores", "ensemble(gen,mds++)", "--quiet")
	if !strings.Contains(out, "score ensemble(gen,mds++), set by 36 calibration images to flag at most 20%") || !strings.Contains(out, "long-run false alarms") {
		t.Errorf("train:\n%s", out)
	}
	out, _ = call(t, 0, "detect", "--detector", detector, "--format", "jsonl", "--quiet", w.images)
	flagged, rows := 0, lines(t, out)
	for _, row := range rows {
		if row["ood"].(bool) {
			flagged++
		}
	}
	if len(rows) == 0 || flagged > len(rows)/2 {
		t.Errorf("%d of %d training images flagged", flagged, len(rows))
	}
	if out, _ := call(t, 0, "export", "--detector", detector, "--out", filepath.Join(t.TempDir(), "d.onnx")); !strings.Contains(out, "score ensemble(gen,mds++)") {
		t.Errorf("export:\n%s", out)
	}
}

func TestEvaluate(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 15 {
		picture(t, filepath.Join(dir, "id", "disc", fmt.Sprintf("%d.png", i)), 0, uint64(200+i))
		picture(t, filepath.Join(dir, "id", "square", fmt.Sprintf("%d.png", i)), 1, uint64(200+i))
		picture(t, filepath.Join(dir, "ramps", fmt.Sprintf("%d.png", i)), 2, uint64(i))
		picture(t, filepath.Join(dir, "more", fmt.Sprintf("%d.png", i)), 3, uint64(i))
	}
	for _, set := range []string{"id", "ramps", "more"} {
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", filepath.Join(dir, set), "--out", filepath.Join(dir, set+"-f"), "--quiet")
	}
	report, own := filepath.Join(dir, "report"), detector.JoinedScore
	args := []string{"--train", w.pixels, "--id", filepath.Join(dir, "id-f"), "--near", "ramps=" + filepath.Join(dir, "ramps-f"), "--far", "more=" + filepath.Join(dir, "more-f"),
		"--out", report, "--epochs", "20", "--lr", "0.01", "--batch", "32", "--conditioning", "l2", "--seeds", "3,4", "--methods", own + ",msp,mds++,ensemble(gen,mds++)", "--memory", "128MiB"}
	out, _ := call(t, 0, append([]string{"evaluate"}, args...)...)
	if !strings.Contains(out, "AUROC") || !strings.Contains(out, own) || !strings.Contains(out, "±") {
		t.Errorf("the table:\n%s", out)
	}
	text, err := os.ReadFile(filepath.Join(report, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(records[0], ","); got != "method,seed,group,dataset,n_id,n_ood,auroc,aupr_out,aupr_in,fpr95,fpr95_id,id_acc" {
		t.Errorf("columns %s", got)
	}
	if len(records) != 1+4*4*4 { // methods × (ramps, more and both means) × (3, 4, mean, std)
		t.Errorf("%d rows:\n%s", len(records), text)
	}
	// NumPy computes the AUROC from the scores again.
	testenv.Python(t, `
import csv, sys, numpy as np
for r in csv.DictReader(open(sys.argv[1] + "/results.csv")):
    if r["dataset"] == "mean" or r["seed"] in ("mean", "std"): continue
    p = f'{sys.argv[1]}/scores/{r["method"]}/{r["seed"]}/'
    a, b = np.load(p + "id.npy"), np.load(p + r["dataset"] + ".npy")
    assert a.dtype == np.float64 and len(a) == int(r["n_id"]) == 30 and len(b) == int(r["n_ood"]) == 15
    auroc = ((a[:, None] > b) + 0.5 * (a[:, None] == b)).mean()
    assert abs(auroc - float(r["auroc"])) < 1e-12, (r, auroc)
`, report)

	page, err := os.ReadFile(filepath.Join(report, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"evaluate --train", "--seeds 3,4", "data:image/jpeg;base64,", "1000 resamples", "msp on ramps (near-OOD)", "Accuracy against coverage", "square/", "nearest in training"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("report.html lacks %q", want)
		}
	}
	if tables, err := os.ReadFile(filepath.Join(report, "tables.md")); err != nil || strings.Count(string(tables), "| "+own+" |") != 3 {
		t.Errorf("tables.md: %v\n%s", err, tables)
	}

	// A trained detector in place of training: the same metrics as its own seed.
	detector := filepath.Join(dir, "d")
	call(t, 0, "train", "--features", w.pixels, "--out", detector, "--epochs", "3", "--calibration", "0.3", "--quiet")
	out, _ = call(t, 0, append(append([]string{"evaluate"}, args[:8]...), "--out", filepath.Join(dir, "r2"), "--detector", detector, "--methods", "mlrbfn,msp", "--seeds", "0", "--quiet", "--json")...)
	var j evaluationJSON
	if err := json.Unmarshal([]byte(out), &j); err != nil || len(j.Results) != 2*4*3 || len(j.Intervals) != 2*4 || len(j.Differences) != 2 || len(j.Findings) < 2 || j.Own != "mlrbfn" ||
		j.Confidence.Images != 30 || len(j.Detector) != 4 || !j.Detector[0].Known || j.Detector[1].Images != 15 {
		t.Errorf("%v\n%s", err, out)
	}
	for i, r := range j.Results {
		if r.Dataset == "mean" || r.Seed != "mean" {
			continue
		}
		for _, in := range j.Intervals {
			if in.Method == r.Method && in.Dataset == r.Dataset && (*r.AUROC < in.AUROC[0] || *r.AUROC > in.AUROC[1] || *r.FPR95ID < in.FPR95ID[0]) {
				t.Errorf("result %d: %+v in %+v", i, r, in)
			}
		}
	}
}

// TestAblate runs the smallest ablation, for which the OOD images of one class
// do.
func TestAblate(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for i := range 15 {
		picture(t, filepath.Join(dir, "ramps", fmt.Sprintf("%d.png", i)), 2, uint64(i))
	}
	ramps, report := filepath.Join(dir, "ramps-f"), filepath.Join(dir, "report")
	call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", filepath.Join(dir, "ramps"), "--out", ramps, "--quiet")
	args := []string{"--train", w.pixels, "--id", w.pixels, "--near", "ramps=" + ramps, "--far", "same=" + ramps,
		"--out", report, "--epochs", "3", "--batch", "32", "--seeds", "3,4", "--depths", "1,2", "--layers", "2"}
	out, _ := call(t, 0, append([]string{"ablate"}, args...)...)
	names := []string{"mlrbfn-1", "mlrbfn-2", "relu-1", "relu-2", "no-depression", "no-ratio", "no-projections", "earlier", "sum-loss", "recovery-1.05"}
	for _, name := range names {
		if strings.Count(out, name+" ") == 0 {
			t.Errorf("%s is not in the table:\n%s", name, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(report, "ablation.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(string(text), "\n"); rows != 1+len(names)*4*4 { // heads × (two sets and two means) × (3, 4, mean, std)
		t.Errorf("%d rows:\n%s", rows, text)
	}
	for _, name := range []string{"depth.png", "depth.svg", "steps.png", "steps.svg"} {
		picture, err := os.ReadFile(filepath.Join(report, "figures", name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".png") {
			if _, _, err := image.Decode(bytes.NewReader(picture)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !strings.Contains(string(picture), "far-OOD") {
			t.Errorf("%s has no legend", name)
		}
	}

	// Later runs leave nothing of this one behind, and nobody else's results
	// are replaced.
	call(t, 0, append(append([]string{"ablate"}, args...), "--depths", "none", "--steps", "no-ratio", "--quiet")...)
	if _, err := os.Stat(filepath.Join(report, "figures", "depth.png")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the depths of an earlier run were left: %v", err)
	}
	write(t, filepath.Join(report, "ablation.csv"), "a,b\n")
	if _, stderr := call(t, 1, append(append([]string{"ablate"}, args...), "--quiet")...); !strings.Contains(stderr, "ablation.csv: not written by this program; choose another folder") {
		t.Error(stderr)
	}
	refused(t, "--depths", append(append([]string{"ablate"}, args...), "--depths", "one")...)
	refused(t, "depth 0", append(append([]string{"ablate"}, args...), "--depths", "0")...)
	refused(t, "magic", append(append([]string{"ablate"}, args...), "--steps", "magic")...)
	refused(t, "neither", append(append([]string{"ablate"}, args...), "--depths", "none", "--steps", "none")...)
	refused(t, "--hidden", append(append([]string{"ablate"}, args...), "--hidden", "0")...)
	refused(t, "--id", "ablate", "--train", w.pixels, "--out", report)
}

// TestExportONNX has Python's onnx package check the files and compute verdicts
// from cached features, and compares them with what detect says.
func TestExportONNX(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	detected, _ := call(t, 0, "detect", "--detector", w.detector, "--json", "--quiet", w.images)
	write(t, filepath.Join(dir, "verdicts.jsonl"), detected)
	head, all, kept := filepath.Join(dir, "head.onnx"), filepath.Join(dir, "all.onnx"), filepath.Join(dir, "kept.onnx")
	if out, stderr := call(t, 0, "export", "--detector", w.detector, "--out", head); !strings.Contains(out, "2 classes") || stderr != "" {
		t.Errorf("it prints %s%s", out, stderr)
	}
	call(t, 0, "export", "--detector", w.detector, "--out", all, "--with-backbone")
	call(t, 0, "export", "--detector", w.detector, "--out", kept, "--with-backbone", "--keep-outputs", "--model", w.model)
	repository := filepath.Join(dir, "repository", "photos")
	if out, _ := call(t, 0, "export", "--detector", w.detector, "--out", repository, "--as-classifier", "triton", "--keep-logits", "--model", w.model); !strings.Contains(out, filepath.Join(repository, "1", "model.onnx")) {
		t.Errorf("it prints %s", out)
	}
	refused(t, "--as-classifier", "export", "--detector", w.detector, "--out", repository, "--as-classifier", "keras")
	refused(t, "--keep-logits", "export", "--detector", w.detector, "--out", head, "--keep-logits")
	testenv.Python(t, `
import json, sys, numpy as np, onnx
from onnx.reference import ReferenceEvaluator
folder, features = sys.argv[1:]
verdicts = [json.loads(line) for line in open(folder + "/verdicts.jsonl")]
files = {name: onnx.load(f"{folder}/{name}.onnx") for name in ("head", "all", "kept")}
meta = {name: {p.key: json.loads(p.value) for p in m.metadata_props} for name, m in files.items()}
names = [o.name for o in files["head"].graph.output]
for name, m in files.items():
    onnx.checker.check_model(m, full_check=True)
    assert meta[name]["mlrbfn.classes"] == ["disc", "square"] and meta[name]["mlrbfn.threshold"] < 0, meta[name]
    assert [o.name for o in m.graph.output] == (["features", "logits"] if name == "kept" else []) + names, name
    assert [i.name for i in m.graph.input] == [meta[name]["mlrbfn.input"]["name"]], name
assert meta["all"]["mlrbfn.input"]["shape"] == [-1, 3, meta["all"]["mlrbfn.preprocess"]["height"], meta["all"]["mlrbfn.preprocess"]["width"]]
got = dict(zip(names, ReferenceEvaluator(files["head"]).run(None, {"features": np.load(features + "/features.npy")})))
assert len(verdicts) == len(got["score"]) == 120
for i, v in enumerate(verdicts):
    assert meta["head"]["mlrbfn.classes"][got["class"][i]] == v["class"] and got["ood"][i] == v["ood"] and got["p_value"][i] == v["p_value"], (i, v)
    assert abs(got["score"][i] - v["score"]) < 1e-5 and abs(got["confidence"][i] - v["confidence"]) < 1e-5, (i, v, got["score"][i], got["confidence"][i])
`, dir, w.features)
}

func TestUnreadableImages(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	picture(t, filepath.Join(dir, "good.png"), 0, 1)
	data, err := os.ReadFile(filepath.Join(dir, "good.png"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cut.png"), string(data[:len(data)/2]))
	write(t, filepath.Join(dir, "empty.jpg"), "")
	write(t, filepath.Join(dir, ".DS_Store"), "x")

	out := filepath.Join(t.TempDir(), "f")
	text, stderr := call(t, 3, "extract", "--model", w.model, "--images", dir, "--out", out, "--json")
	if got := lines(t, text)[0]; got["n"] != 1. || got["failed"] != 2. || got["skipped"] != 1. {
		t.Errorf("%v", got)
	}
	if !strings.Contains(stderr, "cut.png") || !strings.Contains(stderr, "errors.jsonl") {
		t.Error(stderr)
	}
	listed, err := os.ReadFile(filepath.Join(out, "errors.jsonl"))
	if err != nil || len(lines(t, string(listed))) != 2 {
		t.Errorf("errors.jsonl: %v\n%s", err, listed)
	}

	text, _ = call(t, 3, "detect", "--detector", w.detector, "--format", "jsonl", dir, filepath.Join(dir, "absent.png"))
	rows := lines(t, text)
	if len(rows) != 4 {
		t.Fatalf("%s", text)
	}
	for i, failed := range []bool{true, true, false, true} { // cut, empty, good, absent
		if _, ok := rows[i]["error"]; ok != failed {
			t.Errorf("row %d: %v", i, rows[i])
		}
	}
}

func TestClearErrors(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	write(t, filepath.Join(dir, "holes", "full", "note.txt"), "x")
	picture(t, filepath.Join(dir, "holes", "full", "a.png"), 0, 1)
	if err := errors.Join(os.Mkdir(empty, 0o777), os.Mkdir(filepath.Join(dir, "holes", "hollow"), 0o777)); err != nil {
		t.Fatal(err)
	}
	detector, err := os.ReadFile(w.detector)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cut.safetensors"), string(detector[:len(detector)-100]))
	absent, out := filepath.Join(dir, "absent"), filepath.Join(dir, "out")

	refused(t, "--model", "extract", "--images", w.images, "--out", out)
	refused(t, "--nonsense", "extract", "--nonsense")
	refused(t, "--pool", "extract", "--model", w.model, "--images", w.images, "--out", out, "--pool", "max")
	fails(t, absent, "extract", "--model", w.model, "--images", absent, "--out", out)
	fails(t, absent, "extract", "--model", absent, "--images", w.images, "--out", out)
	fails(t, "no images", "extract", "--model", w.model, "--images", empty, "--out", out)
	if _, stderr := call(t, done, "extract", "--model", "pixels", "--images", filepath.Join(dir, "holes"), "--out", filepath.Join(dir, "hollow")); !strings.Contains(stderr, "1 folder without images") || !strings.Contains(stderr, "fewer than 5 images in 1 class: full") {
		t.Error(stderr)
	}
	fails(t, "features", "extract", "--model", w.model, "--images", w.images, "--out", out, "--output", "pooler_output")
	fails(t, absent, "extract", "--model", w.model, "--images", w.images, "--out", out, "--onnxruntime", absent)
	fails(t, "not a feature set", "extract", "--model", w.model, "--images", w.images, "--out", filepath.Join(dir, "holes"))
	fails(t, "folder of images", "extract", "--model", w.model, "--images", w.images, "--out", filepath.Join(w.images, "features"))
	refused(t, "--device", "extract", "--model", w.model, "--images", w.images, "--out", out, "--device", "abacus")
	refused(t, "cuda:1", "extract", "--model", w.model, "--images", w.images, "--out", out, "--device", "cuda:first")
	refused(t, "--provider goes with", "extract", "--model", w.model, "--images", w.images, "--out", out, "--provider", "plugin.so")
	fails(t, "--provider: ", "detect", "--detector", w.detector, "--device", "openvino", "--provider", filepath.Join(dir, "absent.so"), w.images)
	fails(t, "--force: it is needed to replace", "extract", "--model", w.model, "--images", filepath.Join(w.images, "disc"), "--out", w.features)
	fails(t, "folder", "train", "--features", w.features, "--out", dir)
	fails(t, "twice", "train", "--features", w.features, "--val", w.features, "--out", out)
	fails(t, "not a bundle", "detect", "--detector", w.features, w.images)
	refused(t, "magic", "evaluate", "--train", w.features, "--id", w.features, "--far", "a="+w.features, "--methods", "magic", "--out", out)
	refused(t, "both", "evaluate", "--train", w.features, "--id", w.features, "--far", "a="+w.features, "--head", "both", "--out", out)
	refused(t, "--mlp-layers", "evaluate", "--train", w.features, "--id", w.features, "--far", "a="+w.features, "--mlp-layers", "3", "--out", out)
	refused(t, "512MiB", "evaluate", "--train", w.features, "--id", w.features, "--far", "a="+w.features, "--memory", "lots", "--out", out)
	refused(t, "magic", "train", "--features", w.features, "--scores", "ensemble(gen,magic)", "--out", out)
	refused(t, "one of them", "train", "--features", w.features, "--target-tpr", "0.9", "--max-false-alarms", "0.1", "--out", out)
	refused(t, "--max-false-alarms", "train", "--features", w.features, "--max-false-alarms", "2", "--out", out)
	fails(t, absent, "train", "--features", absent, "--out", out)
	refused(t, "--features", "train", "--out", out)
	refused(t, "--val", "train", "--features", w.features, "--out", out, "--val", "1.5")
	fails(t, absent, "detect", "--detector", absent, w.images)
	fails(t, "cut.safetensors", "detect", "--detector", filepath.Join(dir, "cut.safetensors"), w.images)
	refused(t, "image", "detect", "--detector", w.detector)
	fails(t, absent, "detect", "--detector", w.detector, absent)
	refused(t, "--format", "detect", "--detector", w.detector, "--format", "xml", w.images)
	refused(t, "--opset", "export", "--detector", w.detector, "--out", out, "--opset", "7")
	refused(t, "--with-backbone", "export", "--detector", w.detector, "--out", out, "--model", w.model)
	refused(t, "itself", "export", "--detector", w.detector, "--out", w.detector)
	write(t, filepath.Join(dir, "file"), "")
	fails(t, "file", "export", "--detector", w.detector, "--out", filepath.Join(dir, "file", "out"))
	fails(t, "file", "train", "--features", w.features, "--out", filepath.Join(dir, "file", "out"))
	// Folders above outputs are made.
	call(t, 0, "export", "--detector", w.detector, "--out", filepath.Join(dir, "new", "folder", "d.onnx"))
	fails(t, absent, "export", "--detector", w.detector, "--out", out, "--with-backbone", "--model", absent)
	refused(t, "--near", "evaluate", "--train", w.features, "--id", w.features, "--out", out)
	refused(t, "NAME=", "evaluate", "--train", w.features, "--id", w.features, "--out", out, "--near", w.features)

	// Features, or a backbone, of another model than the detector's.
	other := filepath.Join(dir, "other")
	config, err := os.ReadFile(filepath.Join(w.model, "preprocessor_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(other, "preprocessor_config.json"), strings.Replace(string(config), `"resample": 3`, `"resample": 2`, 1))
	write(t, filepath.Join(other, "model.onnx"), string(contents(t, filepath.Join(w.model, "model.onnx"))))
	fails(t, "backbone", "detect", "--detector", w.detector, "--model", other, w.images)
	fails(t, "backbone", "export", "--detector", w.detector, "--with-backbone", "--model", other, "--out", out)
	fails(t, "--force", "extract", "--model", other, "--images", w.images, "--out", w.features)
	otherFeatures := filepath.Join(dir, "other-f")
	call(t, 0, "extract", "--model", other, "--images", filepath.Join(w.images, "disc"), "--out", otherFeatures, "--quiet")
	fails(t, "other-f", "evaluate", "--train", w.features, "--id", w.features, "--far", "x="+otherFeatures, "--out", out, "--quiet")
	fails(t, "other-f", "train", "--features", w.features, "--features", otherFeatures, "--out", out, "--quiet")
	if _, stderr := call(t, 0, "train", "--features", otherFeatures, "--out", filepath.Join(dir, "one"), "--quiet"); !strings.Contains(stderr, `the class "disc"`) {
		t.Errorf("a folder without subfolders is one class, but: %s", stderr)
	}

	// Nothing half-made was left behind.
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s exists after failures: %v", out, err)
	}
}

func TestMissingLibrary(t *testing.T) {
	w := newWorld(t)
	cmd := process(t, "extract", "--model", w.model, "--images", w.images, "--out", filepath.Join(t.TempDir(), "f"))
	cmd.Env = append(cmd.Env, "ONNXRUNTIME_SHARED_LIBRARY_PATH=/nowhere/libonnxruntime.so")
	if _, stderr := finish(t, cmd, 1); strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "/nowhere/libonnxruntime.so") {
		t.Error(stderr)
	}
}

// TestInterrupt presses Ctrl-C during an extraction, a training and an
// ablation, then lets the extraction go on.
func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signal to send")
	}
	w := newWorld(t)
	dir := t.TempDir()
	const images = 60
	for i := range images {
		picture(t, filepath.Join(dir, "images", fmt.Sprintf("%03d.png", i)), i%3, uint64(i))
	}
	// interrupt waits until the program has got somewhere, and presses Ctrl-C.
	interrupt := func(cmd *exec.Cmd, somewhere func(stderr string) bool) {
		t.Helper()
		stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer stderr.Close()
		cmd.Stderr = stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := func() string {
			text, err := os.ReadFile(stderr.Name())
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		for range 6000 {
			if somewhere(said()) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_ = cmd.Wait()
		if took := time.Since(start); took > 5*time.Second { // a second or so; slow machines have their day
			t.Errorf("it took %v to stop", took)
		}
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Fatalf("%s: exit code %d\n%s", cmd.Args[0], code, said())
		}
	}
	out := filepath.Join(dir, "features")
	args := []string{"--model", w.model, "--images", filepath.Join(dir, "images"), "--out", out, "--workers", "1", "--json"}
	interrupt(process(t, append([]string{"extract"}, args...)...), func(string) bool {
		info, err := os.Stat(filepath.Join(out+".partial", "rows.jsonl"))
		return err == nil && info.Size() > 0
	})
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Error("an interrupted extraction left a feature set")
	}
	text, _ := call(t, 0, append([]string{"extract"}, args...)...)
	got := lines(t, text)[0]
	if got["n"] != 1.*images || got["new"].(float64)+got["reused"].(float64) != images || got["reused"] == 0. {
		t.Errorf("it went on with %v", got)
	}
	text, _ = call(t, 0, append([]string{"extract"}, args...)...)
	if got := lines(t, text)[0]; got["new"] != 0. || got["reused"] != 1.*images {
		t.Errorf("the next run did %v", got)
	}

	detector := filepath.Join(dir, "d.safetensors")
	interrupt(process(t, "train", "--features", w.pixels, "--out", detector, "--epochs", "1000000"),
		func(stderr string) bool { return strings.Contains(stderr, "epochs") })
	if _, err := os.Stat(detector); !errors.Is(err, os.ErrNotExist) {
		t.Error("an interrupted training left a detector")
	}
	report := filepath.Join(dir, "report")
	interrupt(process(t, "ablate", "--train", w.pixels, "--id", w.pixels, "--far", "same="+w.pixels, "--out", report, "--epochs", "1000000"),
		func(stderr string) bool { return strings.Contains(stderr, "epochs, ") })
	if left, err := filepath.Glob(filepath.Join(report, "*")); err != nil || len(left) != 0 {
		t.Errorf("an interrupted ablation left %v, %v", left, err)
	}
}
