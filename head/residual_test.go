package head

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// drawNetwork draws a network with parameters in a range where nothing
// saturates, projections among them.
func drawNetwork(t *rapid.T) *ResidualNetwork {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	cfg, err := Residual{
		Layers: rapid.IntRange(1, 4).Draw(t, "layers"), Centroids: rapid.IntRange(1, 6).Draw(t, "N"),
		Projection: rapid.IntRange(0, 5).Draw(t, "o"), Recovery: rapid.SampledFrom([]float64{1, 1.1, 1.5}).Draw(t, "recovery"),
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	d, classes := rapid.IntRange(1, 6).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C")
	m := residualNewNetwork(cfg, d, classes)
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
		m.Score = &HeadScore{Nearness: Scale{Mean: -float64(d), Deviation: 1}, Decision: Scale{Mean: -0.5, Deviation: 0.2}}
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

// residualOf returns a head that reads conditioned rows.
func residualOf(n *ResidualNetwork) *Head { return &Head{Network: n} }

func TestResidualGradientsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawNetwork(t)
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
		net := residualCompute[float64](m, n)
		net.GInput = make([]float64, n*e)
		net.Step(rows(), labels)
		params, gradients := net.Params()
		CheckGradients(t, append(params, u), append(gradients, Transpose(net.GInput, e)), func() float64 {
			net.Refresh()
			net.forward(rows(), n)
			return logBCE(net.Last().Weights, labels, nil)
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

// TestResidualConfidenceIsBounded checks the bound in the package comment: confidences add
// up to at most 1 and to at most what the distance from the data allows, so that
// they go to 0 in every direction.
func TestResidualConfidenceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawNetwork(t)
		x := DrawRows(t, m.Dim(), 70) // more than a batch
		d, classes := m.Dim(), m.Classes()
		slack := 0.0 // by how much the hidden layers may raise the depression
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
			logPhi := residualOf(m).Outputs(scaled).LogConfidences
			for i := range 70 {
				row := logPhi[i*classes : (i+1)*classes]
				nearest := math.Inf(1)
				for c := range classes {
					z, mean := scaled[i*d:(i+1)*d], m.Density.Means[c*d:(c+1)*d]
					wide, centre := make([]float64, d), make([]float64, d)
					kernels.Convert(wide, z)
					kernels.Convert(centre, mean)
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

// TestFarRowsHaveALoss: log φ of rows that are far from all class means stays in
// the range where the loss is finite, however float32 rounds the large numbers that
// cancel in it.
func TestFarRowsHaveALoss(t *testing.T) {
	const e, rows = 5, 256
	m := residualNewNetwork(Residual{Layers: 1, Recovery: 1.1}, e, 3)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range m.Layers[0].Centroids {
		m.Layers[0].Centroids[i] = float32(rng.NormFloat64())
	}
	net := residualCompute[float32](m, rows)
	net.Refresh()
	x, labels := make([]float32, rows*(e+1)), make([]int, rows)
	for i := range rows {
		for j := range e {
			x[i*(e+1)+j] = float32(rng.NormFloat64() * math.Pow(10, float64(i%5)))
		}
		labels[i] = rng.IntN(3)
	}
	net.forward(x, rows)
	for i, v := range net.Last().Weights[:3*rows] {
		if !(v < logShift) {
			t.Errorf("log φ of class %d and row %d is %v", i/rows, i%rows, v)
		}
	}
	if loss := net.Step(x, labels); math.IsNaN(loss) || math.IsInf(loss, 0) {
		t.Errorf("the loss is %v", loss)
	}
}

// TestOddRows has rows with NaN and infinities: they must neither change other rows
// nor count as in-distribution.
func TestOddRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNetwork(t)
		m := residualOf(n)
		d, classes := m.Dim(), m.Classes()
		if rapid.Bool().Draw(t, "conditioned") {
			m.Conditioning = &Conditioning{
				ConditioningOptions: ConditioningOptions{L2: rapid.Bool().Draw(t, "L2")}, Mean: make([]float32, d), Scale: slices.Repeat([]float32{1}, d),
			}
		}
		x := DrawRows(t, d, 5)
		wantPhi, wantScores := predict(m, x)
		x[2*d+rapid.IntRange(0, d-1).Draw(t, "at")] = rapid.SampledFrom([]float32{
			float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
		}).Draw(t, "odd")
		logPhi, scores := predict(m, x)
		if slices.ContainsFunc(logPhi[2*classes:3*classes], func(l float64) bool { return l > -700 }) || scores[2] > -700 {
			t.Fatalf("log φ %v and score %g of a row that is not finite", logPhi[2*classes:3*classes], scores[2])
		}
		for _, i := range []int{0, 1, 3, 4} {
			if scores[i] != wantScores[i] || !slices.Equal(logPhi[i*classes:(i+1)*classes], wantPhi[i*classes:(i+1)*classes]) {
				t.Fatalf("row %d changed beside it", i)
			}
		}
	})
}

func TestClassesPermute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawNetwork(t)
		classes, e := m.Classes(), m.Layers[0].In
		x := DrawRows(t, m.Dim(), 9)
		want, wantScores := predict(residualOf(m), x)
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
		got, scores := predict(residualOf(&permuted), x)
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

// TestStartsAsItsClosedForm: before the first step a head of any depth is
// the Gaussians at the class means with one width, times the density.
func TestStartsAsItsClosedForm(t *testing.T) {
	train, val := Blobs(200, 6, 3, 1), Blobs(60, 6, 3, 2)
	for layers := 1; layers <= 4; layers++ {
		cfg, err := Residual{Layers: layers, Centroids: 7, Projection: 4}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		m := residualNewNetwork(cfg, 6, 3)
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
		net := residualCompute[float64](m, 1)
		if err := net.start(t.Context(), reduced, reducedVal, 3, false, nil, rand.New(rand.NewPCG(1, 1))); err != nil {
			t.Fatal(err)
		}
		net.CopyTo(m.Layers)
		width := kernels.Softplus(float64(m.Layers[layers-1].Beta[0]))
		p := residualOf(m).NewPredictor()
		logPhi := make([]float64, 3)
		for _, r := range val.Index {
			row := val.X[r*6 : (r+1)*6]
			p.Predict(Outputs{LogConfidences: logPhi}, row)
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

// TestStartsAsALinearClassifier: before the first step the shares of the classes are
// the softmax of the classifier's logits, up to the one factor that the validation
// rows choose.
func TestStartsAsALinearClassifier(t *testing.T) {
	train, val := Blobs(200, 6, 3, 1), Blobs(60, 6, 3, 2)
	means, err := fitDensity(t.Context(), train, val, 3)
	if err != nil {
		t.Fatal(err)
	}
	from := &Linear{Bias: []float64{.1, -.2, .3}}
	for c := range 3 {
		for j := range 4 {
			from.Weights = append(from.Weights, 2*float64(means.Means[c*6+j])+.1*float64(j*c))
		}
	}
	n, err := ClosedForm(t.Context(), train, val, 3, from)
	if err != nil {
		t.Fatal(err)
	}
	p, logPhi, factor := residualOf(n).NewPredictor(), make([]float64, 3), 0.
	for _, r := range val.Index {
		row := val.X[r*6 : (r+1)*6]
		p.Predict(Outputs{LogConfidences: logPhi}, row)
		var logits [3]float64
		for c := range logits {
			logits[c] = from.Bias[c]
			for j := range 4 {
				logits[c] += from.Weights[c*4+j] * float64(row[j])
			}
		}
		if factor == 0 {
			factor = (logPhi[0] - logPhi[1]) / (logits[0] - logits[1])
		}
		for c := range 2 {
			if got, want := logPhi[c]-logPhi[2], factor*(logits[c]-logits[2]); math.Abs(got-want) > 1e-3*(1+math.Abs(want)) {
				t.Fatalf("row %d: class %d is ahead by %g, want %g", r, c, got, want)
			}
		}
	}
	if !(factor > 0) {
		t.Errorf("factor %g", factor)
	}
	// Without a direction that tells the classes apart, it begins with the class means.
	flat, err := ClosedForm(t.Context(), train, val, 3, &Linear{Weights: []float64{1e-9, 2e-9, 3e-9}, Bias: from.Bias})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := ClosedForm(t.Context(), train, val, 3, nil)
	if err != nil || !slices.Equal(flat.Layers[0].Centroids, plain.Layers[0].Centroids) {
		t.Errorf("a classifier of biases moved the centroids: %v", err)
	}
}

// residualWhitened gives both sets as the whitening of the first makes them.
func residualWhitened(t *testing.T, classes int, train, val features.Rows) (features.Rows, features.Rows) {
	t.Helper()
	c, err := FitConditioning(t.Context(), train, val, classes, ConditioningOptions{Kind: Whiten})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*features.Rows{&train, &val} {
		if d.X, err = c.Rows(t.Context(), *d); err != nil {
			t.Fatal(err)
		}
	}
	return train, val
}

// TestUnseenClass: a class without training rows changes nothing for the
// others, also if these overlap around its empty place.
func TestUnseenClass(t *testing.T) {
	train, val := Blobs(600, 6, 4, 1), Blobs(200, 6, 4, 2)
	for _, d := range []features.Rows{train, val} {
		for i := range d.X {
			d.X[i] += float32(math.Sin(float64(i * i)))
		}
	}
	train, val = residualWhitened(t, 4, train, val)
	opts := TrainOptions{Epochs: 1, Schedule: Cosine}
	want, history, err := Train(t.Context(), Residual{Layers: 2}, train, val, 4, opts)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Train(t.Context(), Residual{Layers: 2}, train, val, 5, opts)
	if err != nil {
		t.Fatal(err)
	}
	if accuracy := history[0].ValAccuracy; accuracy < 0.7 || accuracy > 0.95 {
		t.Errorf("accuracy %g: the classes do not overlap as they should here", accuracy)
	}
	a, b := want.Outputs(val.X).LogConfidences, got.Outputs(val.X).LogConfidences
	for i := range val.Index {
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

// TestTrainLearns checks accuracy, and confidence far away.
func TestTrainLearns(t *testing.T) {
	train, val := residualWhitened(t, 4, Blobs(600, 6, 4, 1), Blobs(200, 6, 4, 2))
	for layers := 1; layers <= 3; layers++ {
		m, epochs, err := Train(t.Context(), Residual{Layers: layers, Centroids: 20}, train, val, 4, TrainOptions{Epochs: 10, LR: 3e-3, Schedule: Cosine})
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
		inside, insideScores := predict(m, val.X)
		outside, outsideScores := predict(m, far)
		var confidence float64
		for i := range val.Index {
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

// TestTrainOnOddData: training ends with a valid head or an error.
func TestTrainOnOddData(t *testing.T) {
	first := func(n int) features.Rows {
		data := Blobs(60, 3, 3, 1)
		data.Index = data.Index[:n]
		return data
	}
	equal := features.Rows{X: slices.Repeat([]float32{0.5, 1, -2}, 40), D: 3, Labels: make([]int64, 40)}
	for i := range 40 {
		equal.Labels[i], equal.Index = int64(i%3), append(equal.Index, i)
	}
	copies := Blobs(60, 3, 3, 1)
	for i := range copies.X {
		copies.X[i] = copies.X[i%27] // nine rows, again and again
	}
	huge := Blobs(60, 3, 3, 1)
	huge.X[4] = 1e30
	allHuge := Blobs(60, 3, 3, 1)
	for i := range allHuge.X {
		allHuge.X[i] *= 1e30
	}
	nan := Blobs(60, 3, 3, 1)
	nan.X[4] = float32(math.NaN())
	one := Blobs(60, 3, 1, 1)
	for name, tt := range map[string]struct {
		train, val features.Rows
		classes    int
		diverges   bool
	}{
		"three classes":                  {train: first(60), val: Blobs(30, 3, 3, 2), classes: 3},
		"no validation rows":             {train: first(60), classes: 3},
		"one class":                      {train: one, val: one, classes: 1},
		"classes without rows":           {train: first(60), val: Blobs(30, 3, 3, 2), classes: 9},
		"validation of unseen classes":   {train: one, val: Blobs(30, 3, 3, 2), classes: 3},
		"validation of unseen alone":     {train: one, val: features.Rows{X: []float32{1, 2, 3}, D: 3, Labels: []int64{2}, Index: []int{0}}, classes: 3},
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
				m, _, err := Train(t.Context(), Residual{Layers: layers, Centroids: 10}, tt.train, tt.val, tt.classes, TrainOptions{Epochs: 20, Batch: 16, LR: 3e-3, Schedule: Cosine})
				if errors.Is(err, ErrDiverged) && tt.diverges {
					continue
				}
				if err != nil || tt.diverges {
					t.Fatalf("%d layers: %v", layers, err)
				}
				if err := m.Validate(); err != nil {
					t.Fatalf("%d layers: %v", layers, err)
				}
				logPhi, scores := predict(m, first(60).X)
				for _, v := range slices.Concat(logPhi, scores) {
					if notFinite(v) {
						t.Fatalf("%d layers: log φ %v, scores %v", layers, logPhi, scores)
					}
				}
			}
		})
	}
}

func TestResidualValidateRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*ResidualNetwork){
		"no density":         func(m *ResidualNetwork) { m.Density = nil },
		"density too short":  func(m *ResidualNetwork) { m.Density.D, m.Density.Means = 2, make([]float32, 4) },
		"means cut short":    func(m *ResidualNetwork) { m.Density.Means = m.Density.Means[1:] },
		"no means":           func(m *ResidualNetwork) { m.Density.Means = nil },
		"mean not finite":    func(m *ResidualNetwork) { m.Density.Means[1] = float32(math.Inf(1)) },
		"radius not finite":  func(m *ResidualNetwork) { m.Density.Radius = math.Inf(1) },
		"radius NaN":         func(m *ResidualNetwork) { m.Density.Radius = math.NaN() },
		"radii in disorder":  func(m *ResidualNetwork) { m.Density.Radius = m.Density.Middle / 2 },
		"radii negative":     func(m *ResidualNetwork) { m.Density.Middle, m.Density.Radius = -3, -2 },
		"score not finite":   func(m *ResidualNetwork) { m.Score.Nearness.Mean = math.NaN() },
		"score of one value": func(m *ResidualNetwork) { m.Score.Decision.Deviation = 0 },
		"recovery":           func(m *ResidualNetwork) { m.Recovery = 0.9 },
		"layer not residual": func(m *ResidualNetwork) { m.Layers[0].Out++ },
	} {
		cfg, err := Residual{Layers: 2}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		m := residualNewNetwork(cfg, 3, 2)
		m.Density = &Density{D: 3, Means: make([]float32, 6), Middle: 1, Radius: 2}
		m.Score = &HeadScore{Nearness: Scale{Deviation: 1}, Decision: Scale{Deviation: 1}}
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if err := m.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFromSettingsRefuses(t *testing.T) {
	good := Settings{Norm: 2, Recovery: 1.1, Residual: true}
	if _, err := ResidualFromSettings(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Settings){
		"norm":           func(s *Settings) { s.Norm = 1 },
		"no depression":  func(s *Settings) { s.NoDepression = true },
		"no ratio":       func(s *Settings) { s.NoRatio = true },
		"no projections": func(s *Settings) { s.NoProjections = true },
	} {
		s := good
		spoil(&s)
		if _, err := ResidualFromSettings(s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestBalanceHelpsSmallClasses: of classes of 150, 150 and 3 rows balanced training
// finds more of the smallest than ordinary training.
func TestBalanceHelpsSmallClasses(t *testing.T) {
	const d, apart = 30, 3.5
	draw := func(seed uint64, counts ...int) features.Rows {
		rng, rows := rand.New(rand.NewPCG(seed, 3)), features.Rows{D: d}
		for c, n := range counts {
			for range n {
				rows.Index, rows.Labels = append(rows.Index, len(rows.Labels)), append(rows.Labels, int64(c))
				for j := range d {
					v := rng.NormFloat64()
					if j == c {
						v += apart
					}
					rows.X = append(rows.X, float32(v))
				}
			}
		}
		return rows
	}
	train, test := draw(1, 150, 150, 3), draw(2, 0, 0, 200)
	found := func(balance bool) (n int) {
		h, _, err := Train(t.Context(), Residual{Layers: 2, Centroids: 10}, train, features.Rows{}, 3, TrainOptions{Epochs: 10, Balance: balance})
		if err != nil {
			t.Fatal(err)
		}
		logPhi := h.Outputs(test.X).LogConfidences
		for i := range test.Labels {
			if row := logPhi[3*i : 3*i+3]; slices.Max(row) == row[2] {
				n++
			}
		}
		return n
	}
	if plain, balanced := found(false), found(true); balanced < plain+10 {
		t.Errorf("of 200 rows of the smallest class %d are found, balanced %d", plain, balanced)
	}
}
