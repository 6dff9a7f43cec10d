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
	c.run = func(ctx context.Context, s Streams) error {
		if c.NArg() != 1 {
			return Usagef("name one DETECTOR or FOLDER")
		}
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
		if *out != "" {
			if err := report.CheckDetector(*out); err != nil {
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
	if n := len(classes) - mostRows; n > 0 {
		fmt.Fprintf(w, "and %s more\n", count(n, "class"))
	}
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
