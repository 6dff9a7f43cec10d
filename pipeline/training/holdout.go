package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file has class hold-out: classes are left out of the fitting in turn, and
// their images, which are then out-of-distribution images of the user's own kind,
// say which scores find a new class.

// candidate is a score that class hold-out weighs.
type candidate struct {
	name         string
	standardised string // the post-hoc score of standardised features that it is; "" for another
	layer        string // that it reads; "" for the embedding
	patches      bool   // which is of patches
	from, d      int    // the columns of the layer among those of all
}

// candidates are the parts that a joined score may have. docs/holdout.md says how they were
// found, and the rule of their weights.
var candidates = []candidate{
	{name: detector.DensityPart}, {name: detector.DecisionPart}, {name: "gen"},
	{name: "vim-s", standardised: "vim"}, {name: "fdbd-s", standardised: "fdbd"}, {name: "react-s", standardised: "react"}, {name: "vra-s", standardised: "vra"},
}

// candidates are those of the data: one for each of their layers, too, and that of known
// outliers, which outlierWeight weighs.
func (t *Data) candidates() []candidate {
	all, from := slices.Clone(candidates), 0
	for i, l := range t.layers {
		all = append(all, candidate{name: detector.LayerPart(t.layers, i), layer: l.Name, patches: l.OfPatches(), from: from, d: l.D})
		from += l.D
	}
	return append(all, candidate{name: detector.OutliersPart})
}

// layersOf are the layers [n, L] of rows of a table; nil where the data have none.
func (t *Data) layersOf(of *features.Table, rows []int) (x []float32) {
	if len(t.layers) > 0 {
		for _, r := range rows {
			x = append(x, of.Layers(r)...)
		}
	}
	return x
}

// columns returns the candidate's columns of layers [n, L].
func (t *Data) columns(c candidate, layers []float32) []float32 {
	return features.Columns(layers, features.LayersDim(t.layers), c.from, c.from+c.d)
}

// own reports whether the heads give the score.
func (c candidate) own() bool {
	return c.name == detector.DensityPart || c.name == detector.DecisionPart
}

// fitCandidate fits a candidate that the heads do not give, on rows with their layers [n, L];
// nil where the memory is too little for it.
func (t *Data) fitCandidate(ctx context.Context, c candidate, in posthoc.Input, layers []float32) (s posthoc.Scorer, err error) {
	switch {
	case c.layer != "":
		data := posthoc.NewData(t.columns(c, layers), c.d, in.Train.Labels, in.Train.Classes)
		if c.patches { // a few logarithms, whose length means nothing
			return posthoc.FitMDS(ctx, data, false)
		}
		return posthoc.FitLayer(ctx, data)
	case c.standardised == "":
		return posthoc.Fit(ctx, c.name, in)
	}
	s, err = posthoc.FitStandardised(ctx, c.standardised, in)
	if wrong := (*options.Error)(nil); errors.As(err, &wrong) {
		return nil, nil
	}
	return s, err
}

// The rule of the weights.
const (
	temperature = 0.03 // AUROC by which a candidate must be worse to get 1/e of the weight
	leastWeight = 0.1  // of the largest; a candidate with less is left out
	sumWeights  = 4.
	always      = 0.6 // weight that the density gets besides
	guardWeight = 20.
	guardLow    = 0.005 // the quantile of the density beyond which the guard counts
)

// fixedWeights are those of data that are too few for class hold-out.
var fixedWeights = map[string]float64{detector.DensityPart: 2, detector.DecisionPart: 1, "gen": 1, "fdbd-s": 1}

// fixedLayers is what the layers have together beside fixedWeights, half of it of the density's.
const fixedLayers = 2.

// weigh returns the weights of candidates by their AUROC on classes that were left
// out in so many folds. Few folds say little: the fixed weights have a share then,
// ½ with four folds and nothing from ten on.
func weigh(candidates []candidate, auroc map[string]float64, folds int) map[string]float64 {
	best, sum := math.Inf(-1), 0.
	for _, v := range auroc {
		best = max(best, v)
	}
	weights := map[string]float64{}
	for _, c := range candidates {
		if v, ok := auroc[c.name]; ok {
			if w := math.Exp((v - best) / temperature); w >= leastWeight {
				weights[c.name] = w
				sum += w
			}
		}
	}
	for name, w := range weights {
		weights[name] = sumWeights * w / sum
	}
	weights[detector.DensityPart] += always
	share := max(0, float64(mostFolds-folds)/12)
	if share == 0 {
		return weights
	}
	fixed, layers := maps.Clone(fixedWeights), []string{}
	for _, c := range candidates {
		if _, ok := auroc[c.name]; ok && c.layer != "" && !c.patches {
			layers = append(layers, c.name)
		}
	}
	for _, name := range layers {
		fixed[name] = fixedLayers / float64(len(layers))
		fixed[detector.DensityPart] -= fixed[name] / 2
	}
	sum = 0
	for _, c := range candidates {
		sum += fixed[c.name]
	}
	for _, c := range candidates {
		if w := (1-share)*weights[c.name] + share*fixed[c.name]*(sumWeights+always)/sum; w > 0 {
			weights[c.name] = w
		}
	}
	return weights
}

// Bounds of the work. Fewer rows than these are all used.
const (
	mostFolds    = 10
	foldTrain    = 20000  // rows to fit on without a group of classes
	partRows     = 100000 // rows to fit parts on
	foldRows     = 2000   // rows of the classes left out, and of validation rows, that are scored
	leastClasses = 3      // classes that class hold-out needs
	leastRows    = 10     // validation rows that it needs
	leastNearest = 4      // classes of which the nearest to a fold is left out, too
	mostNearest  = 5      // and the most: of more, one more helps to tell as much as it takes away
	leastParts   = 5      // that the rows to train on are divided into; see fold.fresh

	foldTolerance = 1e-4 // of the linear heads, see head.LinearOptions
)

// Joined is the result of class hold-out.
type Joined struct {
	Scoring    *detector.Scoring    // nil: the heads' own score
	Assessment *detector.Assessment // nil where there was no class hold-out
	C          float64              // of the linear head; 0 for none
	Why        string               // there is no assessment, or no Scoring; "" for what was not asked for
}

// FitJoined fits the joined score on the rows that a seed gives, to the heads of
// own.
func (t *Data) FitJoined(ctx context.Context, seed uint64, own *detector.Detector) (*Joined, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	return rows.join(ctx, own, true)
}

// join fits the joined score. The data are not conditioned. Without assess, the
// weights are the fixed ones.
func (t *Data) join(ctx context.Context, own *detector.Detector, assess bool) (*Joined, error) {
	j := &Joined{}
	classes := len(t.train.ByClass())
	switch {
	case !own.Heads[0].HasTerms():
		return j, nil // the paper's
	case classes == 1 && (len(t.layers) == 0 || len(t.validation.Index) == 0):
		return j, nil // no class can be left out
	case classes == 1:
		var err error
		j.Scoring, err = t.joinWith(ctx, t.Options.without(t.oneClassWeights()), &head.FittedLinear{}, own)
		return j, err
	case len(t.validation.Index) == 0:
		j.Why = "without validation images the parts of a joined score have no common scale: the detector judges by the head's own score, and no assessment is made"
		return j, nil
	}
	o := t.Options.Linear
	if t.reuses() {
		o.C = cmp.Or(o.C, t.Options.Keep.Training.FittedC)
	}
	o.Progress = func(tried, most int) { t.Options.stage("choice of the linear head's penalty", tried, most) }
	full, err := head.FitLinear(ctx, t.train, t.validation, len(t.Classes), o)
	if err != nil {
		return nil, err
	}
	j.C = full.C
	weights := fixedWeights
	switch {
	case !assess:
	case classes < leastClasses || len(t.validation.Index) < leastRows:
		j.Why = fmt.Sprintf("too few classes or images for class hold-out, which needs %d classes and %d validation images (there are %d and %d): the parts of the score have fixed weights, and no assessment is made",
			leastClasses, leastRows, classes, len(t.validation.Index))
	default:
		h := &holdOut{t: t, linear: full, began: t.began, conditioning: own.Heads[0].Conditioning}
		if t.reuses() {
			kept, err := t.keptWeights(ctx)
			if err != nil {
				return nil, err
			}
			if kept != nil {
				if j.Assessment, err = h.reassess(ctx, kept); err != nil {
					return nil, err
				}
				weights = kept
				break
			}
		}
		if h.began == nil && h.conditioning != nil { // of heads that were trained elsewhere
			turned := &head.Conditioning{ConditioningOptions: h.conditioning.ConditioningOptions, Mean: h.conditioning.Mean, Scale: h.conditioning.Scale, Matrix: slices.Clone(h.conditioning.Matrix)}
			if _, h.began, err = t.start(ctx, turned, t.train, t.validation, len(t.Classes), nil); err != nil {
				return nil, err
			}
		}
		switch err := h.run(ctx, own.Heads[0].Network.(*head.ResidualNetwork)); {
		case errors.Is(err, errNothingFresh):
			j.Why = "the images of a class are all alike, so class hold-out has none that nothing was fitted on: the parts of the score have fixed weights, and no assessment is made"
		case err != nil:
			return nil, err
		default:
			weights = h.weights(-1)
			if j.Assessment, err = h.assess(ctx, weights[detector.OutliersPart]); err != nil {
				return nil, err
			}
		}
	}
	t.Options.stage("parts of the score", 0, -1)
	if t.outliers != nil && j.Assessment == nil {
		weights = maps.Clone(weights)
		weights[detector.OutliersPart] = fixedOutlier
	}
	weights = t.Options.without(weights)
	j.Scoring, err = t.joinWith(ctx, weights, full, own)
	return j, err
}

// oneClassWeights are those of data with one class, of which none can be left out: the density
// counts as much as all layers, since far images are those of other classes. Patches, which
// alone tell small defects, count four times as much as both.
func (t *Data) oneClassWeights() map[string]float64 {
	weights := map[string]float64{detector.DensityPart: 1}
	pooled := 0
	for _, l := range t.layers {
		if !l.OfPatches() {
			pooled++
		}
	}
	for i, l := range t.layers {
		weights[detector.LayerPart(t.layers, i)] = 1 / float64(max(pooled, 1))
		if l.OfPatches() {
			weights[detector.PatchesPart] = 8
		}
	}
	return weights
}

// joinWith fits the parts that have weights on the training rows and puts them on
// one scale by the validation rows.
func (t *Data) joinWith(ctx context.Context, weights map[string]float64, full *head.FittedLinear, own *detector.Detector) (*detector.Scoring, error) {
	s := &detector.Scoring{Name: detector.JoinedScore, Classifier: full.Linear}
	c := &Classifier{} // of one class there is none
	if full.Linear != nil {
		c = ClassifierOf(posthoc.MLP{full.Linear})
	}
	some := t.train.With(t.train.Balanced(cmp.Or(t.Options.PartRows, partRows)))
	in := posthoc.Input{LastLayer: full.Linear, Memory: t.Options.Memory}
	if 4*int64(some.Len())*int64(t.D) > t.Options.Memory/4 {
		in.Train = c.Data(t.Table, some.Index, t.Labels, len(t.Classes))
	} else {
		copied, err := some.InMemory()
		if err != nil {
			return nil, err
		}
		in.Train = dataOf(c, copied, len(t.Classes))
	}
	x := t.someValidation(own, min(scaleRows, int(max(256, t.Options.Memory/64/int64(own.Dim())))))
	b, said := own.BatchFor(s, x), own.Own(x)
	var layers []float32
	for _, c := range t.candidates() {
		w := weights[c.name]
		if w == 0 {
			continue
		}
		p := detector.Part{Name: c.name, Layer: c.layer}
		var err error
		if c.layer != "" && layers == nil {
			layers = t.layersOf(t.Table, some.Index)
		}
		switch {
		case c.own():
		case c.name == detector.OutliersPart:
			p.Score, err = t.fitOutliers(ctx, full.C)
		default:
			p.Score, err = t.fitCandidate(ctx, c, in, layers)
		}
		if err != nil {
			return nil, err
		}
		if p.Score == nil && !c.own() {
			continue
		}
		scores, err := p.Scores(ctx, b, said)
		if err != nil {
			return nil, err
		}
		if p.Scale = head.ScaleOf(scores); !p.Scale.Valid() {
			return nil, errors.New("score " + c.name + " of the validation images is not finite")
		}
		p.Scale.Deviation /= w
		s.Parts = append(s.Parts, p)
	}
	s.Share()
	if !slices.Contains(t.Options.WithoutParts, detector.GuardPart) {
		s.Guard = guardOf(said.Nearness)
	}
	return s, nil
}

// dataOf returns all of some rows, which are in memory, with the logits of a
// classifier.
func dataOf(c *Classifier, rows features.Rows, classes int) *posthoc.Data {
	data := posthoc.NewData(rows.X, rows.D, rows.Labels, classes)
	data.Logits = func(from, to int) []float64 { return c.Network.OfFeatures(data.Features(from, to)) }
	return data
}

// guardOf returns the guard for the densities of validation rows.
func guardOf(nearness []float64) *detector.Guard {
	sorted := slices.Sorted(slices.Values(nearness))
	g := &detector.Guard{Low: linalg.Quantile(sorted, guardLow), Middle: linalg.Quantile(sorted, 0.5), Weight: guardWeight}
	if reach := 1e-6 * (1 + math.Abs(g.Low)); g.Middle-g.Low < reach { // rows that are all alike
		g.Middle = g.Low + reach
	}
	return g
}

// falseAlarms are the shares of in-distribution images at which an assessment says
// what is caught.
var falseAlarms = []float64{0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5}

// holdOut leaves classes out of the fitting.
type holdOut struct {
	t            *Data
	linear       *head.FittedLinear // of all classes
	began        *head.FittedLinear // likewise, what the head began as; nil for the class means
	conditioning *head.Conditioning // likewise; nil for none
	folds        []*fold
	parts        [][]int // of the rows to train on, see fold.fresh
	calibration  int     // images that will set the threshold
}

// fold holds the results of training without a group of classes.
type fold struct {
	out   []int    // the classes that were left out
	fresh []int    // rows of the other classes, ascending, that nothing was fitted or chosen on
	part  int      // of the outliers, that was left out
	names []string // of the candidates

	known, validation, left scored // fresh rows; validation rows, which put parts on one scale; rows of out
	outliers                scored // of part
	class                   []int  // of the rows that were left out
	takenFor                []int  // the class that each of them was given
}

// scored are what rows are given in a fold.
type scored struct {
	parts    map[string][]float64 // by candidate
	nearness []float64            // densities as they are
}

// newFold returns a fold without some classes, whose fresh rows are those of a part.
func (h *holdOut) newFold(part int, out ...int) *fold {
	if h.parts == nil {
		h.parts = h.t.freshParts(max(leastParts, min(len(h.t.train.ByClass()), mostFolds)))
	}
	slices.Sort(out)
	f := &fold{out: out, fresh: h.parts[part%len(h.parts)]}
	if o := h.t.outliers; o != nil {
		f.part = part % o.parts
	}
	return f
}

// freshParts divides the rows to train on into n parts, class by class. Rows of a group
// share a part, and a class with one group is in none: something must be left to fit on.
func (t *Data) freshParts(n int) [][]int {
	groups, at := make([][][]int, len(t.Classes)), map[int]int{}
	for _, row := range t.train.Index {
		y, group := t.train.Labels[row], row
		if t.groups != nil {
			group = t.groups[row]
		}
		i, again := at[group]
		if !again || i >= len(groups[y]) {
			i = len(groups[y])
			at[group], groups[y] = i, append(groups[y], nil)
		}
		groups[y][i] = append(groups[y][i], row)
	}
	parts := make([][]int, n)
	for y, of := range groups {
		for i, rows := range of {
			if len(of) > 1 {
				parts[(y+i)%n] = append(parts[(y+i)%n], rows...)
			}
		}
	}
	for _, rows := range parts {
		slices.Sort(rows)
	}
	return parts
}

// errNothingFresh says that there are no rows to score.
var errNothingFresh = errors.New("class hold-out found no rows to score")

// run leaves each class out once: alone where there are few, else in groups, such
// that classes that are near each other are in different groups. Hard cases are
// new classes whose nearest neighbours stay known.
func (h *holdOut) run(ctx context.Context, full *head.ResidualNetwork) error {
	classes := lists.Map(h.t.train.ByClass(), func(rows []int) int { return int(h.t.train.Labels[rows[0]]) })
	order := chain(full.Density.Means, full.Density.D)
	folds := min(len(classes), mostFolds)
	var made []*fold
	for i := range folds {
		var out []int
		for at := i; at < len(order); at += folds {
			out = append(out, classes[order[at]])
		}
		made = append(made, h.newFold(i, out...))
	}
	if err := h.fitAll(ctx, "class hold-out", made); err != nil {
		return err
	}
	for _, f := range made {
		if len(f.left.nearness) > 0 && len(f.known.nearness) > 0 {
			h.folds = append(h.folds, f)
		}
	}
	if len(h.folds) < 2 {
		return errNothingFresh
	}
	return nil
}

// fitAll fits folds, as many at a time as there are cores and as memory allows: where rows are
// few, one alone does not keep the cores busy.
func (h *holdOut) fitAll(ctx context.Context, stage string, folds []*fold) error {
	t := h.t
	d, n := int64(t.D), int64(min(foldTrain, t.train.Len()))
	atOnce := max(1, min(int64(runtime.GOMAXPROCS(0)), t.Options.Memory/8/(8*8*d*d+4*8*n*d)))
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(int(atOnce))
	var mu sync.Mutex
	done := 0
	t.Options.stage(stage, done, len(folds))
	for _, f := range folds {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := h.fit(ctx, f); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			t.Options.stage(stage, done, len(folds))
			return nil
		})
	}
	return group.Wait()
}

// chain orders rows such that each is followed by the nearest of those that are
// left, beginning with the first.
func chain(rows []float32, d int) []int {
	n := len(rows) / d
	rest := make([]int, n-1)
	for i := range rest {
		rest[i] = i + 1
	}
	order, distances := []int{0}, make([]float64, n)
	for len(rest) > 0 {
		last := rows[order[len(order)-1]*d:][:d]
		distances = distances[:len(rest)]
		_ = parallel.Blocks(context.Background(), len(rest), 64, func(from, to int) { // cannot fail
			for i, r := range rest[from:to] {
				var sum float64
				for j, v := range rows[r*d : (r+1)*d] {
					sum += float64(v-last[j]) * float64(v-last[j])
				}
				distances[from+i] = sum
			}
		})
		best, least := 0, math.Inf(1)
		for i, v := range distances {
			if v < least {
				best, least = i, v
			}
		}
		order = append(order, rest[best])
		rest = slices.Delete(rest, best, best+1)
	}
	return order
}

// numbered are rows in memory with their layers.
type numbered struct {
	features.Rows
	layers []float32 // [n, L]; nil for none
}

// renumbered returns at most so many of the rows of a table, whose classes have new numbers;
// those with the number −1 are left out.
func (t *Data) renumbered(of *features.Table, rows features.Rows, number []int64, most int) (n numbered, err error) {
	labels := make([]int64, len(rows.Labels))
	for i, y := range rows.Labels {
		if labels[i] = y; y >= 0 {
			labels[i] = number[y]
		}
	}
	rows.Labels = labels
	rows.Index = slices.DeleteFunc(slices.Clone(rows.Index), func(r int) bool { return labels[r] < 0 })
	rows.Index = rows.Balanced(most)
	n.layers = t.layersOf(of, rows.Index)
	n.Rows, err = rows.InMemory()
	return n, err
}

// fit fits everything without the classes of f and scores rows.
func (h *holdOut) fit(ctx context.Context, f *fold) error {
	t := h.t
	number, left := f.others(len(t.Classes))
	began := h.began
	if began != nil {
		began = began.Blank(len(left))
	}
	most := int(min(foldTrain, max(256, t.Options.Memory/16/int64(t.D))))
	rest, fresh := t.train, t.train
	isFresh := func(row int) bool { _, found := slices.BinarySearch(f.fresh, row); return found }
	rest.Index = slices.DeleteFunc(slices.Clone(t.train.Index), isFresh)
	fresh.Index = slices.DeleteFunc(slices.Clone(t.train.Index), func(row int) bool { return !isFresh(row) })
	train, err := t.renumbered(t.Table, rest, number, most)
	if err != nil {
		return err
	}
	val, err := t.renumbered(t.judging(), t.validation, number, min(foldRows, most))
	if err != nil {
		return err
	}
	known, err := t.renumbered(t.Table, fresh, number, min(foldRows, most))
	if err != nil {
		return err
	}

	closed, err := h.closedForm(ctx, train.Rows, val.Rows, len(left), began)
	if err != nil {
		return err
	}
	o := head.LinearOptions{C: h.linear.C, Tolerance: foldTolerance, Near: h.linear.Blank(len(left))}
	fitted, err := head.FitLinear(ctx, train.Rows, features.Rows{}, len(left), o)
	if err != nil {
		return err
	}
	c := ClassifierOf(posthoc.MLP{fitted.Linear})
	in := posthoc.Input{Train: dataOf(c, train.Rows, len(left)), LastLayer: fitted.Linear, Memory: t.Options.Memory}
	rows := h.rowsOf(f.out, min(foldRows, most))
	for _, r := range rows {
		f.class = append(f.class, int(t.Labels[r]))
	}
	scorers := map[string]posthoc.Scorer{}
	for _, c := range t.candidates() {
		f.names = append(f.names, c.name)
		if c.own() || c.name == detector.OutliersPart {
			continue
		}
		s, err := t.fitCandidate(ctx, c, in, train.layers)
		if err != nil {
			return err
		}
		scorers[c.name] = s
	}
	var outliers, beside []float32
	if t.outliers != nil {
		if scorers[detector.OutliersPart], err = t.outliers.fit(ctx, train.Rows, len(left), f.part, head.LinearOptions{C: h.linear.C, Tolerance: foldTolerance}); err != nil {
			return err
		}
		outliers, beside = t.outliers.of(f.part, false)
	}
	for _, of := range []struct {
		x, layers []float32
		to        *scored
	}{{known.X, known.layers, &f.known}, {val.X, val.layers, &f.validation}, {t.Gather(rows), t.layersOf(t.Table, rows), &f.left}, {outliers, beside, &f.outliers}} {
		said, err := t.scoreFold(ctx, of.x, of.layers, c, closed, scorers, of.to)
		if err != nil {
			return err
		}
		if of.to == &f.left {
			for given := range slices.Chunk(said.LogConfidences, len(left)) {
				f.takenFor = append(f.takenFor, left[slices.Index(given, slices.Max(given))])
			}
		}
	}
	return ctx.Err()
}

// others returns the classes but those that are left out, and their numbers among these, −1 for
// one that is left out.
func (f *fold) others(classes int) (number []int64, left []int) {
	for c := range classes {
		if slices.Contains(f.out, c) {
			number = append(number, -1)
		} else {
			number, left = append(number, int64(len(left))), append(left, c)
		}
	}
	return number, left
}

// scoreFold gives rows what the scorers and the closed form of a fold say of them, which it returns.
func (t *Data) scoreFold(ctx context.Context, x, layers []float32, c *Classifier, closed *head.Head, scorers map[string]posthoc.Scorer, to *scored) (head.Outputs, error) {
	batch, said := posthoc.Batch{Features: x, Logits: c.Network.OfFeatures(x)}, closed.Outputs(x)
	to.nearness, to.parts = said.Nearness, map[string][]float64{}
	for _, c := range t.candidates() {
		if !c.own() && scorers[c.name] == nil {
			continue
		}
		reads := detector.Batch{Batch: batch}
		if c.layer != "" {
			reads.Features, reads.Logits = t.columns(c, layers), nil
		}
		p := detector.Part{Name: c.name, Score: scorers[c.name]}
		var err error
		if to.parts[c.name], err = p.Scores(ctx, reads, said); err != nil {
			return said, err
		}
	}
	return said, nil
}

// closedForm fits the conditioning and the residual head before its first step.
// began is the classifier that it begins as, fitted on nearly the same rows.
func (h *holdOut) closedForm(ctx context.Context, train, val features.Rows, classes int, began *head.FittedLinear) (*head.Head, error) {
	made := &head.Head{}
	var from *head.Linear
	if h.conditioning != nil {
		o := h.conditioning.ConditioningOptions
		o.Memory = cmp.Or(o.Memory, h.t.Options.Memory)
		var err error
		if made.Conditioning, err = head.FitConditioning(ctx, train, val, classes, o); err != nil {
			return nil, err
		}
		if began != nil {
			if from, _, err = h.t.start(ctx, made.Conditioning, train, val, classes, began); err != nil {
				return nil, err
			}
		}
	}
	for _, rows := range []*features.Rows{&train, &val} {
		if made.Conditioning != nil {
			x, err := made.Conditioning.Rows(ctx, *rows)
			if err != nil {
				return nil, err
			}
			*rows = features.All(x, made.Conditioning.Out(), rows.Chosen())
		}
	}
	network, err := head.ClosedForm(ctx, train, val, classes, from)
	made.Network = network
	return made, err
}

// rowsOf returns rows of classes, ascending and about equally many of each: those
// to train on, and the validation rows where they are of the same table.
func (h *holdOut) rowsOf(classes []int, most int) []int {
	t := h.t
	index := slices.Clone(t.train.Index)
	if t.Held == nil {
		index = append(index, t.validation.Index...)
	}
	index = slices.DeleteFunc(index, func(r int) bool { return !slices.Contains(classes, int(t.Labels[r])) })
	slices.Sort(index)
	return t.With(index).Balanced(most)
}

// without returns the values of the parts that are not left out.
func (o *Options) without(values map[string]float64) map[string]float64 {
	kept := maps.Clone(values)
	maps.DeleteFunc(kept, func(name string, _ float64) bool { return slices.Contains(o.WithoutParts, name) })
	return kept
}

// layerWeights returns the weights of the parts by all folds but one: without layers where
// these find more of the classes that were left out, else with.
func (h *holdOut) layerWeights(but int) map[string]float64 {
	aurocs := h.aurocs(but)
	with := h.t.Options.without(weigh(h.t.candidates(), aurocs, len(h.folds)))
	for i := range h.t.layers {
		delete(aurocs, detector.LayerPart(h.t.layers, i))
	}
	without := h.t.Options.without(weigh(candidates, aurocs, len(h.folds)))
	if len(h.t.layers) == 0 || h.found(but, with) < h.found(but, without) {
		return without
	}
	return with
}

// found returns the mean AUROC of the joined score on classes left out, over all folds but one.
func (h *holdOut) found(but int, weights map[string]float64) (auroc float64) {
	for i, f := range h.folds {
		if i != but {
			auroc += metrics.AUROC(f.joint(f.known, weights), f.joint(f.left, weights)) / float64(len(h.folds)-min(1, but+1))
		}
	}
	return auroc
}

// aurocs returns the mean AUROC of each candidate over all folds but one.
func (h *holdOut) aurocs(but int) map[string]float64 {
	sum, n := map[string]float64{}, 0.
	for i, f := range h.folds {
		if i == but {
			continue
		}
		n++
		for name, known := range f.known.parts {
			sum[name] += metrics.AUROC(known, f.left.parts[name])
		}
	}
	for name := range sum {
		sum[name] /= n
	}
	delete(sum, detector.OutliersPart) // which outlierWeight weighs
	return h.t.Options.without(sum)
}

// joint returns the joined scores of rows of the fold with these weights.
func (f *fold) joint(of scored, weights map[string]float64) []float64 {
	guard, sum := guardOf(f.validation.nearness), make([]float64, len(of.nearness))
	for _, name := range f.names {
		if w := weights[name]; w != 0 {
			scale := head.ScaleOf(f.validation.parts[name])
			for i, v := range of.parts[name] {
				sum[i] += w * scale.Of(v)
			}
		}
	}
	for i, v := range of.nearness {
		sum[i] += guard.Of(v)
	}
	return sum
}

// assess says how well the joined score finds the classes that were left out. Each fold
// is judged with the weights that the other folds give. The outliers' part has the weight w.
func (h *holdOut) assess(ctx context.Context, w float64) (*detector.Assessment, error) {
	weights := make([]map[string]float64, len(h.folds))
	for i := range h.folds {
		weights[i] = h.weights(i)
	}
	a, err := h.newAssessment(ctx)
	if err != nil {
		return nil, err
	}
	h.judge(a, h.folds, h.folds, weights)
	if h.t.outliers != nil {
		a.Outliers = h.assessOutliers(weights, w, a.FalseAlarms)
	}
	if err := h.correct(ctx, a, h.folds, weights); err != nil {
		return nil, err
	}
	h.t.average(a)
	return a, nil
}

// correct makes what a detector of all n classes finds of what was judged in folds, which
// know all classes but their own. That detector knows one more. With a chance of 1/n it is
// the nearest of all to a new class, and takes away what the nearest of the others took. So
// where classes are few each fold is fitted once more, without the class that most images of
// its own were given.
func (h *holdOut) correct(ctx context.Context, a *detector.Assessment, folds []*fold, weights []map[string]float64) error {
	n := len(h.t.train.ByClass())
	if n < leastNearest || n > mostNearest || h.t.isFold {
		return nil
	}
	var made []*fold
	for i, f := range folds {
		out := slices.Clone(f.out)
		if c, ok := a.Classes[h.t.Classes[f.out[0]]]; ok {
			out = append(out, slices.Index(h.t.Classes, c.TakenFor))
		}
		made = append(made, h.newFold(i, out...))
	}
	if err := h.fitAll(ctx, "classes held out with the nearest", made); err != nil {
		return err
	}
	without := &detector.Assessment{FalseAlarms: a.FalseAlarms, Classes: map[string]detector.AssessedClass{}}
	h.judge(without, folds, made, weights)
	h.t.takeNearest(a, without.Classes, float64(n))
	return nil
}

// takeNearest takes from classes 1/n of what they gain without their nearest. What is caught is
// corrected in the mean alone, by one factor for all: of single classes it may be nothing.
func (t *Data) takeNearest(a *detector.Assessment, without map[string]detector.AssessedClass, n float64) {
	before, after := make([]float64, len(a.FalseAlarms)), make([]float64, len(a.FalseAlarms))
	for _, name := range t.Classes { // in an order that is always the same
		if w, ok := without[name]; ok {
			c := a.Classes[name]
			c.AUROC = min(max(c.AUROC-(w.AUROC-c.AUROC)/n, 0), 1)
			a.Classes[name] = c
			for i, v := range c.Curve {
				before[i] += v
				after[i] += v - (w.Curve[i]-v)/n
			}
		}
	}
	for name := range without {
		curve := a.Classes[name].Curve
		for i := range curve {
			if before[i] > 0 {
				curve[i] *= max(0, after[i]) / before[i]
			}
			if curve[i] = min(curve[i], 1); i > 0 {
				curve[i] = max(curve[i], curve[i-1])
			}
		}
	}
}

// newAssessment returns one without classes. At shares of false alarms that the calibration
// images to come are too few for nothing can be caught: FalseAlarms leaves them out.
func (h *holdOut) newAssessment(ctx context.Context) (*detector.Assessment, error) {
	var err error
	if h.calibration, err = h.t.calibrationImages(ctx); err != nil {
		return nil, err
	}
	a := &detector.Assessment{Classes: map[string]detector.AssessedClass{}}
	for _, share := range falseAlarms {
		if h.calibration == 0 || detector.Rank(h.calibration, 1-share) > 0 {
			a.FalseAlarms = append(a.FalseAlarms, share)
		}
	}
	return a, nil
}

// calibrationImages returns how many images will set the threshold; 0: none will.
func (t *Data) calibrationImages(ctx context.Context) (int, error) {
	switch c := t.Options.Calibration; {
	case c.Folds > 0:
		return len(t.onePerGroup(t.neverFitted(slices.Concat(t.split.Train, t.split.Validation)))), nil
	case c.Features != "":
		s, err := features.Open(ctx, c.Features)
		if err != nil {
			return 0, err
		}
		return s.N, s.Close()
	}
	return len(t.split.Calibration), nil
}

// judge assesses the classes that were left out in folds, by the scores of folds that leave
// them out, maybe the same, with the weights of each, where there are fresh rows to compare
// with. What is caught goes by the fresh rows of all folds: those of one are few.
func (h *holdOut) judge(a *detector.Assessment, folds, by []*fold, weights []map[string]float64) {
	known, all := knownIn(by, weights)
	for i, f := range by {
		left := f.joint(f.left, weights[i])
		for _, class := range folds[i].out {
			var scores []float64
			taken := map[int]int{}
			for i, v := range left {
				if f.class[i] == class {
					scores = append(scores, v)
					taken[f.takenFor[i]]++
				}
			}
			if len(scores) > 0 && len(known[i]) > 0 {
				a.Classes[h.t.Classes[class]] = h.assessed(a, metrics.AUROC(known[i], scores), all, scores, taken)
			}
		}
	}
}

// knownIn returns the scores of the fresh rows of each fold, and those of all, ascending.
func knownIn(folds []*fold, weights []map[string]float64) (each [][]float64, all []float64) {
	for i, f := range folds {
		each = append(each, f.joint(f.known, weights[i]))
		all = append(all, each[i]...)
	}
	slices.Sort(all)
	return each, all
}

// assessed says what is caught of images of a class that was left out, by the scores of known
// ones, which ascend. taken counts by class what the former were given.
func (h *holdOut) assessed(a *detector.Assessment, auroc float64, known, left []float64, taken map[int]int) detector.AssessedClass {
	most := -1
	for c := range h.t.Classes {
		if taken[c] > 0 && (most < 0 || taken[c] > taken[most]) {
			most = c
		}
	}
	return detector.AssessedClass{AUROC: auroc, Images: len(left), TakenFor: h.t.Classes[most], Curve: caught(known, left, a.FalseAlarms, h.calibration)}
}

// caught returns the shares of the scores left that thresholds for shares of false alarms
// flag, in the mean over the calibration images to come. The threshold will be the k-th lowest
// of n scores: the share of known images below it is Beta(k, n + 1 − k), or the share itself
// if n is 0. known, which ascend, say which share of these lies below a score.
func caught(known, left, shares []float64, n int) (curve []float64) {
	below := make([]int, len(left))
	for i, v := range left {
		below[i], _ = slices.BinarySearch(known, v)
	}
	for _, share := range shares {
		flags := func(below float64) float64 { return map[bool]float64{true: 1}[below < share] }
		if k := detector.Rank(n, 1-share); n > 0 {
			flags = distuv.Beta{Alpha: float64(k), Beta: float64(n + 1 - k)}.Survival
		}
		chances, sum := map[int]float64{}, 0.
		for _, b := range below {
			v, ok := chances[b]
			if !ok {
				v = flags((float64(b) + 0.5) / float64(len(known)+1))
				chances[b] = v
			}
			sum += v
		}
		curve = append(curve, sum/float64(len(left)))
	}
	return curve
}

// average sets the means over the classes, what is caught at 5%, and the interval of the
// AUROC of one more class that is drawn like these: of their log-odds, the mean and Student's
// quantile times the deviation of a new value.
func (t *Data) average(a *detector.Assessment) {
	a.AUROC, a.Caught, a.Curve, a.Interval = 0, 0, make([]float64, len(a.FalseAlarms)), nil
	five, n := slices.Index(a.FalseAlarms, 0.05), float64(len(a.Classes))
	var logits []float64
	for _, name := range t.Classes { // in an order that is always the same
		c, ok := a.Classes[name]
		if !ok {
			continue
		}
		p := min(max(c.AUROC, 0.001), 0.999)
		logits = append(logits, math.Log(p/(1-p)))
		if c.Caught = 0; five >= 0 {
			c.Caught = c.Curve[five]
		}
		a.Classes[name] = c
		a.AUROC += c.AUROC / n
		a.Caught += c.Caught / n
		for i, v := range c.Curve {
			a.Curve[i] += v / n
		}
	}
	if n >= leastClasses {
		mean, reach := stat.Mean(logits, nil), distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(0.95)*stat.StdDev(logits, nil)*math.Sqrt(1+1/n)
		a.Interval = &[2]float64{1 / (1 + math.Exp(reach-mean)), 1 / (1 + math.Exp(-reach-mean))}
	}
}
