package posthoc

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

var _ = declare[ASH]("ASH", pruning("ash-b", ASHB), pruning("ash-p", ASHP), pruning("ash-s", ASHS), pruning("scale", Scale))

func pruning(name string, how Shape) method {
	return method{
		name: name, reads: featureRows, needs: lastLayer,
		words: Words{"little evidence for any class in its largest features", "the usual evidence for a class in its largest features", "with less evidence for any class in its largest features"},
		fit:   func(_ context.Context, in Input) (Scorer, error) { return &ASH{Head: in.LastLayer, Shape: how}, nil },
	}
}

func (s *ASH) fields(f *fields) {
	f.layer("head", &s.Head)
	text(f, "shape", &s.Shape)
	f.float("percentile", &s.Percentile)
	f.refuse(!(s.Percentile >= 0 && s.Percentile <= 100), "percentile", "it is %g", s.Percentile)
	f.refuse(!slices.Contains([]Shape{"", ASHB, ASHP, ASHS, Scale}, s.Shape), "shape", "%q is not known", s.Shape)
}

// Shape says what [ASH] does to features f, of which it looks at the k largest.
type Shape string

const (
	ASHB  Shape = "ash-b" // the k largest become Σf/k, the rest 0
	ASHP  Shape = "ash-p" // the rest become 0
	ASHS  Shape = "ash-s" // the rest become 0, the k largest grow by exp(Σf/Σ of them)
	Scale Shape = "scale" // all grow by that factor
)

// ASH is the energy of a linear head on features f, after the small ones were
// pruned: log Σ_c exp(Wf̃ + b)_c. Reads features. Shape says what happens to the
// k largest of D features and to the rest, k = D − round(D·percentile/100) (half to
// even, at least 1).
//
// ASHS and Scale expect features that are not negative, as ReLU gives them.
// Where the k largest do not add up to more than 0, as those of features of
// zeros, their factor is 1 (OpenOOD: NaN).
//
// Source: Djurisic et al., 2023, ASH (OpenOOD: ASHPostprocessor, which runs
// ASHB); Xu et al., 2024, SCALE (ScalePostprocessor).
type ASH struct {
	Head       *Linear
	Shape      Shape   // "" means ASHP
	Percentile float64 // 0 means OpenOOD's default: 85 of Scale, else 90
}

// Score implements [Scorer].
func (s ASH) Score(ctx context.Context, dst []float64, b Batch) error { return alone(ctx, s, dst, b) }

func (s ASH) join(t *together, dst []float64, _ Batch) error { return s.shape().join(t, s.Head, dst) }

func (s ASH) shape() shape {
	percentile := 90.
	if s.Shape == Scale {
		percentile = 85
	}
	return shape{d: s.Head.In, how: s.Shape, percentile: cmp.Or(s.Percentile, percentile)}
}

// largest is k.
func (s shape) largest() int {
	return max(s.d-int(math.RoundToEven(float64(s.d)*s.percentile/100)), 1)
}

// prune changes features as ASH documents it.
func (s shape) prune(f []float64) {
	all := sum(f)
	if math.IsNaN(all) { // NaN has no place in an order
		f[0] = all
		return
	}
	k := s.largest()
	room, done := scratch(s.d)
	defer done()
	copy(room, f)
	least := linalg.KthLargest(room, k)
	var large float64 // the sum of the k largest
	ties := k         // how many features equal to the least are among the k largest
	for _, v := range f {
		if v > least {
			large += v
			ties--
		}
	}
	large += float64(ties) * least
	factor := 1.
	if large > 0 && (s.how == ASHS || s.how == Scale) {
		factor = math.Exp(min(all/large, maxExp))
	}
	for j, v := range f {
		keep := v > least || math.IsNaN(v)
		if v == least && ties > 0 {
			keep = true
			ties--
		}
		switch {
		case s.how == Scale || keep && s.how != ASHB:
			f[j] *= factor
		case keep:
			f[j] = all / float64(k)
		default:
			f[j] = 0
		}
	}
}

// maxExp is the largest exponent of a factor: products with it stay finite.
const maxExp = 300

// graph needs an operator that ONNX has since opset 11.
func (s *ASH) graph(g *graph) onnx.Value {
	x := g.Features
	k := s.shape().largest()
	top, at := g.TopK(x, k)
	large, all := g.Sum(top), g.Sum(x)
	positive := g.Positive(large)
	// log of the factor: Σf/Σ of the k largest, 0 where these are not positive
	share := g.Op("Min", g.Over(all, g.Op("Mul", large, positive)), g.Number(maxExp))
	factor := g.Op("Exp", share)
	switch s.Shape {
	case Scale:
		return g.energy(g.linear(s.Head, g.Op("Mul", x, factor)), 1)
	case ASHS:
		top = g.Op("Mul", top, factor)
	case ASHB:
		top = g.Op("Add", g.Op("Mul", top, g.Number(0)), g.Op("Div", all, g.Number(float64(k))))
	}
	if opset := g.Opset(); opset < 11 {
		g.fail(options.Errorf("Opset", "%d: %s needs 11", opset, s.Shape))
	}
	kept := g.Node("ScatterElements", []onnx.Value{g.Op("Mul", x, g.Number(0)), at, top}, onnx.Int("axis", 1))
	return g.energy(g.linear(s.Head, kept), 1)
}
