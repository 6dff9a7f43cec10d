package conditioning_test

import (
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/conditioning"
	"github.com/mlrbfn/mlrbfn/dataset"
)

// TestAuto: whitening after L2, but without L2 if the length separates the classes
// or there are few features, and no whitening if classes have no spread.
func TestAuto(t *testing.T) {
	for name, tt := range map[string]struct {
		d      int
		spread float64 // within a class
		length bool    // the classes differ only in their length
		want   conditioning.Options
	}{
		"many features":           {d: 40, spread: 1, want: conditioning.Options{Kind: conditioning.Whiten, L2: true}},
		"few features":            {d: 20, spread: 1, want: conditioning.Options{Kind: conditioning.Whiten}},
		"the length tells":        {d: 40, spread: 1, length: true, want: conditioning.Options{Kind: conditioning.Whiten}},
		"no spread":               {d: 40, want: conditioning.Options{Kind: conditioning.None, L2: true}},
		"no spread, few features": {d: 20, want: conditioning.Options{}},
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
			train := dataset.Rows{D: tt.d}
			for i := range n {
				c := i % classes
				for _, mean := range means[c*tt.d : (c+1)*tt.d] {
					train.X = append(train.X, float32(mean+tt.spread*rng.NormFloat64()))
				}
				train.Labels = append(train.Labels, int64(c))
			}
			val := train
			train.Index, val.Index = upTo(n)[:240], upTo(n)[240:]
			c, err := conditioning.Fit(t.Context(), train, val, classes, conditioning.Options{Kind: conditioning.Auto})
			if err != nil {
				t.Fatal(err)
			}
			var got conditioning.Options
			if c != nil {
				got = c.Options
			}
			if got.Kind == conditioning.Whiten && got.Shrinkage == 0 {
				t.Error("whitened without a shrinkage")
			}
			if got.Shrinkage = 0; got != tt.want {
				t.Errorf("conditioned by %+v, want %+v", got, tt.want)
			}
		})
	}
}
