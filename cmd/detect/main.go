// Detect says for images which class they are of, how sure that is, and whether
// they are of any class that the detector was trained on.
package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"mlrbfn/features"
	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
)

func main() { cli.Main("detect", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts pipeline.DetectOptions
	f := cli.Flags("detect", "--detector DETECTOR [flags] PATH…",
		`Judges images, and all images in folders: class, confidence, and whether the image
is out of distribution (OOD). The p-value is the chance that an image like the
training images scores as low.`, stdout)
	detector := f.String("detector", "", "the file `DETECTOR` that train wrote")
	f.StringVar(&opts.Model, "model", "", "`DIR` of the detector's backbone (default: where it was at training)")
	format := f.String("format", "table", "what is printed for each image: `table|jsonl|csv`")
	asJSON := f.Bool("json", false, "the same as --format jsonl")
	threshold := f.Float64("threshold", 0, "`score` below which an image is OOD (default: the detector's)")
	failOnOOD := f.Bool("fail-on-ood", false, "exit with code 4 if an image is OOD")
	images := cli.AddRunFlags(f, &opts.Run, &opts.Backbone)
	quiet := f.Bool("quiet", false, "show neither progress nor the summary")
	if err := cli.Parse(f, args, "detector"); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return cli.Usagef("name an image or a folder of images to look at")
	}
	if *asJSON {
		*format = "jsonl"
	}
	show, err := newPrinter(*format, stdout)
	if err != nil {
		return err
	}
	if err := images.Check(); err != nil {
		return err
	}
	if opts.Detector, err = pipeline.LoadDetector(*detector); err != nil {
		return err
	}
	switch {
	case f.Changed("threshold"):
		if math.IsNaN(*threshold) {
			return cli.Usagef("--threshold must be a number")
		}
		opts.Detector.Threshold = *threshold
	case math.IsInf(opts.Detector.Threshold, -1):
		fmt.Fprintln(stderr, "detect: warning: the detector has no threshold (too few calibration images): nothing is flagged; --threshold sets one")
	}
	if err := images.LoadRuntime(); err != nil {
		return err
	}
	opts.Paths = f.Args()
	progress := cli.NewProgress(stderr, "images", *quiet || cli.IsTerminal(stdout))
	opts.Run.Progress = func(done, _, total int) { progress.Update(done, total, "") }
	stats, err := pipeline.Detect(ctx, opts, func(j pipeline.Judgement) error {
		j.Path = features.EncodePath(j.Path)
		return show(j)
	})
	progress.Close()
	if err != nil {
		return err
	}
	if !*quiet {
		fmt.Fprintf(stderr, "%d images: %d in distribution, %d out of distribution, %d unreadable\n",
			stats.Images, stats.Images-stats.OOD-stats.Failed, stats.OOD, stats.Failed)
	}
	switch {
	case *failOnOOD && stats.OOD > 0:
		return fmt.Errorf("%w: %d", cli.ErrOOD, stats.OOD)
	case stats.Failed > 0:
		return fmt.Errorf("%w: %d", cli.ErrPartial, stats.Failed)
	}
	return nil
}

// newPrinter returns a function that prints judgements in a format.
func newPrinter(format string, w io.Writer) (func(pipeline.Judgement) error, error) {
	switch format {
	case "table":
		header := false
		return func(j pipeline.Judgement) error {
			if !header {
				header = true
				if _, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s\n", "verdict", "class", "confidence", "score", "p-value", "path"); err != nil {
					return err
				}
			}
			if j.Err != nil {
				_, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s: %v\n", "error", "", "", "", "", printable(j.Path), j.Err)
				return err
			}
			verdict := "in"
			if j.OOD {
				verdict = "OOD"
			}
			_, err := fmt.Fprintf(w, "%-7s  %-20s  %10.4f  %9.4f  %8.4f  %s\n", verdict, printable(j.Class), j.Confidence, j.Score, j.PValue, printable(j.Path))
			return err
		}, nil
	case "jsonl":
		out := json.NewEncoder(w)
		out.SetEscapeHTML(false)
		return func(j pipeline.Judgement) error {
			if j.Err != nil {
				return out.Encode(struct {
					Path  string `json:"path"`
					Error string `json:"error"`
				}{j.Path, j.Err.Error()})
			}
			return out.Encode(struct {
				Path       string  `json:"path"`
				Class      string  `json:"class"`
				Confidence float64 `json:"confidence"`
				Score      float64 `json:"score"`
				OOD        bool    `json:"ood"`
				PValue     float64 `json:"p_value"`
			}{j.Path, j.Class, j.Confidence, j.Score, j.OOD, j.PValue})
		}, nil
	case "csv":
		out := csv.NewWriter(w)
		row := func(cells ...string) error {
			if err := out.Write(cells); err != nil {
				return err
			}
			out.Flush()
			return out.Error()
		}
		header := false
		return func(j pipeline.Judgement) error {
			if !header {
				header = true
				if err := row("path", "class", "confidence", "score", "ood", "p_value", "error"); err != nil {
					return err
				}
			}
			if j.Err != nil {
				return row(j.Path, "", "", "", "", "", strings.ToValidUTF8(j.Err.Error(), "\ufffd"))
			}
			number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
			return row(j.Path, j.Class, number(j.Confidence), number(j.Score), strconv.FormatBool(j.OOD), number(j.PValue), "")
		}, nil
	}
	return nil, cli.Usagef("--format %s: it is table, jsonl or csv", format)
}

// printable quotes a name that would disturb a terminal or the table.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
