package cli

import (
	"slices"
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
	f.StringVar(&backbone.Device, "device", "cpu", "where the model runs: `"+strings.Join(extractor.Devices, "|")+"`")
	f.Int64Var(&run.MaxPixels, "max-pixels", 0, "refuse larger images (default: Pillow's bound, 178,956,970)")
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
	case !slices.Contains(extractor.Devices, r.backbone.Device):
		return Usagef("--device %s: it is one of %s", r.backbone.Device, strings.Join(extractor.Devices, ", "))
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
