package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mlrbfn/head"
	"mlrbfn/posthoc"
)

// errUnfit is wrapped by the error of a score that cannot be fitted.
var errUnfit = errors.New("it cannot be fitted")

var errNoScale = errors.New("an ensemble needs validation images, which put its parts on one scale: --val is not 0")

// prepare makes a method ready to score with each seed.
func (e *evaluation) prepare(ctx context.Context, method string) ([]run, error) {
	if p, ok := e.prepared[method]; ok {
		return p.runs, p.err
	}
	group := posthoc.Related(method)
	together := &joint{kept: map[*table][][]float64{}}
	for _, m := range e.opts.Methods {
		if slices.Contains(group, m) {
			runs, err := e.prepareIn(ctx, m, together)
			e.prepared[m] = prepared{runs, err}
		}
	}
	p := e.prepared[method]
	return p.runs, p.err
}

// prepared is what prepare returned.
type prepared struct {
	runs []run
	err  error
}

// prepareIn makes a method ready to be scored with each seed, together with
// others.
func (e *evaluation) prepareIn(ctx context.Context, method string, together *joint) ([]run, error) {
	if d := e.opts.Detector; d != nil && (method == OwnScore || method == d.scoreName()) {
		names := make([]string, len(d.Seeds))
		for i, s := range d.Seeds {
			names[i] = strconv.FormatUint(s, 10)
		}
		judge := *d
		if method == OwnScore {
			judge.Scoring = nil
		}
		return []run{{strings.Join(names, "+"), judge.predict}}, nil
	}
	parts, ensemble, err := scoreParts(method)
	if err != nil {
		return nil, err
	}
	heads := make([]trained, len(e.train.opts.Seeds))
	if slices.Contains(parts, OwnScore) {
		if heads, err = e.trainHeads(ctx); err != nil {
			return nil, err
		}
	}
	runs := make([]run, len(heads))
	if method == OwnScore {
		for i, h := range heads {
			runs[i] = run{e.seed(i), e.once(h.heads)}
		}
		return runs, nil
	}
	networks, err := e.classifiers(ctx)
	if err != nil {
		return nil, err
	}
	if ensemble || e.opts.Head == OwnScore { // every seed has features of its own
		together = nil
	}
	unseeded := together != nil && (e.opts.Head == BackboneHead || posthoc.Headless(method))
	var s *Scoring
	for i := range runs {
		c := networks[i].classifier
		if s == nil || !unseeded {
			e.tell(method+": fitting", i, len(runs))
			if s, err = e.scoring(ctx, method, ensemble, i, c, heads[i].heads); err != nil {
				return nil, fmt.Errorf("%w: %w", errUnfit, err)
			}
			if together != nil {
				together.members = append(together.members, member{s.Parts[0].Score, c})
			}
		}
		runs[i] = run{e.seed(i), e.predictor(s, c, heads[i].heads)}
		if together != nil {
			runs[i].predict = e.jointPredictor(together, len(together.members)-1, c)
		}
	}
	return runs, nil
}

// joint are post-hoc scores of which those of a table are computed together and
// kept.
type joint struct {
	members []member
	kept    map[*table][][]float64 // by member
}

// member is a score and what gives the logits that it reads.
type member struct {
	score      posthoc.Scorer
	classifier *classifier
}

// jointPredictor scores as a member does and classifies as c does.
func (e *evaluation) jointPredictor(j *joint, at int, c *classifier) predictor {
	return func(ctx context.Context, t *table) ([]float64, []int, error) {
		if j.kept[t] == nil {
			if err := e.scoreJointly(ctx, j, t); err != nil {
				return nil, nil, err
			}
		}
		classes, err := c.predict(ctx, t)
		return j.kept[t][at], classes, err
	}
}

func (e *evaluation) scoreJointly(ctx context.Context, j *joint, t *table) error {
	n := len(t.labels)
	all := make([][]float64, len(j.members))
	scores := make([]posthoc.Scorer, len(all))
	for i, m := range j.members {
		if err := m.classifier.keep(ctx, t, &e.room); err != nil {
			return err
		}
		all[i], scores[i] = make([]float64, n), m.score
	}
	block := e.blockRows(t.d + len(all)*len(e.train.classes))
	for from := 0; from < n; from += block {
		to := min(from+block, n)
		dst, batches := make([][]float64, len(all)), make([]posthoc.Batch, len(all))
		for i, m := range j.members {
			logits, err := m.classifier.all(ctx, t, from, to)
			if err != nil {
				return err
			}
			dst[i], batches[i] = all[i][from:to], posthoc.Batch{Features: t.x[from*t.d : to*t.d], Logits: logits}
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

// once is a predictor by a detector's verdicts that keeps them for all who ask.
func (e *evaluation) once(d *Detector) predictor {
	if e.verdicts[d] == nil {
		type answer struct {
			scores  []float64
			classes []int
		}
		kept := map[*table]answer{}
		if e.verdicts == nil {
			e.verdicts = map[*Detector]predictor{}
		}
		e.verdicts[d] = func(ctx context.Context, t *table) ([]float64, []int, error) {
			if a, ok := kept[t]; ok {
				return a.scores, a.classes, nil
			}
			scores, classes, err := d.predict(ctx, t)
			if err == nil {
				kept[t] = answer{scores, classes}
			}
			return scores, classes, err
		}
	}
	return e.verdicts[d]
}

// trainHeads returns the MLRBFN of each seed.
func (e *evaluation) trainHeads(ctx context.Context) (_ []trained, err error) {
	if e.heads == nil {
		e.heads, err = e.trainAll(ctx, contender{name: OwnScore, head: e.train.opts.Head, train: e.train.opts.Train})
	}
	return e.heads, err
}

// classifiers returns the one of each seed whose logits scores read; the
// backbone's is the same for all.
func (e *evaluation) classifiers(ctx context.Context) (_ []trained, err error) {
	if e.softmax != nil {
		return e.softmax, nil
	}
	switch e.opts.Head {
	case OwnScore:
		heads, err := e.trainHeads(ctx)
		for _, h := range heads {
			c := newClassifier(len(e.train.classes), h.heads.LogConfidences)
			own := h.heads.Heads[0] // of this seed alone
			c.represent, c.width = own.Representations, own.Width()
			e.softmax = append(e.softmax, trained{classifier: c})
		}
		return e.softmax, err
	case BackboneHead:
		c, err := e.train.backboneClassifier()
		if err != nil {
			return nil, err
		}
		for range e.train.opts.Seeds {
			e.softmax = append(e.softmax, trained{classifier: c})
		}
		return e.softmax, nil
	}
	e.softmax, err = e.trainAll(ctx, contender{name: "softmax head", softmax: &e.opts.Softmax, train: e.train.opts.Linear})
	return e.softmax, err
}

// scoring fits a score, or the parts of an ensemble, for the i-th seed.
func (e *evaluation) scoring(ctx context.Context, method string, ensemble bool, i int, c *classifier, own *Detector) (*Scoring, error) {
	t, err := e.train.resplit(e.train.opts.Seeds[i])
	if err != nil {
		return nil, err
	}
	if err := c.keep(ctx, t.table, &e.room); err != nil {
		return nil, err
	}
	classes := len(t.classes)
	f := fitting{network: c.network, memory: e.opts.Memory}
	if ensemble {
		f.train = c.data(t.table, t.split.train, t.labels, classes)
		return f.scoring(ctx, method, t.scale(c, own))
	}
	if c.train == nil { // what scores have in common is computed once
		c.train = c.data(t.table, t.labelled(), t.labels, classes)
		switch {
		case c.represent != nil: // features of its own
		case e.rows == nil:
			e.rows = c.train
		default:
			c.train = e.rows.WithLogits(c.train.Logits)
		}
	}
	f.train = c.train
	if t.held != nil {
		f.val = c.data(t.held, t.validation.Rows, t.validation.Labels, classes)
	}
	return f.scoring(ctx, method, nil)
}

// labelled lists the rows with a label.
func (t *trainingData) labelled() []int {
	var rows []int
	for i, y := range t.labels {
		if y >= 0 {
			rows = append(rows, i)
		}
	}
	return rows
}

// scale returns what puts the parts of an ensemble on one scale: the scores of
// the validation rows. The data are not conditioned.
func (t *trainingData) scale(c *classifier, own *Detector) scaler {
	return func(ctx context.Context, p Part) (head.Scale, error) {
		from, rows := t.table, t.validation.Rows
		if t.held != nil {
			from = t.held
		}
		if len(rows) == 0 {
			return head.Scale{}, errNoScale
		}
		rows = thin(rows, scaleRows)
		b := posthoc.Batch{Features: from.gather(rows)}
		scores := make([]float64, len(rows))
		if p.Score == nil {
			for i, v := range own.Verdicts(b.Features) {
				scores[i] = v.Score
			}
			return head.ScaleOf(scores), ctx.Err()
		}
		b.Features = c.features(b.Features)
		if !posthoc.Headless(p.Name) {
			b.Logits = c.logits(from, rows)
		}
		err := p.Score.Score(ctx, scores, b)
		return head.ScaleOf(scores), err
	}
}

// scaleRows is how many rows are enough for a mean and a deviation.
const scaleRows = 10000

// thin returns at most n rows, at equal distances.
func thin(rows []int, n int) []int {
	step := (len(rows) + n - 1) / n
	if step < 2 {
		return rows
	}
	var some []int
	for i := 0; i < len(rows); i += step {
		some = append(some, rows[i])
	}
	return some
}

// predictor scores by s, which reads the logits of c and the scores of own, and
// classifies as own does, where it is a part, else as c.
func (e *evaluation) predictor(s *Scoring, c *classifier, own *Detector) predictor {
	var verdicts predictor
	if own != nil {
		verdicts = e.once(own)
	}
	return func(ctx context.Context, t *table) (scores []float64, classes []int, err error) {
		if err := c.keep(ctx, t, &e.room); err != nil {
			return nil, nil, err
		}
		var ownScores []float64
		if own != nil {
			ownScores, classes, err = verdicts(ctx, t)
		} else {
			classes, err = c.predict(ctx, t)
		}
		if err != nil {
			return nil, nil, err
		}
		n := len(t.labels)
		scores = make([]float64, n)
		// Features widened to float64 and logits.
		block := e.blockRows(t.d + len(e.train.classes))
		for from := 0; from < n; from += block {
			to := min(from+block, n)
			b := posthoc.Batch{Features: c.features(t.x[from*t.d : to*t.d])}
			if b.Logits, err = c.all(ctx, t, from, to); err != nil {
				return nil, nil, err
			}
			var o []float64
			if own != nil {
				o = ownScores[from:to]
			}
			if err := s.score(ctx, scores[from:to], b, o); err != nil {
				return nil, nil, err
			}
		}
		return scores, classes, nil
	}
}
