package features_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// TestAlike compares with a comparison of all pairs.
func TestAlike(t *testing.T) {
	for _, d := range []int{1, 2, 15, 16, 300} {
		for _, offset := range []float64{0, 30} { // rows that nearly point the same way
			t.Run(fmt.Sprint(d, offset), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(d), 1))
				var x []float32
				n := 0
				add := func(row []float32) {
					x = append(x, row...)
					n++
				}
				pick := func() []float32 { i := rng.IntN(n); return slices.Clone(x[i*d : (i+1)*d]) }
				for range 300 {
					row := make([]float32, d)
					for j := range row {
						row[j] = float32(offset + rng.NormFloat64())
					}
					add(row)
				}
				add(make([]float32, d))
				add(make([]float32, d))
				for range 100 {
					add(pick())
				}
				for _, noise := range []float64{1e-7, 1e-6, 1e-5, 1e-4, 5e-4, 2e-3, 1e-2} {
					for range 30 {
						row := pick()
						for j := range row {
							row[j] *= float32(1 + noise*rng.NormFloat64())
						}
						add(row)
					}
				}
				for _, scale := range []float32{1 + 1e-6, 1.001, 2, 1e20, 1e-20, -1} {
					for range 20 {
						row := pick()
						for j := range row {
							row[j] *= scale
						}
						if !slices.ContainsFunc(row, func(v float32) bool { return math.IsInf(float64(v), 0) }) {
							add(row)
						}
					}
				}
				rows := features.Rows{X: x, D: d, Labels: make([]int64, n)}
				first, second := rows, rows
				for i := range n {
					if i%3 == 0 {
						first.Index = append(first.Index, i)
					} else {
						second.Index = append(second.Index, i)
					}
				}
				got, err := features.Alike(context.Background(), first, rows, second)
				if err != nil {
					t.Fatal(err)
				}
				if want := alikePairs(first, second); !slices.Equal(slices.Concat(got[0], got[2]), want) {
					different := 0
					for i, v := range slices.Concat(got[0], got[2]) {
						if v != want[i] {
							different++
						}
					}
					t.Errorf("%d of %d rows have another number", different, n)
				}
				if len(got[1]) != 0 {
					t.Errorf("no rows have numbers %v", got[1])
				}
			})
		}
	}
}

// alikePairs is Alike by comparing all pairs of rows.
func alikePairs(sets ...features.Rows) []int {
	var rows [][]float32
	for _, s := range sets {
		for _, i := range s.Index {
			rows = append(rows, s.Row(i))
		}
	}
	numbers := make([]int, len(rows))
	for i := range numbers {
		numbers[i] = i
	}
	for i, x := range rows {
		for j, y := range rows[:i] {
			if numbers[i] != numbers[j] && pairAlike(x, y) {
				from, to := max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
				for k, n := range numbers {
					if n == from {
						numbers[k] = to
					}
				}
			}
		}
	}
	return numbers
}

func pairAlike(x, y []float32) bool {
	var xx, yy, xy, dd float64
	for i := range x {
		a, b := float64(x[i]), float64(y[i])
		xx, yy, xy, dd = xx+a*a, yy+b*b, xy+a*b, dd+(a-b)*(a-b)
	}
	if len(x) < 16 {
		return math.Sqrt(dd) <= 1e-5*math.Sqrt(max(xx, yy))
	}
	if xx == 0 || yy == 0 {
		return xx == yy
	}
	return 1-xy/math.Sqrt(xx)/math.Sqrt(yy) < 1e-6
}

// TestAlikeManyCopies: an image that many rows show takes no quadratic time.
func TestAlikeManyCopies(t *testing.T) {
	const n, d = 200000, 16
	rng := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, n*d)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		if i >= d && i < n*d/2 {
			x[i] = x[i%d]
		}
	}
	got, err := features.Alike(context.Background(), features.All(x, d, make([]int64, n)))
	if err != nil {
		t.Fatal(err)
	}
	for i, number := range got[0] {
		if want := i / (n / 2) * i; number != want {
			t.Fatalf("row %d has number %d, want %d", i, number, want)
		}
	}
}
