package head

import (
	"context"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

func TestMLPGradientsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 4))
		const n = 3
		d, classes := rapid.IntRange(1, 5).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C")
		m, in := posthoc.MLP{}, d
		for left := rapid.IntRange(1, 4).Draw(t, "layers"); left > 0; left-- {
			l := &posthoc.Linear{In: in, Out: rapid.IntRange(1, 6).Draw(t, "width")}
			if left == 1 {
				l.Out = classes
			}
			l.Weights, l.Bias = make([]float64, l.In*l.Out), make([]float64, l.Out)
			for i := range l.Weights {
				l.Weights[i] = rng.NormFloat64()
			}
			for i := range l.Bias {
				l.Bias[i] = rng.NormFloat64()
			}
			m, in = append(m, l), l.Out
		}
		x := make([]float64, n*d)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		labels := []int{0, classes - 1, classes / 2}
		net := mlpOf[float64](m, n)
		net.Step(x, labels)
		params, gradients := net.Params()
		CheckGradients(t, params, gradients, func() float64 {
			net.Logits(x, n)
			return net.Loss(labels)
		})
	})
}

func TestTrainMLPLearns(t *testing.T) {
	train, val := Blobs(600, 6, 4, 1), Blobs(201, 6, 4, 2)
	for layers := 1; layers <= 4; layers++ {
		m, epochs, err := TrainMLP(context.Background(), MLPConfig{Layers: layers, Hidden: 16}, train, val, 4, TrainOptions{Epochs: 60, Batch: 32, LR: 1e-2})
		if err != nil {
			t.Fatal(err)
		}
		last := epochs[len(epochs)-1]
		if len(m) != layers || last.ValAccuracy < 0.98 {
			t.Errorf("%d layers: %d were made, with accuracy %g", layers, len(m), last.ValAccuracy)
		}
		logits := m.OfFeatures(val.X)
		right := 0
		for i, y := range val.Labels {
			if linalg.ArgMax(logits[i*4:(i+1)*4]) == int(y) {
				right++
			}
		}
		if got := float64(right) / 201; got != last.ValAccuracy {
			t.Errorf("%d layers: Logits give accuracy %g, training ended at %g", layers, got, last.ValAccuracy)
		}
	}
	for _, cfg := range []MLPConfig{{Layers: -1}, {Layers: 101}, {Hidden: -1}} {
		if _, _, err := TrainMLP(context.Background(), cfg, train, val, 4, TrainOptions{Epochs: 1}); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}
