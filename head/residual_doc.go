// Package residual implements the default network: an MLRBFN whose hidden layers
// add to their inputs, with a density before the layers and a closed-form start.
// It is based on the network of package paper, which explains the symbols.
//
// # Why not the paper's network
//
// Two things limit the paper's head on the features of a backbone. First, it
// depends on distances alone, and most of ‖x−c‖² comes from directions in which
// the classes do not differ. Second, exp(−β⁺d) over hundreds of coordinates
// cannot be near 1 for the rows of a class and near 0 for other rows, because
// these are hardly farther from the class mean. The residual network therefore
// reads conditioned features, separates the density from the decision, and starts
// from a closed form that already classifies well.
//
// # The network
//
// Features should be divided by their length and whitened within the classes
// (package conditioning). Whitening makes squared distances Mahalanobis
// distances, which detect out-of-distribution (OOD) rows [LLLS], and more of them
// after the division by the length [MH]. Let z be such a row, of length D. Its
// first coordinates separate the class means best. The layers read u, the first e
// of them: e is Config.Projection, by default max(50, C − 1), at most D.
//
// The density has no trained parameters. With the class means μ_c of the training
// rows, and the 0.5 and 0.99 quantiles r₅₀ and r of m over the validation rows (or
// the training rows if there are none),
//
//	m = min_c ‖z − μ_c‖²
//	log dep₀ = −log(1 + exp(4·(m − r)/(r − r₅₀)))
//
// so that dep₀ is 0.98 at m = r₅₀ and ½ at m = r. The hidden layers are the
// paper's, but begin with this depression and add to their inputs:
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c ‖u − c_c‖² + min(log dep + log rec, 0)
//	dep′ = max_c n_c
//	u′ = u + Σ_c a_c n_c
//
// The last layer divides the remaining confidence among the classes:
//
//	l_c = −β⁺_c ‖u − w_c‖²
//	log φ_c = l_c − log Σ_j exp(l_j) + min(log dep + log rec, 0)
//
// where the last term is log dep₀ itself if there are no hidden layers.
//
// Before the first step the projections a_c are 0. Unless Config.Start is nil, the
// last layer is a linear classifier, which one width for all classes allows; what
// follows is the start without it. The w_c are the class means. All β⁺_c of the last layer are the one number of a grid for which
// softmax(l) has the least cross-entropy on the validation rows (with balanced
// sampling times n/(n + 1) for a class of n rows). Training thus
// starts from a closed form, which classifies like linear discriminant analysis
// with equal priors in the first e coordinates. The hidden layers are initialised
// like the paper's, but on up to 2,000 rows, with 20 passes, and with β⁺ = ¼/d, at
// most 4, instead of 4/d. A class without training rows gets a centroid too narrow
// for any row. The loss and the optimiser are the paper's. They change the layers
// only, not the conditioning or the density.
//
// The [HeadScore] is not max_c log φ_c but the sum of two terms, each standardised on
// the validation rows: −m, which finds OOD rows far from all classes, and the
// generalised entropy of softmax(l), GEN [LLZ], which finds OOD rows between the
// classes. The first term is not enough: most of m comes from coordinates in which
// near-OOD rows are like rows of the classes (Ren et al. [RFLRPL]).
//
// # The bound far from the data
//
// Let e^slack be the product of rec·max_c β⁺_c/β⁺_init over the hidden layers,
// times rec for the last layer if there are hidden layers. Then
//
//	Σ_c φ_c ≤ min(1, dep₀·e^slack) and dep₀ ≤ exp(−4·(m − r)/(r − r₅₀))
//
// because no layer raises the depression by more than that, and softmax sums to
// 1. So the total confidence goes to 0 exponentially in the squared distance from
// the nearest class mean, in every direction. Training changes only the slack. The
// score falls with −m without bound, because GEN is bounded. The bound does not
// help with OOD images whose features lie among the rows of a class, or with the
// length of a row if the conditioning divides by it: x and 10x are then the same.
//
// # References
//
//   - [LLLS] Lee, Lee, Lee and Shin, A simple unified framework for detecting
//     out-of-distribution samples and adversarial attacks, NeurIPS 2018.
//   - [LLZ] Liu, Lochman and Zach, GEN: pushing the limits of softmax-based
//     out-of-distribution detection, CVPR 2023.
//   - [MH] Mueller and Hein, Mahalanobis++: improving OOD detection via feature
//     normalization, ICML 2025.
//   - [RFLRPL] Ren, Fort, Liu, Roy, Padhy and Lakshminarayanan, A simple fix to
//     Mahalanobis distance for improving near-OOD detection, 2021.

package head
