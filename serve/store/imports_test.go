package store

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNoDatabases: who imports the pipeline, or watches for drift, compiles no
// database, and nothing here knows of HTTP but what the drivers bring.
func TestNoDatabases(t *testing.T) {
	list := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("go", append([]string{"list"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	of := list("-deps", "mlrbfn/pipeline", "mlrbfn/report", "mlrbfn/features", "mlrbfn/serve/drift")
	for _, module := range []string{"modernc.org/", "github.com/jackc/", "mlrbfn/serve/store", "net/http\n"} {
		if strings.Contains(of, module) {
			t.Errorf("the library imports %s", module)
		}
	}
	if of := list("-deps", "mlrbfn/pipeline"); strings.Contains(of, "mlrbfn/serve") {
		t.Error("the pipeline imports a part of the service")
	}
	if of := list("-f", "{{.Imports}}", "mlrbfn/serve/store", "mlrbfn/serve/drift"); strings.Contains(of, "net/http") {
		t.Errorf("they import %s", of)
	}
}
