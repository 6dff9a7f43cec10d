package training

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Errors about the checkpoint that Train finds.
var (
	// ErrCheckpoint says that the file is no checkpoint, or a damaged one.
	ErrCheckpoint = errors.New("not a checkpoint that can be read; remove it to begin anew")
	// ErrOtherTraining says that it is of other options or features.
	ErrOtherTraining = errors.New("it is of another training")
)

// Resume says what Train does if there is a checkpoint.
type Resume int

const (
	ResumeIfAny  Resume = iota // go on from it; begin where there is none
	ResumeAlways               // go on from it, also with another learning rate; it is an error if there is none
	ResumeNever                // begin, and replace it
)

// checkpointVersion is the format that is written, and the only one that is
// read: a checkpoint is for the program that wrote it.
const (
	checkpointVersion = 1
	checkpointKey     = "mlrbfn.checkpoint"
)

// checkpoint keeps the states of a run's heads in a file, one safetensors file
// with the numbers of each as tensors heads.I.…, and the rest as JSON under the
// metadata key mlrbfn.checkpoint. A nil one keeps nothing.
type checkpoint struct {
	path  string
	every time.Duration
	run   identity

	resumed []*head.State // per head, as the file had it; nil for a head that begins

	mu       sync.Mutex
	states   []*head.State // the latest
	fresh    []bool        // newer than the file's
	finished []bool        // never to change again
	failed   error         // of the last write
}

// checkpointRecord is the JSON of a checkpoint. Its names are those of the
// format: files hold them.
type checkpointRecord struct {
	Version int           `json:"version"`
	Run     identity      `json:"run"`
	Heads   []*head.State `json:"heads"` // null for a head that has not begun; arrays are tensors
}

// openCheckpoint returns the checkpoint that the options ask for, with the
// states to go on from.
func (t *Data) openCheckpoint(ctx context.Context) (*checkpoint, error) {
	o := t.Options
	if o.Checkpoint == "" {
		return nil, nil
	}
	heads := len(o.Seeds)
	c := &checkpoint{
		path: o.Checkpoint, every: o.CheckpointEvery, resumed: make([]*head.State, heads),
		states: make([]*head.State, heads), fresh: make([]bool, heads), finished: make([]bool, heads),
	}
	c.every = cmp.Or(c.every, DefaultCheckpointEvery)
	var err error
	if c.run, err = t.identify(ctx); err != nil {
		return nil, err
	}
	if err := disk.CheckWritable(c.path); err != nil {
		return nil, err
	}
	keptRun, keptHeads, err := readCheckpoint(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.Resume != ResumeAlways:
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("checkpoint %s: %w: there is nothing to go on from", c.path, err)
	case err != nil:
		return nil, fmt.Errorf("checkpoint %s: %w", c.path, err)
	case o.Resume == ResumeNever:
		return c, os.Remove(c.path) // lest it be gone on from before there is a newer one
	}
	if c.run[splitName] != "" && keptRun[splitName] == "" && o.GroupBy == "" {
		// It is of a program that split by rows alone.
		t.groups = nil
		other, err := t.resplit(o.Seeds[0])
		if err != nil {
			return nil, err
		}
		*t = *other
		if c.run, err = t.identify(ctx); err != nil {
			return nil, err
		}
	}
	if c.run[startName] != "" && keptRun[startName] == "" {
		// It is of a program whose heads began with the class means.
		t.Options.fromMeans = true
		delete(c.run, startName)
	}
	run := maps.Clone(c.run)
	if o.Resume == ResumeAlways {
		run[rateName] = keptRun[rateName]
	}
	if differ := keptRun.differences(run); len(differ) > 0 {
		return nil, fmt.Errorf("checkpoint %s: %w: %s", c.path, ErrOtherTraining, strings.Join(differ, ", "))
	}
	copy(c.resumed, keptHeads)
	copy(c.states, keptHeads)
	for i, s := range c.resumed {
		c.finished[i] = s != nil && len(s.Epochs) == o.Train.Epochs
	}
	copy(c.fresh, c.finished)
	return c, nil
}

// from returns the state that head i goes on from, nil if it begins.
func (c *checkpoint) from(i int) *head.State {
	if c == nil {
		return nil
	}
	return c.resumed[i]
}

// tell calls resumed, where set, if there is something to go on from.
func (c *checkpoint) tell(resumed func(epochs []int)) {
	if c == nil || resumed == nil || !slices.ContainsFunc(c.resumed, begun) {
		return
	}
	epochs := make([]int, len(c.resumed))
	for i, s := range c.resumed {
		if s != nil {
			epochs[i] = len(s.Epochs)
		}
	}
	resumed(epochs)
}

func begun(s *head.State) bool { return s != nil }

// hook returns the function that the training of head i calls after each step.
func (c *checkpoint) hook(i, epochs int) func(int, func() *head.State) error {
	if c == nil {
		return nil
	}
	last := time.Now()
	return func(done int, take func() *head.State) error {
		finished := done == epochs
		if finished || time.Since(last) >= c.every {
			c.put(i, take(), finished)
			last = time.Now()
		}
		return nil
	}
}

// put takes over a head's state. The file is written once all heads have given
// theirs, or one of them twice. A write that fails is no reason to end a
// training; the next may do better.
func (c *checkpoint) put(i int, s *head.State, finished bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	again := c.fresh[i] && !finished
	c.states[i], c.fresh[i], c.finished[i] = s, true, finished
	if again || !slices.Contains(c.fresh, false) {
		c.failed = c.write()
		copy(c.fresh, c.finished)
	}
}

// flush writes the latest states, if there are any, where now, and returns how
// the last write ended.
func (c *checkpoint) flush(now bool) error {
	if c == nil {
		return nil
	}
	if now && slices.ContainsFunc(c.states, begun) {
		c.failed = c.write()
	}
	return c.failed
}

func (c *checkpoint) write() error {
	text, err := json.Marshal(checkpointRecord{Version: checkpointVersion, Run: c.run, Heads: c.states})
	if err != nil {
		return fmt.Errorf("write %s: %w", c.path, err)
	}
	var tensors []safetensors.Tensor
	for i, s := range c.states {
		if s == nil {
			continue
		}
		prefix := "heads." + strconv.Itoa(i) + "."
		for name, arrays := range stateArrays(s) {
			for j, array := range *arrays {
				tensors = append(tensors, safetensors.Tensor{Name: prefix + name + "." + strconv.Itoa(j), Shape: []int{len(array)}, Data: array})
			}
		}
		tensors = append(tensors,
			safetensors.Tensor{Name: prefix + "order", Shape: []int{len(s.Order)}, Data: wide(s.Order)},
			safetensors.Tensor{Name: prefix + "random", Shape: []int{len(s.Random)}, Data: s.Random})
	}
	return disk.Write(c.path, func(w io.Writer) error {
		return safetensors.Write(w, map[string]string{checkpointKey: string(text)}, tensors)
	})
}

// stateArrays names the arrays of a state.
func stateArrays(s *head.State) map[string]*[][]float32 {
	return map[string]*[][]float32{"params": &s.Params, "m": &s.M, "v": &s.V}
}

// readCheckpoint reads a file that write wrote: what it is of, and the state of
// each head, nil for one that has not begun. Errors do not name the file.
func readCheckpoint(path string) (identity, []*head.State, error) {
	file, err := safetensors.Read(path)
	if detector.IsFormatError(err) {
		return nil, nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	if err != nil {
		return nil, nil, detector.Pathless(err)
	}
	text, ok := file.Metadata[checkpointKey]
	if !ok {
		return nil, nil, fmt.Errorf("%w: it is another file", ErrCheckpoint)
	}
	var record checkpointRecord
	if err := json.Unmarshal([]byte(text), &record); err != nil || record.Version != checkpointVersion {
		return nil, nil, fmt.Errorf("%w: it has format version %d, and this program knows %d", ErrCheckpoint, record.Version, checkpointVersion)
	}
	if record.Run[kindName] == "" { // of a program that left out the paper's default
		record.Run[kindName] = string(head.None)
	}
	for i, s := range record.Heads {
		if s == nil {
			continue
		}
		if err := readArrays(s, file, "heads."+strconv.Itoa(i)+"."); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
		}
	}
	return record.Run, record.Heads, nil
}

// readArrays reads a state's arrays; whether they fit is for head to say.
func readArrays(s *head.State, file *safetensors.File, prefix string) error {
	r := &safetensors.Reader{File: file}
	for name, arrays := range stateArrays(s) {
		for j := 0; ; j++ {
			array, _, found := safetensors.Optional[float32](r, prefix+name+"."+strconv.Itoa(j))
			if !found {
				break
			}
			*arrays = append(*arrays, array)
		}
	}
	order, _ := safetensors.Values[int64](r, prefix+"order")
	for _, row := range order {
		s.Order = append(s.Order, int(row))
	}
	s.Random, _ = safetensors.Values[uint8](r, prefix+"random")
	return r.Err
}

// wide returns row numbers as they are stored.
func wide(rows []int) []int64 {
	return lists.Map(rows, func(r int) int64 { return int64(r) })
}
