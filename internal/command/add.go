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
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/report"
)

// addFlags are the flags of train that add images to what a detector knows.
type addFlags struct {
	flags  *pflag.FlagSet
	add    *[]string
	file   *string
	model  *string
	device *string
	work   *int
	onnx   *string
	drift  extractor.ModelOptions // how the backbone is opened
	warn   func(Streams) func(string)
	key    func(string) (*pipeline.Detector, error)

	old    *pipeline.Detector
	images []pipeline.AddedImages
	sets   []string // that the old detector was trained on, as the user named them
	advise func(error) error
}

// addAddFlags adds the flags.
func addAddFlags(c *command) *addFlags {
	f := c.FlagSet
	a := &addFlags{flags: f, advise: c.advise, warn: c.warnDrift}
	a.add = f.StringArray("add", nil, "add images of a class, known or new, as `NAME=DIR` (repeat)")
	a.file = f.String("detector", "", "`DETECTOR` to add to; its features are found, or named by --features")
	a.model = f.String("model", "", "`DIR` of the detector's backbone for --add (default: it is found by its checksum)")
	a.device = f.String("device", "cpu", "`DEVICE` for the model with --add: "+strings.Join(extractor.Devices(), "|"))
	annotate(f.Lookup("device"), offered, extractor.Devices()...)
	a.work = f.Int("workers", 0, "with --add, images in work at once (default: one per core or fewer)")
	addDriftFlag(f, &a.drift)
	a.onnx = AddLibraryFlag(f)
	a.key = addPublicKeyFlag(f)
	c.sets(&a.drift)
	c.means("add", "Add")
	c.means("detector", "Detector")
	c.means("model", "Model")
	c.means("device", "Device")
	c.means("workers", "Workers")
	c.rare("model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key")
	c.programOnly("add", "detector", "model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key")
	return a
}

// withAdd are the other flags that go with --add: the rest is as the detector was
// trained.
var withAdd = []string{"add", "detector", "model", "device", "workers", "allow-drifted-features", "onnxruntime", "public-key", "features", "out", "report", "images", "bundle", "force", "json", "quiet",
	"memory", "checkpoint-every", "resume", "restart", "verify", "help"}

// on reports whether images are to be added.
func (a *addFlags) on() bool { return len(*a.add) > 0 }

// check checks the flags, after Parse.
func (a *addFlags) check() error {
	var wrong []string
	a.flags.Visit(func(f *pflag.Flag) {
		only := slices.Contains([]string{"detector", "model", "device", "workers", "onnxruntime", "public-key"}, f.Name)
		if a.on() && !slices.Contains(withAdd, f.Name) || !a.on() && only {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	switch {
	case len(wrong) > 0 && a.on():
		return Usagef("%s: with --add the training is that of the detector", strings.Join(wrong, ", "))
	case len(wrong) > 0:
		return Usagef("%s goes with --add NAME=DIR", strings.Join(wrong, ", "))
	case !a.on():
		return nil
	case *a.file == "":
		return Usagef("--add needs the --detector to add to")
	case *a.work < 0:
		return Usagef("--workers %d: it may not be negative", *a.work)
	}
	return extractor.CheckDevice(*a.device)
}

// load reads the detector and returns the options that it was trained with. Feature
// sets of new images lie beside the file out.
func (a *addFlags) load(out string, sets []string) (pipeline.TrainOptions, error) {
	var err error
	if a.old, err = a.key(*a.file); err != nil {
		return pipeline.TrainOptions{}, err
	}
	used := map[string]bool{}
	for _, text := range *a.add {
		class, dir, ok := strings.Cut(text, "=")
		if !ok || class == "" || dir == "" {
			return pipeline.TrainOptions{}, Usagef("--add %s: it is NAME=DIR", text)
		}
		// Two folders of a class have a feature set each.
		base := strings.TrimSuffix(out, ".safetensors") + "." + shortened(url.PathEscape(class))
		name := base + ".features"
		for i := 2; used[name]; i++ {
			name = fmt.Sprintf("%s.%d.features", base, i)
		}
		used[name] = true
		a.images = append(a.images, pipeline.AddedImages{Class: class, Folder: dir, Features: name})
	}
	a.sets = sets
	opts, _, err := pipeline.RecordedOptions(a.old)
	return opts, err
}

// shortened cuts what is too long for the name of a file.
func shortened(name string) string {
	const most = 120
	return name[:min(len(name), most)]
}

// classes lists the classes of the detector to be.
func (a *addFlags) classes(sets []string) ([]string, error) {
	if !a.on() {
		return classesOf(sets)
	}
	classes := slices.Clone(a.old.Classes)
	for _, images := range a.images {
		classes = append(classes, images.Class)
	}
	return classes, nil
}

// run adds the images.
func (a *addFlags) run(ctx context.Context, s Streams, opts pipeline.TrainOptions, training *Progress, quiet bool) (*pipeline.Detector, *pipeline.TrainResult, *pipeline.Addition, error) {
	if *a.onnx != "" {
		if err := extractor.InitRuntime(*a.onnx); err != nil {
			return nil, nil, nil, err
		}
	}
	var progress *Progress
	add := pipeline.AddOptions{Detector: a.old, Images: a.images, Features: a.sets, Train: opts}
	a.drift.Device, a.drift.Drifted = *a.device, a.warn(s)
	add.Extract.Model, add.Extract.Backbone, add.Extract.Advise = *a.model, a.drift, a.advise
	add.Extract.Run.Workers, add.Extract.Run.ImageTimeout = *a.work, extractor.DefaultImageTimeout
	add.Extracting = func(images pipeline.AddedImages) {
		progress.Close()
		progress = NewProgress(s.Err, "images", quiet)
		progress.Say(fmt.Sprintf("train: features of %s, images of %s, go to %s", images.Folder, Printable(images.Class), images.Features))
	}
	add.Extract.Run.Progress = func(done, failed, total int) { progress.Update(done, total, "") }
	add.Training = func() { progress.Close() }
	detector, result, change, err := pipeline.Add(ctx, add)
	progress.Close()
	if change != nil {
		for _, note := range change.Notes {
			fmt.Fprintf(s.Err, "train: note: %s\n", note)
		}
	}
	return detector, result, change, err
}

// additionJSON is the result of train --add --json.
type additionJSON struct {
	Detector    string                  `json:"detector"`
	Added       []pipeline.AddedClass   `json:"added"`
	Classes     []pipeline.ChangedClass `json:"classes"` // that were known before
	All         pipeline.ChangedClass   `json:"all"`
	HeldOut     string                  `json:"held_out"` // which images these are
	AUROCBefore *float64                `json:"auroc_before"`
	AUROCAfter  *float64                `json:"auroc_after"`
	Failed      []features.Failure      `json:"failed"`
}

func (a *addFlags) json(change *pipeline.Addition, now *pipeline.Detector) *additionJSON {
	if change == nil {
		return nil
	}
	auroc := func(d *pipeline.Detector) *float64 {
		if d.Assessment == nil {
			return nil
		}
		return &d.Assessment.AUROC
	}
	return &additionJSON{*a.file, change.Added, change.Classes, change.All, change.HeldOut, auroc(a.old), auroc(now), append([]features.Failure{}, change.Failed...)}
}

// change is the section of the page; nil without images that were added.
func (a *addFlags) change(change *pipeline.Addition, now *pipeline.Detector) *report.Change {
	if change == nil {
		return nil
	}
	kept := false
	auroc := func(d *pipeline.Detector, class string) float64 {
		if d.Assessment != nil {
			if assessed, ok := d.Assessment.Classes[class]; ok && !(d == now && assessed.Kept) {
				return assessed.AUROC
			} else if ok {
				kept = true
			}
		}
		return math.NaN()
	}
	mean := func(d *pipeline.Detector) float64 {
		if d.Assessment == nil {
			return math.NaN()
		}
		return d.Assessment.AUROC
	}
	page := &report.Change{Old: filepath.Base(*a.file), Added: change.Added, All: change.All, Classes: slices.Clone(change.Classes),
		Note: fmt.Sprintf("The classes that were known are compared on the same %s images, which neither detector was trained on.", change.HeldOut)}
	page.All.AUROCBefore, page.All.AUROCAfter = mean(a.old), mean(now)
	for i := range page.Classes {
		c := &page.Classes[i]
		c.AUROCBefore, c.AUROCAfter = auroc(a.old, c.Class), auroc(now, c.Class)
	}
	if kept {
		page.Note += " The AUROC now of a class without one was not computed again."
	}
	return page
}

// describe says what adding images did.
func (a *addFlags) describe(change *pipeline.Addition, now *pipeline.Detector) string {
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
			Printable(added.Class), what, count(added.Images, "image"), filepath.Base(*a.file), share(added.FlaggedBefore, added.Images), share(added.Right, added.HeldOut), share(added.FlaggedAfter, added.HeldOut))
	}
	fmt.Fprintf(&b, "\nclasses that were known, on %s that neither was trained on, before → after:\n", count(change.All.Images, change.HeldOut+" image"))
	assessed := a.old.Assessment != nil || now.Assessment != nil
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "class\timages\tright class\tfalsely flagged\t")
	if assessed {
		fmt.Fprint(t, "AUROC if new\t")
	}
	fmt.Fprintln(t)
	rows := slices.Clone(change.Classes)
	slices.SortStableFunc(rows, func(x, y pipeline.ChangedClass) int { // what became worst first
		return (x.RightAfter - x.RightBefore) - (y.RightAfter - y.RightBefore)
	})
	kept := false
	auroc := func(d *pipeline.Detector, class string) string {
		switch {
		case d.Assessment == nil:
			return "not held out"
		case class == "":
			return fmt.Sprintf("%.3f", d.Assessment.AUROC)
		}
		if c, ok := d.Assessment.Classes[class]; ok {
			return fmt.Sprintf("%.3f", c.AUROC)
		}
		return "not held out"
	}
	line := func(c pipeline.ChangedClass, class string) {
		fmt.Fprintf(t, "%s\t%d\t%d → %d\t%d → %d\t", Printable(c.Class), c.Images, c.RightBefore, c.RightAfter, c.FlaggedBefore, c.FlaggedAfter)
		if assessed {
			before, after := auroc(a.old, class), auroc(now, class)
			same := now.Assessment != nil && now.Assessment.Classes[class].Kept
			kept = kept || same
			if !same && before != after {
				before += " → " + after
			}
			fmt.Fprintf(t, "%s\t", before)
		}
		fmt.Fprintln(t)
	}
	line(change.All, "")
	for _, c := range rows[:min(len(rows), mostRows)] {
		line(c, c.Class)
	}
	t.Flush()
	if n := len(rows) - mostRows; n > 0 {
		fmt.Fprintf(&b, "and %s more\n", count(n, "class"))
	}
	switch {
	case !assessed:
		b.WriteString("No class was held out, so how well a new class would be noticed is not known.\n")
	case kept:
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
	for _, f := range change.Failed[:min(len(change.Failed), 10)] {
		fmt.Fprintf(w, "unreadable: %s: %s\n", Printable(f.Path), f.Error)
	}
	return fmt.Errorf("%w: %d, all listed in errors.jsonl of their feature sets; the detector was trained without them", ErrPartial, len(change.Failed))
}
