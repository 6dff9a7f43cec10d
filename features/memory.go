package features

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// inMemory is the Dir of a set without a folder, as errors and detectors name it.
const inMemory = "(memory)"

// InMemory returns the set of the rows x [N, d] and their labels, without copying
// them: nobody may change them until nobody uses the set. A label is −1 or an index
// into classes; nil means a row without a label each. The set has neither paths of
// images nor a fingerprint, as those of other programs.
func InMemory(x []float32, d int, labels []int64, classes []string) (*Set, error) {
	if d < 1 || len(x)%d != 0 {
		return nil, fmt.Errorf("%d values are no rows of %d features", len(x), d)
	}
	n := len(x) / d
	if labels == nil {
		labels = slices.Repeat([]int64{-1}, n)
	}
	if len(labels) != n {
		return nil, fmt.Errorf("%d rows have %d labels", n, len(labels))
	}
	for row, label := range labels {
		if label < -1 || label >= int64(len(classes)) {
			return nil, fmt.Errorf("label %d of row %d is none of the %d classes", label, row, len(classes))
		}
	}
	return &Set{
		Dir: inMemory, Meta: Meta{N: n, D: d, Classes: classes}, memory: true,
		features: &npy.Mapped{Data: x, Shape: []int{n, d}}, labels: labels,
	}, nil
}

// SetLayers gives a set in memory, before it is used, layers: values [N, L], which are not
// copied.
func (s *Set) SetLayers(layers []Layer, values []float32) error {
	d := LayersDim(layers)
	if !s.memory || len(values) != s.N*d {
		return fmt.Errorf("%d values are no layers of %d columns of %d rows in memory", len(values), d, s.N)
	}
	s.Layers, s.layers = layers, &npy.Mapped{Data: values, Shape: []int{s.N, d}}
	return nil
}

// sumInMemory is sumOf for the file that an array in memory would be.
func (s *Set) sumInMemory(ctx context.Context, name string) (string, error) {
	hash := sha256.New()
	var err error
	switch name {
	case featuresFile:
		err = writeBlocks(ctx, hash, s.features.Data, s.features.Shape...)
	case layersFile:
		err = writeBlocks(ctx, hash, s.layers.Data, s.layers.Shape...)
	default:
		err = writeBlocks(ctx, hash, s.labels, s.N)
	}
	return hex.EncodeToString(hash.Sum(nil)), err
}

// writeBlocks writes an .npy file until ctx is cancelled.
func writeBlocks[T npy.Element](ctx context.Context, to io.Writer, values []T, shape ...int) error {
	w, err := npy.NewWriter[T](to, shape...)
	if err != nil {
		return err
	}
	for block := range slices.Chunk(values, 1<<15) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Write(block); err != nil {
			return err
		}
	}
	return w.Close()
}

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
