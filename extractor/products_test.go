package extractor_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestProducts compares what onnxruntime does with what its source says of the
// processor: AVX2 without VNNI saturates.
func TestProducts(t *testing.T) {
	t.Setenv("ONNXRUNTIME_SHARED_LIBRARY_PATH", testenv.Runtime(t))
	want := extractor.ExactProducts
	if runtime.GOARCH == "amd64" && cpu.X86.HasAVX2 && !cpu.X86.HasAVX512VNNI && !cpu.X86.HasAVXVNNI {
		want = extractor.SaturatingProducts
	}
	if got := extractor.Products(); got != want {
		t.Errorf("products are %s, want %s", got, want)
	}
}
