package pipeline

import (
	"context"
	"errors"

	"github.com/mlrbfn/mlrbfn/features"
)

// Verify reads feature sets wholly and compares every file with its checksum. Its
// errors are those of features.Open and [features.Set.Verify].
func Verify(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		set, err := features.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(set.Verify(ctx), set.Close()); err != nil {
			return err
		}
	}
	return nil
}
