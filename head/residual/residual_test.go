package head

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mlrbfn/conditioning"
)

// drawOpen draws an open head with parameters in a range where nothing
// saturates, projections among them.
func drawOpen(t *rapid.T) *MLRBFN {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	cfg, err := Config{
		Open: true, Layers: rapid.IntRange(1, 4).Draw(t, "layers"), Centroids: rapid.IntRange(1, 6).Draw(t, "N"),
		Projection: rapid.IntRange(0, 5).Draw(t, "o"), Recovery: rapid.SampledFrom([]float64{1, 1.1, 1.5}).Draw(t, "recovery"),
	}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	d, classes := rapid.IntRange(1, 6).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C")
	m := newHead(cfg, d, classes)
	normal := func(to []float32, mean, deviation float64) {
		for i := range to {
			to[i] = float32(mean + deviation*rng.NormFloat64())
		}
	}
	for i := range m.Layers {
		l := &m.Layers[i]
		l.InitBeta = -0.6
		normal(l.Centroids, 0, 0.7)
		normal(l.Projections, 0, 0.5)
		normal(l.Beta, -0.6, 0.3)
	}
	m.Density = &Density{D: d, Means: make([]float32, d*classes), Middle: 0.5 * float64(d), Radius: 2 * float64(d)}
	normal(m.Density.Means, 0, 1)
	if rapid.Bool().Draw(t, "score") {
		m.Score = &Score{Scale{-float64(d), 1}, Scale{-0.5, 0.2}}
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGradientsOfOpenHeadsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawOpen(t)
		const n = 3
		e, classes := m.Layers[0].In, m.Classes()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rows"), 2))
		u, logDep := make([]float64, n*e), make([]float64, n)
		for i := range u {
			u[i] = rng.NormFloat64()
		}
		for i := range logDep {
			logDep[i] = -rng.ExpFloat64()
		}
		rows := func() (x []float64) {
			for i, dep := range logDep {
				x = append(append(x, u[i*e:(i+1)*e]...), dep)
			}
			return x
		}
		labels := []int{0, classes - 1, classes / 2}
		net := networkOf[float64](m, n)
		net.gInput = make([]float64, n*e)
		net.step(rows(), labels)
		checkGradients(t, append(net.params(), param[float64]{u, turned(net.gInput, e)}), func() float64 {
			net.refresh()
			net.forward(rows(), n)
			return logBCE(net.last().weights, labels, nil)
		})
	})
}

// logSum returns log Σ_c φ_c of a row.
func logSum(logPhi []float64) float64 {
	top := slices.Max(logPhi)
	var sum float64
	for _, l := range logPhi {
		sum += math.Exp(l - top)
	}
	return top + math.Log(sum)
}

// TestOpenConfidenceIsBounded states what is proved in the package's text:
// confidences add up to at most 1 and to at most what the distance from the
// data allows, so that they go to 0 in every direction.
func TestOpenConfidenceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawOpen(t)
		x := drawRows(t, m, 70) // more than a batch
		d, classes := m.Dim(), m.Classes()
		slack := 0.0 // what the hidden layers may give back of the depression
		for _, l := range m.Layers[:len(m.Layers)-1] {
			widths, initial := l.Widths()
			slack += math.Log(m.Recovery * slices.Max(widths) / initial)
		}
		if len(m.Layers) > 1 {
			slack += math.Log(m.Recovery)
		}
		for _, times := range []float32{1, 10, 100, 1000, 1e30} {
			scaled := make([]float32, len(x))
			for i, v := range x {
				scaled[i] = times * v
			}
			logPhi := m.LogConfidences(scaled)
			for i := range 70 {
				row := logPhi[i*classes : (i+1)*classes]
				nearest := math.Inf(1)
				for c := range classes {
					z, mean := scaled[i*d:(i+1)*d], m.Density.Means[c*d:(c+1)*d]
					wide, centre := make([]float64, d), make([]float64, d)
					convert(wide, z)
					convert(centre, mean)
					nearest = min(nearest, distance(2, wide, centre))
				}
				allowed := min(0, m.Density.logDep(nearest)+slack)
				if times == 1e30 && allowed > -1e6 {
					t.Fatalf("row %d times %g may have log Σφ %g", i, times, allowed)
				}
				if sum := logSum(row); !(sum <= allowed+1e-9*(1+math.Abs(allowed))) || slices.ContainsFunc(row, func(l float64) bool { return l > 0 }) {
					t.Fatalf("row %d times %g: log Σφ is %g, allowed %g; log φ %v", i, times, sum, allowed, row)
				}
			}
		}
	})
}

// TestOpenOddRows feeds what is no number: it must neither spoil the rows
// beside it nor pass for in-distribution.
func TestOpenOddRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawOpen(t)
		d, classes := m.Dim(), m.Classes()
		if rapid.Bool().Draw(t, "conditioned") {
			m.Conditioning = &conditioning.Conditioning{
				Options: conditioning.Options{L2: rapid.Bool().Draw(t, "L2")}, Mean: make([]float32, d), Scale: slices.Repeat([]float32{1}, d),
			}
		}
		x := drawRows(t, m, 5)
		wantPhi, wantScores := m.Outputs(x)
		x[2*d+rapid.IntRange(0, d-1).Draw(t, "at")] = rapid.SampledFrom([]float32{
			float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
		}).Draw(t, "odd")
		logPhi, scores := m.Outputs(x)
		if slices.ContainsFunc(logPhi[2*classes:3*classes], func(l float64) bool { return l > -700 }) || scores[2] > -700 {
			t.Fatalf("log φ %v and score %g of what is no number", logPhi[2*classes:3*classes], scores[2])
		}
		for _, i := range []int{0, 1, 3, 4} {
			if scores[i] != wantScores[i] || !slices.Equal(logPhi[i*classes:(i+1)*classes], wantPhi[i*classes:(i+1)*classes]) {
				t.Fatalf("row %d changed beside it", i)
			}
		}
	})
}

func TestOpenClassesPermute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawOpen(t)
		classes, e := m.Classes(), m.Layers[0].In
		x := drawRows(t, m, 9)
		want, wantScores := m.Outputs(x)
		order := make([]int, classes)
		for c := range order {
			order[c] = c
		}
		order = rapid.Permutation(order).Draw(t, "order")
		permuted := *m
		permuted.Layers = slices.Clone(m.Layers)
		last := &permuted.Layers[len(permuted.Layers)-1]
		from := *last
		last.Centroids, last.Beta = slices.Clone(from.Centroids), slices.Clone(from.Beta)
		for c, old := range order {
			copy(last.Centroids[c*e:(c+1)*e], from.Centroids[old*e:(old+1)*e])
			last.Beta[c] = from.Beta[old]
		}
		got, scores := permuted.Outputs(x)
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }
		for i := range 9 {
			for c, old := range order {
				if !near(got[i*classes+c], want[i*classes+old]) {
					t.Fatalf("row %d: class %d, which was %d, has %g instead of %g", i, c, old, got[i*classes+c], want[i*classes+old])
				}
			}
			if !near(scores[i], wantScores[i]) {
				t.Fatalf("row %d: score %g instead of %g", i, scores[i], wantScores[i])
			}
		}
	})
}

// TestOpenStartsAsItsClosedForm: before the first step a head of any depth is
// the Gaussians at the class means with one width, times the density.
func TestOpenStartsAsItsClosedForm(t *testing.T) {
	train, val := blobs(200, 6, 3, 1), blobs(60, 6, 3, 2)
	for layers := 1; layers <= 4; layers++ {
		cfg, err := Config{Open: true, Layers: layers, Centroids: 7, Projection: 4}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		m := newHead(cfg, 6, 3)
		if m.Density, err = fitDensity(t.Context(), train, val, 3); err != nil {
			t.Fatal(err)
		}
		reduced, err := m.Density.reduce(t.Context(), train, 4, nil)
		if err != nil {
			t.Fatal(err)
		}
		reducedVal, err := m.Density.reduce(t.Context(), val, 4, nil)
		if err != nil {
			t.Fatal(err)
		}
		net := networkOf[float64](m, 1)
		if err := net.startOpen(t.Context(), reduced, reducedVal, 3, newRand(1)); err != nil {
			t.Fatal(err)
		}
		net.copyTo(m)
		width := softplus(float64(m.Layers[layers-1].Beta[0]))
		p := m.NewPredictor()
		logPhi := make([]float64, 3)
		for _, r := range val.Rows {
			row := val.X[r*6 : (r+1)*6]
			p.Outputs(logPhi, nil, row)
			want := make([]float64, 3)
			nearest := math.Inf(1)
			for c := range want {
				var d4, d6 float64
				for j, v := range row {
					e := float64(v) - float64(m.Density.Means[c*6+j])
					if d6 += e * e; j < 4 {
						d4 = d6
					}
				}
				want[c] = -width * d4
				nearest = min(nearest, d6)
			}
			// With hidden layers the cap comes from the last of them, whose
			// depression is that of its nearest centroid.
			got := logSum(logPhi)
			norm := logSum(want)
			for c := range want {
				if a, b := logPhi[c]-got, want[c]-norm; math.Abs(a-b) > 1e-5*(1+math.Abs(b)) {
					t.Fatalf("%d layers, row %d: log share of class %d is %g, want %g", layers, r, c, a, b)
				}
			}
			if dep := m.Density.logDep(nearest); layers == 1 && math.Abs(got-dep) > 1e-5*(1+math.Abs(dep)) {
				t.Fatalf("row %d: log Σφ is %g, want log dep₀ = %g", r, got, dep)
			}
		}
	}
}

// whitened gives both sets as the whitening of the first makes them.
func whitened(t *testing.T, classes int, train, val Data) (Data, Data) {
	t.Helper()
	of := func(d Data) conditioning.Data {
		return conditioning.Data{X: d.X, D: d.D, Labels: d.Labels, Rows: d.Rows, Classes: classes}
	}
	c, err := conditioning.Fit(t.Context(), of(train), of(val), conditioning.Options{Kind: conditioning.Whiten})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Data{&train, &val} {
		if d.X, err = c.Rows(t.Context(), d.X, d.Rows); err != nil {
			t.Fatal(err)
		}
	}
	return train, val
}

// TestOpenRowsAreSpread: the rows of a large set come class by class.
func TestOpenRowsAreSpread(t *testing.T) {
	rows := make([]int, 2*mostRows+5)
	for i := range rows {
		rows[i] = i
	}
	got := spread(rows)
	if len(got) != mostRows || got[0] != 0 || got[mostRows-1] < 2*mostRows || !slices.IsSorted(got) {
		t.Errorf("%d rows from %d to %d", len(got), got[0], got[len(got)-1])
	}
	if got := spread(rows[:7]); !slices.Equal(got, rows[:7]) {
		t.Errorf("of 7 rows: %v", got)
	}
}

// TestOpenUnseenClass: a class without training rows changes nothing for the
// others, also where these overlap about its empty place.
func TestOpenUnseenClass(t *testing.T) {
	train, val := blobs(600, 6, 4, 1), blobs(200, 6, 4, 2)
	for _, d := range []Data{train, val} {
		for i := range d.X {
			d.X[i] += float32(math.Sin(float64(i * i)))
		}
	}
	train, val = whitened(t, 4, train, val)
	opts := TrainOptions{Epochs: 1, Schedule: Cosine}
	want, history, err := Train(t.Context(), Config{Open: true, Layers: 2}, train, val, 4, opts)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Train(t.Context(), Config{Open: true, Layers: 2}, train, val, 5, opts)
	if err != nil {
		t.Fatal(err)
	}
	if accuracy := history[0].ValAccuracy; accuracy < 0.7 || accuracy > 0.95 {
		t.Errorf("accuracy %g: the classes do not overlap as they should here", accuracy)
	}
	a, b := want.LogConfidences(val.X), got.LogConfidences(val.X)
	for i := range val.Rows {
		four, five := a[i*4:(i+1)*4], b[i*5:(i+1)*5]
		for c := range four {
			if math.Abs(four[c]-five[c]) > 0.01*(1+math.Abs(four[c])) {
				t.Fatalf("row %d: %v with an unseen class, %v without", i, five, four)
			}
		}
		if five[4] > -20 {
			t.Fatalf("row %d: the unseen class has log φ %g", i, five[4])
		}
	}
}

// TestTrainOpenLearns looks at accuracy and at confidence far away.
func TestTrainOpenLearns(t *testing.T) {
	train, val := whitened(t, 4, blobs(600, 6, 4, 1), blobs(200, 6, 4, 2))
	for layers := 1; layers <= 3; layers++ {
		m, epochs, err := Train(t.Context(), Config{Open: true, Layers: layers, Centroids: 20}, train, val, 4, TrainOptions{Epochs: 10, LR: 3e-3, Schedule: Cosine})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		if last := epochs[len(epochs)-1]; last.ValAccuracy < 0.99 || last.LR > 1e-9 {
			t.Errorf("%d layers: %+v", layers, last)
		}
		far := slices.Clone(val.X)
		for i := range far {
			far[i] *= 20
		}
		inside, insideScores := m.Outputs(val.X)
		outside, outsideScores := m.Outputs(far)
		var confidence float64
		for i := range val.Rows {
			confidence += math.Exp(slices.Max(inside[i*4:(i+1)*4])) / 200
			if slices.Max(outside[i*4:(i+1)*4]) > math.Log(1e-6) {
				t.Fatalf("%d layers, row %d: %v, far away %v", layers, i, inside[i*4:(i+1)*4], outside[i*4:(i+1)*4])
			}
		}
		if confidence < 0.6 {
			t.Errorf("%d layers: mean confidence %g", layers, confidence)
		}
		if !(slices.Max(outsideScores) < slices.Min(insideScores)) {
			t.Errorf("%d layers: scores to %g far away, from %g", layers, slices.Max(outsideScores), slices.Min(insideScores))
		}
	}
}

// TestTrainOpenOnOddData ends in a head that is one, or says why not.
func TestTrainOpenOnOddData(t *testing.T) {
	first := func(n int) Data {
		data := blobs(60, 3, 3, 1)
		data.Rows = data.Rows[:n]
		return data
	}
	equal := Data{X: slices.Repeat([]float32{0.5, 1, -2}, 40), D: 3, Labels: make([]int64, 40)}
	for i := range 40 {
		equal.Labels[i], equal.Rows = int64(i%3), append(equal.Rows, i)
	}
	copies := blobs(60, 3, 3, 1)
	for i := range copies.X {
		copies.X[i] = copies.X[i%27] // nine rows, again and again
	}
	huge := blobs(60, 3, 3, 1)
	huge.X[4] = 1e30
	allHuge := blobs(60, 3, 3, 1)
	for i := range allHuge.X {
		allHuge.X[i] *= 1e30
	}
	nan := blobs(60, 3, 3, 1)
	nan.X[4] = float32(math.NaN())
	one := blobs(60, 3, 1, 1)
	for name, tt := range map[string]struct {
		train, val Data
		classes    int
		diverges   bool
	}{
		"three classes":                  {train: first(60), val: blobs(30, 3, 3, 2), classes: 3},
		"no validation rows":             {train: first(60), classes: 3},
		"one class":                      {train: one, val: one, classes: 1},
		"classes without rows":           {train: first(60), val: blobs(30, 3, 3, 2), classes: 9},
		"validation of unseen classes":   {train: one, val: blobs(30, 3, 3, 2), classes: 3},
		"validation of unseen alone":     {train: one, val: Data{X: []float32{1, 2, 3}, D: 3, Labels: []int64{2}, Rows: []int{0}}, classes: 3},
		"eight rows":                     {train: first(8), val: first(3), classes: 3},
		"two rows":                       {train: first(2), classes: 3},
		"one validation row":             {train: first(60), val: first(1), classes: 3},
		"rows all equal":                 {train: equal, val: equal, classes: 3},
		"rows all equal, none validates": {train: equal, classes: 3},
		"copies of nine rows":            {train: copies, val: copies, classes: 3},
		"one huge value":                 {train: huge, val: first(60), classes: 3, diverges: true},
		"one huge value to validate on":  {train: first(60), val: huge, classes: 3, diverges: true},
		"all huge":                       {train: allHuge, val: allHuge, classes: 3, diverges: true},
		"NaN":                            {train: nan, val: first(60), classes: 3, diverges: true},
		"NaN to validate on":             {train: first(60), val: nan, classes: 3, diverges: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, layers := range []int{1, 3} {
				m, _, err := Train(t.Context(), Config{Open: true, Layers: layers, Centroids: 10}, tt.train, tt.val, tt.classes, TrainOptions{Epochs: 20, Batch: 16, LR: 3e-3, Schedule: Cosine})
				if errors.Is(err, ErrDiverged) && tt.diverges {
					continue
				}
				if err != nil || tt.diverges {
					t.Fatalf("%d layers: %v", layers, err)
				}
				if err := m.Validate(); err != nil {
					t.Fatalf("%d layers: %v", layers, err)
				}
				logPhi, scores := m.Outputs(first(60).X)
				for _, v := range slices.Concat(logPhi, scores) {
					if notNumber(v) {
						t.Fatalf("%d layers: log φ %v, scores %v", layers, logPhi, scores)
					}
				}
			}
		})
	}
}

func TestValidateRefusesOpen(t *testing.T) {
	for name, spoil := range map[string]func(*MLRBFN){
		"no density":         func(m *MLRBFN) { m.Density = nil },
		"density too short":  func(m *MLRBFN) { m.Density.D, m.Density.Means = 2, make([]float32, 4) },
		"means cut short":    func(m *MLRBFN) { m.Density.Means = m.Density.Means[1:] },
		"no means":           func(m *MLRBFN) { m.Density.Means = nil },
		"mean not finite":    func(m *MLRBFN) { m.Density.Means[1] = float32(math.Inf(1)) },
		"radius not finite":  func(m *MLRBFN) { m.Density.Radius = math.Inf(1) },
		"radius NaN":         func(m *MLRBFN) { m.Density.Radius = math.NaN() },
		"radii in disorder":  func(m *MLRBFN) { m.Density.Radius = m.Density.Middle / 2 },
		"radii negative":     func(m *MLRBFN) { m.Density.Middle, m.Density.Radius = -3, -2 },
		"score not finite":   func(m *MLRBFN) { m.Score.Nearness.Mean = math.NaN() },
		"score of one value": func(m *MLRBFN) { m.Score.Decision.Deviation = 0 },
		"norm":               func(m *MLRBFN) { m.Norm = 1 },
		"no depression":      func(m *MLRBFN) { m.NoDepression = true },
		"layer not residual": func(m *MLRBFN) { m.Layers[0].Out++ },
	} {
		cfg, err := Config{Open: true, Layers: 2}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		m := newHead(cfg, 3, 2)
		m.Density = &Density{D: 3, Means: make([]float32, 6), Middle: 1, Radius: 2}
		m.Score = &Score{Scale{0, 1}, Scale{0, 1}}
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if err := m.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
