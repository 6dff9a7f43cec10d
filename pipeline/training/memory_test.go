package training

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestTrainBeyondMemory: of features that do not fit into memory a detector
// comes out that tells the classes apart, says so, is bit-identical whether
// or not it was interrupted, and with whatever memory it goes on; no file stays.
func TestTrainBeyondMemory(t *testing.T) {
	t.Parallel()
	for name, network := range map[string]head.Config{"residual": pipetest.SmallResidual, "paper": pipetest.SmallPaper} {
		t.Run(name, func(t *testing.T) {
			o := quick(pipetest.Clouds(t, 1, 600, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 2, 200, pipetest.TwoLabels, pipetest.Two...))
			o.Head, o.Seeds = network, []uint64{3, 1}
			o.Memory, o.Scratch = 3000, t.TempDir() // of 12,800 bytes of features
			d, result, err := Train(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			if !(*result.ValAccuracy > 0.9) {
				t.Errorf("right on %g of the validation rows", *result.ValAccuracy)
			}
			if w := d.Training.Window; w == 0 || !strings.Contains(strings.Join(result.Warnings, "\n"), "(‹Memory›)") {
				t.Errorf("%d rows at a time, with the warnings %q", w, result.Warnings)
			}
			want := saved(t, d)

			o.Checkpoint = filepath.Join(t.TempDir(), "c")
			interrupt(t, o, epochs(12))
			o.Memory = 1 << 30
			if d, _, err = Train(context.Background(), o); err != nil || !bytes.Equal(saved(t, d), want) {
				t.Errorf("another detector, %v", err)
			}

			o.Checkpoint = ""
			if d, _, err = Train(context.Background(), o); err != nil || d.Training.Window != 0 {
				t.Errorf("%d rows at a time of those that fit, %v", d.Training.Window, err)
			}
			if left, err := os.ReadDir(o.Scratch); err != nil || len(left) > 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}
