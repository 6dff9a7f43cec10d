package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"mlrbfn/features"
)

// FeatureSet describes feature sets as one set of images, row after row. They
// must stay open while the report is written. Images are looked for under the
// folders that the sets name as their roots; a set that knows of no images has
// rows alone.
func FeatureSet(name, group string, sets ...*features.Set) (Set, error) {
	s := Set{Name: name, Group: group}
	var images []Image
	var first []int // rows of the sets before
	for _, set := range sets {
		first = append(first, s.N)
		s.N += set.N
		s.Fingerprint = set.Fingerprint
		known, err := set.Images()
		if err != nil {
			return Set{}, fmt.Errorf("report: %w", err)
		}
		labels := set.Labels()
		for i, img := range known {
			at := Image{Path: img.Path, File: filepath.Join(set.Root, filepath.FromSlash(img.Path))}
			if labels[i] >= 0 {
				at.Class = set.Classes[labels[i]]
			}
			images = append(images, at)
		}
	}
	s.Row = func(i int) []float32 {
		at, exact := slices.BinarySearch(first, i)
		if !exact {
			at--
		}
		return sets[at].Row(i - first[at])
	}
	if len(images) == s.N {
		s.Image = func(i int) Image { return images[i] }
	}
	return s, nil
}
