// Package paper implements the multi-layer radial basis function network
// (MLRBFN) of the paper: for each class it says how confident it is that an
// input is of that class, and it is confident of no class far from its training
// data. Khanna et al., Multi-layer radial basis function networks for
// out-of-distribution detection.
//
// # The network
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
// # Networks without one of the paper's steps
//
// [Config] can take back each step that led the paper to this network, to measure
// what the step contributes:
//
//   - NoDepression is the paper's naive equation: neither cap nor ratio,
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
// # The bound far from the data
//
// Of L layers and with depression, each φ_c is at most
// rec^(L−1)·Π max_c β⁺_c/β⁺_init times exp(−min_c β⁺_c d_c) of the first layer. The
// product is over the hidden layers. Training changes this bound.
//
// # References
//
//   - [AV] Arthur and Vassilvitskii, k-means++: the advantages of careful
//     seeding, SODA 2007.
//   - [KB] Kingma and Ba, Adam: a method for stochastic optimization, ICLR
//     2015.
//   - [S] Sculley, Web-scale k-means clustering, WWW 2010.
package paper
