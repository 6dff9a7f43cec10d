package command

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// TestInterruptedExtraction: Ctrl-Break ends an extraction in order, which a killed
// process cannot; in both cases the next run continues. Ctrl-C would reach `go test` too,
// and Go takes both for os.Interrupt. Wine knows Ctrl-C alone, and `go test` is not on
// the console that it makes.
func TestInterruptedExtraction(t *testing.T) {
	images := filepath.Join(t.TempDir(), "images")
	const n = 300
	for i := range n {
		picture(t, filepath.Join(images, []string{"disc", "square", "ramp"}[i%3], fmt.Sprintf("%03d.png", i)), i%3, uint64(i))
	}
	_, _, _ = windows.NewLazySystemDLL("kernel32.dll").NewProc("AllocConsole").Call() // there may be one
	event, flags := uint32(windows.CTRL_BREAK_EVENT), uint32(windows.CREATE_NEW_PROCESS_GROUP)
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		event, flags = windows.CTRL_C_EVENT, 0
		ours := make(chan os.Signal, 1)
		signal.Notify(ours, os.Interrupt)
		defer signal.Stop(ours)
	}
	for name, stop := range map[string]func(*testing.T, *exec.Cmd){
		"killed": func(_ *testing.T, cmd *exec.Cmd) { _ = cmd.Process.Kill() }, // it may have ended
		"interrupted": func(t *testing.T, cmd *exec.Cmd) {
			group := uint32(cmd.Process.Pid)
			if flags == 0 {
				group = 0 // all on this console
			}
			if err := windows.GenerateConsoleCtrlEvent(event, group); err != nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				t.Skipf("no console, as under Wine without a terminal: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "set")
			cmd := process(t, "extract", "--model", "pixels", "--images", images, "--out", out, "--workers", "1")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: flags}
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
			stop(t, cmd)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); name == "interrupted" && (code != 130 || !strings.Contains(stderr.String(), "the same command continues")) {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
			again := process(t, "extract", "--model", "pixels", "--images", images, "--out", out)
			if stdout, errs := finish(t, again, 0); !strings.Contains(stdout, fmt.Sprintf("%d images", n)) {
				t.Errorf("%s%s", stdout, errs)
			}
			if left, err := filepath.Glob(out + ".*"); err != nil || len(left) > 0 {
				t.Errorf("it left %q, %v", left, err)
			}
		})
	}
}
