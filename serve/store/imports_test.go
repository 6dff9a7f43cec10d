package store

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNoDatabases: who imports the pipeline, or watches for drift, compiles no
// database, and nothing here knows of HTTP but what the drivers bring.
func TestNoDatabases(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	list := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("go", append([]string{"list"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	of := list("-deps", "github.com/mlrbfn/mlrbfn/pipeline", "github.com/mlrbfn/mlrbfn/report", "github.com/mlrbfn/mlrbfn/features", "github.com/mlrbfn/mlrbfn/pipeline/evaluation")
	for _, module := range []string{"modernc.org/", "github.com/jackc/", "github.com/aws/", "github.com/mlrbfn/mlrbfn/serve/store"} {
		if strings.Contains(of, module) {
			t.Errorf("the library imports %s", module)
		}
	}
	// Parquet's compression brings net/http, which no package of ours asks for.
	for line := range strings.Lines(list("-deps", "-f", "{{.ImportPath}} {{.Imports}}", "github.com/mlrbfn/mlrbfn/pipeline", "github.com/mlrbfn/mlrbfn/report", "github.com/mlrbfn/mlrbfn/pipeline/evaluation")) {
		if strings.HasPrefix(line, "github.com/mlrbfn/mlrbfn/") && (strings.Contains(line, " net/http ") || strings.Contains(line, " net/http]") || strings.Contains(line, "[net/http ")) {
			t.Errorf("the library imports net/http: %s", line)
		}
	}
	if of := list("-deps", "github.com/mlrbfn/mlrbfn/pipeline"); strings.Contains(of, "github.com/mlrbfn/mlrbfn/serve") {
		t.Error("the pipeline imports a part of the service")
	}
	if of := list("-f", "{{.Imports}}", "github.com/mlrbfn/mlrbfn/serve/store", "github.com/mlrbfn/mlrbfn/pipeline/evaluation"); strings.Contains(of, "net/http") {
		t.Errorf("they import %s", of)
	}
}
