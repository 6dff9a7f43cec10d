package detector

import (
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestWords: every part that a score can have has words, which name the classes where
// they have room for them.
func TestWords(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Concat(posthoc.Names(), []string{DensityPart, DecisionPart, HeadPart, HeadScore, GuardPart, "vim-s", "fdbd-s", "react-s", "vra-s"}) {
		w := wordsFor(name)
		if strings.Contains(w.Strange, name) && strings.HasPrefix(w.Strange, "a low ") {
			t.Errorf("%s has no words", name)
		}
		for _, classes := range [][2]string{{"beech", "oak"}, {"beech", ""}} {
			for _, text := range []string{w.meaning(-3, classes), w.meaning(-1.7, classes), w.meaning(1, classes), fill(w.More, classes)} {
				if text == "" || strings.ContainsAny(text, "{}") || classes[1] == "" && (strings.Contains(text, " and .") || strings.HasSuffix(text, "and ")) {
					t.Errorf("%s of %q: %q", name, classes, text)
				}
			}
		}
	}
}

// TestWhy: the sentence names the parts that lower the score most, and shares that
// the reference really has.
func TestWhy(t *testing.T) {
	t.Parallel()
	ascending := make([]float64, 1000)
	for i := range ascending {
		ascending[i] = float64(i-500) / 300
	}
	scale := head.ScaleOf(ascending)
	part := func(name string, adds float64) scored {
		return scored{name: name, adds: adds, deviations: scale.Of(adds), deficit: scale.Mean - adds, reference: ascending, classes: [2]string{"beech", "oak"}}
	}
	for want, tt := range map[string]struct {
		ood   bool
		parts []scored
	}{
		"Flagged: farther from every class than all 1000 calibration images.":                                                                               {true, []scored{part("density", -9), part("decision", -1)}},
		"Flagged: less clearly of one class (between beech and oak) than 99.9% of the calibration images, and farther from every class than 99.6% of them.": {true, []scored{part("density", -1.656), part("decision", -1.6634)}},
		"Not flagged: no part of the score is unusual beside the calibration images.":                                                                       {false, []scored{part("density", 1), part("decision", -0.5)}},
		"Not flagged, but farther from every class than 97.9% of the calibration images.":                                                                   {false, []scored{part("density", -1.6), part("decision", 1)}},
		"Flagged: the score 1.5 is below the threshold 2, but no part of it is lower than usual.":                                                           {true, []scored{part("density", 1), part("decision", 0.5)}},
	} {
		v := Verdict{Score: 1.5, OOD: tt.ood}
		if got := why(v, 2, tt.parts, "calibration"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
