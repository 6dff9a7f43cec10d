package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

var _ = declare("export", 110, "--detector DETECTOR --out FILE.onnx [flags]", "Write a detector as an ONNX file",
	`Writes a detector as an ONNX file for programs in other languages: from features to class confidences, score, OOD flag and p-value, or with the backbone from prepared images.

The file's metadata properties mlrbfn.* say what the inputs, outputs and classes are.`, addExport)

func addExport(c *command) {
	var opts pipeline.ExportOptions
	c.sets(&opts)
	c.section("input")
	file := c.String("detector", "", "file `DETECTOR` that train wrote")
	c.means("detector", "Detector")
	load := addPublicKeyFlag(c.FlagSet)
	alarms := c.Float64("max-false-alarms", 0, "another `SHARE` of in-distribution images that may be flagged (default: that of the detector)")
	c.means("max-false-alarms", "TargetTPR", "MaxFalseAlarms")
	c.section("model")
	c.BoolVar(&opts.WithBackbone, "with-backbone", false, "put the backbone before the head, in one file")
	c.StringVar(&opts.Model, "model", "", "`DIR` of the detector's backbone"+foundModel)
	c.BoolVar(&opts.KeepOutputs, "keep-outputs", false, "also output what the backbone itself outputs")
	c.StringVar((*string)(&opts.AsClassifier), "as-classifier", "", "write the backbone and the detector as one classifier, whose last class is unknown, in a `FORMAT`: ultralytics, transformers or triton")
	c.BoolVar(&opts.KeepLogits, "keep-logits", false, "with --as-classifier: the other classes are those of the backbone's own classifier (its output logits)")
	addDriftFlag(c.FlagSet, &opts.AllowDriftedFeatures)
	library := AddLibraryFlag(c.FlagSet)
	c.section("output")
	c.StringVar(&opts.Out, "out", "", "file `FILE.onnx` to write, or the folder of a transformers or triton classifier")
	c.IntVar(&opts.Opset, "opset", 0, fmt.Sprintf("`version` of ONNX's operators (default: %d, or the backbone's)", detector.DefaultOpset))
	c.required = []string{"detector", "out"}
	c.run = func(ctx context.Context, s Streams) error {
		switch {
		case !opts.WithBackbone && (opts.Model != "" && opts.AsClassifier == "" || opts.KeepOutputs):
			return Usagef("--model and --keep-outputs go with --with-backbone")
		case opts.AsClassifier != "" && !slices.Contains(detector.ClassifierFormats, opts.AsClassifier):
			return Usagef("--as-classifier %s: it is one of %v", opts.AsClassifier, detector.ClassifierFormats)
		case opts.KeepLogits && opts.AsClassifier == "":
			return Usagef("--keep-logits goes with --as-classifier")
		case c.Changed("opset") && (opts.Opset < onnx.MinOpset || opts.Opset > onnx.MaxOpset):
			return Usagef("--opset %d: it is %d to %d", opts.Opset, onnx.MinOpset, onnx.MaxOpset)
		case disk.Same(*file, opts.Out):
			return Usagef("--out %s is the detector itself", opts.Out)
		}
		var err error
		if opts.Detector, err = load(*file); err != nil {
			return err
		}
		if c.Changed("max-false-alarms") {
			if err := setFalseAlarms(opts.Detector, *alarms); err != nil {
				return err
			}
		}
		written := filepath.Join(opts.Out, filepath.FromSlash(opts.AsClassifier.Graph()))
		if err := prepareOutput(written); err != nil {
			return err
		}
		opts.Drifted = c.warnDrift(s)
		if opts.WithBackbone || opts.AsClassifier != "" {
			if err := extractor.InitRuntime(*library); err != nil {
				return err
			}
		}
		if err := pipeline.Export(ctx, opts); err != nil {
			return err
		}
		info, err := os.Stat(written)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(ForPeople(s.Out), "%s: %s, %s, score %s, %d bytes\n", written, count(len(opts.Detector.Classes), "class"), count(len(opts.Detector.Heads), "head"), opts.Detector.ScoreName(), info.Size())
		return err
	}
}
