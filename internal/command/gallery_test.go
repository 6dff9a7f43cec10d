package command

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
)

// TestGallery: Parquet of verdicts and of features with thumbnails is what the readers of
// scripts/check_engines make of it, and Apple's embedding-atlas shows pictures and map. With
// -artifacts a screenshot remains: with MLRBFN_GALLERY_MODEL=efficientnet-lite0 docs/gallery.png.
func TestGallery(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts seven programs")
	}
	root := testenv.Root(t)
	engines := filepath.Join(root, ".setup", "engines", "bin")
	if _, err := os.Stat(filepath.Join(engines, "embedding-atlas")); err != nil {
		testenv.Missing(t, "embedding-atlas", "make a virtual environment .setup/engines with scripts/requirements-engines.txt", err)
	}
	b := browser.Start(t, "--enable-unsafe-swiftshader", "--use-angle=swiftshader", "--ignore-gpu-blocklist")
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	model, drawn := os.LookupEnv("MLRBFN_GALLERY_MODEL")
	if !drawn {
		model = filepath.Join(root, "extractor", "testdata", "exports", "optimum-patches")
	}
	dir := t.TempDir()
	call(t, 0, "demo", "--out", filepath.Join(dir, "mlrbfn-demo"), "--model", model)
	t.Chdir(dir)
	if err := os.WriteFile("mlrbfn-demo/images/new/rocket/broken.png", []byte("no image"), 0o666); err != nil {
		t.Fatal(err)
	}
	judge := []string{"detect", "--detector", "mlrbfn-demo/textures.safetensors", "mlrbfn-demo/images/new/coffee", "mlrbfn-demo/images/new/chelsea", "mlrbfn-demo/images/new/rocket", "mlrbfn-demo/images/known", "--out"}
	call(t, partial, append(judge, "verdicts", "--format", "parquet", "--thumbnails")...)
	call(t, partial, append(judge, "lines", "--format", "jsonl")...)
	call(t, 0, "convert", "--out", "features", "--thumbnails", "mlrbfn-demo/features")
	file := filepath.Join("verdicts", "part-00001-of-00001.parquet")
	for _, what := range [][]string{{"features"}, {"verdicts", "lines/part-00001-of-00001.jsonl"}} {
		out, err := exec.Command(filepath.Join(engines, "python"), append([]string{filepath.Join(root, "scripts", "check_engines"), "parquet"}, what...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"pictures": true, "read by": ["pandas", "pyarrow", "duckdb"`) {
			t.Errorf("%v: %s", err, out)
		}
		t.Logf("%s", out)
	}

	cmd := exec.Command(filepath.Join(engines, "embedding-atlas"), file, "--image", "image", "--x", "x", "--y", "y", "--port", "5055")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	address := ""
	for said := bufio.NewScanner(out); address == "" && said.Scan(); {
		address = regexp.MustCompile(`http://[a-z0-9.]+:\d+`).FindString(said.Text())
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // it says so before it listens
		r, err := http.Get(address)
		if err == nil {
			r.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	tab := b.Open(t)
	tab.Show(browser.Screen{Width: 1280, Height: 900})
	tab.Go(address)
	tab.Wait(`document.body.innerText.includes("274 points")`)
	tab.Click(`button[title="Card view"]`)
	const colours = `select:has(option[value='"class"'])`
	tab.Wait("document.querySelector(`" + colours + "`)")
	tab.Choose(colours, `"class"`)
	tab.Wait(`[...document.querySelectorAll("img")].filter((i) => i.naturalWidth > 0).length > 10`)
	if drawn {
		time.Sleep(10 * time.Second) // until points have their colours
	}
	tab.Screenshot(filepath.Join(t.ArtifactDir(), "gallery.png"), false)
}
