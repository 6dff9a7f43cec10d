// Package scoregraph writes the scores of package posthoc as ONNX graphs. It stands
// here so that packages that a program can import show no type of package onnx.
package scoregraph

import "github.com/mlrbfn/mlrbfn/internal/onnx"

// Rows are the inputs of a score in a graph: those of a posthoc.Batch, in float64.
type Rows struct {
	Features onnx.Value // [batch, D]
	Logits   onnx.Value // [batch, C]; "" for none
	Classes  int        // C
}

// Add adds a score, a posthoc.Scorer, to an ONNX graph that reads the rows, and
// returns its value [batch, 1]. The graph computes what the method Score does, in
// float64. The error wraps posthoc.ErrNoGraph if the score has no graph, and
// posthoc.ErrMissing if it needs logits and there are none. Package posthoc sets it.
var Add func(m *onnx.Model, score any, rows Rows) (onnx.Value, error)
