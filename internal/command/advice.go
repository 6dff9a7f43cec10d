package command

import (
	"errors"
	"strings"

	"mlrbfn/options"
)

// flagOf names the flag of each option that the packages below report an error
// of. Commands that name it otherwise are in flagIn.
var flagOf = map[string]string{
	"MaxPixels":    "max-pixels",
	"ImageTimeout": "image-timeout",
	"Model":        "model",
	"Memory":       "memory",
	"Features":     "features",

	"Validation":     "val",
	"Calibration":    "calibration",
	"Scores":         "scores",
	"TargetTPR":      "target-tpr",
	"MaxFalseAlarms": "max-false-alarms",
	"WithBackbone":   "with-backbone",
	"Out":            "out",
	"Detector":       "detector",
	"Methods":        "methods",
	"Layers":         "layers",
	"Centroids":      "centroids",
	"Projection":     "projection",
	"Norm":           "norm",
	"Recovery":       "recovery",
	"Head":           "head",
	"Runtime":        "onnxruntime",
}

// inWarnings puts flags in the place of the options that the warnings of a
// training name.
var inWarnings = strings.NewReplacer(
	"Train.Balance", "--balance sample", "Train.LR", "--lr", "Train.Epochs", "--epochs", `paper.Presets["mnist"]`, "--preset mnist",
	"(Conditioning)", "(--conditioning)", "(Calibration)", "(--calibration)", "(TargetTPR)", "(--max-false-alarms)", "(Scores)", "(--scores)", "(Memory)", "(--memory)",
)

// notAFlag are options that no flag sets.
var notAFlag = []string{"OOD"}

// flagIn names the flags of a command that differ from flagOf.
var flagIn = map[string]map[string]string{
	"evaluate": {"Features": "train"},
	"ablate":   {"Features": "train"},
}

// usage says that err, which may name options, is about the command line.
func (c *command) usage(err error) error { return &UsageError{c.advise(err)} }

// advise names the flags of the options that err is about.
func (c *command) advise(err error) error {
	text, changed := "", false
	for _, e := range optionErrors(err) {
		name := flagIn[c.cmd.Name()][e.Option]
		if name == "" {
			name = flagOf[e.Option]
		}
		if name == "" || c.Lookup(name) == nil {
			continue
		}
		if !changed {
			text, changed = err.Error(), true
		}
		text = strings.Replace(text, e.Error(), "--"+name+": "+e.Err.Error(), 1)
	}
	if !changed {
		return err
	}
	return &advice{text, err}
}

// advice is an error in other words.
type advice struct {
	text string
	err  error
}

func (a *advice) Error() string { return a.text }
func (a *advice) Unwrap() error { return a.err }

// optionErrors returns all errors about options that err wraps.
func optionErrors(err error) (all []*options.Error) {
	for err != nil {
		switch e := err.(type) {
		case *options.Error:
			all = append(all, e)
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				all = append(all, optionErrors(part)...)
			}
			return all
		}
		err = errors.Unwrap(err)
	}
	return all
}
