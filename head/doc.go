// Package head trains classification heads on features and computes their
// outputs: for each class, the confidence that an input belongs to it.
//
// There are two networks, each in a package of its own, with its shape, its
// defaults and its equations: github.com/mlrbfn/mlrbfn/head/residual, the default one, and
// github.com/mlrbfn/mlrbfn/head/paper, the published one. This package has what both share: [Train]
// and its options, the trained [Head], and the interfaces [Config] and [Network].
// [TrainMLP] trains the paper's baseline, a softmax network of linear layers with ReLU
// between them; package linear fits a better linear head.
//
// # Training
//
// Training splits the problem into C binary ones, "is it of class c?", and
// minimises their mean binary cross-entropy with Adam. A run can be watched, saved
// and continued: TrainOptions.Checkpoint gives its [State] between any two steps,
// and TrainOptions.Resume continues from one, with bit-identical results. A run
// that is cancelled or diverges returns a [StoppedError] with the state to continue
// from.
//
// # Arithmetic
//
// Training computes in float32 but initialises in float64; outputs of a trained
// head are computed in float64. One generic implementation serves both types, and
// tests compare both with PyTorch's float64 results.
package head
