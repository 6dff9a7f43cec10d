// Package native has what the shared library offers to programs in other languages:
// functions by name, whose arguments and results are JSON and whose arrays are the
// caller's memory. Package python/native gives them C's calling convention, and the
// Python package mlrbfn a shape that Python users know.
package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/version"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// Buffer is memory of the caller, which holds values of one type. It is not kept
// after the call.
type Buffer []byte

// function is what a name stands for. Arguments are JSON; the result is made JSON of.
type function func(c *call, arguments json.RawMessage, buffers []Buffer) (any, error)

var functions = map[string]function{
	"setup": of(setup), "options": of(describe), "run": of(run), "embed": of(embed), "extract": of(extract), "features": withSet(describeSet), "paths": withSet(paths), "read": withSet(readFeatures),
	"train": of(train), "load": of(load), "save": ofDetector(save), "close": ofDetector(closeHandle), "info": ofDetector(info),
	"rows": ofDetector(columns), "verdicts": ofDetector(verdicts), "confidences": ofDetector(confidences), "images": ofDetector(judgeImages), "detect": ofDetector(detect), "measure": of(measure), "close_models": closeModels,
}

// call is one call of a function, which another thread may cancel or look at.
type call struct {
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	what     string // is being done
	done     int
	total    int // −1 where it is not known
	note     string
	warnings []string
}

// calls are those that are going on, by the number that the caller gave.
var calls sync.Map

func (c *call) progress(what string, done, total int, note string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.what, c.done, c.total, c.note = what, done, total, note
}

// warn notes a warning for the result.
func (c *call) warn(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.warnings = append(c.warnings, text)
}

// Cancel cancels a call.
func Cancel(number int64) {
	if c, ok := calls.Load(number); ok {
		c.(*call).stop()
	}
}

// Progress says as JSON how far a call is.
func Progress(number int64) []byte {
	c, ok := calls.Load(number)
	if !ok {
		return []byte("{}")
	}
	now := c.(*call)
	now.mu.Lock()
	defer now.mu.Unlock()
	text, _ := json.Marshal(map[string]any{"what": now.what, "done": now.done, "total": now.total, "note": now.note})
	return text
}

// Call calls a function and returns its answer as JSON: {"result": …, "warnings": […]} or
// {"error": TEXT, "kind": KIND}. A panic of the function is an error too.
func Call(number int64, name string, arguments []byte, buffers []Buffer) (answer []byte) {
	defer func() {
		if p := recover(); p != nil {
			answer = failure(name, fmt.Errorf("this is a fault of mlrbfn, please report it: %v\n%s", p, debug.Stack()))
		}
	}()
	do, ok := functions[name]
	if !ok {
		return failure(name, fmt.Errorf("there is no function %q", name))
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := &call{ctx: ctx, stop: stop, total: -1}
	if _, twice := calls.LoadOrStore(number, c); twice {
		return failure(name, fmt.Errorf("call %d is going on", number))
	}
	defer calls.Delete(number)
	result, err := do(c, arguments, buffers)
	if err == nil {
		answer, err = json.Marshal(map[string]any{"result": result, "warnings": append([]string{}, c.warnings...)})
	}
	if err != nil {
		return failure(name, err)
	}
	return answer
}

// failure is the answer for an error.
func failure(name string, err error) []byte {
	switch name { // commands do the same with images that are files
	case "images":
		name = "detect"
	case "embed":
		name = "extract"
	}
	text, _ := json.Marshal(map[string]string{"error": command.InWords(name, err), "kind": kind(err)})
	return text
}

// kind is the sort of error that a caller may want to tell from others.
func kind(err error) string {
	_, usage := errors.AsType[*command.UsageError](err)
	_, option := errors.AsType[*options.Error](err)
	_, library := errors.AsType[*extractor.RuntimeError](err)
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case is(context.Canceled):
		return "interrupted"
	case library || is(extractor.ErrNoRuntime):
		return "runtime"
	case is(fs.ErrNotExist):
		return "missing"
	case is(fs.ErrPermission):
		return "permission"
	case is(pipeline.ErrDetector, pipeline.ErrSignature):
		return "detector"
	case is(features.ErrNotSet, features.ErrDamaged, features.ErrVersion, features.ErrFingerprint, features.ErrOtherImages, features.ErrLocked, features.ErrShards, features.ErrOtherShard):
		return "features"
	case is(pipeline.ErrOtherModel, features.ErrDrifted):
		return "model"
	case is(head.ErrDiverged):
		return "diverged"
	case usage || option:
		return "value"
	}
	return "error"
}

// of makes a function of one whose arguments are declared, all of which must be known to it.
func of[A any](do func(c *call, a A, buffers []Buffer) (any, error)) function {
	return func(c *call, arguments json.RawMessage, buffers []Buffer) (any, error) {
		var a A
		d := json.NewDecoder(bytes.NewReader(arguments))
		d.DisallowUnknownFields()
		if err := d.Decode(&a); err != nil {
			return nil, &command.UsageError{Err: err}
		}
		return do(c, a, buffers)
	}
}

// path is a path of the file system, whose bytes need not be UTF-8: base64 in JSON.
type path []byte

func (p path) String() string { return string(p) }

func texts(paths []path) []string {
	return lists.Map(paths, path.String)
}

type setupArguments struct {
	Env map[string]string `json:"env"`
}

// setup takes over environment variables: the library sees those of the time when the
// process began.
func setup(_ *call, a setupArguments, _ []Buffer) (any, error) {
	for name, value := range a.Env {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	return map[string]string{"version": version.Version, "about": command.Version()}, nil
}

type describeArguments struct {
	Command string `json:"command"`
}

// describe says which options a command has.
func describe(_ *call, a describeArguments, _ []Buffer) (any, error) {
	return command.Options(a.Command)
}

type runArguments struct {
	Command  string           `json:"command"`
	Settings command.Settings `json:"settings"`
	Paths    []path           `json:"paths"` // that follow the flags
}

// run runs a command of the program, and returns what it prints. Its notes are warnings.
func run(c *call, a runArguments, _ []Buffer) (any, error) {
	var out bytes.Buffer
	said := &saying{call: c}
	err := command.RunCommand(c.ctx, a.Command, a.Settings, texts(a.Paths), command.Streams{In: strings.NewReader(""), Out: &out, Err: said})
	for line := range strings.Lines(said.String()) {
		if _, text, ok := strings.Cut(line, ": warning: "); ok {
			c.warn(command.WarningInWords(a.Command, strings.TrimSpace(text)))
		} else if _, text, ok := strings.Cut(line, ": note: "); ok {
			c.warn(command.WarningInWords(a.Command, strings.TrimSpace(text)))
		}
	}
	if errors.Is(err, command.ErrPartial) || errors.Is(err, command.ErrNotSetAside) {
		c.warn(command.InWords(a.Command, err))
		err = nil
	}
	return out.String(), err
}

// saying is the standard error of a command.
type saying struct {
	bytes.Buffer
	call *call
}

// Follow makes progress that of the call.
func (s *saying) Follow(what string, done, total int) { s.call.progress(what, done, total, "") }
