package report_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNoPlotting: programs that use the library do not contain the plotting
// modules, which include PDF and LaTeX.
func TestNoPlotting(t *testing.T) {
	t.Parallel()
	imports, err := exec.Command("go", "list", "-deps", "github.com/mlrbfn/mlrbfn/pipeline", "github.com/mlrbfn/mlrbfn/report").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, imports)
	}
	for _, module := range []string{"gonum.org/v1/plot", "codeberg.org/go-pdf", "codeberg.org/go-latex", "github.com/mlrbfn/mlrbfn/internal/command/figures"} {
		if strings.Contains(string(imports), module) {
			t.Errorf("the library imports %s", module)
		}
	}
}
