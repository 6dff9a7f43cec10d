package posthoc_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestScoreAll holds KNN and relations by two heads, with few classes and many,
// against their definitions and each against itself alone, with less memory and by coarse
// products.
func TestScoreAll(t *testing.T) {
	const n, queries, d = 5000, 150, 24
	for _, classes := range []int{5, 100} {
		t.Run(fmt.Sprint(classes), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(classes)))
			features := func(rows int) []float32 {
				x := make([]float32, rows*d)
				for i := range x {
					x[i] = float32(max(rng.NormFloat64()+0.3, 0))
				}
				clear(x[:d]) // a row without direction
				return x
			}
			logits := func(rows int) []float64 {
				z := make([]float64, rows*classes)
				for i := range z {
					z[i] = 3 * rng.NormFloat64()
				}
				return z
			}
			bank, x := features(n), features(queries)
			data := posthoc.NewData(bank, d, nil, classes)
			scores := make([]posthoc.Scorer, 3)
			batches := make([]posthoc.Batch, 3)
			want := make([][]float64, 3)
			var err error
			if scores[1], err = posthoc.FitKNN(data, 7); err != nil {
				t.Fatal(err)
			}
			batches[1] = posthoc.Batch{Features: x}
			if want[1], err = alone(scores[1], batches[1], queries); err != nil {
				t.Fatal(err)
			}
			for _, i := range []int{0, 2} {
				known, asked := logits(n), logits(queries)
				data := data.WithLogits(posthoc.Matrix(known, classes))
				if scores[i], err = posthoc.FitRelation(data); err != nil {
					t.Fatal(err)
				}
				batches[i] = posthoc.Batch{Features: x, Logits: asked}
				want[i] = relations(bank, x, known, asked, d, classes)
			}
			var first [][]float64
			defer func(least int) { *posthoc.LeastCoarse = least }(*posthoc.LeastCoarse)
			for i, memory := range []int64{0, 1 << 20, 1 << 20, 1 << 20, 1 << 20} {
				*posthoc.LeastCoarse = []int{1000, 1000, 10, 10, 10}[i] // products in float32, and coarse
				if i >= 3 {
					defer kernels.BytesInGo(i == 4)()
				}
				for _, s := range scores {
					switch s := s.(type) {
					case *posthoc.KNN:
						s.Memory = memory
					case *posthoc.Relation:
						s.Memory = memory
					}
				}
				got := make([][]float64, len(scores))
				for i := range got {
					got[i] = make([]float64, queries)
				}
				if err := posthoc.ScoreAll(context.Background(), got, scores, batches); err != nil {
					t.Fatal(err)
				}
				for i, s := range scores {
					tolerance := 1e-12
					if i != 1 && classes == 5 { // small relations are those of float32 products
						tolerance = 1e-9
					}
					for q, v := range got[i] {
						if !(math.Abs(v-want[i][q]) <= tolerance*math.Abs(want[i][q])) {
							t.Fatalf("memory %d: score %d of query %d is %v, want %v", memory, i, q, v, want[i][q])
						}
					}
					single, err := alone(s, batches[i], queries)
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(single, got[i]) {
						t.Fatalf("memory %d: score %d is %v alone, else %v", memory, i, single, got[i])
					}
				}
				if first == nil {
					first = got
				}
				if !slices.EqualFunc(got, first, slices.Equal) {
					t.Errorf("run %d, with memory %d, gives other scores", i, memory)
				}
			}
		})
	}
}

// TestRelationsMemory: relations that count take no memory, not even those by a second
// head, by whose classes the rows are not ordered. Here all count.
func TestRelationsMemory(t *testing.T) {
	const n, queries, d, classes = 1 << 12, 1 << 7, 4, 70
	bank := make([]float32, n*d)
	for i := range bank {
		bank[i] = 1
	}
	logits := func(rows, class int) []float64 {
		z := make([]float64, rows*classes)
		for i := range rows {
			z[i*classes+class] = 100
		}
		return z
	}
	data := posthoc.NewData(bank, d, nil, classes)
	allocated := func(heads int) uint64 {
		var scores []posthoc.Scorer
		var batches []posthoc.Batch
		var got [][]float64
		for class := range heads {
			s, err := posthoc.FitRelation(data.WithLogits(posthoc.Matrix(logits(n, class), classes)))
			if err != nil {
				t.Fatal(err)
			}
			scores, batches = append(scores, s), append(batches, posthoc.Batch{Features: bank[:queries*d], Logits: logits(queries, class)})
			got = append(got, make([]float64, queries))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := posthoc.ScoreAll(t.Context(), got, scores, batches); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		for _, dst := range got {
			if dst[0] != n {
				t.Fatalf("a query that is all training rows scores %v, want %d", dst[0], n)
			}
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if one, two := allocated(1), allocated(2); two > 2*one {
		t.Errorf("a second head takes %d bytes, the first %d", two-one, one)
	}
}

// TestRelationOfRoundedBytes has relations that count and that products of bytes put below
// the threshold, because of how the query's probabilities are rounded.
func TestRelationOfRoundedBytes(t *testing.T) {
	const n, d, classes = 1000, 4, 100
	bank, known := slices.Repeat([]float32{1}, n*d), make([]float64, n*classes)
	for i := range known {
		known[i] = math.Log(24)
		if i%classes == 0 {
			known[i] = math.Log(127)
		}
	}
	asked := make([]float64, classes)
	asked[0] = math.Log(classes - 1) // a half of the probability
	defer kernels.BytesInGo(false)()
	defer func(least int) { *posthoc.LeastCoarse = least }(*posthoc.LeastCoarse)
	*posthoc.LeastCoarse = 1
	s, err := posthoc.FitRelation(posthoc.NewData(bank, d, nil, classes).WithLogits(posthoc.Matrix(known, classes)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := alone(s, posthoc.Batch{Features: bank[:d], Logits: asked}, 1)
	if want := n * (127./2 + 24./2) / (127 + 24*(classes-1)); err != nil || !(math.Abs(got[0]-want) <= 1e-12*want) {
		t.Errorf("%v, want %v: %v", got, want, err)
	}
}

// TestRelationToNothing: where no relation counts the score is 0, and no rounding
// of what was left out.
func TestRelationToNothing(t *testing.T) {
	const n, d, classes = 1000, 24, 3
	rng := rand.New(rand.NewPCG(1, 2))
	bank, known := make([]float32, n*d), make([]float64, n*classes)
	for i := range bank {
		bank[i] = float32(rng.NormFloat64())
		if i%d == 0 { // of which the query has nothing else
			bank[i] *= 0.01
		}
	}
	x := make([]float32, d)
	x[0] = 1
	s, err := posthoc.FitRelation(posthoc.NewData(bank, d, nil, classes).WithLogits(posthoc.Matrix(known, classes)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := alone(s, posthoc.Batch{Features: x, Logits: make([]float64, classes)}, 1)
	if want := relations(bank, x, known, make([]float64, classes), d, classes); err != nil || got[0] != want[0] || want[0] != 0 {
		t.Errorf("%v, want %v: %v", got, want, err)
	}
}

// TestRelationOfNaN: a query with NaN scores NaN, and a training row with NaN is
// related to nothing, with few classes as with many.
func TestRelationOfNaN(t *testing.T) {
	const n, d = 70, 4
	for _, classes := range []int{3, 70} {
		in := problem(n, d, classes, 3)
		b := whole(in.Train)
		z := in.Train.Logits(0, n)
		z[5*classes+1] = math.NaN() // of row 5
		got := score(t, fit(t, "relation", posthoc.Input{Train: in.Train.WithLogits(posthoc.Matrix(z, classes))}), n, b)
		some := slices.Concat(in.Train.Features(0, 5), in.Train.Features(6, n))
		known := slices.Concat(z[:5*classes], z[6*classes:])
		want := relations(some, b.Features, known, b.Logits, d, classes)
		for row, v := range got {
			if !(math.Abs(v-want[row]) <= 1e-6) {
				t.Fatalf("%d classes: row %d scores %v, without the row of NaN %v", classes, row, v, want[row])
			}
		}
		s := fit(t, "relation", in)
		want = score(t, s, n, b)
		b.Features = slices.Clone(b.Features)
		b.Features[1], b.Logits[3*classes] = float32(math.NaN()), math.NaN() // of rows 0 and 3
		for row, v := range score(t, s, n, b) {
			if nan := row == 0 || row == 3; math.IsNaN(v) != nan || !nan && v != want[row] {
				t.Errorf("%d classes: row %d scores %v, all finite %v", classes, row, v, want[row])
			}
		}
	}
}

func alone(s posthoc.Scorer, b posthoc.Batch, n int) ([]float64, error) {
	dst := make([]float64, n)
	return dst, s.Score(context.Background(), dst, b)
}

// relations is Relation by its definition.
func relations(bank, x []float32, known, asked []float64, d, classes int) []float64 {
	softmax := func(z []float64) []float64 {
		p := make([]float64, classes)
		var sum float64
		for c, v := range z {
			p[c] = math.Exp(v)
			sum += p[c]
		}
		for c := range p {
			p[c] /= sum
		}
		return p
	}
	inner := func(a, b []float32) (sum float64) {
		for i, v := range a {
			sum += float64(v) * float64(b[i])
		}
		return sum
	}
	var p [][]float64
	for z := range slices.Chunk(known, classes) {
		p = append(p, softmax(z))
	}
	var scores []float64
	for i := 0; i < len(x)/d; i++ {
		f, own := x[i*d:(i+1)*d], softmax(asked[i*classes:(i+1)*classes])
		var score float64
		for j := range p {
			g := bank[j*d : (j+1)*d]
			var like float64
			for c, v := range own {
				like += v * p[j][c]
			}
			if k := inner(f, g) / math.Sqrt(inner(f, f)*inner(g, g)) * like; k > 0.03 {
				score += k
			}
		}
		scores = append(scores, score)
	}
	return scores
}
