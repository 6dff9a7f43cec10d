package head

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"mlrbfn/conditioning"
)

// openGolden is PyTorch's and NumPy's float64 answers for an open head of two
// hidden layers (scripts/research/golden.py). They are in the coordinates of
// the golden's own whitening, which differ from ours by a rotation.
type openGolden struct {
	X, XV        matrix
	Y, YV        []int64
	O            int
	Recovery     float64
	Conditioning struct {
		Shrinkage    float64
		Mean         vector
		Gram, Matrix matrix
	}
	Density struct {
		Means  matrix
		R50, R float64
		X      matrix
		M      vector
		LogDep vector `json:"log_dep"`
	}
	FirstBeta   float64           `json:"first_beta"`
	FirstMeans  matrix            `json:"first_means"`
	FirstWidths map[string]number `json:"first_widths"`
	Parameters  struct {
		C0, A0, C1, A1, M matrix
		B0, B1, B         vector
		BInit0, BInit1    float64
	}
	U, UV     matrix
	Labels    []int
	L         matrix
	LogPhi    matrix `json:"log_phi"`
	Loss      number
	Gradients struct {
		C0, A0, C1, A1, M, U matrix
		B0, B1, B            vector
	}
	Gen, Score vector
	Constants  struct {
		NearMean      float64 `json:"m_mean"`
		NearDeviation float64 `json:"m_std"`
		GenMean       float64 `json:"gen_mean"`
		GenDeviation  float64 `json:"gen_std"`
	} `json:"score_constants"`
}

func readOpenGolden(t *testing.T) (g openGolden) {
	t.Helper()
	readGolden(t, "testdata/residual.json", &g)
	return g
}

// condition conditions rows with the golden's own map.
func (g *openGolden) condition(x matrix) (z []float64) {
	for _, row := range x {
		var length float64
		for _, v := range row {
			length = math.Hypot(length, float64(v))
		}
		for e := range row {
			var sum float64
			for j, w := range g.Conditioning.Matrix {
				sum += (float64(row[j])/length - float64(g.Conditioning.Mean[j])) * float64(w[e])
			}
			z = append(z, sum)
		}
	}
	return z
}

func (g *openGolden) data(x matrix, labels []int64) Data {
	wide := g.condition(x)
	data := Data{X: make([]float32, len(wide)), D: len(wide) / len(x), Labels: labels, Rows: make([]int, len(x))}
	convert(data.X, wide)
	for i := range data.Rows {
		data.Rows[i] = i
	}
	return data
}

// TestGoldenOpenConditioning holds what an open head reads, but for the
// rotation: W Wᵀ says all of the distances.
func TestGoldenOpenConditioning(t *testing.T) {
	g := readOpenGolden(t)
	d := len(g.X[0])
	data := func(x matrix, labels []int64) conditioning.Data {
		return conditioning.Data{X: float32s(x.flat()), D: d, Labels: labels, Rows: g.data(x, labels).Rows, Classes: 3}
	}
	c, err := conditioning.Fit(t.Context(), data(g.X, g.Y), data(g.XV, g.YV), conditioning.Options{Kind: conditioning.Whiten, L2: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.Shrinkage != g.Conditioning.Shrinkage {
		t.Errorf("shrinkage %g, want %g", c.Shrinkage, g.Conditioning.Shrinkage)
	}
	near(t, "mean", c.Mean, g.Conditioning.Mean, 1e-6)
	var gram []float64
	for i := range d {
		for j := range d {
			var sum float64
			for e := range d {
				sum += float64(c.Matrix[i*d+e]) * float64(c.Matrix[j*d+e])
			}
			gram = append(gram, sum)
		}
	}
	near(t, "W Wᵀ", gram, g.Conditioning.Gram.flat(), 1e-5)
}

func TestGoldenOpenDensity(t *testing.T) {
	g := readOpenGolden(t)
	fitted, err := fitDensity(t.Context(), g.data(g.X, g.Y), g.data(g.XV, g.YV), 3)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "class means", fitted.Means, g.Density.Means.flat(), 1e-6)
	near(t, "r50 and r", []float64{fitted.Middle, fitted.Radius}, vector{number(g.Density.R50), number(g.Density.R)}, 1e-5)

	// With the golden's own means and radii, in float64.
	fitted.Middle, fitted.Radius = g.Density.R50, g.Density.R
	m := fitted.measure()
	m.means = values[float64](g.Density.Means.flat())
	m.SumSquares(m.sq, m.means)
	distances, logDep := make([]float64, len(g.Density.X)), make([]float64, len(g.Density.X))
	m.distances(distances, g.condition(g.Density.X), len(distances))
	near(t, "m", distances, g.Density.M, 1e-9)
	for i, v := range g.Density.M {
		logDep[i] = fitted.logDep(float64(v))
	}
	near(t, "log dep₀", logDep, g.Density.LogDep, 1e-12)
}

func TestGoldenOpenFirstWidth(t *testing.T) {
	g := readOpenGolden(t)
	for times, want := range g.FirstWidths {
		k, err := strconv.ParseFloat(times, 64)
		if err != nil {
			t.Fatal(err)
		}
		data := Data{D: g.O, Labels: g.YV}
		for i, row := range g.UV {
			for _, v := range row {
				data.X = append(data.X, float32(k*float64(v)))
			}
			data.Rows = append(data.Rows, i)
		}
		means := values[float64](g.FirstMeans.flat())
		for i := range means {
			means[i] *= k
		}
		got, err := firstWidth(t.Context(), means, []float64{1, 1, 1}, data)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "width of rows "+times+" times as large", []float64{got}, vector{want}, 1e-12)
		if k == 1 {
			near(t, "β", []float64{inverseSoftplus(got)}, vector{number(g.FirstBeta)}, 1e-12)
		}
	}
}

// head gives the golden's head with parameters rounded to float32.
func (g *openGolden) head() *MLRBFN {
	p := g.Parameters
	hidden := func(c, a matrix, b vector, init float64) Layer {
		return Layer{In: g.O, N: len(b), Out: g.O, Centroids: float32s(c.flat()), Beta: float32s(b), InitBeta: float32(init), Projections: float32s(a.flat())}
	}
	return &MLRBFN{
		Norm: 2, Recovery: g.Recovery, Open: true,
		Layers: []Layer{
			hidden(p.C0, p.A0, p.B0, p.BInit0), hidden(p.C1, p.A1, p.B1, p.BInit1),
			{In: g.O, N: len(p.B), Centroids: float32s(p.M.flat()), Beta: float32s(p.B)},
		},
		Density: &Density{D: len(g.X[0]), Means: float32s(g.Density.Means.flat()), Middle: g.Density.R50, Radius: g.Density.R},
	}
}

func checkOpen[T real](g openGolden) func(*testing.T, float64) {
	return func(t *testing.T, tol float64) {
		net, p := networkOf[T](g.head(), len(g.U)), g.Parameters
		setParams(net, goldenParams{ // not rounded to float32
			{Centroids: p.C0, Beta: p.B0, Projections: p.A0}, {Centroids: p.C1, Beta: p.B1, Projections: p.A1}, {Centroids: p.M, Beta: p.B},
		})
		net.layers[0].initBeta, net.layers[1].initBeta = p.BInit0, p.BInit1
		var x []T
		for i, row := range g.U {
			x = append(append(x, values[T](row)...), T(g.Density.LogDep[i]))
		}
		net.gInput = make([]T, len(g.U)*g.O)
		net.refresh()
		net.forward(x, len(g.U))
		near(t, "l", net.outputLogits(len(g.U)), g.L.flat(), tol)
		near(t, "log φ", net.output(len(g.U)), g.LogPhi.flat(), tol)
		loss := net.step(x, g.Labels)
		near(t, "loss", []float64{loss}, vector{g.Loss}, tol)
		d := g.Gradients
		nearParams(t, "gradient", net, true, goldenParams{
			{Centroids: d.C0, Beta: d.B0, Projections: d.A0}, {Centroids: d.C1, Beta: d.B1, Projections: d.A1}, {Centroids: d.M, Beta: d.B},
		}, tol)
		near(t, "gradient by u", turned(net.gInput, g.O), d.U.flat(), tol)
	}
}

func TestGoldenOpenNetwork(t *testing.T) {
	g := readOpenGolden(t)
	both(t, "two hidden layers", checkOpen[float32](g), checkOpen[float64](g))
}

func TestGoldenOpenScore(t *testing.T) {
	g := readOpenGolden(t)
	c := g.Constants
	score := Score{Scale{-c.NearMean, c.NearDeviation}, Scale{c.GenMean, c.GenDeviation}}
	var gens, scores []float64
	for i, l := range g.L {
		gens = append(gens, decision(values[float64](l)))
		scores = append(scores, score.of(float64(g.Density.M[i]), values[float64](l)))
	}
	near(t, "G", gens, g.Gen, 1e-12)
	near(t, "score", scores, g.Score, 1e-12)

	// The whole head, its parameters rounded to float32, on conditioned rows.
	m, val := g.head(), g.data(g.XV, g.YV)
	fitted, err := m.fitScore(t.Context(), val)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "scale of −m", []float64{fitted.Nearness.Mean, fitted.Nearness.Deviation}, vector{number(-c.NearMean), number(c.NearDeviation)}, 1e-6)
	near(t, "scale of G", []float64{fitted.Decision.Mean, fitted.Decision.Deviation}, vector{number(c.GenMean), number(c.GenDeviation)}, 1e-6)
	m.Score = fitted
	logPhi, got := m.Outputs(g.data(g.Density.X, make([]int64, len(g.Density.X))).X)
	near(t, "log φ of the head", logPhi, g.LogPhi.flat(), 1e-6)
	near(t, "score of the head", got, g.Score, 1e-5)
}

// TestDecisionOfManyClasses holds G against its definition where it is taken
// over the 100 largest of more, and where one of them is all but certain.
func TestDecisionOfManyClasses(t *testing.T) {
	l := make([]float64, 150)
	for c := range l {
		l[c] = 3 * math.Sin(float64(7*c))
	}
	var sum float64
	for _, v := range l {
		sum += math.Exp(v)
	}
	sorted := slices.Sorted(slices.Values(l))
	var want float64
	for _, v := range sorted[50:] {
		p := math.Exp(v) / sum
		want -= math.Pow(p*(1-p), 0.1)
	}
	before := slices.Clone(l)
	if got := decision(l); math.Abs(got-want) > 1e-12*math.Abs(want) {
		t.Errorf("of 150 classes: %g, want %g", got, want)
	}
	if !slices.Equal(l, before) {
		t.Error("it changed what it read")
	}
	// p = 1 − e^−50 and e^−50: each product is all but e^−50.
	if got, want := decision([]float64{0, -50}), -2*math.Exp(-5); math.Abs(got-want) > 1e-12 {
		t.Errorf("of a certain row: %g, want %g", got, want)
	}
}
