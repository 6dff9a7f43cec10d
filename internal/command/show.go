package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"mlrbfn/conditioning"
	"mlrbfn/extractor"
	"mlrbfn/head"
	"mlrbfn/head/paper"
	"mlrbfn/head/residual"
	"mlrbfn/pipeline"
	"mlrbfn/report"
	"mlrbfn/report/figures"
)

func newShow() *command {
	c := newCommand("show", "DETECTOR [--out FILE.html] [flags]", "Show how good a detector is and how it was trained",
		`Prints what a detector knows: its classes, how often it is right on validation images, how well it would notice a new class, what its threshold costs in false alarms, and the command that repeats the training.

--out writes a page to look at, with curves, the confusion matrix, a map of the images and those closest to the threshold. The map and the pictures need the feature sets that the detector was trained on, which are looked for where they were and beside the detector.`)
	opts := pipeline.SummaryOptions{}
	out := c.String("out", "", "`FILE.html` to write")
	c.StringArrayVar(&opts.Features, "features", nil, "`FEATURES` that the detector was trained on, if they were moved (repeat)")
	c.StringArrayVar(&opts.Roots, "images", nil, "`FOLDER` that images may come from (repeat); default: those that the feature sets record")
	asJSON := c.Bool("json", false, "print one JSON object")
	load := addPublicKeyFlag(c.FlagSet)
	c.run = func(ctx context.Context, s Streams) error {
		if c.NArg() != 1 {
			return Usagef("name one DETECTOR")
		}
		file := c.Arg(0)
		var err error
		if opts.Detector, err = load(file); err != nil {
			return err
		}
		opts.FileOnly = *out == "" && len(opts.Features) == 0
		if *out != "" {
			if err := errors.Join(prepareOutput(*out), report.CheckDetector(*out)); err != nil {
				return err
			}
		}
		summary, err := pipeline.Summarise(ctx, opts)
		if err != nil {
			return err
		}
		defer summary.Close()
		if *out != "" {
			if err := report.WriteDetector(*out, c.detectorPage(summary, file, nil)); err != nil {
				return err
			}
		}
		if *asJSON {
			return writeJSON(s.Out, c.summaryJSON(summary, file, *out))
		}
		return c.printSummary(ForPeople(s.Out), summary, file, *out)
	}
	return c.done()
}

// writeDetectorPage writes the page of a detector in a file.
func (c *command) writeDetectorPage(ctx context.Context, page, file string, opts pipeline.SummaryOptions, change *report.Change) error {
	summary, err := pipeline.Summarise(ctx, opts)
	if err != nil {
		return err
	}
	defer summary.Close()
	return report.WriteDetector(page, c.detectorPage(summary, file, change))
}

// acceptedAlarms are the shares of false alarms at which it is said what is caught.
var acceptedAlarms = []float64{0.01, 0.02, 0.05, 0.1}

// caughtAt returns what an assessment has at acceptedAlarms, NaN where it has nothing.
// What has no curve has the share at 5%.
func caughtAt(curve func(float64) (float64, bool), at5 float64) (caught []float64) {
	for _, share := range acceptedAlarms {
		v, ok := curve(share)
		switch {
		case !ok && share == 0.05:
			v = at5
		case !ok:
			v = math.NaN()
		}
		caught = append(caught, v)
	}
	return caught
}

// detectorPage is the page of a detector.
func (c *command) detectorPage(s *pipeline.Summary, file string, change *report.Change) report.Detector {
	d := s.Detector
	page := report.Detector{
		Title: "The detector " + filepath.Base(file), Lead: detectorLead(s),
		Commands: []string{trainLine(d, file)}, Facts: detectorFacts(d),
		Levels: acceptedAlarms, Threshold: d.Threshold, MaxFalseAlarms: 1 - d.TargetTPR,
		Change: change, Draw: figures.Draw,
	}
	for _, err := range s.Missing {
		page.Notes = append(page.Notes, sentence(c.advise(err).Error()))
	}
	for _, class := range s.Classes {
		line := report.DetectorClass{Name: class.Name, Train: class.Train, Validation: class.Validation, Calibration: class.Calibration,
			Right: share(class.Right, class.Validation), Flagged: share(class.Flagged.Flagged, class.Flagged.Images)}
		page.Classes = append(page.Classes, line)
		if a := class.Assessed; a != nil {
			curve := func(at float64) (float64, bool) { return a.CaughtAt(d.Assessment, at) }
			page.HeldOut = append(page.HeldOut, report.HeldOutClass{Name: class.Name, AUROC: a.AUROC, Images: a.Images, TakenFor: a.TakenFor, Caught: caughtAt(curve, a.Caught), Curve: a.Curve})
		}
	}
	if a := d.Assessment; a != nil {
		page.CurveLevels = a.FalseAlarms
		page.Mean = report.HeldOutClass{AUROC: a.AUROC, Caught: caughtAt(a.CaughtAt, a.Caught), Curve: a.Curve}
	}
	if s.Validation != nil {
		for _, cell := range s.Validation.Confusion {
			page.Confusion = append(page.Confusion, report.Confusion{Label: d.Classes[cell.Label], Given: d.Classes[cell.Given], Images: cell.Images})
		}
	}
	for _, f := range s.FalseAlarms {
		page.FalseAlarms = append(page.FalseAlarms, report.FalseAlarms(f))
	}
	page.History = historyOf(d)
	if m := s.Map; m != nil {
		page.Map = mapOf(d, m)
	}
	for _, close := range s.Closest {
		page.Closest = append(page.Closest, report.ClosestImage{Image: close.Image, Score: close.Verdict.Score, Threshold: close.Threshold, Given: close.Verdict.Class, OOD: close.Verdict.OOD})
	}
	return page
}

// sentence makes a sentence of the text of an error.
func sentence(text string) string {
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return strings.TrimSuffix(text, ".") + "."
}

func share(n, of int) float64 {
	if of <= 0 {
		return math.NaN()
	}
	return float64(n) / float64(of)
}

// mapOf is the map of the page.
func mapOf(d *pipeline.Detector, m *pipeline.FeatureMap) *report.FeatureMap {
	page := &report.FeatureMap{}
	for i, share := range m.Shares {
		label := fmt.Sprintf("axis %d", i+1)
		if share > 0 {
			label += fmt.Sprintf(" (%.0f%% of the variance between classes)", 100*share)
		}
		page.Axes = append(page.Axes, label)
	}
	page.Note = fmt.Sprintf("Features as the head reads them, on the axes that tell the classes apart best (linear discriminants); one unit is a standard deviation within a class. Shown are %d of %s, spread evenly over the classes.", len(m.Points), count(m.Images, "labelled image"))
	switch {
	case m.Shares[1] > 0:
		page.Note += " Classes that lie on each other here may differ along other axes."
	case m.Shares[0] > 0:
		page.Note += " Two classes differ along one axis; the second is the one along which the images differ most otherwise."
	default:
		page.Note += " The axes are those along which the images differ most."
	}
	for _, p := range m.Points {
		page.Points = append(page.Points, report.MapPoint{At: p.At, Image: p.Image, Class: d.Classes[p.Class], Part: string(p.Part), Given: p.Verdict.Class, OOD: p.Verdict.OOD})
	}
	return page
}

// historyOf is the mean over the heads of what each epoch came to.
func historyOf(d *pipeline.Detector) (all []report.EpochMean) {
	for h, epochs := range d.History {
		for i, e := range epochs {
			if h == 0 {
				all = append(all, report.EpochMean{Epoch: e.Epoch})
			}
			if i >= len(all) {
				break
			}
			n := float64(len(d.History))
			all[i].TrainLoss += e.TrainLoss / n
			all[i].ValLoss += e.ValLoss / n
			all[i].ValAccuracy += e.ValAccuracy / n
		}
	}
	if d.Training.Rows.Validation == 0 || len(d.Classes) == 1 {
		for i := range all {
			all[i].ValAccuracy = math.NaN()
		}
	}
	return all
}

// detectorLead says in a few sentences how good a detector is.
func detectorLead(s *pipeline.Summary) []string {
	d := s.Detector
	lead := []string{fmt.Sprintf("It knows %s: %s. Trained on %s.", count(len(d.Classes), "class"), someClasses(d.Classes), count(d.Training.Rows.Train, "image"))}
	if right, images := rightOf(s); images > 0 {
		lead = append(lead, fmt.Sprintf("Of %s that it was not trained on, %s are given the right class.", count(images, "validation image"), percent(right, images)))
	}
	switch {
	case math.IsInf(d.Threshold, -1):
		lead = append(lead, "Nothing is flagged: there were too few calibration images for a threshold.")
	case len(d.Folds) > 0:
		lead = append(lead, fmt.Sprintf("It is to flag about %.4g%% of in-distribution images, by cross-conformal p-values in %s.", 100*(1-d.TargetTPR), count(len(d.Folds), "fold")))
	default:
		text := fmt.Sprintf("Its threshold is to flag at most %.4g%% of in-distribution images.", 100*(1-d.TargetTPR))
		if i := d.FalseAlarms(); i != nil {
			text += fmt.Sprintf(" In the long run it flags %.2g%% to %.2g%% of them (95%% confidence interval; %s).", 100*i[0], 100*i[1], count(len(d.Scores), "calibration image"))
		}
		lead = append(lead, text)
	}
	if a := d.Assessment; a != nil {
		name, hardest := hardestClass(a)
		lead = append(lead, fmt.Sprintf("An image of a new class like these would be noticed with AUROC %.3f; at 5%% false alarms %.0f%% are caught. Hardest would be %s (%.3f), taken for %s.",
			a.AUROC, 100*a.Caught, Printable(name), hardest.AUROC, Printable(hardest.TakenFor)))
	}
	return lead
}

// someClasses lists classes, but not more than a line.
func someClasses(names []string) string {
	const most = 12
	var shown []string
	for _, name := range names[:min(len(names), most)] {
		shown = append(shown, Printable(name))
	}
	if n := len(names) - len(shown); n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), n)
	}
	return strings.Join(shown, ", ")
}

// rightOf counts the validation images that are given the right class.
func rightOf(s *pipeline.Summary) (right, images int) {
	for _, class := range s.Classes {
		if class.Validation > 0 {
			right += class.Right
			images += class.Validation
		}
	}
	return right, images
}

// hardestClass returns the class that would be noticed worst.
func hardestClass(a *pipeline.Assessment) (string, pipeline.AssessedClass) {
	hardest := ""
	for _, name := range slices.Sorted(maps.Keys(a.Classes)) {
		if hardest == "" || a.Classes[name].AUROC < a.Classes[hardest].AUROC {
			hardest = name
		}
	}
	return hardest, a.Classes[hardest]
}

// detectorFacts is what repeats a detector.
func detectorFacts(d *pipeline.Detector) []report.Fact {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }
	facts := []report.Fact{
		{Name: "trained by", Value: cmp.Or(d.Training.Tool, "a program that did not record its version")},
		{Name: "shown by", Value: Version()},
		{Name: "date of this page", Value: time.Now().UTC().Format("2 January 2006, 15:04 UTC")},
		{Name: "seeds", Value: strings.Trim(fmt.Sprint(d.Seeds), "[]")},
		{Name: "score", Value: d.ScoreName()},
	}
	if !math.IsInf(d.Threshold, -1) {
		facts = append(facts, report.Fact{Name: "threshold", Value: number(d.Threshold)})
	}
	if d.Source.Model != "" {
		facts = append(facts, report.Fact{Name: "backbone", Value: d.Source.Model})
	}
	for _, f := range []report.Fact{
		{Name: "SHA-256 of the backbone", Value: d.Source.SHA256}, {Name: "output", Value: d.Source.Output},
		{Name: "fingerprint of model and preprocessing", Value: d.Source.Fingerprint},
	} {
		if f.Value != "" && !(f.Name == "output" && d.Source.Model == extractor.PixelsName) {
			facts = append(facts, f)
		}
	}
	if p := d.Probe; p != nil {
		facts = append(facts, report.Fact{Name: "probe", Value: fmt.Sprintf("what the model answered on %s drawn by the program, version %d", count(p.Images, "image"), p.Version)})
	} else if d.Source.Model != extractor.PixelsName {
		facts = append(facts, report.Fact{Name: "probe", Value: noProbe})
	}
	for _, set := range d.Training.Sets {
		facts = append(facts, report.Fact{Name: "features for " + useName(set.Use), Value: fmt.Sprintf("%s (%s, SHA-256 of the content %s)", set.Path, count(set.Rows, "row"), set.Content)})
	}
	if len(d.Training.Sets) == 0 {
		for _, dir := range d.Training.Features {
			facts = append(facts, report.Fact{Name: "features for training", Value: dir})
		}
	}
	if d.Training.Kept {
		facts = append(facts, report.Fact{Name: "split", Value: "kept from the detector that images were added to; training on these feature sets anew divides them otherwise"})
	}
	if n := len(d.Relabelled); n > 0 {
		facts = append(facts, report.Fact{Name: "labels changed by issues.csv", Value: strconv.Itoa(n)})
	}
	return facts
}

// noProbe says that a detector has no probe.
const noProbe = "none: that a model gives other features on another machine is not noticed; features that are extracted now, and detectors trained on them, have one"

func useName(use string) string {
	if use == pipeline.ForTraining {
		return "training"
	}
	return use
}

// trainLine is the command that trains a detector again, as far as its file says.
func trainLine(d *pipeline.Detector, out string) string {
	o, _, err := pipeline.RecordedOptions(d)
	if err != nil {
		return ""
	}
	words := []string{"train"}
	add := func(name, value, standard string) {
		if value != standard {
			words = append(words, "--"+name, value)
		}
	}
	for _, dir := range o.Features {
		add("features", dir, "")
	}
	add("out", out, "")
	if _, ok := o.Head.(paper.Config); ok {
		words = append(words, "--paper")
	}
	standard, err := flagValues("residual", residual.Config{}, head.TrainOptions{})
	if _, ok := o.Head.(paper.Config); ok && err == nil {
		standard, err = paperValues("")
	}
	is, err2 := flagValues(standard["network"], o.Head, o.Train)
	if err != nil || err2 != nil {
		return ""
	}
	is["conditioning"] = conditioningName(o.Conditioning)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		add(name, is[name], standard[name])
	}
	shape := o.Head.Settings()
	if shape.NoDepression {
		add("depression", "none", "")
	}
	if o.Train.Balance {
		add("balance", "sample", "")
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	add("shrinkage", number(o.Conditioning.Shrinkage), "0")
	add("pca-dims", strconv.Itoa(o.Conditioning.Dims), "0")
	add("val", o.Validation.String(), pipeline.Share{}.String())
	add("calibration", o.Calibration.String(), pipeline.Share{}.String())
	add("group-by", o.GroupBy, "")
	add("seeds", (*Seeds)(&o.Seeds).String(), "0")
	add("max-false-alarms", number(math.Round((1-o.TargetTPR)*1e12)/1e12), number(math.Round((1-pipeline.DefaultTargetTPR)*1e12)/1e12))
	if shape.Open {
		add("scores", o.Scores, pipeline.JoinedScore)
	} else if o.Scores != pipeline.HeadScore {
		add("scores", o.Scores, pipeline.JoinedScore)
	}
	if o.PerClass {
		words = append(words, "--per-class")
	}
	if o.NoHoldOut {
		words = append(words, "--no-assess")
	}
	return CommandLine("mlrbfn", words)
}

// conditioningName is the value of --conditioning.
func conditioningName(o conditioning.Options) string {
	switch {
	case o.L2 && (o.Kind == conditioning.None || o.Kind == ""):
		return "l2"
	case o.L2:
		return "l2+" + string(o.Kind)
	}
	return string(cmp.Or(o.Kind, conditioning.None))
}

// printSummary prints what is known of a detector.
func (c *command) printSummary(w io.Writer, s *pipeline.Summary, file, page string) error {
	d := s.Detector
	fmt.Fprintf(w, "%s\n%s\n\n", file, strings.Join(detectorLead(s), "\n"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "class\ttraining\tvalidation\tcalibration\tright\tfalsely flagged\t")
	if d.Assessment != nil {
		fmt.Fprint(t, "AUROC if new\tcaught at 5%\ttaken for\t")
	}
	fmt.Fprintln(t)
	number := func(n int) string {
		if n < 0 {
			return "–"
		}
		return strconv.Itoa(n)
	}
	classes := slices.Clone(s.Classes)
	slices.SortStableFunc(classes, func(a, b pipeline.SummaryClass) int { // the worst first, of many
		if len(classes) <= mostRows || a.Assessed == nil || b.Assessed == nil {
			return 0
		}
		return cmp.Compare(a.Assessed.AUROC, b.Assessed.AUROC)
	})
	for _, class := range classes[:min(len(classes), mostRows)] {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t", Printable(class.Name), number(class.Train), number(class.Validation), number(class.Calibration),
			sharePercent(share(class.Right, class.Validation)), sharePercent(share(class.Flagged.Flagged, class.Flagged.Images)))
		if a := class.Assessed; a != nil {
			fmt.Fprintf(t, "%.3f\t%s\t%s\t", a.AUROC, sharePercent(a.Caught), Printable(a.TakenFor))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if n := len(classes) - mostRows; n > 0 {
		fmt.Fprintf(w, "and %s more\n", count(n, "class"))
	}
	if a := d.Assessment; a != nil && a.Curve != nil {
		fmt.Fprint(w, "\nof the images of a new class are caught:")
		for i, v := range caughtAt(a.CaughtAt, a.Caught) {
			fmt.Fprintf(w, "%s %s at %.4g%% false alarms", map[bool]string{true: ",", false: ""}[i > 0], sharePercent(v), 100*acceptedAlarms[i])
		}
		fmt.Fprintln(w)
	}
	if line := trainLine(d, file); line != "" {
		fmt.Fprintf(w, "\ntrained by: %s\n", line)
	}
	for _, err := range s.Missing {
		fmt.Fprintf(w, "note: %v\n", c.advise(err))
	}
	if d.Probe == nil && d.Source.Model != extractor.PixelsName {
		fmt.Fprintf(w, "note: probe: %s\n", noProbe)
	}
	if page == "" {
		_, err := fmt.Fprintln(w, "\n--out FILE.html writes a page with curves and pictures")
		return err
	}
	_, err := fmt.Fprintf(w, "\nlook at %s\n", page)
	return err
}

// Names of the JSON object that show prints.
type (
	summaryJSON struct {
		Detector    string               `json:"detector"`
		Out         string               `json:"out,omitempty"`
		Classes     []summaryClassJSON   `json:"classes"`
		Confusion   []confusionJSON      `json:"confusion"` // of validation images
		Threshold   *float64             `json:"threshold"`
		TargetTPR   float64              `json:"target_tpr"`
		FalseAlarms *[2]float64          `json:"false_alarms"`
		Score       string               `json:"scores"`
		Assessment  *pipeline.Assessment `json:"assessment"`
		Seeds       []uint64             `json:"seeds"`
		Rows        pipeline.RowCount    `json:"rows"`
		Model       string               `json:"model,omitempty"`
		ModelSHA256 string               `json:"model_sha256,omitempty"`
		Fingerprint string               `json:"fingerprint,omitempty"`
		Features    []pipeline.TrainSet  `json:"features"`
		Tool        string               `json:"tool,omitempty"`
		Command     string               `json:"command"`
		Missing     []string             `json:"missing"`
	}
	summaryClassJSON struct {
		Class       string   `json:"class"`
		Train       *int     `json:"train"` // null: not known
		Validation  *int     `json:"validation"`
		Calibration *int     `json:"calibration"`
		Right       *float64 `json:"right"`
		Flagged     *float64 `json:"flagged"`
	}
	confusionJSON struct {
		Label  string `json:"label"`
		Given  string `json:"given"`
		Images int    `json:"images"`
	}
)

func (c *command) summaryJSON(s *pipeline.Summary, file, out string) summaryJSON {
	d := s.Detector
	j := summaryJSON{
		Detector: file, Out: out, Classes: []summaryClassJSON{}, Confusion: []confusionJSON{}, TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Score: d.ScoreName(),
		Assessment: d.Assessment, Seeds: d.Seeds, Rows: d.Training.Rows, Model: d.Source.Model, ModelSHA256: d.Source.SHA256, Fingerprint: d.Source.Fingerprint,
		Features: append([]pipeline.TrainSet{}, d.Training.Sets...), Tool: d.Training.Tool, Command: trainLine(d, file), Missing: []string{},
	}
	if !math.IsInf(d.Threshold, -1) {
		j.Threshold = &d.Threshold
	}
	known := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	number := func(v float64) *float64 {
		if math.IsNaN(v) {
			return nil
		}
		return &v
	}
	for _, class := range s.Classes {
		j.Classes = append(j.Classes, summaryClassJSON{class.Name, known(class.Train), known(class.Validation), known(class.Calibration),
			number(share(class.Right, class.Validation)), number(share(class.Flagged.Flagged, class.Flagged.Images))})
	}
	if s.Validation != nil {
		for _, cell := range s.Validation.Confusion {
			j.Confusion = append(j.Confusion, confusionJSON{d.Classes[cell.Label], d.Classes[cell.Given], cell.Images})
		}
	}
	for _, err := range s.Missing {
		j.Missing = append(j.Missing, c.advise(err).Error())
	}
	return j
}
