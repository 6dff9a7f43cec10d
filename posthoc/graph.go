package posthoc

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// ErrNoGraph means that a score cannot be written as an ONNX graph.
var ErrNoGraph = errors.New("this score has no form as an ONNX graph")

func init() {
	onnx.AddScore = func(m *onnx.Model, score any, rows onnx.ScoreRows) (onnx.Value, error) {
		g := &graph{Model: m, ScoreRows: rows}
		return g.score(score.(Scorer)), g.err
	}
}

// score adds a score to a graph, as onnx.AddScore says.
func (g *graph) score(s Scorer) (v onnx.Value) {
	k, stored, _ := kindOf(s)
	own, ok := stored.(graphed)
	switch {
	case !ok:
		g.fail(ErrNoGraph)
	case len(k.methods) > 0 && k.methods[0].reads&logitRows != 0 && g.Logits == "":
		g.fail(fmt.Errorf("logits: %w", ErrMissing))
	default:
		v = own.graph(g)
	}
	return v
}

// graphed is a score that can be written as a graph.
type graphed interface {
	// graph adds the score to g and returns its value [batch, 1].
	graph(g *graph) onnx.Value
}

// graph is a graph in the making, with the rows that a score reads. After an error it is of
// no use.
type graph struct {
	*onnx.Model
	onnx.ScoreRows
	err error // the first
}

func (g *graph) fail(err error) { g.err = cmp.Or(g.err, err) }

// linear adds the head's logits of rows x.
func (g *graph) linear(head *Linear, x onnx.Value) onnx.Value {
	return g.Op("Add", g.Times(x, head.Weights, head.In), g.Vector(head.Bias))
}

// energy adds t·log Σ exp(z/t).
func (g *graph) energy(z onnx.Value, t float64) onnx.Value {
	if t == 1 {
		return g.LogSumExp(z)
	}
	by := g.Number(t)
	return g.Op("Mul", g.LogSumExp(g.Op("Div", z, by)), by)
}

// logSoftmax adds the logarithms of the softmax of logits.
func (g *graph) logSoftmax(z onnx.Value) onnx.Value { return g.Op("Sub", z, g.LogSumExp(z)) }

// softmax adds the softmax of logits.
func (g *graph) softmax(z onnx.Value) onnx.Value { return g.Op("Exp", g.logSoftmax(z)) }

// ofPredicted adds the row of a table [C, n] of the class that the logits predict.
func (g *graph) ofPredicted(table []float64) onnx.Value {
	return g.Take(g.Doubles(table, g.Classes, len(table)/g.Classes), g.ArgMax(g.Logits))
}

// centred adds x − μ.
func (g *graph) centred(x onnx.Value, mean []float64) onnx.Value {
	return g.Op("Sub", x, g.Vector(mean))
}

// unit adds rows divided by their lengths; a row of zeros stays one.
func (g *graph) unit(x onnx.Value) onnx.Value { return g.Over(x, g.Length(x)) }

// absolute adds ‖x‖₁.
func (g *graph) absolute(x onnx.Value) onnx.Value { return g.Sum(g.Op("Abs", x)) }

// mostBank is how many bytes of training rows fit into an ONNX file.
const mostBank = math.MaxInt32 - 1<<26

// cosines adds the cosines [batch, m] of the features with the bank's rows, 0 for
// features of zeros, and returns where these rows are: rows of zeros, or that are not
// finite, are left out, as are those that keep refuses. The graph holds the rows as
// they are, in float32.
func (g *graph) cosines(bank *Data, keep func(row int) bool) (cosines onnx.Value, at []int) {
	d := bank.D
	if size := 4 * int64(bank.N) * int64(d); size > mostBank {
		g.fail(fmt.Errorf("the score reads %d training rows of %d features: %d bytes are more than an ONNX file holds (%d)", bank.N, d, size, int64(mostBank)))
		return "", nil
	}
	var scale []float64
	for i := range bank.N {
		if length := norm(bank.Features(i, i+1)); length != 0 && finite(length) && keep(i) {
			at, scale = append(at, i), append(scale, 1/length)
		}
	}
	if len(at) == 0 {
		g.fail(errors.New("no training row of the score has a length"))
	}
	transposed := make([]float32, d*len(at))
	for to, i := range at {
		for j, v := range bank.Features(i, i+1) {
			transposed[j*len(at)+to] = v
		}
	}
	products := g.Op("MatMul", g.Features, g.Cast(g.Floats(transposed, d, len(at)), onnx.Double))
	return g.Over(g.Op("Mul", products, g.Vector(scale)), g.Length(g.Features)), at
}
