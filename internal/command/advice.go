package command

import (
	"errors"
	"strings"

	"mlrbfn/options"
)

// flagOf names the flag of each option that the packages below report an error
// of. Commands that name it otherwise are in flagIn.
var flagOf = map[string]string{
	// Of networks and training.
	"Layers": "layers", "Centroids": "centroids", "Projection": "projection", "Norm": "norm", "Recovery": "recovery",
	"Epochs": "epochs", "Batch": "batch", "LR": "lr", "Schedule": "schedule", "Patience": "patience", "Balance": "balance", "Seeds": "seeds",
	"Conditioning": "conditioning", "Shrinkage": "shrinkage", "Dims": "pca-dims",
	"Features": "features", "Validation": "val", "Calibration": "calibration", "Scores": "scores",
	"TargetTPR": "target-tpr", "MaxFalseAlarms": "max-false-alarms",
	"Memory": "memory", "Resume": "resume", "CheckpointEvery": "checkpoint-every",
	// Of images and models.
	"Images": "images", "List": "list", "Names": "names", "Shard": "shard", "Force": "force", "Out": "out",
	"Model": "model", "Output": "output", "Pool": "pool", "Size": "size", "Channels": "channels", "Mean": "mean", "Std": "std",
	"Workers": "workers", "Threads": "threads", "IntraOpThreads": "threads", "Device": "device", "Provider": "provider", "Runtime": "onnxruntime",
	"MaxPixels": "max-pixels", "ImageTimeout": "image-timeout",
	// Of detectors and comparisons.
	"Detector": "detector", "Threshold": "threshold", "SetAside": "move-ood",
	"ID": "id", "OOD": "near", "Methods": "methods", "Head": "head", "Bootstrap": "bootstrap", "Depths": "depths", "Steps": "steps", "Hidden": "hidden",
	"WithBackbone": "with-backbone", "KeepOutputs": "keep-outputs", "Opset": "opset",
}

// inWarnings puts flags in the place of the options that the warnings of a
// training name.
var inWarnings = strings.NewReplacer(
	"Train.Balance", "--balance sample", "Train.LR", "--lr", "Train.Epochs", "--epochs", `paper.Presets["mnist"]`, "--preset mnist",
	"(Conditioning)", "(--conditioning)", "(Calibration)", "(--calibration)", "(TargetTPR)", "(--max-false-alarms)", "(Scores)", "(--scores)", "(Memory)", "(--memory)", ": Memory: ", ": --memory: ",
)

// notAFlag are options that no flag sets.
var notAFlag = []string{"Scratch", "Checkpoint"}

// flagIn names the flags of a command that differ from flagOf.
var flagIn = map[string]map[string]string{
	"evaluate": {"Features": "train"},
	"ablate":   {"Features": "train"},
	"train":    {"Head": "network"},
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
		if e.Option == "Memory" && strings.Contains(text, " features") {
			text += "; fewer features need less (of pixels, extract --size)"
		}
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
