package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

var _ = declare("show", 60, "DETECTOR|FOLDER [--out FILE.html] [flags]", "Show how good a detector is, or how far a run has come",
	`Of a FOLDER that extract or detect --out writes, it prints how much is done in each shard, images per second, errors by kind, how long the rest will take, and which shard does not move.

Of a DETECTOR it prints the classes, how often it is right on validation images, how well it would notice a new class, what its threshold costs in false alarms, and the command that repeats the training.

--out writes a page to look at, with curves, the confusion matrix, a map of the images and those closest to the threshold. The map and the pictures need the feature sets that the detector was trained on, which are looked for where they were and beside the detector.`, addShow)

func addShow(c *command) {
	opts := pipeline.SummaryOptions{}
	c.sets(&opts)
	out := c.String("out", "", "`FILE.html` to write")
	c.means("out", "Out")
	c.StringArrayVar(&opts.Features, "features", nil, "`FEATURES` that the detector was trained on, if they were moved (repeat)")
	c.StringArrayVar(&opts.Roots, "images", nil, "`FOLDER` that images may come from (repeat); default: those that the feature sets record")
	c.addJSON("print one JSON object")
	load := addPublicKeyFlag(c.FlagSet)
	c.takes(1, 1, "name one DETECTOR or FOLDER")
	c.run = func(ctx context.Context, s Streams) error {
		file := c.Arg(0)
		if pipeline.IsWatchable(file) {
			for _, name := range []string{"out", "features", "images", "public-key"} {
				if c.Changed(name) {
					return Usagef("--%s goes with a DETECTOR, and %s is a folder", name, file)
				}
			}
			now := time.Now()
			f, err := pipeline.LookAt(ctx, file, now)
			if err != nil {
				return err
			}
			return c.print(s, f, folderText(file, f, now))
		}
		var err error
		if opts.Detector, err = load(file); err != nil {
			return err
		}
		opts.FileOnly = *out == "" && len(opts.Features) == 0
		if err := report.CheckPage(*out); err != nil {
			return err
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
		return c.print(s, c.summaryJSON(summary, file, *out), c.summaryText(summary, file, *out))
	}
}

// detectorLead says in a few sentences how good a detector is.
func detectorLead(s *pipeline.Summary) []string {
	d := s.Detector
	lead := []string{fmt.Sprintf("It knows %s: %s. Trained on %s.", count(len(d.Classes), "class"), some(d.Classes, 12), count(d.Training.Rows.Train, "image"))}
	if right, images := s.Right(); images > 0 {
		lead = append(lead, fmt.Sprintf("Of %s that it was not trained on, %s are given the right class.", count(images, "validation image"), percent(right, images)))
	}
	switch {
	case math.IsInf(d.Threshold, -1):
		lead = append(lead, "Nothing is flagged: there were too few calibration images for a threshold.")
	case len(d.Folds) > 0:
		lead = append(lead, fmt.Sprintf("It is to flag about %.4g%% of in-distribution images, by cross-conformal p-values in %s.", 100*(1-d.TargetTPR), count(len(d.Folds), "fold")))
	default:
		text := fmt.Sprintf("Its threshold flags at most %.4g%% of in-distribution images, in the mean over calibration sets.", 100*(1-d.TargetTPR))
		if i := d.FalseAlarms(); i != nil {
			text += fmt.Sprintf(" In the long run it flags %.2g%% to %.2g%% of them (95%% confidence interval; %s).", 100*i[0], 100*i[1], count(len(d.CalibrationScores), "calibration image"))
		}
		lead = append(lead, text)
	}
	if a := d.Assessment; a != nil {
		name, hardest := hardestClass(a)
		text := fmt.Sprintf("An image of a new class like these would be noticed with AUROC %s", expectedAUROC(a))
		if at5, ok := a.CaughtAt(0.05); ok {
			text += fmt.Sprintf("; at 5%% false alarms %.0f%% are caught", 100*at5)
		}
		lead = append(lead, fmt.Sprintf("%s. Hardest would be %s (%.3f), taken for %s. A class that resembles none of these stays unknown.",
			text, Printable(name), hardest.AUROC, Printable(hardest.TakenFor)))
	}
	return lead
}

// hardestClass returns the class that would be noticed worst.
func hardestClass(a *pipeline.Assessment) (string, detector.AssessedClass) {
	hardest := ""
	for _, name := range slices.Sorted(maps.Keys(a.Classes)) {
		if hardest == "" || a.Classes[name].AUROC < a.Classes[hardest].AUROC {
			hardest = name
		}
	}
	return hardest, a.Classes[hardest]
}

// summaryText says what is known of a detector.
func (c *command) summaryText(s *pipeline.Summary, file, page string) string {
	d, w := s.Detector, new(strings.Builder)
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
	slices.SortStableFunc(classes, func(a, b evaluation.SummaryClass) int { // the worst first, of many
		if len(classes) <= mostRows || a.Assessed == nil || b.Assessed == nil {
			return 0
		}
		return cmp.Compare(a.Assessed.AUROC, b.Assessed.AUROC)
	})
	for _, class := range classes[:min(len(classes), mostRows)] {
		right, flagged := class.Shares()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t", Printable(class.Name), number(class.Train), number(class.Validation), number(class.Calibration),
			sharePercent(right), sharePercent(flagged))
		if a := class.Assessed; a != nil {
			at5, ok := a.CaughtAt(d.Assessment, 0.05)
			if !ok {
				at5 = math.NaN()
			}
			fmt.Fprintf(t, "%.3f\t%s\t%s\t", a.AUROC, sharePercent(at5), Printable(a.TakenFor))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	andMore(w, len(classes)-mostRows, "class")
	if a := d.Assessment; a != nil && a.Curve != nil {
		var caught []string
		for i, v := range s.Caught(nil) {
			caught = append(caught, fmt.Sprintf("%s at %.4g%%", sharePercent(v), 100*evaluation.AcceptedAlarms[i]))
		}
		fmt.Fprintf(w, "\nimages of a new class that are caught, by the false alarms accepted: %s\n", strings.Join(caught, ", "))
	}
	if line := trainLine(d, file); line != "" {
		fmt.Fprintf(w, "\ntrained by: %s\n", line)
	}
	if note := corrected(d); note != "" {
		fmt.Fprintf(w, "note: %s\n", note)
	}
	if d.Training.Review != nil {
		fmt.Fprintf(w, "note: %s\n", reviewText(d))
	}
	if text := quantisedFrom(d.Source); text != "" {
		fmt.Fprintf(w, "note: the backbone is %s\n", text)
	}
	for _, err := range s.Missing {
		fmt.Fprintf(w, "note: %v\n", c.advise(err))
	}
	if d.Probe == nil && d.Source.Model != extractor.PixelsName {
		fmt.Fprintf(w, "note: probe: %s\n", noProbe)
	}
	if page == "" {
		return w.String() + "\n--out FILE.html writes a page with curves and pictures\n"
	}
	return w.String() + fmt.Sprintf("\nlook at %s\n", page)
}

// quantisedFrom says of what an 8-bit backbone was made and how, as scripts/quantise recorded it
// in the model's folder; "" where it did not, or where the folder has another graph now.
func quantisedFrom(s detector.Source) string {
	data, err := os.ReadFile(filepath.Join(s.Model, "quantised.json"))
	var made struct {
		Model, Method, SHA256 string
		Bits                  int      `json:"weight_bits"`
		Images                int      `json:"images"`
		Loss                  *float64 `json:"loss"`
	}
	if err != nil || json.Unmarshal(data, &made) != nil || made.SHA256 != s.SHA256 {
		return ""
	}
	text := fmt.Sprintf("a copy of %s (%s, weights of %d bits)", made.Model, made.Method, made.Bits)
	if made.Loss != nil {
		text += fmt.Sprintf("; on %s class hold-out lost %.1f points of AUROC by it", count(made.Images, "image"), *made.Loss)
	}
	return text
}

// folderText says how far the runs have come that write a folder.
func folderText(dir string, f *pipeline.RunFolder, now time.Time) string {
	w := new(strings.Builder)
	of := ""
	if f.Total >= 0 {
		of = fmt.Sprintf(" of %d", f.Total)
		if slices.ContainsFunc(f.Shards, func(s pipeline.RunShard) bool { return s.Total < 0 || s.About }) {
			of = fmt.Sprintf(" of about %d", f.Total)
		}
	}
	fmt.Fprintf(w, "%s: %s, %d of %s finished, %d%s images", dir, f.Kind, f.Finished, count(len(f.Shards), "shard"), f.Done, of)
	if f.PerSecond > 0 {
		fmt.Fprintf(w, ", %.3g images/s", f.PerSecond)
	}
	if f.Left > 0 {
		fmt.Fprintf(w, ", about %s left", pipeline.DurationText(f.Left))
	}
	fmt.Fprintf(w, "\n%s", shardsText(f.Shards, now))
	const most = 10
	kinds := pipeline.MostErrors(f.Errors)
	for _, kind := range kinds[:min(len(kinds), most)] {
		fmt.Fprintf(w, "%7d × %s%s\n", f.Errors[kind], Printable(kind), inShards(f.Shards, kind))
	}
	if n := len(kinds) - most; n > 0 {
		fmt.Fprintf(w, "and %s of errors more\n", count(n, "kind"))
	}
	for _, shard := range f.Shards {
		if shard.State == pipeline.NotMoved {
			fmt.Fprintf(w, "shard %s has not moved since %s; it ran on %s\n", shard.Shard, shard.Moved.Format(time.DateTime), Printable(shard.Host))
		}
	}
	if f.Whole != "" {
		fmt.Fprintf(w, "no feature set yet: %s\n", Printable(f.Whole))
	}
	if v := f.Summary; v != nil && v.Images > 0 {
		fmt.Fprintf(w, "\nverdicts of the finished shards: %d in distribution, %d out of distribution, %d unreadable\n", v.InDistribution, v.OOD, v.Failed)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "class\timages\tout of distribution\t")
		for i, name := range slices.Sorted(maps.Keys(v.Classes)) {
			if i == mostRows {
				fmt.Fprintf(t, "and %d more\t\t\t\n", len(v.Classes)-mostRows)
				break
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t\n", Printable(name), v.Classes[name].Images, v.Classes[name].OOD)
		}
		t.Flush()
		fmt.Fprintf(w, "p-values in steps of 1/%d: %v\n", len(v.PValues), v.PValues)
	}
	return w.String()
}

// shardsText has a line for each shard; of many, for those that need a look.
func shardsText(shards []pipeline.RunShard, now time.Time) string {
	w := new(strings.Builder)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "shard\tstate\tdone\tof\timages/s\terrors\tlast image\t")
	total := func(s pipeline.RunShard) string {
		switch {
		case s.Total < 0:
			return "?"
		case s.About:
			return fmt.Sprint("about ", s.Total)
		}
		return fmt.Sprint(s.Total)
	}
	shown := 0
	for _, shard := range shards {
		if len(shards) > mostRows && (shard.State == pipeline.Finished || shown == mostRows) {
			continue
		}
		shown++
		failed := 0
		for _, n := range shard.Errors {
			failed += n
		}
		moved, speed := "", ""
		if shard.Moved != nil && shard.State != pipeline.Finished {
			moved = pipeline.DurationText(now.Sub(*shard.Moved).Seconds()) + " ago"
		}
		if shard.PerSecond > 0 {
			speed = fmt.Sprintf("%.3g", shard.PerSecond)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%d\t%s\t\n", shard.Shard, shard.State, shard.Done, total(shard), speed, failed, moved)
	}
	t.Flush()
	andMore(w, len(shards)-shown, "shard")
	return w.String()
}

// inShards says how many errors of a kind there are in each shard, the most first.
func inShards(shards []pipeline.RunShard, kind string) string {
	if len(shards) == 1 {
		return ""
	}
	const most = 5
	have := slices.DeleteFunc(slices.Clone(shards), func(s pipeline.RunShard) bool { return s.Errors[kind] == 0 })
	slices.SortStableFunc(have, func(a, b pipeline.RunShard) int { return cmp.Compare(b.Errors[kind], a.Errors[kind]) })
	parts := lists.Map(have[:min(len(have), most)], func(s pipeline.RunShard) string { return fmt.Sprintf("%d in shard %s", s.Errors[kind], s.Shard) })
	if n := len(have) - most; n > 0 {
		parts = append(parts, fmt.Sprintf("others in %s", count(n, "more shard")))
	}
	return ": " + strings.Join(parts, ", ")
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

// detectorPage fills the page of a detector.
func (c *command) detectorPage(s *pipeline.Summary, file string, change *report.Change) report.Detector {
	page := report.Detector{Summary: s, Change: change, Frame: report.Frame{Title: "The detector " + filepath.Base(file), Lead: detectorLead(s),
		Commands: []string{trainLine(s.Detector, file)}, Facts: detectorFacts(s.Detector)}}
	if note := corrected(s.Detector); note != "" {
		page.Notes = append(page.Notes, sentence(note))
	}
	if s.Detector.Training.Review != nil {
		page.Notes = append(page.Notes, sentence(reviewText(s.Detector)))
	}
	for _, err := range s.Missing {
		page.Notes = append(page.Notes, sentence(c.advise(err).Error()))
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

// detectorFacts lists what a reader needs to train a detector again.
func detectorFacts(d *pipeline.Detector) []evaluation.Fact {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }
	facts := []evaluation.Fact{
		{Name: "trained by", Value: cmp.Or(d.Training.Tool, "a program that did not record its version")},
		{Name: "shown by", Value: Version()},
		{Name: "date of this page", Value: today()},
		{Name: "seeds", Value: strings.Trim(fmt.Sprint(d.Seeds), "[]")},
		{Name: "score", Value: d.ScoreName()},
	}
	if !math.IsInf(d.Threshold, -1) {
		facts = append(facts, evaluation.Fact{Name: "threshold", Value: number(d.Threshold)})
	}
	if d.Source.Model != "" {
		facts = append(facts, evaluation.Fact{Name: "backbone", Value: d.Source.Model})
	}
	for _, f := range []evaluation.Fact{
		{Name: "8 bits", Value: quantisedFrom(d.Source)},
		{Name: "SHA-256 of the backbone", Value: d.Source.SHA256}, {Name: "output", Value: d.Source.Output},
		{Name: "fingerprint of model and preprocessing", Value: d.Source.Fingerprint},
	} {
		if f.Value != "" && !(f.Name == "output" && d.Source.Model == extractor.PixelsName) {
			facts = append(facts, f)
		}
	}
	if p := d.Probe; p != nil {
		facts = append(facts, evaluation.Fact{Name: "probe", Value: fmt.Sprintf("what the model answered on %s drawn by the program, version %d", count(p.Images, "image"), p.Version)})
	} else if d.Source.Model != extractor.PixelsName {
		facts = append(facts, evaluation.Fact{Name: "probe", Value: noProbe})
	}
	for _, set := range d.Training.Sets {
		facts = append(facts, evaluation.Fact{Name: "features for " + useName(set.Use), Value: fmt.Sprintf("%s (%s, SHA-256 of the content %s)", set.Path, count(set.Rows, "row"), set.Content)})
	}
	if len(d.Training.Sets) == 0 {
		for _, dir := range d.Training.Features {
			facts = append(facts, evaluation.Fact{Name: "features for training", Value: dir})
		}
	}
	if d.Training.Kept {
		facts = append(facts, evaluation.Fact{Name: "split", Value: "kept from the detector that images were added to; training on these feature sets anew divides them otherwise"})
	}
	if n := len(d.Relabelled); n > 0 {
		facts = append(facts, evaluation.Fact{Name: "labels changed, by issues.csv or a review of calibration images", Value: strconv.Itoa(n)})
	}
	return facts
}

// noProbe says that a detector has no probe.
const noProbe = "none: that a model gives other features on another machine is not noticed; features that are extracted now, and detectors trained on them, have one"

func useName(use string) string {
	if use == detector.ForTraining {
		return "training"
	}
	return use
}

// Names of the JSON object that show prints.
type (
	summaryJSON struct {
		Detector    string                      `json:"detector"`
		Out         string                      `json:"out,omitempty"`
		Classes     []evaluation.SummaryClass   `json:"classes"`
		Confusion   []confusedJSON              `json:"confusion"` // of validation images
		Threshold   *float64                    `json:"threshold"`
		TargetTPR   float64                     `json:"target_tpr"`
		FalseAlarms *[2]float64                 `json:"false_alarms"`
		Review      *detector.CalibrationReview `json:"calibration_review,omitempty"`
		Score       string                      `json:"scores"`
		Assessment  *pipeline.Assessment        `json:"assessment"`
		Seeds       []uint64                    `json:"seeds"`
		Rows        detector.RowCount           `json:"rows"`
		Model       string                      `json:"model,omitempty"`
		ModelSHA256 string                      `json:"model_sha256,omitempty"`
		Fingerprint string                      `json:"fingerprint,omitempty"`
		Features    []detector.TrainingSet      `json:"features"`
		Tool        string                      `json:"tool,omitempty"`
		Command     string                      `json:"command"`
		Missing     []string                    `json:"missing"`
	}
	confusedJSON struct {
		Label  string `json:"label"`
		Given  string `json:"given"`
		Images int    `json:"images"`
	}
)

func (c *command) summaryJSON(s *pipeline.Summary, file, out string) summaryJSON {
	d := s.Detector
	j := summaryJSON{
		Detector: file, Out: out, Classes: append([]evaluation.SummaryClass{}, s.Classes...), Confusion: []confusedJSON{}, TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Score: d.ScoreName(),
		Assessment: d.Assessment, Seeds: d.Seeds, Rows: d.Training.Rows, Model: d.Source.Model, ModelSHA256: d.Source.SHA256, Fingerprint: d.Source.Fingerprint,
		Features: append([]detector.TrainingSet{}, d.Training.Sets...), Tool: d.Training.Tool, Command: trainLine(d, file), Missing: []string{},
	}
	j.Threshold, j.Review = thresholdOf(d.Threshold), d.Training.Review
	if s.Validation != nil {
		for _, cell := range s.Validation.Confusion {
			j.Confusion = append(j.Confusion, confusedJSON{d.Classes[cell.Label], d.Classes[cell.Given], cell.Images})
		}
	}
	for _, err := range s.Missing {
		j.Missing = append(j.Missing, c.advise(err).Error())
	}
	return j
}
