package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"mlrbfn/extractor"
)

// RunFlags are the flags of programs that run a model over images.
type RunFlags struct {
	run      *extractor.ExtractOptions
	backbone *extractor.ModelOptions
	library  *string
}

// AddRunFlags adds the flags, which set fields of run and backbone.
func AddRunFlags(f *pflag.FlagSet, run *extractor.ExtractOptions, backbone *extractor.ModelOptions) *RunFlags {
	f.IntVar(&run.Batch, "batch", 0, "images that one worker puts through the model at once (default: 1, or more where a short measurement finds that faster and the same to the bit)")
	f.IntVar(&run.Workers, "workers", 0, "images worked on at once (default: one per core, or fewer with more threads each where a long run finds that faster)")
	f.IntVar(&backbone.IntraOpThreads, "threads", 0, "threads that the model may use for each of them (default: 1, or as above)")
	f.StringVar(&backbone.Device, "device", "cpu", "where the model runs: `"+strings.Join(extractor.Devices(), "|")+"`; which of several: cuda:1")
	f.StringVar(&backbone.Provider, "provider", "", "plug-in `FILE` of onnxruntime that brings the device (default: the library's own)")
	f.Int64Var(&run.MaxPixels, "max-pixels", 0, "refuse larger images (default: Pillow's bound, 178,956,970)")
	f.DurationVar(&run.ImageTimeout, "image-timeout", extractor.DefaultImageTimeout, "give up an image that takes `TIME` to decode")
	return &RunFlags{run, backbone, AddLibraryFlag(f)}
}

// AddLibraryFlag adds the flag that names the onnxruntime library.
func AddLibraryFlag(f *pflag.FlagSet) *string {
	return f.String("onnxruntime", "", "the onnxruntime library `FILE` (default: $ONNXRUNTIME_SHARED_LIBRARY_PATH, set-up's, the system's)")
}

// Check checks the flags, after Parse.
func (r *RunFlags) Check() error {
	switch {
	case r.run.Batch < 0 || r.run.Workers < 0 || r.backbone.IntraOpThreads < 0 || r.run.MaxPixels < 0:
		return Usagef("--batch %d --workers %d --threads %d --max-pixels %d: none is negative", r.run.Batch, r.run.Workers, r.backbone.IntraOpThreads, r.run.MaxPixels)
	case r.run.ImageTimeout <= 0:
		return Usagef("--image-timeout %v: it is positive", r.run.ImageTimeout)
	}
	if err := extractor.CheckDevice(r.backbone.Device); err != nil {
		return Usagef("--device: %v", err)
	}
	if r.backbone.Provider != "" && r.backbone.Device == "cpu" {
		return Usagef("--provider goes with the --device that it brings")
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
