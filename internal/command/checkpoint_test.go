package command

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// smallFeatures writes a feature set of n rows of three overlapping classes, as
// another program would.
func smallFeatures(t *testing.T, n int) string {
	t.Helper()
	const d = 12
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % 3)
		for j := range d {
			x[i*d+j] = float32(rng.NormFloat64())
		}
		x[i*d+i%3] += 2
	}
	err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, n, d), npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// train prepares a training in a process of its own.
func train(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return process(t, append([]string{"train"}, args...)...)
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

// TestSameBytes trains several heads on one core, on four and once more.
func TestSameBytes(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--features", smallFeatures(t, 1000), "--epochs", "5", "--layers", "3", "--centroids", "10",
		"--seeds", "1,2,3", "--calibration", "0.4", "--quiet"}
	var want []byte
	for _, cores := range []string{"1", "4", "4"} {
		out := filepath.Join(dir, "d")
		cmd := train(t, append(args, "--out", out)...)
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+cores)
		finish(t, cmd, 0)
		got := contents(t, out)
		if want != nil && !bytes.Equal(got, want) {
			t.Errorf("another detector on %s cores", cores)
		}
		want = got
		absent(t, out+".checkpoint")
	}
}

// TestKilledTrainingGoesOn kills a training at one moment after another, and
// once presses Ctrl-C; the same command ends in the bytes of a run that nobody
// disturbed.
func TestKilledTrainingGoesOn(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signal to send")
	}
	dir := t.TempDir()
	args := []string{"--features", smallFeatures(t, 1000), "--epochs", "300", "--batch", "50", "--layers", "3", "--centroids", "20",
		"--seeds", "4,5", "--lr", "0.01", "--patience", "2"}
	undisturbed, out := filepath.Join(dir, "undisturbed"), filepath.Join(dir, "d")
	finish(t, train(t, append(args, "--out", undisturbed, "--checkpoint-every", "0")...), 0)

	// A checkpoint after every step: a run writes thousands, and is killed at one
	// of its first, however fast the machine is.
	args = append(args, "--out", out, "--checkpoint-every", "1ns")
	checkpoint := out + ".checkpoint"
	rng := rand.New(rand.NewPCG(3, 4))
	var last []byte // the checkpoint that the run before left
	for round := range 6 {
		cmd := train(t, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for steps := 1 + rng.IntN(20); steps > 0 && len(ended) == 0; { // until it has got on
			now, err := os.ReadFile(checkpoint)
			if err == nil && !bytes.Equal(now, last) {
				last = now
				steps--
			}
		}
		signal, code := syscall.SIGKILL, -1
		if round == 3 {
			signal, code = syscall.SIGINT, 130
		}
		_ = cmd.Process.Signal(signal)
		<-ended
		if _, err := os.Stat(out); err == nil {
			t.Fatalf("round %d ended before it was killed", round)
		}
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Fatalf("exit code %d, want %d\n%s", got, code, stderr.String())
		}
		if code == 130 && !strings.Contains(stderr.String(), "the same command continues") {
			t.Errorf("interrupted, it says %q", stderr.String())
		}
		if round > 0 && !strings.Contains(stderr.String(), "continuing from "+checkpoint) {
			t.Errorf("after a kill it says %q", stderr.String())
		}
		last = contents(t, checkpoint)
	}
	finish(t, train(t, append(args, "--resume", "--checkpoint-every", "0.1s")...), 0)
	if !bytes.Equal(contents(t, out), contents(t, undisturbed)) {
		t.Error("killed six times, it ends in another detector")
	}
	absent(t, checkpoint)
}

// TestCheckpointFlags goes through what a person may do about a checkpoint.
func TestCheckpointFlags(t *testing.T) {
	features, dir := smallFeatures(t, 200), t.TempDir()
	out := filepath.Join(dir, "d")
	args := []string{"--features", features, "--out", out, "--batch", "20", "--layers", "2", "--quiet"}
	args = append([]string{"train"}, args...)
	says := func(code int, text string, more ...string) {
		t.Helper()
		if _, stderr := call(t, code, append(args, more...)...); !strings.Contains(stderr, text) {
			t.Errorf("%s: it says %q, want %q", more, stderr, text)
		}
	}
	checkpoint := out + ".checkpoint"
	says(1, "nothing to go on from", "--resume")
	refused(t, "--restart", append(args, "--resume", "--restart")...)
	refused(t, "--resume", append(args, "--resume", "--checkpoint-every", "0")...)
	refused(t, "--checkpoint-every", append(args, "--checkpoint-every", "-1s")...)
	says(1, "try a smaller learning rate", "--lr", "1e6")
	absent(t, checkpoint)

	// A checkpoint to play with.
	cmd := process(t, append(args, "--epochs", "1000000", "--checkpoint-every", "1ms")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(checkpoint); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	kept := contents(t, checkpoint)
	says(1, "epochs was 1000000 and is 1", "--epochs", "1")
	says(1, "--restart starts anew", "--epochs", "1", "--resume")
	if !bytes.Equal(contents(t, checkpoint), kept) {
		t.Error("a training that was refused changed the checkpoint of another")
	}
	says(1, "--resume with another --lr", "--epochs", "1000000", "--resume", "--lr", "1e6")
	absent(t, out)
	says(0, "", "--epochs", "1", "--checkpoint-every", "0")
	contents(t, checkpoint)
	says(0, "", "--epochs", "1", "--restart")
	absent(t, checkpoint)
}
