package main

import (
	"bytes"
	"context"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestArcs compares the moons with scikit-learn 1.9's make_moons(10, shuffle=False)
// without noise.
func TestArcs(t *testing.T) {
	want := [2][5]point{
		{{1, 0}, {0.7071067811865476, 0.7071067811865475}, {0, 1}, {-0.7071067811865475, 0.7071067811865476}, {-1, 0}},
		{{0, 0.5}, {0.2928932188134524, -0.20710678118654746}, {1, -0.5}, {1.7071067811865475, -0.20710678118654757}, {2, 0.5}},
	}
	points, labels := makeMoons(20, 0, rand.New(rand.NewPCG(1, 1)))
	for i, p := range points {
		class, at := int(labels[i]), i%5
		w := want[class%2][at]
		if class >= 2 {
			w.x, w.y = w.x+2, w.y+2
		}
		if math.Abs(p.x-w.x) > 1e-15 || math.Abs(p.y-w.y) > 1e-15 || class != i/5 {
			t.Errorf("point %d of class %d is %v, want %v", at, class, p, w)
		}
	}
}

// TestBayesLimit: no classifier can exceed the limit except by chance, and the
// densities' own classes reach it.
func TestBayesLimit(t *testing.T) {
	const noise = 0.3
	points, labels := makeMoons(20000, noise, rand.New(rand.NewPCG(2, 1)))
	got := share(points, labels, func(p point) int { c, _ := bayes(noise, p); return c })
	if limit := bayesLimit(noise); math.Abs(got-limit) > 0.006 { // three standard errors
		t.Errorf("the densities' classes are right on %.4f, the limit is %.4f", got, limit)
	}
	if limit := bayesLimit(0.05); !(limit > 0.9999 && limit < 1.0001) {
		t.Errorf("moons that do not overlap have the limit %g", limit)
	}
}

// TestPaper trains with the paper's settings on moons that can be separated.
func TestPaper(t *testing.T) {
	if testing.Short() {
		t.Skip("it trains two networks")
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(3, 1))
	points, labels := makeMoons(1000, 0.05, rng)
	testPoints, testLabels := makeMoons(500, 0.05, rng)
	for _, naive := range []bool{false, true} {
		net, err := train(context.Background(), points, labels, naive, 0)
		if err != nil {
			t.Fatal(err)
		}
		predict := func(p point) int { class, _ := net.judge(p); return class }
		if acc := share(testPoints, testLabels, predict); acc < 0.99 {
			t.Errorf("naive %v: test accuracy %.3f", naive, acc)
		}
		if f := net.farFrom(points); !naive && f.largest > 0.01 || naive && f.largest < 0.1 {
			t.Errorf("naive %v: far from the data %+v", naive, f)
		}
		files := []string{filepath.Join(dir, "moons.png"), filepath.Join(dir, "moons.svg")}
		if err := drawFigure(net, 40, points, labels, "title", files...); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(data)); err != nil {
			t.Error(err)
		}
		if svg, err := os.ReadFile(files[1]); err != nil || !strings.Contains(string(svg), "<svg") {
			t.Errorf("no SVG: %v", err)
		}
	}
}
