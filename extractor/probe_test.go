package extractor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
)

// TestProbeImages: the images of a probe are the same for ever, as files keep what models
// answered on them.
func TestProbeImages(t *testing.T) {
	want := []string{
		"96fb45e4141e96f0175ce26e5f074cc5308eef117e63f331f6944d58494e3bfd",
		"7b2bf17926c4644f371699acec264497c86772549166dfd8b6baf7aca550c376",
		"8c9264e113d992b98700b8edf23e04e6820a71c87584cae69bff7f16dee1322b",
		"016ef20a19e73341b9058e4f780d23c2c5b2d060ef61085168fe0cab5eb93037",
	}
	for i, size := range probeSizes {
		img := ProbeImage(i, size.X, size.Y)
		sum := sha256.Sum256(img.Pix)
		if got := hex.EncodeToString(sum[:]); got != want[i] {
			t.Errorf("image %d of version %d is another: %s, want %s", i, probeVersion, got, want[i])
		}
	}
}

var writeProbe = flag.String("write-probe", "", "write what nhwc-int8 answers on this kind of processor to a `file`")

// probeKinds are files with what nhwc-int8 answers on processors whose 8-bit products
// are exact, and saturate; -write-probe wrote them, the second under qemu-x86_64 -cpu
// Haswell.
var probeKinds = map[bool]string{false: "testdata/probe-exact.json", true: "testdata/probe-saturating.json"}

func readProbe(t *testing.T, file string) *features.Probe {
	t.Helper()
	p := new(features.Probe)
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProbeOfAnotherProcessor: an 8-bit model answers as it did on a processor of the
// same kind, and otherwise on the other kind, so that its features must not be mixed.
func TestProbeOfAnotherProcessor(t *testing.T) {
	m := openTest(t, filepath.Join(exports, "nhwc-int8"), Options{})
	here, err := m.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if *writeProbe != "" {
		text, err := json.Marshal(here)
		if err == nil {
			err = os.WriteFile(*writeProbe, append(text, '\n'), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	saturates := productsSaturate(t)
	same, other := readProbe(t, probeKinds[saturates]), readProbe(t, probeKinds[!saturates])
	if d := same.Distance(here); !same.Comparable(here) || d > features.SmallDistance {
		t.Errorf("on the same kind of processor the distance is %g", d)
	}
	if d := other.Distance(here); !other.Comparable(here) || d <= features.GreatDistance {
		t.Errorf("on the other kind of processor the distance is %g", d)
	}
}

// TestProbe: a probe has the features that images get, once, whatever the batch that a
// graph takes; an image without features has NaNs.
func TestProbe(t *testing.T) {
	for name, dir := range map[string]string{
		"any batch":  testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 3, 1, 1)}, node("GlobalAveragePool", "image", "features"))),
		"batch of 3": testModel(t, 2, 4, graph([]TensorInfo{floats("image", 3, 3, 2, 4)}, []TensorInfo{floats("features", 3, 3, 1, 1)}, node("GlobalAveragePool", "image", "features"))),
		"half":       filepath.Join(exports, "half"),
		"NaN":        testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 3, 1, 1)}, node("Log", "image", "log"), node("Neg", "log", "plus"), node("Log", "plus", "nan"), node("GlobalAveragePool", "nan", "features"))),
	} {
		t.Run(name, func(t *testing.T) {
			m := openTest(t, dir, Options{})
			p, err := m.Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var items []images.Item
			for i, size := range probeSizes {
				items = append(items, images.PixelsItem("", ProbeImage(i, size.X, size.Y)))
			}
			results, _ := collect(t, m, items, Options{})
			for i, r := range results {
				for j := range m.Dim() {
					got := p.Features[i*m.Dim()+j]
					if r.Err != nil && !math.IsNaN(float64(got)) || r.Err == nil && got != r.Features[j] {
						t.Fatalf("image %d: %v, and extracted %v, %v", i, p.Features, r.Features, r.Err)
					}
				}
			}
			if again, err := m.Probe(t.Context()); err != nil || again != p {
				t.Error("it was run again", err)
			}
			if failed := p.Distance(p); (name == "NaN") != math.IsInf(failed, 1) {
				t.Error("distance to itself", failed)
			}
		})
	}
	m := openTest(t, filepath.Join(exports, "half"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Probe(ctx); err == nil {
		t.Error("cancelled, and no error")
	}
	if _, err := m.Probe(t.Context()); err != nil {
		t.Error("a cancelled probe is kept:", err)
	}
}
