package evaluation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// DriftAlarm is the state of a martingale after a score.
type DriftAlarm struct {
	PValue    float64 // of the score among all before it; low for a stranger image
	LogWealth float64 // natural logarithm of the capital
	Raised    bool    // the capital has reached 1/α, now or before
	Now       bool    // at this score for the first time
}

// The bets and the reserve.
const (
	bets         = 5
	jump         = 0.01
	inReserve    = 0.5
	reserveScale = 100
)

// odds returns what the bets multiply their capital by. Each is 1 on average over
// uniform p.
func odds(p float64) [bets]float64 {
	low, lowest := 0.0, 0.0
	if p < 0.05 {
		low = 1
	}
	if p < 0.01 {
		lowest = 1
	}
	return [bets]float64{1.5 - p, 1, 0.5 + p, 0.9 + 2*low, 0.95 + 5*lowest}
}

// A Martingale raises an alarm when a stream of scores is no longer like the
// calibration scores, and promises how seldom it does so without cause.
//
// # The promise
//
// If calibration scores and stream are exchangeable (as independent images of one
// source are), a Martingale of α ever raises its alarm with a
// chance of at most α, however long the stream runs. Several martingales, one per
// source and class, each have that chance; divide α by their number if all together
// shall keep it.
//
// # How
//
// Score t of the stream gets the p-value
//
//	p_t = (#{earlier scores < s} + U·(1 + #{earlier scores = s})) / (1 + #{earlier scores})
//
// where the earlier scores are the calibration scores and all of the stream before,
// and U is uniform on [0, 1): ties are broken at random. These p-values are
// independent and uniform (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random
// World, theorem 11.1). Those against the calibration scores alone are uniform each
// but not independent, as all are compared with the same scores: bets against them
// win in 11% of calm streams of 20,000 images where 1% was promised.
//
// The martingale is capital that is bet on the p-values not being uniform. It is
// split over five bets, which multiply their parts by
//
//	1 + ε(p − ½), for ε = −1 (all scores fell: a dirty lens), 0, and 1 (all rose: a
//	camera that is stuck on one typical picture)
//	0.9 + 2·[p < 0.05], which wins where some of the images are strange
//	0.95 + 5·[p < 0.01], which wins where few are, and very
//
// Before each bet, a share of 1% of the capital is spread over them anew. (The first
// three alone are the simple jumper; Vovk, Testing randomness online, Statistical
// Science 36, 2021.) No bet gains on average where p is uniform, so the capital is a
// martingale that begins at 1, and by Ville's inequality it ever reaches 1/α with a
// chance of at most α: that is the alarm. It is two-sided.
//
// The bets lose capital while nothing happens (the simple jumper about exp(−0.004 t)),
// and would have to win it all back first: a drift after a million calm images would
// be noticed some ten thousand images late. So half of the capital is kept in reserve
// and paid into the bets little by little: 1/(2(1 + ln(1 + t/100))) is left after t
// scores. Paying in moves capital between parts of one martingale; the sum stays one.
//
// # Memory
//
// Exact ranks among all scores that ever came would need them all. A fixed function
// of the scores may be ranked instead: exchangeable scores stay so when one function
// is applied to all of them. The function here is the cell that a score falls into,
// floor(128·asinh((s − m)/w)), within ±4096: 1/128 of the width w near the middle m,
// and 0.8% of the distance further out. Scores of one cell are ties. m and w are
// median and interquartile range of at most 16 calibration scores that are picked at
// random and then used for nothing else (or of a grid), so that the function
// does not depend on the scores that are ranked; this is what keeps the promise exact.
// A count per cell suffices: an update takes a bounded number of additions, a state a
// few kB, for ever.
//
// [NewMartingale] makes one. It is not for concurrent use.
type Martingale struct {
	capital
	cells driftCells
	rng   *rand.PCG
}

// capital is bet on a stream not being as it should.
type capital struct {
	alpha     float64
	steps     uint64 // of the stream since the start or Reset
	logActive float64
	parts     [bets]float64 // of the active capital, by bet; their sum is 1
	left      float64       // of the reserve
	highest   float64       // log of the most capital so far
	raisedAt  uint64        // the step of the alarm; 0 if there was none
}

// NewMartingale returns a martingale for scores that should be like these calibration scores,
// which may be few or none: then it notices that the stream changes, but not that it
// is another from the start. Calibration images whose scores the stream is compared
// with must be chosen as the stream's are: where a martingale sees the images that
// are given one class, by the class that is given and not by the label. The seed
// settles how ties are broken.
//
// alpha, in (0, 1), is the chance of ever raising a false alarm. The scores of grid only
// settle the width of cells, such as those of all classes where the stream is of one; they must
// be other ones than those that are ranked. Nil has some of the calibration scores set apart.
func NewMartingale(alpha float64, grid, calibration []float64, seed uint64) *Martingale {
	if !(alpha > 0 && alpha < 1) {
		panic(fmt.Sprintf("evaluation: a chance of false alarms of %g", alpha))
	}
	m := &Martingale{capital: capital{alpha: alpha}, rng: rand.NewPCG(seed, 0x64726966740a)}
	ranked := calibration
	if len(grid) == 0 {
		const apart = 16
		ranked = slices.Clone(calibration)
		rand.New(m.rng).Shuffle(len(ranked), func(i, j int) { ranked[i], ranked[j] = ranked[j], ranked[i] })
		n := min(max(2, len(ranked)/8), apart, len(ranked))
		grid, ranked = ranked[:n], ranked[n:]
	}
	m.cells.settle(grid)
	for _, score := range ranked {
		m.cells.add(m.cells.of(score))
	}
	m.Reset()
	return m
}

// Reset begins a new test with the capital 1, for when an alarm has been dealt with.
// The scores so far stay those that others are ranked among. The promise holds for
// each test by itself.
func (m *capital) Reset() { m.begin(inReserve) }

func (m *capital) begin(reserve float64) {
	m.steps, m.raisedAt, m.highest, m.left = 0, 0, 0, reserve
	m.logActive = math.Log(1 - reserve)
	for i := range m.parts {
		m.parts[i] = 1. / bets
	}
}

// reserve returns what is left of the reserve after t scores.
func reserve(t uint64) float64 { return inReserve / (1 + math.Log1p(float64(t)/reserveScale)) }

// Add takes the next score of the stream. NaN counts as the lowest.
func (m *Martingale) Add(score float64) DriftAlarm {
	cell := m.cells.of(score)
	below, equal := m.cells.rank(cell)
	u := float64(m.rng.Uint64()>>11) / (1 << 53)
	p := (float64(below) + u*float64(equal+1)) / float64(m.cells.n+1)
	m.cells.add(cell)
	a := m.bet(odds(p))
	a.PValue = p
	return a
}

// bet pays capital in for the next of the stream, and multiplies the parts by what the bets
// on it won.
func (m *capital) bet(won [bets]float64) DriftAlarm {
	m.pay(reserve(m.steps+1), jump)
	return m.win(won)
}

// pay pays all of the reserve but what shall be left into the bets, and spreads a share of the
// capital over them anew.
func (m *capital) pay(left, spread float64) {
	m.steps++
	paid := 0.0 // as a share of the active capital
	if m.logActive < 700 {
		paid = math.Exp(math.Log(m.left-left) - m.logActive)
	}
	m.left = left
	for i, part := range m.parts {
		m.parts[i] = (1-spread)*(part+paid/bets)/(1+paid) + spread/bets
	}
	m.logActive += math.Log1p(paid)
}

// win multiplies the parts of the capital by what the bets won.
func (m *capital) win(won [bets]float64) DriftAlarm {
	total := 0.0
	for i, times := range won {
		m.parts[i] *= times
		total += m.parts[i]
	}
	for i := range m.parts {
		m.parts[i] /= total
	}
	m.logActive += math.Log(total)
	wealth := m.LogWealth()
	m.highest = max(m.highest, wealth)
	now := m.raisedAt == 0 && wealth >= m.Threshold()
	if now {
		m.raisedAt = m.steps
	}
	return DriftAlarm{LogWealth: wealth, Raised: m.raisedAt > 0, Now: now}
}

// LogWealth returns the natural logarithm of the capital, 0 at the start.
func (m *capital) LogWealth() float64 {
	if m.steps == 0 {
		return 0
	}
	a, b := m.logActive, math.Log(m.left)
	return max(a, b) + math.Log1p(math.Exp(-math.Abs(a-b)))
}

// Highest returns the logarithm of the most capital since the start.
func (m *capital) Highest() float64 { return m.highest }

// Threshold returns the logarithm of the capital that raises the alarm.
func (m *capital) Threshold() float64 { return -math.Log(m.alpha) }

// Steps returns how many scores of the stream came since the start or Reset.
func (m *capital) Steps() uint64 { return m.steps }

// RaisedAt returns the number of the score, from 1 on, that raised the alarm, 0 if
// none did.
func (m *capital) RaisedAt() uint64 { return m.raisedAt }

const (
	perWidth   = 128  // cells per unit of asinh
	halfCells  = 4096 // cells on each side of the middle
	blockCells = 64
	blocks     = 2 * halfCells / blockCells
)

// cells counts scores by the cell that they fall into.
type driftCells struct {
	middle, width float64
	n             uint64
	sums          [blocks]uint64              // of the blocks
	counts        [blocks]*[blockCells]uint64 // nil where all are 0
}

// settle derives the cells from scores. Where these do not differ, any width is as
// good.
func (c *driftCells) settle(scores []float64) {
	scores = slices.DeleteFunc(slices.Clone(scores), func(s float64) bool { return math.IsNaN(s) || math.IsInf(s, 0) })
	slices.Sort(scores)
	c.middle, c.width = 0, 1
	if n := len(scores); n > 0 {
		at := func(share float64) float64 { // linear between neighbours
			x := share * float64(n-1)
			i := min(int(x), max(n-2, 0))
			if n == 1 {
				return scores[0]
			}
			return scores[i] + (x-float64(i))*(scores[i+1]-scores[i])
		}
		c.middle = at(0.5)
		for _, width := range []float64{at(0.75) - at(0.25), scores[n-1] - scores[0], math.Abs(c.middle) / 1024} {
			if width > 0 && !math.IsInf(width, 0) {
				c.width = width
				break
			}
		}
	}
}

// of returns the cell of a score.
func (c *driftCells) of(score float64) int {
	x := perWidth * math.Asinh((score-c.middle)/c.width)
	if !(x >= -halfCells) { // also NaN
		return 0
	}
	return int(math.Floor(min(x, halfCells-1))) + halfCells
}

func (c *driftCells) add(cell int) { c.put(cell, 1) }

func (c *driftCells) put(cell int, n uint64) {
	block := c.counts[cell/blockCells]
	if block == nil {
		block = new([blockCells]uint64)
		c.counts[cell/blockCells] = block
	}
	block[cell%blockCells] += n
	c.sums[cell/blockCells] += n
	c.n += n
}

// rank returns how many scores fell into lower cells and how many into this one.
func (c *driftCells) rank(cell int) (below, equal uint64) {
	for _, sum := range c.sums[:cell/blockCells] {
		below += sum
	}
	if block := c.counts[cell/blockCells]; block != nil {
		for _, n := range block[:cell%blockCells] {
			below += n
		}
		equal = block[cell%blockCells]
	}
	return below, equal
}

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
