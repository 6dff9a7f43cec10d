package command

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/report"
)

// foundModel says in the help where a detector's backbone is looked for.
const foundModel = " (default: the one with its checksum, beside the detector, where it was at training, or in $MLRBFN_MODELS)"

var _ = declare("detect", 30, newDetect)

func newDetect() *command {
	c := newCommand("detect", "--detector DETECTOR [flags] PATH…", "Judge images by a detector",
		`Judges images, and all images in folders: class, confidence, and whether the image is out of distribution (OOD). The p-value is the probability that an image of the known classes scores as low.

With --out verdicts are written into a folder, in parts that many processes can make (--shard). After an interruption the same command continues. The PATH - reads further paths from standard input, one per line, and judges them as they come.`)
	c.readsURLs = []string{"features", ""}
	c.writesURL = "out"
	var opts pipeline.DetectOptions
	c.section("input")
	file := c.String("detector", "", "file `DETECTOR` that train wrote")
	load := addPublicKeyFlag(c.FlagSet)
	null := c.BoolP("null", "0", false, "paths on standard input end with a NUL byte, as find -print0 writes them")
	labels := c.Bool("labels", false, "PATHs are folders DIR/class/…/image: also print how often the verdicts are right, and AUROC")
	c.section("verdict")
	threshold := c.Float64("threshold", 0, "`score` below which an image is OOD (default: that of the detector)")
	alarms := c.Float64("max-false-alarms", 0, "`SHARE` of in-distribution images that may be flagged (default: that of the detector)")
	c.section("model")
	c.StringVar(&opts.Model, "model", "", "`DIR` of the detector's backbone"+foundModel)
	c.section("output")
	format, cells := "", ""
	Choice(c.FlagSet, &format, "format", "table", "table|jsonl|csv|parquet", "what is printed, or written with --out, for each image")
	also(c.FlagSet, "format", "json", "jsonl")
	asJSON := c.Bool("json", false, "the same as --format jsonl or --format json: one object per line")
	Choice(c.FlagSet, &cells, "csv", "safe", "safe|raw", "safe: write ' before cells that a spreadsheet would run")
	to := pipeline.VerdictParts{}
	c.StringVar(&to.Out, "out", "", "write verdicts in parts to the folder or bucket `DIR`, as jsonl or parquet")
	shard := c.String("shard", "", "with --out, only the part `i/n` of the images, i from 1 to n")
	c.BoolVar(&to.Force, "force", false, "with --out, replace parts of another detector")
	c.BoolVar(&to.Speculate, "speculate", false, "with --out: another run may be at work on the same shard; the first to finish counts")
	c.rare("csv", "shard", "force", "speculate")
	moveOOD := c.String("move-ood", "", "move OOD images into the folder `DIR`, never over another file")
	copyOOD := c.String("copy-ood", "", "copy OOD images into the folder `DIR`, never over another file")
	page := c.String("report", "", "write a page of the images to `FILE.html`, the most surprising first")
	explain := ""
	Choice(c.FlagSet, &explain, "explain", "", "why|where", "also say why: the parts of the score, the nearest training images; where: and which region of OOD images")
	c.Lookup("explain").NoOptDefVal = "why"
	maps := c.Int("maps", pipeline.DefaultMaps, "with --explain where, how many flagged images get a map")
	c.rare("maps")
	var reasons pipeline.ExplainOptions
	c.StringArrayVar(&reasons.Features, "features", nil, "`FEATURES` of the training images, for --explain and --report (default: those at training)")
	c.StringArrayVar(&reasons.Roots, "images", nil, "`FOLDER` that pictures of training images may come from (repeat); default: those that the feature sets record")
	c.IntVar(&reasons.Nearest, "nearest", 3, "training images to show for each image; 0: none")
	c.rare("features", "images", "nearest")
	c.addCacheFlag()
	c.Lookup("cache").Usage = "`DIR` for temporary copies of feature sets in buckets (default: in memory), and in which a part is made that --out sends to a bucket"
	failOnOOD := c.Bool("fail-on-ood", false, "exit with code 4 if an image is OOD")
	quiet := c.Bool("quiet", false, "show neither progress nor the summary")
	c.section("speed and limits")
	running := AddRunFlags(c.FlagSet, &opts.Run, &opts.Backbone)
	c.rare(rareRunFlags...)
	c.required = []string{"detector"}
	c.run = func(ctx context.Context, s Streams) (err error) {
		if c.NArg() == 0 {
			return Usagef("name an image or a folder of images to judge")
		}
		if *asJSON {
			format = "jsonl"
		}
		if c.Changed("csv") && format != "csv" {
			return Usagef("--csv goes with --format csv")
		}
		if err := checkParts(c, &to, *shard, format); err != nil {
			return err
		}
		if err := running.Check(); err != nil {
			return err
		}
		if *page != "" {
			if err := report.CheckVerdicts(*page); err != nil {
				return err
			}
		}
		switch {
		case explain == "" && *page == "" && (c.Changed("features") || c.Changed("images") || c.Changed("nearest")):
			return Usagef("--features, --images and --nearest go with --explain or --report")
		case explain != "where" && c.Changed("maps"):
			return Usagef("--maps goes with --explain where")
		case *maps < 1:
			return Usagef("--maps %d: it is at least 1", *maps)
		case reasons.Nearest < 0:
			return Usagef("--nearest %d: it is a number of images", reasons.Nearest)
		case reasons.Nearest == 0:
			reasons.Nearest = -1
		}
		switch opts.SetAside = *moveOOD; {
		case *moveOOD != "" && *copyOOD != "":
			return Usagef("--move-ood and --copy-ood exclude each other")
		case c.Changed("threshold") && c.Changed("max-false-alarms"):
			return Usagef("--threshold and --max-false-alarms exclude each other")
		case c.Changed("threshold") && math.IsNaN(*threshold):
			return Usagef("--threshold must be a number")
		case *copyOOD != "":
			opts.SetAside, opts.Copy = *copyOOD, true
		}
		if opts.Detector, err = load(*file); err != nil {
			return err
		}
		switch {
		case c.Changed("threshold"):
			opts.Detector.SetThreshold(*threshold)
		case c.Changed("max-false-alarms"):
			if err := setFalseAlarms(opts.Detector, *alarms); err != nil {
				return err
			}
		case math.IsInf(opts.Detector.Threshold, -1):
			fmt.Fprintln(s.Err, "detect: warning: the detector has no threshold, as it had too few calibration images: nothing is flagged; --threshold or a larger --max-false-alarms sets one, and train --calibration cross:10 makes a detector that is calibrated by all images")
		}
		if err := running.LoadRuntime(); err != nil {
			return err
		}
		opts.Backbone.Drifted = c.warnDrift(s)
		var explainer *pipeline.Explainer
		if explain != "" || *page != "" {
			if explainer, err = pipeline.NewExplainer(ctx, opts.Detector, reasons); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, explainer.Close()) }()
			for _, note := range explainer.Notes() {
				fmt.Fprintf(ForPeople(s.Err), "detect: note: %s\n", c.adviseText(note))
			}
		}
		if explain != "" {
			opts.Explain, opts.Where, opts.MostMaps = explainer, explain == "where", *maps
		}
		if *labels && slices.ContainsFunc(c.Args(), images.Judged) {
			return Usagef("--labels goes with folders DIR/class/…/image on the disk")
		}
		var folders []string
		for _, arg := range c.Args() {
			switch {
			case arg != "-":
				opts.Paths = append(opts.Paths, arg)
				folders = append(folders, arg)
			case opts.More == nil:
				opts.More = readPaths(s.In, *null)
			}
		}
		if to.Out != "" {
			to.Cache = c.Lookup("cache").Value.String()
			return c.detectParts(ctx, s, opts, to, *file, explain, *quiet, *failOnOOD)
		}
		show := newPrinter(format, opts.SetAside != "", explain != "", cells == "raw", s.Out)
		progress := NewProgress(s.Err, "images", *quiet || IsTerminal(s.Out))
		opts.Run.Progress = func(done, _, total int) { progress.Update(done, total, "") }
		truth := newAssessment(opts.Detector.Classes)
		label := func(j pipeline.Judgement) string {
			if !*labels || j.Err != nil {
				return ""
			}
			return labelOf(j.Path, folders)
		}
		shown := newPage(*page, opts.Detector, label)
		if c.Changed("threshold") {
			shown.alarms = 0
		}
		stats, err := pipeline.Detect(ctx, opts, func(j pipeline.Judgement) error {
			if j.SetAsideErr != nil && !*quiet {
				fmt.Fprintf(s.Err, "detect: warning: %v\n", j.SetAsideErr)
			}
			if name := label(j); name != "" {
				truth.add(name, j.Verdict)
			}
			j.Err = c.adviseImage(j)
			if *page != "" {
				shown.add(j)
			}
			j.SetAside = filepath.ToSlash(j.SetAside)
			return show(j)
		})
		progress.Close()
		unmapped := ""
		if stats.Unmapped > 0 {
			unmapped = fmt.Sprintf("the first %s have a map of what made the score fall, and %d others have none: --maps sets how many do", count(cmp.Or(*maps, pipeline.DefaultMaps), "flagged image"), stats.Unmapped)
			fmt.Fprintf(ForPeople(s.Err), "detect: note: %s\n", unmapped)
		}
		if err == nil && *page != "" {
			if !*quiet {
				fmt.Fprintf(ForPeople(s.Err), "detect: writing the page %s\n", *page)
			}
			var notes []string
			for _, note := range explainer.Notes() {
				notes = append(notes, c.adviseText(note))
			}
			if unmapped != "" {
				notes = append(notes, unmapped)
			}
			err = shown.write(ctx, explainer, pageFacts(*file, opts.Detector, explainer, shown), c.line(), notes)
		}
		if err != nil {
			return err
		}
		if *labels && !*quiet {
			w := ForPeople(s.Err)
			if format == "table" {
				w = ForPeople(s.Out)
			}
			if err := truth.print(w); err != nil {
				return err
			}
		}
		if !*quiet {
			fmt.Fprintf(s.Err, "%s: %d in distribution, %d out of distribution, %d unreadable\n",
				count(stats.Images, "image"), stats.Images-stats.OOD-stats.Failed, stats.OOD, stats.Failed)
			if opts.SetAside != "" {
				fmt.Fprintf(s.Err, "%s set aside in %s, %d could not be\n", count(stats.OOD-stats.Kept, "image"), opts.SetAside, stats.Kept)
			}
		}
		switch {
		case *failOnOOD && stats.OOD > 0:
			return fmt.Errorf("%w: %d", ErrOOD, stats.OOD)
		case stats.Failed > 0:
			return fmt.Errorf("%w: %d", ErrPartial, stats.Failed)
		case stats.Kept > 0:
			return fmt.Errorf("%w: %d", ErrNotSetAside, stats.Kept)
		}
		return nil
	}
	return c.done()
}

// adviseImage returns the error of an image without its path, which is printed before it.
func (c *command) adviseImage(j pipeline.Judgement) error {
	err := c.advise(j.Err)
	if err == nil {
		return nil
	}
	return &advice{strings.TrimPrefix(err.Error(), j.Path+": "), err}
}

// setFalseAlarms sets another threshold, so that at most a share of in-distribution
// images is flagged.
func setFalseAlarms(d *pipeline.Detector, share float64) error {
	if !(share > 0 && share < 1) {
		return Usagef("--max-false-alarms %g: a share lies between 0 and 1", share)
	}
	if err := d.SetMaxFalseAlarms(share); err != nil {
		return fmt.Errorf("%w: train on more images or with a larger --calibration", err)
	}
	return nil
}

// labelOf returns the name of the folder below one of these folders that an
// image is in; "" if there is none.
func labelOf(path string, folders []string) string {
	for _, folder := range folders {
		prefix := filepath.ToSlash(filepath.Clean(folder)) + "/"
		if prefix == "./" {
			prefix = ""
		}
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			if label, _, ok := strings.Cut(rest, "/"); ok {
				return label
			}
		}
	}
	return ""
}

// maxPath bounds the length of a path on standard input, in bytes.
const maxPath = 1 << 20

// readPaths returns what gives the paths that r has, as [pipeline.DetectOptions]
// wants it: a line each, or null-terminated.
func readPaths(r io.Reader, null bool) func(context.Context) ([]string, error) {
	const most = 1024 // paths at a time
	var failed error
	paths := make(chan string, most)
	go func() { // ends with r, or else with the program
		defer close(paths)
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxPath)
		if null {
			lines.Split(splitNull)
		}
		for lines.Scan() {
			if lines.Text() != "" {
				paths <- lines.Text()
			}
		}
		if failed = lines.Err(); errors.Is(failed, bufio.ErrTooLong) {
			failed = fmt.Errorf("a path of more than %d bytes; --null takes paths that end with a NUL byte", maxPath)
		}
	}()
	return func(ctx context.Context) ([]string, error) {
		var some []string
		for {
			var path string
			var ok bool
			if some == nil {
				select {
				case path, ok = <-paths:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			} else {
				select {
				case path, ok = <-paths:
				default:
					return some, nil
				}
			}
			switch {
			case ok:
				some = append(some, path)
			case some != nil:
				return some, nil
			case failed != nil:
				return nil, fmt.Errorf("paths on standard input: %w", failed)
			default:
				return nil, io.EOF
			}
			if len(some) == most {
				return some, nil
			}
		}
	}
}

// splitNull is a [bufio.SplitFunc] for paths that end with a NUL byte.
func splitNull(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return at + 1, data[:at], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// newPrinter returns a function that prints judgements in a format, with the
// places where images were set aside if they are, with explanations if there are any, and CSV cells raw or harmless
// for spreadsheets.
func newPrinter(format string, aside, why, raw bool, w io.Writer) func(pipeline.Judgement) error {
	switch format {
	case "jsonl":
		return func(j pipeline.Judgement) error {
			if j.Err != nil {
				return writeJSON(w, struct {
					Path      string `json:"path"`
					PathBytes []byte `json:"path_bytes,omitempty"`
					Error     string `json:"error"`
				}{disk.EncodePath(j.Path), disk.PathBytes(j.Path), j.Err.Error()})
			}
			return writeJSON(w, struct {
				Path       string  `json:"path"`
				PathBytes  []byte  `json:"path_bytes,omitempty"`
				Class      string  `json:"class"`
				Confidence float64 `json:"confidence"`
				Score      float64 `json:"score"`
				OOD        bool    `json:"ood"`
				PValue     float64 `json:"p_value"`
				SetAside   string  `json:"set_aside,omitempty"`
				AsideBytes []byte  `json:"set_aside_bytes,omitempty"`
				Error      string  `json:"set_aside_error,omitempty"`
				*detector.Reasons
			}{disk.EncodePath(j.Path), disk.PathBytes(j.Path), j.Class, j.Confidence, j.Score, j.OOD, j.PValue,
				disk.EncodePath(j.SetAside), disk.PathBytes(j.SetAside), text(j.SetAsideErr), detector.ReasonsOf(j.Explanation)})
		}
	case "csv":
		if IsTerminal(w) {
			w = ForPeople(w)
		}
		out := csv.NewWriter(w)
		row := func(cells ...string) error {
			if err := out.Write(cells); err != nil {
				return err
			}
			out.Flush()
			return out.Error()
		}
		cell := harmless
		if raw {
			cell = func(text string) string { return text }
		}
		header := false
		return func(j pipeline.Judgement) error {
			if !header {
				header = true
				names := []string{"path", "class", "confidence", "score", "ood", "p_value", "error"}
				if aside {
					names = append(names, "set_aside")
				}
				if why {
					names = append(names, "why")
				}
				if err := row(names...); err != nil {
					return err
				}
			}
			cells := []string{cell(j.Path), "", "", "", "", "", cell(text(errors.Join(j.Err, j.SetAsideErr)))}
			if j.Err == nil {
				number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
				copy(cells[1:], []string{cell(j.Class), number(j.Confidence), number(j.Score), strconv.FormatBool(j.OOD), number(j.PValue)})
			}
			if aside {
				cells = append(cells, cell(j.SetAside))
			}
			if why {
				why := ""
				if j.Explanation != nil {
					why = j.Explanation.Why
				}
				cells = append(cells, cell(why))
			}
			return row(cells...)
		}
	}
	w = ForPeople(w)
	header := false
	return func(j pipeline.Judgement) error {
		if !header {
			header = true
			if _, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s\n", "verdict", "class", "confidence", "score", "p-value", "path"); err != nil {
				return err
			}
		}
		if j.Err != nil {
			_, err := fmt.Fprintf(w, "%-7s  %-20s  %10s  %9s  %8s  %s: %v\n", "error", "", "", "", "", Printable(j.Path), j.Err)
			return err
		}
		verdict := "in"
		if j.OOD {
			verdict = "OOD"
		}
		_, err := fmt.Fprintf(w, "%-7s  %-20s  %10.4f  %9.4f  %8.4f  %s\n", verdict, Printable(j.Class), j.Confidence, j.Score, j.PValue, Printable(j.Path))
		if err == nil && j.Explanation != nil {
			err = printReasons(w, j.Explanation)
		}
		return err
	}
}

// text returns what an error says, "" for none, in UTF-8.
func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ToValidUTF8(err.Error(), "\ufffd")
}
