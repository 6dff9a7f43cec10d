package evaluation_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// A method is a way to watch a stream.
type method struct {
	Name string
	// Start returns a function that takes the next score and returns the logarithm
	// of the capital.
	Start func(calibration []float64, seed uint64) func(score float64) float64
}

// The methods.
var (
	// fixed is the simple jumper on p-values against the calibration scores alone,
	// which are not independent.
	fixed = method{"fixed calibration set, simple jumper", func(calibration []float64, seed uint64) func(float64) float64 {
		sorted := slices.Sorted(slices.Values(calibration))
		rng := rand.New(rand.NewPCG(seed, 1))
		bet := jumper()
		return func(score float64) float64 {
			return bet((float64(sort.SearchFloat64s(sorted, score)) + rng.Float64()) / float64(len(sorted)+1))
		}
	}}
	// Jumper is the simple jumper on p-values among all scores before.
	Jumper = method{"ranked among all before, simple jumper", func(calibration []float64, seed uint64) func(float64) float64 {
		// The martingale ranks; its own capital is left unread.
		ranks := evaluation.NewMartingale(0.01, nil, calibration, seed)
		bet := jumper()
		return func(score float64) float64 { return bet(ranks.Add(score).PValue) }
	}}
	// ours is the martingale of this package.
	ours = method{"mlrbfn: ranked among all before, five bets and a reserve", func(calibration []float64, seed uint64) func(float64) float64 {
		m := evaluation.NewMartingale(0.01, nil, calibration, seed)
		return func(score float64) float64 { return m.Add(score).LogWealth }
	}}
)

// jumper is the simple jumper as Vovk has it (Testing randomness online, algorithm 1,
// J = 0.01), by itself, as a witness for it.
func jumper() func(p float64) float64 {
	capital := [3]float64{1. / 3, 1. / 3, 1. / 3}
	log := 0.0
	return func(p float64) float64 {
		sum := 0.0
		for i := range capital {
			capital[i] = (0.99*capital[i] + 0.01/3) * (1 + float64(i-1)*(p-0.5))
			sum += capital[i]
		}
		for i := range capital {
			capital[i] /= sum
		}
		log += math.Log(sum)
		return log
	}
}

// stream is a calibration set and the scores after it: normal, and lower by a shift
// after some.
type stream struct {
	Calibration, Calm int     // how many scores
	Shift             float64 // in standard deviations
	Until             int     // how many scores come after the shift at most
	Share             float64 // of the scores that are lower; 0 means all
}

// Run returns after how many scores of the stream the alarm of chance alpha comes, 0 if
// it does not, and calls each, unless nil, with the logarithm of the capital after each
// score.
func (s stream) Run(m method, alpha float64, seed uint64, each func(t int, log float64)) int {
	rng := rand.New(rand.NewPCG(seed, 2))
	calibration := make([]float64, s.Calibration)
	for i := range calibration {
		calibration[i] = rng.NormFloat64()
	}
	add := m.Start(calibration, seed)
	for t := 1; t <= s.Calm+s.Until; t++ {
		score := rng.NormFloat64()
		if t > s.Calm && (s.Share == 0 || rng.Float64() < s.Share) {
			score -= s.Shift
		}
		log := add(score)
		if each != nil {
			each(t, log)
		} else if log >= -math.Log(alpha) {
			return t
		}
	}
	return 0
}

// FalseAlarms returns how many of so many runs raise an alarm without a shift.
func (s stream) FalseAlarms(m method, alpha float64, runs int) (raised int) {
	s.Until = 0
	for seed := range runs {
		if s.Run(m, alpha, uint64(seed), nil) > 0 {
			raised++
		}
	}
	return raised
}

// Delays returns, ascending, how many scores after the shift the alarm comes, in so
// many runs, but those that raise it before. One that does not come is as late as
// can be.
func (s stream) Delays(m method, alpha float64, runs int) (delays []int) {
	for seed := range runs {
		switch t := s.Run(m, alpha, uint64(seed), nil); {
		case t == 0:
			delays = append(delays, s.Until)
		case t > s.Calm:
			delays = append(delays, t-s.Calm)
		}
	}
	slices.Sort(delays)
	return delays
}
