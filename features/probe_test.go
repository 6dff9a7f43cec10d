package features_test

import (
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// probed is header with a probe of two images whose features differ by shift from those
// of the probe without one.
func probed(shift float32) features.Header {
	h := header
	h.Machine = features.Machine{Kernels: "avx2"}
	h.Probe = &features.Probe{Version: 1, Images: 2, Features: []float32{0, 0, 3 + shift, 4}}
	return h
}

func TestProbeInJSON(t *testing.T) {
	p := &features.Probe{Version: 1, Images: 2, Features: []float32{1, -2.5, 1e-30, 7}}
	text, err := json.Marshal(p)
	check(t, err)
	if want := `{"version":1,"images":2,"features":"AACAPwAAIMBgQqINAADgQA=="}`; string(text) != want {
		t.Errorf("%s, want %s", text, want)
	}
	var back features.Probe
	check(t, json.Unmarshal(text, &back))
	if back.Version != 1 || back.Images != 2 || !slices.Equal(back.Features, p.Features) {
		t.Errorf("%+v", back)
	}
	for _, bad := range []string{`[]`, `{"images":0}`, `{"images":2,"features":"AAAA"}`, `{"images":2,"features":"?"}`} {
		if err := json.Unmarshal([]byte(bad), new(features.Probe)); err == nil {
			t.Errorf("%s is a probe", bad)
		}
	}
}

func TestProbeDistance(t *testing.T) {
	a := probed(0).Probe
	for shift, want := range map[float32]float64{0: 0, 0.5: 0.1, float32(math.NaN()): math.Inf(1)} {
		if got := a.Distance(probed(shift).Probe); math.Abs(got-want) > 1e-12 && got != want {
			t.Errorf("shift %g: distance %g, want %g", shift, got, want)
		}
	}
}

// TestProbeOfASet: rows that a model would give otherwise now are not mixed with those
// that there are, in a set, in unfinished work, and in shards.
func TestProbeOfASet(t *testing.T) {
	var said []string
	warn := features.Options{Drifted: func(text string) { said = append(said, text) }}
	for _, unfinished := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "set")
		w := create(t, dir, probed(0), features.Options{})
		if unfinished {
			check(t, add(w, four[0]))
			check(t, w.Close())
		} else {
			commit(t, w, four[:2])
		}
		try := func(shift float32, o features.Options) error {
			said = nil
			w, err := features.Create(t.Context(), dir, probed(shift), o)
			if err == nil {
				err = w.Close()
			}
			return err
		}
		if err := try(0.001, warn); err != nil || said != nil {
			t.Error("rounding:", err, said)
		}
		if err := try(0.1, warn); err != nil || len(said) != 1 || !strings.Contains(said[0], "0.02 of the distance") {
			t.Error("a small difference:", err, said)
		}
		if err := try(1, warn); !errors.Is(err, features.ErrDrifted) || !strings.Contains(err.Error(), dir) || said != nil {
			t.Error("a great difference:", err, said)
		}
		if err := try(float32(math.NaN()), warn); !errors.Is(err, features.ErrDrifted) {
			t.Error("no features:", err)
		}
		allowed := warn
		allowed.AllowDriftedFeatures = true
		if err := try(1, allowed); err != nil || len(said) != 1 {
			t.Error("a great difference that is allowed:", err, said)
		}
		commit(t, create(t, dir, probed(1), allowed), four)
		set, err := features.Open(t.Context(), dir)
		check(t, err)
		if set.Probe == nil || set.Probe.Features[2] != 3 {
			t.Errorf("the probe is not that of the first rows: %+v", set.Probe)
		}
		check(t, set.Close())
	}

	var shards []string
	shard := func(i int, h features.Header) string {
		h.Shard = features.Shard{Index: i + 1, Count: 2}
		dir := filepath.Join(t.TempDir(), "shard")
		w := create(t, dir, h, features.Options{})
		c := features.Contents{Classes: classes, Part: &features.Part{Shard: h.Shard, Images: 2, Listing: "l"}}
		check(t, add(w, four[i]))
		c.Units = []features.Unit{{Images: []features.Image{four[i].image()}, Places: []int64{int64(i)}}}
		_, err := w.Commit(t.Context(), c)
		check(t, err)
		return dir
	}
	shards = append(shards, shard(0, probed(0)), shard(1, probed(1)))
	out := filepath.Join(t.TempDir(), "whole")
	_, err := features.Merge(t.Context(), out, shards, warn)
	if !errors.Is(err, features.ErrDrifted) || !strings.Contains(err.Error(), shards[1]) {
		t.Error("shards of different machines:", err)
	}
	allowed := warn
	allowed.AllowDriftedFeatures, said = true, nil
	meta, err := features.Merge(t.Context(), out, shards, allowed)
	if err != nil || len(said) != 1 || meta.Probe == nil {
		t.Error("shards that are allowed:", err, said)
	}
	if meta, err = features.Merge(t.Context(), out, []string{shards[0], shard(1, header)}, warn); err != nil || meta.Probe != nil {
		t.Errorf("one shard has no probe: %v, and the whole has %v", err, meta.Probe)
	}
}

// TestProbeOfASetWithout: a set from before probes gets one when it grows on the machine
// that made it, and none on another.
func TestProbeOfASetWithout(t *testing.T) {
	for _, same := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "set")
		before := probed(0)
		if before.Probe = nil; !same {
			before.Machine.Kernels = "other"
		}
		commit(t, create(t, dir, before, features.Options{}), four[:2])
		commit(t, create(t, dir, probed(0), features.Options{}), four)
		set, err := features.Open(t.Context(), dir)
		check(t, err)
		if (set.Probe != nil) != same {
			t.Errorf("made on the same machine %v: the probe is %v", same, set.Probe)
		}
		check(t, set.Close())
	}
}
