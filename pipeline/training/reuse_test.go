package training

import (
	"math"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestReuse: a detector that gets a few images more keeps the weights of the parts,
// and is assessed anew by what the images change alone; with many images all is
// computed.
func TestReuse(t *testing.T) {
	known := [][2]float64{{0, 0}, {9, 0}, {0, 9}, {9, 9}}
	first := pipetest.Clouds(t, 1, 200, []int64{0, 1, 2, 3}, known...)
	old, _, err := Train(t.Context(), quick(first))
	if err != nil {
		t.Fatal(err)
	}
	old = again(t, old)
	for name, tt := range map[string]struct {
		images int
		label  int64
		at     [2]float64
		fresh  []string // classes whose values are not kept
	}{
		"new class":   {50, 4, [2]float64{9, 5.5}, []string{"4", "3"}},
		"known class": {50, 2, [2]float64{0, 9}, []string{"2"}},
		"many":        {500, 4, [2]float64{9, 5.5}, []string{"0", "1", "2", "3", "4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, _, err := OptionsOf(t.Context(), old, nil)
			if err != nil {
				t.Fatal(err)
			}
			o.Features = append(o.Features, pipetest.Clouds(t, 2, tt.images, []int64{tt.label}, tt.at))
			d, _, err := Train(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			fresh := map[string]bool{}
			for _, class := range tt.fresh {
				fresh[class] = true
			}
			var mean float64
			for _, class := range d.Classes {
				c, ok := d.Assessment.Classes[class]
				if !ok || c.Kept == fresh[class] {
					t.Errorf("class %s: %+v, %v", class, c, ok)
				}
				if mean += c.AUROC / float64(len(d.Classes)); c.Kept && c.AUROC != old.Assessment.Classes[class].AUROC {
					t.Errorf("class %s has another AUROC", class)
				}
			}
			if math.Abs(mean-d.Assessment.AUROC) > 1e-12 {
				t.Errorf("mean AUROC %g, want %g", d.Assessment.AUROC, mean)
			}
			if tt.images == 500 {
				return
			}
			if c := d.Heads[0].Conditioning; c != nil && c.ConditioningOptions != old.Heads[0].Conditioning.ConditioningOptions {
				t.Errorf("conditioned by %+v, was %+v", c.ConditioningOptions, old.Heads[0].Conditioning.ConditioningOptions)
			}
			weights := func(of *Data) map[string]float64 {
				w, err := of.keptWeights(t.Context())
				if err != nil || w == nil {
					t.Fatal(w, err)
				}
				return w
			}
			was := weights(opened(t, o))
			o.Keep = again(t, d)
			o.Features = append(o.Features, pipetest.Clouds(t, 3, 10, []int64{0}, known[0]))
			is := weights(opened(t, o))
			for part, w := range was {
				if math.Abs(is[part]-w) > 1e-9 {
					t.Errorf("%s has the weight %g, had %g", part, is[part], w)
				}
			}
			if len(was) != len(is) || len(is) < 2 {
				t.Errorf("weights %v, were %v", is, was)
			}
		})
	}
}

// opened opens the data of a training.
func opened(t *testing.T, o Options) *Data {
	t.Helper()
	data, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	return data
}
