package discovery

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"gonum.org/v1/gonum/stat/distuv"
)

// PValues returns the conformal p-value of each score: (1 + the number of the n calibration
// scores that are not higher)/(n + 1), counted as ranks from 1 to n + 1.
func PValues(calibration, scores []float64) (ranks []int) {
	sorted := slices.Sorted(slices.Values(calibration))
	ranks = make([]int, len(scores))
	for i, s := range scores {
		at, _ := slices.BinarySearchFunc(sorted, s, func(c, s float64) int {
			if c <= s {
				return -1
			}
			return 1
		})
		ranks[i] = 1 + at
	}
	return ranks
}

// QValues returns the smallest rate of false discoveries at which each of the m p-values
// rank/(n + 1) is one, by Benjamini and Hochberg with Storey's estimate of the share of
// known rows at ½ (arXiv 2208.06685, section 4): q = min over thresholds t ≥ p of
// π̂·m·t/(number ≤ t).
func QValues(ranks []int, n int) []float64 {
	m := len(ranks)
	if m == 0 {
		return nil
	}
	half := (n + 2) / 2 // the least rank of at least ½
	above := 0          // those there count as known ones, too
	for _, r := range ranks {
		if r >= half {
			above++
		}
	}
	known := float64(1+above) / (float64(m) * (1 - float64(half)/float64(n+1)))
	if n < 2 {
		known = 1
	}
	sorted := slices.Sorted(slices.Values(ranks))
	byRank := make(map[int]float64, m)
	q := 1.0
	for i := m - 1; i >= 0; i-- {
		if i < m-1 && sorted[i] == sorted[i+1] {
			continue
		}
		q = min(q, known*float64(m)*float64(sorted[i])/float64(n+1)/float64(i+1))
		byRank[sorted[i]] = q
	}
	values := make([]float64, m)
	for i, r := range ranks {
		values[i] = byRank[r]
	}
	return values
}

// LeastFound is how many of m rows must be called new at once for any to be, with n
// calibration rows and the rate alpha, if nearly all rows are known: the smallest p-value
// is 1/(n + 1).
func LeastFound(n, m int, alpha float64) int {
	return int(math.Ceil(float64(m) / (alpha * float64(n+1))))
}

// Bound says of the rows with the lowest scores how many are known ones at most.
type Bound struct {
	Rank  int `json:"-"`     // those with a p-value of at most Rank/(n + 1)
	Found int `json:"found"` // how many these are
	Known int `json:"known"` // of which so many are known ones at most
}

// Certificate bounds, at all thresholds at once.
type Certificate struct {
	Bounds []Bound // by Rank, ascending
	// New is how many rows are new at least.
	New int
}

// Known bounds, for each number of the first rows of a list, how many of them are known ones,
// given the ranks of their p-values in the order of the list, whatever this order is: with
// those beyond a rank no more than all of these and those up to it. The bounds hold
// together with those of the Certificate.
func (c Certificate) Known(ranks []int) []int {
	known, beyond := make([]int, len(ranks)), make([]int, len(c.Bounds))
	for i, r := range ranks {
		known[i] = i + 1
		for k, b := range c.Bounds {
			if r > b.Rank {
				beyond[k]++
			}
			known[i] = min(known[i], beyond[k]+b.Known)
		}
	}
	return known
}

const (
	draws      = 2000 // of p-values of known rows
	confidence = .95
	spacing    = 32 // ranks up to it have bounds of their own, others every 1/32
)

// Certify bounds the number of known rows among those with the lowest p-values, at all
// thresholds at once with a confidence of 95%. It uses the joint law of the conformal
// p-values of known rows, which holds for learned scores as well (Gazin, Blanchard and
// Roquain, arXiv 2310.18108): with n calibration scores the shares below their order
// statistics are those of n uniform numbers. The bound at each rank is the same quantile of
// the number of known rows there, out of m; which quantile is found by drawing from that
// law, so that all hold together. Of rows further down no more are known than at the
// lower threshold and all between.
func Certify(ranks []int, n int) Certificate {
	m := len(ranks)
	if m == 0 || n == 0 {
		return Certificate{}
	}
	b := last.Load()
	if b == nil || b.n != n || b.m != m {
		b = newBounds(n, m)
		last.Store(b)
	}
	at, most := b.at, b.most
	found := make([]int, len(at)) // with at most the rank
	for _, r := range ranks {
		if i, _ := slices.BinarySearch(at, r); i < len(at) {
			found[i]++
		}
	}
	for i := 1; i < len(at); i++ {
		found[i] += found[i-1]
	}
	fewest := slices.Clone(most) // no more are known than below a higher threshold
	for i := len(at) - 2; i >= 0; i-- {
		fewest[i] = min(fewest[i], fewest[i+1])
	}
	var c Certificate
	for i, rank := range at {
		c.New = max(c.New, found[i]-fewest[i])
		c.Bounds = append(c.Bounds, Bound{rank, found[i], found[i] - c.New})
	}
	return c
}

// Spaced returns numbers from 1 to n: all of the lowest, and some of the others.
func Spaced(n int) (at []int) {
	for r := 1; r <= n; r += max(1, r/spacing) {
		at = append(at, r)
	}
	return at
}

// bounds are how many of m known rows have at most each rank, for all ranks together.
type bounds struct {
	n, m     int
	at, most []int
}

// last are the bounds that were asked for last: drawing takes longer than the rest.
var last atomic.Pointer[bounds]

func newBounds(n, m int) *bounds {
	at := Spaced(n)
	random := rand.New(rand.NewPCG(0, 0x626f_756e)) // the stream's own number
	draw := func() [][]int {
		all := make([][]int, len(at)) // [ranks][draws]
		for i := range all {
			all[i] = make([]int, draws)
		}
		gaps := make([]float64, len(at)+1)
		for d := range draws {
			var sum float64
			for i := range gaps {
				wide := n + 1 // ranks up to the next threshold, n + 1 gaps in all
				if i < len(at) {
					wide = at[i]
				}
				if i > 0 {
					wide -= at[i-1]
				}
				gaps[i] = distuv.Gamma{Alpha: float64(wide), Beta: 1, Src: random}.Rand()
				sum += gaps[i]
			}
			left, rest := m, sum
			for i := range at {
				if left > 0 {
					k := left
					if share := gaps[i] / rest; share < 1 {
						k = int(distuv.Binomial{N: float64(left), P: share, Src: random}.Rand())
					}
					left -= k
				}
				rest -= gaps[i]
				all[i][d] = m - left
			}
		}
		return all
	}
	first, second := draw(), draw()
	for i := range first {
		slices.Sort(first[i])
	}
	// The quantile is as high as it must be for the second draws to be within.
	exceeded := make([]int, draws) // the highest place of any rank among the first draws
	for i := range at {
		for d, v := range second[i] {
			place, _ := slices.BinarySearch(first[i], v) // v is within if the bound is first[i][place]
			exceeded[d] = max(exceeded[d], place)
		}
	}
	slices.Sort(exceeded)
	place := exceeded[min(draws-1, int(math.Ceil(confidence*draws)))]
	most := make([]int, len(at))
	for i := range most {
		if most[i] = m; place < draws {
			most[i] = first[i][place]
		}
	}
	return &bounds{n, m, at, most}
}
