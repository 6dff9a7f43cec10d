// Package residual implements the default network: an MLRBFN whose hidden layers
// add to what they read, with a density before the layers and a closed form to
// start from. Package paper has the network that it goes out from; see there for
// the symbols.
//
// # Why not the paper's network
//
// Two things hold the paper's head back on the features of a backbone. It sees
// them through distances alone, and most of ‖x−c‖² comes from directions in
// which the classes do not differ: what a distance means matters more than how
// many layers follow. And exp(−β⁺d) over hundreds of coordinates cannot be near
// 1 for the rows of a class and near 0 for all others: these are hardly farther
// from its mean than its own are. The residual network therefore reads conditioned
// features, has a density apart from the decision, and starts from a closed form
// that already classifies well.
//
// # The network
//
// Features should come divided by their length and whitened within the classes
// (package conditioning). Whitening makes squared distances Mahalanobis
// distances, which detect out-of-distribution (OOD) rows [LLLS]; they do so better
// after the division by the length [MH]. Let z be such a row, of length D. Its first coordinates are
// those that tell the class means apart; the layers read u, the first e of
// them: Config.Projection, by default 50, or C − 1 where that is more, but at
// most D.
//
// The density has no parameters that are trained. With the class means μ_c of
// the training rows, and the 0.5 and 0.99 quantiles r₅₀ and r of m over the
// validation rows (over the training rows where there are none),
//
//	m = min_c ‖z − μ_c‖²
//	log dep₀ = −log(1 + exp(4·(m − r)/(r − r₅₀)))
//
// so that dep₀ is 0.98 where m = r₅₀ and ½ where m = r. The hidden layers are
// the paper's, but begin with this depression and add to what they read:
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c ‖u − c_c‖² + min(log dep + log rec, 0)
//	dep′ = max_c n_c
//	u′ = u + Σ_c a_c n_c
//
// The last layer shares out what certainty is left among the classes:
//
//	l_c = −β⁺_c ‖u − w_c‖²
//	log φ_c = l_c − log Σ_j exp(l_j) + min(log dep + log rec, 0)
//
// where the last term is log dep₀ itself if there are no hidden layers.
//
// Before the first step the projections a_c are 0, the w_c are the class means
// and all β⁺_c of the last layer are one number, the one of a grid under which
// softmax(l) has the least cross-entropy on the validation rows. So training
// departs from a closed form, whose classes are those of linear discriminant
// analysis with equal priors in the first e coordinates. The hidden layers begin
// as the paper's do, but on up to 2,000 rows, by 20 passes, and with β⁺ = ¼/d
// where the paper has 4/d, at most 4. A class without training rows gets a
// centroid too narrow for any row. The loss and the optimiser are the paper's,
// and they change the layers alone: neither conditioning nor density.
//
// Its [Score] is not max_c log φ_c but the sum of two numbers, put on one scale
// by the validation rows: −m, which finds OOD rows that are far from all
// classes, and the generalised entropy of softmax(l), GEN [LLZ], which finds
// those that lie between them. Why the first is not enough, Ren et al. [RFLRPL]
// show: most of m comes from coordinates in which near-OOD rows are like rows
// of the classes.
//
// # The bound far from the data
//
// With e^slack the product, over the hidden layers, of rec·max_c β⁺_c/β⁺_init,
// and one factor rec more for the last layer if there are any, the network has
//
//	Σ_c φ_c ≤ min(1, dep₀·e^slack) and dep₀ ≤ exp(−4·(m − r)/(r − r₅₀))
//
// as no layer raises the depression by more than that, and softmax sums to 1.
// So confidence in all classes together goes to 0, exponentially in the squared
// distance from the nearest class mean, in whatever direction z leaves the
// data; of this bound, training changes the slack alone. The score falls with −m
// without bound, because GEN has one. This does not hold for OOD images that the
// backbone itself puts among the rows of a class, nor for the length of a row
// where the conditioning divides by it: x and 10x are the same row then.
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
package residual
