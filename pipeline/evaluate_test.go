package pipeline_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mlrbfn/mlrbfn/internal/command/figures"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

func quick(dirs ...string) pipeline.TrainOptions {
	o := pipeline.TrainOptions{Features: dirs}
	pipetest.Small(&o.Head, &o.Train)
	return o
}

// TestEvaluateAgainst compares an evaluation with an earlier one.
func TestEvaluateAgainst(t *testing.T) {
	t.Parallel()
	opts := pipeline.EvaluateOptions{
		Train: quick(pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...)), Methods: []string{"msp", "knn"}, Out: t.TempDir(),
		ID:  pipetest.Clouds(t, 2, 30, pipetest.TwoLabels, pipetest.Two...),
		OOD: []pipeline.OODSet{{Group: metrics.Far, Name: "away", Features: pipetest.Clouds(t, 5, 30, nil, [2]float64{3, 3})}},
	}
	opts.Train.Seeds = []uint64{0}
	if _, err := pipeline.Evaluate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	opts.Against = opts.Out
	if _, err := pipeline.Evaluate(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "Against") {
		t.Errorf("against itself: %v", err)
	}
	earlier := opts.Out
	opts.Out, opts.Methods = filepath.Join(t.TempDir(), "new"), []string{"msp", "mds"}
	if _, err := pipeline.Evaluate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(opts.Out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`id="against"`, earlier, "Images that changed sides"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	opts.OOD[0].Features = pipetest.Clouds(t, 5, 31, nil, [2]float64{3, 3})
	if _, err := pipeline.Evaluate(t.Context(), opts); !errors.Is(err, evaluation.ErrOtherImages) || !strings.Contains(err.Error(), "away had 30 images and has 31") {
		t.Errorf("against a report on other images: %v", err)
	}
	if _, err := os.Stat(filepath.Join(opts.Out, "results.csv")); err != nil {
		t.Errorf("what was refused has cleared the folder: %v", err)
	}
}

// TestAblateDraws: the results are drawn by depth, and by step.
func TestAblateDraws(t *testing.T) {
	t.Parallel()
	opts := pipeline.AblateOptions{
		Train: quick(pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...)), Depths: []int{1, 2}, Steps: []string{"no-ratio"}, Out: t.TempDir(),
		ID:  pipetest.Clouds(t, 2, 30, pipetest.TwoLabels, pipetest.Two...),
		OOD: []pipeline.OODSet{{Group: pipeline.Near, Name: "between", Features: pipetest.Clouds(t, 3, 20, nil, [2]float64{2, 0})}},
	}
	opts.Train.Head, opts.Train.Seeds = pipetest.SmallPaper, []uint64{0}
	if _, err := pipeline.Ablate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"depth.png", "depth.svg", "steps.png", "steps.svg"} {
		if _, err := os.Stat(filepath.Join(opts.Out, "figures", name)); err != nil {
			t.Error(err)
		}
	}
	opts.Depths, opts.Steps = []int{1}, []string{}
	if _, err := pipeline.Ablate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(opts.Out, "figures", "*")); err != nil || len(left) > 0 {
		t.Errorf("pictures of the earlier run are left: %v, %v", left, err)
	}
}
