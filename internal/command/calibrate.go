package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// calibrating is the command calibrate.
type calibrating struct {
	*command
	file, list, trim, out string
	features              []string
	lowest                int
	load                  func(string) (*pipeline.Detector, error)
}

var _ = declare("calibrate", 65, "--detector DETECTOR [flags]", "Look through calibration images, and set the threshold anew",
	`Lists the calibration images that score lowest, for a person who is not sure that all of them belong. With an x in the column remove of those that are of no class, --trim LIST.csv --out NEW sets the threshold anew without them. Nothing is trained, and the false-alarm promise holds for the images that remain.`, addCalibrate)

func addCalibrate(c *command) {
	r := &calibrating{command: c}
	c.of = r
	c.readsURLs = []string{"features"}
	c.StringVar(&r.file, "detector", "", "`DETECTOR` whose calibration images to list")
	c.means("detector", "Detector")
	c.IntVar(&r.lowest, "lowest", 0, "list so `many` images, the lowest p-values first (default: some more than the threshold needs)")
	c.means("lowest", "Reviewed")
	c.StringVar(&r.list, "list", "", "write the list to `LIST.csv`, to mark what does not belong")
	c.StringVar(&r.trim, "trim", "", "set the threshold anew without what is marked in `LIST.csv`")
	c.means("trim", "Remove")
	c.StringVar(&r.out, "out", "", "with --trim, the file `DETECTOR` to write")
	c.means("out", "Out")
	c.StringArrayVar(&r.features, "features", nil, "`FEATURES` that the detector was trained on, if they were moved (repeat)")
	c.means("features", "Features")
	c.addJSON("print one JSON object")
	r.load = addPublicKeyFlag(c.FlagSet)
	c.required = []string{"detector"}
	c.run = r.run
}

func (r *calibrating) run(ctx context.Context, s Streams) (err error) {
	switch {
	case (r.trim == "") != (r.out == ""):
		return Usagef("--trim LIST.csv and --out DETECTOR go together")
	case r.trim != "" && (r.list != "" || r.Changed("lowest")):
		return Usagef("--trim goes with neither --list nor --lowest: all lines of its list were looked at")
	case r.lowest < 0:
		return Usagef("--lowest %d: it is a number of images", r.lowest)
	}
	for _, file := range []string{r.list, r.out} {
		if file != "" {
			if err := prepareOutput(file); err != nil {
				return err
			}
		}
	}
	d, err := r.load(r.file)
	if err != nil {
		return err
	}
	data, err := d.OpenTraining(ctx, r.features)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	c, err := d.OpenCalibration(ctx, data, r.features)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	images, err := c.Images(ctx)
	if err != nil {
		return err
	}
	list, err := training.ReviewList(c, images, len(images))
	if err != nil {
		return err
	}
	if r.trim == "" {
		return r.show(s, d, list[:min(cmp.Or(r.lowest, c.Some()), len(list))])
	}
	before := d.Threshold
	reviewed, remove, err := training.ReadReview(r.trim, list)
	if err == nil {
		err = c.Trim(ctx, images, reviewed, remove)
	}
	if err == nil {
		err = d.Save(r.out)
	}
	if err != nil {
		return err
	}
	return r.print(s, struct {
		Out         string                      `json:"out"`
		Calibration int                         `json:"calibration"` // images that remain
		Review      *detector.CalibrationReview `json:"review"`
		Before      *float64                    `json:"threshold_before"`
		Threshold   float64                     `json:"threshold"`
		FalseAlarms *[2]float64                 `json:"false_alarms"`
	}{r.out, len(d.CalibrationScores), d.Training.Review, thresholdOf(before), d.Threshold, d.FalseAlarms()},
		fmt.Sprintf("%s: %s.\nThe threshold was %.6g and is %.6g.\n", r.out, reviewText(d), before, d.Threshold))
}

// show prints or writes the list of the lowest.
func (r *calibrating) show(s Streams, d *pipeline.Detector, list []training.ReviewedImage) error {
	n := len(d.CalibrationScores)
	if r.list != "" {
		if err := training.WriteReview(r.list, list); err != nil {
			return err
		}
	}
	text := new(strings.Builder)
	t := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "p-value\tscore\tlabel\tgiven\tpath")
	for _, i := range list {
		i.Path = cmp.Or(i.Path, fmt.Sprintf("row %d", i.Row))
		fmt.Fprintf(t, "%.4f\t%.4f\t%s\t%s\t%s\n", i.PValue, i.Score, Printable(i.Label), Printable(i.Class), Printable(i.Path))
	}
	t.Flush()
	if r.list != "" {
		text.Reset()
		fmt.Fprintf(text, "%s: the lowest %d of %s. Put an x into the column remove of those that are of no class, leave all lines, then: mlrbfn calibrate --detector %s --trim %s --out NEW\n",
			r.list, len(list), count(n, "calibration image"), r.file, r.list)
	}
	return r.print(s, struct {
		Detector    string                   `json:"detector"`
		Calibration int                      `json:"calibration"`
		Threshold   *float64                 `json:"threshold"`
		Images      []training.ReviewedImage `json:"images"`
	}{r.file, n, thresholdOf(d.Threshold), list}, text.String())
}

// thresholdOf is a threshold in JSON: null where nothing is flagged.
func thresholdOf(t float64) *float64 {
	if math.IsInf(t, -1) {
		return nil
	}
	return &t
}

// reviewText says what a review of calibration images did, and what is promised since.
func reviewText(d *pipeline.Detector) string {
	r, n := d.Training.Review, len(d.CalibrationScores)
	most := 100 * (1 - d.TargetTPR)
	return fmt.Sprintf("a person looked at the %s that scored lowest and removed %d of them; %d remain. At most %.4g%% of in-distribution images are flagged if all of these belong, and %.4g%% if one in a hundred of them does not",
		count(r.Reviewed, "calibration image"), r.Removed, n, most, most*float64(n+1)/(0.99*float64(n)+1))
}
