package detector

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestByClassKeepsItsPromise: of two classes whose scores differ, each has its share
// of false alarms, which by one threshold it would not. A third has too few
// calibration images.
func TestByClassKeepsItsPromise(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 9))
	draw := func() (float64, int) {
		switch c := rng.IntN(40); {
		case c < 20:
			return rng.NormFloat64(), 0
		case c < 39:
			return 3*rng.NormFloat64() - 1, 1
		default:
			return rng.NormFloat64() - 2, 2
		}
	}
	var flagged, common, low, all [3]float64
	for range 300 {
		d := &Detector{Classes: []string{"a", "b", "c"}, TargetTPR: 0.9}
		var scores []float64
		var labels []int
		for range 200 {
			s, c := draw()
			scores, labels = append(scores, s), append(labels, c)
		}
		d.CalibrationScores = slices.Sorted(slices.Values(scores))
		d.Threshold = Threshold(d.CalibrationScores, d.TargetTPR)
		if few := d.CalibrateByClass(scores, labels); (len(d.ByClass[2]) == 0) != slices.Contains(few, 2) || slices.Contains(few, 0) {
			t.Fatalf("classes %v have too few of %d, %d and %d", few, len(d.ByClass[0]), len(d.ByClass[1]), len(d.ByClass[2]))
		}
		for range 100 {
			s, c := draw()
			logs := []float64{-5, -5, -5}
			logs[c] = -1
			v := d.verdict(logs, s)
			all[c]++
			if v.OOD {
				flagged[c]++
			}
			if s < d.Threshold {
				common[c]++
			}
			if v.PValue <= 0.2 {
				low[c]++
			}
		}
	}
	for c := range 2 {
		if share := flagged[c] / all[c]; share > 0.1 || share < 0.08 { // ⌊0.1·(n + 1)⌋ / (n + 1)
			t.Errorf("class %d: %.3f are flagged, promised 0.1", c, share)
		}
		if share := low[c] / all[c]; share > 0.21 || share < 0.18 {
			t.Errorf("class %d: %.3f of the p-values are at most 0.2", c, share)
		}
	}
	if common[0]/all[0] > 0.05 || common[1]/all[1] < 0.15 {
		t.Errorf("by one threshold %.3f and %.3f are flagged: the classes do not differ", common[0]/all[0], common[1]/all[1])
	}
}

// TestFitPlattBends: low confidences are right more often than one slope can say.
func TestFitPlattBends(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 6))
	truth := Platt{Slope: 0.2, High: 1.2, Offset: 0.1}
	var logPhi []float64
	var right []bool
	for range 20000 {
		z := 2 + 4*rng.NormFloat64()
		l := -math.Log1p(math.Exp(-z))
		logPhi, right = append(logPhi, l), append(right, rng.Float64() < truth.chance(l))
	}
	p := FitPlatt(logPhi, right)
	for _, phi := range []float64{0.01, 0.05, 0.2, 0.5, 0.65, 0.9, 0.99} {
		if got, want := p.chance(math.Log(phi)), truth.chance(math.Log(phi)); math.Abs(got-want) > 0.02 {
			t.Errorf("φ = %g has the chance %.3f, want %.3f", phi, got, want)
		}
	}
}

// TestConfidenceVersion: a file whose map an older program would misread has a version
// that older ones refuse; others keep theirs.
func TestConfidenceVersion(t *testing.T) {
	t.Parallel()
	d := detectorOf(1)
	for want, p := range map[string]Platt{`"version":4`: {Slope: 0.5, Offset: 1}, `"version":5`: {Slope: 0.5, High: 0.7}} {
		d.Confidence = &p
		if text, _, err := d.encode(); err != nil || !strings.Contains(text, want) {
			t.Errorf("with %+v the file lacks %s, %v", p, want, err)
		}
	}
}

func TestByClassRoundTrip(t *testing.T) {
	t.Parallel()
	d := detectorOf(1)
	d.TargetTPR, d.Confidence = 0.7, &Platt{0.5, -0.25, 0.75}
	if few := d.CalibrateByClass([]float64{5, 1, 3, -1, 2, 0, 7}, []int{0, 0, 0, 1, 0, 2, 1}); !slices.Equal(few, []int{1, 2}) {
		t.Fatalf("classes %v have too few", few)
	}
	got, err := Load(save(t, d))
	if err != nil {
		t.Fatal(err)
	}
	x := []float32{1, 2, 3, 4, 0, 0, 0, 0, -1, 1, 0, 2}
	if want := verdictsOf(t, d, x); !slices.Equal(verdictsOf(t, got, x), want) {
		t.Errorf("verdicts %v, want %v", verdictsOf(t, got, x), want)
	}
	// Class 0 by its own scores 1 2 3 5, the others together by -1 0 7.
	for c, want := range []float64{1, -1, -1} {
		if got.ThresholdOf(c) != want {
			t.Errorf("threshold of class %d: %g, want %g", c, got.ThresholdOf(c), want)
		}
	}
	if err := got.SetMaxFalseAlarms(0.4); err != nil {
		t.Fatal(err)
	}
	for c, want := range []float64{2, -1, -1} {
		if got.ThresholdOf(c) != want {
			t.Errorf("threshold of class %d at 40%%: %g, want %g", c, got.ThresholdOf(c), want)
		}
	}
	got.SetThreshold(9)
	if got.ThresholdOf(0) != 9 || got.ThresholdOf(2) != 9 {
		t.Error("the classes keep thresholds of their own")
	}
}

// TestFitPlatt: confidences that are too high become probabilities; their order
// stays, far away they are 0, and near they are what images that were fitted on have.
func TestFitPlatt(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 5))
	var logPhi []float64
	var right []bool
	for range 20000 {
		z := 3 + 3*rng.NormFloat64()
		logPhi = append(logPhi, -math.Log1p(math.Exp(-z)))
		right = append(right, rng.Float64() < 1/(1+math.Exp(-0.5*z+0.4)))
	}
	p := FitPlatt(logPhi, right)
	if p == nil {
		t.Fatal("nothing is fitted")
	}
	for z := -3.; z < 9; z++ {
		if got, want := p.chance(-math.Log1p(math.Exp(-z))), 1/(1+math.Exp(-0.5*z+0.4)); math.Abs(got-want) > 0.03 {
			t.Errorf("logit %g has the chance %g, want %g", z, got, want)
		}
	}
	before := 0.0
	for _, l := range []float64{math.Inf(-1), -1e6, -800, -3, -1, -1e-3, -1e-12, 0} {
		c := p.chance(l)
		if !(c >= before && c <= 1) || l == 0 && (c < 0.99 || c != p.chance(MostLogPhi)) || l <= -1e6 && c != 0 {
			t.Errorf("log φ %g has the chance %g, a lower one %g", l, c, before)
		}
		before = c
	}
	// All right, which a likelihood alone would answer with an infinite offset; and
	// φ that says the opposite.
	if p := FitPlatt(make([]float64, 50), slices.Repeat([]bool{true}, 50)); p == nil || p.chance(math.Log(0.9)) < 0.9 {
		t.Errorf("of images that are all right: %+v", p)
	}
	for i := range right {
		right[i] = logPhi[i] < -0.5
	}
	if p := FitPlatt(logPhi, right); p != nil {
		t.Errorf("of confidences that are wrong: %+v", p)
	}
	if p := FitPlatt(nil, nil); p == nil || *p != (Platt{Slope: 1, High: 1}) {
		t.Errorf("of no images: %+v", p)
	}
}
