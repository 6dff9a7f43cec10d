// Package posthoc computes out-of-distribution (OOD) scores from a classifier's
// output for an image: its features, its logits or both. For every score, higher
// means more in-distribution.
//
// [Fit] fits a score by its name with OpenOOD's defaults:
//
//	name        reads                fitted on                            type
//	ash-b       features             nothing; head                        ASH
//	ash-p       features             nothing; head                        ASH
//	ash-s       features             nothing; head                        ASH
//	cop         features             features                             CoP
//	core        features, logits     features, labels; head               CORE
//	corp        features             features                             CoRP
//	dice        features             features; head                       DICE
//	energy      logits               nothing                              Energy
//	fdbd        features, logits     features; head                       FDBD
//	gen         logits               nothing                              GEN
//	gradnorm    features             nothing; head                        GradNorm
//	klm         logits               logits of Val                        KLM
//	knn         features             features                             KNN
//	mds         features             features, labels                     MDS
//	mds++       features             features, labels                     MDS
//	mds++k      features             features, labels                     MDS
//	mls         logits               nothing                              MaxLogit
//	msp         logits               nothing                              MaxSoftmax
//	nci         features, logits     features; head                       NCI
//	neco        features, logits     features                             NECO
//	nnguide     features, logits     features, logits                     NNGuide
//	odin        features             nothing; network                     ODIN
//	react       features             features of Val; head                Clip
//	relation    features, logits     features, logits                     Relation
//	residual    features             features; head                       Residual
//	rmds        features             features, labels                     RMDS
//	rmds++      features             features, labels                     RMDS
//	scale       features             nothing; head                        ASH
//	she-cos     features, logits     features, logits, labels             SHE
//	she-e       features, logits     features, logits, labels             SHE
//	she-ip      features, logits     features, logits, labels             SHE
//	temperature logits               logits, labels of Val                MaxSoftmax
//	vim         features             features; head                       ViM
//	vra         features             features of Val; head                Clip
//
// Those with a head need a [Linear] one, those with a network a [Network].
//
// The logits may come from any head. An MLRBFN's log-confidences serve as logits,
// and its last representation may serve as features. Scores that need a linear
// head cannot be fitted to an MLRBFN, which has none.
//
// # To add a score
//
// Write a file with its type, its function Fit…, its method Score, its method fields,
// which names what a file holds of it, and a declaration by declare, with the words that
// explain it to people; and add a golden of its values (CONTRIBUTING.md). Names, commands,
// detectors, joint scoring, explanations, the tables of this page and of docs/commands.md
// (go generate ./posthoc) and the tests follow from the declaration. A score that can
// share work with others also has a method join (together.go). A method graph writes it
// as an ONNX graph (graph.go); without one, detectors that judge by the score cannot be
// exported.
//
// # Arithmetic
//
// Features are float32, as in feature sets. Everything else is float64. Softmax
// probabilities that could underflow are stored as logarithms, so that confident
// images do not tie. Products in float32 only select the few that are computed
// again in float64, and the small ones that [Relation] subtracts.
//
// # Memory
//
// For each training row only a few numbers are held in memory; the rows themselves
// may be mapped from a file. Covariances take five or six matrices of D×D float64
// (0.2 GB for 2,048 features). [Fit] compares what matrices take with Memory before
// they are allocated. [KNN], [NNGuide] and [Relation] read their bank block by
// block within Memory; their results do not depend on it. [ScoreAll] reads a bank
// once for all scores that share it. `scripts/bench scores --growth` shows how time and memory
// grow.
//
// # Edge cases
//
// Where OpenOOD's classes give NaN or an infinity for finite features and logits,
// these do not. Each type says what it does with features of zeros, classes without
// training rows and similar cases. Logits of −Inf are those of impossible classes;
// only [MaxLogit], [Energy] and the scores based on it are −Inf, where all classes
// are. NaN gives NaN.
package posthoc

//go:generate go test -run ^TestTables$ . -update
