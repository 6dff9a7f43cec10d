package extractor

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
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
		opts: Options{Workers: workers, MaxPixels: preprocess.DefaultMaxPixels, ImageTimeout: DefaultImageTimeout, Chosen: func(p Plan) { plan, chosen = p, chosen+1 }},
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
			m := openTest(t, dir, Options{})
			want, _ := collect(t, m, items, Options{Workers: 1})
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
			got, _ = collect(t, m, items, Options{Workers: 2, Batch: 5})
			check("batches of 5", got)
			exact = runtime.GOARCH != "arm64" // where no plan has two threads, as sums are split by threads
			got, _ = collect(t, openTest(t, dir, Options{IntraOpThreads: 2}), items, Options{})
			check("2 threads", got)
		})
	}
}

// TestPlansAreRemembered: what was measured once for a model, the machine and so many images
// is followed, whatever it is; more images, other options, a day too old and a file that is
// broken or cannot be written mean measuring.
func TestPlansAreRemembered(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	file := planFile(filepath.Join(t.TempDir(), "cache", "plans.json"))
	extract := func(file planFile, count, workers int) (key string, measured bool, plan Plan) {
		t.Helper()
		e := &extraction{
			model: m, in: images.Of(slices.Repeat(greys(t, 1), count)...), plans: file, sink: func(Row) error { return nil },
			opts:   Options{Workers: workers, MaxPixels: preprocess.DefaultMaxPixels, ImageTimeout: DefaultImageTimeout, Chosen: func(p Plan) { plan = p }},
			tuning: tuning{part: 1000, most: time.Hour},
		}
		if err := e.run(t.Context()); err != nil || e.stats.Done != count {
			t.Fatalf("%d of %d images: %v", e.stats.Done, count, err)
		}
		return e.planKey(), e.measuring > 0, plan
	}
	key, measured, first := extract(file, 400, 2)
	if !measured || file.read(today())[key] != (remembered{first.Batch, first.Threads, 400, today()}) {
		t.Fatalf("measured: %v, remembered: %v", measured, file.read(today()))
	}
	for _, batch := range []int{1, 8} {
		file.keep(key, remembered{Batch: batch, Threads: 1, Images: 400})
		for _, test := range []struct {
			images, workers int
			measured        bool
		}{{400, 2, false}, {800, 2, false}, {801, 2, true}, {400, 3, true}} {
			kept, _ := disk.ReadFile(string(file), disk.Config)
			_, measured, plan := extract(file, test.images, test.workers)
			if measured != test.measured || !measured && plan != (Plan{2, batch, 1, true}) {
				t.Errorf("%+v after a batch of %d: measured: %v, plan: %v", test, batch, measured, plan)
			}
			write(t, string(file), string(kept))
		}
	}
	if _, _, plan := extract(file, 40, 2); plan != (Plan{2, 1, 1, false}) {
		t.Errorf("few images: %v", plan)
	}
	for what, old := range map[string]remembered{"old": {1, 1, 400, today() - planDays - 1}, "of tomorrow": {1, 1, 400, today() + 1}, "without a batch": {0, 1, 400, today()}, "of too many threads": {1, 1 << 20, 400, today()}} {
		text, err := json.Marshal(map[string]remembered{key: old})
		if err != nil {
			t.Fatal(err)
		}
		write(t, string(file), string(text))
		if _, measured, _ := extract(file, 400, 2); !measured {
			t.Errorf("a plan that is %s was followed", what)
		}
	}
	write(t, string(file), "{")
	for _, broken := range []planFile{file, "", planFile(t.TempDir()), file + "/in a file/plans.json"} {
		if _, measured, _ := extract(broken, 400, 2); !measured {
			t.Errorf("%q: a plan was followed", broken)
		}
	}
	for i := range mostPlans + 5 {
		file.keep(fmt.Sprint(i), remembered{Batch: 1, Threads: 1})
	}
	if n := len(file.read(today())); n != mostPlans {
		t.Errorf("%d plans are kept", n)
	}
}

// TestOnlyBatchesThatWorkAreChosen: trying out a size of batches that the graph
// cannot take costs no image.
func TestOnlyBatchesThatWorkAreChosen(t *testing.T) {
	// Rows of [n,2] plus zeros [n] go for one and two images only.
	m := openTest(t, testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 2)},
		mean(3, "image", "columns"), mean(1, "columns", "rows"), mean(1, "rows", "mean"),
		node("Sub", "mean,mean", "zeros"), node("Add", "rows,zeros", "features"))), Options{})
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
	m := openTest(t, testModel(t, 6, 8, pixels(2)), Options{})
	if _, plan := tuned(t, m, slices.Repeat(greys(t, 25), 8), 2); plan.Batch != 2 {
		t.Errorf("plan: %v", plan)
	}
}

// TestFewImagesAreNotMeasured: what takes a moment is done by the rule.
func TestFewImagesAreNotMeasured(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	m.alone = func() bool { t.Error("made-up images are run"); return false }
	for _, n := range []int{1, 3, 25} {
		var plan Plan
		collect(t, m, greys(t, n), Options{Chosen: func(p Plan) { plan = p }})
		if plan.Measured || plan.Batch != 1 || plan.Threads != 1 || plan.Workers < 1 || plan.Workers > n {
			t.Errorf("%d images: %v", n, plan)
		}
	}
}
