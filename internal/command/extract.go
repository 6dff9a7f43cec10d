package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3" // so that s3:// and gs:// are known
	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web" // and https://
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// extracting is the command extract.
type extracting struct {
	*command
	opts                pipeline.ExtractOptions
	images              []string
	size, shard, layers string
	patches             string
	checking            *checkFlags
	running             *RunFlags
}

var _ = declare("extract", 10, "--model DIR --images DIR --out FEATURES [flags]", "Compute the features of images with an ONNX model",
	`Runs each image of a folder through an ONNX model once and writes the features. In DIR/class/…/image the folders are the labels; images directly in DIR have none.

Running it again processes only images that are new or whose size or modification time changed. After an interruption the same command continues. Runs with --shard 1/n to n/n and --parts write one set of n parts, which all commands read as they read others. Without --parts each writes a set of its own, and mlrbfn merge makes one of them.`, addExtract)

func addExtract(c *command) {
	c.readsURLs = []string{"images"}
	e := &extracting{command: c}
	c.of = e
	opts := &e.opts
	c.sets(opts)
	c.section("input")
	c.StringArrayVar(&e.images, "images", nil, "`DIR` of images; a tar, Parquet file, idx file or list of paths or URLs; or any of these as s3://, gs:// or https:// (repeat; {000..099} and * stand for several)")
	c.means("images", "Images", "Sources")
	c.StringVar(&opts.List, "list", "", "only the images of a `FILE` with lines of path and label, as OpenOOD has them")
	c.StringVar(&opts.Names, "names", "", "with --list, class names as in another list: a `FILE` with the same labels")
	c.StringVar(&opts.Class, "class", "", "`NAME` of the class of all images, whatever folders they are in")
	eitherOr(c.FlagSet, &opts.ApplyEXIF, "exif", "ignore|apply", "EXIF orientation of JPEG, PNG and WebP")
	c.BoolVar(&opts.Scale16, "scale-16-bit", false, "scale 16-bit grey to 8 bits; default: clip it at 255, as Pillow does, which makes most such images white")
	c.StringVar(&e.shard, "shard", "", "only the part `i/n` of the images, i from 1 to n")
	c.means("shard", "Shard")
	c.BoolVar(&opts.Parts, "parts", false, "with --shard: FEATURES is one set of n parts; write this part")
	c.BoolVar(&opts.Speculate, "speculate", false, "with --parts: another run may be at work on the same part; the first to finish counts")
	c.rare("names", "list", "class", "scale-16-bit", "parts", "speculate")
	c.section("model")
	c.StringVar(&opts.Model, "model", "", "`DIR` with model.onnx and its processor's configuration, or pixels: no model")
	c.StringVar(&opts.Output, "output", "", "`NAME` of the model's output (default: image_embeds, pooler_output, features, embedding, last_hidden_state, or the only one)")
	Choice(c.FlagSet, &opts.Pool, "pool", "", "cls|mean", "one vector of last_hidden_state (default: cls, or mean without class token)")
	c.StringVar(&e.layers, "layers", extractor.NoLayers, "also values within the model, for the default score: `auto|NODE,…|none`; auto finds the ends of a few blocks")
	c.means("layers", "Layers")
	c.BoolVar(&opts.FastMath, "fast-math", false, "products in bfloat16, on arm64 processors that have it; features are others")
	c.StringVar(&e.patches, "patches", extractor.NoLayers, "also how strange the places of an image are: `auto|NODE,…|FEATURES|none`; a twentieth of the images says what is usual, or a set that has it")
	c.means("patches", "PatchNodes")
	c.rare("layers", "patches", "fast-math")
	c.section("model pixels: (x/255 − mean)/std")
	c.StringVar(&e.size, "size", "", "resize to `N|WxH` (default: all images must have the same size)")
	c.means("size", "Width")
	Choice(c.FlagSet, &opts.Channels, "channels", "", "grey|rgb", "(default: grey for idx files, else rgb)")
	c.Float64SliceVar(&opts.Mean, "mean", []float64{0}, "mean to subtract, `X` or one per channel as X,X,X")
	c.Float64SliceVar(&opts.Std, "std", []float64{1}, "standard deviation to divide by, `X` or one per channel")
	c.Lookup("mean").DefValue, c.Lookup("std").DefValue = "0", "1"
	c.section("output")
	c.StringVar(&opts.Out, "out", "", "folder `FEATURES` to write")
	Choice(c.FlagSet, &opts.DType, "dtype", "float32", "float32|float16", "type of features.npy; float16 takes half the disk")
	c.BoolVar(&opts.Parquet, "parquet", false, "write FEATURES/features.parquet too, for Spark, DuckDB, pandas")
	c.BoolVar(&opts.Verify, "verify", false, "find changed images by reading them, not by size and time")
	c.BoolVar(&opts.Force, "force", false, "replace a set of another model, folder or shard, or a damaged one")
	c.addJSON("print the result as one JSON object")
	c.addQuiet("show no progress")
	c.programOnly("images", "parts", "speculate", "model", "out", "dtype", "parquet", "json", "quiet")
	c.section("check")
	e.checking = addCheckFlags(c)
	c.rare("verify", "dtype", "parquet", "against", "picture", "check-images")
	c.section("speed and limits")
	e.running = AddRunFlags(c.FlagSet, &opts.Options)
	c.rare(rareRunFlags...)
	c.required = []string{"model"}
	c.run = e.run
}

// check checks the flags that say how to extract, and loads onnxruntime.
func (e *extracting) check() (err error) {
	opts := &e.opts
	if opts.Names != "" && opts.List == "" {
		return Usagef("--names goes with --list")
	}
	if err := setSize(&opts.Options, e.size); err != nil {
		return err
	}
	if e.Changed("shard") {
		if opts.Shard, err = features.ParseShard(e.shard); err != nil {
			return Usagef("--shard: %w", err)
		}
	}
	opts.Layers = strings.Split(e.layers, ",")
	if e.patches != extractor.NoLayers {
		opts.PatchNodes = strings.Split(e.patches, ",")
	}
	if opts.DType == "float32" {
		opts.DType = ""
	}
	if err := e.running.Check(); err != nil {
		return err
	}
	return e.running.LoadRuntime()
}

func (e *extracting) run(ctx context.Context, s Streams) error {
	opts := &e.opts
	pixels := opts.Model == extractor.PixelsName
	if err := e.checking.validate(e.Changed, pixels); err != nil {
		return err
	}
	if images.AreSources(true, e.images...) {
		opts.Sources = e.images
	} else if len(e.images) > 0 {
		opts.Images = e.images[0]
	}
	switch {
	case e.checking.on && len(opts.Sources) > 0:
		return Usagef("--check looks at the images of one folder on the disk")
	case opts.List != "" && len(opts.Sources) > 0:
		return Usagef("--list goes with one folder on the disk")
	case !e.checking.on && (opts.Images == "" && len(opts.Sources) == 0 || opts.Out == ""):
		return Usagef("--images and --out are needed")
	}
	if err := checkModelFlags(e.Changed, pixels); err != nil {
		return err
	}
	if opts.Speculate && !opts.Parts {
		return Usagef("--speculate goes with --parts")
	}
	if opts.Parts && !e.Changed("shard") {
		return Usagef("--parts goes with --shard")
	}
	if err := e.check(); err != nil {
		return err
	}
	opts.Advise = e.advise
	opts.Drifted = e.warnDrift(s)
	if e.checking.on {
		return e.runCheck(ctx, s)
	}
	return e.extract(ctx, s)
}

// extract extracts features and prints the result.
func (e *extracting) extract(ctx context.Context, s Streams) error {
	opts, progress := &e.opts, e.progress(s, "images")
	opts.Progress = func(done, failed, total int) {
		note := ""
		if failed > 0 {
			note = fmt.Sprintf("%d unreadable", failed)
		}
		progress.Update(done, total, note)
	}
	var plan *extractor.Plan
	opts.Chosen = func(p extractor.Plan) {
		if plan == nil || *plan != p { // of many images it is settled more than once
			progress.Say("extract: " + planText(p))
		}
		plan = &p
	}
	result, err := pipeline.Extract(ctx, *opts)
	progress.Close()
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ENOSPC) {
		fmt.Fprintln(s.Err, "extract: finished images are saved; the same command continues")
	}
	if err != nil {
		return err
	}
	if err := e.print(s, extractionJSON(opts.Out, result, plan), fmt.Sprintf("%s: %s × %s, %s (%d new, %d known, %d unreadable, %d other files)\n",
		opts.Out, count(result.Meta.N, "image"), count(result.Meta.D, "feature"), count(len(result.Meta.Classes), "class"), result.New, result.Reused, len(result.Failed), result.Skipped)); err != nil {
		return err
	}
	if !e.quiet {
		e.tell(ForPeople(s.Err), result)
	}
	n := len(result.Failed)
	if n == 0 {
		return nil
	}
	where := opts.Out
	if opts.Parts {
		where = features.PartDir(where, opts.Shard)
	}
	return fmt.Errorf("%w: %d, all listed in %s", ErrPartial, n, filepath.Join(where, "errors.jsonl"))
}

// tell says what a person should know of the result.
func (e *extracting) tell(w io.Writer, result *pipeline.ExtractResult) {
	if !e.asJSON {
		if result.Unfinished != nil {
			fmt.Fprintf(w, "extract: part %s is written; %s is no feature set yet: %v\n", e.opts.Shard, e.opts.Out, result.Unfinished)
		}
		tellClasses(w, result)
		for _, note := range extractionNotes(result, e.opts.Options) {
			fmt.Fprintln(w, "extract: "+note)
		}
	}
	if d := result.Meta.D; d > manyPixels && e.opts.Model == extractor.PixelsName {
		fmt.Fprintf(w, "extract: each image has %d features, one for each pixel and channel: training is slow and approximate with so many; --size makes fewer (--size 32: %d for grey images, %d for colour)\n", d, 32*32, 3*32*32)
	}
	tellFailed(w, result.Failed)
}

// tellFailed lists the first of the images that could not be read.
func tellFailed(w io.Writer, failed []features.Failure) {
	for _, fail := range failed[:min(len(failed), 10)] {
		fmt.Fprintf(w, "unreadable: %s: %s\n", Printable(fail.Path), fail.Error)
	}
}

// extractionJSON is what extract --json prints.
func extractionJSON(out string, result *pipeline.ExtractResult, plan *extractor.Plan) any {
	return struct {
		Out string `json:"out"`
		N   int    `json:"n"`
		D   int    `json:"d"`
		*pipeline.ExtractResult
		Failed     int                `json:"failed"`
		Unfinished string             `json:"unfinished,omitempty"`
		Waited     float64            `json:"waited,omitempty"` // seconds
		Machines   []features.Machine `json:"machines,omitempty"`
		Plan       *extractor.Plan    `json:"plan,omitempty"`
	}{out, result.Meta.N, result.Meta.D, result, len(result.Failed), text(result.Unfinished), result.Waited.Seconds(), result.Meta.Machines, plan}
}

// manyPixels is from how many features on extract says that fewer do.
const manyPixels = 10_000

// quantisedText warns of models that compute in 8 bits. Products is the result of
// [extractor.Products].
func quantisedText(products string) string {
	return fmt.Sprintf("the model is quantised: its features depend on the processor (8-bit products are %s here); train and detect on processors of one kind", products)
}

// warnMixed warns of a feature set of a quantised model whose rows were not all
// computed on machines of one kind.
func warnMixed(w io.Writer, command string, meta features.Meta) {
	if text := mixedText(meta); text != "" {
		fmt.Fprintf(w, "%s: %s\n", command, text)
	}
}

// mixedText is the warning of warnMixed; "" if there is none.
func mixedText(meta features.Meta) string {
	if !meta.Mixed() {
		return ""
	}
	text := "warning: the model is quantised, and the features were computed on machines that differ:"
	for _, m := range meta.Machines {
		text += fmt.Sprintf("\n  onnxruntime %s on %s, kernels %s, 8-bit products %s", m.Runtime, m.Provider, m.Kernels, m.Products)
	}
	return text
}

// tellClasses prints how many images each class has.
func tellClasses(w io.Writer, result *pipeline.ExtractResult) {
	const most = 50 // classes that are printed
	for _, class := range result.Classes[:min(len(result.Classes), most)] {
		fmt.Fprintf(w, "  %-30s %d\n", Printable(class.Name), class.Images)
	}
	if n := len(result.Classes); n > most {
		fmt.Fprintf(w, "  and %d more\n", n-most)
	}
}

// extractionNotes are what a person should know of an extraction.
func extractionNotes(result *pipeline.ExtractResult, backbone extractor.Options) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	const tiny = 5 // images of a class
	var few []string
	for _, class := range result.Classes {
		if class.Images < tiny {
			few = append(few, class.Name)
		}
	}
	switch n := inClasses(result.Classes); {
	case n == 0:
		note("the images have no labels: train takes all for one class; an image's label is the folder that it lies in, DIR/class/…/image")
	case n < result.Meta.N:
		note("%s without a label, in no folder of a class: train leaves out what has no label", count(result.Meta.N-n, "image"))
	}
	if len(few) > 0 {
		note("warning: fewer than %d images in %s: %s", tiny, count(len(few), "class"), some(few, 10))
	}
	if len(result.Empty) > 0 {
		note("warning: %s without images, not counted as classes: %s", count(len(result.Empty), "folder"), some(result.Empty, 10))
	}
	if backbone.FastMath && !extractor.HasFastMath() {
		note("warning: --fast-math does nothing on this processor, which is no arm64 with bfloat16")
	}
	if result.Quantised {
		note("warning: %s", quantisedText(extractor.Products()))
	}
	if text := mixedText(result.Meta); text != "" {
		note("%s", text)
	}
	if result.Hidden > 0 {
		note("%s passed over (hidden, or a system's)", count(result.Hidden, "folder"))
	}
	if n := result.Grey16; n > 0 && !backbone.Scale16 {
		note("warning: of %s, %s", count(result.New, "new image"), plural(n, "%d has 16-bit grey", "%d have 16-bit grey")+", which is clipped at 255 as Pillow does: most of it is white (--scale-16-bit scales it)")
	}
	if text := oddImages(result.Oriented, result.Enlarged, backbone.ApplyEXIF); text != "" {
		note("of %s, %s", count(result.New, "new image"), text)
	}
	return notes
}

// inClasses counts the images of classes.
func inClasses(classes []pipeline.ClassCount) (n int) {
	for _, class := range classes {
		n += class.Images
	}
	return n
}

// oddImages says how many images have an EXIF orientation, and what was done about
// it, and how many were too small; "" if none.
func oddImages(oriented, enlarged int, apply bool) string {
	var parts []string
	switch {
	case oriented > 0 && apply:
		parts = append(parts, plural(oriented, "%d has an EXIF orientation and was turned upright", "%d have an EXIF orientation and were turned upright")+" (--exif ignore leaves images as they are)")
	case oriented > 0:
		parts = append(parts, plural(oriented, "%d has an EXIF orientation", "%d have an EXIF orientation")+", which was ignored: the model sees photographs that lie on their side (--exif apply turns them upright)")
	}
	if enlarged > 0 {
		parts = append(parts, plural(enlarged, "%d is smaller than what the model reads and was scaled up or padded", "%d are smaller than what the model reads and were scaled up or padded"))
	}
	return strings.Join(parts, ", and ")
}

// plural is one of two texts, each with n in it.
func plural(n int, one, several string) string {
	if n == 1 {
		return fmt.Sprintf(one, n)
	}
	return fmt.Sprintf(several, n)
}

// planText describes how an extraction uses the machine.
func planText(p extractor.Plan) string {
	text := fmt.Sprintf("%s, %s per batch, %s of the model each", count(p.Workers, "worker"), count(p.Batch, "image"), count(max(1, p.Threads), "thread"))
	if p.Measured {
		text += " (the fastest that was tried)"
	}
	return text
}

// checkModelFlags refuses flags that do not apply to the kind of model.
func checkModelFlags(changed func(string) bool, pixels bool) error {
	names, kind := []string{"size", "channels", "mean", "std"}, "needs --model pixels"
	if pixels {
		names, kind = []string{"output", "pool", "layers", "patches", "fast-math", "device", "provider", "onnxruntime"}, "means nothing with --model pixels"
	}
	for _, name := range names {
		if changed(name) {
			return Usagef("--%s %s", name, kind)
		}
	}
	return nil
}

// setSize reads the value of --size: N, WxH or nothing.
func setSize(o *extractor.Options, text string) error {
	if text == "" {
		return nil
	}
	width, height, ok := strings.Cut(text, "x")
	if !ok {
		height = width
	}
	for _, side := range []struct {
		text string
		to   *int
	}{{width, &o.Width}, {height, &o.Height}} {
		n, err := strconv.Atoi(side.text)
		if err != nil || n < 1 || n > preprocess.MaxSide {
			return Usagef("--size %s: it is N or WxH, each from 1 to %d", text, preprocess.MaxSide)
		}
		*side.to = n
	}
	return nil
}

// RunFlags are the flags of commands that run a model over images.
type RunFlags struct {
	*extractor.Options
	library *string
}

// AddRunFlags adds the flags, which set fields of opts.
func AddRunFlags(f *pflag.FlagSet, opts *extractor.Options) *RunFlags {
	f.IntVar(&opts.Batch, "batch", 0, "images that a worker gives to the model at once (default: 1, or more if a short measurement finds that faster and bit-identical)")
	f.IntVar(&opts.Workers, "workers", 0, "images in work at once (default: one per core or fewer)")
	f.IntVar(&opts.IntraOpThreads, "threads", 0, "threads of the model for each worker (default: 1, or more as above)")
	f.StringVar(&opts.Device, "device", "cpu", "`DEVICE` for the model: "+strings.Join(extractor.Devices(), "|")+"; the second of several is cuda:1")
	annotate(f.Lookup("device"), offered, extractor.Devices()...)
	f.StringVar(&opts.Provider, "provider", "", "plug-in `FILE` of onnxruntime for the device (default: the library's own)")
	f.DurationVar(&opts.OpenTimeout, "open-timeout", 0, "give up on a model that takes longer than `TIME` to open (default: 2m, more for models above 200 MB)")
	f.DurationVar(&opts.RunTimeout, "run-timeout", 0, "skip an image that the model takes longer than `TIME` for (default: 100 times what a blank one takes, at least 2m)")
	addDriftFlag(f, &opts.AllowDriftedFeatures)
	f.Int64Var(&opts.MaxPixels, "max-pixels", 0, "refuse images of more pixels (default: Pillow's limit, 178,956,970)")
	f.DurationVar(&opts.ImageTimeout, "image-timeout", extractor.DefaultImageTimeout, "skip an image that takes longer than `TIME` to decode")
	return &RunFlags{opts, AddLibraryFlag(f)}
}

// addDriftFlag adds the flag that has models opened whose features are not those of before.
func addDriftFlag(f *pflag.FlagSet, allow *bool) {
	f.BoolVar(allow, "allow-drifted-features", false, "use a model though its features differ from before so far that verdicts could change")
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
	case r.Batch < 0 || r.Workers < 0 || r.IntraOpThreads < 0 || r.MaxPixels < 0:
		return Usagef("--batch %d --workers %d --threads %d --max-pixels %d: none may be negative", r.Batch, r.Workers, r.IntraOpThreads, r.MaxPixels)
	case r.OpenTimeout < 0:
		return Usagef("--open-timeout %v: it may not be negative", r.OpenTimeout)
	case r.RunTimeout < 0:
		return Usagef("--run-timeout %v: it may not be negative", r.RunTimeout)
	case r.ImageTimeout <= 0:
		return Usagef("--image-timeout %v: it must be positive", r.ImageTimeout)
	}
	if err := extractor.CheckDevice(r.Device); err != nil {
		return Usagef("--device: %v", err)
	}
	if r.Provider != "" && r.Device == "cpu" {
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
