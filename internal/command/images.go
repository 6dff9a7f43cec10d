package command

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3" // so that s3:// and gs:// are known
	"github.com/mlrbfn/mlrbfn/extractor"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web" // and https://
)

// RunFlags are the flags of commands that run a model over images.
type RunFlags struct {
	run      *extractor.ExtractOptions
	backbone *extractor.ModelOptions
	library  *string
}

// AddRunFlags adds the flags, which set fields of run and backbone.
func AddRunFlags(f *pflag.FlagSet, run *extractor.ExtractOptions, backbone *extractor.ModelOptions) *RunFlags {
	f.IntVar(&run.Batch, "batch", 0, "images that a worker gives to the model at once (default: 1, or more if a short measurement finds that faster and bit-identical)")
	f.IntVar(&run.Workers, "workers", 0, "images in work at once (default: one per core or fewer)")
	f.IntVar(&backbone.IntraOpThreads, "threads", 0, "threads of the model for each worker (default: 1, or more as above)")
	f.StringVar(&backbone.Device, "device", "cpu", "`DEVICE` for the model: "+strings.Join(extractor.Devices(), "|")+"; the second of several is cuda:1")
	annotate(f.Lookup("device"), offered, extractor.Devices()...)
	f.StringVar(&backbone.Provider, "provider", "", "plug-in `FILE` of onnxruntime for the device (default: the library's own)")
	f.DurationVar(&backbone.OpenTimeout, "open-timeout", 0, "give up on a model that takes longer than `TIME` to open (default: 2m, more for models above 200 MB)")
	f.DurationVar(&backbone.RunTimeout, "run-timeout", 0, "skip an image that the model takes longer than `TIME` for (default: 100 times what a blank one takes, at least 2m)")
	addDriftFlag(f, backbone)
	f.Int64Var(&run.MaxPixels, "max-pixels", 0, "refuse images of more pixels (default: Pillow's limit, 178,956,970)")
	f.DurationVar(&run.ImageTimeout, "image-timeout", extractor.DefaultImageTimeout, "skip an image that takes longer than `TIME` to decode")
	return &RunFlags{run, backbone, AddLibraryFlag(f)}
}

// addDriftFlag adds the flag that has models opened whose features are not those of before.
func addDriftFlag(f *pflag.FlagSet, backbone *extractor.ModelOptions) {
	f.BoolVar(&backbone.AllowDriftedFeatures, "allow-drifted-features", false, "use a model though its features differ from before so far that verdicts could change")
}

// warnDrift returns a function that warns of features that are not those of before.
func (c *command) warnDrift(s Streams) func(string) {
	return func(text string) { fmt.Fprintf(ForPeople(s.Err), "%s: warning: %s\n", c.cmd.Name(), text) }
}

// rareRunFlags are those of AddRunFlags that few need.
var rareRunFlags = []string{"batch", "threads", "provider", "open-timeout", "run-timeout", "allow-drifted-features", "max-pixels", "image-timeout", "onnxruntime"}

// AddLibraryFlag adds the flag that names the onnxruntime library.
func AddLibraryFlag(f *pflag.FlagSet) *string {
	library := f.String("onnxruntime", "", "onnxruntime library `FILE` (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, or one that is found)")
	annotate(f.Lookup("onnxruntime"), ofFields, "Runtime")
	return library
}

// Check checks the flags, after Parse.
func (r *RunFlags) Check() error {
	switch {
	case r.run.Batch < 0 || r.run.Workers < 0 || r.backbone.IntraOpThreads < 0 || r.run.MaxPixels < 0:
		return Usagef("--batch %d --workers %d --threads %d --max-pixels %d: none may be negative", r.run.Batch, r.run.Workers, r.backbone.IntraOpThreads, r.run.MaxPixels)
	case r.backbone.OpenTimeout < 0:
		return Usagef("--open-timeout %v: it may not be negative", r.backbone.OpenTimeout)
	case r.backbone.RunTimeout < 0:
		return Usagef("--run-timeout %v: it may not be negative", r.backbone.RunTimeout)
	case r.run.ImageTimeout <= 0:
		return Usagef("--image-timeout %v: it must be positive", r.run.ImageTimeout)
	}
	if err := extractor.CheckDevice(r.backbone.Device); err != nil {
		return Usagef("--device: %v", err)
	}
	if r.backbone.Provider != "" && r.backbone.Device == "cpu" {
		return Usagef("--provider goes with the --device that it is for")
	}
	return nil
}

// LoadRuntime loads the onnxruntime library that --onnxruntime names. Without
// the flag opening a model does it, for not every model needs it.
func (r *RunFlags) LoadRuntime() error {
	if *r.library == "" {
		return nil
	}
	return extractor.InitRuntime(*r.library)
}
