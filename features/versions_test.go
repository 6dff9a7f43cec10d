package features_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// The folders of testdata are sets of six images and one that is broken, made with
// resnet20-cifar10 of ../shared, each by the `extract` of its time. The files must
// not change, since sets of all versions can be read in all later versions:
//
//   - version1, as of commit b7fb900, without checksums;
//   - version2, the first with them;
//   - version2-shard1 and -shard2, the same images with --shard 1/2 and 2/2;
//   - version3, these two merged, with paths as they are.
func TestSetsOfAllVersions(t *testing.T) {
	for _, name := range []string{"version1", "version2", "version3"} {
		s := open(t, filepath.Join("testdata", name))
		if s.N != 6 || s.D != 64 || s.Root != "/fixture/images" || s.Model != "/fixture/model" || s.Output != "features" ||
			!slices.Equal(s.Classes, []string{"cat", "dog"}) || !slices.Equal(s.Labels(), []int64{-1, 0, 0, 0, 1, 1}) {
			t.Errorf("%s: %+v, labels %v", name, s.Meta, s.Labels())
		}
		// NumPy's sums.
		logits, c := s.Logits()
		if got, want := sum(s.Features()), 157.6277833005879; c != 10 || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: features sum to %.12g, NumPy has %.12g", name, got, want)
		}
		if got, want := sum(logits), -0.29216572642326355; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: logits sum to %.12g, NumPy has %.12g", name, got, want)
		}
		images, err := s.Images()
		check(t, err)
		var paths []string
		for _, img := range images {
			paths = append(paths, img.Path)
		}
		if want := []string{"3.png", "cat/1.png", "cat/100%.png", "cat/\xff.png", "dog/käse.png", "dog/old/2.png"}; !slices.Equal(paths, want) {
			t.Errorf("%s: images %q", name, paths)
		}
		if img := images[1]; *img.Label != "cat" || img.Bytes != 107 || img.MTime != 1700000000123456789 || img.SHA256[:8] != "d9ef762c" {
			t.Errorf("%s: %+v", name, img)
		}
		failed, err := s.Errors()
		if err != nil || len(failed) != 1 || failed[0].Path != "dog/broken.png" {
			t.Errorf("%s: failed %v, %v", name, failed, err)
		}
	}
	merged := filepath.Join(t.TempDir(), "merged")
	_, err := features.Merge(t.Context(), merged, []string{"testdata/version2-shard2", "testdata/version2-shard1"}, features.Options{})
	check(t, err)
	sameContents(t, "testdata/version3", merged)
}

func sum(values []float32) (s float64) {
	for _, v := range values {
		s += float64(v)
	}
	return s
}

// TestFixturesGoOn: an extraction onto a set of every version uses its rows.
func TestFixturesGoOn(t *testing.T) {
	for _, name := range []string{"version1", "version2", "version3"} {
		dir := filepath.Join(t.TempDir(), name)
		check(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))))
		s, err := features.Open(t.Context(), dir)
		check(t, err)
		h := features.Header{
			D: s.D, LogitsDim: 10, Root: s.Root, Model: s.Model, ModelSHA256: s.ModelSHA256, Output: s.Output, Pool: s.Pool,
			Preprocess: s.Preprocess, Fingerprint: s.Fingerprint, Tool: s.Tool,
		}
		images, err := s.Images()
		check(t, err)
		failed, err := s.Errors()
		check(t, err, s.Close()) // Windows replaces no set that is open
		w := create(t, dir, h, features.Options{})
		for _, img := range images {
			if !w.Has(img.Path, img.Bytes, img.MTime) {
				check(t, fmt.Errorf("%s: %s is not known", name, img.Path))
			}
		}
		_, err = w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: images}}, Classes: s.Classes, Failed: failed})
		check(t, err)
		sameContents(t, "testdata/version3", dir)
	}
}
