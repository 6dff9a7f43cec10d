// Export-onnx writes a detector as an ONNX file, for programs in other
// languages: from features to verdicts, or with its backbone from images.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"mlrbfn/extractor"
	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/cli"
	"mlrbfn/internal/onnx"
	"mlrbfn/pipeline"
)

func main() { cli.Main("export-onnx", run) }

func run(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var opts pipeline.ExportOptions
	f := cli.Flags("export-onnx", "--detector DETECTOR --out FILE.onnx [flags]",
		`Writes a detector as an ONNX file: from features to class confidences, score, OOD
flag and p-value, or with the backbone from prepared images. The file's metadata
properties mlrbfn.* say what goes in, what comes out and which classes there are.`, stdout)
	detector := f.String("detector", "", "the file `DETECTOR` that train wrote")
	f.StringVar(&opts.Out, "out", "", "the file `FILE.onnx` to write")
	f.BoolVar(&opts.WithBackbone, "with-backbone", false, "put the backbone before the head, in one file")
	f.StringVar(&opts.Model, "model", "", "`DIR` of the detector's backbone (default: where it was at training)")
	f.BoolVar(&opts.KeepOutputs, "keep-outputs", false, "keep the backbone's own outputs beside the verdict")
	f.IntVar(&opts.Opset, "opset", 0, fmt.Sprintf("version of ONNX's operators (default: %d, or the backbone's)", pipeline.DefaultOpset))
	library := cli.AddLibraryFlag(f)
	if err := cli.Parse(f, args, "detector", "out"); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return cli.Usagef("unexpected argument %q", f.Arg(0))
	case !opts.WithBackbone && (opts.Model != "" || opts.KeepOutputs):
		return cli.Usagef("--model and --keep-outputs go with --with-backbone")
	case f.Changed("opset") && (opts.Opset < onnx.MinOpset || opts.Opset > onnx.MaxOpset):
		return cli.Usagef("--opset %d: it is %d to %d", opts.Opset, onnx.MinOpset, onnx.MaxOpset)
	case sameFile(*detector, opts.Out):
		return cli.Usagef("--out %s is the detector itself", opts.Out)
	}
	var err error
	if opts.Detector, err = pipeline.LoadDetector(*detector); err != nil {
		return err
	}
	if err := atomicfile.Check(opts.Out); err != nil {
		return err
	}
	if opts.WithBackbone {
		if err := extractor.InitRuntime(*library); err != nil {
			return err
		}
	}
	if err := pipeline.Export(ctx, opts); err != nil {
		return err
	}
	info, err := os.Stat(opts.Out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: %d classes, %d head(s), %d bytes\n", opts.Out, len(opts.Detector.Classes), len(opts.Detector.Heads), info.Size())
	return err
}

func sameFile(a, b string) bool {
	left, errLeft := os.Stat(a)
	right, errRight := os.Stat(b)
	return errLeft == nil && errRight == nil && os.SameFile(left, right)
}
