package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/floats"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// errUnfit is wrapped by the error of a score that cannot be fitted.
var errUnfit = errors.New("it cannot be fitted")

// prepare makes a method ready to score with each seed.
func (e *evaluation) prepare(ctx context.Context, method string) ([]run, error) {
	if p, ok := e.prepared[method]; ok {
		return p.runs, p.err
	}
	group := posthoc.Related(method)
	together := &joint{kept: map[*features.Table][][]float64{}}
	for _, m := range e.opts.Methods {
		if slices.Contains(group, m) {
			runs, err := e.prepareIn(ctx, m, together)
			e.prepared[m] = prepared{runs, err}
		}
	}
	p := e.prepared[method]
	return p.runs, p.err
}

// prepared is a method ready to score, or the error of preparing it.
type prepared struct {
	runs []run
	err  error
}

// prepareIn makes a method ready to be scored with each seed, together with
// others.
func (e *evaluation) prepareIn(ctx context.Context, method string, together *joint) ([]run, error) {
	if d := e.opts.Detector; d != nil && (method == detector.HeadScore || method == d.ScoreName() || method == detector.JoinedScore && d.Scoring == nil) {
		names := lists.Map(d.Seeds, func(s uint64) string { return strconv.FormatUint(s, 10) })
		judge := *d
		if method == detector.HeadScore {
			judge.Scoring = nil
		}
		return []run{{strings.Join(names, "+"), verdictsOf(&judge)}}, nil
	}
	parts, ensemble, err := detector.ScoreParts(method)
	if err != nil {
		return nil, err
	}
	heads := make([]trained, len(e.train.Options.Seeds))
	if method == detector.JoinedScore || slices.Contains(parts, detector.HeadPart) {
		if heads, err = e.trainHeads(ctx); err != nil {
			return nil, err
		}
	}
	runs := make([]run, len(heads))
	switch method {
	case detector.HeadScore:
		for i, h := range heads {
			runs[i] = run{e.seed(i), e.scoresOf(h.heads)}
		}
		return runs, nil
	case detector.JoinedScore:
		return e.prepareJoined(ctx, heads)
	}
	networks, err := e.classifiers(ctx)
	if err != nil {
		return nil, err
	}
	if ensemble || e.opts.Head == OwnHead { // every seed has features of its own
		together = nil
	}
	unseeded := together != nil && (e.opts.Head == BackboneHead || posthoc.Headless(method))
	var s *detector.Scoring
	for i := range runs {
		c := networks[i].classifier
		if s == nil || !unseeded {
			e.tell(method+": fitting", i, len(runs))
			if s, err = e.scoring(ctx, method, ensemble, i, c, heads[i].heads); err != nil {
				return nil, fmt.Errorf("%w: %w", errUnfit, err)
			}
			if together != nil {
				together.members = append(together.members, member{s.Parts[0].Score, c, posthoc.ReadsLogits(method)})
			}
		}
		runs[i] = run{e.seed(i), e.predictor(s, c, heads[i].heads)}
		if together != nil {
			runs[i].predict = e.jointPredictor(together, len(together.members)-1, c)
		}
	}
	return runs, nil
}

// joint are post-hoc scores that are computed together, once for each table.
type joint struct {
	members []member
	kept    map[*features.Table][][]float64 // by member
}

// member is a score, and what gives the logits if it reads them.
type member struct {
	score       posthoc.Scorer
	classifier  *training.Classifier
	readsLogits bool
}

// jointPredictor scores as a member does and classifies as c does.
func (e *evaluation) jointPredictor(j *joint, at int, c *training.Classifier) predictor {
	return func(ctx context.Context, t *features.Table) ([]float64, []int, error) {
		if j.kept[t] == nil {
			if err := e.scoreJointly(ctx, j, t); err != nil {
				return nil, nil, err
			}
		}
		classes, err := c.Predict(ctx, t)
		return j.kept[t][at], classes, err
	}
}

func (e *evaluation) scoreJointly(ctx context.Context, j *joint, t *features.Table) error {
	n := len(t.Labels)
	all := make([][]float64, len(j.members))
	scores := make([]posthoc.Scorer, len(all))
	for i, m := range j.members {
		if m.readsLogits {
			if err := m.classifier.Keep(ctx, t, &e.room); err != nil {
				return err
			}
		}
		all[i], scores[i] = make([]float64, n), m.score
	}
	block := e.blockRows(t.D + len(all)*len(e.train.Classes))
	for from := 0; from < n; from += block {
		to := min(from+block, n)
		dst, batches := make([][]float64, len(all)), make([]posthoc.Batch, len(all))
		for i, m := range j.members {
			dst[i], batches[i] = all[i][from:to], posthoc.Batch{Features: t.Block(from, to)}
			if m.readsLogits {
				var err error
				if batches[i].Logits, err = m.classifier.All(ctx, t, from, to); err != nil {
					return err
				}
			}
		}
		if err := posthoc.ScoreAll(ctx, dst, scores, batches); err != nil {
			return err
		}
	}
	j.kept[t] = all
	return nil
}

// blockRows is how many rows of so many float64 are a quarter of the memory.
func (e *evaluation) blockRows(values int) int {
	return max(1, int(e.opts.Memory/4/8/int64(values)))
}

// prepareJoined makes the joined score of each seed's heads ready.
func (e *evaluation) prepareJoined(ctx context.Context, heads []trained) ([]run, error) {
	runs := make([]run, len(heads))
	for i, h := range heads {
		e.train.Options.Stage = func(what string, done, total int) {
			e.tell(detector.JoinedScore+": "+what, i*total+done, len(heads)*total)
		}
		j, err := e.train.FitJoined(ctx, e.train.Options.Seeds[i], h.heads)
		if err != nil {
			return nil, err
		}
		if i == 0 && j.Why != "" {
			e.warn(j.Why)
		}
		if j.Assessment != nil && e.opts.Assessed != nil {
			e.opts.Assessed(e.train.Options.Seeds[i], j.Assessment)
		}
		if runs[i] = (run{e.seed(i), e.scoresOf(h.heads)}); j.Scoring != nil {
			runs[i].predict = e.predictor(j.Scoring, training.ClassifierOf(posthoc.MLP{j.Scoring.Classifier}), h.heads)
		}
	}
	return runs, nil
}

// ownPredictor gives what the heads of a detector say of a table's rows, without
// the confidences, and the rows' classes.
type ownPredictor func(ctx context.Context, t *features.Table) (head.Outputs, []int, error)

// scoresOf is a predictor by the heads' own score.
func (e *evaluation) scoresOf(d *detector.Detector) predictor {
	return func(ctx context.Context, t *features.Table) ([]float64, []int, error) {
		own, classes, err := e.once(d)(ctx, t)
		return own.Scores, classes, err
	}
}

// once returns the outputs of a detector's heads. They are computed once for each table.
func (e *evaluation) once(d *detector.Detector) ownPredictor {
	if e.said[d] == nil {
		type answer struct {
			own     head.Outputs
			classes []int
		}
		kept := map[*features.Table]answer{}
		if e.said == nil {
			e.said = map[*detector.Detector]ownPredictor{}
		}
		e.said[d] = func(ctx context.Context, t *features.Table) (head.Outputs, []int, error) {
			if a, ok := kept[t]; ok {
				return a.own, a.classes, nil
			}
			var a answer
			for x := range t.Chunks() {
				err := d.EachOwn(ctx, x, func(own head.Outputs) {
					a.own.Scores = append(a.own.Scores, own.Scores...)
					a.own.Nearness = append(a.own.Nearness, own.Nearness...)
					a.own.Decision = append(a.own.Decision, own.Decision...)
					for row := range slices.Chunk(own.LogConfidences, len(d.Classes)) {
						a.classes = append(a.classes, floats.MaxIdx(row))
					}
				})
				if err != nil {
					return a.own, a.classes, err
				}
			}
			kept[t] = a
			return a.own, a.classes, nil
		}
	}
	return e.said[d]
}

// trainHeads returns the MLRBFN of each seed.
func (e *evaluation) trainHeads(ctx context.Context) ([]trained, error) {
	if e.heads == nil {
		heads, err := e.trainAll(ctx, contender{name: detector.HeadScore, head: e.train.Options.Head, train: e.train.Options.Train})
		if err != nil {
			return nil, err
		}
		e.heads = heads
	}
	return e.heads, nil
}

// classifiers returns the one of each seed whose logits scores read; the
// backbone's is the same for all.
func (e *evaluation) classifiers(ctx context.Context) ([]trained, error) {
	if e.softmax != nil {
		return e.softmax, nil
	}
	switch e.opts.Head {
	case OwnHead:
		heads, err := e.trainHeads(ctx)
		for _, h := range heads {
			c := training.NewClassifier(len(e.train.Classes), func(x []float32) []float64 { return h.heads.Own(x).LogConfidences })
			own := h.heads.Heads[0] // of this seed alone
			c.Represent, c.Width = own.Representations, own.Width()
			e.softmax = append(e.softmax, trained{classifier: c})
		}
		return e.softmax, err
	case BackboneHead:
		c, err := training.BackboneClassifier(e.train.Table)
		if err != nil {
			return nil, err
		}
		for range e.train.Options.Seeds {
			e.softmax = append(e.softmax, trained{classifier: c})
		}
		return e.softmax, nil
	}
	c := contender{name: "linear head", linear: true}
	if e.opts.Softmax != nil {
		c = contender{name: "softmax head", softmax: e.opts.Softmax, train: e.opts.SoftmaxTrain}
	}
	networks, err := e.trainAll(ctx, c)
	if err != nil {
		return nil, err
	}
	e.softmax = networks
	return e.softmax, nil
}

// scoring fits a score, or the parts of an ensemble, for the i-th seed.
func (e *evaluation) scoring(ctx context.Context, method string, ensemble bool, i int, c *training.Classifier, own *detector.Detector) (*detector.Scoring, error) {
	if err := c.Keep(ctx, e.train.Table, &e.room); err != nil {
		return nil, err
	}
	if ensemble {
		return e.train.FitEnsemble(ctx, e.train.Options.Seeds[i], method, c, own, e.opts.Memory)
	}
	if c.Train == nil { // what scores have in common is computed once
		c.Train = e.train.Labelled(c)
		switch {
		case c.Represent != nil: // features of its own
		case e.rows == nil:
			e.rows = c.Train
		default:
			c.Train = e.rows.WithLogits(c.Train.Logits)
		}
	}
	f := training.Fitting{Network: c.Network, Memory: e.opts.Memory, Train: c.Train, Val: e.train.HeldOut(c)}
	return f.Scoring(ctx, method, nil)
}

// predictor scores by s, whose parts may read the logits of c, and the scores of own, and
// classifies as own does, where it is a part, else as c.
func (e *evaluation) predictor(s *detector.Scoring, c *training.Classifier, own *detector.Detector) predictor {
	var say ownPredictor
	if own != nil {
		say = e.once(own)
	}
	readsLogits := slices.ContainsFunc(s.Parts, func(p detector.Part) bool { return p.Score != nil && posthoc.ReadsLogits(p.Name) })
	return func(ctx context.Context, t *features.Table) (scores []float64, classes []int, err error) {
		if readsLogits {
			if err := c.Keep(ctx, t, &e.room); err != nil {
				return nil, nil, err
			}
		}
		var said head.Outputs
		if own != nil {
			said, classes, err = say(ctx, t)
		} else {
			classes, err = c.Predict(ctx, t)
		}
		if err != nil {
			return nil, nil, err
		}
		n := len(t.Labels)
		scores = make([]float64, n)
		// Features widened to float64 and logits.
		block := e.blockRows(t.D + len(e.train.Classes))
		for from := 0; from < n; from += block {
			to := min(from+block, n)
			b := detector.Batch{Batch: posthoc.Batch{Features: c.Features(t.Block(from, to))}, Layers: map[string][]float32{}}
			for _, p := range s.Parts {
				if p.Layer != "" {
					b.Layers[p.Layer] = t.Layer(p.Layer, from, to)
				}
			}
			if readsLogits {
				if b.Logits, err = c.All(ctx, t, from, to); err != nil {
					return nil, nil, err
				}
			}
			var o head.Outputs
			if own != nil {
				o = said.Part(from, to, 0)
			}
			if err := s.Score(ctx, scores[from:to], b, o); err != nil {
				return nil, nil, err
			}
		}
		return scores, classes, nil
	}
}

// leaveOut takes those methods off the list that cannot be fitted for want of
// memory, and tells Warn; a method that was named is an error. It is called before
// anything is trained.
func (e *evaluation) leaveOut(named bool) error {
	var kept []string
	for _, method := range e.opts.Methods {
		switch err := e.checkMemory(method); {
		case err == nil:
			kept = append(kept, method)
		case named:
			return err
		default:
			e.warn(fmt.Sprintf("%s is left out: %s", method, options.Text(err)))
		}
	}
	e.opts.Methods = kept
	return nil
}

// checkMemory reports that a method cannot be fitted on the training features.
// Of scores that read what the last layer of a network reads, it is only known when
// they are fitted.
func (e *evaluation) checkMemory(method string) error {
	if d := e.opts.Detector; d != nil && method == d.ScoreName() || e.opts.Head == OwnHead {
		return nil
	}
	if e.opts.Head == "" && e.opts.Softmax != nil && e.opts.Softmax.Layers > 1 && !posthoc.Headless(method) {
		return nil
	}
	return training.CheckMemory(method, e.train.D, len(e.train.Classes), e.opts.Memory)
}
