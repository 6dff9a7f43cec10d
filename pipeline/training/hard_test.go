package training

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestHardStays: images that a list calls wrong labels or outliers are not trained on, and
// stay among those that measure and calibrate; copies leave all parts.
func TestHardStays(t *testing.T) {
	set := pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...)
	file := func(rows int, kind string) string {
		name := filepath.Join(t.TempDir(), "issues.csv")
		text := "path,row,kind,score,label,suggested,other\n"
		for row := range rows {
			text += fmt.Sprintf(",%d,%s,1,0,,\n", row, kind)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, folds := range []int{0, 4} {
		o := quick(set)
		o.Calibration.Folds = folds
		all, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		o.Exclude = file(120, "outlier")
		d, result, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"validation", "calibration"} {
			if !slices.Equal(d.Splits[part], all.Splits[part]) {
				t.Errorf("%d folds: %s is %v, without the list %v", folds, part, d.Splits[part], all.Splits[part])
			}
		}
		aside := 0
		for _, row := range slices.Concat(d.Splits["validation"], d.Splits["calibration"]) {
			if row < 120 {
				aside++
			}
		}
		r := result.Rows
		if n := 120 - aside; len(d.Relabelled) != n || r.Unlabelled != n || r.Train != 200-len(d.Splits["validation"])-len(d.Splits["calibration"])-n {
			t.Errorf("%d folds: %d left out, %+v; %d of 120 were set aside", folds, len(d.Relabelled), r, aside)
		}
		if folds > 0 && len(d.CalibrationScores) != len(all.CalibrationScores) {
			t.Errorf("%d scores calibrate, %d without the list", len(d.CalibrationScores), len(all.CalibrationScores))
		}
		if !strings.Contains(strings.Join(result.Warnings, "\n"), fmt.Sprintf("%d are not trained on", 120-aside)) {
			t.Errorf("%q", result.Warnings)
		}
	}
	o := quick(set)
	o.Exclude = file(120, "duplicate")
	if _, result, err := Train(t.Context(), o); err != nil || result.Rows.Train+result.Rows.Validation+result.Rows.Calibration != 80 {
		t.Errorf("%+v, %v", result, err)
	}
}
