//go:build unix

package command

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
)

// scripts/kill_harness sets these for a long run.
var (
	kills     = flag.Int("kills", 20, "how often TestKilledExtraction kills")
	killSeed  = flag.Uint64("kill-seed", 1, "what its random moments follow from")
	killModel = flag.String("kill-model", "pixels", "the model that it extracts with")
)

// sameSet compares two feature sets byte by byte.
func sameSet(t *testing.T, a, b string) {
	t.Helper()
	if out, err := exec.Command("diff", "-r", a, b).CombinedOutput(); err != nil {
		t.Errorf("%s and %s differ: %v\n%.1000s", a, b, err, out)
	}
}

// TestKilledExtraction kills extractions at random moments, three times of four
// by SIGKILL and else by Ctrl-C. The next run continues; when one ends, its set is
// that of a run that was never interrupted, and some images are changed, so that
// the runs to come update a set. Whenever there is a set it is whole.
func TestKilledExtraction(t *testing.T) {
	rng := rand.New(rand.NewPCG(*killSeed, 0))
	dir := t.TempDir()
	images, out, once := filepath.Join(dir, "images"), filepath.Join(dir, "set"), filepath.Join(dir, "once")
	at := func(i int) string {
		return filepath.Join(images, []string{"disc", "square", "ramp"}[i%3], fmt.Sprintf("%03d.png", i))
	}
	const n = 150
	for i := range n {
		picture(t, at(i), i%3, uint64(i))
	}
	write(t, filepath.Join(images, "broken.png"), "x")
	extract := func(out string) *exec.Cmd {
		return process(t, "extract", "--model", *killModel, "--images", images, "--out", out, "--workers", "2", "--quiet")
	}
	// reference makes the set that all the runs to come must arrive at.
	reference := func() time.Duration {
		if err := os.RemoveAll(once); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		finish(t, extract(once), 3)
		return time.Since(start)
	}
	takes := reference()
	wanted := *kills
	if testing.Short() { // under the race detector a run takes long
		wanted = min(wanted, 5)
	}
	killed, rounds := 0, 0
	for killed < wanted {
		cmd := extract(out)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rng.Float64() * 0.7 * float64(takes)))
		signal := syscall.SIGKILL
		if rng.IntN(4) == 0 {
			signal = syscall.SIGINT
		}
		start := time.Now()
		_ = cmd.Process.Signal(signal) // it may have ended
		_ = cmd.Wait()
		if took := time.Since(start); signal == syscall.SIGINT && took > 5*time.Second {
			t.Errorf("it took %v to stop", took)
		}
		if code := cmd.ProcessState.ExitCode(); code == 3 {
			rounds++
			sameSet(t, once, out)
			if left, err := filepath.Glob(out + ".*"); err != nil || len(left) > 0 {
				t.Errorf("it left %q, %v", left, err)
			}
			for range 1 + rng.IntN(40) {
				i := rng.IntN(n)
				if os.Remove(at(i)) != nil || rng.IntN(3) > 0 {
					picture(t, at(i), i%3, rng.Uint64())
				}
			}
			takes = reference()
		} else {
			killed++
			// A Ctrl-C that comes before the program has begun kills it too.
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if byIt := status.Signaled() && status.Signal() == signal; !byIt && (signal == syscall.SIGKILL || code != 130) {
				t.Fatalf("exit code %d after %v: %s", code, signal, &stderr)
			}
		}
		if rounds == 0 {
			continue
		}
		set, err := features.Open(t.Context(), out)
		if err != nil {
			t.Fatalf("after kill %d: %v", killed, err)
		}
		if err := set.Verify(t.Context()); err != nil {
			t.Errorf("after kill %d: %v", killed, err)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
	finish(t, extract(out), 3)
	sameSet(t, once, out)
	t.Logf("%d kills, %d sets finished and updated", killed, rounds)
}

// TestTwoExtractionsOntoOneSet: the second says so and stops.
func TestTwoExtractionsOntoOneSet(t *testing.T) {
	w := newWorld(t)
	out := filepath.Join(t.TempDir(), "set")
	args := []string{"--model", w.model, "--images", w.images, "--out", out, "--workers", "1", "--quiet"}
	first := process(t, append([]string{"extract"}, args...)...)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	for range 6000 {
		if info, err := os.Stat(filepath.Join(out+".partial", "rows.jsonl")); err == nil && info.Size() > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	fails(t, "another extraction is writing to it", append([]string{"extract"}, args...)...)
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	sameSet(t, w.features, out)
}

// TestShardsAndMerge runs the shards and merges them as a person does.
func TestShardsAndMerge(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	shard := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
	for i := 1; i <= 3; i++ {
		call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", shard(i), "--shard", fmt.Sprintf("%d/3", i))
	}
	out := filepath.Join(dir, "merged")
	fails(t, "missing are 3/3", "merge", "--out", out, shard(1), shard(2))
	text, _ := call(t, 0, "merge", "--out", out, "--json", shard(3), shard(1), shard(2))
	if got := lines(t, text)[0]; got["n"] != 120. || got["shards"] != 3. {
		t.Errorf("%v", got)
	}
	sameSet(t, w.pixels, out)
	fails(t, "it is shard 2/3", "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", shard(2))
	refused(t, "i/n", "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", shard(2), "--shard", "0/3")
	refused(t, "name the folders", "merge", "--out", out)
}

// TestParts: all commands read a set of parts as they read the same set in one file.
func TestParts(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	parts, whole := filepath.Join(dir, "parts"), filepath.Join(dir, "whole")
	refused(t, "--parts goes with --shard", "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", parts, "--parts")
	for i := 1; i <= 3; i++ {
		_, said := call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", parts, "--parts", "--shard", fmt.Sprintf("%d/3", i))
		if unfinished := strings.Contains(said, "no feature set yet"); unfinished != (i < 3) {
			t.Errorf("part %d: %s", i, said)
		}
		if i == 2 {
			fails(t, "missing are 3/3", "train", "--features", parts, "--out", filepath.Join(dir, "none"))
		}
	}
	call(t, 0, "merge", "--out", whole, parts)
	sameSet(t, w.pixels, whole)
	var said [2][]string
	for i, set := range []string{parts, whole} {
		file := filepath.Join(dir, fmt.Sprint(i, ".safetensors"))
		run := func(code int, args ...string) {
			out, _ := call(t, code, args...)
			for _, name := range []string{set, file} {
				out = strings.ReplaceAll(out, name, "NAME")
			}
			said[i] = append(said[i], out)
		}
		call(t, 0, shortTraining("--features", set, "--out", file, "--verify", "--epochs", "3", "--layers", "2", "--centroids", "5", "--projection", "5", "--calibration", "0.3", "--memory", "64KiB")...)
		run(0, "detect", "--detector", file, "--json", "--explain", filepath.Join(w.images, "disc"))
		run(0, "detect", "--detector", file, "--json", "--explain", "--features", set, filepath.Join(w.images, "square"))
		run(0, "evaluate", "--detector", file, "--id", set, "--far", "same="+set, "--methods", "knn,mds", "--train", set, "--out", filepath.Join(dir, "report"), "--bootstrap", "0")
		run(0, "inspect", "--features", set, "--out", filepath.Join(dir, "report"), "--json", "--memory", "1MiB")
	}
	for i, text := range said[0] {
		if other := said[1][i]; text != other || text == "" {
			t.Errorf("command %d says of parts\n%.600s\nand of one file\n%.600s", i, text, other)
		}
	}
}

// TestVerify: one altered value of features is found by whoever asks.
func TestVerify(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "set")
	if err := os.CopyFS(dir, os.DirFS(w.pixels)); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	train := []string{"train", "--features", dir, "--out", filepath.Join(out, "detector"), "--verify", "--quiet", "--epochs", "1"}
	evaluate := []string{"evaluate", "--train", w.pixels, "--id", w.pixels, "--far", "far=" + dir, "--out", filepath.Join(out, "report"), "--verify", "--quiet", "--methods", "knn"}
	call(t, 0, train...)
	call(t, 0, evaluate...)
	file := filepath.Join(dir, "features.npy")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	write(t, file, string(data))
	fails(t, "its checksum is not that in", append(train, "--force")...)
	fails(t, "its checksum is not that in", evaluate...)
	fails(t, "its checksum is not that in", "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", dir)
	call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", w.images, "--out", dir, "--force")
	sameSet(t, w.pixels, dir)
}
