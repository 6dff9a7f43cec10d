package command

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/report"
)

// discovering is the command discover.
type discovering struct {
	*command
	opts        pipeline.DiscoverOptions
	running     *RunFlags
	file        string
	load        func(string) (*pipeline.Detector, error)
	format, out string
	page        string // of --report
	raw, fail   bool
}

var _ = declare("discover", 35, "--detector DETECTOR [flags] PATH…", "Find what is new in a folder, all images judged together",
	`Judges images together: new images of one kind look alike, and many of them show where to look. Says which are new, so that at most the share --fdr of these is of known classes, in the mean over folders, and in which groups they come. It reads the features that the detector was trained and calibrated on.

The promise is about the images of one call: parts of a folder must be judged together. docs/discover.md says what breaks it.`, addDiscover)

func addDiscover(c *command) {
	c.readsURLs = []string{"features", ""}
	d := &discovering{command: c}
	c.sets(&d.opts, &d.opts.Detect)
	c.section("input")
	c.StringVar(&d.file, "detector", "", "file `DETECTOR` that train wrote")
	c.means("detector", "Detector")
	d.load = addPublicKeyFlag(c.FlagSet)
	c.StringArrayVar(&d.opts.Features, "features", nil, "judge the rows of `FEATURES` in the place of images (repeat)")
	c.StringArrayVar(&d.opts.Training, "training", nil, "`FEATURES` that the detector was trained and calibrated on (repeat; default: where they were)")
	c.section("verdict")
	c.Float64Var(&d.opts.FDR, "fdr", pipeline.DefaultFDR, "`SHARE` of the images that are called new that may be known ones")
	c.StringVar(&d.opts.GroupBy, "group-by", "", "of images whose paths match regular expression `PATTERN` alike one counts, and says what all are")
	c.Uint64Var(&d.opts.Seed, "seed", 0, "`N` that parts are drawn by")
	c.rare("seed")
	c.section("model")
	c.StringVar(&d.opts.Detect.Model, "model", "", "`DIR` of the detector's backbone"+foundModel)
	c.section("output")
	Choice(c.FlagSet, &d.format, "format", "table", "table|jsonl|csv", "what is printed for each image")
	c.addJSON("the same as --format jsonl: one object per line")
	eitherOr(c.FlagSet, &d.raw, "csv", "safe|raw", "safe: write ' before cells that a spreadsheet would run")
	c.StringVar(&d.out, "out", "", "write images.jsonl, summary.json and a list of the images of each group to the folder `DIR`")
	c.StringVar(&d.page, "report", "", "write a page of the groups to `FILE.html`")
	c.BoolVar(&d.fail, "fail-on-new", false, "exit with code 4 if an image is new")
	c.addQuiet("show neither progress nor the summary")
	c.section("speed and limits")
	c.Var((*Bytes)(&d.opts.Memory), "memory", "memory for the features of images, about (default: half of the machine's)")
	c.StringVar(&d.opts.Scratch, "scratch", "", "`DIR` for temporary files")
	c.addCacheFlag()
	c.programOnly(c.names()...)
	d.running = AddRunFlags(c.FlagSet, &d.opts.Detect.Options)
	c.rare(rareRunFlags...)
	c.rare("csv", "scratch")
	c.required = []string{"detector"}
	c.takes(0, anyNumber, "")
	c.run = d.run
}

// check checks the flags.
func (d *discovering) check() error {
	if d.asJSON {
		d.format = "jsonl"
	}
	switch {
	case d.NArg() > 0 && len(d.opts.Features) > 0:
		return Usagef("images are judged, or --features, not both")
	case d.NArg() == 0 && len(d.opts.Features) == 0:
		return Usagef("name images or folders of images to judge, or --features")
	case d.Changed("csv") && d.format != "csv":
		return Usagef("--csv goes with --format csv")
	case !(d.opts.FDR > 0 && d.opts.FDR < 1):
		return Usagef("--fdr %g: a share lies between 0 and 1", d.opts.FDR)
	}
	return cmp.Or(report.CheckPage(d.page), d.running.Check())
}

func (d *discovering) run(ctx context.Context, s Streams) (err error) {
	if err := d.check(); err != nil {
		return err
	}
	if d.out != "" {
		if err := os.MkdirAll(d.out, 0o777); err != nil {
			return err
		}
	}
	if d.opts.Detect.Detector, err = d.load(d.file); err != nil {
		return err
	}
	if len(d.opts.Features) == 0 {
		if err := d.running.LoadRuntime(); err != nil {
			return err
		}
	}
	d.opts.Detect.Drifted, d.opts.Detect.Paths = d.warnDrift(s), d.Args()
	progress := d.progress(s, "images")
	d.opts.Detect.Progress = progress.Count
	r, err := pipeline.Discover(ctx, d.opts)
	progress.Close()
	if err != nil {
		return err
	}
	for i, note := range r.Notes {
		r.Notes[i] = d.adviseText(note)
	}
	if err := d.print(s.Out, r); err != nil {
		return err
	}
	if d.out != "" {
		if err := d.write(r); err != nil {
			return err
		}
	}
	if d.page != "" {
		if !d.quiet {
			fmt.Fprintf(ForPeople(s.Err), "discover: writing the page %s\n", d.page)
		}
		if err := d.writePage(ctx, r); err != nil {
			return err
		}
	}
	if !d.quiet {
		fmt.Fprint(ForPeople(s.Err), d.describe(r))
	}
	switch {
	case d.fail && r.New > 0:
		return fmt.Errorf("%w: %d are new", ErrOOD, r.New)
	case r.Unreadable > 0:
		return fmt.Errorf("%w: %d", ErrPartial, r.Unreadable)
	}
	return nil
}

// print prints a line for each image, in their order.
func (d *discovering) print(w io.Writer, r *pipeline.Discovery) error {
	show := func(f pipeline.Found) error { return printFound(w, d.command, f) }
	switch d.format {
	case "csv":
		out := csv.NewWriter(w)
		cell := harmless
		if d.raw {
			cell = func(text string) string { return text }
		}
		number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
		if err := out.Write([]string{"path", "class", "confidence", "score", "ood", "p_value", "together", "q_value", "new", "group", "error"}); err != nil {
			return err
		}
		show = func(f pipeline.Found) error {
			cells := []string{cell(f.Path), "", "", "", "true", "", "", "", "", "", cell(text(d.adviseImage(f.Judgement)))} // not judged counts as OOD
			if f.Err == nil {
				copy(cells[1:], []string{cell(f.Class), number(f.Confidence), number(f.Score), strconv.FormatBool(f.OOD), number(f.PValue),
					number(f.Together), number(f.QValue), strconv.FormatBool(f.New), strconv.Itoa(f.Group)})
			}
			return out.Write(cells)
		}
		defer out.Flush()
	case "table":
		w = ForPeople(w)
		if _, err := fmt.Fprintf(w, "%-7s  %5s  %-20s  %10s  %9s  %9s  %8s  %s\n", "verdict", "group", "class", "confidence", "score", "together", "q-value", "path"); err != nil {
			return err
		}
		show = func(f pipeline.Found) error {
			if f.Err != nil {
				_, err := fmt.Fprintf(w, "%-7s  %5s  %-20s  %10s  %9s  %9s  %8s  %s: %v\n", "error", "", "", "", "", "", "", Printable(f.Path), d.adviseImage(f.Judgement))
				return err
			}
			verdict, group := "in", ""
			switch {
			case f.New:
				verdict = "new"
			case f.OOD:
				verdict = "OOD"
			}
			if f.Group >= 0 {
				group = strconv.Itoa(f.Group)
			}
			_, err := fmt.Fprintf(w, "%-7s  %5s  %-20s  %10.4f  %9.4f  %9.4f  %8.4f  %s\n", verdict, group, Printable(f.Class), f.Confidence, f.Score, f.Together, f.QValue, Printable(f.Path))
			return err
		}
	}
	for _, f := range r.Found {
		if err := show(f); err != nil {
			return err
		}
	}
	return nil
}

// printFound prints the line of JSON of an image.
func printFound(w io.Writer, c *command, f pipeline.Found) error {
	if f.Err != nil {
		f.Err = c.adviseImage(f.Judgement)
		return printJSON(w, f.Judgement)
	}
	return writeJSON(w, struct {
		Path      string `json:"path"`
		PathBytes []byte `json:"path_bytes,omitempty"`
		pipeline.Verdict
		Together float64 `json:"together"`
		QValue   float64 `json:"q_value"`
		New      bool    `json:"new"`
		Group    int     `json:"group"`
	}{disk.EncodePath(f.Path), disk.PathBytes(f.Path), f.Verdict, f.Together, f.QValue, f.New, f.Group})
}

// usualOut is the folder of --out that advice names.
const usualOut = "new"

// list is the file of the images of a group, which train --add reads.
func (d *discovering) list(group int) string {
	return filepath.Join(cmp.Or(d.out, usualOut), fmt.Sprintf("group-%d.txt", group))
}

// makeClass is the command that makes a class of a group.
func (d *discovering) makeClass(group int) string {
	return CommandLine("mlrbfn", []string{"train", "--detector", d.file, "--add", "NAME=" + d.list(group), "--out", "NEW.safetensors"})
}

// write writes the files of --out.
func (d *discovering) write(r *pipeline.Discovery) error {
	groups := make([]strings.Builder, len(r.Groups))
	for _, f := range r.Found {
		if f.Group >= 0 {
			path, err := filepath.Abs(filepath.FromSlash(f.Path))
			if err != nil {
				return err
			}
			fmt.Fprintln(&groups[f.Group], path)
		}
	}
	err := disk.Write(filepath.Join(d.out, "images.jsonl"), func(w io.Writer) error {
		for _, f := range r.Found {
			if err := printFound(w, d.command, f); err != nil {
				return err
			}
		}
		return nil
	})
	err = errors.Join(err, disk.Write(filepath.Join(d.out, "summary.json"), func(w io.Writer) error { return writeJSON(w, r) }))
	for g := range groups {
		err = errors.Join(err, disk.Write(d.list(g), disk.Bytes([]byte(groups[g].String()))))
	}
	return err
}

// describe says what was found.
func (d *discovering) describe(r *pipeline.Discovery) string {
	var b strings.Builder
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "discover: note: %s\n", note)
	}
	fmt.Fprintf(&b, "%s: %d new, of which at most %.3g%% are known ones in the mean; at least %d are new (95%%); %d unreadable",
		count(r.Images, "image"), r.New, 100*r.FDR, r.NewAtLeast, r.Unreadable)
	if r.Copies > 0 {
		fmt.Fprintf(&b, "; %d have the features of another, or are of its group, and count once with it", r.Copies)
	}
	fmt.Fprintf(&b, "\n")
	if r.New == 0 && r.Calibration > 0 {
		fmt.Fprintf(&b, "With %s about %d must be found at once for any to be called new.\n", count(r.Calibration, "calibration image"), r.LeastFound)
	}
	for g, group := range r.Groups[:min(len(r.Groups), mostRows)] {
		fmt.Fprintf(&b, "group %d: %s, nearest to %s, such as %s\n", g, count(group.Images, "image"), Printable(group.Nearest), Printable(r.Found[group.Typical[0]].Path))
		if d.out != "" && len(d.opts.Features) == 0 {
			fmt.Fprintf(&b, "  %s\n", d.makeClass(g))
		}
	}
	andMore(&b, len(r.Groups)-mostRows, "group")
	if len(r.Groups) > 0 && d.out == "" && len(d.opts.Features) == 0 {
		fmt.Fprintf(&b, "--out DIR writes a list of each group, which train --add NAME=LIST makes a class of.\n")
	}
	return b.String()
}
