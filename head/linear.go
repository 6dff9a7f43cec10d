package head

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// LinearOptions says how to fit a head. The zero value is right for most uses.
type LinearOptions struct {
	// C is the inverse of the penalty's strength, in scikit-learn's meaning: the
	// sum of the rows' losses is weighed against ‖W‖²/2. (For two classes
	// scikit-learn penalises the difference of their weights instead; the same
	// head needs half the C there.) 0 means the least value of Grid whose
	// cross-entropy on the validation rows is at most Slack above the least one.
	C float64

	// OneScale divides all features by one number, the root mean square of their
	// deviations, in place of each by its own. The head then does not depend on
	// how the features are rotated.
	OneScale bool

	// Near is a head that was fitted on nearly the same rows. Fitting begins with its
	// weights and has its axes, which saves most of the time; the result is the same
	// within Tolerance. See [FittedLinear.Blank].
	Near *FittedLinear

	// Progress, where set, is told how many values of Grid were tried for C.
	Progress func(tried, most int) `json:"-"`

	// MostWork bounds how many multiplications, of rows by weights, a step may take:
	// of very many rows, a part is read. The choice of C takes a tenth of it. 0 means
	// 10¹¹. It is to measure what the bound costs.
	MostWork float64 `json:"-"`

	// Tolerance is by how much the mean loss may be above its minimum, about; 0
	// means 1e-6.
	Tolerance float64
}

// LinearGrid lists the values of C to choose from, in the order in which they are tried.
// Each begins at the head of the one before. The search ends after the first that
// is worse than the one before, or whose loss is below Slack.
var LinearGrid = []float64{1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, .1, .3, 1}

// LinearSlack is the cross-entropy that a stronger penalty may cost. Weaker penalties
// gain little beyond that, and the logits of unknown images grow with them. Where
// the backbone was trained on the same images, the loss falls with each weaker
// penalty, and says nothing.
const LinearSlack = 0.03

// LinearDefaultC is C if there are too few rows to choose it.
const LinearDefaultC = 1e-2

// FittedLinear is a fitted head.
type FittedLinear struct {
	*posthoc.Linear
	C float64 // given or chosen

	// Losses are the cross-entropies of the validation rows for the first values
	// of Grid; nil if C was not chosen.
	Losses []float64

	// Passes is how many times the loss of the rows, or of a part of them, and its
	// gradient were computed; 0 with one class.
	Passes int

	axes *axes
}

// FitLinear fits the head of a number of classes. Without validation rows, each tenth row
// of a class replaces them for the choice of C; the head is then fitted on all
// rows. A class without rows gets no weights and a bias that makes it improbable.
//
// The rows may be in a file that is larger than memory: each step reads them once.
// Of very many rows, a part is read; see LinearOptions.MostWork.
//
// It is multinomial logistic regression with an L2
// penalty on standardised features, as scikit-learn's StandardScaler and
// LogisticRegression fit it. The penalty is the strongest that hardly raises the
// cross-entropy of the validation rows.
//
// With z = (x − μ)/σ, where μ and σ are the mean and the deviation of each feature
// over the training rows, the head minimises over W [C, D] and b [C]
//
//	1/N Σ −log softmax(Wz + b)[y] + 1/(2·N·strength) · ‖W‖²
//
// where strength is scikit-learn's C. Features that do not vary get no weight. The
// standardisation is then folded into the weights and biases, so that the head
// reads features as they are.
//
// The solver is L-BFGS. Its first metric is the curvature of the loss along the
// principal axes of the features, so that ten to twenty steps are enough. All sums
// are in float64 and in an order that does not depend on the number of cores.
func FitLinear(ctx context.Context, train, val features.Rows, classes int, o LinearOptions) (*FittedLinear, error) {
	if err := CheckRows(train, val, classes); err != nil {
		return nil, err
	}
	o.MostWork = cmp.Or(o.MostWork, fitWork)
	train, err := held(train.With(features.Spread(train.Index, max(1, int(o.MostWork/float64(train.D*classes))))))
	if err != nil {
		return nil, err
	}
	o.Tolerance = cmp.Or(o.Tolerance, 1e-6)
	if !(o.C >= 0) || math.IsInf(o.C, 1) || !(o.Tolerance > 0) {
		return nil, options.Errorf("C", "%g: it must be positive and finite", o.C)
	}
	if near := o.Near; near != nil && (near.In != train.D || near.Out != classes) {
		return nil, fmt.Errorf("a head of %d features and %d classes cannot begin at one of %d and %d", train.D, classes, near.In, near.Out)
	}
	p, err := newProblem(ctx, train, classes, o.OneScale)
	if err != nil {
		return nil, err
	}
	f := &FittedLinear{C: o.C}
	if f.axes, err = p.prepare(ctx, o.Near); err != nil {
		return nil, err
	}
	solve := &solver{axes: f.axes}
	theta := p.start(o.Near)
	if f.C == 0 {
		if theta, err = f.choose(ctx, p, solve, val, theta, o); err != nil {
			return nil, err
		}
	}
	if p.narrow() && o.Near == nil {
		// Passes over a part of the rows come near the minimum.
		for rows := searchRows(theta, o.MostWork); rows < p.rows.Len()/2; rows *= growth {
			if err := solve.minimise(ctx, p.with(p.rows.With(features.Spread(p.rows.Index, rows))), theta, f.C, roughTolerance); err != nil {
				return nil, err
			}
		}
		o.Tolerance = max(o.Tolerance, narrowTolerance)
	}
	if err := solve.minimise(ctx, p, theta, f.C, o.Tolerance); err != nil {
		return nil, err
	}
	f.Linear, f.Passes = p.fold(theta), solve.passes
	return f, nil
}

// Blank returns a head of so many classes that has no weights, for [LinearOptions.Near]: a fit
// has the axes of f, and knows nothing of rows that f alone was fitted on. With the weights
// of f it would, within Tolerance: a class of these rows would seem easy to tell.
func (f *FittedLinear) Blank(classes int) *FittedLinear {
	return &FittedLinear{C: f.C, axes: f.axes, Linear: &posthoc.Linear{
		In: f.In, Out: classes, Weights: make([]float64, classes*f.In), Bias: make([]float64, classes)}}
}

// The parts of the rows that a fit of many of them goes through begin at that of the
// search for C, and each is growth times as large as the one before.
const (
	fitWork     = 1e11
	searchShare = 0.1 // of Options.MostWork
	growth      = 4

	// heldBytes is how much memory a copy of rows may take that are in a file.
	heldBytes = 512 << 20
)

// held returns the rows in memory where that saves reading a file in each step.
func held(rows features.Rows) (features.Rows, error) {
	if rows.Window() == 0 || 4*rows.Len()*rows.D > heldBytes {
		return rows, nil
	}
	return rows.InMemory()
}

// searchRows is how many rows the search for C reads.
func searchRows(theta []float64, mostWork float64) int {
	return max(1, int(searchShare*mostWork/float64(len(theta))))
}

// narrowTolerance is the least Tolerance where sums are in float32.
const narrowTolerance = 1e-4

// searchTolerance is Options.Tolerance during the search; roughTolerance takes its
// place where sums are in float32. Slack is far above both.
const (
	searchTolerance = 1e-4
	roughTolerance  = 3e-4
)

// choose sets C and returns weights to begin with.
func (f *FittedLinear) choose(ctx context.Context, p *problem, solve *solver, val features.Rows, theta []float64, o LinearOptions) ([]float64, error) {
	search := p
	progress := o.Progress
	rows := min(p.rows.Len(), searchRows(theta, o.MostWork))
	if rows < p.rows.Len() {
		some, err := held(p.rows.With(features.Spread(p.rows.Index, rows)))
		if err != nil {
			return nil, err
		}
		search = p.with(some)
	}
	judge := p.with(p.known(val))
	if judge.rows.Len() == 0 {
		fitted, apart := apart(search.rows)
		judge.rows, search = search.rows.With(apart), p.with(search.rows.With(fitted))
	}
	var err error
	if judge.rows, err = held(judge.rows.With(features.Spread(judge.rows.Index, max(rows/2, 1)))); err != nil {
		return nil, err
	}
	if len(p.labels) < 2 || judge.rows.Len() == 0 {
		f.C = LinearDefaultC
		return theta, nil
	}
	type tried struct {
		c, loss float64
		theta   []float64
	}
	tolerance := searchTolerance
	if p.narrow() {
		tolerance = roughTolerance
	}
	var good []tried // at most Slack above the least loss
	for i, c := range LinearGrid {
		if progress != nil {
			progress(i, len(LinearGrid))
		}
		if err := solve.minimise(ctx, search, theta, c, tolerance); err != nil {
			return nil, err
		}
		loss, err := judge.loss(ctx, theta, nil, nil)
		if err != nil {
			return nil, err
		}
		last := len(f.Losses) - 1
		f.Losses = append(f.Losses, loss)
		if last >= 0 && !(loss < f.Losses[last]) {
			break
		}
		good = append(good, tried{c, loss, slices.Clone(theta)})
		good = slices.DeleteFunc(good, func(t tried) bool { return t.loss > loss+LinearSlack })
		if loss < LinearSlack {
			break
		}
	}
	if progress != nil { // the search may end early
		progress(len(LinearGrid), len(LinearGrid))
	}
	f.C = good[0].c
	return good[0].theta, nil
}

// apart splits rows: each tenth row of a class, if it has that many, is held out.
func apart(rows features.Rows) (fitted, apart []int) {
	for _, class := range rows.ByClass() {
		for i, r := range class {
			if i%10 == 9 {
				apart = append(apart, r)
			} else {
				fitted = append(fitted, r)
			}
		}
	}
	slices.Sort(fitted)
	slices.Sort(apart)
	return fitted, apart
}
