package detector

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

// words are those of a part of a score.
type words posthoc.Words

// wordsOf has the words of the parts that are no post-hoc scores.
var wordsOf = map[string]words{
	DensityPart:  {"far from every class", "near to a class", "farther from every class"},
	DecisionPart: {"between {A} and {B}", "clearly of one class", "less clearly of one class (between {A} and {B})"},
	HeadPart:     {"far from every class, or between {A} and {B}", "surely of one class", "less surely of any class, by the head's own score,"},
	HeadScore:    {"low confidence in every class", "confident of a class", "less confident of any class"},
	PatchesPart:  {"with places unlike those of the training images", "with places like those of the training images", "stranger in its strangest places"},
	OutliersPart: {"like the known outliers", "unlike the known outliers", "more like the known outliers"},
	GuardPart:    {"beyond nearly all in-distribution images", "within the range of in-distribution images", "farther from every class"},
}

// seenAt says what layers at a depth of a network see.
var seenAt = map[string]string{earlyLayer: "colours and textures", middleLayer: "patterns and parts", lateLayer: "shapes"}

// wordsFor returns those of a part. Scores of standardised features, such as vim-s, have
// those of the plain one. A part that has none, as it was added later, is called by its
// name.
func wordsFor(part string) words {
	if w, ok := wordsOf[part]; ok {
		return w
	}
	if depth, _, isLayer := strings.Cut(part, ":"); isLayer {
		if what, ok := seenAt[depth]; ok {
			return words{what + " unlike those of every class", what + " like those of a class", "farther in " + what + " from every class"}
		}
	}
	for _, name := range []string{part, strings.TrimSuffix(part, "-s")} {
		if w, ok := posthoc.WordsOf(name); ok && w.Strange != "" {
			return words(w)
		}
	}
	return words{"a low " + part, "a usual " + part, "lower in " + part}
}

// Saying is what a high value of a part of the score says of an image, in plain words.
func Saying(part string) string { return fill(wordsFor(part).Usual, [2]string{"a class", "another"}) }

// byLogits tells whether the two most likely classes of a part's words are those of
// the linear head.
func byLogits(part string) bool {
	return strings.Contains(wordsFor(part).Strange, "linear head")
}

// Bounds of a part, in standard deviations, for what its words are.
const (
	strangeBelow = -2
	oddBelow     = -1.5
	lessBelow    = -0.5
)

// meaning says in words what a value means.
func (w words) meaning(deviations float64, classes [2]string) string {
	text := w.Usual
	switch {
	case deviations < strangeBelow:
		text = w.Strange
	case deviations < oddBelow:
		text = "rather " + w.Strange
	case deviations < lessBelow:
		text = strings.TrimSuffix(w.More, ",") + " than usual"
	}
	return fill(text, classes)
}

// fill puts the names of classes into words.
func fill(text string, classes [2]string) string {
	if classes[1] == "" { // a detector of one class
		text = strings.NewReplacer(" (between {A} and {B})", "", "between {A} and {B}", "not clearly {A}", "every class", "the class", "any class", "the class").Replace(text)
	}
	return strings.NewReplacer("{A}", classes[0], "{B}", classes[1]).Replace(text)
}

// scored is a part of the score of an image, beside those of the reference.
type scored struct {
	name       string
	adds       float64
	deviations float64   // from the mean of the reference; NaN without one
	deficit    float64   // how much less it adds than the mean of the reference does
	reference  []float64 // ascending; nil for none
	classes    [2]string
}

// more compares the part with the images of the reference; again says that these
// were named before.
func (p scored) more(of string, again bool) string {
	n := len(p.reference)
	above := n - notAbove(p.reference, p.adds)
	share := fmt.Sprintf("%.1f%% of the %s images", math.Floor(1000*float64(above)/float64(n))/10, of)
	switch {
	case above == n:
		share = fmt.Sprintf("all %d %s images", n, of)
		if again {
			share = "all of them"
		}
	case again:
		share = fmt.Sprintf("%.1f%% of them", math.Floor(1000*float64(above)/float64(n))/10)
	}
	return fill(wordsFor(p.name).More, p.classes) + " than " + share
}

// why makes one sentence of the parts of a score. Those that lower it most are
// named, and nothing that the numbers do not say.
func why(v Verdict, threshold float64, parts []scored, of string) string {
	parts = slices.Clone(parts)
	if len(parts) == 0 || parts[0].reference == nil {
		return unreferenced(v, parts)
	}
	slices.SortStableFunc(parts, func(p, q scored) int { return cmp.Compare(q.deficit, p.deficit) })
	var total, sum float64
	for _, p := range parts {
		total += max(p.deficit, 0)
	}
	var clauses []string
	for _, p := range parts {
		if p.deficit <= 0 || len(clauses) == 2 || sum > 0.8*total {
			break
		}
		if p.deviations >= oddBelow && !(v.OOD && len(clauses) == 0) {
			continue
		}
		sum += p.deficit
		clauses = append(clauses, p.more(of, len(clauses) > 0))
	}
	said := strings.Join(clauses, ", and ")
	switch {
	case v.OOD && said != "":
		return "Flagged: " + said + "."
	case v.OOD:
		return fmt.Sprintf("Flagged: the score %.3g is below the threshold %.3g, but no part of it is lower than usual.", v.Score, threshold)
	case said != "":
		return "Not flagged, but " + said + "."
	}
	return fmt.Sprintf("Not flagged: no part of the score is unusual beside the %s images.", of)
}

// unreferenced is why without a reference: what each part adds has no scale of its
// own then.
func unreferenced(v Verdict, parts []scored) string {
	if !v.OOD {
		return "Not flagged."
	}
	least := slices.MinFunc(parts, func(p, q scored) int { return cmp.Compare(p.adds, q.adds) })
	return "Flagged: most of what lowers the score means: " + fill(wordsFor(least.name).Strange, least.classes) + "."
}
