package learn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file learns: it makes a feature set of the reviewed images, trains a detector on
// the old features and these, and compares the two.

// Task is what one job works on.
type Task struct {
	Subject
	Base  *detector.Detector // whose training features the reviewed images join
	Now   *detector.Detector // that serves, and is compared with
	Dir   string             // of the result: a folder that is made
	Root  string             // folder of the kept images, of which the feature set gives paths; may be ""
	Tool  string
	Stage func(string)         // is told what is being done
	Ready func(*Learned) error // is told the result before the learning curve is made
}

// Names in the folder of a result.
const (
	DetectorFile = "detector.safetensors"
	featuresDir  = "features"
	outliersDir  = "outliers" // of the junk that is learned from
)

// Learned is what came of learning.
type Learned struct {
	Reviews *Gathered `json:"reviews"`
	Learned int       `json:"learned"` // reviewed images that joined the training features
	// Outliers is how much junk a part of the score learned from, where that helped.
	Outliers int       `json:"outliers"`
	HeldOut  int       `json:"held_out"` // that were set aside to compare
	Notes    []string  `json:"notes"`    // what a person should know
	Seconds  float64   `json:"seconds"`  // of training
	Compare  Compared  `json:"compare"`  // old against new
	Curve    *Curve    `json:"curve"`    // null until it is made
	Traffic  *Traffic  `json:"traffic"`  // null where no features of it are kept
	Before   Assessed  `json:"before"`   // what class hold-out expects of each
	After    Assessed  `json:"after"`    //
	SHA256   string    `json:"sha256"`   // of the detector file
	Classes  []string  `json:"classes"`  // of the new detector
	Trained  time.Time `json:"trained_at"`
}

// Assessed is how well class hold-out found images of a new class.
type Assessed struct {
	AUROC  *float64 `json:"auroc"`               // null where it was not made
	Caught *float64 `json:"caught_at_5_percent"` // null likewise, and where too few images calibrate
}

func assessed(d *detector.Detector) (a Assessed) {
	if d.Assessment != nil {
		a.AUROC = &d.Assessment.AUROC
		if at5, ok := d.Assessment.CaughtAt(0.05); ok {
			a.Caught = &at5
		}
	}
	return a
}

// ErrNothing says that there are no reviews to learn from.
var ErrNothing = errors.New("there is nothing to learn from")

// Run learns. The detector file and the feature set are in Task.Dir.
func Run(ctx context.Context, db store.Store, kept Kept, t Task) (*Learned, error) {
	t.Stage("gathering reviews")
	g, err := gather(ctx, db, t.Subject, kept, true)
	if err != nil {
		return nil, err
	}
	images, junk := g.learnable()
	learn, held, err := t.divide(ctx, images)
	if err != nil {
		return nil, err
	}
	outliers, junk, err := t.outliers(ctx, junk)
	if err != nil {
		return nil, err
	}
	if len(learn)+len(outliers) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNothing, g.lacking())
	}
	r := &Learned{Reviews: g, Notes: []string{}}
	r.Learned, r.Outliers, r.HeldOut = len(learn), len(outliers), len(held)+len(junk)
	o, notes, err := training.OptionsOf(ctx, t.Base, nil)
	if err != nil {
		return nil, err
	}
	o.Tool = t.Tool
	known := slices.Clone(o.Features)
	for _, of := range []struct {
		name   string
		images []reviewed
		to     *[]string
	}{{featuresDir, learn, &o.Features}, {outliersDir, outliers, &o.Outliers}} {
		if len(of.images) == 0 {
			continue
		}
		dir := filepath.Join(t.Dir, of.name)
		if err := t.write(ctx, dir, of.images); err != nil {
			return nil, fmt.Errorf("writing the features of reviewed images: %w", err)
		}
		*of.to = append(*of.to, dir)
	}
	t.Stage("training")
	o.Stage = func(what string, done, total int) { t.Stage(fmt.Sprintf("training: %s, %d of %d", what, done, total)) }
	start := time.Now()
	next, trained, err := training.Train(ctx, o)
	if err != nil {
		return nil, err
	}
	r.Seconds, r.Trained = time.Since(start).Seconds(), time.Now()
	for _, note := range append(notes, trained.Warnings...) {
		for _, dir := range slices.Concat(o.Features, o.Outliers) { // which clients need not know
			note = strings.ReplaceAll(note, dir, filepath.Base(dir))
		}
		r.Notes = append(r.Notes, note)
	}
	file := filepath.Join(t.Dir, DetectorFile)
	if err := next.Save(file); err != nil {
		return nil, err
	}
	if r.SHA256, err = disk.SHA256(file, disk.Tensors); err != nil {
		return nil, err
	}
	r.Before, r.After, r.Classes = assessed(t.Now), assessed(next), next.Classes

	t.Stage("comparing old and new")
	if err := r.compare(ctx, &t, next, held, junk); err != nil {
		return nil, err
	}
	if r.Traffic, err = t.traffic(ctx, db, next); err != nil {
		return nil, err
	}
	if err := t.Ready(r); err != nil {
		return nil, err
	}
	return r, t.curve(ctx, r, o, next, known, learn, held, junk)
}

// divide returns the images to learn from, and those that are set aside.
func (t *Task) divide(ctx context.Context, images []reviewed) (learn, held []reviewed, err error) {
	groups, err := alike(ctx, images, t.Dim)
	if err != nil {
		return nil, nil, err
	}
	setAside(images, groups)
	for _, one := range images {
		if one.held {
			held = append(held, one)
		} else {
			learn = append(learn, one)
		}
	}
	return learn, held, nil
}

// outliers returns the junk that is learned from, as known outliers, and the rest, which
// compares detectors: all of it where it is too little, or the detector's score has no
// part for it.
func (t *Task) outliers(ctx context.Context, junk []reviewed) (learn, held []reviewed, err error) {
	if t.Base.Scoring == nil || t.Base.Scoring.Name != detector.JoinedScore {
		return nil, junk, nil
	}
	learn, held, err = t.divide(ctx, junk)
	if len(learn) < training.LeastOutliers {
		return nil, junk, err
	}
	return learn, held, err
}

// lacking says what is needed to learn.
func (g *Gathered) lacking() string {
	for _, c := range g.Classes {
		if c.Missing > 0 {
			return fmt.Sprintf("the new class %q has %d images, and %d are needed", c.Class, c.Images, MinNew)
		}
	}
	switch {
	case g.WithoutCount > 0:
		return "neither the features nor the images of what was reviewed were kept"
	case g.Junk > 0:
		return fmt.Sprintf("all that was reviewed is junk, and too little of it: a default score learns from %d images beside those that are set aside", training.LeastOutliers)
	}
	return "no image is reviewed"
}

// alike numbers images so that those that are nearly identical have one number, that of
// the first of them.
func alike(ctx context.Context, images []reviewed, dim int) ([]int, error) {
	x := make([]float32, 0, len(images)*dim)
	for i := range images {
		x = append(x, images[i].features...)
	}
	numbers, err := features.Alike(ctx, features.All(x, dim, make([]int64, len(images))))
	if err != nil {
		return nil, err
	}
	return numbers[0], nil
}

// write writes reviewed images as a feature set.
func (t *Task) write(ctx context.Context, dir string, images []reviewed) (err error) {
	source := t.Base.Source
	w, err := features.Create(ctx, dir, features.Header{
		D: t.Base.Heads[0].Dim(), Layers: source.Layers, Embedding: source.Embedding, Root: t.Root, Model: source.Model, ModelSHA256: source.SHA256, Output: source.Output, Pool: source.Pool,
		Patches: source.Patches.File(), Preprocess: source.Preprocess, Fingerprint: cmp.Or(source.Fingerprint, "unknown"), Tool: t.Tool,
	}, features.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var c features.Contents
	for i := range images {
		if class := images[i].class; class != "" && !slices.Contains(c.Classes, class) {
			c.Classes = append(c.Classes, images[i].class)
		}
	}
	slices.Sort(c.Classes)
	var unit features.Unit
	for i := range images {
		one := &images[i]
		hash := one.hash()
		img := features.Image{Path: hash[:2] + "/" + hash, SHA256: hash} // where package store keeps it
		if one.class != "" {
			img.Label = &one.class
		}
		if info, err := os.Stat(filepath.Join(t.Root, filepath.FromSlash(img.Path))); t.Root != "" && err == nil {
			img.Bytes, img.MTime = info.Size(), info.ModTime().UnixNano()
		}
		if err := w.Append(img, one.features, nil); err != nil {
			return err
		}
		unit.Images = append(unit.Images, img)
	}
	c.Units = []features.Unit{unit}
	_, err = w.Commit(ctx, c)
	return err
}

// Curve says what a detector gains from more reviews: detectors that learned from some
// of the reviews, on the images that were set aside. Its first point is the detector
// without reviews, and its last the new one.
type Curve struct {
	Points []Point `json:"points"`
	// Enough answers "have I labelled enough?": "yes", "no" or "unclear". Because says
	// why, in one sentence.
	Enough  string `json:"enough"`
	Because string `json:"because"`
}

// Point is a detector that learned from so many reviews.
type Point struct {
	Reviews int `json:"reviews"`
	Images  int `json:"images"`  // of classes, set aside
	Right   int `json:"right"`   // of these, given their class
	Flagged int `json:"flagged"` // of these, flagged: false alarms
	Junk    int `json:"junk"`
	Caught  int `json:"caught"` // of the junk, flagged

	right []bool
}

// curveParts are the parts of the reviews that the points of a curve learn from, beside
// none and all.
var curveParts = []float64{0.25, 0.5}

// longTraining is beyond what no curve is made.
const longTraining = 5 * time.Minute

// curve makes the learning curve.
func (t *Task) curve(ctx context.Context, r *Learned, o training.Options, next *detector.Detector, known []string, learn, held, junk []reviewed) error {
	unclear := func(because string) error {
		r.Curve = &Curve{Points: []Point{}, Enough: "unclear", Because: because}
		return nil
	}
	if len(held) == 0 {
		return unclear(fmt.Sprintf("No reviewed image is set aside yet: a class needs %d images for that.", heldShare))
	}
	if r.Seconds > longTraining.Seconds() {
		return unclear("Training takes too long here to repeat it for a learning curve.")
	}
	c := &Curve{}
	add := func(d *detector.Detector, reviews int) error {
		p := Point{Reviews: reviews, Images: len(held), Junk: len(junk)}
		err := d.EachVerdict(ctx, featuresOf(held), lists.UpTo(len(held)), func(i int, v detector.Verdict) {
			right := v.Class == held[i].class
			p.right = append(p.right, right)
			p.Right += count(right)
			p.Flagged += count(v.OOD)
		})
		if err == nil {
			err = d.EachVerdict(ctx, featuresOf(junk), lists.UpTo(len(junk)), func(_ int, v detector.Verdict) { p.Caught += count(v.OOD) })
		}
		if err != nil {
			return err
		}
		c.Points = append(c.Points, p)
		return nil
	}
	if err := add(t.Base, 0); err != nil {
		return err
	}
	// Parts are nested, and each has its share of every class.
	byClass := map[string][]reviewed{}
	for _, one := range learn {
		byClass[one.class] = append(byClass[one.class], one)
	}
	for i, part := range curveParts {
		t.Stage(fmt.Sprintf("learning curve, %d of %d", i+1, len(curveParts)))
		var some []reviewed
		for class, all := range byClass {
			slices.SortFunc(all, func(a, b reviewed) int { return cmp.Compare(a.hash(), b.hash()) })
			n := int(part*float64(len(all)) + 0.5)
			if isNew := !slices.Contains(t.Base.Classes, class); isNew && n < 3 {
				continue // too few to train on
			}
			some = append(some, all[:n]...)
		}
		if len(some) == 0 || len(some) == len(learn) || len(some) == c.Points[len(c.Points)-1].Reviews {
			continue
		}
		slices.SortFunc(some, func(a, b reviewed) int { return cmp.Compare(a.Seq, b.Seq) })
		dir := filepath.Join(t.Dir, fmt.Sprintf("part%d", i))
		err := t.write(ctx, dir, some)
		if err == nil {
			o := o
			o.Features, o.Stage = append(slices.Clone(known), dir), nil
			var d *detector.Detector
			if d, _, err = training.Train(ctx, o); err == nil {
				err = add(d, len(some))
			}
		}
		if err = errors.Join(err, os.RemoveAll(dir), os.RemoveAll(dir+".partial")); err != nil {
			return err
		}
	}
	if err := add(next, len(learn)); err != nil {
		return err
	}
	c.answer()
	r.Curve = c
	return nil
}

// fewHeld is too few images to tell whether more reviews help.
const fewHeld = 20

// answer says whether more reviews would help, by the images whose class was wrong with
// half of the reviews and is right with all of them, and the other way round.
func (c *Curve) answer() {
	last := len(c.Points) - 1
	p := c.Points[last]
	if last < 1 || p.Images < fewHeld {
		c.Enough, c.Because = "unclear", fmt.Sprintf("%d reviewed images are set aside, too few to tell: review until there are %d, one of %d.", p.Images, fewHeld, heldShare)
		return
	}
	half := c.Points[last-1]
	better, worse := 0, 0
	for i, right := range p.right {
		better += count(right && !half.right[i])
		worse += count(!right && half.right[i])
	}
	gain, n := float64(better-worse)/float64(p.Images), float64(p.Images)
	slack := 1.645 * math.Sqrt(float64(better+worse+1)) / n
	said := fmt.Sprintf("From %d to %d reviews, %d of %d images that were set aside became right and %d wrong", half.Reviews, p.Reviews, better, p.Images, worse)
	switch {
	case gain-slack > 0:
		c.Enough, c.Because = "no", said+": more reviews would help further."
	case gain+slack < 0.05:
		c.Enough, c.Because = "yes", said+": twice as many reviews like these would change little."
	default:
		c.Enough, c.Because = "unclear", said+": too few images are set aside to tell whether more reviews would help."
	}
}
