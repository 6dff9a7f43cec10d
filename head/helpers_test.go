package head

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// Number is a float64 in JSON that may be written "inf", "-inf" or "nan".
type Number float64

func (v *Number) UnmarshalJSON(data []byte) error {
	if data[0] != '"' {
		return json.Unmarshal(data, (*float64)(v))
	}
	text, err := strconv.Unquote(string(data))
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(text, 64)
	*v = Number(f)
	return err
}

type (
	Vector []Number
	Matrix []Vector
)

func (m Matrix) Flat() Vector {
	var out Vector
	for _, row := range m {
		out = append(out, row...)
	}
	return out
}

func Values[T kernels.Real](v Vector) []T {
	out := make([]T, len(v))
	for i, x := range v {
		out[i] = T(x)
	}
	return out
}

func Float32s(v Vector) []float32 { return Values[float32](v) }

// Golden reads expected values that PyTorch computed in float64 (internal/testenv/goldens).
func Golden(t *testing.T, file string, into any) {
	t.Helper()
	ReadGolden(t, testenv.Golden(t, file), into)
}

func ReadGolden(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// Both runs a test in float32 and in float64, each with its tolerance.
func Both(t *testing.T, name string, single func(*testing.T, float64), double func(*testing.T, float64)) {
	t.Run(name+"/float32", func(t *testing.T) { single(t, 1e-5) })
	t.Run(name+"/float64", func(t *testing.T) { double(t, 1e-9) })
}

// Near compares got with want. The tolerance is tol times want's largest finite magnitude.
func Near[T kernels.Real](t *testing.T, what string, got []T, want Vector, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	var scale, worst float64
	at := -1
	for _, w := range want {
		if a := math.Abs(float64(w)); !math.IsInf(a, 0) {
			scale = max(scale, a)
		}
	}
	for i, w := range want {
		g, w := float64(got[i]), float64(w)
		if g == w {
			continue
		}
		if e := math.Abs(g - w); !(e <= worst) {
			worst, at = e, i
		}
	}
	if at >= 0 && !(worst <= tol*scale) {
		t.Errorf("%s[%d] = %v, want %v (error %.2g of the largest value %.3g, allowed %.0g)",
			what, at, got[at], want[at], worst/scale, scale, tol)
	}
}

// Transpose returns the transpose of x [·, b].
func Transpose[T kernels.Real](x []T, b int) []T {
	out := make([]T, len(x))
	newArithmetic[T]().Transpose(out, x, b, len(x)/b)
	return out
}

// Given is a source of prepared random numbers.
type Given struct{ Uniforms, Normals []Number }

func (g *Given) Float64() float64 {
	v := g.Uniforms[0]
	g.Uniforms = g.Uniforms[1:]
	return float64(v)
}

func (g *Given) NormFloat64() float64 {
	v := g.Normals[0] / 1e-5 // the goldens hold the scaled noise
	g.Normals = g.Normals[1:]
	return float64(v)
}

// CheckGradients compares gradients with finite differences of the loss. It skips
// an entry for which differences of two widths disagree: either there is a kink
// between the points (a max, the cap, |x−c|), or the confidence of a wrong class is
// so near to 1 that the loss is almost singular.
func CheckGradients(t *rapid.T, params, gradients [][]float64, loss func() float64) {
	for number, p := range params {
		for i, grad := range gradients[number] {
			difference := func(h float64) float64 {
				at := p[i]
				defer func() { p[i] = at }()
				p[i] = at + h
				up := loss()
				p[i] = at - h
				return (up - loss()) / (2 * h)
			}
			numeric := difference(1e-6)
			far := func(a float64) bool { return math.Abs(a-numeric) > 1e-6*(1+math.Abs(numeric)) }
			if far(grad) && !far(difference(1.5e-6)) {
				t.Fatalf("array %d, %d: gradient %g, finite difference %g", number, i, grad, numeric)
			}
		}
	}
}

// Blobs makes n rows of well separated clusters, one per class.
func Blobs(n, d, classes int, seed uint64) features.Rows {
	rng := rand.New(rand.NewPCG(seed, 3))
	data := features.Rows{X: make([]float32, n*d), D: d, Labels: make([]int64, n)}
	for i := range n {
		y := i % classes
		data.Labels[i] = int64(y)
		data.Index = append(data.Index, i)
		for j := range d {
			data.X[i*d+j] = float32(0.3 * rng.NormFloat64())
		}
		data.X[i*d+y%d] += float32(2 * (1 + y/d))
	}
	return data
}

// DrawRows draws n rows of d normal values.
func DrawRows(t *rapid.T, d, n int) []float32 {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rows"), 2))
	x := make([]float32, n*d)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// Paged moves all rows of data into a file of which at most memory bytes are in
// memory at a time.
func Paged(t *testing.T, data features.Rows, memory int64) features.Rows {
	t.Helper()
	space := features.NewSpace(memory, t.TempDir(), 1)
	paged, err := space.Make(data.D, data.Labels, func(write func(int, []float32) error) error { return write(0, data.X) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(paged.Close(), space.Close()); err != nil {
			t.Error(err)
		}
	})
	return paged
}

// WithAllKernels runs the tests of this program that match the pattern once more
// with each set of kernels that this machine has but does not use.
func WithAllKernels(t *testing.T, pattern string) {
	const variable = "MLRBFN_KERNELS"
	if os.Getenv(variable) != "" {
		t.Skip(variable + " chooses one")
	}
	for _, name := range kernels.Names() {
		if name == kernels.Name() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern)
			cmd.Env = append(os.Environ(), variable+"="+name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// predict returns log φ and the scores of the rows x.
func predict(m *Head, x []float32) (logPhi, scores []float64) {
	o := m.Outputs(x)
	return o.LogConfidences, o.Scores
}
