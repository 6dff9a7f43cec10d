package training

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// TestTrainComparesProbes: sets for which the model gave other features are not trained,
// validated or calibrated on together.
func TestTrainComparesProbes(t *testing.T) {
	t.Parallel()
	classes := []string{"a", "b"}
	set := func(shift float32) string {
		dir := filepath.Join(t.TempDir(), "set")
		w, err := features.Create(t.Context(), dir, features.Header{
			D: 2, Fingerprint: "f", Probe: &features.Probe{Version: 1, Images: 2, Features: []float32{0, 0, 3 + shift, 4}},
		}, features.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var images []features.Image
		for i := range 40 {
			img := features.Image{Path: fmt.Sprintf("%s/%d", classes[i%2], i), Label: &classes[i%2], SHA256: fmt.Sprintf("%064x", i)}
			if err := w.Append(img, []float32{float32(4 * (i % 2)), float32(i) / 40}, nil); err != nil {
				t.Fatal(err)
			}
			images = append(images, img)
		}
		if _, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: images}}, Classes: classes}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	first := set(0)
	for _, tt := range []struct {
		shift float32
		warns string
		drift bool
	}{{0.001, "", false}, {0.1, "0.02 of the distance", false}, {1, "0.2 of the distance", true}} {
		other := set(tt.shift)
		for what, o := range map[string]Options{
			"training":    quick(first, other),
			"validation":  func() Options { o := quick(first); o.Validation.Features = other; return o }(),
			"calibration": func() Options { o := quick(first); o.Calibration.Features = other; return o }(),
		} {
			data, err := Open(context.Background(), o)
			if errors.Is(err, features.ErrDrifted) != tt.drift || !tt.drift && err != nil {
				t.Errorf("%s, shift %g: %v", what, tt.shift, err)
			}
			o.AllowDriftedFeatures = true
			if tt.drift {
				data, err = Open(context.Background(), o)
			}
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(data.Warnings, "\n"); !strings.Contains(text, tt.warns) || strings.Contains(text, "of the distance") != (tt.warns != "") {
				t.Errorf("%s, shift %g: warnings %q", what, tt.shift, text)
			}
			if err := data.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
