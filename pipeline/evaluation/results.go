package evaluation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// clearReport removes what an earlier run has left in the folder of a report,
// which must not stand beside what this one writes, and nothing else. Results
// that Evaluate did not write are an error.
func clearReport(dir string) error {
	if err := metrics.RemoveResults(filepath.Join(dir, "results.csv")); err != nil {
		return err
	}
	methods, err := os.ReadDir(filepath.Join(dir, "scores"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report folder: %w", err)
	}
	for _, method := range methods {
		if _, _, err := detector.ScoreParts(method.Name()); err != nil {
			continue // not ours
		}
		scores, err := filepath.Glob(filepath.Join(dir, "scores", method.Name(), "*", "*.npy"))
		if err != nil {
			return fmt.Errorf("report folder: %w", err)
		}
		for _, file := range scores {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("report folder: %w", err)
			}
			_ = os.Remove(filepath.Dir(file)) // if that was the last
		}
	}
	return nil
}
