package training

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// defaultHead is how the programs train by default, but shorter.
func defaultHead(features string) Options {
	return Options{
		Features: []string{features}, Train: head.TrainOptions{Epochs: 5},
	}
}

// A detector that judges by another score says the same after a save, image by
// image and all at once, and its p-values and threshold are of that score.
func TestTrainScores(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	fresh, _, err := npy.Read[float32](filepath.Join(set("id"), "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{detector.HeadScore, "ensemble", "ensemble(mlrbfn,knn,odin)", "ensemble(mds,knn)", "vim", "relation", "gen"} {
		opts := defaultHead(set("train"))
		opts.Score, opts.Calibration.Features = name, set("val")
		d, result, err := Train(context.Background(), opts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		path := filepath.Join(t.TempDir(), "d.safetensors")
		if err := d.Save(path); err != nil {
			t.Fatal(err)
		}
		loaded, err := detector.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		verdicts := pipetest.Verdicts(t, d, fresh)
		judge := loaded.VerdictFunc()
		if far := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "no guard against far") }); far != (name == "gen") {
			t.Errorf("%s: warned of far images: %v: %q", name, far, result.Warnings)
		}
		flagged := 0
		for i, v := range verdicts {
			if again := judge(fresh[i*d.Dim() : (i+1)*d.Dim()])[0]; math.Abs(again.Score-v.Score) > 1e-9*(1+math.Abs(v.Score)) || again.Class != v.Class {
				t.Fatalf("%s: image %d is %+v, and from the file %+v", name, i, v, again)
			}
			if v.OOD {
				flagged++
			}
		}
		if result.Score != name || loaded.ScoreName() != name || *result.Threshold != d.Threshold {
			t.Errorf("%s: the detector's score is %q, %q", name, result.Score, loaded.ScoreName())
		}
		// Both the calibration and these images count by chance.
		if low, high := betaBinomial(len(verdicts), detector.Rank(len(d.CalibrationScores), d.TargetTPR), len(d.CalibrationScores)); flagged < low || flagged > high {
			t.Errorf("%s: %d of %d fresh images flagged, want %d to %d", name, flagged, len(verdicts), low, high)
		}
	}
	for name, says := range map[string]string{"magic": "magic", "ensemble(gen)": "several", "ensemble(gen,gen)": "once", "ensemble(gen,magic)": "magic"} {
		opts := defaultHead(set("train"))
		opts.Score = name
		if _, _, err := Train(context.Background(), opts); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	opts := defaultHead(set("train"))
	opts.Score, opts.Validation.None = "ensemble", true
	if _, _, err := Train(context.Background(), opts); !errors.Is(err, errNoScale) {
		t.Errorf("an ensemble without validation images: %v", err)
	}
}

// The parts of an ensemble have the mean 0 and the deviation 1 on the validation
// rows, the heads' own 2, and an image's score is their sum.
func TestEnsembleScale(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	opts := defaultHead(set("train"))
	opts.Score = "ensemble(mlrbfn,mds,gen)"
	d, _, err := Train(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	x, _, err := npy.Read[float32](filepath.Join(set("train"), "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []float32
	for _, r := range d.Splits["validation"] {
		rows = append(rows, x[r*d.Dim():(r+1)*d.Dim()]...)
	}
	alone := *d
	alone.Scoring = nil
	sum := make([]float64, len(rows)/d.Dim())
	for _, p := range d.Scoring.Parts {
		scores := make([]float64, len(sum))
		if p.Score == nil {
			for i, v := range pipetest.Verdicts(t, &alone, rows) {
				scores[i] = v.Score
			}
		} else if err := p.Score.Score(context.Background(), scores, d.BatchFor(d.Scoring, rows).Batch); err != nil {
			t.Fatal(err)
		}
		for i, v := range scores {
			scores[i] = p.Scale.Of(v)
			sum[i] += scores[i]
		}
		want := 1.
		if p.Name == detector.HeadPart {
			want = detector.OwnWeight
		}
		if s := head.ScaleOf(scores); math.Abs(s.Mean) > 1e-6 || math.Abs(s.Deviation-want) > 1e-6 {
			t.Errorf("%s: mean %g and deviation %g of the validation rows, want 0 and %g", p.Name, s.Mean, s.Deviation, want)
		}
	}
	for i, v := range pipetest.Verdicts(t, d, rows) {
		if math.Abs(v.Score-sum[i]) > 1e-9*(1+math.Abs(sum[i])) {
			t.Fatalf("row %d: score %g, want %g", i, v.Score, sum[i])
		}
	}
}

// betaBinomial returns the central 95% of how many of m images are flagged whose
// rate of false alarms is Beta(k, n+1−k).
func betaBinomial(m, k, n int) (low, high int) {
	logBeta := func(a, b float64) float64 {
		x, _ := math.Lgamma(a)
		y, _ := math.Lgamma(b)
		z, _ := math.Lgamma(a + b)
		return x + y - z
	}
	a, b := float64(k), float64(n+1-k)
	var below float64
	low = -1
	for x := 0; x <= m; x++ {
		f := float64(x)
		below += math.Exp(-math.Log(float64(m+1)) - logBeta(f+1, float64(m)-f+1) + logBeta(f+a, float64(m)-f+b) - logBeta(a, b))
		if low < 0 && below >= 0.025 {
			low = x
		}
		if below >= 0.975 {
			return low, x
		}
	}
	return low, m
}

// TestFalseAlarms draws calibration images of real ones over and over: the share
// of the others that is flagged lies within the interval that it should, and the
// rate in the long run, for which all of them stand, in FalseAlarms'.
func TestFalseAlarms(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	opts := defaultHead(set("train"))
	opts.Calibration.None = true
	d, result, err := Train(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if d.FalseAlarms() != nil || result.FalseAlarms != nil {
		t.Errorf("without calibration images: %v", result.FalseAlarms)
	}
	var scores []float64
	for _, name := range []string{"val", "id"} {
		x, _, err := npy.Read[float32](filepath.Join(set(name), "features.npy"))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pipetest.Verdicts(t, d, x) {
			scores = append(scores, v.Score)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	const draws, n = 1000, 400
	within := 0
	for range draws {
		rng.Shuffle(len(scores), func(i, j int) { scores[i], scores[j] = scores[j], scores[i] })
		d.CalibrationScores = slices.Sorted(slices.Values(scores[:n]))
		d.Threshold = detector.Threshold(d.CalibrationScores, 0.95)
		flagged := 0
		for _, s := range scores[n:] {
			if s < d.Threshold {
				flagged++
			}
		}
		if low, high := betaBinomial(len(scores)-n, detector.Rank(n, 0.95), n); flagged >= low && flagged <= high {
			within++
		}
	}
	if share := float64(within) / draws; share < 0.93 || share > 0.98 {
		t.Errorf("the flagged share is within its 95%% interval in %g of draws", share)
	}
	d.TargetTPR = 0.95
	// scipy.stats.beta.ppf([.025, .975], 20, 381)
	if got := d.FalseAlarms(); math.Abs(got[0]-0.03080524) > 1e-7 || math.Abs(got[1]-0.07318537) > 1e-7 {
		t.Errorf("the interval is %v", got)
	}
}

// The backbone was trained on the training images, which look more
// in-distribution to it than new ones of the same kind: calibrated on them, more
// are flagged than was promised. That is what features of others are for.
func TestCalibrationNeedsNewImages(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	opts := defaultHead(set("train"))
	opts.Calibration.Fraction = 0.2
	d, _, err := Train(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	x, _, err := npy.Read[float32](filepath.Join(set("id"), "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	flagged := 0
	for _, v := range pipetest.Verdicts(t, d, x) {
		if v.OOD {
			flagged++
		}
	}
	n := len(d.CalibrationScores)
	if _, high := betaBinomial(len(x)/d.Dim(), detector.Rank(n, d.TargetTPR), n); flagged <= high {
		t.Errorf("%d flagged, no more than %d: this backbone does not show what the others do", flagged, high)
	}
}
