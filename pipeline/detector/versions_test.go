package detector

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// versionRows are three rows near a class each, one between all of them, one
// far away and one of zeros.
var versionRows = []float32{
	-6.5, 5, -1, -3, 3, 4,
	0.5, -1, 2, 2, 6, 4,
	2.5, 5.5, 1.5, -1, 4, 4,
	-3, 2, 0.5, -0.5, 4.5, 4,
	20, -30, 10, 0, 5, -40,
	0, 0, 0, 0, 0, 0,
}

// versions are detectors on 300 rows of 6 random features in 3 classes, each
// written by the `train` of its time, and what that program said of
// versionRows:
//
//   - 1, as of commit 5b31f56: --layers 2 --centroids 6 --projection 4
//     --epochs 20 --batch 32 --lr 0.02 --seeds 0,1, the paper's head;
//   - 2, the first with the residual head: --centroids 6 --epochs 5;
//   - 3, the first with other scores, on rows like those: --scores ensemble
//     --centroids 6 --epochs 5;
//   - 4, the first with the joined score, on rows like those: --centroids 6
//     --epochs 5;
//   - 5, the first whose map of confidences has two slopes: by
//     testdata/version5.go, as of commit 06e2eafa;
//   - 6, the first with known outliers, on 300 rows around the first three of
//     versionRows and 40 outliers around the fourth: --outliers, and as 4;
//   - 7 and 8, the first that read layers and patches: by testdata/version8.go.
//
// The files stay as they are: what was trained once is read for ever.
var versions = map[string]struct {
	residual  bool
	heads     int
	threshold float64
	verdicts  []Verdict
}{
	"version1.safetensors": {false, 2, -3.2159650845133605, []Verdict{
		{"0", 0, 0.3204123497370582, -1.13814651978339, false, 19. / 31},
		{"1", 1, 0.39194670931048947, -0.9366293940696265, false, 23. / 31},
		{"2", 2, 0.2987622831965072, -1.2081070612795113, false, 17. / 31},
		{"2", 2, 0.03044426243715875, -3.4918577282896575, true, 1. / 31},
		{"2", 2, 1.141920850179445e-76, -174.8637552667896, true, 1. / 31},
		{"2", 2, 0.006443059993659796, -5.044751697420931, true, 1. / 31},
	}},
	"version2.safetensors": {true, 1, -2.61244619404966, []Verdict{
		{"0", 0, 0.9999999886989009, 1.3672022741991028, false, 27. / 31},
		{"1", 1, 0.9999999997445608, 2.293457810323879, false, 1},
		{"2", 2, 0.9999999904476732, 1.606616345343498, false, 29. / 31},
		{"1", 1, 1.0095675736884138e-05, -20.446090497917787, true, 1. / 31},
		{"1", 1, 5.1236389037797005e-152, -229.5879334038276, true, 1. / 31},
		{"0", 0, 6.007214882590175e-15, -26.684565875074885, true, 1. / 31},
	}},
	"version3.safetensors": {true, 1, -7.260688018779753, []Verdict{
		{"0", 0, 0.9999968400516162, 7.112483713807489, false, 29. / 31},
		{"1", 1, 0.999703144031389, 7.107022128889807, false, 29. / 31},
		{"2", 2, 0.9996879551019835, 2.3727871916724332, false, 23. / 31},
		{"1", 1, 5.677695664563825e-06, -35.24420614546034, true, 1. / 31},
		{"1", 1, 0, -1529.5865022814878, true, 1. / 31},
		{"1", 1, 8.870342975768935e-12, -79.40461090694434, true, 1. / 31},
	}},
	"version4.safetensors": {true, 1, -7.649621956953128, []Verdict{
		{"0", 0, 0.9929905154180608, 6.3658340341701125, false, 1},
		{"1", 1, 0.9774209815638342, 6.5359501266266635, false, 1},
		{"2", 2, 0.9693656264338653, 6.558710637776903, false, 1},
		{"0", 0, 0.15425032076482406, -8.199624038549691, true, 1. / 31},
		{"1", 1, 5.5960199315544743e-306, -4351.857586522023, true, 1. / 31},
		{"1", 1, 0.020318783645011718, -31.838843485908523, true, 1. / 31},
	}},
	"version5.safetensors": {true, 1, -5.9867979586326046, []Verdict{
		{"0", 0, 0.9513924008873229, 5.136201249306988, false, 1},
		{"1", 1, 0.9374543714428328, 4.871610898365495, false, 1},
		{"2", 2, 0.9320232132580283, 5.772777176504844, false, 1},
		{"0", 0, 0.8569546277516082, -0.6504359937257922, false, 9. / 31},
		{"1", 1, 3.075454577474207e-11, -765.1584925470995, true, 1. / 31},
		{"2", 2, 0.8530468514320454, -5.028659306877493, false, 2. / 31},
	}},
	"version6.safetensors": {true, 1, -11.275792161000844, []Verdict{
		{"0", 0, 0.9948721368345929, 5.249629100585459, false, 21. / 31},
		{"1", 1, 0.9909001911717844, 5.829973192586429, false, 22. / 31},
		{"2", 2, 0.9788233712935357, 6.672594113968273, false, 25. / 31},
		{"1", 1, 0.7349258495931689, -18.14224950066386, true, 1. / 31},
		{"1", 1, 1.7606431974242494e-119, -2649.534036830482, true, 1. / 31},
		{"1", 1, 0.4708701503014894, -26.507349072621697, true, 1. / 31},
	}},
	"version7.safetensors": {true, 1, -10.588840009669473, []Verdict{
		{"0", 0, 0.6072243790566123, 3.250981439360037, false, 1},
		{"1", 1, 0.6077416294720632, 3.405872022192235, false, 1},
		{"2", 2, 0.6048945199857146, 3.4518622334222178, false, 1},
		{"1", 1, 0.5798831077728877, 1.1134483398642745, false, 22. / 31},
		{"1", 1, 1.2109596910758733e-07, -282.20323334404475, true, 1. / 31},
		{"1", 1, 0.6006447217466743, -51.587411284503375, true, 1. / 31},
	}},
	"version8.safetensors": {true, 1, -11.00712015327675, []Verdict{
		{"0", 0, 0.7128782645053239, 4.017411292402809, false, 1},
		{"1", 1, 0.7024775457865596, 4.00568671739555, false, 1},
		{"2", 2, 0.692774742313107, 4.207207534981704, false, 1},
		{"1", 1, 0.6694653982418881, 2.2082908311038616, false, 26. / 31},
		{"1", 1, 2.416629630830929e-10, -1764.7309689184194, true, 1. / 31},
		{"1", 1, 0.6944246085840173, -29.485902990792667, true, 1. / 31},
	}},
}

func TestDetectorsOfAllVersions(t *testing.T) {
	t.Parallel()
	for name, want := range versions {
		d, err := Load(filepath.Join("testdata", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.Equal(d.Classes, []string{"0", "1", "2"}) || len(d.Heads) != want.heads || d.Heads[0].Network.Settings().Residual != want.residual || d.Threshold != want.threshold ||
			len(d.CalibrationScores) != 30 || len(d.Splits["validation"]) != 30 || d.Training.Rows.Train != 240 || len(d.History) != want.heads {
			t.Errorf("%s: read %+v", name, d)
		}
		got := verdictsOf(t, d, versionRows)
		for i, w := range want.verdicts {
			if g := got[i]; g.Class != w.Class || g.Label != w.Label || g.OOD != w.OOD || g.PValue != w.PValue || differ(g.Confidence, w.Confidence) || differ(g.Score, w.Score) {
				t.Errorf("%s: row %d: %+v, want %+v", name, i, g, w)
			}
		}
	}
}

// differ tells numbers that differ by more than the order of a sum can make.
func differ(a, b float64) bool { return !(math.Abs(a-b) <= 1e-9*math.Abs(b)) }

// TestResidualDetectorInPython recomputes the verdicts of a residual head from its
// file with NumPy alone, by the equations of the package head.
func TestResidualDetectorInPython(t *testing.T) {
	t.Parallel()
	rows, err := json.Marshal(versionRows)
	if err != nil {
		t.Fatal(err)
	}
	out := testenv.Python(t, `
import json, sys
import numpy as np
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as f:
    meta = json.loads(f.metadata()["mlrbfn"])
    t = {k: f.get_tensor(k).astype(np.float64) for k in f.keys()}
x = np.array(json.loads(sys.argv[2])).reshape(-1, 6)
length = np.linalg.norm(x, axis=1, keepdims=True)
z = (x / np.where(length > 0, length, 1) - t["conditioning.mean"]) @ t["conditioning.matrix"]
square = lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1)
sp = lambda v: np.log1p(np.exp(v))
m = square(z, t["density.means"]).min(1)
middle, radius = t["density.radii"]
log_dep = -np.logaddexp(0, 4 * (m - radius) / (radius - middle))
rec = np.log(meta["recovery"])
c, a, beta = t["layers.0.centroids"], t["layers.0.projections"], sp(t["layers.0.beta"])
u = z[:, : c.shape[1]]
log_n = np.log(beta / sp(t["layers.0.init_beta"])) - beta * square(u, c) + np.minimum(log_dep + rec, 0)[:, None]
u, log_dep = u + np.exp(log_n) @ a, log_n.max(1)
l = -sp(t["layers.1.beta"]) * square(u, t["layers.1.centroids"])
log_p = l - np.logaddexp.reduce(l, 1)[:, None]
p = np.exp(log_p)
one_less = np.array([[row[np.arange(len(row)) != c].sum() for c in range(len(row))] for row in p])
g = -(p * one_less) ** 0.1
(near_mean, near_std), (g_mean, g_std) = t["score"]
print(json.dumps({
    "score": ((-m - near_mean) / near_std + (g.sum(1) - g_mean) / g_std).tolist(),
    "confidence": np.exp(log_p.max(1) + np.minimum(log_dep + rec, 0)).tolist()}))
`, filepath.Join("testdata", "version2.safetensors"), string(rows))
	var got struct{ Score, Confidence []float64 }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range versions["version2.safetensors"].verdicts {
		if math.Abs(got.Score[i]-want.Score) > 1e-6*(1+math.Abs(want.Score)) || math.Abs(got.Confidence[i]/want.Confidence-1) > 1e-6 {
			t.Errorf("row %d: score %g and confidence %g, NumPy has %g and %g", i, want.Score, want.Confidence, got.Score[i], got.Confidence[i])
		}
	}
}

// TestEveryAlteredByteOfADetectorIsNoticed flips every byte of a file and cuts it
// at every length.
func TestEveryAlteredByteOfADetectorIsNoticed(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(filepath.Join("testdata", "version2.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "detector")
	refused := func(what string, at int, bad []byte) {
		t.Helper()
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); !errors.Is(err, ErrDetector) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s %d: %v", what, at, err)
		}
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		refused("another byte", i, bad)
		refused("cut at", i, good[:i])
	}
	refused("a byte more than", len(good), append(slices.Clone(good), ' '))
}
