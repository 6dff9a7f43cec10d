package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/report"
)

var _ = declare("inspect", 50, "--features FEATURES… --out REPORT [flags]", "Find wrong labels, copies, leaks and odd images",
	`Finds what is wrong with the images behind feature sets: labels that seem wrong, images that occur twice, images that the test set has as well, images that are far from every class, and odd files. Writes REPORT/report.html to look at and REPORT/issues.csv to act on: delete the lines that you disagree with, then train with --exclude issues.csv, or with --relabel issues.csv. No image is changed.`, addInspect)

func addInspect(c *command) {
	c.readsURLs = []string{"features", "test"}
	opts := pipeline.InspectOptions{}
	c.sets(&opts)
	c.section("input")
	c.StringArrayVar(&opts.Features, "features", nil, "`FEATURES` to inspect (repeat for several)")
	c.StringArrayVar(&opts.Test, "test", nil, "`FEATURES` of test images that should not show the same (repeat)")
	c.StringArrayVar(&opts.Roots, "images", nil, "`FOLDER` that images may come from (repeat); default: those that the feature sets record")
	c.BoolVar(&opts.NoImages, "no-images", false, "look at features alone, which is faster and finds fewer copies")
	c.section("output")
	out := c.String("out", "", "folder `REPORT` to write to")
	c.means("out", "Out")
	c.addJSON("print the result as one JSON object")
	c.addQuiet("show no progress")
	c.section("running")
	c.Float64Var(&opts.FalseOutliers, "false-outliers", evaluation.DefaultFalseOutliers, "`SHARE` of the listed outliers that may be none; 1 lists all images, the farthest first")
	c.IntVar(&opts.Folds, "folds", evaluation.DefaultFolds, "parts for predictions by heads that were fitted without the image")
	c.Uint64Var(&opts.Seed, "seed", 0, "`N` that the parts are drawn by")
	c.Var((*Bytes)(&opts.Memory), "memory", "memory to use, about (default: half of the machine's)")
	c.addCacheFlag()
	c.StringVar(&opts.Scratch, "scratch", "", "`DIR` for temporary files")
	c.rare("false-outliers", "folds", "seed", "scratch", "images")
	c.required = []string{"features", "out"}
	c.run = func(ctx context.Context, s Streams) error {
		if err := report.Check(*out); err != nil {
			return err
		}
		progress := c.progress(s, "")
		opts.Progress = progress.Phase
		r, err := pipeline.Inspect(ctx, opts)
		if err != nil {
			progress.Close()
			return err
		}
		err = errors.Join(os.MkdirAll(*out, 0o777), training.WriteIssues(filepath.Join(*out, "issues.csv"), r.Issues))
		if err == nil {
			progress.Say("inspect: making the page")
			err = report.WriteInspection(*out, inspectionPage(r, c.line()))
		}
		progress.Close()
		if err != nil {
			return err
		}
		return c.printInspection(s, *out, r)
	}
}

// issueKinds are the sections of the page.
var issueKinds = []struct {
	kind              training.IssueKind
	same              bool // of copies
	title, note, what string
}{
	{training.Label, false, "Labels that seem wrong", "A linear head that was fitted without the image gives it another class. The most certain come first.", "labels that seem wrong"},
	{training.Leak, true, "Images that the test set has as well", "A detector that was trained on these is tested too kindly.", "images that the test set has as well"},
	{training.Leak, false, "Images like some of the test set", "Cropped or changed, or other photographs of the same.", "images like some of the test set"},
	{training.Duplicate, true, "Copies", "The same image twice, perhaps resized, mirrored or compressed again. On the left and ticked is the worse one: smaller, more compressed, or else later.", "copies"},
	{training.Duplicate, false, "Similar images", "Cropped or changed copies, or other photographs of the same: you decide. On the left is the worse one.", "similar images, perhaps copies"},
	{training.Outlier, false, "Outliers", "Images that are much farther from every class than images usually are, whatever their label: none of them is suggested for another class.", "outliers"},
}

// mostShown is how many images of a kind the page shows.
const mostShown = 200

func inspectionPage(r *pipeline.InspectReport, line string) report.Inspection {
	page := report.Inspection{
		Frame:   report.Frame{Lead: []string{inspectionLead(r)}, Notes: inspectionNotes(r), Commands: []string{line}, Facts: madeBy()},
		Classes: r.Classes, Overlaps: r.Overlaps, Failed: r.Failed,
	}
	page.Head = issueLines()
	for _, k := range issueKinds {
		section := report.FindingSection{ID: fmt.Sprintf("%s-%t", k.kind, k.same), Title: k.title, Note: k.note}
		for _, i := range r.Issues {
			if i.Kind != k.kind || i.Same() != k.same {
				continue
			}
			if section.Total++; section.Total > mostShown {
				continue
			}
			f := report.Finding{Image: r.Images[i.Row], Suggested: i.Suggested, Score: fmt.Sprintf("%.2f", i.Score)}
			f.Image.Label = i.Label
			f.Line, f.Ticked = strings.TrimPrefix(issueLines(i), page.Head), k.kind == training.Duplicate && k.same
			f.Image.Path = cmp.Or(f.Image.Path, fmt.Sprintf("row %d", i.Row))
			if i.OtherRow >= 0 {
				other := r.Images[i.OtherRow]
				f.Other = &other
				if k.kind == training.Duplicate {
					i.Path, i.Row, i.Label, i.Other, i.OtherRow = i.Other, i.OtherRow, other.Label, i.Path, i.Row
					f.OtherLine = strings.TrimPrefix(issueLines(i), page.Head)
				}
			}
			section.Shown = append(section.Shown, f)
		}
		page.Sections = append(page.Sections, section)
	}
	for _, odd := range r.Odd[:min(len(r.Odd), mostShown)] {
		page.Odd = append(page.Odd, report.Finding{Image: r.Images[odd.Row], What: odd.What})
	}
	return page
}

// issueLines are lines of issues.csv, with the first one.
func issueLines(issues ...training.Issue) string {
	var text strings.Builder
	_ = training.FormatIssues(&text, issues) // a Builder takes all
	return text.String()
}

func sharePercent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.1f%%", 100*v)
}

func inspectionLead(r *pipeline.InspectReport) string {
	lead := fmt.Sprintf("%s of %s", count(r.Rows, "image"), count(len(r.Classes), "class"))
	if !math.IsNaN(r.Accuracy) {
		lead += fmt.Sprintf("; for %s of the labelled ones a head that had not seen the image predicts the label", sharePercent(r.Accuracy))
	}
	if r.Test > 0 {
		lead += fmt.Sprintf("; compared with %s", count(r.Test, "test image"))
	}
	return lead + "."
}

// inspectionNotes says what was not looked at.
func inspectionNotes(r *pipeline.InspectReport) []string {
	notes := append([]string{}, r.Notes...)
	if r.Unread > 0 {
		notes = append(notes, plural(r.Unread, "%d image cannot be read any more, and is judged by its features alone", "%d images cannot be read any more, and are judged by their features alone")+"; --images names the folder that they are in now")
	}
	if n := len(r.Failed); n > 0 {
		notes = append(notes, fmt.Sprintf("%s could not be decoded when features were extracted: the page lists them", count(n, "file")))
	}
	if r.Unlabelled > 0 {
		notes = append(notes, plural(r.Unlabelled, "%d image has no label, and is looked at for copies alone", "%d images have no label, and are looked at for copies alone"))
	}
	return notes
}

func (c *command) printInspection(s Streams, out string, r *pipeline.InspectReport) error {
	result := struct {
		Out        string         `json:"out"`
		Rows       int            `json:"rows"`
		Test       int            `json:"test,omitempty"`
		Accuracy   *float64       `json:"accuracy"` // out of fold
		Issues     map[string]int `json:"issues"`
		Same       map[string]int `json:"same"` // of the issues, those that are not only similar
		Odd        int            `json:"odd"`
		Unread     int            `json:"unread"`
		Unlabelled int            `json:"unlabelled"`
	}{out, r.Rows, r.Test, nil, map[string]int{}, map[string]int{}, len(r.Odd), r.Unread, r.Unlabelled}
	if !math.IsNaN(r.Accuracy) {
		result.Accuracy = &r.Accuracy
	}
	if !c.asJSON {
		for _, note := range inspectionNotes(r) {
			fmt.Fprintf(ForPeople(s.Err), "inspect: note: %s\n", note)
		}
	}
	text := inspectionLead(r) + "\n"
	for _, k := range issueKinds {
		n := 0
		for _, i := range r.Issues {
			if i.Kind == k.kind && i.Same() == k.same {
				n++
			}
		}
		result.Issues[string(k.kind)] += n
		if k.same {
			result.Same[string(k.kind)] = n
		}
		if k.kind != training.Leak || r.Test > 0 {
			text += fmt.Sprintf("%6d  %s\n", n, k.what)
		}
	}
	issues := filepath.Join(out, "issues.csv")
	return c.print(s, result, text+fmt.Sprintf("%6d  odd files\nLook at %s; delete from %s what you disagree with; then train with --exclude or --relabel %s.\n",
		len(r.Odd), filepath.Join(out, "report.html"), issues, issues))
}
