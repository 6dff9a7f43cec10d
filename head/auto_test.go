package head_test

import (
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
)

// TestAuto: whitening after L2, but without L2 if the length separates the classes
// or there are few features, and no whitening if classes have no spread.
func TestAuto(t *testing.T) {
	for name, tt := range map[string]struct {
		d      int
		spread float64 // within a class
		length bool    // the classes differ only in their length
		want   head.ConditioningOptions
	}{
		"many features":           {d: 40, spread: 1, want: head.ConditioningOptions{Kind: head.Whiten, L2: true}},
		"few features":            {d: 20, spread: 1, want: head.ConditioningOptions{Kind: head.Whiten}},
		"the length tells":        {d: 40, spread: 1, length: true, want: head.ConditioningOptions{Kind: head.Whiten}},
		"no spread":               {d: 40, want: head.ConditioningOptions{Kind: head.None, L2: true}},
		"no spread, few features": {d: 20, want: head.ConditioningOptions{}},
	} {
		t.Run(name, func(t *testing.T) {
			const n, classes = 300, 3
			rng := rand.New(rand.NewPCG(1, 7))
			means := make([]float64, classes*tt.d)
			for i := range means {
				if means[i] = 3 * rng.NormFloat64(); tt.length {
					means[i] = 5 * float64(1+i/tt.d)
				}
			}
			train := features.Rows{D: tt.d}
			for i := range n {
				c := i % classes
				for _, mean := range means[c*tt.d : (c+1)*tt.d] {
					train.X = append(train.X, float32(mean+tt.spread*rng.NormFloat64()))
				}
				train.Labels = append(train.Labels, int64(c))
			}
			val := train
			train.Index, val.Index = lists.UpTo(n)[:240], lists.UpTo(n)[240:]
			c, err := head.FitConditioning(t.Context(), train, val, classes, head.ConditioningOptions{Kind: head.Auto})
			if err != nil {
				t.Fatal(err)
			}
			var got head.ConditioningOptions
			if c != nil {
				got = c.ConditioningOptions
			}
			if got.Kind == head.Whiten && got.Shrinkage == 0 {
				t.Error("whitened without a shrinkage")
			}
			if got.Shrinkage = 0; got != tt.want {
				t.Errorf("conditioned by %+v, want %+v", got, tt.want)
			}
		})
	}
}
