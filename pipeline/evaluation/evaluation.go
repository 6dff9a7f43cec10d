package evaluation

import (
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// Evaluation is what Evaluate measured, and on what: all that a page shows. Only Results
// is required.
type Evaluation struct {
	// Results are those that metrics.Summarise returns: for every method also the seed
	// "mean" and, with several seeds, "std". Methods, groups and sets appear in
	// the order of their first result.
	Results []metrics.Measurement
	// Intervals are confidence intervals of the means.
	Intervals []Interval
	// Differences are those of every two methods, each pair once; nil without intervals.
	Differences []Difference
	// Own is the method that the detector judges by, or would by default; "" if it is
	// not among the methods.
	Own string
	// Confidence says what the intervals are, such as "95% of 1,000 resamples".
	Confidence string

	ID  images.Set   // the in-distribution test images
	OOD []images.Set // the OOD images, with the names that Results has
	// Labels [ID.N] are the classes of the test images, −1 for none; nil if
	// they are not known.
	Labels []int64
	// Classes are the names of the training classes.
	Classes []string
	// Runs are the scores.
	Runs []Run

	Train *images.Set // the training images; nil if they are not known
	// Ablation are the results of an ablation in the same folder. Methods named NAME-1,
	// NAME-2, … are heads of so many layers.
	Ablation []metrics.Measurement
	// Against is an earlier evaluation of the same images, to compare with; nil for none.
	Against *Earlier

	Commands []string // to repeat the evaluation
	Facts    []Fact   // versions, seeds, fingerprints, dates, …
}

// Run holds the scores of a method with one seed.
type Run struct {
	Method, Seed string
	// Scores returns the scores of a set of OOD images, or of the in-distribution
	// test set for the dataset "id", one for each image. It is called several
	// times, so that a caller can read them from files, and from several
	// goroutines.
	Scores func(dataset string) ([]float64, error)
	// Predicted is the class of each image of the sets that Scores knows: an index
	// into Classes. Sets may be missing.
	Predicted map[string][]int
	// Threshold, unless nil, is the one of the detector that gave the scores: it flags
	// images with lower ones.
	Threshold *float64
}

// Interval holds the confidence intervals of a method's metrics.
type Interval struct {
	Method, Group string
	Dataset       string // a set's name, or "mean" over the group
	metrics.Intervals
}

// Fact is a line of what is needed to repeat the evaluation.
type Fact struct{ Name, Value string }

// DiscoveryBound says of the images that were judged together with the lowest scores how many
// are known ones at most. All bounds hold together with a confidence of 95%.
type DiscoveryBound struct {
	Together float64 `json:"together"` // those with at most this score
	Found    int     `json:"found"`    // how many these are, without copies
	Known    int     `json:"known"`    // at most
}
