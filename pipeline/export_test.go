package pipeline

import "github.com/mlrbfn/mlrbfn/features"

// CreateVerdicts is createVerdicts in a folder.
func CreateVerdicts(dir string, shard features.Shard, work Work, known func(path string) bool) (*verdictWriter, error) {
	return createVerdicts(VerdictParts{Out: dir, Shard: shard}, work, known, nil)
}
