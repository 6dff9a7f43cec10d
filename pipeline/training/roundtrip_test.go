package training

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestAblatedDetectorRoundTrip trains heads without one of the paper's steps;
// read again, they say the same, and not what a head with that step says.
func TestAblatedDetectorRoundTrip(t *testing.T) {
	t.Parallel()
	points := pipetest.Clouds(t, 1, 40, pipetest.TwoLabels, pipetest.Two...)
	for name, change := range map[string]func(*head.Paper){
		"depression":  func(c *head.Paper) { c.NoDepression = true },
		"ratio":       func(c *head.Paper) { c.NoRatio = true },
		"projections": func(c *head.Paper) { c.NoProjections = true },
		"mean loss":   func(c *head.Paper) { c.SumLoss = true },
	} {
		opts := quick(points)
		network := pipetest.SmallPaper
		change(&network)
		opts.Head = network
		want, _, err := Train(context.Background(), opts)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "d.safetensors")
		if err := want.Save(path); err != nil {
			t.Fatal(err)
		}
		got, err := detector.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		x := []float32{0, 0.5, 3, 1, 2, 2}
		if a, b := want.Own(x).LogConfidences, got.Own(x).LogConfidences; !slices.Equal(a, b) {
			t.Errorf("without %s: wrote %v, read %v", name, a, b)
		}
		if got.Training.SumLoss != network.SumLoss {
			t.Errorf("without %s: sum loss is %v", name, got.Training.SumLoss)
		}
		opts.Head = pipetest.SmallPaper
		whole, _, err := Train(context.Background(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(whole.Own(x).LogConfidences, got.Own(x).LogConfidences) {
			t.Errorf("without %s: the same confidences as with it", name)
		}
	}
}
