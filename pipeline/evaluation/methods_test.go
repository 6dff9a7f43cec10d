package evaluation

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestEvaluateMatchesOpenOOD evaluates with the backbone's own logits and finds
// the scores of the golden files.
func TestEvaluateMatchesOpenOOD(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	golden := map[string]string{ // those without the name of the score
		"energy": "ebo", "gen": "gen_g0.1_M100", "she-ip": "she_inner_product", "she-e": "she_euclidean",
		"knn": "knn_K50", "mds++": "mds_pp", "rmds++": "rmds_pp", "vim": "vim_dim32",
		"react": "react_p90_fit_val", "klm": "klm_fit_val", "fdbd": "fdbd_distance",
	}
	for _, m := range posthoc.Names() {
		if _, err := os.Stat(filepath.Join(testenv.OpenOODScores(t), m+".json")); err == nil {
			golden[m] = m
		}
	}
	methods := slices.Sorted(maps.Keys(golden))
	out := t.TempDir()
	train := defaultHead(set("train"))
	train.Validation.Features = set("val")
	figures, err := Evaluate(context.Background(), Options{
		Train: train, ID: set("id"), OOD: []OODSet{{metrics.Near, "near", set("near")}, {metrics.Far, "far", set("far")}},
		Methods: methods, Head: BackboneHead, Memory: 1 << 20, Out: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	scores := testenv.OpenOODScores(t)
	for method, name := range golden {
		var file struct {
			Clean     map[string]json.RawMessage `json:"clean_float64"`
			Tolerance struct {
				Float64 float64 `json:"float64_abs"`
			} `json:"tolerance"`
		}
		text, err := os.ReadFile(filepath.Join(scores, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		for _, dataset := range []string{"id", "near", "far"} {
			var want []float64
			if err := json.Unmarshal(file.Clean[dataset], &want); err != nil {
				t.Fatal(err)
			}
			got, _, err := npy.Read[float64](filepath.Join(out, "scores", method, "0", dataset+".npy"))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if !(math.Abs(v-want[i]) <= file.Tolerance.Float64) {
					t.Errorf("%s, %s: image %d has the score %.12g, want %.12g ± %g", method, dataset, i, v, want[i], file.Tolerance.Float64)
					break
				}
			}
		}
	}
	for _, f := range figures {
		if f.Seed == "0" && math.Abs(f.IDAcc-0.926) > 1e-12 {
			t.Errorf("%s: accuracy %g", f.Method, f.IDAcc)
		}
	}
}

// Without logits or weights a method that is named is an error, and one of all
// is left out; scores that read what a deep network's last layer reads can be had
// of one.
func TestEvaluateHeads(t *testing.T) {
	t.Parallel()
	set := pipetest.OpenOOD(t)
	for _, name := range []string{"train", "id", "far"} {
		if err := os.Remove(filepath.Join(set(name), "fc_weight.npy")); err != nil {
			t.Fatal(err)
		}
	}
	train := defaultHead(set("train"))
	opts := Options{Train: train, ID: set("id"), OOD: []OODSet{{metrics.Far, "far", set("far")}}, Head: BackboneHead, Out: t.TempDir(), Methods: []string{"vim"}}
	if _, err := Evaluate(context.Background(), opts); !errors.Is(err, posthoc.ErrMissing) {
		t.Errorf("vim without weights: %v", err)
	}
	left := map[string]bool{}
	opts.Methods, opts.Warn = nil, func(text string) { left[strings.SplitN(text, " ", 2)[0]] = true }
	figures, err := Evaluate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	methods := methodsOf(figures)
	if !left["vim"] || !left["react"] || !left["ensemble"] || !slices.Contains(methods, "knn") || !slices.Contains(methods, "msp") || len(left)+len(methods) != len(detector.ScoreNames) {
		t.Errorf("measured %v, left out %v", methods, left)
	}

	opts.Head, opts.Softmax, opts.Methods = "", &head.MLPConfig{Layers: 3, Hidden: 20}, []string{"vim", "odin", "gen", "ensemble"}
	if figures, err = Evaluate(context.Background(), opts); err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if f.Seed == "0" && (f.AUROC < 0.6 || f.IDAcc < 0.85) {
			t.Errorf("a network of three layers: %+v", f)
		}
	}
	// The log-confidences of an MLRBFN are logits, of which the largest is the
	// paper's score.
	opts.Head, opts.Methods = OwnHead, []string{"mls", "gen", "she-ip"}
	opts.Train.Head, opts.Out = pipetest.SmallPaper, t.TempDir()
	if figures, err = Evaluate(context.Background(), opts); err != nil {
		t.Fatal(err)
	}
	opts.Methods, opts.Out = []string{detector.HeadScore}, t.TempDir()
	paper, err := Evaluate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if figures[0].AUROC != paper[0].AUROC || figures[0].IDAcc != paper[0].IDAcc {
		t.Errorf("the largest log-confidence: %+v, want %+v", figures[0], paper[0])
	}
	if err := os.Remove(filepath.Join(set("far"), "logits.npy")); err != nil {
		t.Fatal(err)
	}
	opts.Head = BackboneHead
	if _, err := Evaluate(context.Background(), opts); err == nil || !strings.Contains(err.Error(), "logits.npy") {
		t.Errorf("OOD images without logits: %v", err)
	}
}

// defaultHead is how the programs train by default, but shorter.
func defaultHead(features string) training.Options {
	return training.Options{
		Features: []string{features}, Train: head.TrainOptions{Epochs: 5},
	}
}
