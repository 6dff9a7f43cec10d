package command

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// labelCheck compares verdicts with labels.
type labelCheck struct {
	classes []string // that the detector knows
	labels  map[string]*labelled
}

// labelled counts the verdicts on the images of one label.
type labelled struct {
	images, right, flagged int
	named                  map[string]int // images by the class of the verdict
	accepted               map[string]int // those of them that are not flagged
	scores                 []float64      // of all images
}

func newLabelCheck(classes []string) *labelCheck {
	return &labelCheck{classes, map[string]*labelled{}}
}

// add counts a verdict on an image with a label, which is a class of the
// detector or any other name.
func (a *labelCheck) add(label string, v pipeline.Verdict) {
	l := a.labels[label]
	if l == nil {
		l = &labelled{named: map[string]int{}, accepted: map[string]int{}}
		a.labels[label] = l
	}
	l.images++
	l.scores = append(l.scores, v.Score)
	l.named[v.Class]++
	if v.Class == label {
		l.right++
	}
	if v.OOD {
		l.flagged++
	} else {
		l.accepted[v.Class]++
	}
}

// mostRows bounds the rows of a printed table.
const mostRows = 20

// String is the shares over all images, those of each label, and the
// confusion matrix if it is small.
func (a *labelCheck) String() string {
	w := new(strings.Builder)
	var known, unknown []string
	var in, out labelled
	recall := 0.0
	for _, name := range slices.Sorted(maps.Keys(a.labels)) {
		l, total := a.labels[name], &out
		if slices.Contains(a.classes, name) {
			known, total = append(known, name), &in
			recall += float64(l.right) / float64(l.images)
		} else {
			unknown = append(unknown, name)
		}
		total.images += l.images
		total.right += l.right
		total.flagged += l.flagged
		total.scores = append(total.scores, l.scores...)
	}
	if in.images+out.images == 0 {
		return "\nno image has a label: an image's label is the folder that it is in below a PATH\n"
	}
	fmt.Fprintln(w)
	if in.images > 0 {
		right := ""
		if len(a.classes) > 1 {
			right = fmt.Sprintf("right class %s (mean over classes %.1f%%), ", percent(in.right, in.images), 100*recall/float64(len(known)))
		}
		fmt.Fprintf(w, "%s of known classes: %sfalsely flagged %s\n", count(in.images, "image"), right, percent(in.flagged, in.images))
	}
	if out.images > 0 {
		fmt.Fprintf(w, "%s of other classes: caught %s%s\n", count(out.images, "image"), percent(out.flagged, out.images), auroc(", AUROC ", in, out))
	}
	fmt.Fprintln(w)

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "label\timages\tright class\tflagged\tAUROC\ttaken for (images)\t")
	// The worst come first.
	slices.SortStableFunc(known, func(x, y string) int {
		return cmp.Compare(float64(a.labels[x].right)/float64(a.labels[x].images), float64(a.labels[y].right)/float64(a.labels[y].images))
	})
	rows := slices.Concat(known, unknown)
	for _, name := range rows[:min(len(rows), mostRows)] {
		l := a.labels[name]
		right, area := "–", "–"
		switch isKnown := slices.Contains(known, name); {
		case !isKnown:
			area = auroc("", in, *l)
		case len(a.classes) > 1:
			right = percent(l.right, l.images)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t\n", Printable(name), l.images, right, percent(l.flagged, l.images), area, l.takenFor(name))
	}
	t.Flush()
	andMore(w, len(rows)-mostRows, "label")
	if len(a.classes) > 10 || len(rows) > mostRows {
		return w.String()
	}
	fmt.Fprintln(w, "\nconfusion matrix: label by verdict")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\t")
	for _, class := range a.classes {
		fmt.Fprintf(t, "%s\t", Printable(class))
	}
	fmt.Fprintln(t, "OOD\t")
	slices.Sort(known)
	for _, name := range slices.Concat(known, unknown) {
		fmt.Fprintf(t, "%s\t", Printable(name))
		for _, class := range a.classes {
			fmt.Fprintf(t, "%d\t", a.labels[name].accepted[class])
		}
		fmt.Fprintf(t, "%d\t\n", a.labels[name].flagged)
	}
	t.Flush()
	return w.String()
}

// takenFor names the wrong class that most images of a label were given.
func (l *labelled) takenFor(label string) string {
	most := ""
	for _, class := range slices.Sorted(maps.Keys(l.named)) {
		if class != label && (most == "" || l.named[class] > l.named[most]) {
			most = class
		}
	}
	if most == "" {
		return ""
	}
	return fmt.Sprintf("%s (%d)", Printable(most), l.named[most])
}

// auroc says how well scores separate images of known classes from others; nothing
// where there are no known ones.
func auroc(before string, known, other labelled) string {
	if known.images == 0 {
		return ""
	}
	return fmt.Sprintf("%s%.3f", before, metrics.AUROC(known.scores, other.scores))
}

func percent(n, of int) string { return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(of)) }
