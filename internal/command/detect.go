package command

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// foundModel says in the help where a detector's backbone is looked for.
const foundModel = " (default: the one with its checksum, beside the detector, where it was at training, or in $MLRBFN_MODELS)"

// detecting is the command detect.
type detecting struct {
	*command
	opts              pipeline.DetectOptions
	to                pipeline.VerdictParts
	explainBy         pipeline.ExplainOptions
	running           *RunFlags
	file, shard       string
	load              func(string) (*pipeline.Detector, error)
	threshold, alarms float64
	format, explain   string
	move, copy, page  string
	maps              int
	null, labels      bool
	raw               bool // cells of CSV, which a spreadsheet would run
	failOnOOD         bool
}

var _ = declare("detect", 30, "--detector DETECTOR [flags] PATH…", "Judge images by a detector",
	`Judges images, and all images in folders: class, confidence, and whether the image is out of distribution (OOD). The p-value is the probability that an image of the known classes scores as low.

With --out verdicts are written into a folder, in parts that many processes can make (--shard). After an interruption the same command continues. The PATH - reads further paths from standard input, one per line, and judges them as they come.`, addDetect)

func addDetect(c *command) {
	c.readsURLs = []string{"features", ""}
	d := &detecting{command: c}
	c.of = d
	c.sets(&d.opts, &d.to, &d.explainBy)
	c.section("input")
	c.StringVar(&d.file, "detector", "", "file `DETECTOR` that train wrote")
	c.means("detector", "Detector")
	d.load = addPublicKeyFlag(c.FlagSet)
	c.BoolVarP(&d.null, "null", "0", false, "paths on standard input end with a NUL byte, as find -print0 writes them")
	c.BoolVar(&d.labels, "labels", false, "PATHs are folders DIR/class/…/image: also print how often the verdicts are right, and AUROC")
	c.section("verdict")
	c.Float64Var(&d.threshold, "threshold", 0, "`score` below which an image is OOD (default: that of the detector)")
	c.means("threshold", "Threshold")
	c.Float64Var(&d.alarms, "max-false-alarms", 0, "`SHARE` of in-distribution images that may be flagged (default: that of the detector)")
	c.means("max-false-alarms", "TargetTPR", "MaxFalseAlarms")
	c.section("model")
	c.StringVar(&d.opts.Model, "model", "", "`DIR` of the detector's backbone"+foundModel)
	d.addOutputFlags()
	c.section("speed and limits")
	c.programOnly(c.names()...)
	d.running = AddRunFlags(c.FlagSet, &d.opts.Options)
	c.rare(rareRunFlags...)
	c.required = []string{"detector"}
	c.takes(1, anyNumber, "name an image or a folder of images to judge")
	c.run = d.run
}

func (d *detecting) addOutputFlags() {
	c := d.command
	c.section("output")
	Choice(c.FlagSet, &d.format, "format", "table", "table|jsonl|csv|parquet", "what is printed, or written with --out, for each image")
	also(c.FlagSet, "format", "json", "jsonl")
	c.addJSON("the same as --format jsonl or --format json: one object per line")
	eitherOr(c.FlagSet, &d.raw, "csv", "safe|raw", "safe: write ' before cells that a spreadsheet would run")
	c.StringVar(&d.to.Out, "out", "", "write verdicts in parts to the folder `DIR`, as jsonl or parquet")
	c.StringVar(&d.shard, "shard", "", "with --out, only the part `i/n` of the images, i from 1 to n")
	c.means("shard", "Shard")
	c.BoolVar(&d.to.Force, "force", false, "with --out, replace parts of another detector")
	c.BoolVar(&d.to.Speculate, "speculate", false, "with --out: another run may be at work on the same shard; the first to finish counts")
	c.BoolVar(&d.to.Thumbnails, "thumbnails", false, "with --format parquet: a small picture of each image, as Hugging Face's datasets has them, and its place x, y on the detector's map")
	c.rare("csv", "shard", "force", "speculate", "thumbnails")
	c.StringVar(&d.move, "move-ood", "", "move OOD images into the folder `DIR`, never over another file")
	c.means("move-ood", "SetAside")
	c.StringVar(&d.copy, "copy-ood", "", "copy OOD images into the folder `DIR`, never over another file")
	c.StringVar(&d.page, "report", "", "write a page of the images to `FILE.html`, the most surprising first")
	Choice(c.FlagSet, &d.explain, "explain", "", "why|where", "also say why: the parts of the score, the nearest training images; where: and which region of OOD images")
	c.Lookup("explain").NoOptDefVal = "why"
	c.IntVar(&d.maps, "maps", pipeline.DefaultMaps, "with --explain where, how many flagged images get a map")
	c.rare("maps")
	c.StringArrayVar(&d.explainBy.Features, "features", nil, "`FEATURES` of the training images, for --explain and --report (default: those at training)")
	c.StringArrayVar(&d.explainBy.Roots, "images", nil, "`FOLDER` that pictures of training images may come from (repeat); default: those that the feature sets record")
	c.means("images", "Images", "Sources")
	c.IntVar(&d.explainBy.Nearest, "nearest", 3, "training images to show for each image; 0: none")
	c.rare("features", "images", "nearest")
	c.addCacheFlag()
	c.BoolVar(&d.failOnOOD, "fail-on-ood", false, "exit with code 4 if an image is OOD")
	c.addQuiet("show neither progress nor the summary")
}

// check checks the flags.
func (d *detecting) check() error {
	if d.asJSON {
		d.format = "jsonl"
	}
	if d.Changed("csv") && d.format != "csv" {
		return Usagef("--csv goes with --format csv")
	}
	if err := cmp.Or(d.checkParts(), d.running.Check(), report.CheckPage(d.page)); err != nil {
		return err
	}
	switch {
	case d.explain == "" && d.page == "" && (d.Changed("features") && !d.to.Thumbnails || d.Changed("images") || d.Changed("nearest")):
		return Usagef("--features, --images and --nearest go with --explain or --report")
	case d.explain != "where" && d.Changed("maps"):
		return Usagef("--maps goes with --explain where")
	case d.maps < 1:
		return Usagef("--maps %d: it is at least 1", d.maps)
	case d.explainBy.Nearest < 0:
		return Usagef("--nearest %d: it is a number of images", d.explainBy.Nearest)
	case d.move != "" && d.copy != "":
		return Usagef("--move-ood and --copy-ood exclude each other")
	case d.Changed("threshold") && d.Changed("max-false-alarms"):
		return Usagef("--threshold and --max-false-alarms exclude each other")
	case math.IsNaN(d.threshold):
		return Usagef("--threshold must be a number")
	case d.labels && slices.ContainsFunc(d.Args(), func(path string) bool { return images.AreSources(false, path) }):
		return Usagef("--labels goes with folders DIR/class/…/image on the disk")
	}
	d.explainBy.Nearest = cmp.Or(d.explainBy.Nearest, -1)
	d.opts.SetAside, d.opts.Copy = cmp.Or(d.move, d.copy), d.copy != ""
	return nil
}

const noThreshold = "the detector has no threshold, as it had too few calibration images: nothing is flagged"

// loadDetector loads the detector with the threshold that the flags say.
func (d *detecting) loadDetector(s Streams) (err error) {
	if d.opts.Detector, err = d.load(d.file); err != nil {
		return err
	}
	switch {
	case d.Changed("threshold"):
		d.opts.Detector.SetThreshold(d.threshold)
	case d.Changed("max-false-alarms"):
		return setFalseAlarms(d.opts.Detector, d.alarms)
	case math.IsInf(d.opts.Detector.Threshold, -1):
		fmt.Fprintln(s.Err, "detect: warning: "+noThreshold+"; --threshold or a larger --max-false-alarms sets one, and train --calibration cross:10 makes a detector that is calibrated by all images")
	}
	return nil
}

func (d *detecting) run(ctx context.Context, s Streams) (err error) {
	if err := d.check(); err != nil {
		return err
	}
	if err := d.loadDetector(s); err != nil {
		return err
	}
	if err := d.running.LoadRuntime(); err != nil {
		return err
	}
	d.opts.Drifted = d.warnDrift(s)
	var explainer *pipeline.Explainer
	if d.explain != "" || d.page != "" {
		if explainer, err = pipeline.NewExplainer(ctx, d.opts.Detector, d.explainBy); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, explainer.Close()) }()
		for _, note := range explainer.Notes() {
			fmt.Fprintf(ForPeople(s.Err), "detect: note: %s\n", d.adviseText(note))
		}
	}
	if d.explain != "" {
		d.opts.Explain, d.opts.Where, d.opts.MostMaps = explainer, d.explain == "where", d.maps
	}
	for _, arg := range d.Args() {
		if arg != "-" {
			d.opts.Paths = append(d.opts.Paths, arg)
		} else if d.opts.More == nil {
			d.opts.More = readPaths(s.In, d.null)
		}
	}
	if d.to.Out != "" {
		return d.runParts(ctx, s)
	}
	return d.judge(ctx, s, explainer)
}

// judge judges the images, and prints verdicts and what is to be said of all.
func (d *detecting) judge(ctx context.Context, s Streams, explainer *pipeline.Explainer) error {
	show := newPrinter(d.format, d.opts.SetAside != "", d.explain != "", d.raw, s.Out)
	progress := NewProgress(s.Err, "images", d.quiet || IsTerminal(s.Out))
	d.opts.Progress = progress.Count
	truth := newLabelCheck(d.opts.Detector.Classes)
	folders := slices.Clone(d.opts.Paths)
	label := func(j pipeline.Judgement) string {
		if !d.labels || j.Err != nil {
			return ""
		}
		return labelOf(j.Path, folders)
	}
	shown := newPage(d.page, d.opts.Detector, label)
	if d.Changed("threshold") {
		shown.alarms = 0
	}
	stats, err := pipeline.Detect(ctx, d.opts, func(j pipeline.Judgement) error {
		if j.SetAsideErr != nil && !d.quiet {
			fmt.Fprintf(s.Err, "detect: warning: %v\n", j.SetAsideErr)
		}
		if name := label(j); name != "" {
			truth.add(name, j.Verdict)
		}
		j.Err = d.adviseImage(j)
		if d.page != "" {
			shown.add(j)
		}
		j.SetAside = filepath.ToSlash(j.SetAside)
		return show(j)
	})
	progress.Close()
	var notes []string
	if stats.Unmapped > 0 {
		notes = append(notes, fmt.Sprintf("the first %s have a map of what made the score fall, and %d others have none: --maps sets how many do", count(cmp.Or(d.maps, pipeline.DefaultMaps), "flagged image"), stats.Unmapped))
		fmt.Fprintf(ForPeople(s.Err), "detect: note: %s\n", notes[0])
	}
	if err == nil && d.page != "" {
		if !d.quiet {
			fmt.Fprintf(ForPeople(s.Err), "detect: writing the page %s\n", d.page)
		}
		for i, note := range explainer.Notes() {
			notes = slices.Insert(notes, i, d.adviseText(note))
		}
		err = shown.write(ctx, explainer, pageFacts(d.file, d.opts.Detector, explainer, shown), d.line(), notes)
	}
	if err != nil {
		return err
	}
	if d.labels && !d.quiet {
		w := ForPeople(s.Err)
		if d.format == "table" {
			w = ForPeople(s.Out)
		}
		if _, err := fmt.Fprint(w, truth); err != nil {
			return err
		}
	}
	if !d.quiet {
		fmt.Fprintf(s.Err, "%s: %d in distribution, %d out of distribution, %d unreadable\n",
			count(stats.Images, "image"), stats.Images-stats.OOD-stats.Failed, stats.OOD, stats.Failed)
		if d.opts.SetAside != "" {
			fmt.Fprintf(s.Err, "%s set aside in %s, %d could not be\n", count(stats.OOD-stats.Kept, "image"), d.opts.SetAside, stats.Kept)
		}
	}
	return d.outcome(stats.OOD, stats.Failed, stats.Kept)
}

// outcome is the error of a run that judged all images, which its exit code tells; nil if
// there is nothing to tell.
func (d *detecting) outcome(ood, failed, kept int) error {
	switch {
	case d.failOnOOD && ood > 0:
		return fmt.Errorf("%w: %d", ErrOOD, ood)
	case failed > 0:
		return fmt.Errorf("%w: %d", ErrPartial, failed)
	case kept > 0:
		return fmt.Errorf("%w: %d", ErrNotSetAside, kept)
	}
	return nil
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
		for len(some) < most {
			var path string
			var more bool
			if len(some) == 0 {
				select {
				case path, more = <-paths:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			} else {
				select {
				case path, more = <-paths:
				default:
					return some, nil
				}
			}
			if !more {
				break
			}
			some = append(some, path)
		}
		switch {
		case len(some) > 0:
			return some, nil
		case failed != nil:
			return nil, fmt.Errorf("paths on standard input: %w", failed)
		}
		return nil, io.EOF
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
		return func(j pipeline.Judgement) error { return printJSON(w, j) }
	case "csv":
		return newCSVPrinter(aside, why, raw, w)
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
			_, err = io.WriteString(w, reasons(j.Explanation))
		}
		return err
	}
}

// printJSON prints the line of a judgement.
func printJSON(w io.Writer, j pipeline.Judgement) error {
	if j.Err != nil {
		return writeJSON(w, struct {
			Path      string `json:"path"`
			PathBytes []byte `json:"path_bytes,omitempty"`
			Error     string `json:"error"`
		}{disk.EncodePath(j.Path), disk.PathBytes(j.Path), j.Err.Error()})
	}
	return writeJSON(w, struct {
		Path      string `json:"path"`
		PathBytes []byte `json:"path_bytes,omitempty"`
		pipeline.Verdict
		SetAside   string `json:"set_aside,omitempty"`
		AsideBytes []byte `json:"set_aside_bytes,omitempty"`
		Error      string `json:"set_aside_error,omitempty"`
		*detector.Explanation
	}{disk.EncodePath(j.Path), disk.PathBytes(j.Path), j.Verdict,
		disk.EncodePath(j.SetAside), disk.PathBytes(j.SetAside), text(j.SetAsideErr), j.Explanation})
}

func newCSVPrinter(aside, why, raw bool, w io.Writer) func(pipeline.Judgement) error {
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
		cells := []string{cell(j.Path), "", "", "", "true", "", cell(text(errors.Join(j.Err, j.SetAsideErr)))} // not judged counts as OOD
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

// text returns what an error says, "" for none, in UTF-8.
func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ToValidUTF8(err.Error(), "\ufffd")
}

// checkParts checks and reads the flags that go with --out.
func (d *detecting) checkParts() (err error) {
	if d.to.Out == "" {
		if d.Changed("shard") || d.Changed("force") || d.Changed("speculate") || d.to.Thumbnails || d.format == pipeline.Parquet {
			return Usagef("--shard, --force, --speculate, --thumbnails and --format parquet go with --out")
		}
		return nil
	}
	for _, name := range []string{"move-ood", "copy-ood", "report", "labels"} {
		if d.Changed(name) {
			return Usagef("--%s does not go with --out", name)
		}
	}
	switch {
	case d.to.Thumbnails && d.format != pipeline.Parquet:
		return Usagef("--thumbnails goes with --format parquet")
	case !d.Changed("format") || d.format == pipeline.JSONL:
		d.to.Format = pipeline.JSONL
	case d.format == pipeline.Parquet && d.Changed("explain"):
		return Usagef("--explain goes with --format jsonl")
	case d.format == pipeline.Parquet:
		d.to.Format = d.format
	default:
		return Usagef("--out writes --format jsonl or parquet")
	}
	if d.Changed("shard") {
		if d.to.Shard, err = features.ParseShard(d.shard); err != nil {
			return Usagef("--shard: %w", err)
		}
	}
	return nil
}

// runParts runs detect --out.
func (d *detecting) runParts(ctx context.Context, s Streams) error {
	if d.opts.More != nil {
		return Usagef("the path - does not go with --out, which must know all images to divide them")
	}
	judge, err := judgeOf(d.file, d.opts, d.explain)
	if err != nil {
		return err
	}
	d.to.Detector, d.to.Judge = d.file, judge
	var line bytes.Buffer
	d.to.Line = func(j pipeline.Judgement) ([]byte, error) {
		line.Reset()
		j.Err = d.adviseImage(j)
		err := printJSON(&line, j)
		return line.Bytes(), err
	}
	if d.to.Thumbnails {
		axes, err := evaluation.NewMapAxes(ctx, d.opts.Detector, d.explainBy.Features)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(ForPeople(s.Err), "detect: note: x and y are empty: %v\n", d.advise(err))
		}
		d.to.Line = func(j pipeline.Judgement) ([]byte, error) { return d.picturedLine(ctx, axes, j) }
	}
	progress := d.progress(s, "images")
	d.opts.Progress = progress.Count
	record, err := pipeline.DetectParts(ctx, d.opts, d.to)
	progress.Close()
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ENOSPC) {
		fmt.Fprintln(s.Err, "detect: finished verdicts are saved; the same command continues")
	}
	if err != nil {
		return err
	}
	if !d.quiet {
		fmt.Fprintf(s.Err, "%s: %s: %d in distribution, %d out of distribution, %d unreadable\n",
			d.to.Out, count(record.Images, "image"), record.InDistribution, record.OOD, record.Failed)
	}
	return d.outcome(record.OOD, record.Failed, 0)
}

// picturedLine is the line of a judgement with a picture, and with a place where there are axes.
func (d *detecting) picturedLine(ctx context.Context, axes *evaluation.MapAxes, j pipeline.Judgement) ([]byte, error) {
	l := pipeline.VerdictLine{Path: disk.EncodePath(j.Path), Verdict: j.Verdict, Error: text(d.adviseImage(j))}
	if j.Err == nil {
		l.Thumbnail = report.Thumbnail(pictureOf(ctx, j))
	}
	if j.Err == nil && axes != nil {
		at, err := axes.Place(ctx, d.opts.Detector.Embeddings(j.Features))
		if err != nil {
			return nil, err
		}
		l.X, l.Y = &at[0][0], &at[0][1]
	}
	line, err := json.Marshal(l)
	return append(line, '\n'), err
}

// judgeOf identifies a detector with the options that its verdicts depend on.
func judgeOf(file string, opts pipeline.DetectOptions, explain string) (string, error) {
	hash := sha256.New()
	if err := disk.Copy(context.Background(), hash, file, disk.Values); err != nil {
		return "", err
	}
	fmt.Fprintf(hash, "\x00threshold %v\x00explain %s\x00model %s\x00pixels %d\x00time %v\x00device %s", opts.Detector.Threshold, explain,
		opts.Model, opts.MaxPixels, opts.ImageTimeout, opts.Device)
	return hex.EncodeToString(hash.Sum(nil)), nil
}
