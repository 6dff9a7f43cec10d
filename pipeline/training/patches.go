package training

import (
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
)

// This file keeps images that a model of patches was fitted on out of validation and
// calibration: extraction fits it before anything is split, and a new image is in no fit.

// groupOf returns the group of a row.
func (t *Data) groupOf(row int) int {
	if t.groups == nil {
		return row
	}
	return t.groups[row]
}

// findFitted opens the model of patches and finds the groups of rows that are in its fit.
func (t *Data) findFitted() error {
	if !slices.ContainsFunc(t.layers, features.Layer.OfPatches) {
		return nil
	}
	file, err := t.Sets[0].Patches()
	if err == nil && file != nil {
		t.patches, err = extractor.ReadPatches(file)
	}
	if err != nil {
		return err
	}
	if t.patches == nil { // of rows in memory, of which nothing is known
		t.layers = nil
		return nil
	}
	rows, err := t.inFit(t.Table)
	t.fitted = map[int]bool{}
	for row := range rows {
		t.fitted[t.groupOf(row)] = true
	}
	if err == nil && t.Held != nil {
		if rows, err = t.inFit(t.Held); len(rows) > 0 {
			t.validation.Index = slices.DeleteFunc(slices.Clone(t.validation.Index), func(row int) bool { return rows[row] })
		}
	}
	return err
}

// inFit returns the rows of a table whose images the model of patches was fitted on; nil
// without such a model.
func (t *Data) inFit(of *features.Table) (map[int]bool, error) {
	if t.patches == nil {
		return nil, nil
	}
	rows, from := map[int]bool{}, 0
	for _, set := range of.Sets {
		images, err := set.Images()
		if err != nil {
			return nil, err
		}
		for i, image := range images {
			if t.patches.Has(image.SHA256) {
				rows[from+i] = true
			}
		}
		from += set.N
	}
	return rows, nil
}

// splitOthers divides the rows: those of groups that are in the fit of the model of patches
// are for training, and of the others so many are set aside as of all.
func (t *Data) splitOthers(validation, calibration float64, seed uint64) (features.Parts, error) {
	if len(t.fitted) == 0 {
		return features.Split(t.Labels, t.groups, len(t.Classes), validation, calibration, seed)
	}
	labels, all, others := slices.Clone(t.Labels), 0, 0
	var fitted []int
	for row, y := range t.Labels {
		switch {
		case y < 0:
			continue
		case t.fitted[t.groupOf(row)]:
			labels[row] = -1
			fitted = append(fitted, row)
		default:
			others++
		}
		all++
	}
	// Of few others half is left to train on.
	more := min(float64(all)/float64(max(others, 1)), max(1, 0.5/max(validation+calibration, 1e-9)))
	s, err := features.Split(labels, t.groups, len(t.Classes), more*validation, more*calibration, seed)
	s.Train = append(s.Train, fitted...)
	slices.Sort(s.Train)
	s.Groups += len(t.fitted)
	return s, err
}

// neverFitted returns those of the rows that the model of patches was not fitted on, nor on
// others of their groups.
func (t *Data) neverFitted(rows []int) []int {
	return slices.DeleteFunc(slices.Clone(rows), func(row int) bool { return t.fitted[t.groupOf(row)] })
}
