package extractor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// externalWeights returns the names, sorted and relative to its folder, of the files that
// an ONNX file keeps weights in. All of them are there, hold what the model says is in
// them, and lie in its folder, but for files of leftover entries that were deleted.
func externalWeights(file string) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("weights of model %s: %w", file, err)
		}
	}()
	data, unmap, err := disk.Map(file, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	places, err := onnx.Externals(data)
	if err != nil {
		return nil, err
	}
	for _, place := range places {
		err := place.Check(file)
		if place.Leftover && errors.Is(err, fs.ErrNotExist) {
			continue // a file that is there counts, as it always did in a model's hash
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("they are in another file: %w; fetch that too", err)
		} else if err != nil {
			return nil, err
		}
		names = append(names, place.File)
	}
	return slices.Compact(names), nil
}
