// Reproduce runs the paper's experiments on one in-distribution data set: it
// extracts the features of OpenOOD's lists with every backbone, compares the
// methods on them, and prints the paper's numbers next to ours. Run it by
// scripts/reproduce:
//
//	scripts/reproduce cifar10|cifar100|imagenet200|imagenet1k|heads|superclasses|curves|oneclass|assessment|together|confidence|outliers|layers|defects [flags]
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/posthoc"
	"github.com/mlrbfn/mlrbfn/report"
)

func main() { command.Program("reproduce", run) }

// contest lists the methods to compare on the logits of one network.
type contest struct {
	name   string // of its folder
	suffix string // of its methods' names in tables
	layers int    // of a softmax network that is trained as the paper's; 0: the linear head
	paper  bool   // the MLRBFN is the paper's
	takes  func(method string) bool

	without []string // parts of the default score that are left out; such a contest runs if it is named
}

// readLogits are the scores that depend on the kind of softmax network.
var readLogits = []string{"msp", "mls", "energy", "gen", "odin", "she-ip", "she-e"}

var (
	linearHead  = contest{"linear", "", 0, false, func(string) bool { return true }, nil}
	plainHead   = contest{"plain", " (plain)", 1, false, func(m string) bool { return slices.Contains(readLogits, m) }, nil}
	fourLayers  = contest{"mlp", " (MLP)", 4, false, func(m string) bool { return slices.Contains(readLogits, m) }, nil}
	asPublished = contest{"paper", " (as published)", 0, true, joined, nil}

	// What the head adds to the default score.
	noDecision = contest{"no-decision", " (without decision)", 0, false, joined, []string{detector.DecisionPart}}
	noParts    = contest{"no-parts", " (without decision, density)", 0, false, joined, []string{detector.DecisionPart, detector.DensityPart}}
	noHead     = contest{"no-head", " (without decision, density, guard)", 0, false, joined, []string{detector.DecisionPart, detector.DensityPart, detector.GuardPart}}

	contests = []contest{linearHead, plainHead, fourLayers, asPublished, noDecision, noParts, noHead}
)

func joined(method string) bool { return method == detector.JoinedScore }

const dataSets = "cifar10, cifar100, imagenet200, imagenet1k, heads, superclasses, curves, oneclass, assessment, together, confidence, outliers, layers or defects"

// experiment is a run of the program.
type experiment struct {
	grid
	key, data, out string // out is the folder of all data sets
	features       string // folder with BACKBONE/SET, in place of extraction; "" for none
	methods        []string
	few            few   // of curves; the zero value takes all training images
	alone          alone // of oneclass; the zero value knows all classes
	contests       []contest
	train          map[bool]pipeline.TrainOptions // whether the head is as published
	trained        string                         // how the heads are trained, for the report
	again          bool
	extraction     pipeline.ExtractOptions
	evaluation     pipeline.EvaluateOptions
	stderr         io.Writer
	quiet          bool
	notes          []string
	partial        bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	e := &experiment{stderr: stderr}
	f := command.Flags("scripts/reproduce", "cifar10|cifar100|imagenet200|imagenet1k|heads|superclasses|curves|oneclass|assessment|together|confidence|outliers|layers|defects [flags]",
		`Extracts features of OpenOOD's images with every backbone, compares the paper's
methods on them, and writes tables of the paper's numbers beside ours. DATA is laid
out as OpenOOD has it: images_classic/, images_largescale/, benchmark_imglist/.
Logits are those of a linear head, and for MSP, MLS, energy, GEN, ODIN and SHE once
more of a linear layer (plain) and an MLP of four that are trained as the paper's; MLRBFNs are trained with our settings, and once more
with the paper's. heads compares these with all post-hoc scores and the ensemble on
the stand-ins of CIFAR-10, CIFAR-100 and ImageNet-200, and prints one table.
superclasses does so, without the paper's heads, on twenty tasks of few and similar
classes: four of a superclass of CIFAR-100 are known and the fifth is near-OOD.
curves prints how the default score, KNN, MDS++ and the linear head do with 5 to 200
training images of each class of CIFAR-10's stand-in; a seed is a draw of the images.
oneclass prints how detectors do that know one class of Imagenette or CIFAR-10.
assessment leaves each class out of everything, and compares what training expects of a
new class with what is true: --features has BACKBONE/cifar10-train, cifar10-test,
imagenette-train, imagenette-val and cifar100-train, --model names the BACKBONEs. together judges folders
with known and new images as discover does, with these sets, cifar100 and tin: a seed is a
draw of what is trained on, calibrates and lies in the folder.
confidence compares maps that make a probability of the confidence, on the sets of assessment;
--only cifar10,cifar100,imagenette,super chooses some.
outliers trains with known outliers and without, on the sets of assessment, tin, texture and
scenes.
layers trains on sets that have layers of the model (extract --layers), with and without them.
defects draws defects into textures of scikit-image, and says what detectors of good parts catch.
Results of an earlier run with the same options are reused.`, stdout)
	f.StringVar(&e.data, "data", "data", "OpenOOD's data root `DATA`; with --subset, folder with images/ and lists/subset/ (default: data of $MLRBFN_SHARED or ../shared)")
	models := f.StringArray("model", nil, "backbone `[NAME=]DIR` (repeat for several); the paper's numbers of the backbones CLIP, DINOv2 and ResNet stand beside those of one with such a NAME")
	only := f.StringSlice("only", nil, "of superclasses, the `NAMES` to run; the table has all that were run")
	f.StringVar(&e.features, "features", "", "folder `FEATURES` with a feature set BACKBONE/SET for every backbone and set, in place of extraction; an earlier run has left it in OUT/cifar10-stand-in/features, say")
	textureDir := f.String("textures", "", "of defects, the `FOLDER` of brick.png, grass.png and gravel.png, skimage/data of scikit-image 0.26")
	chosen := f.StringSlice("contests", nil, "`HEADS` whose logits scores read: linear, plain, mlp; and paper, the MLRBFN as published (default: all these); and no-decision, no-parts, no-head, the default score without those parts of the head")
	subset := f.Bool("subset", false, "run on small stand-ins for the data sets, with small backbones unless --model is given")
	methods := f.String("methods", "mlrbfn,msp,odin,gen,she-ip,she-e,knn,rmds,ensemble", "`METHODS` to compare, as evaluate has them, or all")
	seeds := f.String("seeds", "0,1,2", "seeds, with commas between them")
	folders := f.Int("folders", 1, "of together, `N` folders of each kind and seed, each with its own calibration images")
	epochs := f.Int("epochs", 0, "passes over the training images of MLRBFNs; 0: their default, and the paper's")
	f.StringVar(&e.out, "out", "reproduced", "folder `REPORT` for features and reports")
	f.BoolVar(&e.again, "again", false, "evaluate again what an earlier run has evaluated")
	f.BoolVar(&e.extraction.Force, "force", false, "replace features of another model, preprocessing or image folder, damaged or unfinished ones")
	e.evaluation.Memory = posthoc.DefaultMemory
	f.Var((*command.Bytes)(&e.evaluation.Memory), "memory", "memory that scoring takes, about")
	f.IntVar(&e.evaluation.Bootstrap, "bootstrap", metrics.DefaultResamples, "resamples of the test images for 95% confidence intervals in reports; 0 for none")
	runFlags := command.AddRunFlags(f, &e.extraction.Options)
	f.BoolVar(&e.quiet, "quiet", false, "show no progress")
	if err := command.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return command.Usagef("one data set is needed: " + dataSets)
	}
	keys := []string{f.Arg(0)}
	e.contests = contests[:4]
	if keys[0] == heads {
		keys, *subset = headsOn, true
		e.contests = []contest{linearHead, asPublished}
		if !f.Changed("methods") {
			*methods = "all"
		}
	}
	if keys[0] == curves {
		*subset, *methods, e.contests = true, strings.Join(curveScores, ","), []contest{linearHead}
	} else if keys[0] == oneClass {
		*subset, *methods, e.contests = true, strings.Join(oneClassScores, ","), []contest{linearHead}
	} else if keys[0] == fine {
		*subset, e.contests = true, []contest{linearHead}
		if !f.Changed("methods") {
			*methods = "all"
		}
	} else if keys[0] == assessment || keys[0] == together || keys[0] == confidences || keys[0] == knownOutliers || keys[0] == layersKey || keys[0] == defectsKey {
		*subset = true
	} else if paper, _ := grids(); paper[keys[0]].title == "" {
		return command.Usagef("data set %s: it is "+dataSets, keys[0])
	}
	if *chosen != nil {
		e.contests = slices.DeleteFunc(slices.Clone(contests), func(c contest) bool { return !slices.Contains(*chosen, c.name) })
		if len(e.contests) != len(*chosen) {
			return command.Usagef("--contests %s: they are linear, plain, mlp, paper, no-decision, no-parts and no-head", strings.Join(*chosen, ","))
		}
	}
	if *subset && !f.Changed("data") {
		e.data = filepath.Join(sharedFolder(), "data")
	}
	if !exists(e.data, "benchmark_imglist") && exists(e.data, "lists", "subset") {
		*subset = true
	}
	if *methods != "all" {
		e.methods = detector.SplitScores(*methods)
	}
	if err := runFlags.Check(); err != nil {
		return err
	}
	if e.features == "" {
		if err := runFlags.LoadRuntime(); err != nil {
			return err
		}
	}
	e.evaluation.Commands = []string{command.CommandLine("scripts/reproduce", args)}
	if keys[0] == curves {
		return e.runCurves(ctx, stdout, *models, *seeds, *epochs)
	} else if keys[0] == oneClass {
		return e.runOneClass(ctx, stdout, *models, *seeds, *epochs)
	}
	if keys[0] == together {
		return e.runTogether(ctx, stdout, *models, *seeds, *epochs, *folders, *only)
	}
	if keys[0] == confidences {
		return e.runConfidences(ctx, stdout, *models, *seeds, *epochs, *only)
	}
	if keys[0] == knownOutliers {
		return e.runOutliers(ctx, stdout, *models, *seeds, *epochs, *only)
	}
	if keys[0] == layersKey {
		return e.runLayers(ctx, stdout, *models, *seeds, *epochs, *only)
	}
	if keys[0] == defectsKey {
		return e.runDefects(ctx, stdout, *models, *seeds, *epochs, *textureDir)
	}
	if keys[0] == assessment {
		return e.runAssessment(ctx, stdout, *models, *seeds, *epochs, *only)
	}
	paper, standIns := grids()
	var tasks []task
	all := standIns
	if keys[0] == fine {
		var err error
		if all, err = superclasses(e.data); err != nil {
			return err
		}
		keys = slices.Sorted(maps.Keys(all))
		for _, name := range *only {
			if all[name].title == "" {
				return command.Usagef("--only %s: the superclasses are %s", name, strings.Join(keys, ", "))
			}
		}
	}
	for _, key := range keys {
		t := task{key + "-stand-in", all[key].title}
		if e.grid = all[key]; f.Arg(0) == fine {
			t.key = fine + "/" + key
		} else if !*subset {
			t, e.grid = task{key, paper[key].title}, paper[key]
		}
		if tasks = append(tasks, t); *only != nil && !slices.Contains(*only, key) {
			continue
		}
		e.key = t.key
		if err := e.run(ctx, *models, *seeds, *epochs); err != nil {
			return err
		}
	}
	if f.Arg(0) != heads && f.Arg(0) != fine {
		if err := e.compare(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	if err := e.compareHeads(stdout, tasks); err != nil {
		return err
	}
	if e.partial {
		return fmt.Errorf("%w; see the notes", command.ErrPartial)
	}
	return nil
}

// run measures all backbones on the grid.
func (e *experiment) run(ctx context.Context, models []string, seeds string, epochs int) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	backbones, err := e.backbones(models)
	if err != nil {
		return err
	}
	e.evaluation.Facts = []evaluation.Fact{{Name: "version", Value: command.Version()}, {Name: "data", Value: e.describe()}}
	if e.features == "" {
		if err := e.findSets(); err != nil {
			return err
		}
	} else {
		e.val = nil
	}
	for _, b := range backbones {
		if err := e.measure(ctx, b); err != nil {
			return fmt.Errorf("%s, %s: %w", e.title, b.name, err)
		}
	}
	return nil
}

func sharedFolder() string {
	if dir := os.Getenv("MLRBFN_SHARED"); dir != "" {
		return dir
	}
	return filepath.Join(checkout(), "..", "shared")
}

// checkout returns the checkout's folder, the parent of the program's folder bin/.
func checkout() string {
	program, err := os.Executable()
	if err != nil {
		return "."
	}
	return filepath.Dir(filepath.Dir(program))
}

func exists(elem ...string) bool {
	_, err := os.Stat(filepath.Join(elem...))
	return err == nil
}

// readTraining sets the options of our head and of the paper's.
func (e *experiment) readTraining(seeds string, epochs int) error {
	if e.evaluation.Bootstrap == 0 {
		e.evaluation.Bootstrap = -1
	}
	e.train = map[bool]pipeline.TrainOptions{}
	for _, paper := range []bool{false, true} {
		args := []string{"--seeds", seeds}
		switch {
		case paper && e.preset != "":
			args = append(args, "--preset", e.preset)
		case paper:
			args = append(args, "--paper")
		}
		if epochs != 0 {
			args = append(args, fmt.Sprint("--epochs=", epochs))
		}
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		heads := command.AddHeadFlags(f)
		if err := f.Parse(args); err != nil {
			return command.Usagef("%w", err)
		}
		options, err := heads.Options()
		if err != nil {
			return err
		}
		e.train[paper] = options
	}
	e.trained = fmt.Sprintf("over the seeds %s; MLRBFNs trained for %d epochs, those as published for %d.",
		seeds, e.train[false].Train.Epochs, e.train[true].Train.Epochs)
	if epochs != 0 {
		e.trained += " The number of epochs is not the paper's: --epochs gave it."
	}
	return nil
}

type backbone struct{ name, dir string }

// backbones reads the values of --model, or returns the stand-ins.
func (e *experiment) backbones(models []string) (all []backbone, err error) {
	for _, m := range models {
		name, dir, named := strings.Cut(m, "=")
		if !named {
			name, dir = filepath.Base(m), m
		}
		if !filepath.IsLocal(name) || filepath.Base(name) != name || slices.ContainsFunc(all, func(b backbone) bool { return b.name == name }) {
			return nil, command.Usagef("--model %s: backbones have distinct names, which are file names; see NAME=DIR", m)
		}
		all = append(all, backbone{name, dir})
	}
	if len(models) > 0 {
		return all, nil
	}
	if e.standIn == "" {
		return nil, command.Usagef("--model is needed: the paper's are CLIP=DIR (ViT-B/16), DINOv2=DIR (ViT-B/14) and ResNet=DIR; models/README.md says how to export one")
	}
	for _, name := range e.models {
		found := e.features != "" && exists(e.features, name)
		if found {
			all = append(all, backbone{name: name})
		}
		for _, top := range []string{checkout(), sharedFolder()} {
			if dir := filepath.Join(top, "models", name); !found && exists(dir) {
				all, found = append(all, backbone{name, dir}), true
			}
		}
		if !found {
			e.note("the backbone %s is left out: it is neither in models/ nor in models/ of MLRBFN_SHARED", name)
		}
	}
	if len(all) == 0 {
		return nil, command.Usagef("no backbone was found; name one with --model")
	}
	return all, nil
}

func (e *experiment) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(e.notes, text) {
		e.notes = append(e.notes, text)
		fmt.Fprintf(e.stderr, "reproduce: note: %s\n", text)
	}
}

// describe describes the data.
func (e *experiment) describe() string {
	if e.standIn == "" {
		return e.title + " and its OOD images as in OpenOOD v1.5"
	}
	return e.title + ": these are not the paper's data. " + strings.ToUpper(e.standIn[:1]) + e.standIn[1:] + "."
}

// findSets leaves out missing sets, and fails if a necessary set is missing.
func (e *experiment) findSets() error {
	const remedy = "OpenOOD's scripts/download/download.py brings its lists and images (ImageNet's own come from image-net.org); --data says where they are"
	for _, s := range []set{e.grid.train, e.test} {
		if path, err := s.absent(e.data); err != nil {
			return err
		} else if path != "" {
			return fmt.Errorf("%s: the %s images cannot be had: there is no %s; %s", e.title, s.name, path, remedy)
		}
	}
	left := func(sets []set) (have []set, err error) {
		for _, s := range sets {
			path, err := s.absent(e.data)
			if err != nil {
				return nil, err
			}
			if path == "" {
				have = append(have, s)
			} else {
				e.note("%s is left out: there is no %s", s.name, path)
			}
		}
		return have, nil
	}
	wanted := len(e.near) + len(e.far)
	var err error
	if e.val != nil {
		val, err := left([]set{*e.val})
		if err != nil {
			return err
		}
		if len(val) == 0 {
			e.val = nil
			e.note("a tenth of the training images replaces val")
		}
	}
	if e.near, err = left(e.near); err != nil {
		return err
	}
	if e.far, err = left(e.far); err != nil {
		return err
	}
	if len(e.near)+len(e.far) == 0 {
		return fmt.Errorf("%s: all sets of OOD images are missing; %s", e.title, remedy)
	}
	if len(e.near)+len(e.far) < wanted {
		e.note("near and far are means over the sets that were found, the paper's over all; %s", remedy)
	}
	return nil
}

// measure extracts all sets with a backbone and evaluates the contests on them.
func (e *experiment) measure(ctx context.Context, b backbone) error {
	dir := filepath.Join(e.out, e.key)
	prints := map[string]string{} // checksums of the feature sets
	if strings.HasPrefix(e.key, fine+"/") {
		dir = filepath.Join(e.out, fine) // the far sets of all superclasses are the same
	} else if e.few.images > 0 {
		dir = filepath.Join(e.out, curves)
	} else if e.alone.class != "" {
		dir = filepath.Join(e.out, oneClass, e.alone.base)
	}
	extract := func(s set) (string, error) {
		if e.features != "" {
			own := filepath.Join(e.features, b.name, s.name)
			sum, err := sumOf(filepath.Join(own, "features.npy"))
			prints[s.name] = sum
			return own, err
		}
		opts, err := s.source(e.data, dir)
		if err != nil {
			return "", err
		}
		if e.grid.train.list != "" && (s.name == e.test.name || e.val != nil && s.name == e.val.name) {
			opts.Names = filepath.Join(e.data, e.grid.train.list)
		}
		opts.Model, opts.Out = b.dir, filepath.Join(dir, "features", b.name, s.name)
		opts.Force, opts.Options = e.extraction.Force, e.extraction.Options
		progress := command.NewProgress(e.stderr, "images", e.quiet)
		opts.Progress = func(done, _, total int) { progress.Phase(b.name+", "+s.name, done, total) }
		result, err := pipeline.Extract(ctx, opts)
		progress.Close()
		if err != nil {
			return "", err
		}
		if n := len(result.Failed); n > 0 {
			e.partial = true
			e.note("of the images of %s, %d of %d could not be read; errors.jsonl beside the features lists them", s.name, n, n+result.Meta.N)
		}
		images, err := os.ReadFile(filepath.Join(opts.Out, "images.jsonl"))
		prints[s.name] = fmt.Sprintf("%s %x", result.Meta.Fingerprint, sha256.Sum256(images))
		return opts.Out, err
	}
	train, err := extract(e.grid.train)
	if err != nil {
		return err
	}
	if e.few.images > 0 {
		takes, seen := e.few.takes()
		from := train
		if train, _, err = e.choose(ctx, from, b.name, "train", "", takes); err != nil {
			return err
		}
		for class, n := range seen {
			if want := e.few.images * (e.few.draw + 1); n < want {
				return fmt.Errorf("%s has %d images of class %d, draw %d of %d needs %d", from, n, class, e.few.draw, e.few.images, want)
			}
		}
	}
	opts := e.evaluation
	if opts.ID, err = extract(e.test); err != nil {
		return err
	}
	var others string
	if e.alone.class != "" {
		if train, opts.ID, others, err = e.isolate(ctx, b.name, train, opts.ID); err != nil {
			return err
		}
	}
	var val string
	if e.val != nil {
		if val, err = extract(*e.val); err != nil {
			return err
		}
	}
	for i, s := range slices.Concat(e.near, e.far) {
		group := pipeline.Near
		if i >= len(e.near) {
			group = pipeline.Far
		}
		features := others
		if s.name != othersSet {
			if features, err = extract(s); err != nil {
				return err
			}
		}
		opts.OOD = append(opts.OOD, pipeline.OODSet{Group: group, Name: s.name, Features: features})
	}
	for _, c := range e.contests {
		opts := opts
		opts.Train = e.train[c.paper]
		opts.Train.Features = []string{train}
		opts.Train.WithoutParts = c.without
		if val != "" {
			opts.Train.Validation = pipeline.Share{Features: val}
		}
		if c.layers > 0 {
			opts.Softmax = &head.MLPConfig{Layers: c.layers}
		}
		opts.Out = e.folder(b.name, c)
		// Without --methods, Evaluate chooses the methods of the first contest; the
		// others take all that depend on their network.
		if opts.Methods = e.methods; e.methods == nil && c.name != contests[0].name {
			opts.Methods = append([]string{detector.JoinedScore}, posthoc.Names()...)
		}
		if opts.Methods = keep(opts.Methods, c.takes); opts.Methods == nil && c.name != contests[0].name {
			continue
		}
		if err := e.hold(ctx, b, c, opts, prints); err != nil {
			return err
		}
	}
	if e.few.images > 0 {
		return e.promise(ctx, b.name, opts, train, curveScores)
	} else if e.alone.class != "" {
		return e.promise(ctx, b.name, opts, train, oneClassScores)
	}
	return nil
}

func keep(methods []string, takes func(string) bool) (kept []string) {
	for _, m := range methods {
		if takes(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

func (e *experiment) folder(backbone string, c contest) string {
	return filepath.Join(e.out, e.key, "reports", backbone, c.name)
}

// settings is the file in a finished report that records how the report was made.
const settings = "settings.json"

// hold evaluates a contest, unless its report exists.
func (e *experiment) hold(ctx context.Context, b backbone, c contest, opts pipeline.EvaluateOptions, prints map[string]string) error {
	t := opts.Train
	made, err := json.MarshalIndent(struct {
		Methods      []string
		Softmax      *head.MLPConfig
		Network      head.Settings
		Conditioning head.ConditioningOptions
		Train        head.TrainOptions
		Seeds        []uint64
		Validation   pipeline.Share
		Bootstrap    int
		Sets         map[string]string
		Without      []string `json:",omitempty"`
	}{opts.Methods, opts.Softmax, t.Head.Settings(), t.Conditioning, t.Train, t.Seeds, t.Validation, opts.Bootstrap, prints, t.WithoutParts}, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(opts.Out, settings)
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(before) == string(made) && !e.again {
		fmt.Fprintf(e.stderr, "reproduce: %s is up to date\n", opts.Out)
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	opts.Facts = append(slices.Clone(opts.Facts), evaluation.Fact{Name: "date", Value: time.Now().UTC().Format("2 January 2006, 15:04 UTC")})
	var m measured
	opts.Reliable = func(r evaluation.Reliability) {
		m.Images, m.Error, m.Chance = r.Images, r.Error, r.Chance
		for _, b := range r.Bins {
			if b.N > 0 {
				m.Bins = append(m.Bins, bin{N: b.N, Confidence: b.Confidence, Right: b.Right})
			}
		}
	}
	opts.Assessed = func(_ uint64, a *pipeline.Assessment) { m.Assessed = append(m.Assessed, a) }
	progress := command.NewProgress(e.stderr, "", e.quiet)
	opts.Progress = func(what string, done, total int) { progress.Phase(b.name+", "+c.name+", "+what, done, total) }
	opts.Warn = func(text string) { e.note("%s, %s: %s", b.name, c.name, text) }
	_, err = pipeline.Evaluate(ctx, opts)
	progress.Close()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{measuredFile: text, settings: made} {
		if err := disk.Write(filepath.Join(opts.Out, name), disk.Bytes(text)); err != nil {
			return err
		}
	}
	return nil
}

// sumOf returns the checksum of a file.
func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

// studies reads the evaluations on a data set, a study per backbone.
func studies(out, key, title string) (all []report.Study, err error) {
	folders, err := filepath.Glob(filepath.Join(out, key, "reports", "*", "*", settings))
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, f := range folders {
		names[filepath.Base(filepath.Dir(filepath.Dir(f)))] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		study := report.Study{Benchmark: title, Backbone: name}
		for _, c := range contests {
			dir := filepath.Join(out, key, "reports", name, c.name)
			if !exists(dir, settings) {
				continue
			}
			rows, err := metrics.ReadResults(filepath.Join(dir, "results.csv"))
			if err != nil {
				return nil, err
			}
			for _, r := range rows {
				r.Method += c.suffix
				study.Results = append(study.Results, r)
			}
		}
		all = append(all, study)
	}
	return all, nil
}
