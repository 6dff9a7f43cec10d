package report_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlrbfn/report"
)

func TestReadResults(t *testing.T) {
	const head = "method,seed,group,dataset,n_id,n_ood,auroc,aupr_out,aupr_in,fpr95,fpr95_id,id_acc\n"
	file := filepath.Join(t.TempDir(), "results.csv")
	read := func(text string) ([]report.Result, error) {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return report.ReadResults(file)
	}
	rows, err := read(head + "\"ensemble(gen,knn)\",mean,near,tin,10,20,0.5,0.25,1,0,0.125,\n")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if !math.IsNaN(rows[0].IDAcc) {
		t.Errorf("an empty accuracy became %v", rows[0].IDAcc)
	}
	rows[0].IDAcc = 0
	want := report.Result{Method: "ensemble(gen,knn)", Seed: "mean", Group: "near", Dataset: "tin", NID: 10, NOOD: 20, AUROC: .5, AUPROut: .25, AUPRIn: 1, FPR95ID: .125}
	if rows[0] != want {
		t.Errorf("read %+v, want %+v", rows[0], want)
	}
	for text, want := range map[string]string{
		"":                                     "columns",
		"a,b\n":                                "columns",
		head + "m,0,near,a,x,1,1,1,1,1,1,1\n":  "row 1",
		head + "m,0,near,a,1,1,1,1,1,1,1,no\n": "row 1",
		head + "m,0,near\n":                    "wrong number of fields",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
