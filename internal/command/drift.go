package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// watching is the command drift.
type watching struct {
	*command
	opts           pipeline.DetectOptions
	running        *RunFlags
	load           func(string) (*pipeline.Detector, error)
	file, by, page string
	alpha          float64
	rows           int
	training       []string
	failOnAlarm    bool
}

var _ = declare("drift", 90, "--detector DETECTOR [flags] PATH…", "Say when images ceased to be like the training images",
	`Goes through images in the order of time or name and watches their scores: all together, and those of each class. If the images stay like the calibration images of the detector, an alarm is ever raised with a chance of at most --alpha, however many images there are.

Each row of the table is a part of the images: how many were flagged and their mean p-value, with * where it lies outside the interval for 95% of such parts, and the evidence of a change, which raises the alarm when it reaches 100%.`, addDrift)

func addDrift(c *command) {
	w := &watching{command: c}
	c.sets(&w.opts)
	c.section("input")
	c.StringVar(&w.file, "detector", "", "file `DETECTOR` that train wrote")
	c.means("detector", "Detector")
	w.load = addPublicKeyFlag(c.FlagSet)
	Choice(c.FlagSet, &w.by, "by", "time", "time|taken|name", "order of the images: time of the last change, time that the camera wrote into the file (EXIF; else of the last change), or path (2.jpg before 10.jpg)")
	c.StringArrayVar(&w.training, "training", nil, "`FEATURES` that the detector was trained and calibrated on, for what is new since an alarm (repeat; default: where they were)")
	c.means("training", "Training")
	c.section("alarm")
	c.Float64Var(&w.alpha, "alpha", 0.01, "`CHANCE` of ever raising a false alarm")
	c.means("alpha", "Alpha")
	c.section("model")
	c.StringVar(&w.opts.Model, "model", "", "`DIR` of the detector's backbone"+foundModel)
	c.section("output")
	c.IntVar(&w.rows, "rows", 20, "parts of the course that are shown")
	c.addJSON("print one JSON object")
	c.StringVar(&w.page, "report", "", "write a page with charts to `FILE.html`")
	c.BoolVar(&w.failOnAlarm, "fail-on-alarm", false, "exit with code 4 if an alarm is raised")
	c.addQuiet("show no progress")
	c.section("speed and limits")
	w.running = AddRunFlags(c.FlagSet, &w.opts.Options)
	c.rare(append([]string{"rows"}, rareRunFlags...)...)
	c.required = []string{"detector"}
	c.takes(1, anyNumber, "name a folder of images to look at")
	c.run = w.run
}

func (w *watching) run(ctx context.Context, s Streams) error {
	switch {
	case !(w.alpha > 0 && w.alpha < 1):
		return Usagef("--alpha %g: a chance lies between 0 and 1", w.alpha)
	case w.rows < 1:
		return Usagef("--rows %d: it must be positive", w.rows)
	}
	err := cmp.Or(w.running.Check(), report.CheckPage(w.page))
	if err != nil {
		return err
	}
	if w.opts.Detector, err = w.load(w.file); err != nil {
		return err
	}
	if math.IsInf(w.opts.Detector.Threshold, -1) {
		fmt.Fprintln(s.Err, "drift: warning: the detector flags nothing, as it had too few calibration images: shares of flagged images say nothing, and p-values are coarse; train --calibration cross:10 calibrates by all images")
	}
	if err := w.running.LoadRuntime(); err != nil {
		return err
	}
	w.opts.Drifted = w.warnDrift(s)
	var times []int64
	if w.opts.Paths, times, err = inOrder(ctx, w.Args(), w.by); err != nil {
		return err
	}
	course := newCourse(w.opts.Detector, w.alpha, len(w.opts.Paths), w.rows)
	progress := w.progress(s, "images")
	w.opts.Progress = progress.Count
	_, err = pipeline.Detect(ctx, w.opts, func(j pipeline.Judgement) error {
		at := int64(0)
		if seen := course.Images + course.Failed; seen < len(times) {
			at = times[seen]
		}
		course.add(j, at)
		return nil
	})
	progress.Close()
	if err != nil {
		return err
	}
	course.end()
	if course.raised() {
		if course.New, err = course.sinceThen.discover(ctx, w.opts.Detector, w.training); err != nil {
			return err
		}
	}
	if n := len(w.opts.Detector.CalibrationScores); evaluation.FewForDrift(n) {
		fmt.Fprintf(s.Err, "drift: note: the detector has %s: a small part of images that is different from the first one on may never be noticed\n", count(n, "calibration image"))
	}
	if w.page != "" {
		if err := report.WriteDrift(w.page, course.page(ctx, w.file, w.by, w.line())); err != nil {
			return err
		}
	}
	err = w.print(s, course, course.String())
	switch {
	case err != nil:
		return err
	case w.failOnAlarm && course.raised():
		return fmt.Errorf("%w: the images are no longer like the calibration images", ErrOOD)
	case course.Failed > 0:
		return fmt.Errorf("%w: %d", ErrPartial, course.Failed)
	}
	return nil
}

// inOrder returns the images under paths in the order of "time", "taken" or "name", and
// their times in nanoseconds since 1970.
func inOrder(ctx context.Context, paths []string, by string) (files []string, times []int64, err error) {
	type image struct {
		file string
		time int64
	}
	var all []image
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, nil, err
		}
		if images.IsIDX(path) {
			return nil, nil, Usagef("%s: the images of an idx file have neither times nor names", path)
		}
		if !info.IsDir() {
			all = append(all, image{path, info.ModTime().UnixNano()})
			continue
		}
		listing, err := images.List(ctx, images.ListOptions{Root: path})
		if errors.Is(err, images.ErrNoImages) && len(paths) > 1 {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, item := range listing.Items {
			if !item.InIDX() {
				all = append(all, image{item.File, item.MTime})
			}
		}
	}
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("%w under the given paths", images.ErrNoImages)
	}
	if by == "taken" {
		for i := range all {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			if at, ok := taken(all[i].file); ok {
				all[i].time = at.UnixNano()
			}
		}
	}
	slices.SortStableFunc(all, func(a, b image) int {
		if by != "name" && a.time != b.time {
			return cmp.Compare(a.time, b.time)
		}
		return cmp.Or(compareNames(a.file, b.file), strings.Compare(a.file, b.file))
	})
	for _, i := range all {
		files, times = append(files, i.file), append(times, i.time)
	}
	return files, times, nil
}

// taken returns when a photograph was taken. What it needs is at the beginning of a file,
// or the file is small.
func taken(file string) (time.Time, bool) {
	f, err := disk.Open(file, disk.Values)
	if err != nil {
		return time.Time{}, false // the error comes when the image is read
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return time.Time{}, false
	}
	return preprocess.Taken(head)
}

// compareNames compares texts, and numbers in them by their value.
func compareNames(a, b string) int {
	digits := func(s string) string { return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))] }
	for a != "" && b != "" {
		m, n := digits(a), digits(b)
		if m == "" || n == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(m):], b[len(n):]
		m, n = strings.TrimLeft(m, "0"), strings.TrimLeft(n, "0")
		if order := cmp.Or(cmp.Compare(len(m), len(n)), strings.Compare(m, n)); order != 0 {
			return order
		}
	}
	return cmp.Compare(len(a), len(b))
}

// course is the result of drift for a stream of images.
type course struct {
	Alpha   float64             `json:"alpha"`
	Images  int                 `json:"images"`
	Failed  int                 `json:"failed"`
	Alarm   *report.DriftAlarm  `json:"alarm"`           // of all images together; null if there was none
	Classes []report.DriftClass `json:"classes"`         // those that images were given
	Parts   []report.DriftPart  `json:"parts"`           // of the course
	Notes   []string            `json:"notes,omitempty"` // what the promise does not cover
	New     *newSince           `json:"new"`             // since the evidence began to grow; null if there was no alarm
	LogMost float64             `json:"highest_log_wealth"`

	detector *pipeline.Detector
	watch    *evaluation.DriftWatch
	perPart  int
	lowest   float64 // log of the capital, and at which image
	since    report.DriftAlarm
	sinceThen
	strange []strangeImage // before the alarm, the latest
	byClass map[string]*report.DriftClass
}

// strangeImage is one that may have raised the alarm.
type strangeImage struct {
	image int // from 1 on
	pipeline.Judgement
}

// Bounds of these: how surprising they are, how many are kept, and how many the page shows.
const (
	strangeP    = 0.2
	mostStrange = 1000
	shownAlarm  = 24
)

// alarmText names the image that raised an alarm.
func alarmText(a *report.DriftAlarm) string {
	text := fmt.Sprintf("image %d, %s", a.Image, Printable(a.Path))
	if a.Time != "" {
		text += ", " + a.Time
	}
	if a.Since != nil {
		text += fmt.Sprintf("; the evidence began to grow at image %d, %s", a.Since.Image, Printable(a.Since.Path))
	}
	return text
}

// newCourse prepares for n images, which may be fewer.
func newCourse(d *pipeline.Detector, alpha float64, n, rows int) *course {
	c := &course{
		Alpha: alpha, Classes: []report.DriftClass{}, Parts: []report.DriftPart{}, detector: d,
		watch:   evaluation.NewDriftWatch(alpha, evaluation.DriftCalibrationOf(d), 1),
		perPart: max((n+rows-1)/rows, 1), byClass: map[string]*report.DriftClass{},
	}
	switch {
	case len(d.Folds) > 0:
		c.Notes = append(c.Notes, "the detector was calibrated by cross-validation: only changes within these images are noticed, not whether the first are like the training images")
	case d.ByClass != nil:
		c.Notes = append(c.Notes, "the detector was calibrated by class: no intervals for all classes together")
	default:
		c.Notes = append(c.Notes, "the detector was not calibrated by class: within a class only changes among these images are noticed")
	}
	return c
}

func (c *course) add(j pipeline.Judgement, nanoseconds int64) {
	if j.Err != nil {
		c.Failed++
		return
	}
	c.Images++
	here := report.DriftAlarm{Image: c.Images, Path: disk.EncodePath(j.Path), PathBytes: disk.PathBytes(j.Path)}
	if nanoseconds != 0 {
		here.Time = time.Unix(0, nanoseconds).UTC().Format(time.RFC3339)
	}
	if c.Alarm == nil && j.PValue <= strangeP {
		if len(c.strange) == 2*mostStrange {
			c.strange = slices.Delete(c.strange, 0, mostStrange)
		}
		kept := strangeImage{c.Images, j}
		kept.Features, kept.Explanation = nil, nil
		c.strange = append(c.strange, kept)
	}
	all, ofClass := c.watch.Add(j.Class, j.Score)
	if c.Images == 1 || all.LogWealth < c.lowest {
		c.lowest, c.since = all.LogWealth, here
		c.sinceThen = sinceThen{}
	}
	c.sinceThen.add(c.Images, j)
	if all.Now {
		raised, since := here, c.since
		raised.Since = &since
		c.Alarm = &raised
	}
	class := c.byClass[j.Class]
	if class == nil {
		class = &report.DriftClass{Name: j.Class}
		c.byClass[j.Class] = class
	}
	class.Images++
	class.MeanP += j.PValue
	if ofClass.Now {
		class.Alarm = &here
	}
	if c.Images%c.perPart == 1 || c.perPart == 1 {
		c.Parts = append(c.Parts, report.DriftPart{From: c.Images, Begin: here.Time, Classes: map[string]int{}})
	}
	last := &c.Parts[len(c.Parts)-1]
	last.To, last.LogWealth = c.Images, all.LogWealth
	last.MeanP += j.PValue
	last.Classes[j.Class]++
	if j.OOD {
		last.OOD++
		class.OOD++
	}
}

// end finishes the course.
func (c *course) end() {
	c.LogMost = c.watch.All().Highest()
	halves := evaluation.ExpectVerdicts(c.detector, max(c.Images/2, 1)).Classes
	for _, name := range c.detector.Classes {
		if class := c.byClass[name]; class != nil {
			class.MeanP /= float64(class.Images)
			class.Early, class.Late = c.shares(name)
			if e, ok := halves[name]; ok {
				class.Expected = &e
			}
			c.Classes = append(c.Classes, *class)
		}
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		n := p.To - p.From + 1
		p.MeanP /= float64(n)
		expected := evaluation.ExpectVerdicts(c.detector, n)
		p.Expected, p.ExpectedP, p.ExpectedClasses = expected.Flagged, expected.MeanPValue, expected.Classes
	}
}

// raised says whether there was any alarm.
func (c *course) raised() bool {
	return c.Alarm != nil || slices.ContainsFunc(c.Classes, func(class report.DriftClass) bool { return class.Alarm != nil })
}

// String is the course as a table.
func (c *course) String() string {
	var b strings.Builder
	mark := func(v float64, interval *[2]float64) string {
		if interval != nil && (v < interval[0] || v > interval[1]) {
			return "*"
		}
		return " "
	}
	bounds := func(interval *[2]float64) string {
		if interval == nil {
			return ""
		}
		return fmt.Sprintf("%5.1f–%.1f%%", 100*interval[0], 100*interval[1])
	}
	threshold := c.watch.All().Threshold()
	fmt.Fprintf(&b, "%-17s  %-20s  %8s  %-14s %7s  %8s  %s\n", "images", "from", "flagged", "  expected", "mean p", "evidence", "")
	for _, p := range c.Parts {
		share := float64(p.OOD) / float64(p.To-p.From+1)
		evidence := math.Max(p.LogWealth/threshold, 0)
		fmt.Fprintf(&b, "%-17s  %-20s  %7.1f%%%s %-14s %6.3f%s  %7.0f%%  %s\n", p.Name(), p.Begin,
			100*share, mark(share, p.Expected), bounds(p.Expected), p.MeanP, mark(p.MeanP, p.ExpectedP), 100*min(evidence, 99), strings.Repeat("#", min(int(10*evidence), 20)))
	}
	if len(c.Classes) > 1 {
		fmt.Fprintf(&b, "\n%-20s  %8s  %9s %9s  %-13s  %7s  %s\n", "class", "images", "early", "late", "expected", "mean p", "flagged")
		for _, class := range c.Classes {
			fmt.Fprintf(&b, "%-20s  %8d  %7.1f%%%s %7.1f%%%s  %-13s  %7.3f  %s\n", Printable(class.Name), class.Images,
				100*class.Early, mark(class.Early, class.Expected), 100*class.Late, mark(class.Late, class.Expected), bounds(class.Expected), class.MeanP, percent(class.OOD, class.Images))
		}
	}
	b.WriteString("\n")
	for _, note := range c.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	if c.Alarm != nil {
		fmt.Fprintf(&b, "ALARM, all images together: %s\n", alarmText(c.Alarm))
	}
	for _, class := range c.Classes {
		if class.Alarm != nil {
			fmt.Fprintf(&b, "ALARM, class %s: %s\n", Printable(class.Name), alarmText(class.Alarm))
		}
	}
	if c.New != nil {
		for _, line := range c.New.lines() {
			fmt.Fprintf(&b, "new: %s\n", line)
		}
	}
	if !c.raised() {
		fmt.Fprintf(&b, "no alarm in %s (chance of a false one: at most %g)\n", count(c.Images, "image"), c.Alpha)
	}
	return b.String()
}

// shares returns which share of the images was given a class in the first and in the
// second half of the course.
func (c *course) shares(class string) (early, late float64) {
	var of, all [2]int
	for i, p := range c.Parts {
		half := 0
		if i >= (len(c.Parts)+1)/2 {
			half = 1
		}
		of[half] += p.Classes[class]
		all[half] += p.To - p.From + 1
	}
	return float64(of[0]) / float64(max(all[0], 1)), float64(of[1]) / float64(max(all[1], 1))
}

// page is the course as a page.
func (c *course) page(ctx context.Context, file, by, line string) report.Drift {
	page := report.Drift{Frame: report.Frame{
		Title: "Are these images still like the training images?",
		Lead: []string{fmt.Sprintf("%s in the order of %s, judged by %s.", count(c.Images, "image"), map[string]string{"time": "time", "taken": "the time they were taken", "name": "name"}[by], filepath.Base(file)),
			fmt.Sprintf("If the images stay like the calibration images of the detector, an alarm is ever raised with a chance of at most %g%%.", 100*c.Alpha)},
		Answer: "No alarm.", Commands: []string{line}, Facts: []evaluation.Fact{{Name: "made by", Value: Version()}, {Name: "date of this page", Value: today()}},
	}, Parts: c.Parts, Classes: c.Classes, Threshold: c.watch.All().Threshold()}
	if c.Failed > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("%s could not be read.", count(c.Failed, "image")))
	}
	for _, note := range c.Notes {
		page.Notes = append(page.Notes, sentence(note))
	}
	switch {
	case c.Alarm != nil:
		page.Answer = fmt.Sprintf("Alarm: %s.", alarmText(c.Alarm))
		raised := slices.DeleteFunc(slices.Clone(c.strange), func(s strangeImage) bool { return s.image < c.Alarm.Since.Image })
		slices.SortStableFunc(raised, func(a, b strangeImage) int { return moreSurprising(a.Judgement, b.Judgement) })
		for _, s := range raised[:min(len(raised), shownAlarm)] {
			page.Raised = append(page.Raised, report.Finding{Image: pictureOf(ctx, s.Judgement), What: fmt.Sprintf("image %d, nearest: %s, p-value %.3f", s.image, s.Class, s.PValue)})
		}
	case c.raised():
		page.Answer = "Alarm of a class; see below."
	}
	if c.New != nil {
		for _, line := range c.New.lines() {
			page.Lead = append(page.Lead, sentence(line))
		}
	}
	return page
}

// mostSince bounds these images: the first ones are judged.
const mostSince = 20_000

// sinceThen are features and paths of images since the evidence began to grow.
type sinceThen struct {
	from  int // the first, counted from 1
	rows  []float32
	paths []string
	more  bool // than are kept
}

func (s *sinceThen) add(image int, j pipeline.Judgement) {
	s.from = cmp.Or(s.from, image)
	if s.more = len(s.paths) >= mostSince; !s.more {
		s.rows, s.paths = append(s.rows, j.Features...), append(s.paths, j.Path)
	}
}

// newSince is what is new among the images since then.
type newSince struct {
	Since int `json:"since"` // the first of them
	*pipeline.Discovery
	Groups []newGroup `json:"groups"`
}

// newGroup is a kind of new images.
type newGroup struct {
	Images  int      `json:"images"`
	Nearest string   `json:"nearest"`
	Typical []string `json:"typical"` // paths, at most nine
}

// discover says what is new, in the Notes why nothing can be said where that is so.
func (s *sinceThen) discover(ctx context.Context, d *pipeline.Detector, training []string) (*newSince, error) {
	n := &newSince{Since: s.from, Groups: []newGroup{}, Discovery: &pipeline.Discovery{}}
	found, err := pipeline.Discover(ctx, pipeline.DiscoverOptions{Detect: pipeline.DetectOptions{Detector: d}, Rows: slices.Clip(s.rows), Training: training})
	about, of := errors.AsType[*options.Error](err)
	switch {
	case of && about.Option == "Detector":
		n.Notes = []string{fmt.Sprintf("which images are new cannot be said: %v", about.Err)}
		return n, nil
	case errors.Is(err, detector.ErrTrainingSets) || of && about.Option == "Training" && len(training) == 0:
		n.Notes = []string{"which images are new needs the features that the detector was trained and calibrated on (--training), which are not found, or have changed"}
		return n, nil
	case err != nil:
		return nil, err
	}
	if n.Discovery = found; s.more {
		n.Notes = append(n.Notes, fmt.Sprintf("of the images since then the first %d were judged together", mostSince))
	}
	for _, g := range found.Groups {
		group := newGroup{Images: g.Images, Nearest: g.Nearest}
		for _, i := range g.Typical {
			group.Typical = append(group.Typical, disk.EncodePath(s.paths[i]))
		}
		n.Groups = append(n.Groups, group)
	}
	return n, nil
}

// lines say what is new, a line each.
func (n *newSince) lines() (lines []string) {
	if n.Images > 0 {
		lines = append(lines, fmt.Sprintf("of %s since image %d, %d are called new, and at least %d are (95%%)", count(n.Images, "image"), n.Since, n.New, n.NewAtLeast))
	}
	for i, g := range n.Groups[:min(len(n.Groups), mostRows)] {
		lines = append(lines, fmt.Sprintf("group %d: %s, nearest to %s, such as %s", i, count(g.Images, "image"), Printable(g.Nearest), Printable(strings.Join(g.Typical[:min(3, len(g.Typical))], ", "))))
	}
	return append(lines, n.Notes...)
}
