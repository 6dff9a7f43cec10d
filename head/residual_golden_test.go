package head

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// golden holds PyTorch's and NumPy's float64 results for a residual network of two
// hidden layers (at commit e38c0549, scripts/research/golden.py). They are in the coordinates of
// the golden's own whitening, which differ from ours by a rotation.
type golden struct {
	X, XV        Matrix
	Y, YV        []int64
	O            int
	Recovery     float64
	Conditioning struct {
		Shrinkage    float64
		Mean         Vector
		Gram, Matrix Matrix
	}
	Density struct {
		Means  Matrix
		R50, R float64
		X      Matrix
		M      Vector
		LogDep Vector `json:"log_dep"`
	}
	FirstBeta   float64           `json:"first_beta"`
	FirstMeans  Matrix            `json:"first_means"`
	FirstWidths map[string]Number `json:"first_widths"`
	Parameters  struct {
		C0, A0, C1, A1, M Matrix
		B0, B1, B         Vector
		BInit0, BInit1    float64
	}
	U, UV     Matrix
	Labels    []int
	L         Matrix
	LogPhi    Matrix `json:"log_phi"`
	Loss      Number
	Gradients struct {
		C0, A0, C1, A1, M, U Matrix
		B0, B1, B            Vector
	}
	Gen, Score Vector
	Constants  struct {
		NearMean      float64 `json:"m_mean"`
		NearDeviation float64 `json:"m_std"`
		GenMean       float64 `json:"gen_mean"`
		GenDeviation  float64 `json:"gen_std"`
	} `json:"score_constants"`
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	ReadGolden(t, "testdata/residual.json", &g)
	return g
}

// condition conditions rows with the golden's own map.
func (g *golden) condition(x Matrix) (z []float64) {
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

func (g *golden) data(x Matrix, labels []int64) features.Rows {
	wide := g.condition(x)
	data := features.All(make([]float32, len(wide)), len(wide)/len(x), labels)
	kernels.Convert(data.X, wide)
	return data
}

// TestGoldenConditioning compares the input of a residual network, except for the
// rotation: W Wᵀ determines the distances.
func TestGoldenConditioning(t *testing.T) {
	g := readGolden(t)
	d := len(g.X[0])
	data := func(x Matrix, labels []int64) features.Rows {
		return features.All(Float32s(x.Flat()), d, labels)
	}
	c, err := FitConditioning(t.Context(), data(g.X, g.Y), data(g.XV, g.YV), 3, ConditioningOptions{Kind: Whiten, L2: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.Shrinkage != g.Conditioning.Shrinkage {
		t.Errorf("shrinkage %g, want %g", c.Shrinkage, g.Conditioning.Shrinkage)
	}
	Near(t, "mean", c.Mean, g.Conditioning.Mean, 1e-6)
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
	Near(t, "W Wᵀ", gram, g.Conditioning.Gram.Flat(), 1e-5)
}

func TestGoldenDensity(t *testing.T) {
	g := readGolden(t)
	fitted, err := fitDensity(t.Context(), g.data(g.X, g.Y), g.data(g.XV, g.YV), 3)
	if err != nil {
		t.Fatal(err)
	}
	Near(t, "class means", fitted.Means, g.Density.Means.Flat(), 1e-6)
	Near(t, "r50 and r", []float64{fitted.Middle, fitted.Radius}, Vector{Number(g.Density.R50), Number(g.Density.R)}, 1e-5)

	// With the golden's own means and radii, in float64.
	fitted.Middle, fitted.Radius = g.Density.R50, g.Density.R
	m := fitted.measure()
	means := Values[float64](g.Density.Means.Flat())
	m.means = kernels.NewRightTransposed(len(m.sq), m.d, means)
	m.SumSquares(m.sq, means)
	distances, logDep := make([]float64, len(g.Density.X)), make([]float64, len(g.Density.X))
	m.distances(distances, g.condition(g.Density.X), len(distances))
	Near(t, "m", distances, g.Density.M, 1e-9)
	for i, v := range g.Density.M {
		logDep[i] = fitted.logDep(float64(v))
	}
	Near(t, "log dep₀", logDep, g.Density.LogDep, 1e-12)
}

func TestGoldenFirstWidth(t *testing.T) {
	g := readGolden(t)
	for times, want := range g.FirstWidths {
		k, err := strconv.ParseFloat(times, 64)
		if err != nil {
			t.Fatal(err)
		}
		data := features.Rows{D: g.O, Labels: g.YV}
		for i, row := range g.UV {
			for _, v := range row {
				data.X = append(data.X, float32(k*float64(v)))
			}
			data.Index = append(data.Index, i)
		}
		means := Values[float64](g.FirstMeans.Flat())
		for i := range means {
			means[i] *= k
		}
		got, err := firstWidth(t.Context(), means, []float64{1, 1, 1}, data)
		if err != nil {
			t.Fatal(err)
		}
		Near(t, "width of rows "+times+" times as large", []float64{got}, Vector{want}, 1e-12)
		if k == 1 {
			Near(t, "β", []float64{inverseSoftplus(got)}, Vector{Number(g.FirstBeta)}, 1e-12)
		}
	}
}

// network returns the golden's head with parameters rounded to float32.
func (g *golden) network() *ResidualNetwork {
	p := g.Parameters
	hidden := func(c, a Matrix, b Vector, init float64) Layer {
		return Layer{In: g.O, N: len(b), Out: g.O, Centroids: Float32s(c.Flat()), Beta: Float32s(b), InitBeta: float32(init), Projections: Float32s(a.Flat())}
	}
	return &ResidualNetwork{
		Recovery: g.Recovery,
		Layers: []Layer{
			hidden(p.C0, p.A0, p.B0, p.BInit0), hidden(p.C1, p.A1, p.B1, p.BInit1),
			{In: g.O, N: len(p.B), Centroids: Float32s(p.M.Flat()), Beta: Float32s(p.B)},
		},
		Density: &Density{D: len(g.X[0]), Means: Float32s(g.Density.Means.Flat()), Middle: g.Density.R50, Radius: g.Density.R},
	}
}

func residualCheckNetwork[T kernels.Real](g golden) func(*testing.T, float64) {
	return func(t *testing.T, tol float64) {
		net, p := residualCompute[T](g.network(), len(g.U)), g.Parameters
		setParams(net.rbfNetwork, goldenParams{ // not rounded to float32
			{Centroids: p.C0, Beta: p.B0, Projections: p.A0}, {Centroids: p.C1, Beta: p.B1, Projections: p.A1}, {Centroids: p.M, Beta: p.B},
		})
		net.Layers[0].InitBeta, net.Layers[1].InitBeta = p.BInit0, p.BInit1
		var x []T
		for i, row := range g.U {
			x = append(append(x, Values[T](row)...), T(g.Density.LogDep[i]))
		}
		net.GInput = make([]T, len(g.U)*g.O)
		net.Refresh()
		net.forward(x, len(g.U))
		Near(t, "l", net.outputLogits(len(g.U)), g.L.Flat(), tol)
		Near(t, "log φ", net.Output(len(g.U)), g.LogPhi.Flat(), tol)
		loss := net.Step(x, g.Labels)
		Near(t, "loss", []float64{loss}, Vector{g.Loss}, tol)
		d := g.Gradients
		nearParams(t, "gradient", net.rbfNetwork, true, goldenParams{
			{Centroids: d.C0, Beta: d.B0, Projections: d.A0}, {Centroids: d.C1, Beta: d.B1, Projections: d.A1}, {Centroids: d.M, Beta: d.B},
		}, tol)
		Near(t, "gradient by u", Transpose(net.GInput, g.O), d.U.Flat(), tol)
	}
}

func TestResidualGoldenNetworks(t *testing.T) {
	g := readGolden(t)
	Both(t, "two hidden layers", residualCheckNetwork[float32](g), residualCheckNetwork[float64](g))
}

func TestGoldenScore(t *testing.T) {
	g := readGolden(t)
	c := g.Constants
	score := HeadScore{Nearness: Scale{Mean: -c.NearMean, Deviation: c.NearDeviation}, Decision: Scale{Mean: c.GenMean, Deviation: c.GenDeviation}}
	var gens, scores []float64
	for i, l := range g.L {
		gens = append(gens, decision(Values[float64](l)))
		scores = append(scores, score.of(float64(g.Density.M[i]), decision(Values[float64](l))))
	}
	Near(t, "G", gens, g.Gen, 1e-12)
	Near(t, "score", scores, g.Score, 1e-12)

	// The whole head, its parameters rounded to float32, on conditioned rows.
	m, val := g.network(), g.data(g.XV, g.YV)
	fitted, err := m.fitScore(t.Context(), val)
	if err != nil {
		t.Fatal(err)
	}
	Near(t, "scale of −m", []float64{fitted.Nearness.Mean, fitted.Nearness.Deviation}, Vector{Number(-c.NearMean), Number(c.NearDeviation)}, 1e-6)
	Near(t, "scale of G", []float64{fitted.Decision.Mean, fitted.Decision.Deviation}, Vector{Number(c.GenMean), Number(c.GenDeviation)}, 1e-6)
	m.Score = fitted
	logPhi, got := predict(residualOf(m), g.data(g.Density.X, make([]int64, len(g.Density.X))).X)
	Near(t, "log φ of the head", logPhi, g.LogPhi.Flat(), 1e-6)
	Near(t, "score of the head", got, g.Score, 1e-5)
}

// TestDecisionOfManyClasses compares G with its definition for the 100 largest of
// more classes, and for one almost certain class.
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
	// p = 1 − e^−50 and e^−50: each product is almost e^−50.
	if got, want := decision([]float64{0, -50}), -2*math.Exp(-5); math.Abs(got-want) > 1e-12 {
		t.Errorf("of a certain row: %g, want %g", got, want)
	}
}
