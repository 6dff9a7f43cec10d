package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// TestForgedHash: a model of another hash is judged by the detector's probe, and is
// refused where there is none.
func TestForgedHash(t *testing.T) {
	w := newWorld(t)
	d, err := pipeline.LoadDetector(w.detector)
	if err != nil {
		t.Fatal(err)
	}
	d.Source.Fingerprint, d.Source.SHA256 = "", strings.Repeat("0", 64)
	file := filepath.Join(t.TempDir(), "forged")
	detect := []string{"detect", "--detector", file, "--model", w.model, "--quiet", w.images}
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	call(t, 0, detect...) // the probe agrees
	d.Probe = nil
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	fails(t, "its graph is another", detect...)
}

// TestSign signs a bundle with a key of minisign's, and judges by it.
func TestSign(t *testing.T) {
	w := newWorld(t)
	keys := filepath.Join(testenv.Root(t), "pipeline", "detector", "testdata", "signed")
	key, public, other := filepath.Join(keys, "test.key"), filepath.Join(keys, "test.pub"), filepath.Join(keys, "other.pub")
	dir := t.TempDir()
	bundle := filepath.Join(dir, "bundle")
	file := filepath.Join(bundle, detector.BundleFile)
	call(t, 0, shortTraining("--features", w.features, "--out", bundle, "--bundle", "--epochs", "1", "--calibration", "0.5", "--quiet")...)
	picture(t, filepath.Join(dir, "new", "0.png"), 0, 100)
	detect := []string{"detect", "--detector", bundle, "--quiet", filepath.Join(dir, "new")}
	signed := append(detect, "--public-key", public)
	fails(t, "no valid signature", signed...)
	out, _ := call(t, 0, "sign", "--key", key, bundle)
	if !strings.Contains(out, "--public-key RWRHaCgszjM9Rn1H") {
		t.Errorf("sign says %q", out)
	}
	call(t, 0, signed...)
	call(t, 0, append(signed, "--model", filepath.Join(bundle, "model"))...)
	fails(t, "no valid signature", append(detect, "--public-key", other)...)
	fails(t, "--public-key: ", append(detect, "--public-key", "RW")...)
	refused(t, "--public-key", append(detect, "--public-key", "")...)
	if program, err := exec.LookPath("minisign"); err == nil {
		if out, err := exec.Command(program, "-V", "-H", "-m", file, "-p", public).CombinedOutput(); err != nil {
			t.Errorf("minisign: %v\n%s", err, out)
		}
	}

	write(t, filepath.Join(dir, "other", "model.onnx"), "\x3a\x00") // an empty graph, which is not even opened
	fails(t, "its graph is another", append(signed, "--model", filepath.Join(dir, "other"))...)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, strings.Replace(string(data), `\"threshold\"`, `\"Threshold\"`, 1))
	t.Setenv(publicKeyEnv, public)
	fails(t, "of another file, or altered", detect...)
	fails(t, "of another file, or altered", "export", "--detector", bundle, "--out", filepath.Join(dir, "d.onnx"))
	fails(t, "of another file, or altered", "evaluate", "--detector", bundle, "--id", w.features)
	fails(t, "checksum", "sign", "--key", key, bundle)
	refused(t, "one detector", "sign", "--key", key)
}
