package extractor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func TestCheckDevice(t *testing.T) {
	for _, good := range []string{"", "cpu", "cuda", "cuda:1", "tensorrt:0", "coreml", "coreml:CPUAndGPU", "openvino", "openvino:GPU.1", "openvino:AUTO:GPU,CPU", "openvino:0", "directml:12"} {
		if err := CheckDevice(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"tpu": `unknown device "tpu"`, "CUDA": "unknown", "cpu:1": "one cpu", "cuda:": "cuda:1", "cuda:-1": "cuda:1", "cuda:one": "cuda:1",
		"cuda:1:2": "cuda:1", "coreml:1": "coreml:CPUAndGPU", "openvino:gpu": "openvino:GPU.1", "directml:1000": "cuda:1",
	} {
		wantError(t, CheckDevice(bad), want)
	}
}

// TestDevicesThatTheLibraryLacks: every device but the CPU is an error that says
// what the library has and what the device needs, or works.
func TestDevicesThatTheLibraryLacks(t *testing.T) {
	dir := testModel(t, 6, 8, pixels(-1))
	lacking := 0
	for _, d := range devices {
		m, err := OpenModel(t.Context(), dir, Options{Device: d.name})
		if err == nil {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		lacking++
		wantError(t, err, "Device: ", "cannot use "+d.name, testenv.Runtime(t), "it can use cpu", d.needs, "Device: ")
	}
	if lacking == 0 {
		t.Skip("this onnxruntime library can use every device")
	}
}

func TestProvidersThatCannotBeLoaded(t *testing.T) {
	dir := testModel(t, 6, 8, pixels(-1))
	refuse := func(opts Options, texts ...string) {
		t.Helper()
		m, err := OpenModel(t.Context(), dir, opts)
		if err == nil {
			m.Close()
		}
		wantError(t, err, append(texts, "Provider: ")...)
	}
	absent, text := filepath.Join(dir, "absent.so"), filepath.Join(dir, "text.so")
	write(t, text, "no library")
	refuse(Options{Device: "openvino", Provider: absent}, absent, "cannot be loaded")
	refuse(Options{Device: "openvino", Provider: text}, text, "cannot be loaded")
	refuse(Options{Device: "openvino", Provider: testenv.Runtime(t)}, "CreateEpFactories")
	m, err := OpenModel(t.Context(), dir, Options{Device: "openvino:GPU", Provider: text})
	if err == nil {
		m.Close()
	}
	wantError(t, err, "openvino:GPU", "openvino:0")
}

// TestOpenVINO runs real networks with OpenVINO's plug-in, which the variable
// names, and without.
func TestOpenVINO(t *testing.T) {
	plugin := os.Getenv("MLRBFN_OPENVINO_PLUGIN")
	if plugin == "" {
		t.Skip("MLRBFN_OPENVINO_PLUGIN does not name OpenVINO's plug-in")
	}
	for _, name := range []string{"vit-tiny-p16", "mobilenetv1-nhwc", "squeezenet11-fp16io", "resnet20-cifar10"} {
		t.Run(name, func(t *testing.T) {
			dir := testenv.Shared(t, "models", name)
			want := patterned(t, openTest(t, dir, Options{}), 3)
			got := patterned(t, openTest(t, dir, Options{Device: "openvino", Provider: plugin}), 3)
			for i := range want {
				if c := cosine(got[i], want[i]); !(c > 0.99999) {
					t.Errorf("image %d: cosine %v to the CPU's features", i, c)
				}
			}
			_, err := OpenModel(t.Context(), dir, Options{Device: "openvino:99", Provider: plugin})
			wantError(t, err, "openvino:99", "on this machine")
			_, err = OpenModel(t.Context(), dir, Options{Device: "cuda", Provider: plugin})
			wantError(t, err, "0 devices for cuda")
		})
	}
}
