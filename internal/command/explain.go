package command

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// reasons is the text of an explanation below the line of its verdict.
func reasons(e *pipeline.Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "         %s\n", e.Why)
	for _, p := range e.Parts {
		if math.IsNaN(p.Deviations) {
			fmt.Fprintf(&b, "           %-10s adds %8.2f           %s\n", p.Name, p.Adds, p.Meaning)
			continue
		}
		fmt.Fprintf(&b, "           %-10s %6.1f %-13s  %s\n", p.Name, p.Deviations, bar(p.Deviations), p.Meaning)
	}
	for i, n := range e.Nearest {
		title := ""
		if i == 0 {
			title = "nearest"
		}
		fmt.Fprintf(&b, "           %-10s %6.2f  %s  %s\n", title, n.Distance, Printable(n.Class), Printable(cmp.Or(n.Image.Path, fmt.Sprintf("row %d", n.Row))))
	}
	if e.WhereErr != nil {
		fmt.Fprintf(&b, "           which region made the score fall is not known: %v\n", e.WhereErr)
	}
	if m := e.Where; m != nil {
		b.WriteString("           which region made the score fall: darkest, most\n")
		most := slices.Max(append([]float32{0}, m.Values...))
		for row := range slices.Chunk(m.Values, m.Width) {
			b.WriteString("             ")
			for _, v := range row {
				shade := 0
				if v > 0 {
					shade = min(int(v/most*float32(len(shades))), len(shades)-1)
				}
				b.WriteString(strings.Repeat(shades[shade], 2))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

var shades = []string{"·", "░", "▒", "▓", "█"}

// bar draws standard deviations from −6 to 6: to the left of the middle what is
// less in-distribution than usual.
func bar(deviations float64) string {
	const side = 6
	n := int(math.Round(max(-side, min(side, deviations))))
	if n < 0 {
		return strings.Repeat(" ", side+n) + strings.Repeat("█", -n) + "│" + strings.Repeat(" ", side)
	}
	return strings.Repeat(" ", side) + "│" + strings.Repeat("█", n) + strings.Repeat(" ", side-n)
}

// page collects what detect --report shows. Of many images it keeps those that are
// most surprising.
type page struct {
	file     string
	detector *pipeline.Detector
	label    func(pipeline.Judgement) string // that a person gave; "" if unknown
	byPValue bool
	alarms   float64 // that the threshold was set for; 0 if unknown

	kept        []pipeline.Judgement
	scores      []float64 // of all images, or their p-values
	failed      []features.Failure
	unread, ood int
}

func newPage(file string, d *pipeline.Detector, label func(pipeline.Judgement) string) *page {
	p := &page{file: file, detector: d, label: label, alarms: 1 - d.TargetTPR, byPValue: len(d.Folds) > 0}
	for c := range d.Classes {
		p.byPValue = p.byPValue || d.ThresholdOf(c) != d.Threshold
	}
	return p
}

// moreSurprising orders judgements.
func moreSurprising(a, b pipeline.Judgement) int {
	return cmp.Or(cmp.Compare(a.PValue, b.PValue), cmp.Compare(a.Score, b.Score))
}

// add takes a judgement.
func (p *page) add(j pipeline.Judgement) {
	if j.Err != nil {
		if p.unread++; len(p.failed) < report.MostVerdicts {
			p.failed = append(p.failed, features.Failure{Path: j.Path, Error: text(j.Err)})
		}
		return
	}
	if j.OOD {
		p.ood++
	}
	if p.byPValue {
		p.scores = append(p.scores, j.PValue)
	} else {
		p.scores = append(p.scores, j.Score)
	}
	j.Features = slices.Clone(j.Features) // others lie beside them
	if j.Explanation != nil && !j.OOD {
		j.Features = nil
	}
	if p.kept = append(p.kept, j); len(p.kept) == 2*report.MostVerdicts {
		p.cut()
	}
}

// cut keeps the most surprising images.
func (p *page) cut() {
	slices.SortStableFunc(p.kept, moreSurprising)
	if len(p.kept) > report.MostVerdicts {
		clear(p.kept[report.MostVerdicts:])
		p.kept = p.kept[:report.MostVerdicts]
	}
}

// write explains what is not explained yet, and writes the page.
func (p *page) write(ctx context.Context, e *pipeline.Explainer, facts []evaluation.Fact, line string, notes []string) error {
	p.cut()
	var x []float32
	var verdicts []pipeline.Verdict
	var at []int
	for i, j := range p.kept {
		if j.Explanation == nil {
			x, verdicts, at = append(x, j.Features...), append(verdicts, j.Verdict), append(at, i)
		}
	}
	all, err := e.Explain(ctx, x, verdicts)
	if err != nil {
		return err
	}
	for k, i := range at {
		p.kept[i].Explanation = &all[k]
	}
	groups, err := p.groups(ctx, e)
	if err != nil {
		return err
	}
	v := report.VerdictsOf(p.detector, p.byPValue)
	v.Program = started()
	v.Facts, v.Commands, v.Detector, v.MaxFalseAlarms = facts, []string{line}, p.detector.File(), p.alarms
	v.Scores, v.Failed, v.Notes = p.scores, p.failed, notes
	if p.unread > len(p.failed) {
		v.Notes = append(v.Notes, fmt.Sprintf("%d images could not be read; the first %d are listed", p.unread, len(p.failed)))
	}
	for i, j := range p.kept {
		item := p.item(ctx, j)
		item.Group = groups[i]
		v.Items = append(v.Items, item)
	}
	return report.WriteVerdicts(p.file, v)
}

// mostGrouped is how many flagged images are put into groups, the most surprising first: the
// work grows with the square of their number.
const mostGrouped = 2000

// groups returns the number of the group of each kept image, from 1 on, and 0 for those that
// look like no other flagged one. The features are let go.
func (p *page) groups(ctx context.Context, e *pipeline.Explainer) (map[int]int, error) {
	var rows [][]float32
	var at []int
	for i := range p.kept {
		if j := &p.kept[i]; j.OOD && j.Features != nil && len(rows) < mostGrouped {
			rows, at = append(rows, j.Features), append(at, i)
		}
		p.kept[i].Features = nil
	}
	if len(e.Sets()) == 0 || len(rows) < 2 {
		return nil, nil
	}
	reach, _, err := features.Reach(ctx, e.Sets())
	if err != nil {
		return nil, err
	}
	groups, number := map[int]int{}, 0
	for _, group := range features.LookAlikes(rows, make([]string, len(rows)), reach, len(rows)) {
		if len(group) < 2 {
			continue
		}
		number++
		for _, k := range group {
			groups[at[k]] = number
		}
	}
	return groups, nil
}

// started is the program as it was started.
func started() string {
	if name := os.Args[0]; !slices.Contains(links, strings.TrimSuffix(filepath.Base(name), ".exe")) {
		return name
	}
	return "mlrbfn"
}

// Bounds of a picture for a thumbnail.
const (
	mostThumbnailPixels = 1 << 26
	thumbnailTime       = 20 * time.Second
)

func (p *page) item(ctx context.Context, j pipeline.Judgement) report.Verdict {
	picture := pictureOf(ctx, j)
	picture.Label = p.label(j)
	return report.Verdict{Image: picture, Verdict: j.Verdict, Explanation: *j.Explanation}
}

// pictureOf is a judged image as a page shows it.
func pictureOf(ctx context.Context, j pipeline.Judgement) images.Picture {
	return images.Picture{Path: j.Path, Decode: func() (image.Image, error) {
		ctx, cancel := context.WithTimeout(ctx, thumbnailTime)
		defer cancel()
		return j.Image(ctx, preprocess.DecodeOptions{MaxPixels: mostThumbnailPixels})
	}}
}

// pageFacts lists what a reader needs to repeat a run of detect.
func pageFacts(file string, d *pipeline.Detector, e *pipeline.Explainer, p *page) []evaluation.Fact {
	facts := append(madeBy(), evaluation.Fact{Name: "detector", Value: file}, evaluation.Fact{Name: "score", Value: d.ScoreName()},
		evaluation.Fact{Name: "images", Value: fmt.Sprintf("%s, %d of them out of distribution, %d unreadable", count(len(p.scores)+p.unread, "image"), p.ood, p.unread)})
	if d.Source.Model != "" {
		facts = append(facts, evaluation.Fact{Name: "backbone", Value: filepath.Base(d.Source.Model)})
	}
	if d.Source.SHA256 != "" {
		facts = append(facts, evaluation.Fact{Name: "SHA-256 of the backbone", Value: d.Source.SHA256})
	}
	for _, set := range e.Sets() {
		facts = append(facts, evaluation.Fact{Name: "training features", Value: set.Dir})
	}
	return facts
}
