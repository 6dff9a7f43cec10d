package onnx

// This file writes the scores of package posthoc and the features of package extractor as
// ONNX graphs. It stands here so that packages that a program can import show no type of
// package onnx.

// ScoreRows are the inputs of a score in a graph: those of a posthoc.Batch, in float64.
type ScoreRows struct {
	Features Value // [batch, D]
	Logits   Value // [batch, C]; "" for none
	Classes  int   // C
}

// AddScore adds a score, a posthoc.Scorer, to an ONNX graph that reads the rows, and
// returns its value [batch, 1]. The graph computes what the method Score does, in
// float64. The error wraps posthoc.ErrNoGraph if the score has no graph, and
// posthoc.ErrMissing if it needs logits and there are none. Package posthoc sets it.
var AddScore func(m *Model, score any, rows ScoreRows) (Value, error)

// AddFeatures adds the features [batch, D] of a backbone, an extractor.Model whose graph m
// is, as extraction makes them. Package extractor sets it: no method of its public types may
// show those of this package.
var AddFeatures func(m *Model, backbone any) Value
