package evaluation

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// TestEvaluateNeedsLayers: where the training features have layers, which scores may read,
// sets of the same embedding without them are refused and not judged by other columns.
func TestEvaluateNeedsLayers(t *testing.T) {
	t.Parallel()
	layers := []features.Layer{{Name: "block", D: 2}}
	create := func(with bool) string {
		h, row := features.Header{D: 2, Fingerprint: "f"}, []float32{0, 0}
		if with {
			h.Layers, h.Embedding, h.Fingerprint, row = layers, "f", features.LayersFingerprint("f", layers), []float32{0, 0, 1, 2}
		}
		dir := filepath.Join(t.TempDir(), "set")
		w, err := features.Create(t.Context(), dir, h, features.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		names := []string{"one", "two"}
		var all []features.Image
		for i := range 60 {
			img := features.Image{Path: fmt.Sprint(i), Label: &names[i%2], SHA256: strings.Repeat("0a", 32)}
			row[0], row[1] = float32(4*(i%2))+float32(i%7)/10, float32(i%11)/10
			if err := w.Append(img, row, nil); err != nil {
				t.Fatal(err)
			}
			all = append(all, img)
		}
		if _, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: all}}, Classes: names}); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	opts := Options{Train: quick(create(true)), ID: create(true), OOD: []OODSet{{metrics.Near, "a", create(false)}}, Out: t.TempDir()}
	if _, err := Evaluate(t.Context(), opts); !errors.Is(err, features.ErrLayers) || !strings.Contains(err.Error(), "block") {
		t.Errorf("a set without layers: %v", err)
	}
}
