package command

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestQuantisedIsSaid: extract, its check and merge say that the features of a
// quantised model depend on the processor, and the set on which they were
// computed.
func TestQuantisedIsSaid(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	root := testenv.Root(t)
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	for i := range 16 { // enough that no shard is empty
		picture(t, filepath.Join(images, "a", string(rune('a'+i))+".png"), 0, uint64(i))
	}
	for name, quantised := range map[string]bool{"nhwc-int8": true, "half": false} {
		model := filepath.Join(root, "extractor", "testdata", "exports", name)
		out := func(part string) string { return filepath.Join(dir, name+part) }
		text, said := call(t, 0, "extract", "--model", model, "--images", images, "--out", out("-1"), "--shard", "1/2")
		if strings.Contains(said, "is quantised") != quantised {
			t.Errorf("%s: %s%s", name, text, said)
		}
		text, _ = call(t, 0, "extract", "--model", model, "--images", images, "--out", out("-2"), "--shard", "2/2", "--json")
		var result struct {
			Quantised bool
			Machines  []features.Machine
		}
		if err := json.Unmarshal([]byte(text), &result); err != nil || result.Quantised != quantised || len(result.Machines) != 1 {
			t.Fatalf("%s: %v %s", name, err, text)
		}
		m := result.Machines[0]
		if m.Kernels == "" || m.Runtime != extractor.RuntimeVersion() || m.Provider != "cpu" || (m.Products != "") != quantised {
			t.Errorf("%s: %+v", name, m)
		}
		text, _ = call(t, 0, "extract", "--model", model, "--check", "--json", "--picture", out(".png"))
		if err := json.Unmarshal([]byte(text), &result); err != nil || result.Quantised != quantised || strings.Contains(text, "int8_products") != quantised {
			t.Errorf("%s: %v %s", name, err, text)
		}
		text, _ = call(t, 0, "extract", "--model", model, "--check", "--picture", out(".png"))
		if strings.Contains(text, "is quantised") != quantised {
			t.Errorf("%s: %s", name, text)
		}

		// As if the second shard had been made elsewhere.
		file := filepath.Join(out("-2"), "features.json")
		meta, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		altered := regexp.MustCompile(`("kernels": )"[a-z0-9]+"`).ReplaceAll(meta, []byte(`$1"other"`))
		sum := regexp.MustCompile(`[0-9a-f]{64}`)
		at := sum.FindAllIndex(altered, -1)
		last := at[len(at)-1] // of the file itself
		copy(altered[last[0]:last[1]], strings.Repeat("0", 64))
		copy(altered[last[0]:last[1]], fmt.Sprintf("%x", sha256.Sum256(altered)))
		if err := os.WriteFile(file, altered, 0o666); err != nil {
			t.Fatal(err)
		}
		_, said = call(t, 0, "merge", "--out", out(""), out("-1"), out("-2"))
		if strings.Contains(said, "machines that differ") != quantised {
			t.Errorf("%s: %s", name, said)
		}
	}
}
