package training

import (
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// CheckMemory reports that a score, or a part of an ensemble, cannot be fitted on
// d features in c classes for want of memory. It is asked before anything is
// trained.
func CheckMemory(name string, d, c int, memory int64) error {
	parts, _, err := detector.ScoreParts(name)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if part == detector.HeadPart {
			continue
		}
		if err := posthoc.CheckMemory(part, d, c, memory); err != nil {
			return err
		}
	}
	return nil
}
