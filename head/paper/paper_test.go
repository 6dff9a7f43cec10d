package head

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "mlrbfn/internal/testenv/fixedseed"
)

// drawHead draws a head with parameters in a range where nothing saturates.
func drawHead(t *rapid.T, norms ...float64) *MLRBFN {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	cfg, err := Config{
		Layers: rapid.IntRange(1, 4).Draw(t, "layers"), Centroids: rapid.IntRange(1, 6).Draw(t, "N"),
		Projection: rapid.IntRange(1, 5).Draw(t, "o"), Norm: rapid.SampledFrom(norms).Draw(t, "k"),
		NoDepression: rapid.Bool().Draw(t, "naive"), NoRatio: rapid.Bool().Draw(t, "no ratio"),
		NoProjections: rapid.Bool().Draw(t, "no projections"),
	}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	m := newHead(cfg, rapid.IntRange(1, 5).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C"))
	for i := range m.Layers {
		l := &m.Layers[i]
		for _, array := range [][]float32{l.Centroids, l.Projections} {
			for j := range array {
				array[j] = float32(rng.NormFloat64() * 0.7)
			}
		}
		l.InitBeta = -0.6
		for j := range l.Beta {
			l.Beta[j] = float32(-0.6 + 0.3*rng.NormFloat64())
		}
	}
	return m
}

func drawRows(t *rapid.T, m *MLRBFN, n int) []float32 {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rows"), 2))
	x := make([]float32, n*m.Dim())
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// TestGradientsAgainstFiniteDifferences checks every gradient by every
// parameter and input of random networks, in float64.
func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1, 1.5, 2, 2.7, 3)
		const n = 3
		x := make([]float64, n*m.Dim())
		convert(x, drawRows(t, m, n))
		labels := []int{0, m.Classes() - 1, m.Classes() / 2}
		net := networkOf[float64](m, n)
		net.gInput = make([]float64, len(x))
		entries := 1.0
		if net.sumLoss = rapid.Bool().Draw(t, "sum"); net.sumLoss {
			entries = float64(n * m.Classes())
		}
		net.step(x, labels)
		checkGradients(t, append(net.params(), param[float64]{x, turned(net.gInput, m.Dim())}), func() float64 {
			net.refresh()
			net.forward(x, n)
			return entries * logBCE(net.last().weights, labels, nil)
		})
	})
}

// checkGradients holds gradients against differences of the loss. Where those
// of two widths disagree they tell nothing: there is a kink between the points
// (a max, the cap, |x−c|), or a confidence of a wrong class so near to 1 that
// the loss is all but singular.
func checkGradients(t *rapid.T, params []param[float64], loss func() float64) {
	for number, p := range params {
		for i, grad := range p.grad {
			difference := func(h float64) float64 {
				at := p.value[i]
				defer func() { p.value[i] = at }()
				p.value[i] = at + h
				up := loss()
				p.value[i] = at - h
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

func TestMLPGradientsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 4))
		const n = 3
		d, classes := rapid.IntRange(1, 5).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C")
		m, in := &MLP{}, d
		for left := rapid.IntRange(1, 4).Draw(t, "layers"); left > 0; left-- {
			l := Dense{In: in, Out: rapid.IntRange(1, 6).Draw(t, "width")}
			if left == 1 {
				l.Out = classes
			}
			l.Weights, l.Bias = make([]float32, l.In*l.Out), make([]float32, l.Out)
			for i := range l.Weights {
				l.Weights[i] = float32(rng.NormFloat64())
			}
			for i := range l.Bias {
				l.Bias[i] = float32(rng.NormFloat64())
			}
			m.Layers, in = append(m.Layers, l), l.Out
		}
		x := make([]float64, n*d)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		labels := []int{0, classes - 1, classes / 2}
		net := mlpOf[float64](m, n)
		net.step(x, labels)
		checkGradients(t, net.params(), func() float64 {
			net.logits(x, n)
			return net.loss(labels)
		})
	})
}

// TestConfidenceIsBounded states the head's promise: confidences lie in [0, 1]
// and no input far from everything is confident of anything.
func TestConfidenceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1, 2, 3)
		x := drawRows(t, m, 70) // more than a batch
		for i, l := range m.LogConfidences(x) {
			if math.IsNaN(l) || l > 0 {
				t.Fatalf("log φ %d = %g", i, l)
			}
		}
		if m.NoDepression {
			return
		}
		far := slices.Clone(x)
		for i := range far {
			far[i] += 1e4
		}
		for i, l := range m.LogConfidences(far) {
			if l > math.Log(0.01) {
				t.Fatalf("log φ %d = %g far from all centroids", i, l)
			}
		}
	})
}

func TestPredictorsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1.5, 2)
		x := drawRows(t, m, 300)
		all := m.LogConfidences(x)
		p := m.NewPredictor()
		row := make([]float64, m.Classes())
		for i := range 300 {
			p.Outputs(row, nil, x[i*m.Dim():(i+1)*m.Dim()])
			for c, v := range row {
				if want := all[i*m.Classes()+c]; math.Abs(v-want) > 1e-9*(1+math.Abs(want)) {
					t.Fatalf("row %d alone gives %g, among others %g", i, v, want)
				}
			}
		}
	})
}

// blobs makes n rows of well separated clusters, one per class.
func blobs(n, d, classes int, seed uint64) Data {
	rng := rand.New(rand.NewPCG(seed, 3))
	data := Data{X: make([]float32, n*d), D: d, Labels: make([]int64, n)}
	for i := range n {
		y := i % classes
		data.Labels[i] = int64(y)
		data.Rows = append(data.Rows, i)
		for j := range d {
			data.X[i*d+j] = float32(0.3 * rng.NormFloat64())
		}
		data.X[i*d+y%d] += float32(2 * (1 + y/d))
	}
	return data
}

func bytesOf(m *MLRBFN) []byte {
	var b bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	for _, l := range m.Layers {
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			write(array)
		}
	}
	if m.Open {
		write(m.Density.Means)
		write([]float64{m.Density.Middle, m.Density.Radius})
		write(m.Score)
	}
	return b.Bytes()
}

func TestTrainLearnsAndRepeats(t *testing.T) {
	train, val := blobs(600, 6, 4, 1), blobs(200, 6, 4, 2)
	cfg, opts := Config{Layers: 3, Centroids: 12, Projection: 10}, TrainOptions{Epochs: 30, Batch: 50, LR: 1e-2, Seed: 7}
	m, epochs, err := Train(context.Background(), cfg, train, val, 4, opts)
	if err != nil {
		t.Fatal(err)
	}
	last := epochs[len(epochs)-1]
	if len(epochs) != 30 || last.Steps != 360 || last.ValAccuracy < 0.98 || !(last.ValLoss < epochs[0].ValLoss) {
		t.Errorf("after training: %+v", last)
	}
	if err := m.Validate(); err != nil {
		t.Error(err)
	}
	again, _, err := Train(context.Background(), cfg, train, val, 4, opts)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytesOf(m), bytesOf(again)) {
		t.Error("the same seed gave another head")
	}
	opts.Seed = 8
	other, _, err := Train(context.Background(), cfg, train, val, 4, opts)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(bytesOf(m), bytesOf(other)) {
		t.Error("another seed gave the same head")
	}
}

func TestTrainMLPLearns(t *testing.T) {
	train, val := blobs(600, 6, 4, 1), blobs(201, 6, 4, 2)
	for layers := 1; layers <= 4; layers++ {
		m, epochs, err := TrainMLP(context.Background(), MLPConfig{Layers: layers, Hidden: 16}, train, val, 4, TrainOptions{Epochs: 60, Batch: 32, LR: 1e-2})
		if err != nil {
			t.Fatal(err)
		}
		last := epochs[len(epochs)-1]
		if len(m.Layers) != layers || last.ValAccuracy < 0.98 {
			t.Errorf("%d layers: %d were made, with accuracy %g", layers, len(m.Layers), last.ValAccuracy)
		}
		logits := m.Logits(val.X)
		right := 0
		for i, y := range val.Labels {
			if argmax(logits[i*4:(i+1)*4]) == int(y) {
				right++
			}
		}
		if got := float64(right) / 201; got != last.ValAccuracy {
			t.Errorf("%d layers: Logits give accuracy %g, training ended at %g", layers, got, last.ValAccuracy)
		}
	}
	for _, cfg := range []MLPConfig{{Layers: -1}, {Layers: 101}, {Hidden: -1}} {
		if _, _, err := TrainMLP(context.Background(), cfg, train, val, 4, TrainOptions{Epochs: 1}); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestTrainStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	opts := TrainOptions{Epochs: 1000, Progress: func(e Epoch) {
		if e.Epoch == 3 {
			cancel()
		}
	}}
	_, epochs, err := Train(ctx, Config{Layers: 2}, blobs(300, 4, 3, 1), Data{}, 3, opts)
	if !errors.Is(err, context.Canceled) || len(epochs) != 3 {
		t.Errorf("%d epochs, %v", len(epochs), err)
	}
}

// TestInitialisationStopsWhenCancelled: with a general norm it would take
// minutes.
func TestInitialisationStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, _, err := Train(ctx, Config{Norm: 2.5, Centroids: 400}, blobs(1000, 1000, 10, 1), Data{}, 10, TrainOptions{Batch: 1000})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestTrainRefuses(t *testing.T) {
	good := blobs(20, 3, 2, 1)
	nan := blobs(20, 3, 2, 1)
	nan.X[7] = float32(math.NaN())
	outside := blobs(20, 3, 2, 1)
	outside.Labels[3] = 2
	tests := map[string]struct {
		cfg   Config
		opts  TrainOptions
		train Data
		want  error // nil: any
	}{
		"one row":        {train: Data{X: good.X, D: 3, Labels: good.Labels, Rows: []int{4}}},
		"no rows":        {train: Data{}},
		"label outside":  {train: outside},
		"row outside":    {train: Data{X: good.X, D: 3, Labels: good.Labels, Rows: []int{0, 20}}},
		"wrong sizes":    {train: Data{X: good.X, D: 4, Labels: good.Labels, Rows: []int{0, 1}}},
		"norm below 1":   {cfg: Config{Norm: 0.5}, train: good},
		"recovery":       {cfg: Config{Recovery: 0.9}, train: good},
		"negative layer": {cfg: Config{Layers: -1}, train: good},
		"batch of one":   {opts: TrainOptions{Batch: 1}, train: good},
		"rate":           {opts: TrainOptions{LR: -1}, train: good},
		"not a number":   {train: nan, want: ErrDiverged},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.opts.Epochs = 2
			m, _, err := Train(context.Background(), tt.cfg, tt.train, Data{}, 2, tt.opts)
			if err == nil || m != nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestTrainCopiesOfOneRow has nothing to tell widths or classes by; it must
// still end in numbers.
func TestTrainCopiesOfOneRow(t *testing.T) {
	data := Data{X: make([]float32, 40*3), D: 3, Labels: make([]int64, 40)}
	for i := range 40 {
		data.Rows = append(data.Rows, i)
		data.Labels[i] = int64(i % 2)
	}
	if _, _, err := Train(context.Background(), Config{}, data, Data{}, 2, TrainOptions{Epochs: 5}); err != nil {
		t.Error(err)
	}
}

func TestValidateRefuses(t *testing.T) {
	tests := map[string]func(*MLRBFN){
		"no layers":      func(m *MLRBFN) { m.Layers = nil },
		"not finite":     func(m *MLRBFN) { m.Layers[1].Beta[0] = float32(math.Inf(1)) },
		"cut short":      func(m *MLRBFN) { m.Layers[0].Centroids = m.Layers[0].Centroids[1:] },
		"do not fit":     func(m *MLRBFN) { m.Layers[1].In++ },
		"last projects":  func(m *MLRBFN) { m.Layers = m.Layers[:1] },
		"norm":           func(m *MLRBFN) { m.Norm = 0.5 },
		"recovery":       func(m *MLRBFN) { m.Recovery = 0 },
		"empty in depth": func(m *MLRBFN) { m.Layers[0].N = 0 },
		"projections":    func(m *MLRBFN) { m.NoProjections = true },
	}
	for name, spoil := range tests {
		cfg, _ := Config{Layers: 2}.WithDefaults()
		m := newHead(cfg, 3, 2)
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if err := m.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, shape := range []struct {
		name         string
		d, layers, c int
		norm         float64
	}{
		{name: "cifar10-512", d: 512, layers: 4, c: 10, norm: 2},
		{name: "cifar10-768", d: 768, layers: 4, c: 10, norm: 2},
		{name: "imagenet1k-768", d: 768, layers: 5, c: 1000, norm: 2},
		{name: "cifar10-512-k1", d: 512, layers: 4, c: 10, norm: 1},
	} {
		b.Run(shape.name, func(b *testing.B) {
			data := blobs(256, shape.d, min(shape.c, shape.d), 1)
			cfg, _ := Config{Layers: shape.layers, Norm: shape.norm}.WithDefaults()
			m := newHead(cfg, shape.d, shape.c)
			t := &trainer{network: networkOf[float32](m, 128), head: m}
			if err := t.start(b.Context(), data.X, 128, Data{}, newRand(1)); err != nil {
				b.Fatal(err)
			}
			adam := newAdam(t.params())
			labels := make([]int, 128)
			for i := range labels {
				labels[i] = int(data.Labels[i])
			}
			t.step(data.X[:128*shape.d], labels) // the kernels make their room
			b.ReportAllocs()
			for b.Loop() {
				t.step(data.X[:128*shape.d], labels)
				adam.step(1e-3)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
		})
	}
}

func BenchmarkPredict(b *testing.B) {
	data := blobs(1024, 768, 10, 1)
	cfg, _ := Config{}.WithDefaults()
	p := newHead(cfg, 768, 10).NewPredictor()
	dst := make([]float64, 1024*10)
	b.ReportAllocs()
	for b.Loop() {
		p.Outputs(dst, nil, data.X)
	}
	b.ReportMetric(float64(b.N)*1024/b.Elapsed().Seconds(), "rows/s")
}

// TestRepresentations: without depression log φ_c is −β⁺_c ‖r−c‖² of the last
// layer's input r.
func TestRepresentations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 2)
		m.NoDepression = true
		const n = 3
		x := drawRows(t, m, n)
		r, l := m.Representations(x), m.LogConfidences(x)
		last := m.Layers[len(m.Layers)-1]
		if m.Width() != last.In || len(r) != n*last.In {
			t.Fatalf("%d values of %d rows of width %d", len(r), n, m.Width())
		}
		widths, _ := last.Widths()
		for i := range n {
			for c := range last.N {
				want := -widths[c] * float64(distance(2, r[i*last.In:(i+1)*last.In], last.Centroids[c*last.In:(c+1)*last.In]))
				if got := l[i*last.N+c]; math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
					t.Fatalf("row %d, class %d: log φ is %g, and of the representation %g", i, c, got, want)
				}
			}
		}
	})
}
