package extractor

import (
	"errors"
	"regexp"
	"strconv"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// ErrRunMemory is wrapped by the error of a model whose runs want more memory for
// tensors than a session may have, without the weights: three quarters of the
// machine's or the control group's, or half of what the process may map.
var ErrRunMemory = errors.New("its tensors take too much memory")

// runMemory returns how many bytes the tensors of a session's runs may take in all.
var runMemory = sync.OnceValue(func() int64 { return min(spill.Default()/2*3, mostMapped()/2) })

// foldMemory returns how many bytes onnxruntime may give to a tensor that it computes
// from constants while it loads a graph of so many bytes: more than its weights take as
// float32, and at most the default of onnxruntime.
func foldMemory(graph int64) int64 { return min(max(64<<20, 8*graph), 1<<30) }

// refused matches the errors of onnxruntime about an arena that is full, and about
// memory that the system does not give.
var refused = regexp.MustCompile(`Available memory of [0-9]+ is smaller than requested bytes|Failed to allocate memory for requested buffer|std::bad_alloc`)

// arenas counts the sessions that are being made. onnxruntime gives a session the
// arena that is registered meanwhile. The session keeps it, so that it is freed with
// the session.
var arenas struct {
	sync.Mutex
	making int
}

// bounded has a session made that takes memory for tensors from an arena of limited
// size. Sessions that are made at the same time share one.
func (m *Model) bounded(options *ort.SessionOptions, make func() error) (err error) {
	if err := errors.Join(
		options.AddSessionConfigEntry("session.use_env_allocators", "1"),
		options.AddSessionConfigEntry("optimization.constant_folding_max_output_size_in_bytes", strconv.FormatInt(foldMemory(m.bytes), 10)),
	); err != nil {
		return err
	}
	memory, err := ort.GetMemoryInfo()
	if err != nil {
		return err
	}
	arenas.Lock()
	if arenas.making == 0 {
		var limits *ort.ArenaCfg
		if limits, err = ort.NewArenaCfg(int(runMemory()), -1, -1, -1); err == nil {
			err = ort.CreateAndRegisterAllocator(memory, limits)
			limits.Destroy()
		}
	}
	if err == nil {
		arenas.making++
	}
	arenas.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		arenas.Lock()
		defer arenas.Unlock()
		if arenas.making--; arenas.making == 0 {
			err = errors.Join(err, ort.UnregisterAllocator(memory))
		}
	}()
	return make()
}
