package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestGate learns red and green images, whose features are their pixels, and judges
// others, and blue ones.
func TestGate(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := errors.Join(testenv.DrawnFolder("images/red", 0, 120), testenv.DrawnFolder("images/green", 1, 120), testenv.DrawnFolder("new", 1, 3), testenv.DrawnFolder("blue", 2, 3)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := gate(t.Context(), &out, "pixels", "images", []string{filepath.Join("new", "0.png"), "blue"}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d verdicts:\n%s", len(lines), &out)
	}
	if !strings.Contains(lines[0], " green ") || !strings.Contains(lines[0], " false ") {
		t.Errorf("of a green image it says %s", lines[0])
	}
	for _, line := range lines[1:] {
		if !strings.Contains(line, " true ") {
			t.Errorf("of a blue image it says %s", line)
		}
	}
}
