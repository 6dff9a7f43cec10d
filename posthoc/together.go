package posthoc

import "context"

// ScoreAll puts into each dst [n] what the score gives its batch, all of which
// have the same features. What is the same for several scores is computed once:
// KNN and Relation compare the features with the training rows that they were
// fitted on, NNGuides of several heads with those of their bank; RMDS and ViM take
// what the MDS and the Residual before them come to; energies of changed features,
// such as ASH, change them. How a Relation of more than 64 classes is rounded
// depends on the first of them.
func ScoreAll(ctx context.Context, dst [][]float64, scores []Score, batches []Batch) error {
	searches, guides, shapes := map[*Data]*search{}, map[*Data]*guidance{}, map[shape]*shaped{}
	within, residual := map[*MDS][]float64{}, map[*Residual][]float64{}
	for i, s := range scores {
		dst, b := dst[i], batches[i]
		switch s := s.(type) {
		case *KNN:
			search := entry(searches, s.Bank.source())
			if search.each != nil { // one K at a time
				if err := s.Score(ctx, dst, b); err != nil {
					return err
				}
				continue
			}
			search.k, search.memory = s.K, s.Memory
			search.each = func(i int, best []float64) {
				dst[i] = -1
				if len(best) > 0 {
					dst[i] = min(2*best[0]-2, 0)
				}
			}
		case *Relation:
			classes, err := b.classes(len(dst), s.Bank.Classes)
			if err != nil {
				return err
			}
			clear(dst)
			search := entry(searches, s.Bank.source())
			search.memory = s.Memory
			search.relations = append(search.relations, &relation{bank: s.Bank, classes: classes, all: dst, logits: b.Logits})
		case *NNGuide:
			classes, err := b.classes(len(dst), 0)
			if err != nil {
				return err
			}
			g := entry(guides, s.Bank.source())
			g.memory, g.guides = s.Memory, append(g.guides, guide{s, dst, b.Logits, classes})
		case shaping:
			head, how := s.shaping()
			g := entry(shapes, how)
			g.heads, g.dst = append(g.heads, head), append(g.dst, dst)
		case *MDS:
			if err := s.Score(ctx, dst, b); err != nil {
				return err
			}
			within[s] = dst
		case *RMDS:
			if err := s.relative(ctx, dst, b, within[s.MDS]); err != nil {
				return err
			}
		case *Residual:
			if err := s.Score(ctx, dst, b); err != nil {
				return err
			}
			residual[s] = dst
		case *ViM:
			if err := s.match(ctx, dst, b, residual[s.Residual]); err != nil {
				return err
			}
		default:
			if err := s.Score(ctx, dst, b); err != nil {
				return err
			}
		}
	}
	for bank, s := range searches {
		if err := s.run(ctx, bank, len(dst[0]), batches[0]); err != nil {
			return err
		}
	}
	for bank, g := range guides {
		if err := g.run(ctx, bank, len(dst[0]), batches[0]); err != nil {
			return err
		}
	}
	for how, s := range shapes {
		if err := s.run(ctx, how, len(dst[0]), batches[0]); err != nil {
			return err
		}
	}
	return nil
}

// entry returns what a map has for a key, a zero value if it has nothing yet.
func entry[K comparable, V any](m map[K]*V, key K) *V {
	v := m[key]
	if v == nil {
		v = new(V)
		m[key] = v // under a NaN it is not found again
	}
	return v
}

// alone is Score of a score that ScoreAll computes.
func alone(ctx context.Context, s Score, dst []float64, b Batch) error {
	return ScoreAll(ctx, [][]float64{dst}, []Score{s}, []Batch{b})
}
