package evaluation

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFair: whatever came before, no bet gains on average over uniform p-values. Bets
// are linear between hundredths of p, so that the mean of their middles is exact.
func TestFair(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	m := NewMartingale(0.01, nil, nil, 1)
	for i := range 30_000 {
		if i%300 == 0 {
			before, mean := m.LogWealth(), 0.0
			for at := range 100 {
				next := *m
				next.bet(odds((float64(at) + 0.5) / 100))
				mean += math.Exp(next.LogWealth()-before) / 100
			}
			if math.Abs(mean-1) > 1e-9 {
				t.Fatalf("after %d bets the capital times %v is expected", i, mean)
			}
		}
		p := rng.Float64()
		if i > 20_000 { // much capital, too
			p *= 0.5
		}
		m.bet(odds(p))
	}
	if m.LogWealth() < 500 {
		t.Errorf("the capital is only e^%v", m.LogWealth())
	}
}
