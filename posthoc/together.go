package posthoc

import "context"

// ScoreAll puts each score of its batch into its dst [n]. All batches have the same
// features. Shared work is done once. Each result is bit-identical to that of the
// score alone, in any order of the scores.
func ScoreAll(ctx context.Context, dst [][]float64, scores []Scorer, batches []Batch) error {
	t := together{begun: map[any]work{}}
	for i, s := range scores {
		shared, ok := s.(sharer)
		if !ok {
			if err := s.Score(ctx, dst[i], batches[i]); err != nil {
				return err
			}
			continue
		}
		if t.n = len(dst[i]); t.features == nil {
			t.features = batches[i].Features
		}
		if err := shared.join(&t, dst[i], batches[i]); err != nil {
			return err
		}
	}
	for _, w := range t.works {
		if err := w.run(ctx, t.n, Batch{Features: t.features}); err != nil {
			return err
		}
	}
	return nil
}

// sharer is a score that shares work with others.
type sharer interface {
	// join adds the score to a work, which it gets from workOn. The work puts the
	// scores of b into dst.
	join(t *together, dst []float64, b Batch) error
}

// work computes several scores that share a computation.
type work interface {
	// run computes the scores of the n rows of b, which has no logits.
	run(ctx context.Context, n int, b Batch) error
}

// together is the works of scores that are computed at the same time.
type together struct {
	begun    map[any]work
	works    []work // in the order in which they were begun
	n        int    // rows
	features []float32
}

// workOn returns the work of type W that has the key, a new one for the first
// score that asks for it.
func workOn[W any, P interface {
	*W
	work
}](t *together, key any) P {
	key = [2]any{P(nil), key}
	if w, ok := t.begun[key]; ok {
		return w.(P)
	}
	w := P(new(W))
	t.begun[key], t.works = w, append(t.works, w) // a key with NaN is never found again
	return w
}

// alone is the method Score of a sharer.
func alone(ctx context.Context, s interface {
	Scorer
	sharer
}, dst []float64, b Batch) error {
	return ScoreAll(ctx, [][]float64{dst}, []Scorer{s}, []Batch{b})
}
