package metrics_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// TestSummarise checks means and deviations of a method of two seeds against
// values worked out by hand, and that they survive a file.
func TestSummarise(t *testing.T) {
	t.Parallel()
	single := func(seed, group, dataset string, nOOD int, auroc, acc float64) metrics.Measurement {
		return metrics.Measurement{Method: "knn", Seed: seed, Group: group, Dataset: dataset, NID: 10, NOOD: nOOD, Result: metrics.Result{AUROC: auroc, FPR95: 1 - auroc}, IDAcc: acc}
	}
	got := metrics.Summarise([]metrics.Measurement{
		single("0", "near", "a", 5, 0.5, 0.75), single("0", "far", "b", 6, 0.25, 0.75), single("0", "near", "c", 7, 1, 0.75),
		single("1", "near", "a", 5, 0.25, 0.25), single("1", "far", "b", 6, 0.75, 0.25), single("1", "near", "c", 7, 0.75, 0.25),
	})
	var text strings.Builder
	for _, r := range got {
		fmt.Fprintf(&text, "%s %s %s %d %g %g %g\n", r.Seed, r.Group, r.Dataset, r.NOOD, r.AUROC, r.FPR95, r.IDAcc)
	}
	const want = `0 near a 5 0.5 0.5 0.75
0 far b 6 0.25 0.75 0.75
0 near c 7 1 0 0.75
0 near mean 12 0.75 0.25 0.75
0 far mean 6 0.25 0.75 0.75
1 near a 5 0.25 0.75 0.25
1 far b 6 0.75 0.25 0.25
1 near c 7 0.75 0.25 0.25
1 near mean 12 0.5 0.5 0.25
1 far mean 6 0.75 0.25 0.25
mean near a 5 0.375 0.625 0.5
mean far b 6 0.5 0.5 0.5
mean near c 7 0.875 0.125 0.5
mean near mean 12 0.625 0.375 0.5
mean far mean 6 0.5 0.5 0.5
std near a 5 0.125 0.125 0.25
std far b 6 0.25 0.25 0.25
std near c 7 0.125 0.125 0.25
std near mean 12 0.125 0.125 0.25
std far mean 6 0.25 0.25 0.25
`
	if text.String() != want {
		t.Errorf("got\n%s, want\n%s", text.String(), want)
	}
	file := filepath.Join(t.TempDir(), "new", "results.csv")
	if err := metrics.WriteResults(file, got); err != nil {
		t.Fatal(err)
	}
	if read, err := metrics.ReadResults(file); err != nil || !slices.Equal(read, got) {
		t.Errorf("read %v, %v", read, err)
	}
	if err := metrics.RemoveResults(file); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the results are still there: %v", err)
	}
	if err := metrics.RemoveResults(file); err != nil {
		t.Errorf("no results to remove: %v", err)
	}
	if err := os.WriteFile(file, []byte("method,mine\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := metrics.RemoveResults(file); !errors.Is(err, metrics.ErrForeign) {
		t.Errorf("a file of somebody else: %v", err)
	}
}

func TestReadResults(t *testing.T) {
	t.Parallel()
	const head = "method,seed,group,dataset,n_id,n_ood,auroc,aupr_out,aupr_in,fpr95,fpr95_id,id_acc\n"
	file := filepath.Join(t.TempDir(), "results.csv")
	read := func(text string) ([]metrics.Measurement, error) {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return metrics.ReadResults(file)
	}
	rows, err := read(head + "\"ensemble(gen,knn)\",mean,near,tin,10,20,0.5,0.25,1,0,0.125,\n")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if !math.IsNaN(rows[0].IDAcc) {
		t.Errorf("an empty accuracy became %v", rows[0].IDAcc)
	}
	rows[0].IDAcc = 0
	want := metrics.Measurement{Method: "ensemble(gen,knn)", Seed: "mean", Group: "near", Dataset: "tin", NID: 10, NOOD: 20, Result: metrics.Result{AUROC: .5, AUPROut: .25, AUPRIn: 1, FPR95ID: .125}}
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
