package posthoc_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"mlrbfn/internal/npy"
	"mlrbfn/internal/testenv"
	"mlrbfn/posthoc"
)

func ExampleMSP() {
	// Two rows of three logits: a confident one and one that cannot decide.
	fmt.Printf("%.4f\n", posthoc.MSP([]float64{9, 1, 2, 5, 5, 5}, 3))
	// Output: [0.9988 0.3333]
}

func TestMSPAtTheEdges(t *testing.T) {
	tests := map[string]struct {
		logits []float64
		want   float64
	}{
		"one class":      {[]float64{-3}, 1},
		"large logits":   {[]float64{1e4, 1e4 - 1}, 1 / (1 + math.Exp(-1))},
		"−∞ for a class": {[]float64{0, math.Inf(-1)}, 1},
		"not a number":   {[]float64{0, math.NaN()}, math.NaN()},
	}
	for name, tt := range tests {
		got := posthoc.MSP(tt.logits, len(tt.logits))[0]
		if !(math.Abs(got-tt.want) < 1e-15) && !(math.IsNaN(got) && math.IsNaN(tt.want)) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if s := posthoc.MSP([]float64{30, 0, 31, 0}, 2); s[0] >= s[1] {
		t.Errorf("saturated rows tie: %v", s)
	}
}

// TestMSPAgainstOpenOOD holds the scores against OpenOOD's witness in float64.
func TestMSPAgainstOpenOOD(t *testing.T) {
	folder := testenv.Shared(t, "oracle", "golden", "posthoc")
	data, err := os.ReadFile(filepath.Join(folder, "msp.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Clean map[string]json.RawMessage `json:"clean_float64"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"id", "near", "far"} {
		var want []float64
		if err := json.Unmarshal(golden.Clean[set], &want); err != nil {
			t.Fatal(err)
		}
		logits, shape, err := npy.Read[float64](filepath.Join(folder, set+"_logits.npy"))
		if err != nil {
			t.Fatal(err)
		}
		got := posthoc.MSP(logits, shape[1])
		if len(got) != len(want) {
			t.Fatalf("%s: %d scores, want %d", set, len(got), len(want))
		}
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-14 {
				t.Errorf("%s[%d] = %v, want %v", set, i, got[i], want[i])
			}
		}
	}
}
