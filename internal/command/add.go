package command

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/report"
)

// addFlags are the flags of train that add images to what a detector knows.
type addFlags struct {
	*command
	opts    pipeline.AddOptions
	images  []string
	file    string
	running *RunFlags
	load    func(string) (*pipeline.Detector, error)
}

// addAddFlags adds the flags.
func addAddFlags(c *command) *addFlags {
	a := &addFlags{command: c}
	opts := &a.opts.Extract.Options
	c.sets(&a.opts)
	c.StringArrayVar(&a.images, "add", nil, "add images of a class: `NAME=DIR` or a list of paths (repeat)")
	c.means("add", "Add")
	c.StringVar(&a.file, "detector", "", "`DETECTOR` to add to; its features are found, or named by --features")
	c.means("detector", "Detector")
	c.StringVar(&a.opts.Extract.Model, "model", "", "`DIR` of the detector's backbone for --add (default: it is found by its checksum)")
	c.StringVar(&opts.Device, "device", "cpu", "`DEVICE` for the model with --add: "+strings.Join(extractor.Devices(), "|"))
	annotate(c.Lookup("device"), offered, extractor.Devices()...)
	c.IntVar(&opts.Workers, "workers", 0, "with --add, images in work at once (default: one per core or fewer)")
	opts.ImageTimeout = extractor.DefaultImageTimeout
	addDriftFlag(c.FlagSet, &opts.AllowDriftedFeatures)
	a.running = &RunFlags{opts, AddLibraryFlag(c.FlagSet)}
	a.load = addPublicKeyFlag(c.FlagSet)
	c.rare("model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key")
	c.programOnly("add", "detector", "model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key")
	return a
}

// withAdd are the other flags that go with --add: the rest is as the detector was
// trained.
var withAdd = []string{"add", "detector", "model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key", "features", "outliers", "out", "report", "images", "bundle", "force", "json", "quiet",
	"memory", "checkpoint-every", "resume", "restart", "verify", "help"}

// on reports whether images are to be added, of classes or of known outliers.
func (a *addFlags) on() bool { return len(a.images) > 0 || a.file != "" && a.Changed("outliers") }

// check checks the flags, after Parse.
func (a *addFlags) check() error {
	var wrong []string
	a.Visit(func(f *pflag.Flag) {
		only := slices.Contains([]string{"detector", "model", "device", "workers", "onnxruntime", "public-key"}, f.Name)
		if a.on() && !slices.Contains(withAdd, f.Name) || !a.on() && only {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	switch {
	case len(wrong) > 0 && a.on():
		return Usagef("%s: with --add the training is that of the detector", strings.Join(wrong, ", "))
	case len(wrong) > 0:
		return Usagef("%s goes with --add NAME=DIR, and --detector with --outliers as well", strings.Join(wrong, ", "))
	case !a.on():
		return nil
	case a.file == "":
		return Usagef("--add needs the --detector to add to")
	case a.opts.Extract.Workers < 0:
		return Usagef("--workers %d: it may not be negative", a.opts.Extract.Workers)
	}
	return extractor.CheckDevice(a.opts.Extract.Device)
}

// read loads the detector and returns the options that it was trained with. Feature
// sets of new images lie beside the file out; those of outliers are there.
func (a *addFlags) read(out string, sets, outliers []string) (pipeline.TrainOptions, error) {
	var err error
	if a.opts.Detector, err = a.load(a.file); err != nil {
		return pipeline.TrainOptions{}, err
	}
	used := map[string]bool{}
	for _, text := range a.images {
		class, dir, ok := strings.Cut(text, "=")
		if !ok || class == "" || dir == "" {
			return pipeline.TrainOptions{}, Usagef("--add %s: it is NAME=DIR or NAME=LIST", text)
		}
		// Two folders of a class have a feature set each.
		base := strings.TrimSuffix(out, ".safetensors") + "." + shortened(url.PathEscape(class))
		name := base + ".features"
		for i := 2; used[name]; i++ {
			name = fmt.Sprintf("%s.%d.features", base, i)
		}
		used[name] = true
		a.opts.Images = append(a.opts.Images, pipeline.AddedImages{Class: class, Folder: dir, Features: name})
	}
	a.opts.Features, a.opts.Train.Outliers = sets, outliers
	opts, _, err := training.Recorded(a.opts.Detector)
	opts.Outliers = slices.Concat(opts.Outliers, outliers)
	return opts, err
}

// shortened cuts what is too long for the name of a file.
func shortened(name string) string {
	const most = 120
	return name[:min(len(name), most)]
}

// classes lists the classes of the detector to be.
func (a *addFlags) classes(ctx context.Context, sets []string) ([]string, error) {
	if !a.on() {
		return classesOf(ctx, sets)
	}
	classes := slices.Clone(a.opts.Detector.Classes)
	for _, images := range a.opts.Images {
		classes = append(classes, images.Class)
	}
	return classes, nil
}

// run adds the images.
func (a *addFlags) run(ctx context.Context, s Streams, opts pipeline.TrainOptions) (*pipeline.Detector, *pipeline.TrainResult, *pipeline.Addition, error) {
	if err := a.running.LoadRuntime(); err != nil {
		return nil, nil, nil, err
	}
	var progress *Progress
	add := &a.opts
	opts.Outliers = add.Train.Outliers
	add.Train, add.Extract.Advise, add.Extract.Drifted = opts, a.advise, a.warnDrift(s)
	add.Extracting = func(images pipeline.AddedImages) {
		progress.Close()
		progress = a.progress(s, "images")
		progress.Say(fmt.Sprintf("train: features of %s, images of %s, go to %s", images.Folder, Printable(images.Class), images.Features))
	}
	add.Extract.Progress = func(done, failed, total int) { progress.Count(done, failed, total) }
	add.Training = func() { progress.Close() }
	detector, result, change, err := pipeline.Add(ctx, *add)
	progress.Close()
	if change != nil {
		for _, note := range change.Notes {
			fmt.Fprintf(s.Err, "train: note: %s\n", note)
		}
	}
	return detector, result, change, err
}

// notComputed tells whether the AUROC of some class is that of the detector before.
func notComputed(change *pipeline.Addition) bool {
	return slices.ContainsFunc(change.Classes, func(c detector.ChangedClass) bool { return c.Kept })
}

// change is the section of the page; nil without images that were added.
func (a *addFlags) change(change *pipeline.Addition) *report.Change {
	if change == nil {
		return nil
	}
	page := &report.Change{Old: filepath.Base(a.file), Added: change.Added, All: change.All, Classes: change.Classes,
		Note: fmt.Sprintf("The classes that were known are compared on the same %s images, which neither detector was trained on.", change.HeldOut)}
	if notComputed(change) {
		page.Note += " The AUROC now of a class without one was not computed again."
	}
	return page
}

// describe says what adding images did.
func (a *addFlags) describe(change *pipeline.Addition) string {
	if change == nil {
		return ""
	}
	var b strings.Builder
	share := func(n, of int) string {
		if of == 0 {
			return "–"
		}
		return fmt.Sprintf("%d of %d", n, of)
	}
	b.WriteString("\n")
	for _, added := range change.Added {
		what := "known before"
		if added.New {
			what = "new"
		}
		fmt.Fprintf(&b, "%s (%s): %s added; %s flagged %s of them; of those that the new detector was not trained on it gives %s this class and flags %s\n",
			Printable(added.Class), what, count(added.Images, "image"), filepath.Base(a.file), share(added.FlaggedBefore, added.Images), share(added.Right, added.HeldOut), share(added.FlaggedAfter, added.HeldOut))
	}
	fmt.Fprintf(&b, "\nclasses that were known, on %s that neither was trained on, before → after:\n", count(change.All.Images, change.HeldOut+" image"))
	assessed := change.AUROCBefore != nil || change.AUROCAfter != nil
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "class\timages\tright class\tfalsely flagged\t")
	if assessed {
		fmt.Fprint(t, "AUROC if new\t")
	}
	fmt.Fprintln(t)
	rows := slices.Clone(change.Classes)
	slices.SortStableFunc(rows, func(x, y detector.ChangedClass) int { // what became worst first
		return (x.RightAfter - x.RightBefore) - (y.RightAfter - y.RightBefore)
	})
	auroc := func(v float64) string {
		if math.IsNaN(v) {
			return "not held out"
		}
		return fmt.Sprintf("%.3f", v)
	}
	for _, c := range append([]detector.ChangedClass{change.All}, rows[:min(len(rows), mostRows)]...) {
		fmt.Fprintf(t, "%s\t%d\t%d → %d\t%d → %d\t", Printable(c.Class), c.Images, c.RightBefore, c.RightAfter, c.FlaggedBefore, c.FlaggedAfter)
		if assessed {
			text, after := auroc(c.AUROCBefore), auroc(c.AUROCAfter)
			if !c.Kept && text != after {
				text += " → " + after
			}
			fmt.Fprintf(t, "%s\t", text)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	andMore(&b, len(rows)-mostRows, "class")
	switch {
	case !assessed:
		b.WriteString("No class was held out, so how well a new class would be noticed is not known.\n")
	case notComputed(change):
		b.WriteString("The AUROC of a class without an arrow was not computed again.\n")
	}
	return b.String()
}

// unreadable lists images that could not be read, and returns an error if there are
// any.
func (a *addFlags) unreadable(w io.Writer, change *pipeline.Addition) error {
	if change == nil || len(change.Failed) == 0 {
		return nil
	}
	tellFailed(w, change.Failed)
	return fmt.Errorf("%w: %d, all listed in errors.jsonl of their feature sets; the detector was trained without them", ErrPartial, len(change.Failed))
}
