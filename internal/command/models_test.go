package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestModels fetches a model by its name, which --model then takes.
func TestModels(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	root, dir := t.TempDir(), t.TempDir()
	repo := filepath.Join(root, "onnx-community", "small")
	if err := os.CopyFS(repo, os.DirFS(filepath.Join(testenv.Root(t), "extractor", "testdata", "exports", "external"))); err != nil {
		t.Fatal(err)
	}
	server := testenv.NewHub(t, root)
	t.Setenv("HF_HOME", filepath.Join(dir, "hf"))
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_ENDPOINT", server.URL)
	images := filepath.Join(dir, "images")
	for i := range 3 {
		picture(t, filepath.Join(images, "disc", string(rune('a'+i))+".png"), 0, uint64(i))
	}
	extract := []string{"extract", "--model", "onnx-community/small", "--images", images, "--out", filepath.Join(dir, "features")}
	if _, stderr := call(t, failed, extract...); !strings.Contains(stderr, "`mlrbfn models get onnx-community/small` fetches it") { // and not by itself
		t.Errorf("without the model: %s", stderr)
	}

	out, stderr := call(t, 0, "models", "get", "onnx-community/small", "--images", images)
	for _, says := range []string{"commit 0123456789ab; licence: apache-2.0", "3 files of ", "inputs", "nearest", "next: mlrbfn extract --model onnx-community/small"} {
		if !strings.Contains(out, says) {
			t.Errorf("models get does not say %q:\n%s%s", says, out, stderr)
		}
	}
	if out, _ := call(t, 0, "models"); !strings.Contains(out, "onnx-community/small") || !strings.Contains(out, filepath.Join(dir, "hf", "hub")) {
		t.Errorf("models prints\n%s", out)
	}
	call(t, 0, extract...)

	out, _ = call(t, 0, "models", "get", "onnx-community/small:model.onnx", "--json")
	var got struct {
		Commit, License, Model string
		Files                  []struct{ Path string }
		Check                  struct{ Output string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Commit != testenv.HubCommit || got.License != "apache-2.0" || len(got.Files) != 3 || got.Check.Output == "" {
		t.Errorf("%+v, %v of %s", got, err, out)
	}
	if _, err := os.Stat(got.Model); err != nil {
		t.Error(err)
	}
	refused(t, "not the name of a repository", "models", "get", "small")
	refused(t, "name one model", "models", "get")
	refused(t, "models get onnx-community/small fetches", "models", "onnx-community/small")
	refused(t, "go with models get", "models", "--images", images)
	server.Token = "secret"
	if _, stderr := call(t, failed, "models", "get", "onnx-community/small"); !strings.Contains(stderr, "set HF_TOKEN") {
		t.Errorf("a gated model: %s", stderr)
	}
}
