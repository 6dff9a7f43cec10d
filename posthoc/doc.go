// Package posthoc computes out-of-distribution scores from what a classifier
// makes of an image: its features, its logits or both. In every score higher
// means more in-distribution.
//
// [Fit] fits a score by its name with OpenOOD's defaults:
//
//	name               reads                fitted on                     type
//	msp mls energy gen logits               nothing                       MaxSoftmax MaxLogit Energy GEN
//	temperature klm    logits               logits (and labels) of Val    MaxSoftmax KLM
//	odin               features             nothing; needs a Network      ODIN
//	knn                features             features                      KNN
//	mds rmds ++        features             features, labels              MDS RMDS
//	vim residual       features             features; needs a Linear head ViM Residual
//	react vra          features             features of Val; head         Clip
//	dice               features             features; head                DICE
//	ash-b -p -s scale  features             nothing; head                 ASH
//	gradnorm           features             nothing; head                 GradNorm
//	she-ip she-e -cos  features and logits  features, logits, labels      SHE
//	nnguide relation   features and logits  features, logits              NNGuide Relation
//	fdbd nci           features and logits  features; head                FDBD NCI
//
// The logits may be those of any head, an MLRBFN's log-confidences among them,
// and the features those that it reads or its last representation; scores that
// need a linear head, which an MLRBFN does not have, are then not to be had.
//
// # Arithmetic
//
// Features are float32, as feature sets have them; everything else is float64,
// and softmax probabilities that could vanish are kept as logarithms, so that
// confident images do not tie. Products in float32 only say which few are worth one
// in float64, and what [Relation] leaves out.
//
// # Memory
//
// Nothing grows with the training rows but a few numbers for each; the rows
// themselves may be mapped from a file. Covariances take a few matrices of D×D
// float64 (less than 0.4 GB for 2,048 features), quantiles are counted. [KNN] and
// [NNGuide] go through their bank block by block within Memory, and are exact all
// the same; [Relation] takes blocks of 4,096 rows whatever Memory is, so that its
// sums are the same to the bit. [ScoreAll] goes through a bank once for all scores
// that share it. `scripts/bench scores --growth` shows how time and memory grow.
//
// # At the edges
//
// Where OpenOOD's classes give NaN or an infinity for finite features and
// logits, these do not: each type says what it does with features of zeros,
// classes without training rows and the like. Logits of −Inf are those of
// impossible classes; only [MaxLogit], [Energy] and what is built on it are
// −Inf, where all classes are. NaN gives NaN.
package posthoc
