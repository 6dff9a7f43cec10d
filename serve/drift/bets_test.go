package drift

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFair: whatever came before, no bet gains on average. The capital is linear in
// the p-value, so its mean is that of the lowest and the highest.
func TestFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	m := New(Options{}, nil, 1)
	for i := range 30_000 {
		before := m.LogWealth()
		low, high := *m, *m
		low.bet(0)
		high.bet(1)
		mean := (math.Exp(low.LogWealth()-before) + math.Exp(high.LogWealth()-before)) / 2
		if math.Abs(mean-1) > 1e-9 {
			t.Fatalf("after %d bets the capital times %v is expected", i, mean)
		}
		p := rng.Float64()
		if i > 20_000 { // much capital, too
			p *= 0.5
		}
		m.bet(p)
	}
	if m.LogWealth() < 500 {
		t.Errorf("the capital is only e^%v", m.LogWealth())
	}
}
