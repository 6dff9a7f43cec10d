package extractor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// The tests make their own little graphs: this writes just enough of ONNX's
// protocol buffers (onnx.proto3) for nodes, inputs and outputs.

func field(number int, value []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(number)<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

func varint(number int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3), value)
}

func message(fields ...[]byte) (b []byte) {
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

// node is a NodeProto with the inputs, separated by commas, and one output.
func node(op, inputs, output string, attributes ...[]byte) []byte {
	fields := [][]byte{field(2, []byte(output)), field(4, []byte(op))}
	for _, input := range strings.Split(inputs, ",") {
		fields = append(fields, field(1, []byte(input)))
	}
	for _, a := range attributes {
		fields = append(fields, field(5, a))
	}
	return field(1, message(fields...))
}

func intAttribute(name string, value uint64) []byte {
	return message(field(1, []byte(name)), varint(3, value), varint(20, 2))
}

func intsAttribute(name string, value uint64) []byte {
	return message(field(1, []byte(name)), varint(8, value), varint(20, 7))
}

func valueInfo(t TensorInfo) []byte {
	elem := map[string]uint64{"float32": 1, "int64": 7, "bool": 9, "float16": 10}[t.Type]
	var dims []byte
	for i, d := range t.Shape {
		dim := field(2, fmt.Appendf(nil, "%s_%d", t.Name, i))
		if d >= 0 {
			dim = varint(1, uint64(d))
		}
		dims = append(dims, field(1, dim)...)
	}
	return message(field(1, []byte(t.Name)), field(2, field(1, message(varint(1, elem), field(2, dims)))))
}

// constant is a node whose output is a tensor.
func constant(output string, tensor []byte) []byte {
	value := message(field(1, []byte("value")), field(5, tensor), varint(20, 4))
	return field(1, message(field(2, []byte(output)), field(4, []byte("Constant")), field(5, value)))
}

func graph(inputs, outputs []TensorInfo, nodes ...[]byte) []byte {
	fields := append([][]byte{}, nodes...)
	fields = append(fields, field(2, []byte("test")))
	for _, t := range inputs {
		fields = append(fields, field(11, valueInfo(t)))
	}
	for _, t := range outputs {
		fields = append(fields, field(12, valueInfo(t)))
	}
	return message(varint(1, 8), field(7, message(fields...)), field(8, varint(2, 13)))
}

// testModel writes a model folder whose preprocessing makes height×width
// images of values in [−1, 1].
func testModel(t testing.TB, height, width int, graph []byte) string {
	t.Helper()
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "model.onnx"), string(graph))
	write(t, filepath.Join(dir, "preprocessor_config.json"), processor(height, width))
	return dir
}

func processor(height, width int) string {
	return fmt.Sprintf(`{"image_processor_type": "ViTImageProcessor", "do_resize": true,
 "size": {"height": %d, "width": %d}, "resample": 2, "do_rescale": true, "rescale_factor": 0.00392156862745098,
 "do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}`, height, width)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func openTest(t testing.TB, dir string, opts Options) *Model {
	t.Helper()
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	m, err := OpenModel(t.Context(), dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// wantError fails unless err says all of the texts in one line.
func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has several lines", err)
	}
}
