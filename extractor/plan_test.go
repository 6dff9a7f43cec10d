package extractor

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// tuned extracts as a long run does: it tries all batches for a while, and all
// numbers of threads.
func tuned(t *testing.T, m *Model, items []images.Item, workers int) ([]Row, Plan) {
	t.Helper()
	results := make([]Row, len(items))
	var plan Plan
	chosen := 0
	e := &extraction{
		model: m, in: images.Of(items...),
		opts: ExtractOptions{Workers: workers, MaxPixels: preprocess.DefaultMaxPixels, ImageTimeout: DefaultImageTimeout, Chosen: func(p Plan) { plan, chosen = p, chosen+1 }},
		sink: func(r Row) error {
			r.Features, r.Logits = slices.Clone(r.Features), slices.Clone(r.Logits)
			results[r.Index] = r
			return nil
		},
		tuning: tuning{part: 1000, most: time.Hour}, // however slow the machine is
	}
	if err := e.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e.stats.Done != len(items) || chosen != 1 {
		t.Fatalf("%d of %d images done, %d plans chosen", e.stats.Done, len(items), chosen)
	}
	return results, plan
}

// TestFeaturesDoNotDependOnThePlan: whatever a machine finds the fastest, the
// features are bit-identical. On that rests that an extraction which was
// interrupted ends as one that was not.
func TestFeaturesDoNotDependOnThePlan(t *testing.T) {
	models := []string{"resnet20-cifar10", "squeezenet11-fp16io", "vit-tiny-p16", "vit-tiny-p16-int8"}
	if testing.Short() {
		models = models[:1]
	}
	for _, name := range models {
		t.Run(name, func(t *testing.T) {
			dir := testenv.Shared(t, "models", name)
			items := goldenItems(t)[:10]
			m := openTest(t, dir, ModelOptions{})
			want, _ := collect(t, m, items, ExtractOptions{Workers: 1})
			exact := true
			check := func(what string, got []Row) {
				for i, r := range got {
					if !agree(r.Features, want[i].Features, exact) || !agree(r.Logits, want[i].Logits, exact) || r.SHA256 != want[i].SHA256 {
						t.Errorf("%s, %s: %s differs from one worker and no batches", dir, what, items[i].Path)
						return
					}
				}
			}
			got, plan := tuned(t, m, items, 0)
			// On arm64 there are only batches to choose from.
			if !plan.Measured && (runtime.GOARCH != "arm64" || m.Batch(2) == 2) {
				t.Errorf("%s: nothing was measured", dir)
			}
			check(fmt.Sprint("tuned: ", plan), got)
			got, plan = tuned(t, m, items, 3)
			if plan.Workers != 3 || plan.Threads != 1 {
				t.Errorf("%s: 3 workers were asked for: %v", dir, plan)
			}
			check(fmt.Sprint("tuned: ", plan), got)
			got, _ = collect(t, m, items, ExtractOptions{Workers: 2, Batch: 5})
			check("batches of 5", got)
			exact = runtime.GOARCH != "arm64" // where no plan has two threads, as sums are split by threads
			got, _ = collect(t, openTest(t, dir, ModelOptions{IntraOpThreads: 2}), items, ExtractOptions{})
			check("2 threads", got)
		})
	}
}

// TestOnlyBatchesThatWorkAreChosen: trying out a size of batches that the graph
// cannot take costs no image.
func TestOnlyBatchesThatWorkAreChosen(t *testing.T) {
	// Rows of [n,2] plus zeros [n] go for one and two images only.
	m := openTest(t, testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 2)},
		mean(3, "image", "columns"), mean(1, "columns", "rows"), mean(1, "rows", "mean"),
		node("Sub", "mean,mean", "zeros"), node("Add", "rows,zeros", "features"))), ModelOptions{})
	results, plan := tuned(t, m, slices.Repeat(greys(t, 25), 20), 2)
	if plan.Batch > 2 {
		t.Errorf("plan: %v", plan)
	}
	for i, r := range results {
		if want := float64(10*(i%25))/127.5 - 1; r.Err != nil || math.Abs(float64(r.Features[0])-want) > 1e-5 {
			t.Fatalf("image %d: %v, %v; want %g", i, r.Features, r.Err, want)
		}
	}
}

// TestFixedBatchesStay: a graph that takes two images at a time always gets two.
func TestFixedBatchesStay(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(2)), ModelOptions{})
	if _, plan := tuned(t, m, slices.Repeat(greys(t, 25), 8), 2); plan.Batch != 2 {
		t.Errorf("plan: %v", plan)
	}
}

// TestFewImagesAreNotMeasured: what takes a moment is done by the rule.
func TestFewImagesAreNotMeasured(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), ModelOptions{})
	m.alone = func() bool { t.Error("made-up images are run"); return false }
	for _, n := range []int{1, 3, 25} {
		var plan Plan
		collect(t, m, greys(t, n), ExtractOptions{Chosen: func(p Plan) { plan = p }})
		if plan.Measured || plan.Batch != 1 || plan.Threads != 1 || plan.Workers < 1 || plan.Workers > n {
			t.Errorf("%d images: %v", n, plan)
		}
	}
}
