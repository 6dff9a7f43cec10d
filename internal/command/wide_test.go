package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestWideFeatures: pixels are so many features that D×D matrices have 3 GB. Each
// command works in the memory that it is given, or is refused with the bytes that
// it would take and with what helps.
func TestWideFeatures(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which short tests run under, takes memory of its own")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for i := range 20 {
		picture(t, filepath.Join(dir, "known", "disc", fmt.Sprintf("%02d.png", i)), 0, uint64(i))
		picture(t, filepath.Join(dir, "known", "square", fmt.Sprintf("%02d.png", i)), 1, uint64(i))
		picture(t, filepath.Join(dir, "other", "ramp", fmt.Sprintf("%02d.png", i)), 2, uint64(i))
	}
	for _, set := range []string{"known", "other"} {
		if _, stderr := call(t, 0, "extract", "--model", "pixels", "--size", "82", "--images", at(set), "--out", at(set+".features")); !strings.Contains(stderr, "20172 features") || !strings.Contains(stderr, "--size 32") {
			t.Errorf("extract says nothing of the many features: %q", stderr)
		}
	}
	// Go's own and the tables of the kernels come on top of --memory.
	const most = 500 << 20
	bounded := func(code int, args ...string) string {
		t.Helper()
		cmd := process(t, args...)
		cmd.Env = append(cmd.Env, peakFile+"="+at("peak"))
		_, stderr := finish(t, cmd, code)
		if status, err := os.ReadFile(at("peak")); err == nil { // on Linux
			_, peak, _ := strings.Cut(string(status), "VmHWM:")
			if kib, err := strconv.Atoi(strings.Fields(peak)[0]); err != nil || kib<<10 > most {
				t.Errorf("%s took %d MiB, %v", strings.Join(args, " "), kib>>10, err)
			}
		}
		return stderr
	}
	train := func(args ...string) []string {
		return append([]string{"train", "--features", at("known.features"), "--epochs", "1", "--calibration", "0.5", "--quiet", "--force", "--memory", "64MiB", "--out", at("d")}, args...)
	}
	for _, kind := range []string{"auto", "pca", "whiten", "standardise", "none", "l2"} {
		bounded(0, train("--conditioning", kind, "--restart")...)
	}
	bounded(0, train("--scores", "knn", "--restart")...)
	bounded(0, train("--restart")...)
	bounded(0, "detect", "--detector", at("d"), "--quiet", at("other"))
	bounded(0, "export", "--detector", at("d"), "--out", at("d.onnx"))
	for _, says := range []string{bounded(1, train("--scores", "mds")...), bounded(1, train("--memory", "64KiB", "--restart")...)} {
		if !strings.Contains(says, "--memory: ") || !strings.Contains(says, "20172 features") || !strings.Contains(says, "--size") {
			t.Errorf("refused with %q", says)
		}
	}
	evaluate := []string{"evaluate", "--train", at("known.features"), "--id", at("known.features"), "--near", "ramp=" + at("other.features"), "--out", at("report"), "--seeds", "0", "--epochs", "1", "--bootstrap", "0", "--quiet", "--memory", "64MiB"}
	says := bounded(0, evaluate...)
	if !strings.Contains(says, "mds is left out: score mds: --memory: ") || !strings.Contains(says, "extract --size") {
		t.Errorf("evaluate says %q", says)
	}
	bounded(0, append(evaluate, "--detector", at("d"), "--methods", "mlrbfn,knn,energy")...)
	bounded(0, "ablate", "--train", at("known.features"), "--id", at("known.features"), "--near", "ramp="+at("other.features"), "--out", at("ablation"), "--seeds", "0", "--epochs", "1", "--depths", "1", "--steps", "none", "--quiet", "--memory", "64MiB")
	bounded(0, "inspect", "--features", at("known.features"), "--out", at("inspected"), "--quiet", "--memory", "64MiB")
	for i := 1; i <= 2; i++ {
		bounded(0, "extract", "--model", "pixels", "--size", "82", "--images", at("known"), "--out", at(fmt.Sprint("shard", i)), "--shard", fmt.Sprintf("%d/2", i), "--quiet")
	}
	bounded(0, "merge", "--out", at("merged"), at("shard1"), at("shard2"))

	// What does not fit is said before anything is trained.
	loud := slices.DeleteFunc(train("--scores", "ensemble(gen,mds)", "--restart"), func(arg string) bool { return arg == "--quiet" })
	named := slices.DeleteFunc(append(evaluate, "--methods", "knn,mds"), func(arg string) bool { return arg == "--quiet" })
	for _, args := range [][]string{loud, named} {
		if says := bounded(1, args...); !strings.Contains(says, "score mds: --memory: ") || strings.Contains(says, "epoch") {
			t.Errorf("%s says %q", args[0], says)
		}
	}
}
