package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestResampled compares the metrics of a resample with those of the drawn
// scores themselves, with and without ties and overlap.
func TestResampled(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(9, 9))
	for trial := range 300 {
		nID, nOOD := 1+random.IntN(40), 1+random.IntN(40)
		scores := func(n int, mean float64) []float64 {
			x := make([]float64, n)
			for i := range x {
				x[i] = random.NormFloat64() + mean
				if trial%2 == 0 {
					x[i] = math.Round(2*x[i]) / 2
				}
			}
			return x
		}
		apart := float64(random.IntN(8)) - 2
		like := Scores{ID: scores(nID, apart), OOD: [][]float64{scores(nOOD, 0)}}
		lane := random.IntN(lanes)
		id, ood := make([]times, nID), make([]times, nOOD)
		draw(random, id, lane)
		draw(random, ood, lane)
		got := rank(like)[0].resampled(id, ood)[lane]
		want := Evaluate(repeated(id, like.ID, lane), repeated(ood, like.OOD[0], lane))
		for i, v := range want.values() {
			if g := *got.values()[i]; !(math.Abs(g-*v) < 1e-12) {
				t.Fatalf("trial %d: metric %d is %g, want %g", trial, i, g, *v)
			}
		}
	}
}

// repeated returns scores as often as they were drawn.
func repeated(drawn []times, scores []float64, lane int) (all []float64) {
	for i, t := range drawn {
		all = append(all, slices.Repeat(scores[i:i+1], int(t[lane/8]>>(lane%8*8)&0xff))...)
	}
	return all
}

// TestThinned measures the error of leaving out points of large curves.
func TestThinned(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(10, 10))
	id, ood := make([]float64, 10_000), make([]float64, 70_000)
	const lane = 5
	drawnID, drawnOOD := make([]times, len(id)), make([]times, len(ood))
	draw(random, drawnID, lane)
	draw(random, drawnOOD, lane)
	const tied = 0.1
	for _, apart := range []float64{0.5, 3, tied} {
		for i := range id {
			id[i] = random.NormFloat64() + apart
		}
		for i := range ood {
			ood[i] = random.NormFloat64()
		}
		if apart == tied { // two values of many images, next to each other among others
			for i := range id {
				id[i] = math.Round(id[i] * 4000)
				if i%3 > 0 {
					id[i] = float64(17 + i%3)
				}
			}
			for i := range ood {
				ood[i] = math.Round(ood[i] * 4000)
				if i%4 > 0 {
					ood[i] = float64(18 + i%4/3)
				}
			}
		}
		like := Scores{ID: id, OOD: [][]float64{ood}}
		got := rank(like)[0].resampled(drawnID, drawnOOD)[lane]
		want := Evaluate(repeated(drawnID, id, lane), repeated(drawnOOD, ood, lane))
		for i, w := range want.values() {
			if g, w := *got.values()[i], *w; !(math.Abs(g-w) <= 1e-4) {
				t.Errorf("%g apart: metric %d is %.7f, want %.7f", apart, i, g, w)
			}
		}
	}
}
