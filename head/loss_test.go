package head

import (
	"math"
	"testing"
)

func TestGoldenLoss(t *testing.T) {
	var g struct {
		LogPred Matrix `json:"log_pred"`
		Labels  []int
		Classes int
		Loss    Number
		Entries Matrix
		Grad    Matrix
		InfCase struct {
			LogPred Matrix `json:"log_pred"`
			Labels  []int
			Limit   Number `json:"limit_loss"`
		} `json:"inf_case"`
	}
	Golden(t, "loss.json", &g)
	logY := Values[float64](g.LogPred.Flat())
	grad := make([]float64, len(logY))
	loss := logBCE(Transpose(logY, len(g.Labels)), g.Labels, grad)
	Near(t, "loss", []float64{loss}, Vector{g.Loss}, 1e-9)
	Near(t, "gradient", Transpose(grad, g.Classes), g.Grad.Flat(), 1e-9)
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
			got := 2*logBCE(alone, []int{own}, nil) - float64(1-own)*(1+logShift)
			Near(t, "entry", []float64{got + 1}, Vector{g.Entries[i][c] + 1}, 1e-9)
		}
	}
	inf := logBCE(Transpose(Values[float64](g.InfCase.LogPred.Flat()), len(g.InfCase.Labels)), g.InfCase.Labels, nil)
	Near(t, "loss at −∞", []float64{inf}, Vector{g.InfCase.Limit}, 1e-9)

	single := make([]float32, len(logY))
	loss = logBCE(Transpose(Float32s(g.LogPred.Flat()), len(g.Labels)), g.Labels, single)
	Near(t, "float32 loss", []float64{loss}, Vector{g.Loss}, 1e-5)
	// log y = −1e-9 and 0 differ from their shifted values by less than float32
	// resolves; the slope there is 1/1e-6.
	Near(t, "float32 gradient", Transpose(single, g.Classes), g.Grad.Flat(), 1e-5)
}
