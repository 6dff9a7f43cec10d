//go:build unix

package detector

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// A detector from elsewhere opens the model that has its hash, wherever that
// lies, and no other, whatever path it names.
func TestDetectorChoosesNoFile(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	backbone := testenv.Shared(t, "models", "resnet20-cifar10")
	model, err := extractor.OpenModel(t.Context(), backbone, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.onnx")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Chdir(backbone) // the folder that is judged has a graph in it
	t.Setenv("MLRBFN_MODELS", "")
	for _, hint := range []string{backbone, ".", "model.onnx", pipe, "/dev/zero", ""} {
		d := detectorOf(1)
		d.Source = Source{Model: hint}
		if _, err := d.OpenBackbone(t.Context(), "", extractor.Options{}); options.Name(err) != "Model" {
			t.Errorf("%q without a hash: %v", hint, err)
		}
		d.Source.SHA256 = "another's"
		if _, err := d.OpenBackbone(t.Context(), "", extractor.Options{}); options.Name(err) != "Model" {
			t.Errorf("%q with another hash: %v", hint, err)
		}
		d.Source.SHA256 = model.SHA256
		t.Setenv("MLRBFN_MODELS", filepath.Dir(backbone))
		// It is found by its hash; that its features are others is found next.
		if _, err := d.OpenBackbone(t.Context(), "", extractor.Options{}); !errors.Is(err, ErrOtherModel) {
			t.Errorf("%q with the hash: %v", hint, err)
		}
		t.Setenv("MLRBFN_MODELS", "")
	}
	if err := errors.Join(os.Remove(pipe), syscall.Mkfifo(pipe, 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe); !errors.Is(err, disk.ErrKind) {
		t.Error(err)
	}
}
