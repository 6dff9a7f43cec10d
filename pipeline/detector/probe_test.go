package detector_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// withProbe is a detector of random numbers with a probe, calibrated by rows like its own.
func withProbe(t *testing.T) *detector.Detector {
	const d = 6
	rng := rand.New(rand.NewPCG(5, 9))
	det := pipetest.RandomResidualDetector(rng, 2, 2, d, 3)
	x := make([]float32, 200*d)
	for i := range x {
		x[i] = float32(0.5 * rng.NormFloat64())
	}
	pipetest.Calibrate(det, x)
	det.TargetTPR = 0.95
	det.Threshold = detector.Threshold(det.CalibrationScores, det.TargetTPR)
	var err error
	det.Probe, err = det.NewProbe(t.Context(), &features.Probe{Version: 1, Images: 4, Features: pipetest.RandomRows(rng, 4, d)}, x[:20*d])
	if err != nil {
		t.Fatal(err)
	}
	return det
}

// changed returns a probe whose features are those of the detector's with noise, a share
// of their length.
func changed(det *detector.Detector, share float64) *features.Probe {
	p := det.Probe.Probe
	rng := rand.New(rand.NewPCG(5, 10))
	p.Features = slices.Clone(p.Features)
	for i, v := range p.Features {
		p.Features[i] = v * float32(1+share*rng.NormFloat64())
	}
	return &p
}

func TestDrift(t *testing.T) {
	t.Parallel()
	det := withProbe(t)
	drift := func(now *features.Probe) detector.Drift {
		t.Helper()
		d, err := det.DriftOf(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	last := 0.0
	for _, c := range []struct {
		share            float64
		rounding, breaks bool
	}{{0, true, false}, {1e-6, true, false}, {0.03, false, false}, {3, false, true}} {
		d := drift(changed(det, c.share))
		if d.Rounding() != c.rounding || d.Breaks() != c.breaks || d.Score < last || d.Program != 0 {
			t.Errorf("noise of %g: %+v: %v, rounding %v, breaks %v", c.share, d, d, d.Rounding(), d.Breaks())
		}
		last = d.Score
		if c.breaks && (d.Flagged < d.Promised[1] || !strings.Contains(d.String(), "would be flagged (promised are")) {
			t.Errorf("%+v: %v", d, d)
		}
	}
	// The estimate is the share of the calibration images that are flagged without drift.
	if d := drift(changed(det, 2e-5)); math.Abs(d.Flagged-0.05) > 0.006 {
		t.Errorf("hardly any drift, and %g are flagged", d.Flagged)
	}
	if d := drift(changed(det, math.NaN())); !d.Breaks() || d.Rounding() || !strings.Contains(d.String(), "no features") {
		t.Errorf("NaN: %+v", d)
	}
	other := changed(det, 3)
	if other.Version++; drift(other) != (detector.Drift{}) || drift(nil) != (detector.Drift{}) {
		t.Error("a probe of other images was compared")
	}

	// Another program gives the same features other scores.
	det.Probe.Scores[1] *= 1.0001
	if d := drift(&det.Probe.Probe); d.Rounding() || d.Breaks() || !strings.Contains(d.String(), "this program") {
		t.Errorf("other scores: %+v", d)
	}
	det.Probe.Labels[1] = (det.Probe.Labels[1] + 1) % 3
	if d := drift(&det.Probe.Probe); !d.Breaks() {
		t.Errorf("another class: %+v", d)
	}
}

func TestProbeInAFile(t *testing.T) {
	t.Parallel()
	det := withProbe(t)
	file := filepath.Join(t.TempDir(), "detector")
	for _, probe := range []*detector.Probe{det.Probe, nil} {
		det.Probe = probe
		if err := det.Save(file); err != nil {
			t.Fatal(err)
		}
		back, err := detector.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back.Probe, probe) {
			t.Errorf("%+v, want %+v", back.Probe, probe)
		}
	}
}
