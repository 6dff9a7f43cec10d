package command

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// TestInterruptedExtraction: Ctrl-Break ends an extraction in order, which a killed
// process cannot; in both cases the next run continues. (Ctrl-C would reach this test
// too, and Go takes both for os.Interrupt.)
func TestInterruptedExtraction(t *testing.T) {
	dir := t.TempDir()
	images, out := filepath.Join(dir, "images"), filepath.Join(dir, "set")
	const n = 300
	for i := range n {
		picture(t, filepath.Join(images, []string{"disc", "square", "ramp"}[i%3], fmt.Sprintf("%03d.png", i)), i%3, uint64(i))
	}
	extract := func() *exec.Cmd {
		return process(t, "extract", "--model", "pixels", "--images", images, "--out", out, "--workers", "1")
	}
	for _, killed := range []bool{false, true} {
		cmd := extract()
		var stderr strings.Builder
		cmd.Stderr = &stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if rows, err := filepath.Glob(filepath.Join(out+".partial", "rows.*")); err == nil && len(rows) > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it does not begin: %s", &stderr)
			}
		}
		if killed {
			_ = cmd.Process.Kill() // it may have ended
		} else if err := windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); !killed && (code != 130 || !strings.Contains(stderr.String(), "the same command continues")) {
			t.Errorf("Ctrl-Break: exit code %d: %s", code, &stderr)
		}
	}
	if stdout, stderr := finish(t, extract(), 0); !strings.Contains(stdout, fmt.Sprintf("%d images", n)) {
		t.Errorf("%s%s", stdout, stderr)
	}
	if left, err := filepath.Glob(out + ".*"); err != nil || len(left) > 0 {
		t.Errorf("it left %q, %v", left, err)
	}
}
