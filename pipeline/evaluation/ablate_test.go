package evaluation

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

func ablateOptions(t *testing.T) AblateOptions {
	t.Helper()
	train := quick(pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...))
	train.Head, train.Seeds = pipetest.SmallPaper, []uint64{0, 1}
	return AblateOptions{
		Train: train, ID: pipetest.Clouds(t, 2, 30, pipetest.TwoLabels, pipetest.Two...), Out: t.TempDir(),
		OOD: []OODSet{{metrics.Near, "between", pipetest.Clouds(t, 3, 20, nil, [2]float64{2, 0})}},
	}
}

// methodsOf lists the methods of results in their order.
func methodsOf(results []metrics.Measurement) (methods []string) {
	for _, r := range results {
		if !slices.Contains(methods, r.Method) {
			methods = append(methods, r.Method)
		}
	}
	return methods
}

// TestAblateAgreesWithEvaluate: the heads that both know have the same results.
func TestAblateAgreesWithEvaluate(t *testing.T) {
	t.Parallel()
	opts := ablateOptions(t)
	opts.Depths, opts.Steps = []int{2, 1}, []string{"no-ratio", "no-depression"}
	last := 0
	opts.Train.Seeds = opts.Train.Seeds[:1] // so that Progress is called in turn
	opts.Progress = func(_ string, done, total int) {
		if done != last+1 || total != 6*20 {
			t.Errorf("epoch %d of %d after %d", done, total, last)
		}
		last = done
	}
	got, err := Ablate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if last != 6*20 {
		t.Errorf("Progress ended at %d", last)
	}
	want, err := Evaluate(context.Background(), Options{
		Train: opts.Train, ID: opts.ID, OOD: opts.OOD, Out: t.TempDir(), Methods: []string{"mlrbfn", "msp"},
		Softmax: &head.MLPConfig{Layers: 1}, SoftmaxTrain: opts.Train.Train,
	})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"mlrbfn": "mlrbfn-2", "msp": "relu-1"}
	for _, f := range want {
		f.Method = names[f.Method]
		if !slices.Contains(got, f) {
			t.Errorf("no %+v", f)
		}
	}
	methods := methodsOf(got)
	if wantMethods := []string{"mlrbfn-2", "mlrbfn-1", "relu-2", "relu-1", "no-ratio", "no-depression"}; !slices.Equal(methods, wantMethods) {
		t.Errorf("%v, want %v", methods, wantMethods)
	}
}

// TestAblateBase: steps are compared with the head that has them all, trained
// for that where no depth asks for it.
func TestAblateBase(t *testing.T) {
	t.Parallel()
	opts := ablateOptions(t)
	opts.Depths, opts.Steps, opts.Train.Train.Epochs = []int{1}, []string{"no-ratio"}, 1
	results, err := Ablate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if methods := methodsOf(results); !slices.Equal(methods, []string{"mlrbfn-1", "relu-1", "mlrbfn-2", "no-ratio"}) {
		t.Errorf("%v", methods)
	}
}

func TestAblateLeavesOutWhatDiverges(t *testing.T) {
	t.Parallel()
	opts := ablateOptions(t)
	opts.Depths, opts.Steps, opts.Train.Train.LR = []int{4}, Steps, 1e30
	var warnings []string
	opts.Warn = func(text string) { warnings = append(warnings, text) }
	results, err := Ablate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	methods := methodsOf(results)
	if len(warnings) == 0 || len(warnings)+len(methods) != 2+1+len(Steps) { // and the head of two layers
		t.Errorf("%v and %v", methods, warnings)
	}
	for _, w := range warnings {
		if name, _, ok := strings.Cut(w, " is left out: training diverged"); !ok || slices.Contains(methods, name) {
			t.Errorf("it warns %q", w)
		}
	}
}

// TestAblateDefaults: a program that sets nothing compares what the command does.
func TestAblateDefaults(t *testing.T) {
	t.Parallel()
	opts := ablateOptions(t)
	opts.Train = quick(opts.Train.Features[0])
	opts.Train.Head, opts.Train.Seeds, opts.Train.Train.Epochs = nil, nil, 1
	results, err := Ablate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"mlrbfn-1", "mlrbfn-2", "mlrbfn-3", "mlrbfn-4", "relu-1", "relu-2", "relu-3", "relu-4"}
	if got := methodsOf(results); !slices.Equal(got, append(want, Steps...)) {
		t.Errorf("methods %v", got)
	}
	for _, seed := range []string{"0", "1", "2"} {
		if !slices.ContainsFunc(results, func(r metrics.Measurement) bool { return r.Seed == seed }) {
			t.Errorf("no results of seed %s", seed)
		}
	}
}

func TestAblateRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*AblateOptions){
		"nothing":       func(o *AblateOptions) { o.Depths, o.Steps = []int{}, []string{} },
		"depth 0":       func(o *AblateOptions) { o.Depths = []int{0} },
		"a depth twice": func(o *AblateOptions) { o.Depths = []int{1, 1} },
		"a step twice":  func(o *AblateOptions) { o.Steps = []string{"no-ratio", "no-ratio"} },
		"unknown step":  func(o *AblateOptions) { o.Steps = []string{"magic"} },
		"no OOD sets":   func(o *AblateOptions) { o.OOD = nil },
		"hidden":        func(o *AblateOptions) { o.Depths, o.Hidden = []int{2}, -1 },
	} {
		opts := ablateOptions(t)
		opts.Steps, opts.Train.Train.Epochs = []string{"no-ratio"}, 1
		change(&opts)
		if _, err := Ablate(context.Background(), opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	opts := ablateOptions(t)
	opts.Train.Head, opts.Depths, opts.Steps = pipetest.SmallResidual, []int{1}, []string{"no-ratio"}
	opts.Progress = func(head string, _, _ int) { t.Errorf("%s was trained before the refusal", head) }
	if _, err := Ablate(context.Background(), opts); err == nil {
		t.Error("a step of the paper's taken back from the residual network: accepted")
	}
	opts = ablateOptions(t)
	opts.Steps = Steps
	ctx, cancel := context.WithCancel(context.Background())
	opts.Progress = func(string, int, int) { cancel() }
	if _, err := Ablate(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
