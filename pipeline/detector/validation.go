package detector

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// Validation counts what a detector says of the validation images, which no head was
// trained on.
type Validation struct {
	Confusion []Confused      // in the order of labels, then of given classes; none is empty
	Flagged   []FlaggedImages // per class [C]
}

// Confused says how many images of a class the heads give a class.
type Confused struct{ Label, Given, Images int }

// FlaggedImages says how many images of a class are flagged.
type FlaggedImages struct {
	Flagged int
	Images  int // that were judged; of very many validation images not all are
}

// Give counts an image by the class that it is given.
func (v *Validation) Give(label int, verdict Verdict) {
	c := Confused{Label: label, Given: verdict.Label}
	at, known := slices.BinarySearchFunc(v.Confusion, c, func(a, b Confused) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.Given, b.Given))
	})
	if !known {
		v.Confusion = slices.Insert(v.Confusion, at, c)
	}
	v.Confusion[at].Images++
}

// Flag counts an image by whether it is flagged.
func (v *Validation) Flag(label int, verdict Verdict) {
	v.Flagged[label].Images++
	if verdict.OOD {
		v.Flagged[label].Flagged++
	}
}

// Right returns how many images of a class are given it, and how many there are.
func (v *Validation) Right(class int) (right, images int) {
	for _, c := range v.Confusion {
		if c.Label == class {
			images += c.Images
			if c.Given == class {
				right = c.Images
			}
		}
	}
	return right, images
}

// tensors are validation.confusion [K, 3] and validation.flagged [C, 2].
func (v *Validation) tensors() []safetensors.Tensor {
	if v == nil {
		return nil
	}
	confusion, flagged := []int64{}, []int64{}
	for _, c := range v.Confusion {
		confusion = append(confusion, int64(c.Label), int64(c.Given), int64(c.Images))
	}
	for _, f := range v.Flagged {
		flagged = append(flagged, int64(f.Flagged), int64(f.Images))
	}
	return []safetensors.Tensor{
		{Name: "validation.confusion", Shape: []int{len(v.Confusion), 3}, Data: confusion},
		{Name: "validation.flagged", Shape: []int{len(v.Flagged), 2}, Data: flagged},
	}
}

// readValidation reads what tensors wrote; files of before have none.
func (d *Detector) readValidation(r *safetensors.Reader) error {
	confusion, _, found := safetensors.Optional[int64](r, "validation.confusion")
	if !found {
		return r.Err
	}
	flagged, _ := safetensors.Values[int64](r, "validation.flagged")
	if r.Err != nil {
		return r.Err
	}
	if len(confusion)%3 != 0 || len(flagged) != 2*len(d.Classes) {
		return fmt.Errorf("it has %d numbers of validation.confusion and %d of validation.flagged for %d classes", len(confusion), len(flagged), len(d.Classes))
	}
	v := &Validation{}
	for i := 0; i < len(confusion); i += 3 {
		c := Confused{int(confusion[i]), int(confusion[i+1]), int(confusion[i+2])}
		if min(c.Label, c.Given, c.Images) < 0 || max(c.Label, c.Given) >= len(d.Classes) {
			return fmt.Errorf("validation.confusion has %d images of class %d in class %d, of %d", c.Images, c.Label, c.Given, len(d.Classes))
		}
		v.Confusion = append(v.Confusion, c)
	}
	for i := 0; i < len(flagged); i += 2 {
		f := FlaggedImages{int(flagged[i]), int(flagged[i+1])}
		if f.Flagged < 0 || f.Flagged > f.Images {
			return fmt.Errorf("validation.flagged has %d of %d images", f.Flagged, f.Images)
		}
		v.Flagged = append(v.Flagged, f)
	}
	d.Validation = v
	return nil
}
