package pipeline

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

type (
	// Explainer explains the verdicts of a detector; see [NewExplainer].
	Explainer = detector.Explainer
	// ExplainOptions says what to explain verdicts by.
	ExplainOptions = detector.ExplainOptions
	// Explanation says why an image was judged as it was.
	Explanation = detector.Explanation
	// Neighbour is a training image near to a judged one.
	Neighbour = detector.Neighbour
	// WhereMap says which region of an image made its score fall.
	WhereMap = detector.Map
)

// NewExplainer returns what explains a detector's verdicts: the parts of the score,
// in words and in standard deviations, and the nearest training images. Give it to
// [Detect] or to [Judge.Explain], or call its method Explain for features.
func NewExplainer(ctx context.Context, d *Detector, opts ExplainOptions) (*Explainer, error) {
	return detector.NewExplainer(ctx, d, opts)
}

// Explain is Images with the reasons: Answer.Explanation is set for every image that
// could be read. With where, flagged images have a map of which region made the score
// fall. A model of patches gives it with the verdict; without one some 50 to 100 images run
// through the backbone for each of them.
func (j *Judge) Explain(ctx context.Context, e *Explainer, where bool, pictures ...Picture) ([]Answer, error) {
	answers, rows, maps, err := j.judge(ctx, true, pictures)
	if err != nil {
		return nil, err
	}
	var x []float32
	var verdicts []Verdict
	var at []int
	for i, row := range rows {
		if answers[i].Err == nil {
			x, verdicts, at = append(x, row...), append(verdicts, answers[i].Verdict), append(at, i)
		}
	}
	all, err := e.Explain(ctx, x, verdicts)
	if err != nil {
		return nil, err
	}
	var items []images.Item
	var of []*Explanation
	for k, i := range at {
		switch {
		case !where || !answers[i].OOD:
		case maps[i] != nil:
			all[k].Where = maps[i]
		default:
			items, of = append(items, pictures[i].item), append(of, &all[k])
		}
		answers[i].Explanation = &all[k]
	}
	return answers, addMaps(ctx, e, j.backbone, items, j.opts, of)
}

// addMaps adds the maps of images to their explanations.
func addMaps(ctx context.Context, e *Explainer, backbone extractor.Backbone, items []images.Item, run extractor.Options, to []*Explanation) error {
	maps, err := e.Where(ctx, backbone, items, run)
	for i, m := range maps {
		to[i].Where, to[i].WhereErr = m.Map, m.Err
	}
	return err
}

// explaining collects judged images, in order, to explain many of them at once.
type explaining struct {
	opts     *DetectOptions
	backbone extractor.Backbone
	sink     func(extractor.Row, Verdict, *Explanation) error

	results  []extractor.Row
	verdicts []Verdict
	received atomic.Int64
	maps     int           // that were made
	unmapped int           // flagged images without, as there were enough
	more     chan struct{} // has a value when received has grown
}

// explainedAtOnce is how many images share a search of the training features, and
// mappedAtOnce how many where those that are flagged get a map, which takes so long
// that the search does not matter.
const explainedAtOnce, mappedAtOnce = 512, 32

// DefaultMaps is the default of DetectOptions.MostMaps.
const DefaultMaps = 1000

func newExplaining(opts *DetectOptions, backbone extractor.Backbone, sink func(extractor.Row, Verdict, *Explanation) error) *explaining {
	return &explaining{opts: opts, backbone: backbone, sink: sink, more: make(chan struct{}, 1)}
}

// add takes the next image. Calls do not overlap.
func (e *explaining) add(ctx context.Context, r extractor.Row, v Verdict) error {
	e.results, e.verdicts = append(e.results, r), append(e.verdicts, v)
	var err error
	if len(e.results) == explainedAtOnce || e.opts.Where && len(e.results) == mappedAtOnce {
		err = e.flush(ctx)
	}
	e.received.Add(1)
	select {
	case e.more <- struct{}{}:
	default:
	}
	return err
}

// flush explains the images that were taken. No call of add may overlap.
func (e *explaining) flush(ctx context.Context) error {
	var x []float32
	var verdicts []Verdict
	for i, r := range e.results {
		if r.Err == nil {
			x, verdicts = append(x, r.Features...), append(verdicts, e.verdicts[i])
		}
	}
	all, err := e.opts.Explain.Explain(ctx, x, verdicts)
	if err != nil {
		return err
	}
	reasons := make([]*Explanation, len(e.results))
	var items []images.Item
	var of []*Explanation
	for i, r := range e.results {
		if r.Err != nil {
			continue
		}
		reasons[i], all = &all[0], all[1:]
		switch {
		case !e.opts.Where || !e.verdicts[i].OOD:
		case e.maps == cmp.Or(e.opts.MostMaps, DefaultMaps):
			e.unmapped++
		default:
			e.maps++
			if reasons[i].Where = detector.MapOf(r); reasons[i].Where != nil {
				continue
			}
			items, of = append(items, r.Item), append(of, reasons[i])
		}
	}
	if err := addMaps(ctx, e.opts.Explain, e.backbone, items, e.opts.Options, of); err != nil {
		return err
	}
	for i, r := range e.results {
		if err := e.sink(r, e.verdicts[i], reasons[i]); err != nil {
			return err
		}
	}
	e.results, e.verdicts = e.results[:0], e.verdicts[:0]
	return nil
}

// drain waits until n images were taken, after which no more come for now, and
// explains those that are left.
func (e *explaining) drain(ctx context.Context, n int) error {
	for e.received.Load() < int64(n) {
		select {
		case <-e.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return e.flush(ctx)
}
