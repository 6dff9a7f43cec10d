package report_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/images"
	_ "github.com/mlrbfn/mlrbfn/internal/command/figures"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

var methodNames = strings.Fields("mlrbfn msp mls energy gen odin she-ip she-e knn mds rmds mds++ rmds++ vim react klm nnguide fdbd ensemble " +
	"ensemble(gen,rmds++,mds++) scale ash dice gradnorm relation")

var setNames = strings.Fields("cifar100 tin ninco ssb-hard texture scenes streetchars mnist svhn places365 openimage-o inaturalist")

// synthetic is a report of an evaluation of normal scores, which later methods
// separate better: nID test images, nOOD OOD images a set, the first third of the
// sets near.
func synthetic(t *testing.T, methods, sets, seeds, nID, nOOD int) *evaluation.Evaluation {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	pictures := t.TempDir()
	for i := range 5 {
		writePicture(t, filepath.Join(pictures, fmt.Sprintf("image-%d.png", i)), uint8(50*i))
	}
	features := make([][]float32, 40)
	for i := range features {
		features[i] = []float32{float32(i), float32(i % 7), 1}
	}
	of := func(name string) (func(int) images.Picture, func(int) []float32) {
		return func(i int) images.Picture {
				path := fmt.Sprintf("%s/image-%d.png", name, i%6) // one of six is not there
				decode := func() (image.Image, error) {
					f, err := os.Open(filepath.Join(pictures, filepath.Base(path)))
					if err != nil {
						return nil, err
					}
					defer f.Close()
					return png.Decode(f)
				}
				return images.Picture{Path: path, Label: "class-" + strconv.Itoa(i%10), Decode: decode}
			}, func(i int) []float32 {
				return features[i%len(features)]
			}
	}
	r := &evaluation.Evaluation{
		Classes:  []string{"class-0", "class-1"},
		ID:       images.Set{Name: "cifar10-test", N: nID, Fingerprint: "355333779b9e75e2091d31cfea5c597aae268251c998d62d5853c0cbf7c36dfe"},
		Train:    &images.Set{Name: "cifar10-train", Group: "train", N: 40},
		Commands: []string{"evaluate --train features/train --id features/test --near cifar100=features/cifar100 --far texture=features/texture --out report"},
		Facts:    []evaluation.Fact{{Name: "version", Value: "1.2.3"}, {Name: "date", Value: "2026-11-21"}},
	}
	r.ID.Image, r.ID.Row = of("test")
	r.Train.Image, r.Train.Row = of("train")
	for s := range sets {
		group := metrics.Near
		if s >= (sets+2)/3 {
			group = metrics.Far
		}
		set := images.Set{Name: setNames[s], Group: group, N: nOOD}
		set.Image, set.Row = of(set.Name)
		r.OOD = append(r.OOD, set)
	}
	r.Labels = make([]int64, nID)
	for m, method := range methodNames[:methods] {
		var rows []metrics.Measurement
		for seed := range seeds {
			scores := map[string][]float64{"id": normal(random, 1+float64(m)/8, nID)}
			predicted := make([]int, nID)
			for i, s := range scores["id"] {
				if s+random.NormFloat64() < -0.5 {
					predicted[i] = 1
				}
			}
			for s, set := range r.OOD {
				ood := normal(random, -float64(s)/6, nOOD)
				ood[0] = math.Inf(-1)
				scores[set.Name] = ood
				row := metrics.Measure(scores["id"], ood)
				row.Method, row.Seed, row.Group, row.Dataset, row.IDAcc = method, strconv.Itoa(seed), set.Group, set.Name, metrics.Accuracy(predicted, r.Labels)
				rows = append(rows, row)
			}
			r.Runs = append(r.Runs, evaluation.Run{Method: method, Seed: strconv.Itoa(seed), Predicted: map[string][]int{"id": predicted},
				Scores: func(dataset string) ([]float64, error) { return scores[dataset], nil }})
		}
		r.Results = append(r.Results, metrics.Summarise(rows)...)
	}
	for _, layers := range []int{1, 2, 3, 4} {
		for i, name := range []string{"mlrbfn", "relu"} {
			for _, group := range []string{metrics.Far, metrics.Near} {
				row := metrics.Measurement{Method: fmt.Sprintf("%s-%d", name, layers), Seed: "mean", Group: group, Dataset: "mean",
					Result: metrics.Result{AUROC: 0.80 + 0.01*float64(len(group)) + 0.02*float64(layers*(1-2*i)), AUPROut: 0.8, FPR95: 0.4}, IDAcc: 0.9}
				r.Ablation = append(r.Ablation, row)
				row.Seed, row.AUROC, row.AUPROut, row.FPR95, row.IDAcc = "std", 0.01, 0.01, 0.01, 0.001
				r.Ablation = append(r.Ablation, row)
			}
		}
	}
	r.Intervals = []evaluation.Interval{{Method: methodNames[0], Group: metrics.Near, Dataset: "mean",
		Intervals: metrics.Intervals{AUROC: metrics.Interval{Low: 0.811, High: 0.899}}}}
	r.Confidence = "95% of 1,000 resamples"
	return r
}

// published are lines to compare with.
var published = []report.Line{{Method: "Best Post-hoc", Cells: []report.Cell{{Near: report.Value{Mean: .9064, Std: .002}, Far: report.Value{Mean: .9348, Std: math.NaN()}, Acc: report.Value{Mean: math.NaN(), Std: math.NaN()}}}}}

func normal(random *rand.Rand, mean float64, n int) []float64 {
	scores := make([]float64, n)
	for i := range scores {
		scores[i] = mean + random.NormFloat64()
	}
	return scores
}

func writePicture(t *testing.T, file string, grey uint8) {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 120, 80))
	for i := range img.Pix {
		img.Pix[i] = 255
	}
	for x := range 60 {
		img.Set(x, x, color.Gray{Y: grey})
	}
	testenv.SavePNG(t, file, img)
}

// write writes a report and returns its page.
func write(t *testing.T, dir string, r *evaluation.Evaluation) string {
	t.Helper()
	var lines []report.Line
	if len(r.Runs) > 0 {
		lines = published
	}
	if err := report.Write(dir, r, lines...); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	checkWellFormed(t, string(page))
	return string(page)
}

var script = regexp.MustCompile(`(?s)<script[^>]*>.*?</script>`)

// program is a script that runs, not data.
var program = regexp.MustCompile(`(?s)<script>.*?</script>`)

// checkWellFormed checks that the page is well formed, needs nothing from elsewhere,
// and has a text for each picture.
func checkWellFormed(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(script.ReplaceAllString(page, "")))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	ids := map[string]bool{}
	var links []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page is malformed: %v", err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := map[string]string{}
		for _, a := range e.Attr {
			attr[a.Name.Local] = a.Value
			if (a.Name.Local == "href" || a.Name.Local == "src") && !strings.HasPrefix(a.Value, "#") && !strings.HasPrefix(a.Value, "data:") {
				t.Errorf("<%s> refers to %.60q", e.Name.Local, a.Value)
			}
		}
		if id := attr["id"]; id != "" {
			if ids[id] {
				t.Errorf("the id %q is there twice", id)
			}
			ids[id] = true
		}
		if strings.HasPrefix(attr["href"], "#") {
			links = append(links, attr["href"][1:])
		}
		need := map[string]string{"html": "lang", "img": "alt", "th": "scope"}[e.Name.Local]
		if e.Name.Local == "svg" && attr["role"] == "" {
			need = "aria-hidden"
		}
		if attr["role"] == "img" {
			need = "aria-label"
		}
		if need != "" && attr[need] == "" {
			t.Errorf("<%s> has no %s: %v", e.Name.Local, need, e.Attr)
		}
	}
	for _, id := range links {
		if !ids[id] {
			t.Errorf("nothing has the id %q", id)
		}
	}
	page = program.ReplaceAllString(page, "")
	if strings.Contains(page, "NaN") || strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "%!") {
		at := regexp.MustCompile(`.{0,60}(NaN|ZgotmplZ|%!).{0,60}`).FindString(page)
		t.Errorf("the page has %q", at)
	}
}

// TestFullSize writes as many methods and sets as there may be, of as many scores,
// and checks that the page stays small. With -artifacts the report remains after
// the test.
func TestFullSize(t *testing.T) {
	t.Parallel()
	nID, nOOD := 20_000, 5_000
	if testing.Short() {
		nID, nOOD = 5000, 1000
	}
	dir := t.ArtifactDir()
	page := write(t, dir, synthetic(t, len(methodNames), len(setNames), 1, nID, nOOD))
	t.Logf("%d methods, %d sets: %.1f MB", len(methodNames), len(setNames), float64(len(page))/1e6)
	if len(page) > 4e6 {
		t.Errorf("the page has %d bytes", len(page))
	}
	files, err := filepath.Glob(filepath.Join(dir, "figures", "*.svg"))
	if err != nil || len(files) != 6*12+12+12+1+1 {
		t.Errorf("%d figures, %v", len(files), err)
	}
	for _, file := range files {
		f, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(f), "var(") {
			t.Errorf("%s has a colour that only a page knows", file)
		}
		var any struct{}
		if err := xml.Unmarshal(f, &any); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestSmallest(t *testing.T) {
	t.Parallel()
	page := write(t, t.TempDir(), &evaluation.Evaluation{Results: []metrics.Measurement{
		{Method: "msp", Seed: "mean", Group: metrics.Far, Dataset: "texture", NID: 10, NOOD: 5, Result: metrics.Result{AUROC: 0.75}, IDAcc: math.NaN()},
		{Method: "msp", Seed: "mean", Group: metrics.Far, Dataset: "mean", NID: 10, NOOD: 5, Result: metrics.Result{AUROC: 0.75}, IDAcc: math.NaN()},
	}})
	for _, want := range []string{"75.00", "On far-OOD msp has a mean AUROC of 75.00%"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"near", `id="histograms"`, `id="galleries"`, "★</span>75"} {
		_, main, _ := strings.Cut(page, "<main>")
		if main, _, _ = strings.Cut(main, `id="metrics"`); strings.Contains(main, not) {
			t.Errorf("the page has %q", not)
		}
	}
	if err := report.Write(t.TempDir(), &evaluation.Evaluation{}); err == nil {
		t.Error("a report of nothing was written")
	}
}

func TestSameInputSamePage(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 3, 2, 2, 60, 30)
	if first, second := write(t, t.TempDir(), r), write(t, t.TempDir(), r); first != second {
		t.Error("two reports of the same results differ")
	}
}

// TestAccuracyOfOneHead: scores that read one head share its accuracy, and none of
// them is marked as the only best.
func TestAccuracyOfOneHead(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 3, 2, 1, 200, 100)
	for i := range r.Results {
		if r.Results[i].IDAcc = 0.9; r.Results[i].Method == "mlrbfn" {
			r.Results[i].IDAcc = 0.8
		}
	}
	if page := write(t, t.TempDir(), r); !strings.Contains(page, "is 90.00% (mls, msp)") {
		t.Error("the page does not name the scores of one accuracy together")
	}
}

func TestBestOfAColumn(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 3, 2, 2, 200, 100)
	page := write(t, t.TempDir(), r)
	for _, method := range methodNames[:3] { // the later the better
		row := regexp.MustCompile(`<tr><th scope="row">` + method + `</th>(<td .*?</td>)(<td .*?</td>)`).FindStringSubmatch(page)
		for _, cell := range row[1:] {
			marked := strings.Contains(cell, `class="best"`) && strings.Contains(cell, `aria-label="best"`)
			if marked != (method == "mls") {
				t.Errorf("%s: marked %v: %s", method, marked, cell)
			}
		}
	}
}

// TestOddScores draws scores that have no histogram, no curve or no neighbours.
func TestOddScores(t *testing.T) {
	t.Parallel()
	inf, nan := math.Inf(1), math.NaN()
	for name, scores := range map[string][]float64{
		"all NaN":      {nan, nan, nan},
		"some NaN":     {nan, 1, 2},
		"all −∞":       {-inf, -inf, -inf},
		"all the same": {3, 3, 3},
		"huge":         {-1e308, 0, 1e308},
		"tiny":         {0, 5e-324, 1e-320},
		"both ends":    {-inf, 0, inf},
		"close":        {1e15, 1e15 + 0.125, 1e15 + 0.25},
		"large":        {1e9, 1e9 + 1, 1e9 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := synthetic(t, 2, 2, 1, 3, 3)
			r.Runs[0].Scores = func(string) ([]float64, error) { return scores, nil }
			r.Train.Row = func(i int) []float32 { return make([]float32, 3) }
			dir := t.TempDir()
			write(t, dir, r)
			files, _ := filepath.Glob(filepath.Join(dir, "figures", "*.svg"))
			for _, file := range files {
				if f, err := os.ReadFile(file); err != nil || strings.Contains(string(f), "NaN") || strings.Contains(string(f), "Inf") {
					t.Errorf("%s: %v, %.2000s", file, err, f)
				}
			}
		})
	}
}

func TestScoresThatAreNotThere(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 2, 2, 1, 9, 9)
	boom := errors.New("boom")
	r.Runs[1].Scores = func(string) ([]float64, error) { return nil, boom }
	if err := report.Write(t.TempDir(), r); !errors.Is(err, boom) || !strings.Contains(err.Error(), r.Runs[1].Method) {
		t.Errorf("error %v", err)
	}
	r.Runs[1].Scores = func(string) ([]float64, error) { return make([]float64, 8), nil }
	if err := report.Write(t.TempDir(), r); err == nil || !strings.Contains(err.Error(), "9 images") {
		t.Errorf("too few scores: %v", err)
	}
	r = synthetic(t, 2, 2, 1, 9, 9)
	r.Runs[0].Predicted["id"] = r.Runs[0].Predicted["id"][:4]
	if err := report.Write(t.TempDir(), r); err == nil || !strings.Contains(err.Error(), "4 predictions") {
		t.Errorf("too few predictions: %v", err)
	}
}

// TestHostileNames shows that names are text, never markup or paths.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	const evil = `<script>alert("1")</script>&../'%$`
	r := synthetic(t, 2, 2, 1, 9, 9)
	old := r.Runs[0].Method
	r.Runs[0].Method, r.ID.Name = evil, evil
	for i := range r.Results {
		if r.Results[i].Method == old {
			r.Results[i].Method = evil
		}
	}
	r.ID.Image = func(int) images.Picture { return images.Picture{Path: evil, Label: evil} }
	r.Commands, r.Facts = []string{evil}, []evaluation.Fact{{Name: evil, Value: evil}}
	dir := t.TempDir()
	page := write(t, filepath.Join(dir, "a", "b"), r)
	if n := strings.Count(page, "<script>"); n != 2 { // Chart.js with what draws, and what every page can do
		t.Errorf("the page has %d scripts", n)
	}
	left, err := os.ReadDir(filepath.Join(dir, "a"))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the report lie %v, %v", left, err)
	}
}

func TestOldFiguresGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, synthetic(t, 2, 3, 1, 9, 9))
	mine := filepath.Join(dir, "figures", "depth.svg")
	if err := os.WriteFile(mine, []byte("kept"), 0o666); err != nil {
		t.Fatal(err)
	}
	write(t, dir, synthetic(t, 1, 1, 1, 9, 9))
	files, err := os.ReadDir(filepath.Join(dir, "figures"))
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	want := []string{"ablation-layers.svg", "depth.svg", "histogram-mlrbfn-cifar100.svg", "pr-cifar100.svg", "roc-cifar100.svg", "selective.svg"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("figures %v, %v; want %v", names, err, want)
	}
}

func TestForeignPageStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := synthetic(t, 1, 1, 1, 9, 9)
	file := filepath.Join(dir, "report.html")
	if err := os.WriteFile(file, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{report.Check(dir), report.Write(dir, r)} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v", err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("the page is now %.40q, %v", text, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, dir, r)
	write(t, dir, r) // its own it replaces
	if err := report.Check(filepath.Join(dir, "none", "yet")); err != nil {
		t.Error(err)
	}
}

// TestHardestOfTheOwnScore: the hardest images are those of the score that the detector
// judges by, whichever method does best on these images.
func TestHardestOfTheOwnScore(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 3, 2, 1, 200, 100)
	for _, run := range r.Runs {
		r.Own = run.Method
		if page := write(t, t.TempDir(), r); !strings.Contains(page, "By the scores of "+run.Method) {
			t.Errorf("the hardest images are not those of %s", run.Method)
		}
	}
}
