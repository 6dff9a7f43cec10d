package discovery

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"
)

const dim = 30

// draws of rows: known ones are normal, new ones lie apart in one direction. Their scores
// are the negative length, as a detector's that knows nothing of the direction.
type world struct{ random *rand.Rand }

func (w world) rows(known, fresh int) Rows {
	var x [][]float32
	r := Rows{N: known + fresh, Row: func(i int) []float32 { return x[i] }}
	for i := range r.N {
		row := make([]float32, dim)
		var sum float64
		for j := range row {
			v := w.random.NormFloat64()
			if i >= known && j == 0 {
				v += 2
			}
			row[j] = float32(v)
			sum += v * v
		}
		x, r.Scores = append(x, row), append(r.Scores, -sum)
	}
	return r
}

func (w world) input(calibration, known, fresh int, seed uint64) Input {
	return Input{D: dim, Training: w.rows(100, 0), Validation: w.rows(100, 0), Calibration: w.rows(calibration, 0), Folder: w.rows(known, fresh), Seed: seed}
}

// falseDiscoveries returns the share of known rows among those that are called new.
func falseDiscoveries(ranks []int, n, known int, alpha float64) (share float64, found int) {
	wrong := 0
	for i, q := range QValues(ranks, n) {
		if q <= alpha {
			found++
			if i < known {
				wrong++
			}
		}
	}
	return float64(wrong) / float64(max(1, found)), found
}

// TestPromise: with nothing new and with some, the mean share of false discoveries is what
// was set at most, and the bounds all hold in 95% of the folders; scores that know which rows
// are calibration rows break the promise.
func TestPromise(t *testing.T) {
	const n, m, alpha, folders = 519, 100, .2, 500
	for _, fresh := range []int{0, 1, 10, 30} {
		var mean, leaky, chosen float64
		found, broken := 0, 0
		for draw := range folders {
			w := world{rand.New(rand.NewPCG(uint64(draw), uint64(fresh)))}
			in := w.input(n, m-fresh, fresh, uint64(draw))
			learned, err := Learn(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			ranks := PValues(learned.Calibration, learned.Folder)
			share, k := falseDiscoveries(ranks, n, m-fresh, alpha)
			mean, found = mean+share/folders, found+k
			c := Certify(ranks, n)
			wrong := c.New > fresh
			for _, b := range c.Bounds {
				known := 0
				for _, r := range ranks[:m-fresh] {
					if r <= b.Rank {
						known++
					}
				}
				wrong = wrong || known > b.Known
			}
			order := w.random.Perm(m)
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(learned.Ranked[a], learned.Ranked[b]) })
			listed, known := make([]int, m), 0
			for i, row := range order {
				listed[i] = ranks[row]
			}
			for i, most := range c.Known(listed) {
				if order[i] < m-fresh {
					known++
				}
				wrong = wrong || known > most
			}
			if wrong {
				broken++
			}
			// Not allowed: calibration rows among those that the folder is told from.
			leak := in
			leak.Training = Rows{N: in.Training.N + n, Row: func(i int) []float32 {
				if i < in.Training.N {
					return in.Training.Row(i)
				}
				return in.Calibration.Row(i - in.Training.N)
			}}
			p := newPool(leak)
			if _, err := p.learn(t.Context()); err != nil {
				t.Fatal(err)
			}
			bad := p.scores(2)
			share, _ = falseDiscoveries(PValues(bad.Calibration, bad.Folder), n, m-fresh, alpha)
			leaky += share / folders
			// Nor is: the weight by how many are found.
			p = newPool(in)
			if _, err := p.learn(t.Context()); err != nil {
				t.Fatal(err)
			}
			most, worst := 0, 0.0
			for _, weight := range weights {
				bad := p.scores(weight)
				if share, k := falseDiscoveries(PValues(bad.Calibration, bad.Folder), n, m-fresh, alpha); k > most {
					most, worst = k, share
				}
			}
			chosen += worst / folders
		}
		t.Logf("%d new of %d: false discoveries %.3f, %.1f found, bounds broken in %.1f%%; calibration rows as negatives %.3f, the weight by what is found %.3f",
			fresh, m, mean, float64(found)/folders, 100*float64(broken)/folders, leaky, chosen)
		const error = .018 // of a mean over the folders
		if mean > alpha+2*error {
			t.Errorf("%d new: %.3f are known, and %.2f were promised", fresh, mean, alpha)
		}
		if share := float64(broken) / folders; share > .05+.03 {
			t.Errorf("%d new: bounds do not hold in %.3f", fresh, share)
		}
		if leaky < alpha+2*error || chosen < alpha+2*error {
			t.Errorf("procedures that see too much keep the promise in this test: %.3f and %.3f", leaky, chosen)
		}
	}
}

// TestBounds: with nothing new, and ranks as chance makes them, the bounds hold together as
// often as they say, and fail hardly less often.
func TestBounds(t *testing.T) {
	const folders = 2000
	for _, c := range []struct{ n, m int }{{20, 300}, {80, 100}, {80, 300}, {80, 1000}, {519, 100}} {
		random := rand.New(rand.NewPCG(uint64(c.n), uint64(c.m)))
		calibration, folder := make([]float64, c.n), make([]float64, c.m)
		broken := 0
		for range folders {
			for _, all := range [][]float64{calibration, folder} {
				for i := range all {
					all[i] = random.Float64()
				}
			}
			if Certify(PValues(calibration, folder), c.n).New > 0 {
				broken++
			}
		}
		const error = .005 // of a share of the folders, and as much of the draws of the bounds
		if share := float64(broken) / folders; math.Abs(share-.05) > 4*error {
			t.Errorf("%d calibration rows, %d rows: bounds do not hold in %.4f", c.n, c.m, share)
		}
	}
}

// TestFrozen: a score that is not learned gives plain p-values, those of the single score.
// TestWitness says what becomes of them.
func TestFrozen(t *testing.T) {
	w := world{rand.New(rand.NewPCG(1, 2))}
	in := w.input(200, 70, 30, 0)
	in.Validation.N, in.Validation.Scores = LeastValidation-1, nil
	learned, err := Learn(t.Context(), in)
	if err != nil || learned.Weight != 0 || !slices.Equal(learned.Folder, in.Folder.Scores) || !slices.Equal(learned.Ranked, in.Folder.Scores) {
		t.Fatalf("weight %g, %v", learned.Weight, err)
	}
	for i, rank := range PValues(learned.Calibration, learned.Folder) {
		below := 1
		for _, c := range learned.Calibration {
			if c <= learned.Folder[i] {
				below++
			}
		}
		if below != rank {
			t.Fatalf("rank %d, want %d", rank, below)
		}
	}
}

// TestWitness: q-values are those of the Python package nonconform, and of the rows as many
// are new at least as by one of its certificates or more, but hardly more than by the best.
func TestWitness(t *testing.T) {
	text, err := os.ReadFile("testdata/nonconform.json") // by scripts/nonconform_golden.py
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		N     int
		Ranks []int
		Q     map[int]float64
		New   map[string]int
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 6 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		for i, q := range QValues(c.Ranks, c.N) {
			if want := c.Q[c.Ranks[i]]; math.Abs(min(1, q)-want) > 1e-11 {
				t.Fatalf("%d calibration rows, %d rows: rank %d has q = %g, want %g", c.N, len(c.Ranks), c.Ranks[i], q, want)
			}
		}
		others := slices.Sorted(maps.Values(c.New))
		got := Certify(c.Ranks, c.N).New
		t.Logf("%d calibration rows, %d rows: %d are new at least, nonconform %v", c.N, len(c.Ranks), got, c.New)
		if most := others[len(others)-1]; got < others[0] || got > most+len(c.Ranks)/50 {
			t.Errorf("%d calibration rows, %d rows: %d are new at least, by nonconform %d", c.N, len(c.Ranks), got, others)
		}
	}
}

// TestOrder: neither the order of the rows nor which of them are calibration rows changes
// the score of a row, bit for bit, and copies have one score.
func TestOrder(t *testing.T) {
	w := world{rand.New(rand.NewPCG(5, 6))}
	in := w.input(80, 60, 40, 3)
	copied, row := in.Folder.Row(3), in.Folder.Row
	in.Folder.Row = func(i int) []float32 {
		if i == 7 {
			return copied
		}
		return row(i)
	}
	in.Folder.Scores[7] = in.Folder.Scores[3]
	one, err := Learn(t.Context(), in)
	if err != nil || one.Weight == 0 {
		t.Fatal(one, err)
	}
	workers := runtime.GOMAXPROCS(1)
	alone, err := Learn(t.Context(), in)
	runtime.GOMAXPROCS(workers)
	if err != nil || !reflect.DeepEqual(alone, one) {
		t.Errorf("one processor: %+v, %v, want %+v", alone, err, one)
	}
	if one.Folder[7] != one.Folder[3] {
		t.Errorf("copies: %g and %g", one.Folder[7], one.Folder[3])
	}
	// All rows in another order, others of them calibrating.
	was := in
	order := w.random.Perm(180)
	all := func(i int) (x []float32, score, want float64) {
		if i < 80 {
			return was.Calibration.Row(i), was.Calibration.Scores[i], one.Calibration[i]
		}
		return was.Folder.Row(i - 80), was.Folder.Scores[i-80], one.Folder[i-80]
	}
	part := func(at []int) (r Rows) {
		r = Rows{N: len(at), Row: func(i int) []float32 { x, _, _ := all(at[i]); return x }}
		for _, i := range at {
			_, score, _ := all(i)
			r.Scores = append(r.Scores, score)
		}
		return r
	}
	in.Calibration, in.Folder = part(order[:80]), part(order[80:])
	two, err := Learn(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range slices.Concat(two.Calibration, two.Folder) {
		if _, _, want := all(order[i]); got != want {
			t.Fatalf("row %d: %g, want %g", order[i], got, want)
		}
	}
}

// TestManyKinds: where new rows lie apart in all directions, so that what is learned is of no
// use, ranking by it costs next to nothing.
func TestManyKinds(t *testing.T) {
	const draws, known, wide = 40, 70, 1.3
	var loss float64
	for draw := range draws {
		w := world{rand.New(rand.NewPCG(uint64(draw), 99))}
		in := w.input(80, known, 0, uint64(draw))
		old, fresh := in.Folder, w.rows(30, 0)
		for i := range fresh.N {
			for j := range fresh.Row(i) {
				fresh.Row(i)[j] *= wide
			}
			fresh.Scores[i] *= wide * wide
		}
		in.Folder = Rows{N: old.N + fresh.N, Scores: slices.Concat(old.Scores, fresh.Scores), Row: func(i int) []float32 {
			if i < old.N {
				return old.Row(i)
			}
			return fresh.Row(i - old.N)
		}}
		learned, err := Learn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		auroc := func(s []float64) float64 { return metrics.AUROC(s[:known], s[known:]) }
		loss += (auroc(in.Folder.Scores) - auroc(learned.Ranked)) / draws
	}
	if loss > .003 {
		t.Errorf("%.4f of AUROC are lost", loss)
	}
}

// TestSmallFolders: the same excess has the less weight the smaller a folder is, since chance
// is larger there.
func TestSmallFolders(t *testing.T) {
	rows := func(n, beyond int, score float64) (rows []pooled) {
		for i := range n {
			l := float64(i) / float64(n)
			if i < beyond {
				l = 2
			}
			rows = append(rows, pooled{ranked: l, score: l + score})
		}
		return rows
	}
	of := func(r pooled) float64 { return r.ranked }
	p := pool{scale: 1}
	for _, test := range []struct {
		folder int
		of     float64 // the weight of a large folder
	}{{120, .4}, {150, .5}, {300, 1}, {1200, 1}} {
		known, folder := rows(10, 0, 0), rows(test.folder, test.folder/3, 1) // the sum says nothing
		e, _ := excess(each(known, of), each(folder, of))
		if got, want := p.weight(known, folder), min(mostRank, test.of*rankSlope*e); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d rows: weight %g, want %g", test.folder, got, want)
		}
	}
}

// TestFew: nothing is promised, and nothing fails, with few rows.
func TestFew(t *testing.T) {
	w := world{rand.New(rand.NewPCG(7, 8))}
	for _, n := range []int{0, 1, 2, 9} {
		for _, m := range []int{0, 1, 2, 30} {
			in := w.input(n, m, 0, 0)
			learned, err := Learn(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			ranks := PValues(learned.Calibration, learned.Folder)
			for _, q := range QValues(ranks, n) {
				if !(q > 0) || math.IsInf(q, 0) {
					t.Errorf("%d calibration rows, %d rows: q = %g", n, m, q)
				}
			}
			c := Certify(ranks, n)
			if c.New > m || n == 0 && c.New > 0 {
				t.Errorf("%d calibration rows, %d rows: %d are new", n, m, c.New)
			}
		}
	}
	if got := LeastFound(150, 1000, .1); got != 67 {
		t.Errorf("%d must be found, want 67", got)
	}
}
