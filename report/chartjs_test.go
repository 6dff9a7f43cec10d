package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChartLibrary compares the committed files of Chart.js with the checksums
// that scripts/fetch.py recorded when it unpacked them from the npm package, and
// the package with the one that go:generate pins by its integrity.
func TestChartLibrary(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("chartjs/.stamp")
	if err != nil {
		t.Fatal(err)
	}
	var stamp struct {
		From  string
		Files map[string]string
	}
	if err := json.Unmarshal(text, &stamp); err != nil {
		t.Fatal(err)
	}
	if len(stamp.Files) != 2 {
		t.Errorf("the stamp names %d files, not the script and its licence", len(stamp.Files))
	}
	for name, want := range stamp.Files {
		data, err := os.ReadFile(filepath.Join("chartjs", name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has the SHA-256 %x, want %s", name, sum, want)
		}
		if name == "chart.umd.min.js" && bytes.Contains(data, []byte("</script")) {
			t.Errorf("%s cannot stand in a page: it would end its own script element", name)
		}
	}
	source, err := os.ReadFile("chart.go")
	if err != nil {
		t.Fatal(err)
	}
	_, command, ok := strings.Cut(string(source), "//go:generate ")
	command, _, _ = strings.Cut(command, "\n")
	from := strings.Fields(stamp.From) // npm NAME VERSION INTEGRITY FILE…
	if !ok || len(from) < 4 || !strings.Contains(command, strings.Join([]string{"--name", from[1], "--version", from[2], "--integrity", from[3]}, " ")) {
		t.Errorf("chart.go generates by %q, the files are from %q", command, stamp.From)
	}
}
