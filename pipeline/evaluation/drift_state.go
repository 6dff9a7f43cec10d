package evaluation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

const stateVersion = 1

// errState is that of bytes that are no state of a martingale.
var errState = errors.New("drift: no state of a martingale, or cut short")

// MarshalBinary returns the state, some kB, from which UnmarshalBinary goes on as if
// there had been no interruption.
func (m *Martingale) MarshalBinary() ([]byte, error) {
	generator, err := m.rng.MarshalBinary()
	if err != nil {
		return nil, err
	}
	b := append([]byte{stateVersion, byte(len(generator))}, generator...)
	for _, v := range append([]float64{m.alpha, m.cells.middle, m.cells.width, m.logActive, m.highest}, m.parts[:]...) {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(v))
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, m.steps), m.raisedAt)
	// Cells that are not empty: how many empty ones come before, and the count.
	skipped := uint64(0)
	for i, block := range m.cells.counts {
		if block == nil || m.cells.sums[i] == 0 {
			skipped += blockCells
			continue
		}
		for _, n := range block {
			if n == 0 {
				skipped++
				continue
			}
			b = binary.AppendUvarint(binary.AppendUvarint(b, skipped), n)
			skipped = 0
		}
	}
	// The sum shows whether the state is whole.
	return binary.BigEndian.AppendUint64(b, m.cells.n), nil
}

// UnmarshalBinary replaces the martingale by the one whose state MarshalBinary
// returned.
func (m *Martingale) UnmarshalBinary(data []byte) error {
	if len(data) > 0 && data[0] > stateVersion {
		return fmt.Errorf("drift: a state of version %d; this program knows %d", data[0], stateVersion)
	}
	if len(data) < 2 || data[0] != stateVersion {
		return errState
	}
	n := int(data[1])
	if data = data[2:]; len(data) < n+(5+bets)*8+8 {
		return errState
	}
	fresh := Martingale{rng: &rand.PCG{}}
	if err := fresh.rng.UnmarshalBinary(data[:n]); err != nil {
		return fmt.Errorf("%w: %w", errState, err)
	}
	data = data[n:]
	numbers := []*float64{&fresh.alpha, &fresh.cells.middle, &fresh.cells.width, &fresh.logActive, &fresh.highest}
	for i := range fresh.parts {
		numbers = append(numbers, &fresh.parts[i])
	}
	for _, v := range numbers {
		*v, data = math.Float64frombits(binary.BigEndian.Uint64(data)), data[8:]
		if math.IsNaN(*v) || math.IsInf(*v, 0) {
			return errState
		}
	}
	sum, least := 0.0, 1.0
	for _, part := range fresh.parts {
		sum, least = sum+part, min(least, part)
	}
	if !(fresh.alpha > 0 && fresh.alpha < 1) || !(fresh.cells.width > 0) || !(math.Abs(sum-1) < 1e-6) || least < 0 {
		return errState
	}
	total := binary.BigEndian.Uint64(data[len(data)-8:])
	data = data[:len(data)-8]
	next := func() uint64 {
		v, size := binary.Uvarint(data)
		if size <= 0 {
			v, data = math.MaxUint64, nil
			return v
		}
		data = data[size:]
		return v
	}
	if len(data) < 2 {
		return errState
	}
	fresh.steps, fresh.raisedAt = next(), next()
	if fresh.left = reserve(fresh.steps); fresh.raisedAt > fresh.steps {
		return errState
	}
	cell := 0
	for len(data) > 0 {
		skip := next()
		if skip >= 2*halfCells || cell+int(skip) >= 2*halfCells || len(data) == 0 {
			return errState
		}
		count := next()
		if cell += int(skip); count > total-fresh.cells.n || count == 0 {
			return errState
		}
		fresh.cells.put(cell, count)
		cell++
	}
	if fresh.cells.n != total {
		return errState
	}
	*m = fresh
	return nil
}
