// Package head trains classification heads on features and computes their
// outputs: for each class, the confidence that an input belongs to it.
//
// There are two networks: [Residual], the default one, and [Paper], the published one;
// each has its defaults and its equations. Both read features as they are or after a
// [Conditioning]. [Train] trains them by [TrainOptions] into a [Head]; [Config] and
// [Network] are what it needs of them. [TrainMLP] trains the paper's baseline, a softmax
// network of linear layers with ReLU between them; [FitLinear] fits a better linear head.
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
