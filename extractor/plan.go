package extractor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// A Plan says how an extraction uses the machine.
type Plan struct {
	Workers int `json:"workers"` // images that are worked on at once
	Batch   int `json:"batch"`   // images that one of them puts through the model at once
	Threads int `json:"threads"` // threads that such a run may use
	// Measured says that the plan was the fastest of several, now or in an earlier
	// extraction of the same model on such a machine; otherwise it is
	// what was asked for, or the rule where there was little to do: batches of
	// one, one thread, a worker for each core.
	Measured bool `json:"measured"`
}

// tuning says how much of an extraction may go into finding the best plan.
type tuning struct {
	// part is the part of the time that is left which all sizes of batches, or
	// one number of threads, may take to be tried, and most a bound for it.
	part float64
	most time.Duration
	// threads is the least time that must be left to try other numbers of
	// threads, each of which needs a session of its own.
	threads time.Duration
}

// A plan is remembered, so that it may cost more than it saves this time.
var usualTuning = tuning{0.05, 10 * time.Second, 2 * time.Minute}

// batchSizes are tried on a CPU, deviceBatchSizes elsewhere. On a CPU larger
// ones than these are slower: they leave the cache.
var batchSizes, deviceBatchSizes = []int{2, 4, 8}, []int{4, 16, 64}

// gain is by how much another plan must be faster to be preferred to the rule.
const gain = 1.02

// run chooses a plan while it does the first items, and does the others by it.
func (e *extraction) run(ctx context.Context) error {
	total, known := e.in.Total()
	if known && total == 0 {
		return ctx.Err()
	}
	plan := Plan{e.opts.Workers, e.opts.Batch, e.model.threads(), false}
	if plan.Workers == 0 {
		plan.Workers = max(1, runtime.GOMAXPROCS(0)/max(1, plan.Threads))
	}
	free := plan.Batch == 0 // to choose the batch
	plan.Batch = e.model.Batch(max(1, plan.Batch))
	if known {
		plan.Workers = min(plan.Workers, (total+plan.Batch-1)/plan.Batch)
	}
	if plan.Threads == 0 || e.left() <= 4*plan.Workers*plan.Batch {
		return e.finish(ctx, plan)
	}
	if old, ok := e.plans.recall(e.planKey(), e.left()); ok {
		return e.follow(ctx, plan, old)
	}
	e.measuring = e.left()
	rate, err := e.try(ctx, plan, 0) // which warms up, too
	if err != nil {
		return err
	}
	if free && plan.Batch == 1 {
		if plan, err = e.chooseBatch(ctx, plan, rate); err != nil {
			return err
		}
	}
	if e.opts.Workers == 0 && e.model.freeThreads() && e.remaining(rate) >= e.tuning.threads {
		return e.chooseThreads(ctx, plan, rate)
	}
	return e.finish(ctx, plan)
}

// remaining is the time that the items left will take at so many a second.
func (e *extraction) remaining(rate float64) time.Duration {
	return time.Duration(float64(e.left()) / rate * float64(time.Second))
}

// budget is how long trying out may take.
func (e *extraction) budget(rate float64) time.Duration {
	return min(time.Duration(e.tuning.part*float64(e.remaining(rate))), e.tuning.most)
}

// follow does all by a plan that is remembered, as far as there are images enough: other
// threads need another session.
func (e *extraction) follow(ctx context.Context, plan Plan, old remembered) error {
	if e.left() <= 4*plan.Workers*old.Batch {
		return e.finish(ctx, plan)
	}
	plan.Batch, plan.Measured = e.model.Batch(old.Batch), true
	if old.Threads > plan.Threads && old.Threads <= plan.Workers && e.left() >= old.Images/8 {
		if other, err := e.model.withThreads(old.Threads); err == nil {
			defer other.Close()
			e.model, plan.Workers, plan.Threads = other, plan.Workers/old.Threads, old.Threads
		}
	}
	return e.finish(ctx, plan)
}

// try works by a plan for a time, at least two batches a worker, and returns
// how many images it does a second.
func (e *extraction) try(ctx context.Context, plan Plan, during time.Duration) (rate float64, err error) {
	var mu sync.Mutex
	start := time.Now()
	err = e.work(ctx, plan, func(ctx context.Context, w *worker) error {
		done := 0
		began := time.Now()
		for blocks := 0; blocks < 2 || time.Since(start) < during; blocks++ {
			items, from, err := e.take(ctx, plan.Batch)
			if err != nil {
				return err
			}
			if len(items) == 0 {
				break
			}
			if err := w.block(ctx, items, from); err != nil {
				return err
			}
			done += len(items)
		}
		mu.Lock()
		defer mu.Unlock()
		// Worker by worker, so that it does not matter that some end early.
		rate += float64(done) / time.Since(began).Seconds()
		return nil
	})
	return rate, err
}

// chooseBatch runs the same images one by one and in batches, all workers at
// once, as they will run later, and puts the size that takes the least time into
// the plan. Sizes that change a feature are out of the question: what an image's
// features are must not depend on how fast the machine was.
func (e *extraction) chooseBatch(ctx context.Context, plan Plan, rate float64) (Plan, error) {
	sizes, budget := e.model.batchSizes(), e.budget(rate)
	for n := len(sizes); n > 0; n-- {
		// A trial is a batch and its images one by one.
		if trial := 2 * sizes[n-1] * plan.Workers; float64(trial)/rate < budget.Seconds() {
			sizes = sizes[:n]
			break
		}
		sizes = sizes[:n-1]
	}
	if len(sizes) == 0 || e.model.Batch(2) != 2 { // to ask the model takes time, too
		return plan, nil
	}
	var (
		mu    sync.Mutex
		takes = map[int][]float64{} // the share of the time that a batch takes of that of its images one by one
		unfit = map[int]bool{}
		turn  atomic.Int64
		start = time.Now()
		trial = plan
	)
	trial.Batch = slices.Max(sizes)
	err := e.work(ctx, trial, func(ctx context.Context, w *worker) error {
		for time.Since(start) < budget {
			size := sizes[int(turn.Add(1)-1)%len(sizes)]
			items, from, err := e.take(ctx, size)
			if err != nil || len(items) == 0 {
				return err
			}
			c, err := w.compare(ctx, items, from)
			if err != nil {
				return err
			}
			mu.Lock()
			if c.n == size && c.single > 0 {
				takes[size] = append(takes[size], float64(c.batch)/float64(c.single))
			}
			unfit[size] = unfit[size] || !c.same
			mu.Unlock()
		}
		return nil
	})
	plan.Measured = true
	best := 1.
	for _, size := range sizes {
		if all := takes[size]; len(all) > 0 && !unfit[size] {
			slices.Sort(all)
			if median := all[len(all)/2]; gain*median < best {
				plan.Batch, best = size, median
			}
		}
	}
	return plan, err
}

// chooseThreads tries fewer workers whose runs have more threads, as long as
// that does more images a second, and does what is left.
func (e *extraction) chooseThreads(ctx context.Context, plan Plan, rate float64) (err error) {
	during := e.budget(rate)
	if rate, err = e.try(ctx, plan, during); err != nil {
		return err
	}
	plan.Measured = true
	cores, usual := plan.Workers, e.model
	for threads := 2; threads <= cores; threads *= 2 {
		other, err := usual.withThreads(threads)
		if err != nil {
			break // for want of memory, say; the plan at hand works
		}
		defer other.Close()
		last, next := e.model, plan
		e.model, next.Workers, next.Threads = other, cores/threads, threads
		now, err := e.try(ctx, next, during)
		if err != nil {
			return err
		}
		if now < gain*rate {
			e.model = last
			break
		}
		plan, rate = next, now
	}
	return e.finish(ctx, plan)
}

// comparison is how long n images were computed as a batch, and one by one.
type comparison struct {
	n             int
	batch, single time.Duration
	same          bool // the features
}

// compare is block, but runs the images both together and one by one. It is the
// latter whose results are delivered.
func (w *worker) compare(ctx context.Context, items []images.Item, from int) (c comparison, err error) {
	results, err := w.loadAll(ctx, items, from)
	if err != nil || len(results) == 0 {
		return comparison{same: true}, err
	}
	c.n = len(results)
	err = w.runner.Run(ctx, c.n)
	c.batch = w.runner.took()
	if ctx.Err() != nil {
		return c, ctx.Err()
	}
	c.same = err == nil // else the graph cannot take so many
	var together [][]float32
	for i := range results {
		together = append(together, slices.Concat(w.runner.Features(i), w.runner.Logits(i)))
	}
	for i, r := range results {
		copy(w.runner.Input(0), w.runner.Input(i))
		if err := w.alone(ctx, r); err != nil {
			return c, err
		}
		c.single += w.runner.took()
		c.same = c.same && agree(together[i], slices.Concat(w.runner.Features(0), w.runner.Logits(0)), w.model.exact())
	}
	return c, nil
}

// agree tells whether two images' values are the same, or, unless exact, nearly.
func agree(a, b []float32, exact bool) bool {
	if exact {
		return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
	}
	// Kernels for other sizes may round otherwise, half floats by 1/2048.
	var largest, change float64
	for i, v := range a {
		largest = max(largest, math.Abs(float64(b[i])))
		change = max(change, math.Abs(float64(v-b[i])))
	}
	return change <= 0.01*largest
}

// remembered is a plan that was measured.
type remembered struct {
	Batch   int   `json:"batch"`
	Threads int   `json:"threads"`
	Images  int   `json:"images"` // that were left then: more would have allowed more to be tried
	Day     int64 `json:"day"`    // since 1970
}

// planFile is a JSON object of remembered plans by [extraction.planKey]; "" remembers none.
// It only saves time: whatever is wrong with it, plans are measured as if it were empty.
type planFile string

// mostPlans are remembered, the latest, each for planDays: a machine may have been busy
// when it was measured.
const (
	mostPlans = 100
	planDays  = 30
)

// usualPlans is plans.json in the folder mlrbfn of the user's cache.
func usualPlans() planFile {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return planFile(filepath.Join(dir, "mlrbfn", "plans.json"))
}

// read returns the plans that are not too old.
func (f planFile) read(today int64) map[string]remembered {
	plans := map[string]remembered{}
	if f == "" {
		return plans
	}
	data, err := disk.ReadFile(string(f), disk.Config)
	if err != nil || json.Unmarshal(data, &plans) != nil {
		return map[string]remembered{}
	}
	maps.DeleteFunc(plans, func(_ string, p remembered) bool {
		return today-p.Day > planDays || p.Day > today || p.Batch < 1 || p.Batch > slices.Max(deviceBatchSizes) || p.Threads < 1 || p.Threads > runtime.GOMAXPROCS(0)
	})
	return plans
}

// recall returns a plan that was measured with at least half as many images.
func (f planFile) recall(key string, images int) (remembered, bool) {
	p, ok := f.read(today())[key]
	return p, ok && images <= 2*p.Images
}

// keep remembers a plan. That it cannot be written is no error.
func (f planFile) keep(key string, p remembered) {
	if f == "" {
		return
	}
	p.Day = today()
	plans := f.read(p.Day)
	plans[key] = p
	for len(plans) > mostPlans {
		delete(plans, slices.MinFunc(slices.Collect(maps.Keys(plans)), func(a, b string) int { return cmp.Compare(plans[a].Day, plans[b].Day) }))
	}
	if os.MkdirAll(filepath.Dir(string(f)), 0o700) == nil {
		_ = disk.Write(string(f), func(w io.Writer) error { return json.NewEncoder(w).Encode(plans) })
	}
}

func today() int64 { return time.Now().Unix() / (24 * 60 * 60) }

// planKey names all that the fastest plan depends on.
func (e *extraction) planKey() string {
	sum := sha256.Sum256(fmt.Append(nil, e.model.planned(), RuntimeVersion(), thisProcessor(), runtime.GOMAXPROCS(0), e.opts.Workers, e.opts.Batch))
	return hex.EncodeToString(sum[:16])
}

// thisProcessor names the processor's kind and features.
var thisProcessor = sync.OnceValue(func() string {
	all, _ := os.ReadFile("/proc/cpuinfo") // Linux alone has it
	first, _, _ := strings.Cut(string(all), "\n\n")
	return fmt.Sprint(processorLines.FindAllString(first, -1), cpu.X86, cpu.ARM64)
})

// HasFastMath tells whether [Options.FastMath] may do something: the processor is an
// arm64 and, as far as its system says, has bfloat16.
func HasFastMath() bool {
	return runtime.GOARCH == "arm64" && (runtime.GOOS != "linux" || strings.Contains(thisProcessor(), " bf16"))
}

// processorLines are those that do not change from moment to moment.
var processorLines = regexp.MustCompile(`(?m)^(vendor_id|cpu family|model|stepping|flags|Features|CPU ).*$`)
