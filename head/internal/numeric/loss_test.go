package numeric_test

import (
	"math"
	"testing"

	"github.com/mlrbfn/mlrbfn/head/internal/headtest"
	"github.com/mlrbfn/mlrbfn/head/internal/numeric"
)

func TestGoldenLoss(t *testing.T) {
	var g struct {
		LogPred headtest.Matrix `json:"log_pred"`
		Labels  []int
		Classes int
		Loss    headtest.Number
		Entries headtest.Matrix
		Grad    headtest.Matrix
		InfCase struct {
			LogPred headtest.Matrix `json:"log_pred"`
			Labels  []int
			Limit   headtest.Number `json:"limit_loss"`
		} `json:"inf_case"`
	}
	headtest.Golden(t, "loss.json", &g)
	logY := headtest.Values[float64](g.LogPred.Flat())
	grad := make([]float64, len(logY))
	loss := numeric.LogBCE(headtest.Transpose(logY, len(g.Labels)), g.Labels, grad)
	headtest.Near(t, "loss", []float64{loss}, headtest.Vector{g.Loss}, 1e-9)
	headtest.Near(t, "gradient", headtest.Transpose(grad, g.Classes), g.Grad.Flat(), 1e-9)
	for i, row := range g.LogPred {
		for c := range row {
			// One entry: a problem of one row whose other entries are −∞.
			alone := []float64{math.Inf(-1), float64(row[c])}
			own := 0
			if c == g.Labels[i] {
				own = 1
			}
			if own == 0 { // the own class at −∞ would add its own infinity
				alone[0] = -1
			}
			got := 2*numeric.LogBCE(alone, []int{own}, nil) - float64(1-own)*(1+numeric.LogShift)
			headtest.Near(t, "entry", []float64{got + 1}, headtest.Vector{g.Entries[i][c] + 1}, 1e-9)
		}
	}
	inf := numeric.LogBCE(headtest.Transpose(headtest.Values[float64](g.InfCase.LogPred.Flat()), len(g.InfCase.Labels)), g.InfCase.Labels, nil)
	headtest.Near(t, "loss at −∞", []float64{inf}, headtest.Vector{g.InfCase.Limit}, 1e-9)

	single := make([]float32, len(logY))
	loss = numeric.LogBCE(headtest.Transpose(headtest.Float32s(g.LogPred.Flat()), len(g.Labels)), g.Labels, single)
	headtest.Near(t, "float32 loss", []float64{loss}, headtest.Vector{g.Loss}, 1e-5)
	// log y = −1e-9 and 0 differ from their shifted values by less than float32
	// resolves; the slope there is 1/1e-6.
	headtest.Near(t, "float32 gradient", headtest.Transpose(single, g.Classes), g.Grad.Flat(), 1e-5)
}

func TestWithAllKernels(t *testing.T) { headtest.WithAllKernels(t, "^TestGolden") }
