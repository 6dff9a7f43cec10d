package command

import (
	"cmp"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/hub"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// flagOf returns the flag that sets the field of options with this name, "" if none does.
// It is found by the address of the field, or by what [command.means] says.
func (c *command) flagOf(field string) string {
	if c.fields == nil {
		c.fields = map[string]string{}
		flags := map[uintptr]string{}
		c.VisitAll(func(f *pflag.Flag) {
			if at := addressOf(reflect.ValueOf(f.Value)); flags[at] == "" {
				flags[at] = f.Name
			}
		})
		c.VisitAll(func(f *pflag.Flag) {
			for _, field := range f.Annotations[ofFields] {
				c.fields[field] = cmp.Or(c.fields[field], f.Name)
			}
		})
		for _, options := range c.options {
			nameFields(c.fields, flags, reflect.ValueOf(options).Elem())
		}
	}
	return c.fields[field]
}

// addressOf returns what the value of a flag points to; 0 if it keeps it itself.
func addressOf(v reflect.Value) uintptr {
	at := v.Pointer()
	if v = v.Elem(); v.Kind() == reflect.Struct {
		at = 0
		for i := range v.NumField() {
			if v.Field(i).Kind() == reflect.Pointer && !v.Field(i).IsNil() {
				at = v.Field(i).Pointer()
				break
			}
		}
	}
	return at
}

// nameFields notes the flag of each field of options, and of the structs in them.
func nameFields(of map[string]string, flags map[uintptr]string, options reflect.Value) {
	for i := range options.NumField() {
		field := options.Field(i)
		name := options.Type().Field(i).Name
		if flag := flags[field.UnsafeAddr()]; flag != "" && of[name] == "" {
			of[name] = flag
		}
		if field.Kind() == reflect.Struct {
			nameFields(of, flags, field)
		}
	}
}

// usage says that err, which may name options, is about the command line.
func (c *command) usage(err error) error { return &UsageError{c.advise(err)} }

// isRepository tells whether a model of this name may be on the Hugging Face hub.
func isRepository(name string) bool {
	_, err := hub.ParseName(name)
	return err == nil
}

// runtimeAdvice says how to come by an onnxruntime library.
const runtimeAdvice = "run `make setup` in the checkout, put the library beside the program, or name it with --onnxruntime FILE or $ONNXRUNTIME_SHARED_LIBRARY_PATH"

// modelAdvice says how to come by the default backbone, which `go install` does not bring.
const modelAdvice = ", and the packages of mlrbfn bring this one (`pip install mlrbfn`), as does `make setup` in the checkout"

// advise names the flags of the options that err is about, and says what to do
// about a library that is missing.
func (c *command) advise(err error) error {
	text, changed := "", false
	if _, bad := errors.AsType[*extractor.RuntimeError](err); bad || errors.Is(err, extractor.ErrNoRuntime) {
		return &advice{withoutAdvice(err) + "; " + runtimeAdvice, err}
	}
	for _, e := range all[*options.Error](err) {
		name := c.flagOf(e.Option)
		if name == "" {
			continue
		}
		if !changed {
			text, changed = err.Error(), true
		}
		sep := ": "
		value, _, _ := strings.Cut(e.Err.Error(), ": ")
		if _, err := strconv.ParseFloat(value, 64); err == nil { // "0.01: …"
			sep = " "
		}
		text = strings.Replace(text, e.Error(), "--"+name+sep+e.Err.Error(), 1)
		if missing, ok := errors.AsType[*fs.PathError](e.Err); e.Option == "Model" && errors.Is(e, fs.ErrNotExist) {
			if strings.Contains(e.Err.Error(), defaultModel+": ") {
				text += modelAdvice
			} else if ok && isRepository(missing.Path) {
				text += "; if it is the name of a model on the Hugging Face hub, `mlrbfn models get " + missing.Path + "` fetches it"
			}
		}
		if e.Option == "Memory" && strings.Contains(text, " features") {
			text += fewerFeatures
		}
	}
	if err == nil {
		return nil
	}
	if !changed {
		text = err.Error()
	}
	if text = plainPaths(text, err); text == err.Error() {
		return err
	}
	return &advice{text, err}
}

// asCommands names the commands in what the packages below say of missing files.
var asCommands = strings.NewReplacer("; an extraction makes ", "; mlrbfn extract makes ", "; training makes ", "; mlrbfn train makes ")

// plainPaths returns text, which err is said in, without the names of system calls,
// and with each path that could not be looked at or opened once: "x.jpg: no such file
// or directory".
func plainPaths(text string, err error) string {
	text = asCommands.Replace(text)
	for _, e := range all[*fs.PathError](err) {
		if !slices.Contains([]string{"stat", "lstat", "open", "openat", "statat"}, e.Op) {
			continue
		}
		plain := e.Path + ": " + e.Err.Error()
		text = strings.ReplaceAll(text, e.Error(), plain)
		text = strings.ReplaceAll(text, e.Path+": "+plain, plain)
	}
	return text
}

// fewerFeatures follows what too many features need.
const fewerFeatures = "; fewer features need less (of pixels, extract --size)"

// adviseText names the flags of the options that a warning names.
func (c *command) adviseText(warning string) string {
	memory := false
	text := options.Rename(warning, func(field, value string) string {
		memory = memory || field == "Memory"
		if name := c.flagOf(field); name != "" {
			return strings.TrimSpace("--" + name + " " + value)
		}
		return strings.TrimSpace(field + " " + value)
	})
	if memory && strings.Contains(text, " features") {
		text += fewerFeatures
	}
	return text
}

// withoutAdvice is the text of an error about onnxruntime without what it says
// to a program.
func withoutAdvice(err error) string {
	text := err.Error()
	for _, part := range []string{": name it by InitRuntime", "; name another by InitRuntime"} {
		if at := strings.Index(text, part); at >= 0 {
			return text[:at]
		}
	}
	return text
}

// advice is an error in other words.
type advice struct {
	text string
	err  error
}

func (a *advice) Error() string { return a.text }
func (a *advice) Unwrap() error { return a.err }

// all returns all errors of a type that err wraps.
func all[E error](err error) (found []E) {
	for err != nil {
		switch e := err.(type) {
		case E:
			found = append(found, e)
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				found = append(found, all[E](part)...)
			}
			return found
		}
		err = errors.Unwrap(err)
	}
	return found
}
