package metrics_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"

	"pgregory.net/rapid"
)

// area is the trapezoid area under a curve.
func area(points []metrics.Point) float64 {
	sum := 0.0
	for i := 1; i < len(points); i++ {
		sum += (points[i].X - points[i-1].X) * (points[i].Y + points[i-1].Y) / 2
	}
	return sum
}

func TestAreasUnderCurvesAreTheMetrics(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		score := rapid.OneOf(rapid.Just(math.Inf(-1)), rapid.Map(rapid.IntRange(0, 6), func(i int) float64 { return float64(i) }))
		id := rapid.SliceOfN(score, 1, 30).Draw(t, "id")
		ood := rapid.SliceOfN(score, 1, 30).Draw(t, "ood")
		roc, pr := metrics.Curves(id, ood)
		if got, want := area(roc), metrics.AUROC(id, ood); math.Abs(got-want) > 1e-12 {
			t.Errorf("area under ROC %v, AUROC %v", got, want)
		}
		if got, want := area(pr), metrics.AUPROut(id, ood); math.Abs(got-want) > 1e-12 {
			t.Errorf("area under PR %v, AUPROut %v", got, want)
		}
	})
}

func TestCurvesWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, id := range [][]float64{nil, {math.NaN()}} {
		if roc, pr := metrics.Curves(id, []float64{1}); roc != nil || pr != nil {
			t.Errorf("ID %v: curves %v and %v", id, roc, pr)
		}
	}
}

func TestSelective(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		scores       []float64
		pred, labels []int
		want         []metrics.Point
	}{
		{"best first", []float64{3, 1, 2}, []int{0, 0, 0}, []int{0, 1, 0}, []metrics.Point{{1. / 3, 1}, {2. / 3, 1}, {1, 2. / 3}}},
		{"ties together", []float64{1, 1, math.Inf(-1)}, []int{0, 1, 1}, []int{0, 0, 1}, []metrics.Point{{2. / 3, .5}, {1, 2. / 3}}},
		{"no label", []float64{5, 1, math.NaN()}, []int{0, 1, 0}, []int{0, 1, -1}, []metrics.Point{{.5, 1}, {1, 1}}},
		{"NaN", []float64{math.NaN(), 1}, []int{0, 0}, []int{0, 0}, nil},
		{"nothing", nil, nil, nil, nil},
	}
	for _, test := range tests {
		if got := metrics.Selective(test.scores, test.pred, test.labels); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// normal draws n scores around a mean.
func normal(random *rand.Rand, mean float64, n int) []float64 {
	scores := make([]float64, n)
	for i := range scores {
		scores[i] = mean + random.NormFloat64()
	}
	return scores
}

// TestBootstrapCovers draws sets whose AUROC is known: Φ(μ/√2) for normal scores
// whose means differ by μ. Of 400 exact intervals of 90%, 360 ± 6 would contain it;
// percentile intervals are a little short for so few scores.
func TestBootstrapCovers(t *testing.T) {
	t.Parallel()
	const trials, apart = 400, 1.0
	truth := 0.5 * math.Erfc(-apart/2)
	random := rand.New(rand.NewPCG(1, 2))
	one, two := 0, 0
	for trial := range trials {
		id := normal(random, apart, 120)
		ood := [][]float64{normal(random, 0, 80), normal(random, 0, 100)}
		each, mean := bootstrap(200, uint64(trial), metrics.Scores{ID: id, OOD: ood})
		if i := each[0].AUROC; i.Low <= truth && truth <= i.High {
			one++
		}
		if i := mean.AUROC; i.Low <= truth && truth <= i.High {
			two++
		}
	}
	t.Logf("coverage of 95%% intervals: %.3f for a set, %.3f for the mean of two", float64(one)/trials, float64(two)/trials)
	for _, covered := range []int{one, two} {
		if covered < 330 || covered > 382 {
			t.Errorf("%d of %d intervals of 95%% hold the true AUROC %.4f", covered, trials, truth)
		}
	}
}

// bootstrap returns the intervals of one method.
func bootstrap(resamples int, seed uint64, runs ...metrics.Scores) (each []metrics.Intervals, mean metrics.Intervals) {
	b := metrics.NewBootstrap(resamples, seed)
	b.Add(runs...)
	all, err := b.Intervals(context.Background())
	if err != nil {
		panic(err)
	}
	return all[0].Each, all[0].Mean
}

func of(id []float64, ood ...[]float64) metrics.Scores { return metrics.Scores{ID: id, OOD: ood} }

// TestBootstrapOfRuns shows that runs use the same drawn images: two runs that
// rank images the same way are as uncertain as one, and two that err on other
// images are less.
func TestBootstrapOfRuns(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(8, 8))
	a, b := of(normal(random, 1, 300), normal(random, 0, 200)), of(normal(random, 1, 300), normal(random, 0, 200))
	twice := of(slices.Clone(a.ID), slices.Clone(a.OOD[0]))
	for _, scores := range [][]float64{twice.ID, twice.OOD[0]} {
		for i := range scores {
			scores[i] = math.Exp(scores[i])
		}
	}
	_, one := bootstrap(0, 0, a)
	_, same := bootstrap(0, 0, a, twice)
	_, other := bootstrap(0, 0, a, b)
	if one != same {
		t.Errorf("a run %v, with another of the same order %v", one, same)
	}
	width := func(i metrics.Interval) float64 { return i.High - i.Low }
	if ratio := width(other.AUROC) / width(one.AUROC); ratio < 0.5 || ratio > 0.9 { // √½ is expected
		t.Errorf("independent runs have an interval %v of one's", ratio)
	}
	defer func() {
		if recover() == nil {
			t.Error("runs of different images were averaged")
		}
	}()
	bootstrap(0, 0, a, of(a.ID[:3], a.OOD...))
}

// TestBootstrapIsAResampling compares the fast way, counts on one sorted curve,
// with the plain one: metrics of drawn scores.
func TestBootstrapIsAResampling(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	id, ood := normal(random, 1, 90), normal(random, 0, 70)
	for i := range id { // ties
		id[i] = math.Round(4*id[i]) / 4
	}
	for i := range ood {
		ood[i] = math.Round(4*ood[i]) / 4
	}
	id[0], ood[0] = math.Inf(-1), math.Inf(-1)
	each, _ := bootstrap(4000, 0, of(id, ood))
	draw := func(from []float64) []float64 {
		to := make([]float64, len(from))
		for i := range to {
			to[i] = from[random.IntN(len(from))]
		}
		return to
	}
	var auroc, fpr, aupr []float64
	for range 4000 {
		r := metrics.Evaluate(draw(id), draw(ood))
		auroc, fpr, aupr = append(auroc, r.AUROC), append(fpr, r.FPR95), append(aupr, r.AUPRIn)
	}
	for _, c := range []struct {
		name string
		got  metrics.Interval
		all  []float64
		tol  float64
	}{{"AUROC", each[0].AUROC, auroc, 0.006}, {"FPR95", each[0].FPR95, fpr, 0.03}, {"AUPRIn", each[0].AUPRIn, aupr, 0.008}} {
		slices.Sort(c.all)
		low, high := c.all[100], c.all[3899]
		if math.Abs(c.got.Low-low) > c.tol || math.Abs(c.got.High-high) > c.tol {
			t.Errorf("%s: %v, want about [%v, %v]", c.name, c.got, low, high)
		}
	}
}

func TestBootstrapRepeats(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	id, ood := normal(random, 1, 50), normal(random, 0, 50)
	run := func(seed uint64) metrics.Intervals {
		_, mean := bootstrap(50, seed, of(id, ood))
		return mean
	}
	if run(1) != run(1) {
		t.Error("the same seed gave other intervals")
	}
	if run(1) == run(2) {
		t.Error("another seed gave the same intervals")
	}
}

func TestBootstrapWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	nan := []float64{math.NaN()}
	each, mean := bootstrap(3, 0, of([]float64{1, 2}, nan, []float64{1}))
	if !math.IsNaN(each[0].AUROC.Low) || !math.IsNaN(mean.FPR95.High) || math.IsNaN(each[1].AUROC.Low) {
		t.Errorf("%v, %v", each, mean)
	}
	if each, mean := bootstrap(3, 0, of(nil)); len(each) != 0 || !math.IsNaN(mean.AUROC.Low) {
		t.Errorf("of nothing: %v, %v", each, mean)
	}
	if each, _ := bootstrap(3, 0, of(nil, nil)); !math.IsNaN(each[0].AUPROut.High) {
		t.Errorf("of empty sets: %v", each)
	}
}

// TestBootstrapOfMethods: the intervals of one method do not depend on the others.
func TestBootstrapOfMethods(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(6, 6))
	b := metrics.NewBootstrap(70, 0)
	var methods []metrics.Scores
	for range 3 {
		methods = append(methods, of(normal(random, 1, 60), normal(random, 0, 50), normal(random, 0, 40)))
		b.Add(methods[len(methods)-1])
	}
	all, err := b.Intervals(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range methods {
		each, mean := bootstrap(70, 0, m)
		if all[i].Mean != mean || !slices.Equal(all[i].Each, each) {
			t.Errorf("method %d: %v, alone %v", i, all[i].Mean, mean)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Intervals(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
	}
}

// BenchmarkBootstrap resamples ten methods with three runs each on the sets of
// OpenOOD's CIFAR-10 benchmark, far ones.
func BenchmarkBootstrap(b *testing.B) {
	random := rand.New(rand.NewPCG(7, 8))
	boot := metrics.NewBootstrap(64, 0)
	for range 10 {
		var runs []metrics.Scores
		for range 3 {
			runs = append(runs, of(normal(random, 2, 10_000), normal(random, 0, 70_000), normal(random, 0, 26_032), normal(random, 0, 5_640), normal(random, 0, 35_195)))
		}
		boot.Add(runs...)
	}
	for b.Loop() {
		if _, err := boot.Intervals(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDifference: a method does not differ from itself, and two that err on the same images
// are told apart by a difference that their own intervals would hide.
func TestDifference(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(11, 11))
	scores := func(n int, mean float64) (one, other []float64) {
		for range n {
			x := random.NormFloat64() + mean
			one, other = append(one, x), append(other, x+0.5*random.NormFloat64())
		}
		return one, other
	}
	var a, b metrics.Scores
	a.ID, b.ID = scores(300, 1.5)
	ood, noisy := scores(300, 0)
	a.OOD, b.OOD = [][]float64{ood}, [][]float64{noisy}
	boot := metrics.NewBootstrap(200, 0)
	boot.Add(a)
	boot.Add(b)
	each, err := boot.Intervals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := boot.Difference(0, 0).Mean.AUROC; d != (metrics.Interval{}) {
		t.Errorf("a method differs from itself by %v", d)
	}
	d, back := boot.Difference(0, 1).Mean.AUROC, boot.Difference(1, 0).Mean.AUROC
	if math.Abs(d.Low+back.High) > 1e-12 || math.Abs(d.High+back.Low) > 1e-12 {
		t.Errorf("the differences are %v and, the other way round, %v", d, back)
	}
	overlap := each[1].Mean.AUROC.High - each[0].Mean.AUROC.Low
	if want := metrics.Evaluate(a.ID, ood).AUROC - metrics.Evaluate(b.ID, noisy).AUROC; !(d.Low > 0 && d.Low < want && want < d.High && overlap > 0) {
		t.Errorf("the difference %g has the interval %v; the intervals overlap by %g", want, d, overlap)
	}
}

// TestDifferenceOfSets: a method that is far ahead on one of three sets and a little behind on
// the others is ahead on these images, and not said to be ahead on sets like these.
func TestDifferenceOfSets(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(12, 12))
	scores := func(means ...float64) (s metrics.Scores) {
		draw := func(mean float64) (all []float64) {
			for range 500 {
				all = append(all, random.NormFloat64()+mean)
			}
			return all
		}
		s.ID = draw(2)
		for _, m := range means {
			s.OOD = append(s.OOD, draw(m))
		}
		return s
	}
	boot := metrics.NewBootstrap(400, 0)
	boot.Add(scores(0, 0.2, 0.2))
	boot.Add(scores(1.5, 0.1, 0.1))
	boot.Add(scores(1.5, 1.6, 1.4))
	if _, err := boot.Intervals(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := boot.Difference(0, 1); d.Mean.AUROC.Low > 0 || d.Each[0].AUROC.Low < 0.1 {
		t.Errorf("ahead on one set of three: %v, on that set %v", d.Mean.AUROC, d.Each[0].AUROC)
	}
	if d := boot.Difference(0, 2); d.Mean.AUROC.Low < 0.1 {
		t.Errorf("ahead on all sets: %v", d.Mean.AUROC)
	}
}
