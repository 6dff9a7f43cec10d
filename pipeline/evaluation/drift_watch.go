package evaluation

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
)

// DriftCalibration describes the images that a stream is compared with.
type DriftCalibration struct {
	// Scores are those of the calibration images. They may be none, and then only
	// changes within the stream are noticed; Grid then settles the cells.
	Scores []float64
	// ByClass are the scores of the calibration images that are given each class.
	// Where a class has none, changes within the stream of its images are noticed.
	ByClass map[string][]float64
	// Classes are all that images may be given.
	Classes []string
	// Grid settles the cells of martingales without scores; see [Options].
	Grid []float64
}

// DriftWatch watches the images of one source, all together and by the class that they are
// given. The chance that any of its alarms is ever raised without cause is at most
// alpha: half of it is for all images together, and the classes share the rest.
type DriftWatch struct {
	all     *Martingale
	classes map[string]*Martingale
}

// NewDriftWatch starts to watch a source. Alpha 0 means 0.01; one that is no chance panics.
func NewDriftWatch(alpha float64, c DriftCalibration, seed uint64) *DriftWatch {
	alpha = cmp.Or(alpha, 0.01)
	grid := func(scores []float64) []float64 {
		if len(scores) > 0 {
			return nil // some of them are set apart
		}
		if len(c.Grid) > 0 {
			return c.Grid
		}
		return c.Scores
	}
	w := &DriftWatch{
		all:     NewMartingale(alpha/2, grid(c.Scores), c.Scores, seed),
		classes: make(map[string]*Martingale, len(c.Classes)),
	}
	for _, class := range c.Classes {
		h := fnv.New64a()
		h.Write([]byte(class))
		scores := c.ByClass[class]
		w.classes[class] = NewMartingale(alpha/2/float64(len(c.Classes)), grid(scores), scores, seed^h.Sum64())
	}
	return w
}

// Add takes the score of the next image and the class that it is given, and returns
// the state of the alarm of all images together and of the class.
func (w *DriftWatch) Add(class string, score float64) (all, ofClass DriftAlarm) {
	all = w.all.Add(score)
	if m := w.classes[class]; m != nil {
		ofClass = m.Add(score)
	}
	return all, ofClass
}

// All is the martingale of all images together.
func (w *DriftWatch) All() *Martingale { return w.all }

// Class is the martingale of the images that are given a class; nil for one that was
// not named.
func (w *DriftWatch) Class(class string) *Martingale { return w.classes[class] }

// Classes are those that have a martingale, in order.
func (w *DriftWatch) Classes() []string { return slices.Sorted(maps.Keys(w.classes)) }

// Reset begins new tests; see [Martingale.Reset].
func (w *DriftWatch) Reset() {
	w.all.Reset()
	for _, m := range w.classes {
		m.Reset()
	}
}

// MarshalBinary returns the state of all martingales.
func (w *DriftWatch) MarshalBinary() ([]byte, error) {
	b := []byte{stateVersion}
	b = binary.AppendUvarint(b, uint64(len(w.classes)))
	part := func(name string, m *Martingale) error {
		state, err := m.MarshalBinary()
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		b = append(binary.AppendUvarint(b, uint64(len(state))), state...)
		return err
	}
	err := part("", w.all)
	for _, class := range w.Classes() {
		err = errors.Join(err, part(class, w.classes[class]))
	}
	return b, err
}

// UnmarshalBinary replaces the watch by the one whose state MarshalBinary returned.
func (w *DriftWatch) UnmarshalBinary(data []byte) error {
	if len(data) == 0 || data[0] != stateVersion {
		return errState
	}
	data = data[1:]
	length := func() (int, bool) {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > uint64(len(data)) {
			return 0, false
		}
		data = data[size:]
		return int(n), int(n) <= len(data)
	}
	n, ok := length()
	fresh := DriftWatch{classes: map[string]*Martingale{}}
	for i := 0; ok && i <= n; i++ {
		var size int
		var name string
		if size, ok = length(); !ok {
			break
		}
		name, data = string(data[:size]), data[size:]
		if size, ok = length(); !ok {
			break
		}
		m := &Martingale{}
		if err := m.UnmarshalBinary(data[:size]); err != nil {
			return err
		}
		data = data[size:]
		if i == 0 {
			fresh.all = m
		} else {
			fresh.classes[name] = m
		}
	}
	if !ok || len(data) > 0 || len(fresh.classes) != n {
		return errState
	}
	*w = fresh
	return nil
}
