package detector

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// Rank returns which of n scores, counted from the lowest, is the threshold that
// keeps the share tpr; 0 where n is too small to promise it.
func Rank(n int, tpr float64) int {
	// A share like 1−0.9 falls just short of the number that it stands for.
	return int(math.Floor((1-tpr)*float64(n+1) + 1e-9))
}

// ScoresNeeded returns how many calibration scores a threshold needs that keeps
// the share tpr.
func ScoresNeeded(tpr float64) int { return int(math.Ceil(1/(1-tpr)-1e-9)) - 1 }

// SetMaxFalseAlarms sets the threshold so that at most the share of the
// in-distribution images is flagged, by the calibration scores that the detector
// has. It needs no training; where the scores are too few it is an error, and the
// detector stays as it was.
func (d *Detector) SetMaxFalseAlarms(share float64) error {
	if !(share > 0 && share < 1) {
		return options.Errorf("MaxFalseAlarms", "%g does not lie between 0 and 1", share)
	}
	tpr := 1 - share
	if n := len(d.CalibrationScores); Rank(n, tpr) < 1 {
		return options.Errorf("MaxFalseAlarms", "%g: the detector has %d calibration images, too few to promise that (%d would do)", share, n, ScoresNeeded(tpr))
	}
	d.Threshold, d.TargetTPR = Threshold(d.CalibrationScores, tpr), tpr
	d.setThresholds()
	return nil
}

// FalseAlarms returns the interval that holds, with a chance of 95%, the share
// of in-distribution images that the threshold flags. Over the choice of the n
// calibration images that share is Beta(k, n+1−k) if its rank among their scores
// is k and no scores tie; its mean is k/(n+1) ≤ 1−TargetTPR. It is nil where
// nothing is flagged, and of folds, whose promise is [CrossBound]. It speaks of images
// like those, and of the share in the long run: among few images chance adds its own.
// With thresholds by class it is the interval of the class with the fewest
// calibration scores, for images that are given that class; those of the others are
// narrower.
func (d *Detector) FalseAlarms() *[2]float64 {
	n := len(d.CalibrationScores)
	if d.thresholds != nil {
		for _, scores := range d.perClass {
			if Rank(len(scores), d.TargetTPR) > 0 {
				n = min(n, len(scores))
			}
		}
	}
	k := Rank(n, d.TargetTPR)
	if k < 1 || k > n || len(d.Folds) > 0 {
		return nil
	}
	low, high := FalseAlarmInterval(k, n)
	return &[2]float64{low, high}
}

// FalseAlarmInterval returns the interval of FalseAlarms for a threshold that is the
// k-th smallest of n calibration scores.
func FalseAlarmInterval(k, n int) (low, high float64) {
	share := distuv.Beta{Alpha: float64(k), Beta: float64(n + 1 - k)}
	return share.Quantile(0.025), share.Quantile(0.975)
}

// Threshold returns the ⌊(1−tpr)(n+1)⌋-th smallest of n scores, ascending: a
// fresh in-distribution image scores below it with a chance of at most 1−tpr.
// It is −Inf where that rank is 0: too few scores to promise it.
func Threshold(ascending []float64, tpr float64) float64 {
	k := Rank(len(ascending), tpr)
	if k < 1 {
		return math.Inf(-1)
	}
	return ascending[min(k, len(ascending))-1]
}

// CalibrateByClass calibrates class by class (Mondrian conformal prediction): it gives each
// class a threshold and p-values of its own, by the
// calibration scores of the images that the detector gives that class. Classes with
// too few of them for TargetTPR share those of all such classes, or where these are
// too few together, of all classes. It returns the classes with too few.
func (d *Detector) CalibrateByClass(scores []float64, labels []int) (few []int) {
	lists := make([][]float64, len(d.Classes)+1)
	for i, s := range scores {
		lists[labels[i]] = append(lists[labels[i]], s)
	}
	for c, list := range lists[:len(d.Classes)] {
		if Rank(len(list), d.TargetTPR) < 1 {
			few = append(few, c)
			lists[len(d.Classes)] = append(lists[len(d.Classes)], list...)
			lists[c] = nil
		}
	}
	for _, list := range lists {
		slices.Sort(list)
	}
	d.setByClass(lists)
	return few
}

// setByClass takes a list of scores per class, and one of the classes that have
// none.
func (d *Detector) setByClass(lists [][]float64) {
	others := lists[len(d.Classes)]
	if Rank(len(others), d.TargetTPR) < 1 {
		others = d.CalibrationScores
	}
	d.ByClass = lists
	d.perClass = make([][]float64, len(d.Classes))
	for c := range d.perClass {
		if d.perClass[c] = lists[c]; len(lists[c]) == 0 {
			d.perClass[c] = others
		}
	}
	d.setThresholds()
}

// setThresholds sets the thresholds of the classes for TargetTPR.
func (d *Detector) setThresholds() {
	if d.perClass == nil {
		return
	}
	d.thresholds = make([]float64, len(d.perClass))
	for c, scores := range d.perClass {
		if d.thresholds[c] = Threshold(scores, d.TargetTPR); Rank(len(scores), d.TargetTPR) < 1 {
			d.thresholds[c] = d.Threshold
		}
	}
}

// SetThreshold sets one threshold of the score for all classes, in place of what folds
// decide.
func (d *Detector) SetThreshold(score float64) {
	d.Threshold, d.thresholds, d.Folds = score, nil, nil
}

const (
	byClassScores = "calibration.by_class.scores"
	byClassCounts = "calibration.by_class.counts"
)

// byClassTensors are the calibration scores by class, one after the other, and how
// many each class has; the last count is of the classes that have none.
func (d *Detector) byClassTensors() []safetensors.Tensor {
	if d.ByClass == nil {
		return nil
	}
	counts := lists.Map(d.ByClass, func(list []float64) int64 { return int64(len(list)) })
	all := slices.Concat(d.ByClass...)
	return []safetensors.Tensor{
		{Name: byClassScores, Shape: []int{len(all)}, Data: append([]float64{}, all...)},
		{Name: byClassCounts, Shape: []int{len(counts)}, Data: counts},
	}
}

func (d *Detector) readByClass(r *safetensors.Reader) error {
	scores, _, found := safetensors.Optional[float64](r, byClassScores)
	if !found {
		return r.Err
	}
	counts, _ := safetensors.Values[int64](r, byClassCounts)
	if r.Err != nil {
		return r.Err
	}
	lists := make([][]float64, len(counts))
	for c, n := range counts {
		if n < 0 || n > int64(len(scores)) {
			return fmt.Errorf("its calibration scores by class have the count %d and are %d", n, len(scores))
		}
		lists[c], scores = scores[:n:n], scores[n:]
		if err := checkCalibration(lists[c]); err != nil {
			return fmt.Errorf("its calibration scores by class %w", err)
		}
	}
	if len(lists) != len(d.Classes)+1 || len(scores) > 0 {
		return fmt.Errorf("its calibration scores by class are of %d classes, and %d are named", len(lists)-1, len(d.Classes))
	}
	d.setByClass(lists)
	return nil
}

// Platt turns the largest confidence φ of a detector's heads into the chance that
// its class is right, σ(Slope·log φ − High·log(1 − φ) + Offset): beta calibration (Kull,
// Silva Filho and Flach 2017), and with High = Slope Platt's σ(Slope·logit(φ) + Offset).
// Far from all training images φ is 0, and so is the chance. A φ above MostLogPhi counts as
// that, since Platt is fitted on no higher one. Its JSON names are those of detector files.
type Platt struct {
	Slope  float64 `json:"slope"` // > 0, so that the order of images stays
	Offset float64 `json:"offset"`
	High   float64 `json:"slope_high,omitempty"` // > 0 likewise; 0 means Slope
}

// chance returns the chance for log φ.
func (p Platt) chance(logPhi float64) float64 {
	low, high := logs(logPhi)
	return 1 / (1 + math.Exp(-p.Slope*low-p.high()*high-p.Offset))
}

func (p Platt) high() float64 { return cmp.Or(p.High, p.Slope) }

// valid reports whether the map is one, which keeps the order of images.
func (p Platt) valid() bool {
	slope := func(v float64) bool { return v > 0 && v <= math.MaxFloat64 }
	return slope(p.Slope) && slope(p.high()) && math.Abs(p.Offset) <= math.MaxFloat64
}

// logs returns log φ and −log(1 − φ), whose sum is the logit, at most mostLogit.
func logs(logPhi float64) (low, high float64) {
	logPhi = min(logPhi, MostLogPhi)
	return logPhi, -math.Log(-math.Expm1(logPhi))
}

const (
	// usualWeight is the weight of the prior that validation images pull the map away
	// from: φ itself, for want of images. Of 1, 2, 3, 4, 5 and 10 the likelihood of fresh images
	// is largest with 3, on the tasks of either backbone of docs/promise.md.
	usualWeight = 3
	mostLogit   = 20 // of an image that Platt is fitted on, so that none outweighs all others

	// MostLogPhi is the log φ whose logit is mostLogit, −log(1 + e^−20).
	MostLogPhi = -2.061153620314381e-09
	leastSlope = 0.01
)

// FitPlatt fits the chance on images that nothing else was fitted on: log φ of each,
// and whether its class is right. Where the two slopes of beta calibration do not keep the
// order of images, there is one. It is nil if φ says nothing about being right.
func FitPlatt(logPhi []float64, right []bool) *Platt {
	rows := make([][3]float64, len(logPhi))
	for i, l := range logPhi {
		low, high := logs(max(l, -mostLogit))
		rows[i] = [3]float64{low, high, 1}
	}
	t := logistic(rows, right, [3]float64{1, 1, 0})
	if t[0] >= leastSlope && t[1] >= leastSlope {
		if p := (Platt{Slope: t[0], High: t[1], Offset: t[2]}); p.valid() {
			return &p
		}
	}
	for i, r := range rows {
		rows[i] = [3]float64{max(r[0]+r[1], -mostLogit), 0, 1}
	}
	t = logistic(rows, right, [3]float64{1, 0, 0})
	if p := (Platt{Slope: t[0], Offset: t[2]}); t[0] >= leastSlope && p.valid() {
		return &p
	}
	return nil
}

// logistic maximises the likelihood of a logistic regression with a normal prior around
// usual, by Newton's method.
func logistic(rows [][3]float64, right []bool, usual [3]float64) [3]float64 {
	t := usual
	for range 100 {
		var g [3]float64
		var h [3][3]float64
		for j := range t {
			g[j], h[j][j] = usualWeight*(t[j]-usual[j]), usualWeight
		}
		for i, r := range rows {
			c := 1 / (1 + math.Exp(-t[0]*r[0]-t[1]*r[1]-t[2]*r[2]))
			w, e := c*(1-c), c
			if right[i] {
				e--
			}
			for j, v := range r {
				g[j] += e * v
				for k, u := range r {
					h[j][k] += w * v * u
				}
			}
		}
		d := solve(h, g)
		sum := math.Abs(d[0]) + math.Abs(d[1]) + math.Abs(d[2])
		step := 1 / max(1, sum)
		for j := range t {
			t[j] -= step * d[j]
		}
		if sum < 1e-9 {
			break
		}
	}
	return t
}

// solve solves h·x = g for a positive definite h, by elimination.
func solve(h [3][3]float64, g [3]float64) (x [3]float64) {
	for k := range g {
		for i := k + 1; i < len(g); i++ {
			f := h[i][k] / h[k][k]
			for j := k; j < len(g); j++ {
				h[i][j] -= f * h[k][j]
			}
			g[i] -= f * g[k]
		}
	}
	for k := len(g) - 1; k >= 0; k-- {
		x[k] = g[k]
		for j := k + 1; j < len(g); j++ {
			x[k] -= h[k][j] * x[j]
		}
		x[k] /= h[k][k]
	}
	return x
}

// Cross-conformal calibration (CV+, the jackknife+ of folds):
//
// A detector with few images cannot spare a calibration set. Its folds are detectors
// of the same kind, each trained without the images of one fold, whose Scores are
// those of these images. An image's p-value compares its score by each fold's
// detector with the scores of that fold:
//
//	p = (1 + Σ_k #{i in fold k: s_i ≤ s_k(x)}) / (n + 1)
//
// Each image thus trains and calibrates, and none is scored by what it trained. The
// image is flagged if p ≤ ⌊α(n + 1)⌋ / (n + 1), with α = 1 − TargetTPR. In practice
// about a share α of in-distribution images is flagged; [CrossBound] is what is
// proven.

// CrossBound bounds the probability that a new in-distribution image is flagged by
// a detector with k folds of n images in all, of which at most a share alpha is to be
// flagged: 2α + min{2(1 − 1/k)/(n/k + 1), (1 − k/n)/(k + 1)} (Barber, Candès, Ramdas,
// Tibshirani: Predictive inference with the jackknife+, 2021, theorem 4). It holds for
// exchangeable images in folds of equal size.
func CrossBound(alpha float64, n, k int) float64 {
	size, folds := float64(n)/float64(k), float64(k)
	return 2*alpha + min(2*(1-1/folds)/(size+1), (1-1/size)/(folds+1))
}

// foldKey is the key of a fold's metadata in a detector file, foldPrefix what the
// names of its tensors begin with. Both are followed by the number of the fold.
const foldKey, foldPrefix = metadataKey + ".folds.", "folds."

// encodeFolds adds the folds to what a file holds.
func (d *Detector) encodeFolds(metadata map[string]string, tensors []safetensors.Tensor) ([]safetensors.Tensor, error) {
	for k, fold := range d.Folds {
		text, own, err := fold.encode()
		if err != nil {
			return nil, fmt.Errorf("fold %d: %w", k, err)
		}
		metadata[foldKey+strconv.Itoa(k)] = text
		for _, t := range own {
			t.Name = foldPrefix + strconv.Itoa(k) + "." + t.Name
			tensors = append(tensors, t)
		}
	}
	return tensors, nil
}

// readFolds reads the folds of a detector.
func (d *Detector) readFolds(file *safetensors.File, folds int) error {
	if folds < 0 {
		return fmt.Errorf("it has %d folds", folds)
	}
	tensors := map[string][]safetensors.Tensor{} // by the number of the fold
	for _, t := range file.Tensors {
		if rest, own := strings.CutPrefix(t.Name, foldPrefix); own && folds > 0 {
			var k string
			k, t.Name, _ = strings.Cut(rest, ".")
			tensors[k] = append(tensors[k], t)
		}
	}
	scores := 0
	for k := range folds {
		number := strconv.Itoa(k)
		text, ok := file.Metadata[foldKey+number]
		if !ok {
			return fmt.Errorf("it has %d folds, and fold %d is missing", folds, k)
		}
		fold, err := parsePart(&safetensors.File{Metadata: map[string]string{metadataKey: text}, Tensors: tensors[number]})
		if err == nil && (len(fold.Classes) != len(d.Classes) || fold.Dim() != d.Dim()) {
			err = errors.New("it has other classes or features than the detector")
		}
		if err != nil {
			return fmt.Errorf("fold %d: %w", k, err)
		}
		scores += len(fold.CalibrationScores)
		d.Folds = append(d.Folds, fold)
	}
	if folds > 0 && scores != len(d.CalibrationScores) {
		return fmt.Errorf("its folds have %d calibration scores, and it has %d", scores, len(d.CalibrationScores))
	}
	return nil
}
