package posthoc_test

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// golden is the problem that OpenOOD's classes were run on.
type golden struct {
	folder     string
	head       *posthoc.Linear
	train, val *posthoc.Data
}

var sets = []string{"id", "near", "far"}

func openGolden(tb testing.TB) *golden {
	tb.Helper()
	g := &golden{folder: testenv.OpenOOD(tb)}
	head, err := posthoc.NewLinear(read[float32](tb, g, "fc_weight"), read[float32](tb, g, "fc_bias"))
	if err != nil {
		tb.Fatal(err)
	}
	g.head = head
	g.train, g.val = g.data(tb, "train", nil), g.data(tb, "val", nil)
	return g
}

func read[T npy.Element](tb testing.TB, g *golden, name string) []T {
	tb.Helper()
	values, _, err := npy.Read[T](filepath.Join(g.folder, name+".npy"))
	if err != nil {
		tb.Fatal(err)
	}
	return values
}

// data reads labelled rows; change, if any, is what is done to each.
func (g *golden) data(tb testing.TB, set string, change func(row []float32)) *posthoc.Data {
	labels := read[int64](tb, g, set+"_labels")
	data := posthoc.NewData(g.features(tb, set, change), g.head.In, labels, g.head.Out)
	data.Logits = posthoc.Matrix(read[float64](tb, g, set+"_logits"), g.head.Out)
	return data
}

func (g *golden) features(tb testing.TB, set string, change func(row []float32)) []float32 {
	features := read[float32](tb, g, set+"_features")
	for i := 0; change != nil && i < len(features); i += g.head.In {
		change(features[i : i+g.head.In])
	}
	return features
}

// first returns the first n rows of the training data.
func (g *golden) first(n int) *posthoc.Data {
	data := posthoc.NewData(g.train.Features(0, n), g.train.D, g.train.Labels[:n], g.train.Classes)
	data.Logits = g.train.Logits
	return data
}

// A power of two stands for the golden's 1e-4, so that the features stay what
// they are in float32; either changes no score.
func shrinkFirst(row []float32) { row[0] *= 0x1p-13 }

func clearFirst(row []float32) { row[0] = 0 }

// TestOpenOOD holds every score against the float64 witness beside OpenOOD's
// own classes, within the tolerance that was measured for each.
func TestOpenOOD(t *testing.T) {
	t.Parallel()
	g := openGolden(t)
	ctx := context.Background()
	type fit func() (posthoc.Scorer, error)
	plain := func(s posthoc.Scorer) fit { return func() (posthoc.Scorer, error) { return s, nil } }
	mahalanobis := func(data func() *posthoc.Data, l2, relative bool) fit {
		return func() (posthoc.Scorer, error) {
			if relative {
				return posthoc.FitRMDS(ctx, data(), l2)
			}
			return posthoc.FitMDS(ctx, data(), l2)
		}
	}
	train := func() *posthoc.Data { return g.train }
	dead := func() *posthoc.Data { return g.data(t, "train", clearFirst) }
	scaled := func() *posthoc.Data { return g.data(t, "train", shrinkFirst) }
	few := func() *posthoc.Data { return g.first(40) }
	she := func(m posthoc.Metric) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitSHE(ctx, g.train, m) }
	}
	knn := func(k int) fit { return func() (posthoc.Scorer, error) { return posthoc.FitKNN(g.train, k) } }
	ash := func(shape posthoc.Shape, p float64) fit {
		return plain(&posthoc.ASH{Head: g.head, Shape: shape, Percentile: p})
	}
	guide := func(data *posthoc.Data, k int) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitNNGuide(ctx, data, k, 1) }
	}
	dice := func(p float64) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitDICE(ctx, g.train, g.head, p) }
	}
	react := func(d *posthoc.Data) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitReAct(ctx, d, g.head, 90) }
	}
	klm := func(d *posthoc.Data) fit { return func() (posthoc.Scorer, error) { return posthoc.FitKLM(ctx, d) } }
	temperature := func(d *posthoc.Data) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitTemperature(ctx, d) }
	}
	nci := func(a float64) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitNCI(ctx, g.train, g.head, a) }
	}
	vim := func(dim int) fit {
		return func() (posthoc.Scorer, error) { return posthoc.FitViM(ctx, g.train, g.head, dim) }
	}
	methods := map[string]fit{ // goldens without the name of a score
		"ebo": plain(posthoc.Energy{}), "ebo_T10": plain(posthoc.Energy{Temperature: 10}),
		"gen_g0.1_M10": plain(posthoc.GEN{Gamma: 0.1, M: 10}), "gen_g0.1_M100": plain(posthoc.GEN{}),
		"gen_g0.1_M5": plain(posthoc.GEN{M: 5}), "gen_g0.5_M10": plain(posthoc.GEN{Gamma: 0.5, M: 10}),
		"odin_T1":           plain(posthoc.ODIN{Network: g.head, Temperature: 1}),
		"she_inner_product": she(posthoc.InnerProduct), "she_euclidean": she(posthoc.Euclidean), "she_cosine": she(posthoc.Cosine),
		"knn_K50": knn(0), "knn_K10": knn(10), "knn_K1": knn(1),
		"mds_pp": mahalanobis(train, true, false), "rmds_pp": mahalanobis(train, true, true),
		"mds_col0_dead": mahalanobis(dead, false, false), "rmds_col0_dead": mahalanobis(dead, false, true),
		"mds_col0_scaled_1e-4": mahalanobis(scaled, false, false), "rmds_col0_scaled_1e-4": mahalanobis(scaled, false, true),
		"mds_n40_rank_deficient": mahalanobis(few, false, false), "rmds_n40_rank_deficient": mahalanobis(few, false, true),
		"vim_dim32": vim(0), "vim_dim12": vim(12),
		"residual_dim32":      func() (posthoc.Scorer, error) { return posthoc.FitResidual(ctx, g.train, g.head, 32) },
		"react_p90_fit_train": react(g.train), "react_p90_fit_val": react(g.val),
		"vra_p60_p95_fit_train": func() (posthoc.Scorer, error) { return posthoc.FitVRA(ctx, g.train, g.head, 0, 0) },
		"ash_b_p65":             ash(posthoc.ASHB, 65), "ash_b_p90": ash(posthoc.ASHB, 0), "ash_p_p90": ash(posthoc.ASHP, 90),
		"ash_s_p90": ash(posthoc.ASHS, 90), "scale_p85": ash(posthoc.Scale, 0),
		"dice_p90": dice(0), "dice_p70": dice(70),
		"klm_fit_train": klm(g.train), "klm_fit_val": klm(g.val),
		"temperature_scaling_fit_train": temperature(g.train), "temperature_scaling_fit_val": temperature(g.val),
		"nnguide_a0.01_K100": guide(g.first(200), 0), "nnguide_a1.0_K100": guide(g.train, 100), "nnguide_a1.0_K10": guide(g.train, 10),
		"fdbd_distance": func() (posthoc.Scorer, error) { return posthoc.FitFDBD(ctx, g.train, g.head) },
		"fdbd_norm":     func() (posthoc.Scorer, error) { return posthoc.FitFDBD(ctx, nil, g.head) },
		"nci_a0.0001":   nci(0), "nci_a0.01": nci(0.01),
		"mds++k_superclasses": func() (posthoc.Scorer, error) {
			data := posthoc.NewData(g.train.Features(0, g.train.N), g.train.D, slices.Clone(g.train.Labels), 2)
			for i := range data.Labels {
				data.Labels[i] /= 5
			}
			return posthoc.FitModes(ctx, data)
		},
		"corp_M256":     func() (posthoc.Scorer, error) { return posthoc.FitCoRP(ctx, g.train, 256, 0, 0) },
		"corp_n200":     func() (posthoc.Scorer, error) { return posthoc.FitCoRP(ctx, g.first(200), 0, 0, 0) },
		"relation_pow1": func() (posthoc.Scorer, error) { return posthoc.FitRelation(g.train) },
	}
	files, err := filepath.Glob(filepath.Join(testenv.OpenOODScores(t), "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			fit := methods[name]
			if fit == nil {
				fit = func() (posthoc.Scorer, error) {
					return posthoc.Fit(ctx, name, posthoc.Input{Train: g.train, Val: g.val, LastLayer: g.head})
				}
			}
			score, err := fit()
			if err != nil {
				t.Fatal(err)
			}
			var change func([]float32)
			if strings.HasSuffix(name, "scaled_1e-4") {
				change = shrinkFirst
			}
			g.compare(t, name, score, change)
		})
	}
}

// TestEveryScoreHasAGolden: the values of each score come from other code than ours.
func TestEveryScoreHasAGolden(t *testing.T) {
	t.Parallel()
	settings := map[string]string{ // goldens that are named by OpenOOD's method and its settings
		"ash-b": "ash_b_p90", "ash-p": "ash_p_p90", "ash-s": "ash_s_p90", "scale": "scale_p85", "corp": "corp_M256", "dice": "dice_p90", "energy": "ebo",
		"fdbd": "fdbd_distance", "gen": "gen_g0.1_M100", "klm": "klm_fit_val", "knn": "knn_K50", "mds++": "mds_pp", "rmds++": "rmds_pp", "nci": "nci_a0.0001",
		"nnguide": "nnguide_a0.01_K100", "react": "react_p90_fit_val", "relation": "relation_pow1", "residual": "residual_dim32", "she-cos": "she_cosine",
		"she-e": "she_euclidean", "she-ip": "she_inner_product", "temperature": "temperature_scaling_fit_val", "vim": "vim_dim32", "vra": "vra_p60_p95_fit_train",
	}
	for _, name := range posthoc.Names() {
		golden := cmp.Or(settings[name], name)
		if _, err := os.Stat(filepath.Join(testenv.OpenOODScores(t), golden+".json")); err != nil {
			t.Errorf("%s has no golden: %v (CONTRIBUTING.md)", name, err)
		}
	}
}

// compare holds the scores of all sets against a golden.
func (g *golden) compare(t *testing.T, name string, score posthoc.Scorer, change func([]float32)) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.OpenOODScores(t), name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Clean     map[string]json.RawMessage `json:"clean_float64"`
		Tolerance struct {
			Float64 float64 `json:"float64_abs"`
		}
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	scores := map[string][]float64{}
	for _, set := range sets {
		var clean []float64
		if err := json.Unmarshal(want.Clean[set], &clean); err != nil {
			t.Fatal(err)
		}
		got := make([]float64, len(clean))
		batch := posthoc.Batch{Features: g.features(t, set, change), Logits: read[float64](t, g, set+"_logits")}
		if err := score.Score(context.Background(), got, batch); err != nil {
			t.Fatal(err)
		}
		scores[set] = got
		worst := 0.
		for i := range clean {
			if diff := math.Abs(got[i] - clean[i]); !(diff <= worst) {
				worst = diff
			}
		}
		t.Logf("%s: at most %.1e off, %.1e allowed", set, worst, want.Tolerance.Float64)
		if !(worst <= want.Tolerance.Float64) {
			t.Errorf("%s: scores are up to %g off, at most %g is allowed", set, worst, want.Tolerance.Float64)
		}
	}
	g.compareMetrics(t, scores, want.Clean["metrics"])
}

// compareMetrics holds what evaluation makes of the scores against the golden:
// areas to 1e-9, shares exactly.
func (g *golden) compareMetrics(t *testing.T, scores map[string][]float64, text []byte) {
	t.Helper()
	var wanted map[string]struct {
		AUROC, AUPR_IN, AUPR_OUT, FPR95_ood_positive, FPR95_id_positive float64
	}
	if err := json.Unmarshal(text, &wanted); err != nil {
		t.Fatal(err)
	}
	for _, set := range sets[1:] {
		got, want := metrics.Evaluate(scores["id"], scores[set]), wanted[set]
		for _, f := range []struct {
			name            string
			got, want, near float64
		}{
			{"AUROC", got.AUROC, want.AUROC, 1e-9},
			{"AUPR-In", got.AUPRIn, want.AUPR_IN, 1e-9},
			{"AUPR-Out", got.AUPROut, want.AUPR_OUT, 1e-9},
			{"FPR@95", got.FPR95, want.FPR95_ood_positive, 0},
			{"FPR@95 (95% of ID)", got.FPR95ID, want.FPR95_id_positive, 0},
		} {
			if !(math.Abs(f.got-f.want) <= f.near) {
				t.Errorf("%s: %s is %.12g, want %.12g", set, f.name, f.got, f.want)
			}
		}
	}
}
