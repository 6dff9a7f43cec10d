package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestDemo: the demonstration runs the whole chain, also a second time, and writes into
// no folder of others. A tiny model is in the place of the default one.
func TestDemo(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(testenv.Root(t), "extractor", "testdata", "exports", "optimum-patches")
	out := filepath.Join(t.TempDir(), "demo")
	for range 2 {
		text, _ := call(t, 0, "demo", "--out", out, "--model", model)
		for _, want := range []string{"$ mlrbfn extract", "$ mlrbfn train", "$ mlrbfn detect", "grass    known: ", " of 25 given its class", "rocket   new:   ", " of 16 flagged"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in %s", want, text)
			}
		}
	}
	for _, file := range []string{"features/features.npy", "textures.safetensors", "verdicts.csv", "images/known/brick/01.png", "images/new/coffee/15.png"} {
		if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(file))); err != nil {
			t.Error(err)
		}
	}
	if _, said := call(t, 2, "demo", "--out", filepath.Dir(out), "--model", model); !strings.Contains(said, "not of a demo") {
		t.Error(said)
	}
}
