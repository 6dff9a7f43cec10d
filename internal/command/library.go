package command

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// This file serves the libraries for other languages, whose options are the flags of
// the commands with underscores: max_false_alarms.

// Settings are values of flags by their names with underscores, as text; a flag that
// takes several has several.
type Settings map[string][]string

// apply sets flags.
func (s Settings) apply(c *command) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		flag := c.Lookup(strings.ReplaceAll(name, "_", "-"))
		if flag == nil || strings.Contains(name, "-") || flag.Hidden {
			var known []string
			c.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden {
					known = append(known, strings.ReplaceAll(f.Name, "-", "_"))
				}
			})
			return Usagef("there is no option %s; there are %s", name, strings.Join(known, ", "))
		}
		for _, value := range s[name] {
			if err := c.Set(flag.Name, value); err != nil {
				return flagError(c.FlagSet, err)
			}
		}
	}
	return nil
}

// libraryCommand is a command that has flags and does not run.
func libraryCommand(name string) *command { return newCommand(name, "", "", "") }

// TrainSettings returns what the command train would train with, given its flags that say
// how.
func TrainSettings(s Settings) (pipeline.TrainOptions, error) {
	c := libraryCommand("train")
	heads := AddHeadFlags(c.FlagSet, pipeline.DefaultSeeds()...)
	calibration := c.String("calibration", pipeline.Share{}.String(), "")
	alarms := c.Float64("max-false-alarms", 1-pipeline.DefaultTargetTPR, "")
	scores := c.String("scores", pipeline.JoinedScore, "")
	perClass, noAssess := c.Bool("per-class", false, ""), c.Bool("no-assess", false, "")
	exclude, relabel := c.String("exclude", "", ""), c.String("relabel", "", "")
	var memory Bytes
	c.Var(&memory, "memory", "")
	if err := s.apply(c); err != nil {
		return pipeline.TrainOptions{}, err
	}
	opts, err := heads.Options()
	if err != nil {
		return opts, err
	}
	if err := pipeline.CheckScores(*scores); err != nil {
		return opts, Usagef("--scores: %w", err)
	}
	if !(*alarms > 0 && *alarms < 1) {
		return opts, Usagef("--max-false-alarms %g: a share lies between 0 and 1", *alarms)
	}
	if opts.Calibration, err = Share("calibration", *calibration); err != nil {
		return opts, err
	}
	if v, c := opts.Validation, opts.Calibration; v.Fraction+c.Fraction >= 1 {
		return opts, Usagef("--val %s and --calibration %s leave nothing to train on", v, c)
	}
	opts.TargetTPR, opts.Score, opts.PerClass, opts.NoHoldOut = 1-*alarms, *scores, *perClass, *noAssess
	opts.Exclude, opts.Relabel = *exclude, *relabel
	opts.Memory, opts.Tool = int64(memory), Version()
	return opts, nil
}

// ExtractSettings returns what the command extract would extract with, given its flags
// that say how.
func ExtractSettings(s Settings) (pipeline.ExtractOptions, error) {
	c := libraryCommand("extract")
	var opts pipeline.ExtractOptions
	var exif, size string
	c.StringVar(&opts.List, "list", "", "")
	c.StringVar(&opts.Names, "names", "", "")
	c.StringVar(&opts.Class, "class", "", "")
	Choice(c.FlagSet, &exif, "exif", "ignore", "ignore|apply", "")
	shard := c.String("shard", "", "")
	c.StringVar(&opts.Backbone.Output, "output", "", "")
	Choice(c.FlagSet, &opts.Backbone.Pool, "pool", "", "cls|mean", "")
	c.StringVar(&size, "size", "", "")
	Choice(c.FlagSet, &opts.Pixels.Channels, "channels", "", "grey|rgb", "")
	c.Float64SliceVar(&opts.Pixels.Mean, "mean", []float64{0}, "")
	c.Float64SliceVar(&opts.Pixels.Std, "std", []float64{1}, "")
	c.BoolVar(&opts.Verify, "verify", false, "")
	c.BoolVar(&opts.Force, "force", false, "")
	images := AddRunFlags(c.FlagSet, &opts.Run, &opts.Backbone)
	err := s.apply(c)
	if err == nil {
		err = setSize(&opts.Pixels, size)
	}
	if err == nil && *shard != "" {
		opts.Shard, err = features.ParseShard(*shard)
	}
	if err == nil && opts.Names != "" && opts.List == "" {
		err = Usagef("--names goes with --list")
	}
	opts.Backbone.ApplyEXIF, opts.Pixels.ApplyEXIF = exif == "apply", exif == "apply"
	opts.Advise = func(err error) error { return errors.New(InWords("extract", err)) }
	return opts, errors.Join(err, images.Check(), images.LoadRuntime())
}

// DetectSettings returns how the command detect would run a model, given its flags that
// say how.
func DetectSettings(s Settings) (extractor.ModelOptions, extractor.ExtractOptions, error) {
	c := libraryCommand("detect")
	var backbone extractor.ModelOptions
	var run extractor.ExtractOptions
	images := AddRunFlags(c.FlagSet, &run, &backbone)
	err := s.apply(c)
	return backbone, run, errors.Join(err, images.Check(), images.LoadRuntime())
}

// flagInText matches a flag that a text names.
var flagInText = regexp.MustCompile(`--([a-z][a-z-]*[a-z])\b`)

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

// inLibrary writes the names of flags as libraries have them.
func inLibrary(text string) string {
	return flagInText.ReplaceAllStringFunc(text, func(flag string) string {
		return strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
	})
}

// Describe says in a few lines what was trained, as the command train does.
func Describe(d *pipeline.Detector, r *pipeline.TrainResult) string {
	return inLibrary(describe(d, r))
}
