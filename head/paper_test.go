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

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// drawHead draws a head with parameters in a range where nothing saturates.
func drawHead(t *rapid.T, norms ...float64) *PaperNetwork {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	cfg, err := Paper{
		Layers: rapid.IntRange(1, 4).Draw(t, "layers"), Centroids: rapid.IntRange(1, 6).Draw(t, "N"),
		Projection: rapid.IntRange(1, 5).Draw(t, "o"), Norm: rapid.SampledFrom(norms).Draw(t, "k"),
		NoDepression: rapid.Bool().Draw(t, "naive"), NoRatio: rapid.Bool().Draw(t, "no ratio"),
		NoProjections: rapid.Bool().Draw(t, "no projections"),
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	m := newNetwork(cfg, rapid.IntRange(1, 5).Draw(t, "d"), rapid.IntRange(1, 4).Draw(t, "C"))
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

// of returns a head that reads features as they are.
func of(n *PaperNetwork) *Head { return &Head{Network: n} }

// TestGradientsAgainstFiniteDifferences checks every gradient by every
// parameter and input of random networks, in float64.
func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1, 1.5, 2, 2.7, 3)
		const n = 3
		x := make([]float64, n*m.Dim())
		kernels.Convert(x, DrawRows(t, m.Dim(), n))
		labels := []int{0, m.Classes() - 1, m.Classes() / 2}
		net := compute[float64](m, n)
		net.GInput = make([]float64, len(x))
		entries := 1.0
		if net.SumLoss = rapid.Bool().Draw(t, "sum"); net.SumLoss {
			entries = float64(n * m.Classes())
		}
		net.Step(x, labels)
		params, gradients := net.Params()
		CheckGradients(t, append(params, x), append(gradients, Transpose(net.GInput, m.Dim())), func() float64 {
			net.Refresh()
			net.forward(x, n)
			return entries * logBCE(net.Last().Weights, labels, nil)
		})
	})
}

// TestConfidenceIsBounded: confidences are in [0, 1], and far from all centroids
// they are low for every class.
func TestConfidenceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1, 2, 3)
		x := DrawRows(t, m.Dim(), 70) // more than a batch
		for i, l := range of(m).Outputs(x).LogConfidences {
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
		for i, l := range of(m).Outputs(far).LogConfidences {
			if l > math.Log(0.01) {
				t.Fatalf("log φ %d = %g far from all centroids", i, l)
			}
		}
	})
}

func TestPredictorsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawHead(t, 1.5, 2)
		x := DrawRows(t, m.Dim(), 300)
		all := of(m).Outputs(x).LogConfidences
		p := of(m).NewPredictor()
		row := make([]float64, m.Classes())
		for i := range 300 {
			p.Predict(Outputs{LogConfidences: row}, x[i*m.Dim():(i+1)*m.Dim()])
			for c, v := range row {
				if want := all[i*m.Classes()+c]; math.Abs(v-want) > 1e-9*(1+math.Abs(want)) {
					t.Fatalf("row %d alone gives %g, among others %g", i, v, want)
				}
			}
		}
	})
}

func bytesOf(m *Head) []byte {
	var b bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	for _, l := range m.Network.(*PaperNetwork).Layers {
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			write(array)
		}
	}
	return b.Bytes()
}

func TestTrainLearnsAndRepeats(t *testing.T) {
	train, val := Blobs(600, 6, 4, 1), Blobs(200, 6, 4, 2)
	cfg, opts := Paper{Layers: 3, Centroids: 12, Projection: 10}, TrainOptions{Epochs: 30, Batch: 50, LR: 1e-2, Seed: 7}
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

func TestTrainStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	opts := TrainOptions{Epochs: 1000, Progress: func(e Epoch) {
		if e.Epoch == 3 {
			cancel()
		}
	}}
	_, epochs, err := Train(ctx, Paper{Layers: 2}, Blobs(300, 4, 3, 1), features.Rows{}, 3, opts)
	if !errors.Is(err, context.Canceled) || len(epochs) != 3 {
		t.Errorf("%d epochs, %v", len(epochs), err)
	}
}

// TestInitialisationStopsWhenCancelled: with a general norm it would take
// minutes.
func TestInitialisationStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, _, err := Train(ctx, Paper{Norm: 2.5, Centroids: 400}, Blobs(1000, 1000, 10, 1), features.Rows{}, 10, TrainOptions{Batch: 1000})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestTrainRefuses(t *testing.T) {
	good := Blobs(20, 3, 2, 1)
	nan := Blobs(20, 3, 2, 1)
	nan.X[7] = float32(math.NaN())
	outside := Blobs(20, 3, 2, 1)
	outside.Labels[3] = 2
	tests := map[string]struct {
		cfg   Paper
		opts  TrainOptions
		train features.Rows
		want  error // nil: any
	}{
		"one row":        {train: features.Rows{X: good.X, D: 3, Labels: good.Labels, Index: []int{4}}},
		"no rows":        {train: features.Rows{}},
		"label outside":  {train: outside},
		"row outside":    {train: features.Rows{X: good.X, D: 3, Labels: good.Labels, Index: []int{0, 20}}},
		"wrong sizes":    {train: features.Rows{X: good.X, D: 4, Labels: good.Labels, Index: []int{0, 1}}},
		"norm below 1":   {cfg: Paper{Norm: 0.5}, train: good},
		"recovery":       {cfg: Paper{Recovery: 0.9}, train: good},
		"negative layer": {cfg: Paper{Layers: -1}, train: good},
		"batch of one":   {opts: TrainOptions{Batch: 1}, train: good},
		"rate":           {opts: TrainOptions{LR: -1}, train: good},
		"not a number":   {train: nan, want: ErrDiverged},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.opts.Epochs = 2
			m, _, err := Train(context.Background(), tt.cfg, tt.train, features.Rows{}, 2, tt.opts)
			if err == nil || m != nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestTrainCopiesOfOneRow: identical rows give neither widths nor classes, but
// the results must still be finite.
func TestTrainCopiesOfOneRow(t *testing.T) {
	data := features.Rows{X: make([]float32, 40*3), D: 3, Labels: make([]int64, 40)}
	for i := range 40 {
		data.Index = append(data.Index, i)
		data.Labels[i] = int64(i % 2)
	}
	if _, _, err := Train(context.Background(), Paper{}, data, features.Rows{}, 2, TrainOptions{Epochs: 5}); err != nil {
		t.Error(err)
	}
}

func TestValidateRefuses(t *testing.T) {
	tests := map[string]func(*PaperNetwork){
		"no layers":      func(m *PaperNetwork) { m.Layers = nil },
		"not finite":     func(m *PaperNetwork) { m.Layers[1].Beta[0] = float32(math.Inf(1)) },
		"cut short":      func(m *PaperNetwork) { m.Layers[0].Centroids = m.Layers[0].Centroids[1:] },
		"do not fit":     func(m *PaperNetwork) { m.Layers[1].In++ },
		"last projects":  func(m *PaperNetwork) { m.Layers = m.Layers[:1] },
		"norm":           func(m *PaperNetwork) { m.Norm = 0.5 },
		"recovery":       func(m *PaperNetwork) { m.Recovery = 0 },
		"empty in depth": func(m *PaperNetwork) { m.Layers[0].N = 0 },
		"projections":    func(m *PaperNetwork) { m.NoProjections = true },
	}
	for name, spoil := range tests {
		cfg, _ := Paper{Layers: 2}.withDefaults()
		m := newNetwork(cfg, 3, 2)
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
			data := Blobs(256, shape.d, min(shape.c, shape.d), 1)
			cfg, _ := Paper{Layers: shape.layers, Norm: shape.norm}.withDefaults()
			m := newNetwork(cfg, shape.d, shape.c)
			t := &trainer{compute[float32](m, 128), m}
			rng := rand.New(rand.NewPCG(1, 1))
			t.Draw(rng)
			if err := t.Start(b.Context(), data.X, 128, data, rng); err != nil {
				b.Fatal(err)
			}
			adam := newAdam(t.Params())
			labels := make([]int, 128)
			for i := range labels {
				labels[i] = int(data.Labels[i])
			}
			t.Step(data.X[:128*shape.d], labels) // the kernels allocate their buffers
			b.ReportAllocs()
			for b.Loop() {
				t.Step(data.X[:128*shape.d], labels)
				adam.Step(1e-3)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
		})
	}
}

func BenchmarkPredict(b *testing.B) {
	data := Blobs(1024, 768, 10, 1)
	cfg, _ := Paper{}.withDefaults()
	p := of(newNetwork(cfg, 768, 10)).NewPredictor()
	dst := make([]float64, 1024*10)
	b.ReportAllocs()
	for b.Loop() {
		p.Predict(Outputs{LogConfidences: dst}, data.X)
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
		x := DrawRows(t, m.Dim(), n)
		r, l := of(m).Representations(x), of(m).Outputs(x).LogConfidences
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
