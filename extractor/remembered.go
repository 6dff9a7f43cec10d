package extractor

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

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
