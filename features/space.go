package features

import (
	"errors"

	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// DefaultMemory returns the default memory in bytes: half of the machine's, or of
// the control group's if that has less.
func DefaultMemory() int64 { return spill.Default() }

// Space stores computed rows: in memory while they fit, then in temporary files.
// Any number of goroutines may use it. A nil Space stores everything in memory,
// without a limit.
type Space struct{ spill *spill.Space }

// NewSpace returns a Space with about memory bytes for rows in memory, and as many
// again, divided among the given number of users, for rows being read from files.
// Files go to the folder dir; "" means the system's folder for temporary files.
// Close the Space after its rows.
func NewSpace(memory int64, dir string, users int) *Space {
	return &Space{spill.New(memory, dir, users)}
}

func (s *Space) space() *spill.Space {
	if s == nil {
		return nil
	}
	return s.spill
}

// Close frees the Space. Close its rows first.
func (s *Space) Close() error { return s.space().Close() }

// Make returns rows of d values, one for each label, all selected. fill computes
// them and passes them to write in blocks that begin with the row at; it may call
// write from several goroutines, for different rows. Close the rows after use.
func (s *Space) Make(d int, labels []int64, fill func(write func(at int, rows []float32) error) error) (Rows, error) {
	m, err := s.space().Matrix(len(labels), d)
	if err != nil {
		return Rows{}, err
	}
	if err = fill(m.Write); err == nil {
		err = m.Done()
	}
	if err != nil {
		return Rows{}, errors.Join(err, m.Close())
	}
	rows := All(m.X, d, labels)
	rows.pages = m
	return rows, nil
}

// Features returns all rows of a feature set, in the set's own memory maps, so that
// they take no memory of the Space. Rows without a label have the label −1. Close
// them before the set.
func (s *Space) Features(set *Set) Rows {
	var x []float32
	if set.InPlace() {
		x = set.Features()
	}
	m := s.space().File(x, set.N, set.D, set.Pages())
	rows := All(x, set.D, set.Labels())
	if rows.pages = m; !set.InPlace() {
		rows.set = set
	}
	return rows
}
