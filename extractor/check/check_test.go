package check

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlrbfn/extractor"
	"mlrbfn/internal/testenv"
)

func open(t *testing.T, dir string) *extractor.Model {
	t.Helper()
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	m, err := extractor.OpenModel(dir, extractor.ModelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// sample lists n images of a folder, evenly spaced.
func sample(t *testing.T, folder string, n int) []extractor.Item {
	t.Helper()
	listing, err := extractor.List(extractor.ListOptions{Root: folder})
	if err != nil {
		t.Fatal(err)
	}
	return Sample(listing.Items, n)
}

func run(t *testing.T, m *extractor.Model, opts Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), m, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func warns(r *Report, about string) bool {
	return slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, about) })
}

// TestRealModels: nothing is wrong with them as they are, and a normalisation
// of another family is noticed.
func TestRealModels(t *testing.T) {
	photos, small := testenv.Shared(t, "data", "images", "imagenet_samples"), testenv.Shared(t, "data", "images", "cifar10", "test")
	for name, test := range map[string]struct {
		images string
		n      int
		wrong  int // of Common
	}{
		"vit-tiny-p16":        {photos, 12, 0},
		"mobilenetv2":         {photos, 24, 0},
		"mobilenetv1-nhwc":    {photos, 24, 0},
		"squeezenet11-fp16io": {photos, 24, 4},
		"densenet100-cifar10": {small, 32, 3},
		"resnet20-cifar10":    {small, 64, 3},
		"resnet56-cifar10":    {small, 64, 3},
	} {
		t.Run(name, func(t *testing.T) {
			m := open(t, testenv.Shared(t, "models", name))
			opts := Options{Images: sample(t, test.images, test.n)}
			r := run(t, m, opts)
			if len(r.Warnings) > 0 {
				t.Errorf("as it is: %q", r.Warnings)
			}
			wrong := Common[test.wrong]
			m.Spec.Scale, m.Spec.Mean, m.Spec.Std = wrong.Scale, wrong.Mean, wrong.Std
			r = run(t, m, opts)
			if !warns(r, "normalisation") {
				t.Errorf("normalised %s: %q", wrong.Name, r.Warnings)
			}
		})
	}
}

func TestBadlyQuantised(t *testing.T) {
	dir := testenv.Shared(t, "models")
	opts := Options{Images: sample(t, testenv.Shared(t, "data", "images", "imagenet_samples"), 12), Against: open(t, filepath.Join(dir, "vit-tiny-p16"))}
	r := run(t, open(t, filepath.Join(dir, "vit-tiny-p16-int8")), opts)
	if !warns(r, "disagrees") {
		t.Errorf("%+v, %q", r.Against, r.Warnings)
	}
	r = run(t, open(t, filepath.Join(dir, "vit-tiny-p16")), opts)
	if warns(r, "disagrees") || !(r.Against.Cosine.Min > 0.999999) || r.Against.SameNearest < 0.999 {
		t.Errorf("with itself: %+v, %q", r.Against, r.Warnings)
	}
}
