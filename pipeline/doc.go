// Package pipeline is the interface for Go programs that use this module as a library:
// [Extract] computes the features of images, [Train] trains a detector on them,
// and [Detect] says for new images which class they are of and whether they are
// out of distribution. A [Judge] is a detector that stays open, for programs that get
// their images one by one: as paths, readers, bytes or decoded images. [Evaluate]
// measures how well a detector does, [Ablate] what depth and each step of the paper's
// add, and [Export] writes a detector as an ONNX graph.
//
// The work is done below: package detector has the detector, its file and its graphs,
// training trains, evaluation compares methods.
package pipeline
