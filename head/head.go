package head

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"mlrbfn/conditioning"
)

// Config is the shape of an MLRBFN. A zero field takes the paper's value.
type Config struct {
	Layers       int     // RBF layers, the last one included; 0 means 4
	Centroids    int     // N, centroids of each hidden layer; 0 means 50
	Projection   int     // o, outputs of each hidden layer; 0 means 100
	Norm         float64 // k ≥ 1 of the distance ‖x−c‖_k^k; 0 means 2
	Recovery     float64 // rec ≥ 1; 0 means 1.1
	NoDepression bool    // the paper's naive network: no cap and no β ratio

	// Open is the head that goes past the paper's, for conditioned features
	// (see the package's text). Its layers read the first Projection features;
	// 0 means 50 of them, or one less than there are classes where these are
	// more. It needs norm 2.
	Open bool

	// The other steps that the paper took, each of which can be taken back by
	// itself.

	NoRatio       bool // depression without the ratio β⁺_c/β⁺_init
	NoProjections bool // a hidden layer gives (n_1, …, n_N), and Projection is not read
	SumLoss       bool // the loss is added up over the entries instead of averaged
}

// WithDefaults fills in the zero fields and refuses what cannot be.
func (c Config) WithDefaults() (Config, error) {
	fill(&c.Layers, 4)
	fill(&c.Centroids, 50)
	if !c.Open {
		fill(&c.Projection, 100)
	}
	fill(&c.Norm, 2)
	fill(&c.Recovery, 1.1)
	switch {
	case c.Layers < 1 || c.Layers > 100:
		return c, fmt.Errorf("%d layers: a head has 1 to 100", c.Layers)
	case c.Centroids < 1 || c.Projection < 0 || c.Projection == 0 && !c.Open:
		return c, fmt.Errorf("%d centroids and %d projections: both must be positive", c.Centroids, c.Projection)
	case !(c.Norm >= 1) || math.IsInf(c.Norm, 1):
		return c, fmt.Errorf("norm %g: k must be finite and at least 1", c.Norm)
	case c.Open && (c.Norm != 2 || c.NoDepression || c.NoRatio || c.NoProjections):
		return c, fmt.Errorf("an open head has norm 2 and none of the paper's steps taken back")
	case !(c.Recovery >= 1) || math.IsInf(c.Recovery, 1):
		return c, fmt.Errorf("recovery %g: it must be finite and at least 1", c.Recovery)
	}
	return c, nil
}

// fill sets *v to the default where it is zero.
func fill[V int | float64](v *V, byDefault V) {
	if *v == 0 {
		*v = byDefault
	}
}

// newHead gives cfg's layers, all parameters zero, for d features and the
// given number of classes.
func newHead(cfg Config, d, classes int) *MLRBFN {
	m := &MLRBFN{
		Norm: cfg.Norm, Recovery: cfg.Recovery,
		NoDepression: cfg.NoDepression, NoRatio: cfg.NoRatio, NoProjections: cfg.NoProjections,
	}
	if cfg.Open {
		return newOpenHead(m, cfg, d, classes)
	}
	add := func(n, o, projections int) {
		m.Layers = append(m.Layers, Layer{
			In: d, N: n, Out: o,
			Centroids: make([]float32, n*d), Beta: make([]float32, n), Projections: make([]float32, n*projections),
		})
		d = o
	}
	for range cfg.Layers - 1 {
		if cfg.NoProjections {
			add(cfg.Centroids, cfg.Centroids, 0)
		} else {
			add(cfg.Centroids, cfg.Projection, cfg.Projection)
		}
	}
	add(classes, 0, 0)
	return m
}

// newOpenHead gives m the layers of an open head for d features.
func newOpenHead(m *MLRBFN, cfg Config, d, classes int) *MLRBFN {
	m.Open = true
	e := cfg.Projection
	if e == 0 {
		e = max(50, classes-1)
	}
	e = min(e, d)
	for range cfg.Layers - 1 {
		m.Layers = append(m.Layers, Layer{
			In: e, N: cfg.Centroids, Out: e,
			Centroids: make([]float32, cfg.Centroids*e), Beta: make([]float32, cfg.Centroids), Projections: make([]float32, cfg.Centroids*e),
		})
	}
	m.Layers = append(m.Layers, Layer{In: e, N: classes, Centroids: make([]float32, classes*e), Beta: make([]float32, classes)})
	return m
}

// Layer is one RBF layer with N centroids for inputs of length d. A hidden
// layer has projections of length o, or none where it gives the N weights of
// its centroids as they are; the last layer has one centroid per class.
type Layer struct {
	In, N, Out  int       // d, N and o; Out is N without projections, and 0 in the last layer
	Centroids   []float32 // [N, d]
	Beta        []float32 // [N], β; the inverse-width is β⁺ = softplus(β)
	InitBeta    float32   // β of the whole layer before training
	Projections []float32 // [N, o]; empty in the last layer and without
}

// Widths returns β⁺ [N] of the centroids and β⁺_init.
func (l *Layer) Widths() (widths []float64, initial float64) {
	widths = make([]float64, l.N)
	for c, b := range l.Beta {
		widths[c] = softplus(float64(b))
	}
	return widths, softplus(float64(l.InitBeta))
}

// MLRBFN is a multi-layer radial basis function network: what training gives
// and a detector file holds. It does not change once made, so any number of
// goroutines may use it.
type MLRBFN struct {
	Norm     float64 // k
	Recovery float64 // rec
	Layers   []Layer

	NoDepression, NoRatio, NoProjections, Open bool // as in Config

	Density *Density // of an open head
	Score   *Score   // of an open head; nil means max_c log φ_c

	// Conditioning is what is done to features before the first layer; nil
	// means nothing. Train leaves it to the caller, who has trained on
	// conditioned features, to set.
	Conditioning *conditioning.Conditioning
}

// Dim returns the number of features that the head reads.
func (m *MLRBFN) Dim() int {
	if m.Conditioning != nil {
		return m.Conditioning.In()
	}
	return m.in()
}

// in is the length of conditioned rows.
func (m *MLRBFN) in() int {
	if m.Open {
		return m.Density.D
	}
	return m.Layers[0].In
}

// Classes returns C, the number of classes.
func (m *MLRBFN) Classes() int { return m.Layers[len(m.Layers)-1].N }

// Validate reports whether the layers fit together and all numbers are finite;
// every other method relies on it for a head that comes from outside.
func (m *MLRBFN) Validate() error {
	if len(m.Layers) == 0 {
		return fmt.Errorf("a head needs at least one layer")
	}
	cfg := Config{
		Layers: len(m.Layers), Norm: m.Norm, Recovery: m.Recovery, Open: m.Open,
		NoDepression: m.NoDepression, NoRatio: m.NoRatio, NoProjections: m.NoProjections,
	}
	if m.Norm == 0 || m.Recovery == 0 {
		return fmt.Errorf("norm %g and recovery %g: neither can be zero", m.Norm, m.Recovery)
	}
	if _, err := cfg.WithDefaults(); err != nil {
		return err
	}
	if m.Open && (m.Density == nil || !m.Density.valid() || m.Density.D < m.Layers[0].In) {
		return fmt.Errorf("an open head without a density that fits its layers")
	}
	if c := m.Conditioning; c != nil {
		if err := c.Validate(); err != nil {
			return err
		}
		if c.Out() != m.in() {
			return fmt.Errorf("the layers read %d values where the conditioning gives %d", m.in(), c.Out())
		}
	}
	if s := m.Score; s != nil && !s.valid() {
		return fmt.Errorf("the head holds the score %+v", *s)
	}
	for i, l := range m.Layers {
		last := i == len(m.Layers)-1
		projections := l.N * l.Out
		if m.NoProjections {
			projections = 0
		}
		switch {
		case l.In < 1 || l.N < 1 || last != (l.Out == 0) || l.Out < 0:
			return fmt.Errorf("layer %d has the shape d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		case m.Open && !last && l.In != l.Out:
			return fmt.Errorf("layer %d of an open head has the shape d=%d, o=%d", i, l.In, l.Out)
		case i > 0 && l.In != m.Layers[i-1].Out:
			return fmt.Errorf("layer %d reads %d values where layer %d gives %d", i, l.In, i-1, m.Layers[i-1].Out)
		case m.NoProjections && !last && l.Out != l.N:
			return fmt.Errorf("layer %d gives %d values, and has %d centroids without projections", i, l.Out, l.N)
		case len(l.Centroids) != l.N*l.In, len(l.Beta) != l.N, len(l.Projections) != projections:
			return fmt.Errorf("layer %d has arrays of the wrong size for d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		}
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			if slices.ContainsFunc(array, notFinite) {
				return fmt.Errorf("layer %d holds a value that is not finite", i)
			}
		}
	}
	return nil
}

func notFinite(v float32) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}

// predictBatch is how many rows a Predictor takes at once: enough for the
// matrix products, few enough to stay in the cache.
const predictBatch = 64

// Predictor computes a head's outputs in float64, without allocating. It
// serves one goroutine.
type Predictor struct {
	net        *network[float64]
	d, classes int
	score      *Score
	condition  *conditioning.Conditioning
	raw        []float64 // a batch of features before conditioning; nil without one
	z          []float64 // a batch after it

	// Of an open head.
	density  *Density
	measure  *measure
	distance []float64 // of a batch from the nearest class mean
	reduced  []float64 // what the layers read
}

// NewPredictor returns a Predictor of its own for the calling goroutine.
func (m *MLRBFN) NewPredictor() *Predictor {
	p := &Predictor{
		net: networkOf[float64](m, predictBatch), d: m.Dim(), classes: m.Classes(),
		score: m.Score, condition: m.Conditioning, z: make([]float64, predictBatch*m.in()),
	}
	if p.condition != nil {
		p.raw = make([]float64, predictBatch*p.d)
	}
	if m.Open {
		p.density, p.measure = m.Density, m.Density.measure()
		p.reduced, p.distance = make([]float64, predictBatch*(m.Layers[0].In+1)), make([]float64, predictBatch)
	}
	return p
}

// Outputs fills logConfidences [n, C] with log φ_c and scores [n], unless nil,
// with how in-distribution each of the rows x [n, d] is, higher being more so:
// max_c log φ_c, or what the head's Score makes of it. It panics where the
// lengths do not fit.
func (p *Predictor) Outputs(logConfidences, scores []float64, x []float32) {
	n := len(x) / p.d
	if len(x) != n*p.d || len(logConfidences) != n*p.classes || scores != nil && len(scores) != n {
		panic("head: Outputs: the rows and what to fill do not fit the head")
	}
	for len(x) > 0 {
		b := min(predictBatch, len(x)/p.d)
		logits := p.forward(x[:b*p.d], b)
		for i, v := range p.net.output(b) {
			logConfidences[i] = min(v, 0) // which rounding may take it above
		}
		if scores != nil {
			for i := range b {
				from, to := i*p.classes, (i+1)*p.classes
				if p.score == nil {
					scores[i] = slices.Max(logConfidences[from:to])
				} else {
					scores[i] = p.score.of(p.distance[i], logits[from:to])
				}
			}
			scores = scores[b:]
		}
		x, logConfidences = x[b*p.d:], logConfidences[b*p.classes:]
	}
}

// forward computes a batch of b rows, and returns the l_c [b, C] of an open
// head.
func (p *Predictor) forward(x []float32, b int) (logits []float64) {
	if p.condition == nil {
		convert(p.z, x)
	} else {
		convert(p.raw, x)
		p.condition.Apply(p.z, p.raw[:b*p.d])
	}
	if p.measure == nil {
		p.net.forward(p.z, b)
		return nil
	}
	p.measure.distances(p.distance, p.z, b)
	d, e := p.measure.d, p.net.last().d
	for i := range b {
		row := p.reduced[i*(e+1) : (i+1)*(e+1)]
		copy(row, p.z[i*d:i*d+e])
		row[e] = p.density.logDep(p.distance[i])
	}
	p.net.forward(p.reduced, b)
	return p.net.outputLogits(b)
}

// LogConfidences returns log φ [n, C] for the rows x [n, d]: the logarithm of
// the confidence, in [0, 1], that a row is of class c. The rows are shared out
// over all cores.
func (m *MLRBFN) LogConfidences(x []float32) []float64 {
	logConfidences, _ := m.Outputs(x)
	return logConfidences
}

// Outputs returns log φ [n, C] and the scores [n] of the rows x [n, d]; see
// [Predictor.Outputs]. The rows are shared out over all cores.
func (m *MLRBFN) Outputs(x []float32) (logConfidences, scores []float64) {
	d, classes := m.Dim(), m.Classes()
	n := len(x) / d
	logConfidences, scores = make([]float64, n*classes), make([]float64, n)
	// Whole batches each, so that any number of workers gives the same bits.
	batches := (n + predictBatch - 1) / predictBatch
	workers := min(runtime.GOMAXPROCS(0), batches)
	var wg sync.WaitGroup
	for w := range workers {
		from, to := batches*w/workers*predictBatch, min(batches*(w+1)/workers*predictBatch, n)
		wg.Go(func() {
			m.NewPredictor().Outputs(logConfidences[from*classes:to*classes], scores[from:to], x[from*d:to*d])
		})
	}
	wg.Wait()
	return logConfidences, scores
}

// Representations returns what the last layer reads of the rows x [n, d]: φ of
// the layer before it, or an open head's first features as its hidden layers
// have moved them; [n, R] with R = Width.
func (m *MLRBFN) Representations(x []float32) []float32 {
	d, width := m.Dim(), m.Width()
	p := m.NewPredictor()
	out, rows := make([]float32, len(x)/d*width), make([]float64, predictBatch*width)
	for to := out; len(x) > 0; {
		b := min(predictBatch, len(x)/d)
		p.forward(x[:b*d], b)
		if last := p.net.last(); last.rowsIn != nil {
			rows = last.rowsIn
		} else {
			p.net.Transpose(rows, last.in, width, b)
		}
		convert(to, rows[:b*width])
		x, to = x[b*d:], to[b*width:]
	}
	return out
}

// Width returns R, the number of values that the last layer reads.
func (m *MLRBFN) Width() int { return m.Layers[len(m.Layers)-1].In }
