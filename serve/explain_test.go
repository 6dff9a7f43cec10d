package serve

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// TestExplain: with explain=1 an answer has what Judge.Explain gives, and no path of
// this machine; without training features it has no neighbours.
func TestExplain(t *testing.T) {
	w := start(t, func(o *Options) { // the training features have these names of the classes
		file := o.Detectors.Detectors[0].File
		d, err := pipeline.LoadDetector(file)
		if err != nil {
			t.Fatal(err)
		}
		d.Classes = []string{"0", "1"}
		if err := d.Save(file); err != nil {
			t.Fatal(err)
		}
	})
	images := [][]byte{servetest.Image(0, 100), servetest.Image(1, 101)}
	judge, err := pipeline.OpenJudge(t.Context(), w.file, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	d, err := pipeline.LoadDetector(w.file)
	if err != nil {
		t.Fatal(err)
	}
	e, err := pipeline.NewExplainer(t.Context(), d, pipeline.ExplainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	want, err := judge.Explain(t.Context(), e, false, pipeline.Encoded(images[0]), pipeline.Encoded(images[1]))
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		result
		Why     string
		Parts   []json.RawMessage
		Nearest []struct{ Path string }
	}
	for i, data := range images {
		status, _, text := ask(t, "POST", w.url+"/v1/detect?explain=1", nil, bytes.NewReader(data))
		var got answer
		decode(t, text, &got)
		reasons, err := json.Marshal(want[i].Explanation)
		if err != nil {
			t.Fatal(err)
		}
		if status != 200 || !got.agrees(want[i].Verdict) || !strings.Contains(text, strings.Trim(string(reasons), "{}")) {
			t.Errorf("%d %s\nwant %+v", status, text, want[i].Explanation)
		}
		if len(got.Nearest) != 3 || got.Nearest[0].Path == "" || filepath.Base(got.Nearest[0].Path) == got.Nearest[0].Path || strings.Contains(text, filepath.Dir(w.file)) {
			t.Errorf("neighbours %s", text)
		}
	}
	for query, want := range map[string]int{"?explain=0": 200, "": 200, "?explain=where": 400} {
		if status, _, text := ask(t, "POST", w.url+"/v1/detect"+query, nil, bytes.NewReader(images[0])); status != want || strings.Contains(text, `"why"`) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}

	if runtime.GOOS == "windows" {
		return // which removes no file that is open
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(w.file), "features")); err != nil {
		t.Fatal(err)
	}
	if status, _, text := ask(t, "POST", w.url+"/v2/repository/models/main/load", nil, nil); status != 200 {
		t.Fatal(text) // which forgets the training features
	}
	_, _, text := ask(t, "POST", w.url+"/v1/detect?explain=true", nil, bytes.NewReader(images[0]))
	var got answer
	if decode(t, text, &got); got.Why == "" || len(got.Parts) == 0 || got.Nearest != nil || strings.Contains(text, filepath.Dir(w.file)) {
		t.Error(text)
	}
}
