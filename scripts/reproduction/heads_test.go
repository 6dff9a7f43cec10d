package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table has one line for a backbone and data set, with the best of the single
// scores: by the sum of near and far, without ensembles and scores that have none.
func TestCompareHeads(t *testing.T) {
	out := t.TempDir()
	results := func(contest string, lines ...string) {
		text := "method,seed,group,dataset,n_id,n_ood,auroc,aupr_out,aupr_in,fpr95,fpr95_id,id_acc\n"
		for _, l := range lines {
			method, cells, _ := strings.Cut(l, " ")
			v := strings.Fields(cells)
			for i, group := range []string{"near", "far"} {
				for _, seed := range []string{"0", "mean"} {
					text += method + "," + seed + "," + group + ",mean,10,10," + v[i] + ",.5,.5,.5,.5," + v[2] + "\n"
				}
			}
		}
		dir := filepath.Join(out, "cifar10-stand-in", "reports", "net", contest)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "results.csv"), text)
		write(t, filepath.Join(dir, settings), "{}")
	}
	results("linear", "mlrbfn .91 .99 .88", "msp .80 .81 .87", "temperature NaN NaN .87", "vim .89 .98 .87", "knn .93 .90 .87", "head .90 .98 .88", "ensemble .95 .995 .87")
	results("paper", "mlrbfn .78 .84 .83")
	results("no-decision", "mlrbfn .905 .98 .88")
	results("no-parts", "mlrbfn .90 .97 .88")
	results("no-head", "mlrbfn .88 .95 .88")
	var b strings.Builder
	e := &experiment{out: out, trained: "over the seeds."}
	write(t, filepath.Join(out, "cifar10-stand-in", "reports", "net", "linear", measuredFile),
		`{"bins": [{"n": 3, "confidence": 0.5, "right": 0.75}, {"n": 1, "confidence": 0.9, "right": 1}], "images": 4, "error": 0.02, "chance": 0.01, "assessed": [{"auroc": 0.9}, {"auroc": 0.8}]}`)
	write(t, filepath.Join(out, "cifar10-stand-in", "reports", "net", "linear", "differences.csv"),
		"method,other,group,auroc,low,high\nknn,mlrbfn,near,0.02,-0.01,0.05\nmlrbfn,vim,far,0.01,0.005,0.02\n")
	here := task{"cifar10-stand-in", "CIFAR-10 (stand-in)"}
	if err := e.compareHeads(&b, []task{here, here}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| net | CIFAR-10 (stand-in) | 91.0 / 99.0, 88.0 | 90.0 / 98.0, 88.0 | 95.0 / 99.5, 87.0 | vim 89.0 / 98.0, 87.0 | 80.0 / 81.0, 87.0 | 78.0 / 84.0, 83.0 | +2.00 / +1.00, +1.00 |\n",
		"| net | mean of 2 | 91.0 / 99.0, 88.0 | 90.0 / 98.0, 88.0 |",
		"near ≥ best − 1: 2 of 2; far ≥ best − 0.3: 2; accuracy ≥ linear − 0.3: 2 |",
		"expected near 85.0, found 91.0, mean absolute difference of a task 6.0; expected to catch 0.0% at 5% false alarms, caught 50.0% |",
		"expected calibration error 0.2125 of all tasks together (15 bins, 8 confidences) |",
		"| net | CIFAR-10 (stand-in) | knn 93.00: -2.00 (-5.00 to +1.00) | vim 98.00: +1.00 (+0.50 to +2.00) | 0.0200 (0.0100), 4 |\n",
		"| net | CIFAR-10 (stand-in) | 91.00 / 99.00 | 90.50 / 98.00 | 90.00 / 97.00 | 88.00 / 95.00 |\n| net | mean of 2 | 91.00 / 99.00 | 90.50 / 98.00 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}
