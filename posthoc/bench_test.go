package posthoc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

// synthetic makes normal features around the means of 100 classes.
func synthetic(n, d int) *posthoc.Data {
	const classes = 100
	rng := rand.New(rand.NewPCG(uint64(n), uint64(d)))
	means := make([]float32, classes*d)
	for i := range means {
		means[i] = float32(rng.NormFloat64())
	}
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % classes)
		for j := range d {
			x[i*d+j] = means[int(labels[i])*d+j] + float32(rng.NormFloat64())
		}
	}
	return posthoc.NewData(x, d, labels, classes)
}

// BenchmarkKNN scores 1,000 queries of the bank's classes, and of others. flop counts the
// products alone.
func BenchmarkKNN(b *testing.B) {
	const queries, d = 1000, 768
	for _, n := range []int{2_500, 20_000, 40_000} {
		all := synthetic(n+queries, d)
		data := posthoc.NewData(all.Features(0, n), d, all.Labels[:n], all.Classes)
		for i, x := range [][]float32{all.Features(n, n+queries), synthetic(queries, d).Features(0, queries)} {
			b.Run(fmt.Sprintf("n=%d/%s", n, []string{"known", "new"}[i]), func(b *testing.B) {
				s, err := posthoc.FitKNN(data, 50)
				if err != nil {
					b.Fatal(err)
				}
				dst := make([]float64, queries)
				for b.Loop() {
					if err := s.Score(context.Background(), dst, posthoc.Batch{Features: x}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(2*queries*d*float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gflop/s")
			})
		}
	}
}

// BenchmarkFitRMDS fits both covariances.
func BenchmarkFitRMDS(b *testing.B) {
	const d = 768
	for _, n := range []int{2_500, 10_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			data := synthetic(n, d)
			for b.Loop() {
				fresh := posthoc.NewData(data.Features(0, n), d, data.Labels, data.Classes)
				if _, err := posthoc.FitRMDS(context.Background(), fresh, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScore scores 1,000 rows by each method that needs no long fit.
func BenchmarkScore(b *testing.B) {
	const n, d = 1000, 256
	rng := rand.New(rand.NewPCG(1, 1))
	data := synthetic(n, d)
	weights := make([]float32, 100*d)
	for i := range weights {
		weights[i] = float32(rng.NormFloat64())
	}
	head, err := posthoc.NewLinear(weights, make([]float32, 100))
	if err != nil {
		b.Fatal(err)
	}
	x, logits := make([]float64, n*d), make([]float64, n*100)
	for i, v := range data.Features(0, n) {
		x[i] = float64(v)
	}
	head.Logits(logits, x)
	data.Logits = posthoc.Matrix(logits, 100)
	dst := make([]float64, n)
	for _, name := range []string{"msp", "gen", "klm", "odin", "react", "scale", "she-ip", "fdbd", "mds", "mds++", "rmds++", "vim", "nnguide"} {
		s := fit(b, name, posthoc.Input{Train: data, LastLayer: head})
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := s.Score(context.Background(), dst, whole(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScoreAll scores 1,000 queries by KNN and the relations of three heads
// with ten classes.
func BenchmarkScoreAll(b *testing.B) {
	const queries, n, d, classes = 1000, 50_000, 512, 10
	rng := rand.New(rand.NewPCG(1, 1))
	rows := func(n int) []float32 {
		x := synthetic(n, d).Features(0, n)
		for i, v := range x {
			x[i] = max(v, 0)
		}
		return x
	}
	data := posthoc.NewData(rows(n), d, nil, classes)
	knn, err := posthoc.FitKNN(data, 50)
	if err != nil {
		b.Fatal(err)
	}
	scores := []posthoc.Scorer{knn}
	batches := []posthoc.Batch{{Features: rows(queries)}}
	dst := [][]float64{make([]float64, queries)}
	for range 3 {
		logits := func(n int) []float64 {
			z := make([]float64, n*classes)
			for i := range z {
				z[i] = 2 * rng.NormFloat64()
			}
			return z
		}
		s, err := posthoc.FitRelation(data.WithLogits(posthoc.Matrix(logits(n), classes)))
		if err != nil {
			b.Fatal(err)
		}
		scores = append(scores, s)
		batches = append(batches, posthoc.Batch{Features: batches[0].Features, Logits: logits(queries)})
		dst = append(dst, make([]float64, queries))
	}
	for b.Loop() {
		if err := posthoc.ScoreAll(context.Background(), dst, scores, batches); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(2*queries*d*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gflop/s")
}
