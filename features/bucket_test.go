package features_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

// TestSetOfABucket reads a set of parts as earlier versions wrote it into a bucket: its
// folders have the digits of a checksum in their names, and records lie beside them.
func TestSetOfABucket(t *testing.T) {
	features.SetCopies(features.Copies{Dir: t.TempDir()})
	defer features.SetCopies(features.Copies{})
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Join("testdata", "bucket"))))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "set")
	if _, err := features.Merge(t.Context(), out, []string{server.URL + "/set"}, features.Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := features.Open(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	images, err := s.Images()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, image := range images {
		paths = append(paths, image.Path)
	}
	failed, err := s.Errors()
	if err != nil || len(failed) != 1 || failed[0].Path != "disc/broken.png" {
		t.Errorf("failed are %v, %v", failed, err)
	}
	want := []string{"disc/0.png", "square/1.png", "disc/2.png", "square/3.png", "disc/4.png", "square/5.png", "disc/6.png", "square/7.png", "disc/8.png"}
	if !slices.Equal(paths, want) || !slices.Equal(s.Labels(), []int64{0, 1, 0, 1, 0, 1, 0, 1, 0}) || !slices.Equal(s.Classes, []string{"disc", "square"}) {
		t.Errorf("rows are %q with labels %v of %q", paths, s.Labels(), s.Classes)
	}
	// The red of a pixel is 25 times the number of the image.
	for i := range s.N {
		if row := s.Row(i); len(row) != 12 || row[0] != float32(25*i)/255 {
			t.Errorf("row %d is %v", i, row)
		}
	}
	near, err := features.Open(t.Context(), filepath.Join("testdata", "bucket", "set")) // a copy on the disk
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if !slices.Equal(near.Features(), s.Features()) {
		t.Error("a copy on the disk has other features")
	}
	if err := os.RemoveAll(out); err != nil {
		t.Error(err)
	}
}
