package evaluation

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// DriftHistory is the evidence of a source over time: the most in each five minutes of the last
// two hours, and in each hour of the last 31 days. Its zero value is empty.
type DriftHistory struct {
	points []DriftPoint // by time
}

// DriftPoint is the most evidence in a span of time. At 1 the alarm is raised.
type DriftPoint struct {
	Start    time.Time `json:"start"`
	Evidence float64   `json:"evidence"`
}

const (
	fine, coarse         = 5 * time.Minute, time.Hour
	keepFine, keepCoarse = 2 * time.Hour, 31 * 24 * time.Hour
)

// Add notes the evidence at a time.
func (h *DriftHistory) Add(now time.Time, evidence float64) {
	if !math.IsNaN(evidence) {
		h.merge(now, []DriftPoint{{now, max(0, evidence)}})
	}
}

// Merge adds what another history has, such as that of another replica.
func (h *DriftHistory) Merge(now time.Time, other *DriftHistory) { h.merge(now, other.points) }

// Since returns what is known since a time.
func (h *DriftHistory) Since(from time.Time) []DriftPoint {
	at, _ := slices.BinarySearchFunc(h.points, from, func(p DriftPoint, t time.Time) int { return p.Start.Compare(t) })
	return slices.Clone(h.points[at:])
}

func (h *DriftHistory) merge(now time.Time, more []DriftPoint) {
	all := slices.Concat(h.points, more)
	for i := range all {
		width := fine
		if now.Sub(all[i].Start) > keepFine {
			width = coarse
		}
		all[i].Start = all[i].Start.UTC().Truncate(width)
	}
	slices.SortFunc(all, func(a, b DriftPoint) int { return a.Start.Compare(b.Start) })
	h.points = all[:0]
	for _, p := range all {
		switch last := len(h.points) - 1; {
		case now.Sub(p.Start) > keepCoarse || p.Start.After(now):
		case last >= 0 && h.points[last].Start.Equal(p.Start):
			h.points[last].Evidence = max(h.points[last].Evidence, p.Evidence)
		default:
			h.points = append(h.points, p)
		}
	}
}

// MarshalBinary returns the history, at most some 10 kB.
func (h *DriftHistory) MarshalBinary() ([]byte, error) {
	b := []byte{stateVersion}
	for _, p := range h.points {
		b = binary.BigEndian.AppendUint64(b, uint64(p.Start.Unix()))
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(p.Evidence)))
	}
	return b, nil
}

// UnmarshalBinary replaces the history by the one that MarshalBinary returned.
func (h *DriftHistory) UnmarshalBinary(data []byte) error {
	const size = 12
	if len(data) == 0 || data[0] != stateVersion || (len(data)-1)%size != 0 || len(data) > 1<<16 {
		return errState
	}
	var points []DriftPoint
	for one := range slices.Chunk(data[1:], size) {
		p := DriftPoint{time.Unix(int64(binary.BigEndian.Uint64(one)), 0).UTC(), float64(math.Float32frombits(binary.BigEndian.Uint32(one[8:])))}
		if !(p.Evidence >= 0) || len(points) > 0 && !p.Start.After(points[len(points)-1].Start) {
			return errState
		}
		points = append(points, p)
	}
	h.points = points
	return nil
}
