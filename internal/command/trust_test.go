//go:build unix

package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSetAsideStaysInTheFolder: what links lead to outside the folder that was
// named is judged, and neither moved nor copied.
func TestSetAsideStaysInTheFolder(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	t.Chdir(dir)
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	picture(t, in("victim", "a.png"), 2, 1)
	picture(t, in("incoming", "mine", "b.png"), 2, 2)
	for link, target := range map[string]string{"incoming/holiday": "../victim", "incoming/c.png": "../victim/a.png", "incoming/mine/up": ".."} {
		if err := os.Symlink(target, in(link)); err != nil {
			t.Skip(err)
		}
	}
	for _, flag := range []string{"--copy-ood", "--move-ood"} {
		out, _ := call(t, partial, "detect", "--detector", w.detector, "--json", "--quiet", "--threshold", "100", flag, "strange", "incoming")
		for _, row := range lines(t, out) {
			outside := row["path"] != "incoming/mine/b.png"
			if reason, _ := row["set_aside_error"].(string); row["ood"] != true || (row["set_aside"] == nil) != outside || outside != strings.Contains(reason, "lies outside") {
				t.Errorf("%s: %v", flag, row)
			}
		}
		if _, err := os.Stat(in("victim", "a.png")); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(in("strange")); err != nil || len(entries) != 1 || entries[0].Name() != "mine" {
			t.Errorf("%s: %v, %v", flag, entries, err)
		}
	}
}
