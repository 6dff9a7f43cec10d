package detector

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file divides the score of an image into its parts, so that a verdict can be
// explained.

// GuardPart is the name of what a [Guard] adds where no part is the density.
const GuardPart = "guard"

// PartNames lists the parts of the score, in the order of [Detector.Parts].
func (d *Detector) PartNames() []string {
	if d.Scoring == nil {
		if d.Heads[0].HasTerms() {
			return []string{DensityPart, DecisionPart}
		}
		return []string{HeadScore}
	}
	var names []string
	for _, p := range d.Scoring.Parts {
		names = append(names, p.Name)
	}
	if d.Scoring.Guard != nil && !slices.Contains(names, DensityPart) {
		names = append(names, GuardPart)
	}
	return names
}

// Parts returns what each part adds to the scores of the rows x [n, D] of features:
// [n, P], P parts in the order of PartNames. Their sum is the score of the verdict,
// up to rounding. What the guard adds counts as density. It fails only when
// cancelled.
func (d *Detector) Parts(ctx context.Context, x []float32) ([]float64, error) {
	n, count := len(x)/d.Dim(), len(d.PartNames())
	all := make([]float64, 0, n*count)
	for block := range slices.Chunk(x, d.blockRows()*d.Dim()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		part := make([]float64, len(block)/d.Dim()*count)
		var err error
		if d.Scoring == nil {
			d.ownParts(part, count, block)
		} else {
			err = d.scoringParts(ctx, part, count, block)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

// ownParts are the parts of the heads' own score.
func (d *Detector) ownParts(dst []float64, count int, x []float32) {
	if count == 1 {
		copy(dst, d.Own(x).Scores)
		return
	}
	heads := float64(len(d.Heads))
	for _, h := range d.Heads {
		own, scale := h.Outputs(x), h.Network.(*head.ResidualNetwork).Score
		for i := range own.Scores {
			dst[i*count] += scale.Nearness.Of(own.Nearness[i]) / heads
			dst[i*count+1] += scale.Decision.Of(own.Decision[i]) / heads
		}
	}
}

func (d *Detector) scoringParts(ctx context.Context, dst []float64, count int, x []float32) error {
	s, own := d.Scoring, d.Own(x)
	guarded, b := count-1, d.BatchFor(s, x)
	for at, p := range s.Parts {
		scores, err := p.Scores(ctx, b, own)
		if err != nil {
			return fmt.Errorf("score %s: %w", p.Name, err)
		}
		for i, v := range scores {
			dst[i*count+at] = p.Scale.Of(v)
		}
		if p.Name == DensityPart {
			guarded = at
		}
	}
	if s.Guard != nil {
		for i, v := range own.Nearness {
			dst[i*count+guarded] += s.Guard.Of(v)
		}
	}
	return nil
}

// Reference holds what the parts of the score give images that nothing was fitted
// on, so that those of another image can be compared with them.
type Reference struct {
	// Of says which images they are: "calibration", or "validation" where no image
	// was set aside for calibration.
	Of string
	// Parts are the contributions of each part to the scores of these images, ascending:
	// [P][images], in the order of PartNames.
	Parts [][]float64
}

// ReferenceImages is how many images a Reference has at most.
const ReferenceImages = 2000

// NewReference returns the reference of the images with the rows x [n, D].
func (d *Detector) NewReference(ctx context.Context, of string, x []float32) (*Reference, error) {
	values, err := d.Parts(ctx, x)
	if err != nil || len(values) == 0 {
		return nil, err
	}
	count := len(d.PartNames())
	r := &Reference{Of: of, Parts: make([][]float64, count)}
	for i, v := range values {
		r.Parts[i%count] = append(r.Parts[i%count], v)
	}
	for _, part := range r.Parts {
		slices.Sort(part)
	}
	return r, nil
}

// Images is how many images the reference has.
func (r *Reference) Images() int { return len(r.Parts[0]) }

const referenceTensor = "reference.parts"

// tensors returns the tensors of a reference for a file: [P, images].
func (r *Reference) tensors() []safetensors.Tensor {
	if r == nil {
		return nil
	}
	return []safetensors.Tensor{{Name: referenceTensor, Shape: []int{len(r.Parts), r.Images()}, Data: slices.Concat(r.Parts...)}}
}

// readReference is the inverse of tensors; of is the kind of images, from the metadata.
func (d *Detector) readReference(r *safetensors.Reader, of string) error {
	values, shape, found := safetensors.Optional[float64](r, referenceTensor)
	if !found {
		return r.Err
	}
	if parts := len(d.PartNames()); len(shape) != 2 || shape[0] != parts || shape[1] < 1 {
		return fmt.Errorf("tensor %s has shape %v, and its score has %d parts", referenceTensor, shape, parts)
	}
	d.Reference = &Reference{Of: of}
	for part := range slices.Chunk(values, shape[1]) {
		if !slices.IsSorted(part) || slices.ContainsFunc(part, math.IsNaN) {
			return fmt.Errorf("tensor %s is not ascending", referenceTensor)
		}
		d.Reference.Parts = append(d.Reference.Parts, part)
	}
	return nil
}

// File returns the file that the detector was read from; "" for a new one.
func (d *Detector) File() string { return d.file }
