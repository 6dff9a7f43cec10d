package head

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

func TestGoldenPlateau(t *testing.T) {
	var g struct {
		Patience int
		LR0      float64
		Trace    []struct {
			Loss Number
			LR   float64
			Bad  int
			Best float64
		}
	}
	Golden(t, "plateau.json", &g)
	p := newPlateau(g.LR0, g.Patience)
	for i, want := range g.Trace {
		p.step(float64(want.Loss))
		if math.Abs(p.lr-want.LR) > 1e-15 || p.bad != want.Bad || p.best != want.Best {
			t.Fatalf("after loss %d (%v): rate %g, bad %d, best %g; want %g, %d, %g",
				i, want.Loss, p.lr, p.bad, p.best, want.LR, want.Bad, want.Best)
		}
	}
}

type goldenDense []struct {
	Weight Matrix
	Bias   Vector
}

type goldenMLP struct {
	Input        Matrix
	Labels       []int
	Logits       Matrix
	Loss         Number
	Params       goldenDense
	Grads        goldenDense
	Adam1, Adam5 goldenDense
	AdamLosses   Vector `json:"adam_losses"`
	Adam         struct{ LR float64 }
}

func checkMLP[T kernels.Real](g goldenMLP) func(*testing.T, float64) {
	return func(t *testing.T, tol float64) {
		m := posthoc.MLP{}
		for _, p := range g.Params {
			m = append(m, &posthoc.Linear{
				In: len(p.Weight[0]), Out: len(p.Bias), Weights: Values[float64](p.Weight.Flat()), Bias: Values[float64](p.Bias),
			})
		}
		net := mlpOf[T](m, len(g.Input))
		nearDense := func(what string, ps [][]T, want goldenDense) {
			t.Helper()
			for i, w := range want {
				Near(t, fmt.Sprintf("%s: layer %d weights", what, i), ps[2*i], w.Weight.Flat(), tol)
				Near(t, fmt.Sprintf("%s: layer %d bias", what, i), ps[2*i+1], w.Bias, tol)
			}
		}
		value, grad := net.Params()
		x := Values[T](g.Input.Flat())
		Near(t, "logits", net.Logits(x, len(g.Input)), g.Logits.Flat(), tol)
		adam := newAdam(value, grad)
		var losses []float64
		for step := 1; step <= 5; step++ {
			losses = append(losses, net.Step(x, g.Labels))
			if step == 1 {
				nearDense("gradient", grad, g.Grads)
			}
			adam.Step(g.Adam.LR)
			if step == 1 {
				nearDense("after 1 step", value, g.Adam1)
			}
		}
		Near(t, "losses", losses, g.AdamLosses, tol)
		nearDense("after 5 steps", value, g.Adam5)
	}
}

func TestGoldenMLPs(t *testing.T) {
	var all struct{ MLPs []goldenMLP }
	ReadGolden(t, filepath.Join("testdata", "ablations.json"), &all)
	for _, g := range all.MLPs {
		Both(t, fmt.Sprintf("%d layers", len(g.Params)), checkMLP[float32](g), checkMLP[float64](g))
	}
}
