package dataset

import (
	"errors"

	"mlrbfn/features"
	"mlrbfn/internal/spill"
)

// DefaultMemory returns the memory to use by default, in bytes: half of the
// machine's, or of the control group's where that has less.
func DefaultMemory() int64 { return spill.Default() }

// Space is where rows are kept that are made of others: in memory while there
// is room, in temporary files beyond that. It serves any number of goroutines.
// A nil Space keeps everything in memory, and has no limit.
type Space struct{ spill *spill.Space }

// NewSpace returns a Space of so many bytes, about, of rows in memory and, apart
// from these, of rows that are read from files at a time, which so many users
// share. Files go to the folder dir; "" means the system's for temporary files.
// Close it in the end.
func NewSpace(memory int64, dir string, users int) *Space {
	return &Space{spill.New(memory, dir, users)}
}

func (s *Space) space() *spill.Space {
	if s == nil {
		return nil
	}
	return s.spill
}

// Close frees the Space. Its rows are closed before.
func (s *Space) Close() error { return s.space().Close() }

// Make returns n rows of d values, which fill writes, with these labels: all of
// them are to be used. write puts rows into their place, the first being row at;
// fill may call it from several goroutines, for different rows. Close the rows
// in the end.
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

// Features returns all rows of a feature set, as its own memory map. They take
// nothing of the Space. Those without a label have the label −1. Close them
// before the set.
func (s *Space) Features(set *features.Set) Rows {
	m := s.space().File(set.Map(), set.D)
	rows := All(m.X, set.D, set.Labels())
	rows.pages = m
	return rows
}
