package posthoc

import (
	"cmp"
	"context"
	"fmt"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[KNN]("KNN", method{
	name:  "knn",
	words: Words{"far from the training images", "near to training images", "farther from its neighbours among the training images"},
	reads: featureRows, needs: featureRows, group: groupSearch,
	fit: func(_ context.Context, in Input) (Scorer, error) { return FitKNN(in.Train, 0) },
})

func (s *KNN) fields(f *fields) {
	f.int("k", &s.K)
	f.refuse(s.K < 1, "k", "it is %d", s.K)
	f.bank("bank", &s.Bank, false)
}

func (s *KNN) detach() { s.Bank = s.Bank.inMemory(false) }

func (s *KNN) limit(memory int64) { s.Memory = memory }

// KNN is the distance to the K-th nearest training row: −‖f/‖f‖ − g/‖g‖‖²,
// squared. Reads features. It is exact; K above the number of rows means the
// furthest of them. Training rows of zeros are never neighbours; features of
// zeros score −1, their squared distance from any row of length 1 (OpenOOD's is
// −3.4e38).
//
// Source: Sun et al., 2022 (OpenOOD: KNNPostprocessor).
type KNN struct {
	K      int
	Bank   *Data // its features alone are read
	Memory int64 // bytes that scoring takes, whatever the bank's size; 0 means 1 GiB
}

// FitKNN returns KNN with all rows of the data as its bank; k of 0 means 50.
func FitKNN(data *Data, k int) (*KNN, error) {
	if err := data.need(featureRows); err != nil {
		return nil, err
	}
	if k < 0 {
		return nil, fmt.Errorf("%d nearest neighbours: it cannot be negative", k)
	}
	return &KNN{K: cmp.Or(k, 50), Bank: data}, nil
}

// Score implements [Scorer].
func (s *KNN) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *KNN) join(t *together, dst []float64, b Batch) error {
	w := searchOf(t, s.Bank, s.Memory)
	w.neighbours = append(w.neighbours, neighbour{s.K, dst})
	return nil
}

func (s *KNN) graph(g *graph) onnx.Value {
	cosines, at := g.cosines(s.Bank, func(int) bool { return true })
	k := min(s.K, len(at))
	nearest, _ := g.TopK(cosines, k)
	last := g.Node("Gather", []onnx.Value{nearest, g.Int64s(int64(k - 1))}, onnx.Int("axis", 1))
	score := g.Op("Min", g.Op("Sub", g.Op("Add", last, last), g.Number(2)), g.Number(0))
	// Of features of zeros it would be −2.
	return g.Op("Add", score, g.Op("Sub", g.Number(1), g.Positive(g.Length(g.Features))))
}
