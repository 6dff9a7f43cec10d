package detector

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file has cross-conformal calibration (CV+, the jackknife+ of folds).
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
