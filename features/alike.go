package features

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Alike numbers the selected rows of some sets, all with the same number of
// features, so that rows that are identical or nearly identical share a number:
// that of the first of them, counted over all sets.
//
// Two rows are nearly identical if the cosine between them is above 1 − 1e-6. With
// fewer than 16 features, where unrelated rows often point the same way, they are
// if they differ by at most 1e-5 of their length. Rows that share a neighbour share
// a number too.
//
// Each row is read once and, if it may be like another, again. Besides it takes
// about 60 bytes of memory per row.
func Alike(ctx context.Context, sets ...Rows) ([][]int, error) {
	a := &alike{sets: sets}
	for _, s := range sets {
		a.d = max(a.d, s.D)
		a.starts = append(a.starts, a.n)
		a.n += s.Len()
	}
	a.short = a.d < fewFeatures
	a.width = spread * math.Sqrt(2*oneMinusCosine)
	if a.short {
		a.width = spread * fewDifference
	}
	if err := a.sketch(ctx); err != nil {
		return nil, err
	}
	if err := a.compare(ctx); err != nil {
		return nil, err
	}
	numbers := make([][]int, len(sets))
	for s, set := range sets {
		numbers[s] = make([]int, set.Len())
		for i := range numbers[s] {
			numbers[s][i] = int(a.find(int32(a.starts[s] + i)))
		}
	}
	return numbers, nil
}

const (
	oneMinusCosine = 1e-6
	fewFeatures    = 16
	fewDifference  = 1e-5

	// A sum of values with random signs differs between rows at the distance e by
	// more than spread·e with a chance of about 1e-7.
	spread = 6

	sketchSize = 8 // such sums per row
	cellSize   = 4 // of them that make a cell
)

// alike finds rows that are alike by sketches: sums of a row's values with random
// signs, divided by its length. Rows that are alike have nearly the same sums, so
// that they lie in the same cell of a grid or in neighbouring ones.
type alike struct {
	sets   []Rows
	starts []int // number of the first row of each set
	n, d   int
	short  bool // the length of a row counts too
	width  float64

	sums   [][sketchSize]float32
	places []tablePlace
	parent []int32 // a row that is alike, and comes before; itself for the first
}

// tablePlace is a row in the grid.
type tablePlace struct {
	cell [cellSize]int32
	row  int32
}

func (a *alike) row(number int32) []float32 {
	s, found := slices.BinarySearch(a.starts, int(number))
	if !found {
		s--
	}
	for a.sets[s].Len() == 0 || int(number)-a.starts[s] >= a.sets[s].Len() {
		s++ // sets without rows start at the same number
	}
	set := a.sets[s]
	return set.Row(set.Index[int(number)-a.starts[s]])
}

// sketch computes the sums of every row, sorts the rows by cell, and joins those
// that are identical.
func (a *alike) sketch(ctx context.Context) error {
	rng := rand.New(rand.NewPCG(0x616c696b65, 0))
	signs := make([][sketchSize]float64, a.d)
	for i := range signs {
		for j := range signs[i] {
			signs[i][j] = float64(2*rng.IntN(2) - 1)
		}
	}
	a.sums, a.places, a.parent = make([][sketchSize]float32, a.n), make([]tablePlace, a.n), make([]int32, a.n)
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	const block = 4096
	for s, set := range a.sets {
		for from := 0; from < set.Len(); from += block {
			group.Go(func() error {
				for i := from; i < min(from+block, set.Len()); i++ {
					number := a.starts[s] + i
					a.sums[number], a.places[number] = a.sketchRow(set.Row(set.Index[i]), signs)
					a.places[number].row, a.parent[number] = int32(number), int32(number)
				}
				return ctx.Err()
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.SortFunc(a.places, func(x, y tablePlace) int {
		if c := slices.Compare(x.cell[:], y.cell[:]); c != 0 {
			return c
		}
		if c := slices.Compare(a.sums[x.row][:], a.sums[y.row][:]); c != 0 {
			return c
		}
		return cmp.Compare(x.row, y.row)
	})
	// Identical rows lie side by side. Each is joined with the first of them here,
	// as there may be many, and takes no part in what follows.
	kept := a.places[:0]
	for _, p := range a.places {
		if n := len(kept); n > 0 {
			first := kept[n-1]
			if a.sums[first.row] == a.sums[p.row] && slices.Equal(a.row(first.row), a.row(p.row)) {
				a.parent[p.row] = first.row
				continue
			}
		}
		kept = append(kept, p)
	}
	a.places = kept
	return nil
}

func (a *alike) sketchRow(row []float32, signs [][sketchSize]float64) (sums [sketchSize]float32, at tablePlace) {
	var wide [sketchSize]float64
	squares := 0.0
	for i, v := range row {
		f, s := float64(v), &signs[i]
		squares += f * f
		for j := range wide {
			wide[j] += f * s[j]
		}
	}
	length := math.Sqrt(squares)
	if length == 0 {
		length = 1
	}
	for j := range wide {
		wide[j] /= length
	}
	if a.short {
		wide[0] = math.Log(length)
	}
	for j, v := range wide {
		sums[j] = float32(v)
		if j < cellSize {
			at.cell[j] = int32(math.Floor(v / a.width))
		}
	}
	return sums, at
}

// compare joins rows of the same and of neighbouring cells that are alike.
func (a *alike) compare(ctx context.Context) error {
	// The cells after a row's own, in the order of the rows, by what is added to
	// the first coordinates; the last one is searched from 1 below to 1 above.
	type pointer struct {
		add [cellSize]int32
		at  int
	}
	var pointers []pointer
	for i := range 27 {
		add := [cellSize]int32{int32(i/9 - 1), int32(i/3%3 - 1), int32(i%3 - 1), -1}
		if slices.Compare(add[:cellSize-1], make([]int32, cellSize-1)) > 0 {
			pointers = append(pointers, pointer{add: add})
		}
	}
	for i, p := range a.places {
		if i%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		a.join(p, a.places[i+1:], p.cell)
		for k := range pointers {
			q := &pointers[k]
			from := p.cell
			for j := range from {
				from[j] += q.add[j]
			}
			for q.at < len(a.places) && slices.Compare(a.places[q.at].cell[:], from[:]) < 0 {
				q.at++
			}
			from[cellSize-1]++
			a.join(p, a.places[q.at:], from)
		}
	}
	return nil
}

// join joins a row with those of some others that are alike, as long as these lie
// in the cell near or in one that differs by 1 in the last coordinate.
func (a *alike) join(p tablePlace, others []tablePlace, near [cellSize]int32) {
	const last = cellSize - 1
	for _, o := range others {
		if [last]int32(o.cell[:last]) != [last]int32(near[:last]) || o.cell[last] > near[last]+1 {
			return
		}
		if !a.close(p.row, o.row) {
			continue
		}
		x, y := a.find(p.row), a.find(o.row)
		if x != y && a.same(a.row(p.row), a.row(o.row)) {
			a.parent[max(x, y)] = min(x, y)
		}
	}
}

// close tells whether the sums allow that two rows are alike.
func (a *alike) close(x, y int32) bool {
	s, t := &a.sums[x], &a.sums[y]
	for j := range s {
		if math.Abs(float64(s[j]-t[j])) > a.width {
			return false
		}
	}
	return true
}

// same tells whether two rows are alike.
func (a *alike) same(x, y []float32) bool {
	var xx, yy, xy, difference float64
	for i, v := range x {
		f, g := float64(v), float64(y[i])
		xx += f * f
		yy += g * g
		xy += f * g
		difference += (f - g) * (f - g)
	}
	if a.short {
		return difference <= fewDifference*fewDifference*max(xx, yy)
	}
	if xx == 0 || yy == 0 {
		return xx == yy
	}
	return 1-xy/math.Sqrt(xx)/math.Sqrt(yy) < oneMinusCosine
}

// find returns the number that a row shares.
func (a *alike) find(row int32) int32 {
	for a.parent[row] != row {
		a.parent[row] = a.parent[a.parent[row]]
		row = a.parent[row]
	}
	return row
}
