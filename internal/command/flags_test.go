package command

import (
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/spf13/pflag"
)

// internals are words that only a programmer of this program can read.
var internals = regexp.MustCompile(`strconv|ParseInt|ParseFloat|ParseBool|parsing|invalid syntax|invalid argument|Slice|float64|uint|pflag`)

// TestBadValues: a bad value of any flag that reads one is refused in plain words
// that name the flag, and the help names no Go types.
func TestBadValues(t *testing.T) {
	free := []string{"string", "stringArray", "share"} // which take any text
	tried := 0
	for _, name := range order() {
		commands[name].make().VisitAll(func(f *pflag.Flag) {
			if slices.Contains(free, f.Value.Type()) || f.Name == "help-all" {
				return
			}
			tried++
			for _, bad := range []string{"x!", "1e999", "-"} {
				_, stderr := call(t, usage, name, "--"+f.Name+"="+bad)
				line := strings.TrimSuffix(stderr, "\n")
				if strings.Contains(line, "\n") || !strings.Contains(line, "--"+f.Name) || internals.MatchString(line) {
					t.Errorf("%s --%s=%s says %q", name, f.Name, bad, stderr)
				}
			}
		})
		help, _ := call(t, done, name, "--help-all")
		if words := internals.FindString(help); words != "" {
			t.Errorf("the help of %s has %q", name, words)
		}
	}
	if tried < 10*len(order()) {
		t.Errorf("only %d flags were tried", tried)
	}
	// Texts that are read later.
	for _, args := range [][]string{
		{"train", "--calibration", "cross:x"}, {"train", "--calibration", "cross:1"}, {"train", "--calibration", "1.5"}, {"train", "--val", "-1"},
		{"train", "--conditioning", "l2+"}, {"train", "--scores", "x!"}, {"train", "--lr", "NaN"},
		{"extract", "--size", "x!"}, {"extract", "--shard", "x!"}, {"extract", "--shard", "1/x"},
		{"ablate", "--depths", "x!"}, {"ablate", "--steps", "x!"}, {"evaluate", "--methods", "x!"}, {"evaluate", "--near", "x!"},
	} {
		rest := map[string][]string{
			"train": {"--features", "f", "--out", "d"}, "extract": {"--model", "pixels", "--images", "i", "--out", "f"},
			"ablate": {"--train", "f", "--id", "f", "--near", "a=f", "--out", "r"}, "evaluate": {"--train", "f", "--id", "f", "--near", "a=f", "--out", "r"},
		}[args[0]]
		_, stderr := call(t, usage, append(slices.Clone(args), rest...)...)
		if !strings.Contains(stderr, args[1]) || internals.MatchString(stderr) {
			t.Errorf("%s says %q", strings.Join(args, " "), stderr)
		}
	}
}

// TestUnusedCommandsGo: what a library makes for a call does not stay in memory.
func TestUnusedCommandsGo(t *testing.T) {
	for _, name := range order() {
		made := weak.Make(commands[name].make().FlagSet)
		runtime.GC()
		if made.Value() != nil {
			t.Errorf("%s stays in memory", name)
		}
	}
}
