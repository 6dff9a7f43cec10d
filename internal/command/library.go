package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// This file serves the libraries for other languages, whose options are the flags of
// the commands with underscores: max_false_alarms.

// Settings are values of flags by their names with underscores, as text; a flag that
// takes several has several.
type Settings map[string][]string

// apply sets flags that offered tells of.
func (s Settings) apply(c *command, offered func(*pflag.Flag) bool) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		flag := c.Lookup(strings.ReplaceAll(name, "_", "-"))
		if flag == nil || strings.Contains(name, "-") || !offered(flag) {
			return unknownOption(c, name, offered)
		}
		for _, value := range s[name] {
			if err := c.Set(flag.Name, value); err != nil {
				return flagError(c.FlagSet, err)
			}
		}
	}
	return nil
}

// unknownOption is the error for a name that no option has.
func unknownOption(c *command, name string, offered func(*pflag.Flag) bool) error {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	var names []string
	c.VisitAll(func(f *pflag.Flag) {
		if offered(f) {
			known.AddFlag(f)
			names = append(names, strings.ReplaceAll(f.Name, "-", "_"))
		}
	})
	if near := nearest(known, strings.ReplaceAll(name, "_", "-")); near != "" {
		return Usagef("there is no option %s; did you mean %s?", name, strings.ReplaceAll(near, "-", "_"))
	}
	return Usagef("there is no option %s; there are %s", name, strings.Join(names, ", "))
}

// inLibraries tells whether libraries for other languages offer a flag.
func inLibraries(f *pflag.Flag) bool { return !f.Hidden && f.Annotations[isProgram] == nil }

// An Option is what a library offers in the place of a flag.
type Option struct {
	Name    string   `json:"name"`  // with underscores
	Type    string   `json:"type"`  // as pflag and the values of this package call it
	Value   string   `json:"value"` // how the help calls its value, such as FILE
	Default string   `json:"default"`
	Words   []string `json:"words"` // that it takes; nil for others
	About   string   `json:"about"`
	Program bool     `json:"program"` // it is for the program alone, or for what calls it
}

// Options returns the options of a command, in the order of its help.
func Options(name string) (all []Option, err error) {
	declared, ok := commands[name]
	if !ok {
		return nil, fmt.Errorf("there is no command %q", name)
	}
	declared.make().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, about := pflag.UnquoteUsage(f)
		o := Option{strings.ReplaceAll(f.Name, "-", "_"), f.Value.Type(), value, f.DefValue, nil, inLibrary(about), f.Annotations[isProgram] != nil}
		if c, ok := f.Value.(*choice); ok {
			o.Words = c.words
		}
		all = append(all, o)
	})
	return all, nil
}

// RunCommand runs a command, given its flags and what follows them.
func RunCommand(ctx context.Context, name string, set Settings, args []string, s Streams) error {
	declared, ok := commands[name]
	if !ok {
		return fmt.Errorf("there is no command %q", name)
	}
	c := declared.make()
	if err := set.apply(c, func(f *pflag.Flag) bool { return !f.Hidden }); err != nil {
		return err
	}
	if err := c.Parse(append([]string{"--"}, args...)); err != nil {
		return flagError(c.FlagSet, err)
	}
	return c.do(ctx, s)
}

// TrainSettings returns what the command train would train with, given its flags that say
// how.
func TrainSettings(s Settings) (pipeline.TrainOptions, error) {
	t := commands["train"].make().of.(*fitting)
	if err := s.apply(t.command, inLibraries); err != nil {
		return pipeline.TrainOptions{}, err
	}
	opts, err := t.options()
	opts.CheckpointEvery = 0
	return opts, err
}

// ExtractSettings returns what the command extract would extract with, given its flags
// that say how.
func ExtractSettings(s Settings) (pipeline.ExtractOptions, error) {
	e := commands["extract"].make().of.(*extracting)
	if err := s.apply(e.command, inLibraries); err != nil {
		return pipeline.ExtractOptions{}, err
	}
	err := e.check()
	e.opts.Advise = func(err error) error { return errors.New(InWords("extract", err)) }
	return e.opts, err
}

// DetectSettings returns how the command detect would run a model, given its flags that
// say how.
func DetectSettings(s Settings) (extractor.Options, error) {
	d := commands["detect"].make().of.(*detecting)
	err := s.apply(d.command, inLibraries)
	return d.opts.Options, errors.Join(err, d.running.Check(), d.running.LoadRuntime())
}

// InWords returns what err says to who uses a command through a library.
func InWords(name string, err error) string {
	c, ok := commands[name]
	if !ok {
		c = commands["version"]
	}
	return inLibrary(oneLine(c.make().advise(err)))
}

// WarningInWords is InWords for a warning of a result.
func WarningInWords(name, warning string) string {
	return inLibrary(commands[name].make().adviseText(warning))
}

// inLibrary writes the names of flags as libraries have them: max_false_alarms.
func inLibrary(text string) string { return underscored().Replace(text) }

var underscored = sync.OnceValue(func() *strings.Replacer {
	var names []string
	for _, command := range commands {
		command.make().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // --val is in --values
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, "--"+name, strings.ReplaceAll(name, "-", "_"))
	}
	return strings.NewReplacer(pairs...)
})

// NoThreshold warns of a detector without a threshold.
func NoThreshold() string { return inLibrary(noThreshold + "; train with --calibration cross:10") }

// ExtractionNotes are what the command extract tells a person of what came of it.
func ExtractionNotes(r *pipeline.ExtractResult, backbone extractor.Options) []string {
	notes := extractionNotes(r, backbone)
	for i, note := range notes {
		notes[i] = inLibrary(strings.TrimPrefix(note, "warning: "))
	}
	return notes
}

// Describe says in a few lines what was trained, as the command train does.
func Describe(d *pipeline.Detector, r *pipeline.TrainResult) string {
	return inLibrary(describe(d, r))
}
