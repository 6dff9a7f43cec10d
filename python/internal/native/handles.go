package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// opened is a detector that the caller holds by a number, with its backbone once that was
// needed.
type opened struct {
	*pipeline.Detector

	mu     sync.RWMutex               // held for reading while a judge is in use
	judges map[string]*pipeline.Judge // by the settings that they were opened with
}

// mostJudges bounds the settings whose judges a detector keeps.
const mostJudges = 4

// models are those that detectors and extractions have open, and the last that they had.
var models extractor.Kept

var handles struct {
	sync.Mutex
	last int64
	all  map[int64]*opened
}

// hold gives a detector a number.
func hold(d *pipeline.Detector) int64 {
	handles.Lock()
	defer handles.Unlock()
	if handles.all == nil {
		handles.all = map[int64]*opened{}
	}
	handles.last++
	handles.all[handles.last] = &opened{Detector: d}
	return handles.last
}

func held(number int64) (*opened, error) {
	handles.Lock()
	defer handles.Unlock()
	if o, ok := handles.all[number]; ok {
		return o, nil
	}
	return nil, fmt.Errorf("there is no detector %d", number)
}

// handleArguments are those of all functions of a detector.
type handleArguments struct {
	Detector int64 `json:"detector"`
}

func (a handleArguments) handle() int64 { return a.Detector }

// ofDetector makes a function of what is to be done with a detector that the caller holds.
func ofDetector[A interface{ handle() int64 }](do func(c *call, o *opened, a A, buffers []Buffer) (any, error)) function {
	return of(func(c *call, a A, buffers []Buffer) (any, error) {
		o, err := held(a.handle())
		if err != nil {
			return nil, err
		}
		return do(c, o, a, buffers)
	})
}

func closeHandle(_ *call, o *opened, a handleArguments, _ []Buffer) (any, error) {
	handles.Lock()
	delete(handles.all, a.Detector)
	handles.Unlock()
	return nil, o.closeJudges()
}

// closeModels closes the models that nobody uses.
func closeModels(*call, json.RawMessage, []Buffer) (any, error) { return nil, models.Close() }

func (o *opened) closeJudges() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closeAll()
}

// closeAll is closeJudges where nothing uses them.
func (o *opened) closeAll() (err error) {
	for _, judge := range o.judges {
		err = errors.Join(err, judge.Close())
	}
	o.judges = nil
	return err
}

// use calls do with the detector's backbone, which is opened as settings say unless it is
// open in that way.
func (o *opened) use(c *call, model path, settings command.Settings, do func(*pipeline.Judge, extractor.Options) error) error {
	opts, err := command.DetectSettings(settings)
	if err != nil {
		return err
	}
	opts.Drifted, opts.Kept = c.warn, &models
	key, err := json.Marshal([]any{model, settings})
	if err != nil {
		return err
	}
	how := string(key)
	for {
		o.mu.RLock()
		if judge := o.judges[how]; judge != nil {
			defer o.mu.RUnlock()
			return do(judge, opts)
		}
		o.mu.RUnlock()
		if err := o.open(c, how, model.String(), opts); err != nil {
			return err
		}
	}
}

func (o *opened) open(c *call, how, model string, opts extractor.Options) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.judges[how] != nil {
		return nil
	}
	if len(o.judges) >= mostJudges {
		if err := o.closeAll(); err != nil {
			return err
		}
	}
	judge, err := pipeline.NewJudge(c.ctx, o.Detector, model, opts)
	if err != nil {
		return err
	}
	if o.judges == nil {
		o.judges = map[string]*pipeline.Judge{}
	}
	o.judges[how] = judge
	return nil
}

// number is a type of the values of buffers.
type number interface {
	uint8 | float32 | float64 | int64
}

// view returns the values of a buffer in place; nil for one that the caller left out.
func view[T number](buffers []Buffer, i int) ([]T, error) {
	if i >= len(buffers) || len(buffers[i]) == 0 {
		return nil, nil
	}
	b := buffers[i]
	size := int(unsafe.Sizeof(T(0)))
	if len(b)%size != 0 || uintptr(unsafe.Pointer(&b[0]))%uintptr(size) != 0 {
		return nil, fmt.Errorf("buffer %d has %d bytes or is not aligned", i, len(b))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/size), nil
}

// roomFor returns a buffer that must have room for n values; nil for one that the caller left
// out.
func roomFor[T number](buffers []Buffer, i, n int) ([]T, error) {
	to, err := view[T](buffers, i)
	if err == nil && to != nil && len(to) != n {
		err = fmt.Errorf("buffer %d has room for %d values, and there are %d", i, len(to), n)
	}
	return to, err
}

// fill copies values into a buffer, unless the caller left it out.
func fill[T number](buffers []Buffer, i int, values []T) error {
	to, err := roomFor[T](buffers, i, len(values))
	if err != nil {
		return err
	}
	copy(to, values)
	return nil
}
