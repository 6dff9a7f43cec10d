//go:build unix

package command

import (
	"encoding/base64"
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestSetAsideStaysInTheFolder: what links lead to outside the folder that was
// named is judged, and neither moved nor copied.
func TestSetAsideStaysInTheFolder(t *testing.T) {
	w := newWorld(t)
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	dir := t.TempDir()
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	picture(t, in("victim", "a.png"), 2, 1)
	picture(t, in("incoming", "mine", "b.png"), 2, 2)
	for link, target := range map[string]string{"incoming/holiday": "../victim", "incoming/c.png": "../victim/a.png", "incoming/mine/up": ".."} {
		if err := os.Symlink(target, in(link)); err != nil {
			t.Skip(err)
		}
	}
	for _, flag := range []string{"--copy-ood", "--move-ood"} {
		cmd := process(t, "detect", "--detector", w.detector, "--json", "--quiet", "--threshold", "100", flag, "strange", "incoming")
		cmd.Dir = dir
		out, _ := finish(t, cmd, partial)
		for _, row := range lines(t, out) {
			outside := row["path"] != "incoming/mine/b.png"
			if reason, _ := row["set_aside_error"].(string); row["ood"] != true || (row["set_aside"] == nil) != outside || outside != strings.Contains(reason, "lies outside") {
				t.Errorf("%s: %v", flag, row)
			}
		}
		if _, err := os.Stat(in("victim", "a.png")); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(in("strange")); err != nil || len(entries) != 1 || entries[0].Name() != "mine" {
			t.Errorf("%s: %v, %v", flag, entries, err)
		}
	}
}

// TestPrintedPathsArePaths: what is printed can be given back.
func TestPrintedPathsArePaths(t *testing.T) {
	w := newWorld(t)
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	dir := t.TempDir()
	names := []string{"100%.png", "scan%20001.png", "raw\xff.png"}
	for i, name := range names {
		picture(t, filepath.Join(dir, "in", name), 2, uint64(i))
	}
	detect := func(stdin string, args ...string) string {
		cmd := process(t, append([]string{"detect", "--detector", w.detector, "--quiet", "--threshold", "100"}, args...)...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
		out, _ := finish(t, cmd, done)
		return out
	}
	rows := lines(t, detect("", "--json", "--copy-ood", "out", "in"))
	if len(rows) != len(names) {
		t.Fatal(rows)
	}
	path := func(row map[string]any, key string) string {
		text, _ := row[key].(string)
		coded, _ := row[key+"_bytes"].(string)
		if coded == "" {
			coded, _ = row["set_aside_bytes"].(string)
		}
		if strings.Contains(text, "\x00") {
			raw, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				t.Error(err)
			}
			return string(raw)
		}
		return text
	}
	var stdin strings.Builder
	for _, row := range rows {
		for _, key := range []string{"path", "set_aside"} {
			if _, err := os.Stat(filepath.Join(dir, path(row, key))); err != nil {
				t.Errorf("%v: %v", row, err)
			}
			stdin.WriteString(path(row, key) + "\x00")
		}
	}
	again, err := csv.NewReader(strings.NewReader(detect(stdin.String(), "--format", "csv", "-0", "-"))).ReadAll()
	if err != nil || len(again) != 1+2*len(names) {
		t.Fatal(again, err)
	}
	for _, row := range again[1:] {
		if _, err := os.Stat(filepath.Join(dir, row[0])); err != nil {
			t.Error(err)
		}
	}
}

// TestOnlyRegularFiles: each file that a user names may be a pipe, a device or
// a folder, and none is waited for or read without end.
func TestOnlyRegularFiles(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	if err := syscall.Mkfifo(in("pipe"), 0o666); err != nil {
		t.Skip(err)
	}
	evaluate := []string{"evaluate", "--train", w.features, "--id", w.features, "--near", "x=" + w.features}
	for i, odd := range []string{in("pipe"), "/dev/zero", dir} {
		says := "not a regular file"
		if odd == dir {
			says = "it is a folder"
		}
		fails(t, says, "detect", "--detector", odd, w.images)
		fails(t, says, "export", "--detector", odd, "--out", in("d.onnx"))
		fails(t, says, append(evaluate, "--out", in("r"), "--detector", odd)...)
		fails(t, "not a regular file", append(evaluate, "--out", in("r"), "--leaderboard", odd)...)
		for name, args := range map[string][]string{
			"report.html":  evaluate,
			"results.csv":  evaluate,
			"d.checkpoint": {"train", "--features", w.features, "--resume"},
		} {
			at := in(name, string(rune('a'+i)))
			if err := os.MkdirAll(at, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(odd, filepath.Join(at, name)); err != nil {
				t.Fatal(err)
			}
			if args[0] == "train" {
				at = filepath.Join(at, "d")
			}
			call(t, failed, append(args, "--out", at)...)
		}
		for _, name := range []string{"features.npy", "features.json", "images.jsonl", "checksums.json"} {
			set := in("set", name, string(rune('a'+i)))
			if err := os.CopyFS(set, os.DirFS(w.features)); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(set, name)); err != nil && name != "checksums.json" {
				t.Fatal(err)
			}
			if err := os.Symlink(odd, filepath.Join(set, name)); err != nil {
				t.Fatal(err)
			}
			if name != "checksums.json" {
				call(t, failed, "train", "--features", set, "--out", in("d"), "--epochs", "1", "--verify", "--force", "--checkpoint-every", "0")
			}
		}
	}
}
