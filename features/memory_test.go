package features

import (
	"context"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// writeArray writes an .npy file.
func writeArray[T npy.Element](t *testing.T, path string, values []T, shape ...int) {
	t.Helper()
	if err := npy.WriteFile(path, values, shape...); err != nil {
		t.Fatal(err)
	}
}

// TestInMemory compares a set in memory with the same one in a folder.
func TestInMemory(t *testing.T) {
	x, labels := []float32{1, 2, 3, 4, 5, 6}, []int64{1, -1, 0}
	dir := t.TempDir()
	writeArray(t, dir+"/features.npy", x, 3, 2)
	writeArray(t, dir+"/labels.npy", labels, 3)
	saved, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	set, err := InMemory(x, 2, labels, saved.Classes)
	if err != nil {
		t.Fatal(err)
	}
	if &set.Features()[0] != &x[0] {
		t.Error("the rows are copied")
	}
	want, err := saved.Content(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := set.Content(context.Background()); err != nil || got != want {
		t.Errorf("its content is %s, %v; that of the folder is %s", got, err, want)
	}
	t.Chdir(dir) // nothing is looked for there
	if images, err := set.Images(); err != nil || images != nil {
		t.Errorf("it has images: %v, %v", images, err)
	}
	if weight, _, err := set.Classifier(); err != nil || weight != nil {
		t.Errorf("it has a classifier: %v, %v", weight, err)
	}
	for _, bad := range []func() (*Set, error){
		func() (*Set, error) { return InMemory(x, 4, nil, nil) },
		func() (*Set, error) { return InMemory(x, 0, nil, nil) },
		func() (*Set, error) { return InMemory(x, 2, labels[:2], saved.Classes) },
		func() (*Set, error) { return InMemory(x, 2, labels, saved.Classes[:1]) },
	} {
		if _, err := bad(); err == nil {
			t.Error("arrays that do not fit are taken")
		}
	}
}
