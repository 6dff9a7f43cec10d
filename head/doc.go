// Package head implements the multi-layer radial basis function network
// (MLRBFN), a classification head that says for each class how confident it is
// that an input is of it, and is confident of none far from what it was trained
// on. It comes as the paper has it and as an open head, which goes further; a
// softmax network, of one linear layer or of several with ReLU between them,
// stands beside them to be compared with.
//
// # The paper's network
//
// Layer ℓ has N centroids c_c with inverse-widths β⁺_c = softplus(β_c) and, but
// for the last layer, projections a_c of length o. With φ₀ = x and dep₀ = 1 a
// hidden layer computes
//
//	d_c  = ‖φ − c_c‖_k^k
//	s_c  = (β⁺_c / β⁺_init) · exp(−β⁺_c d_c)
//	n_c  = s_c · min(dep · rec, 1)
//	dep′ = max_c n_c
//	φ′   = Σ_c a_c n_c
//
// and the last layer, with one centroid per class,
//
//	log φ_c = −β⁺_c d_c + min(log dep + log rec, 0)
//
// φ_c in [0, 1] is the confidence that the input is of class c. The depression
// dep carries forward how near to any centroid an input has been: once an input
// is far from all of them it cannot become confident again. The ratio
// β⁺_c/β⁺_init keeps the network from cheating with very wide centroids.
//
// Training splits the problem into C binary ones, "is it of class c?", and
// minimises their mean binary cross-entropy with Adam [KB], after k-means has
// placed the centroids on the first batch: k-means++ [AV] and then web-scale
// k-means [S].
//
// # Where this follows the paper's code, and where it does not
//
// The equations are the paper's (section Methods). Its text and its code, in
// the appendix, are not always one; here is what this package does:
//
//   - Recovery is 1.1, as in the code; the text says 1.05.
//   - The loss is the mean over all N·C entries, as in the code; the algorithm's
//     listing adds them up.
//   - Log-probabilities are shifted by −1e-6, as in the code, and
//     log(1−y) is taken without cancellation, which the code's is not.
//   - Initialisation uses the first batch alone: one half of it places the
//     centroids, the other sets the widths.
//   - The widths come from 0.95 quantiles of d_c = ‖·‖_k^k, as in the code; the
//     text takes those of ‖·‖_k and squares them.
//   - β⁺ = 4/d is set as β = log(expm1(4/d)) below 4/d = 5 and as β = 4/d from
//     there on, where softplus all but is the identity.
//   - The depression is carried as a logarithm between layers. It is the same
//     function, but never underflows to log 0, which in the code ends in NaN.
//   - At a tie of min(dep·rec, 1) each side gets half the gradient, as
//     torch.minimum has it.
//
// # The open head
//
// Two things hold the paper's head back on the features of a backbone. It sees
// them through distances alone, and most of ‖x−c‖² comes from directions in
// which the classes do not differ: what a distance means matters more than how
// many layers follow. And exp(−β⁺d) over hundreds of coordinates cannot be near
// 1 for the rows of a class and near 0 for all others: these are hardly farther
// from its mean than its own are. [Config.Open] answers with conditioned
// features, a density apart from the decision, and a start that is already a
// good answer.
//
// Features should come divided by their length and whitened within the classes
// (package conditioning). Whitening makes squared distances Mahalanobis
// distances, which tell strangers [LLLS]; the length first, and they tell them
// better [MH]. Let z be such a row, of length D. Its first coordinates are
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
// by the validation rows: −m, which finds strangers that are far from all
// classes, and the generalised entropy of softmax(l), GEN [LLZ], which finds
// those that lie between them. Why the first is not enough, Ren et al. [RFLRPL]
// show: most of m comes from coordinates in which near strangers are like rows
// of the classes.
//
// # What is certain far from the data
//
// With e^slack the product, over the hidden layers, of rec·max_c β⁺_c/β⁺_init,
// and one factor rec more for the last layer if there are any, an open head has
//
//	Σ_c φ_c ≤ min(1, dep₀·e^slack) and dep₀ ≤ exp(−4·(m − r)/(r − r₅₀))
//
// as no layer raises the depression by more than that, and softmax sums to 1.
// So confidence in all classes together goes to 0, exponentially in the squared
// distance from the nearest class mean, in whatever direction z leaves the
// data; of this bound, training changes the slack alone. The score falls with −m
// without bound, because GEN has one. None of this speaks of strangers that the
// backbone itself puts among the rows of a class, nor of length where the
// conditioning divides by it: x and 10x are the same row then.
//
// The paper's head, of L layers and with its depression, has a bound that is
// trained: each φ_c is at most rec^(L−1)·Π max_c β⁺_c/β⁺_init times
// exp(−min_c β⁺_c d_c) of the first layer, the product being over the hidden
// layers.
//
// # Runs that end early
//
// A training can be watched, kept and gone on with: TrainOptions.Checkpoint
// hands out its [State] between any two steps, and TrainOptions.Resume takes one
// up again, to the bit. A run that is cancelled or diverges gives a
// [StoppedError] with the state to go on from.
//
// # The paper's steps, taken back
//
// [Config] can take back each step that led the paper to this network, to see
// what it is worth:
//
//   - NoDepression is its naive equation: neither cap nor ratio,
//     s_c = exp(−β⁺_c d_c) and n_c = s_c.
//   - NoRatio keeps the cap: s_c = exp(−β⁺_c d_c), n_c = s_c · min(dep·rec, 1).
//   - NoProjections gives φ′ = (n_1, …, n_N), so that the next layer reads N
//     values. Together with NoDepression these are the layers of the earlier
//     architecture that the paper starts from (its first numbered equation,
//     after Wurzberger and Schwenker). That one ends in a linear layer W·φ,
//     whose outputs are no confidences in [0, 1]; here its place is taken by
//     the last layer as above, which reads the same N values.
//   - SumLoss adds the loss up over the N·C entries of a batch. The gradients
//     are N·C times as large, which Adam divides out again but for its ε: the
//     learning rate stays as it is, gradients of the order of 1e-8 count for
//     more, and the smaller last batch of an epoch weighs less. The losses
//     that are reported remain means.
//
// # Arithmetic
//
// Training computes in float32 but initialises in float64; outputs of a trained
// head are computed in float64. All of it is one generic implementation, held
// against PyTorch's float64 answers in both.
//
// # References
//
//   - The paper: Khanna et al., Multi-layer radial basis function networks for
//     out-of-distribution detection.
//   - [AV] Arthur and Vassilvitskii, k-means++: the advantages of careful
//     seeding, SODA 2007.
//   - [KB] Kingma and Ba, Adam: a method for stochastic optimization, ICLR
//     2015.
//   - [LLLS] Lee, Lee, Lee and Shin, A simple unified framework for detecting
//     out-of-distribution samples and adversarial attacks, NeurIPS 2018.
//   - [LLZ] Liu, Lochman and Zach, GEN: pushing the limits of softmax-based
//     out-of-distribution detection, CVPR 2023.
//   - [MH] Mueller and Hein, Mahalanobis++: improving OOD detection via feature
//     normalization, ICML 2025.
//   - [RFLRPL] Ren, Fort, Liu, Roy, Padhy and Lakshminarayanan, A simple fix to
//     Mahalanobis distance for improving near-OOD detection, 2021.
//   - [S] Sculley, Web-scale k-means clustering, WWW 2010.
package head
