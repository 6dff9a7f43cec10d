// Package pipeline chains the rooms: images become features ([Extract]),
// features a detector ([Train]), and the two together say for new images
// which class they are of and whether they are of any ([Detect]). [Evaluate]
// measures how well, [Ablate] what depth and each step of the paper's add, and
// [Export] writes a detector as an ONNX graph.
//
// It owns the detector file. It knows nothing of flags and terminals; those are
// for the programs under cmd.
package pipeline
