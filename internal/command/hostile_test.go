//go:build unix

package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// extractPixels extracts the pixels of a folder, and returns what the program
// says of the outcome, and the paths that it has rows of and errors of.
func extractPixels(t *testing.T, code int, args ...string) (outcome map[string]any, rows, failures []string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "f")
	text, _ := call(t, code, append([]string{"extract", "--model", "pixels", "--size", "4", "--out", out, "--json", "--quiet"}, args...)...)
	return lines(t, text)[0], paths(t, filepath.Join(out, "images.jsonl")), paths(t, filepath.Join(out, "errors.jsonl"))
}

// paths returns what a file of JSON lines calls path, each with a reason where
// it tells of errors.
func paths(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, line := range lines(t, string(text)) {
		if reason, ok := line["error"]; ok && reason == "" {
			t.Errorf("%v has no reason", line)
		}
		list = append(list, line["path"].(string))
	}
	return list
}

// TestOddImages runs over every file of the odd images at once.
func TestOddImages(t *testing.T) {
	if testing.Short() {
		t.Skip("decoding all odd images takes a minute under the race detector; tests of package preprocess decode them too")
	}
	root := testenv.Shared(t, "data", "odd")
	outcome, rows, failures := extractPixels(t, 3, "--images", root)
	seen := map[string]bool{}
	for _, path := range append(rows, failures...) {
		if seen[path] {
			t.Errorf("%s is listed twice", path)
		}
		seen[path] = true
	}
	skipped := 0
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if !seen[rel] {
			skipped++
			if notImages := []string{"", ".md", ".csv", ".sng", ".original", ".README", ".scan", ".icc"}; !slices.Contains(notImages, filepath.Ext(path)) {
				t.Errorf("%s is neither a row nor an error", rel)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if outcome["skipped"] != float64(skipped) || outcome["n"] != float64(len(rows)) || outcome["failed"] != float64(len(failures)) {
		t.Errorf("%v, want %d rows, %d failures and %d skipped", outcome, len(rows), len(failures), skipped)
	}
}

// TestHostilePaths: names of any bytes, and files that are none.
func TestHostilePaths(t *testing.T) {
	root := t.TempDir()
	names := []string{"a b/ with blanks .png", "a b/two\nlines\t.png", "a b/\"quotes\" & 'more'.png", "a b/-rf.png", "ünïcode/日本.png"}
	for i, name := range names {
		picture(t, filepath.Join(root, name), i%3, uint64(i))
	}
	raw := filepath.Join(root, "raw\xff\xfe", "\x80.png") // no UTF-8; not every file system has it
	if err := os.Mkdir(filepath.Dir(raw), 0o777); err == nil {
		picture(t, raw, 0, 9)
		names = append(names, "raw\x00ff\x00fe/\x0080.png")
	}
	if err := os.Mkdir(filepath.Join(root, "odd"), 0o777); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"odd/itself.png": "itself.png", "odd/up": "..", "odd/nowhere.png": "absent", "odd/endless.png": "/dev/zero"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(root, "odd", "pipe.png")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	outcome, rows, failures := extractPixels(t, 3, "--images", root)
	slices.Sort(rows)
	slices.Sort(names)
	if !slices.Equal(rows, names) {
		t.Errorf("rows are %q, want %q", rows, names)
	}
	if want := []string{"odd/itself.png", "odd/nowhere.png"}; !slices.Equal(failures, want) {
		t.Errorf("failures are %q, want %q", failures, want)
	}
	if outcome["skipped"] != 2. { // the pipe and the device
		t.Errorf("%v, want 2 skipped", outcome)
	}
	disturbing := t.TempDir()
	picture(t, filepath.Join(disturbing, "fine.png"), 0, 0)
	write(t, filepath.Join(disturbing, "\x1b[31m\nred.png"), "none")
	_, stderr := call(t, 3, "extract", "--model", "pixels", "--images", disturbing, "--out", filepath.Join(t.TempDir(), "out"))
	if !strings.Contains(stderr, `unreadable: "\x1b[31m\nred.png": unsupported`) {
		t.Errorf("stderr: %q", stderr)
	}

	list := filepath.Join(t.TempDir(), "list.txt")
	write(t, list, "a b/ with blanks .png 0\nodd/pipe.png 0\nodd/endless.png 1\nodd/itself.png 1\nodd/absent.png 1\n")
	if _, rows, failures := extractPixels(t, 3, "--images", root, "--list", list); len(rows) != 1 || len(failures) != 4 {
		t.Errorf("of a list: rows %q, failures %q", rows, failures)
	}
}

// TestEndlessModel: onnxruntime computes what is constant when it loads a graph,
// for minutes here, and cannot be stopped. The program ends nevertheless.
func TestEndlessModel(t *testing.T) {
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	m, err := onnx.New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	image := m.Input("image", onnx.Float, onnx.Batch, 3, 4, 4)
	many := m.Op("ConstantOfShape", m.Op("Mul", m.Int64s(1<<7, 1<<7), m.Int64s(1<<7, 1<<7)))
	for range 8 {
		many = m.Op("MatMul", many, many)
	}
	m.Output("features", m.Op("Add", m.Op("Flatten", image), m.Reduce("ReduceMean", many, false, 0, 1)), onnx.Float, onnx.Batch, 48)
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "m"), m)
	picture(t, filepath.Join(dir, "in", "1.png"), 0, 1)
	cmd := process(t, "extract", "--model", filepath.Join(dir, "m"), "--images", filepath.Join(dir, "in"), "--out", filepath.Join(dir, "out"), "--open-timeout", "200ms")
	if _, stderr := finish(t, cmd, failed); !strings.Contains(stderr, "--open-timeout: model ") || !strings.Contains(stderr, "more than 200ms") {
		t.Errorf("it says %q", stderr)
	}
	refused(t, "--open-timeout", "extract", "--model", filepath.Join(dir, "m"), "--images", filepath.Join(dir, "in"), "--out", filepath.Join(dir, "out"), "--open-timeout", "-1s")
}

// writeModel writes a model of images of 4×4.
func writeModel(t *testing.T, dir string, m *onnx.Model) {
	t.Helper()
	var graph strings.Builder
	if err := m.Write(&graph); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "model.onnx"), graph.String())
	write(t, filepath.Join(dir, "preprocessor_config.json"), `{"image_processor_type": "ViTImageProcessor", "size": {"height": 4, "width": 4}, "do_normalize": false}`)
}

// TestRunThatCannotBeStopped: a node of the graph computes for minutes on some
// images, those of the probe among them, and onnxruntime looks only between nodes
// whether it shall stop. The program ends nevertheless.
func TestRunThatCannotBeStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for several limits of time")
	}
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	m, err := onnx.New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	const window = 1 << 17
	image := m.Input("image", onnx.Float, onnx.Batch, 3, 4, 4)
	bright := m.Op("Mul", m.Reduce("ReduceMax", image, true, 0, 1, 2, 3), m.Floats([]float32{1 << 23}, 1))
	length := m.Op("Add", m.Op("Reshape", m.Cast(bright, onnx.Int64), m.Int64s(1)), m.Int64s(window))
	zeros := m.Op("Reshape", m.Op("ConstantOfShape", length), m.Int64s(1, 1, -1))
	most := m.Node("AveragePool", []onnx.Value{zeros}, onnx.Ints("kernel_shape", window))
	m.Output("features", m.Op("Add", m.Op("Flatten", image), m.Reduce("ReduceMean", most, false, 0, 1, 2)), onnx.Float, onnx.Batch, 48)
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "m"), m)
	picture(t, filepath.Join(dir, "in", "1.png"), 0, 1)
	cmd := process(t, "extract", "--model", filepath.Join(dir, "m"), "--images", filepath.Join(dir, "in"), "--out", filepath.Join(dir, "out"), "--run-timeout", "100ms")
	if _, stderr := finish(t, cmd, failed); !strings.Contains(stderr, " of the probe: ") || !strings.Contains(stderr, "--run-timeout: the model takes too long for it: more than 100ms: onnxruntime does not stop") {
		t.Errorf("it says %q", stderr)
	}
	refused(t, "--run-timeout", "extract", "--model", filepath.Join(dir, "m"), "--images", filepath.Join(dir, "in"), "--out", filepath.Join(dir, "out"), "--run-timeout", "-1s")

	cmd = process(t, "extract", "--model", filepath.Join(dir, "m"), "--images", filepath.Join(dir, "in"), "--out", filepath.Join(dir, "out"), "--quiet")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 6000 { // until it has opened the model
		if _, err := os.Stat(filepath.Join(dir, "out.partial")); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || time.Since(start) > 20*time.Second {
		t.Errorf("Ctrl-C ends it with %d after %v", cmd.ProcessState.ExitCode(), time.Since(start))
	}
}

// TestUnreadableFolder runs as a user who may not read everything.
func TestUnreadableFolder(t *testing.T) {
	root := t.TempDir()
	for i, name := range []string{"a/1.png", "b/2.png", "b/closed/3.png", "b/4.png"} {
		picture(t, filepath.Join(root, name), 0, uint64(i))
	}
	out := filepath.Join(t.TempDir(), "f")
	cmd := process(t, "extract", "--model", "pixels", "--size", "4", "--images", root, "--out", out, "--quiet")
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		for _, dir := range []string{filepath.Dir(root)} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(filepath.Dir(out), nobody, nobody); err != nil {
			t.Skip(err)
		}
		if err := exec.Command("cp", cmd.Path, filepath.Dir(out)).Run(); err != nil { // where it may be executed
			t.Skip(err)
		}
		cmd.Path = filepath.Join(filepath.Dir(out), filepath.Base(cmd.Path))
	}
	for path, mode := range map[string]os.FileMode{"b/closed": 0, "b/4.png": 0} {
		if err := os.Chmod(filepath.Join(root, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Chmod(filepath.Join(root, "b/closed"), 0o777)
	finish(t, cmd, 3)
	if got, want := paths(t, filepath.Join(out, "errors.jsonl")), []string{"b/4.png", "b/closed"}; !slices.Equal(got, want) {
		t.Errorf("errors are %q, want %q", got, want)
	}
	if got := paths(t, filepath.Join(out, "images.jsonl")); len(got) != 2 {
		t.Errorf("rows are %q, want 2", got)
	}
}

// TestFilesThatVanish removes images while the program is at work.
func TestFilesThatVanish(t *testing.T) {
	root := t.TempDir()
	const n = 400
	file := func(i int) string { return filepath.Join(root, fmt.Sprintf("%03d.png", i)) }
	for i := range n {
		picture(t, file(i), i%3, uint64(i))
	}
	out := filepath.Join(t.TempDir(), "f")
	cmd := process(t, "extract", "--model", "pixels", "--size", "4", "--images", root, "--out", out, "--workers", "1", "--quiet")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 6000 {
		if info, err := os.Stat(filepath.Join(out+".partial", "rows.jsonl")); err == nil && info.Size() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i := n / 2; i < n; i++ {
		if err := os.Remove(file(i)); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	rows, failures := paths(t, filepath.Join(out, "images.jsonl")), paths(t, filepath.Join(out, "errors.jsonl"))
	if code := cmd.ProcessState.ExitCode(); len(rows)+len(failures) != n || (code == 3) != (len(failures) > 0) || code != 3 && code != 0 {
		t.Errorf("exit code %d with %d rows and %d failures of %d", code, len(rows), len(failures), n)
	}
	for _, path := range failures {
		if strings.Compare(path, filepath.Base(file(n/2))) < 0 {
			t.Errorf("%s failed, which was there", path)
		}
	}
}

func TestImageTimeout(t *testing.T) {
	root := t.TempDir()
	picture(t, filepath.Join(root, "1.png"), 0, 1)
	fails(t, "--image-timeout", "extract", "--model", "pixels", "--size", "4", "--images", root, "--out", filepath.Join(t.TempDir(), "f"), "--quiet", "--image-timeout", "1ns")
	refused(t, "--image-timeout", "extract", "--model", "pixels", "--images", root, "--out", filepath.Join(t.TempDir(), "f"), "--image-timeout", "-1s")
}
