package evaluation

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file says which method is ahead, and how far that can be said.

// Difference is the mean AUROC of a method over the sets of a group minus that of
// another, with the interval of a paired bootstrap over the images and the sets.
type Difference struct {
	Method string  `json:"method"`
	Other  string  `json:"other"`
	Group  string  `json:"group"`
	AUROC  float64 `json:"auroc"`
	metrics.Interval
}

// differencesName is the file of a report that lists the differences.
const differencesName = "differences.csv"

// saveDifferences writes differences.csv to the folder of a report.
func (e *Evaluation) saveDifferences(dir string) error {
	return disk.Write(filepath.Join(dir, differencesName), func(w io.Writer) error {
		out := csv.NewWriter(w)
		rows := [][]string{{"method", "other", "group", "auroc", "low", "high"}}
		for _, d := range e.Differences {
			row := []string{d.Method, d.Other, d.Group}
			for _, v := range []float64{d.AUROC, d.Low, d.High} {
				row = append(row, strconv.FormatFloat(v, 'g', -1, 64))
			}
			rows = append(rows, row)
		}
		return out.WriteAll(rows)
	})
}

// Difference returns that of two methods on a group, and whether it is known.
func (e *Evaluation) Difference(method, other, group string) (Difference, bool) {
	for _, d := range e.Differences {
		switch {
		case d.Group != group:
		case d.Method == method && d.Other == other:
			return d, true
		case d.Method == other && d.Other == method:
			return Difference{method, other, group, -d.AUROC, metrics.Interval{Low: -d.High, High: -d.Low}}, true
		}
	}
	return Difference{}, false
}

// Best says which methods have the highest mean AUROC on the sets of a group.
type Best struct {
	Group   string
	Methods []string // several if they are equal
	AUROC   float64
	// Alike are other methods that the test images and their sets do not tell from Methods[0]:
	// the interval of the difference has 0 in it.
	Alike []string
}

// equal is by how much equal AUROCs may differ, by rounding.
const equal = 1e-12

// means returns the mean AUROC of each method on a group, over the seeds.
func (e *Evaluation) means(group string) (methods []string, auroc map[string]float64) {
	auroc = map[string]float64{}
	for _, r := range e.Results {
		if r.Group == group && r.Seed == "mean" && r.Dataset == "mean" && !math.IsNaN(r.AUROC) {
			methods, auroc[r.Method] = append(methods, r.Method), r.AUROC
		}
	}
	return methods, auroc
}

// Best returns the best methods of a group, and false if no method has an AUROC there.
func (e *Evaluation) Best(group string) (b Best, ok bool) {
	methods, auroc := e.means(group)
	if len(methods) == 0 {
		return b, false
	}
	b = Best{Group: group, AUROC: math.Inf(-1)}
	for _, m := range methods {
		b.AUROC = max(b.AUROC, auroc[m])
	}
	for _, m := range methods {
		if b.AUROC-auroc[m] <= equal {
			b.Methods = append(b.Methods, m)
		}
	}
	for _, m := range methods {
		if d, known := e.Difference(b.Methods[0], m, group); known && d.Low <= 0 && !slices.Contains(b.Methods, m) {
			b.Alike = append(b.Alike, m)
		}
	}
	return b, true
}

// Findings says in sentences which methods are ahead on each group, what the one with the
// highest AUROC costs on the other group, and how it compares with Own, which was not
// chosen on the test images.
func (e *Evaluation) Findings() (all []string) {
	chosen := 0 // methods that one was chosen from that nobody could have known
	for _, group := range []string{metrics.Near, metrics.Far} {
		b, ok := e.Best(group)
		if !ok {
			continue
		}
		methods, auroc := e.means(group)
		text := fmt.Sprintf("On %s-OOD ", group)
		switch {
		case len(methods) == 1:
			text += fmt.Sprintf("%s has a mean AUROC of %s", methods[0], percent(b.AUROC))
		case len(b.Methods) > 1:
			text += fmt.Sprintf("%d of %d methods share the highest mean AUROC, %s: %s", len(b.Methods), len(methods), percent(b.AUROC), some(b.Methods))
		case len(e.Differences) == 0:
			text += fmt.Sprintf("%s has the highest mean AUROC, %s; without intervals nobody knows whether it is ahead", b.Methods[0], percent(b.AUROC))
		case len(b.Alike) > 0:
			text += fmt.Sprintf("%s has the highest mean AUROC, %s, but these images and sets do not tell it from %s", b.Methods[0], percent(b.AUROC), some(b.Alike))
		default:
			text += fmt.Sprintf("%s is ahead of the other methods, with a mean AUROC of %s", b.Methods[0], percent(b.AUROC))
		}
		if first := b.Methods[0]; len(b.Methods) == 1 && len(methods) > 1 && first != e.Own {
			chosen = max(chosen, len(methods))
			text += e.cost(first, group)
			if own, ok := auroc[e.Own]; ok {
				text += fmt.Sprintf("; %s is %s points below it", e.Own, points(b.AUROC-own))
				if d, known := e.Difference(first, e.Own, group); known {
					text += fmt.Sprintf(" (%s to %s)", points(d.Low), points(d.High))
				}
			}
		}
		all = append(all, text+".")
	}
	if chosen > 2 {
		all = append(all, fmt.Sprintf("A method that is chosen on these test images, from %d, looks better than it is. Choose on other images than those that you report.", chosen))
	}
	return all
}

// cost says what a method has on the other group, and how far it is below the highest there.
func (e *Evaluation) cost(method, group string) string {
	other := metrics.Far
	if group == metrics.Far {
		other = metrics.Near
	}
	best, ok := e.Best(other)
	_, auroc := e.means(other)
	own, known := auroc[method]
	if !ok || !known || best.AUROC-own <= equal {
		return ""
	}
	return fmt.Sprintf("; on %s-OOD it has %s, %s points below the highest", other, percent(own), points(best.AUROC-own))
}

func percent(v float64) string { return points(v) + "%" }

func points(v float64) string { return fmt.Sprintf("%.2f", 100*v) }

// some lists the first names.
func some(names []string) string {
	const most = 5
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// Reliability says how far the confidences of a detector, or of the heads of all
// seeds together, are probabilities on the labelled in-distribution test images. Error and
// Chance are means over the seeds, whose images are the same; Bins are of all together.
type Reliability struct {
	Images, Seeds int
	metrics.Reliability
}

func (r Reliability) String() string {
	seeds := ""
	if r.Seeds > 1 {
		seeds = fmt.Sprintf(", mean of %d seeds", r.Seeds)
	}
	return fmt.Sprintf("expected calibration error %.4f (%d bins, %d images%s); %.4f would be chance alone", r.Error, len(r.Bins), r.Images, seeds, r.Chance)
}

// reliability is that of the detector that is given, or of the heads, where there
// are any; else nil.
func (e *evaluation) reliability(ctx context.Context) (*Reliability, error) {
	all := lists.Map(e.heads, func(h trained) *detector.Detector { return h.heads })
	if e.opts.Detector != nil {
		all = []*detector.Detector{e.opts.Detector}
	}
	if len(all) == 0 || len(e.train.Classes) == 1 {
		return nil, nil
	}
	var confidences []float64
	var right []bool
	const bins = 15
	r := &Reliability{Seeds: len(all)}
	for _, d := range all {
		from := len(confidences)
		own := *d
		own.Scoring, own.Folds = nil, nil // the confidence is the heads'
		verdicts, err := verdictsOn(ctx, &own, e.id)
		if err != nil {
			return nil, err
		}
		for i, y := range e.idLabels {
			if y >= 0 {
				confidences, right = append(confidences, verdicts[i].Confidence), append(right, int64(verdicts[i].Label) == y)
			}
		}
		if r.Images = len(confidences) - from; r.Images == 0 {
			return nil, nil
		}
		one := metrics.Reliable(confidences[from:], right[from:], bins)
		r.Error, r.Chance = r.Error+one.Error/float64(len(all)), r.Chance+one.Chance/float64(len(all))
	}
	r.Bins = metrics.Reliable(confidences, right, bins).Bins
	return r, nil
}
