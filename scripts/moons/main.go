// Moons repeats the paper's experiment on the four-class moons (appendix B,
// figures 1 and 5). An MLRBFN with the depression mechanism is confident near the
// moons only. One without it is also confident far away from all of them.
//
//	moons [--noise 0.2,0.05] [--seed 0] [--out figures]
//
// It prints accuracies, the best possible one, and the confidence far from the
// data, and draws both networks, as PNG and SVG.
package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/command"
)

func main() { command.Program("moons", run) }

func run(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := command.Flags("moons", "[flags]", "Trains MLRBFNs with and without depression on four moons and draws them.", stdout)
	noises := f.Float64Slice("noise", []float64{0.2, 0.05}, "standard deviation of the points around their moon")
	seed := f.Uint64("seed", 0, "of the points and the training")
	out := f.String("out", "figures", "folder of the figures")
	if err := command.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return command.Usagef("unexpected argument %q", f.Arg(0))
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		return err
	}
	for _, noise := range *noises {
		if !(noise >= 0.01 && noise <= 2) {
			return command.Usagef("--noise %g: it lies between 0.01 and 2", noise)
		}
		if err := experiment(ctx, noise, *seed, *out, stdout); err != nil {
			return err
		}
	}
	return nil
}

// experiment trains and draws a network with depression and one without.
func experiment(ctx context.Context, noise float64, seed uint64, out string, w io.Writer) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	points, labels := makeMoons(1000, noise, rng)
	testPoints, testLabels := makeMoons(500, noise, rng)
	fmt.Fprintf(w, "noise %g: no classifier can be right more often than %.4f; the densities' own classes are on %.4f of the test points\n",
		noise, bayesLimit(noise), share(testPoints, testLabels, func(p point) int { c, _ := bayes(noise, p); return c }))
	for _, naive := range []bool{false, true} {
		net, err := train(ctx, points, labels, naive, seed)
		if err != nil {
			return err
		}
		name, title := "depression", "with depression"
		if naive {
			name, title = "naive", "without depression"
		}
		predict := func(p point) int { class, _ := net.judge(p); return class }
		far := net.farFrom(points)
		fmt.Fprintf(w, "  %-18s  accuracy: train %.3f, test %.3f; farther than 1 from the data: confidence at most %.4f, on average %.4f, above 0.5 on %.1f%% of the area\n",
			title, share(points, labels, predict), share(testPoints, testLabels, predict), far.largest, far.mean, 100*far.confident)
		file := filepath.Join(out, fmt.Sprintf("moons-%g-%s", noise, name))
		if err := drawFigure(net, 440, points, labels, fmt.Sprintf("Four moons, noise %g, %s", noise, title), file+".png", file+".svg"); err != nil {
			return err
		}
	}
	return nil
}

// network is a trained head with the normalisation of its inputs.
type network struct {
	*head.Predictor
	mean, deviation point
}

// train trains with the paper's settings: three layers of 50, 50 and 4
// centroids, 100 projections, 250 epochs of batches of 100, Adam at 0.001, on
// normalised points.
func train(ctx context.Context, points []point, labels []int64, naive bool, seed uint64) (*network, error) {
	net := &network{deviation: point{1, 1}}
	n := float64(len(points))
	var squares point
	for _, p := range points {
		net.mean.x, net.mean.y = net.mean.x+p.x/n, net.mean.y+p.y/n
	}
	for _, p := range points {
		squares.x += (p.x - net.mean.x) * (p.x - net.mean.x) / n
		squares.y += (p.y - net.mean.y) * (p.y - net.mean.y) / n
	}
	net.deviation = point{math.Sqrt(squares.x), math.Sqrt(squares.y)}
	var x []float32
	for _, p := range points {
		x = append(x, net.normalise(p)...)
	}
	moons := head.PaperPresets["moons"]
	moons.NoDepression, moons.Train.Seed = naive, seed
	m, _, err := head.Train(ctx, moons.Paper, features.All(x, 2, labels), features.Rows{}, classes, moons.Train)
	if err != nil {
		return nil, err
	}
	net.Predictor = m.NewPredictor()
	return net, nil
}

func (n *network) normalise(p point) []float32 {
	return []float32{float32((p.x - n.mean.x) / n.deviation.x), float32((p.y - n.mean.y) / n.deviation.y)}
}

// judge returns the class with the highest confidence at p, and that confidence.
func (n *network) judge(p point) (class int, confidence float64) {
	var log [classes]float64
	n.Predict(head.Outputs{LogConfidences: log[:]}, n.normalise(p))
	for c := range classes {
		if log[c] > log[class] {
			class = c
		}
	}
	return class, math.Exp(log[class])
}

// share returns the share of points that predict classifies correctly.
func share(points []point, labels []int64, predict func(point) int) float64 {
	right := 0
	for i, p := range points {
		if predict(p) == int(labels[i]) {
			right++
		}
	}
	return float64(right) / float64(len(points))
}

// far summarises the confidence of a network far from its data.
type far struct{ largest, mean, confident float64 }

// The window of the figures, in which far is computed.
const left, right, bottom, top = -4.0, 7.0, -4.0, 7.0

// farFrom evaluates a network on a grid of points in the window that are farther
// than one unit from all data.
func (n *network) farFrom(data []point) far {
	const step = 0.1
	var f far
	count := 0.0
	for x := left; x <= right; x += step {
	next:
		for y := bottom; y <= top; y += step {
			for _, p := range data {
				if math.Hypot(p.x-x, p.y-y) <= 1 {
					continue next
				}
			}
			_, confidence := n.judge(point{x, y})
			count++
			f.largest = max(f.largest, confidence)
			f.mean += confidence
			if confidence > 0.5 {
				f.confident++
			}
		}
	}
	f.mean, f.confident = f.mean/count, f.confident/count
	return f
}
