package extractor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModelOfALongPath: a model with its weights in another file opens in a folder whose
// path has letters beyond ASCII and more than 260 characters.
func TestModelOfALongPath(t *testing.T) {
	export := filepath.Join("testdata", "exports", "external")
	dir := filepath.Join(t.TempDir(), "gr\u00fcn", strings.Repeat("folder of a long name"+string(filepath.Separator), 15))
	if err := os.CopyFS(dir, os.DirFS(export)); err != nil {
		t.Fatal(err)
	}
	here := openTest(t, export, Options{}).Fingerprint()
	if m, err := OpenModel(t.Context(), dir, Options{}); filepath.Separator == '\\' && err != nil {
		// Wine's GetFinalPathNameByHandle knows no such paths.
		wantError(t, err, "characters", "canonical path", "move it to one of fewer than 260")
		return
	} else if err == nil {
		m.Close()
	}
	if there := openTest(t, dir, Options{}).Fingerprint(); here != there {
		t.Errorf("%s, %s", here, there)
	}
}
