package serve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// triton asks a service as users of Triton and KServe do, with tritonclient as it is.
const triton = `
import sys, json
sys.path.insert(0, sys.argv[1])
import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

url, files = sys.argv[2], sys.argv[3:]
client = http.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("main")
assert not client.is_model_ready("other")
assert client.get_server_metadata()["name"] == "mlrbfn"
metadata = client.get_model_metadata("main")
assert [i["name"] for i in metadata["inputs"]] == ["image", "features"], metadata
assert client.is_model_ready("main", metadata["versions"][0])
assert client.get_model_config("main")["max_batch_size"] == 0
assert client.get_model_repository_index() == [{"name": "main", "version": metadata["versions"][0], "state": "READY"}]
client.load_model("main")

images = np.array([open(f, "rb").read() for f in files], dtype=np.object_)

def infer(values, name, datatype, binary_in=True, outputs=None, **more):
    tensor = http.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary_in)
    return client.infer("main", [tensor], outputs=outputs, **more)

names = ["class", "label", "confidence", "score", "ood", "p_value"]
def rows(result):
    columns = [result.as_numpy(n) for n in names]
    def plain(v):
        return v.decode() if isinstance(v, bytes) else v if isinstance(v, str) else v.item()
    return [[plain(c[i]) for c in columns] for i in range(len(columns[0]))]

first = rows(infer(images, "image", "BYTES"))
for more in ({"request_compression_algorithm": "gzip"}, {"request_compression_algorithm": "deflate"}, {"response_compression_algorithm": "gzip"}, {"request_id": "7"}):
    assert rows(infer(images, "image", "BYTES", **more)) == first, more
assert rows(infer(images, "image", "BYTES", outputs=[http.InferRequestedOutput(n, binary_data=False) for n in names])) == first
assert rows(infer(images, "image", "BYTES", outputs=[http.InferRequestedOutput(n, binary_data=True) for n in names])) == first
assert rows(infer(images.reshape(-1, 1), "image", "BYTES")) == first

D = metadata["inputs"][1]["shape"][1]
x = np.random.default_rng(1).normal(size=(3, D)).astype(np.float32)
binary, text = rows(infer(x, "features", "FP32")), rows(infer(x, "features", "FP32", binary_in=False))
assert binary == text and len(binary) == 3

broken = infer(np.array([b"broken", images[0]], dtype=np.object_), "image", "BYTES")
assert rows(broken)[1] == first[0] and broken.as_numpy("error")[0] and not broken.as_numpy("error")[1]
for bad in (lambda: infer(np.array([b"broken"], dtype=np.object_), "image", "BYTES"), lambda: infer(x[:, 1:], "features", "FP32"), lambda: client.infer("other", [])):
    try:
        bad()
    except InferenceServerException:
        continue
    raise AssertionError("a bad request was answered")

futures = []
for _ in range(20):
    tensor = http.InferInput("image", [len(images)], "BYTES")
    tensor.set_data_from_numpy(images)
    futures.append(client.async_infer("main", [tensor]))
assert all(rows(f.get_result()) == first for f in futures)
print(json.dumps(first))
`

// TestTritonClient: tritonclient from PyPI, unchanged, gets the verdicts of detect.
func TestTritonClient(t *testing.T) {
	packages := filepath.Join(testenv.Root(t), ".setup", "triton")
	if _, err := os.Stat(packages); err != nil {
		testenv.Missing(t, "tritonclient", "run `make setup`", err)
	}
	w := start(t, nil)
	args := []string{packages, w.url[len("http://"):]}
	var images [][]byte
	for i := range 4 {
		data := servetest.Image(i%2, uint64(200+i))
		file := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(file, data, 0o666); err != nil {
			t.Fatal(err)
		}
		images, args = append(images, data), append(args, file)
	}
	var got [][]any
	if err := json.Unmarshal([]byte(testenv.Python(t, triton, args...)), &got); err != nil {
		t.Fatal(err)
	}
	for i, v := range w.verdicts(t, images...) {
		want := []any{v.Class, float64(v.Label), v.Confidence, v.Score, v.OOD, v.PValue}
		for k := range want {
			if got[i][k] != want[k] {
				t.Errorf("image %d: %v, want %v", i, got[i], want)
				break
			}
		}
	}
}
