package conditioning_test

import (
	"math/rand/v2"
	"testing"

	"mlrbfn/conditioning"
)

// TestAuto makes classes that differ in length, in direction, in both, and ones
// without spread.
func TestAuto(t *testing.T) {
	data := func(d int, spread float64, centre func(class, feature int) float64) conditioning.Data {
		rng := rand.New(rand.NewPCG(5, 6))
		out := conditioning.Data{D: d, Classes: 2, Rows: upTo(400)}
		for i := range out.Rows {
			out.Labels = append(out.Labels, int64(i%2))
			for j := range d {
				out.X = append(out.X, float32(centre(i%2, j)+spread*rng.NormFloat64()))
			}
		}
		return out
	}
	length := func(class, _ int) float64 { return 1 + 0.2*float64(class) }
	direction := func(class, feature int) float64 { return float64(1 + class*(feature%2)) }
	for _, tt := range []struct {
		name string
		data conditioning.Data
		want conditioning.Options
	}{
		{"length tells", data(40, 0.1, length), conditioning.Options{Kind: conditioning.Whiten}},
		{"direction tells", data(40, 0.1, direction), conditioning.Options{Kind: conditioning.Whiten, L2: true}},
		{"few features", data(8, 0.1, direction), conditioning.Options{Kind: conditioning.Whiten}},
		{"no spread", data(40, 0, direction), conditioning.Options{Kind: conditioning.None, L2: true}},
	} {
		for _, validation := range []conditioning.Data{{}, tt.data} {
			c, err := conditioning.Fit(t.Context(), tt.data, validation, conditioning.Options{Kind: conditioning.Auto})
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			got := c.Options
			if got.Kind == conditioning.Whiten && got.Shrinkage == 0 {
				t.Errorf("%s: no shrinkage was chosen", tt.name)
			}
			got.Shrinkage = 0
			if got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
		}
	}
}
