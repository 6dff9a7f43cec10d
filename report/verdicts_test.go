package report

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// drawing is a picture of stripes that differ with i.
func drawing(i int) func() (image.Image, error) {
	return func() (image.Image, error) {
		img := image.NewRGBA(image.Rect(0, 0, 120, 90))
		for y := range 90 {
			for x := range 120 {
				img.Set(x, y, color.RGBA{uint8(x * (i%7 + 1)), uint8(y * (i%5 + 1)), uint8(40 * i), 255})
			}
		}
		return img, nil
	}
}

// judged is n images of three classes, with all that the page can show.
func judged(n int) Verdicts {
	random := rand.New(rand.NewPCG(1, 2))
	v := Verdicts{
		Detector: "my detectors/flowers.safetensors", Classes: []string{"rose", "tulip", "daisy"}, MaxFalseAlarms: 0.05,
		Frame: Frame{Facts: []evaluation.Fact{{Name: "detector", Value: "my detectors/flowers.safetensors"}, {Name: "date", Value: "22 November 2026"}},
			Commands: []string{"mlrbfn detect --detector 'my detectors/flowers.safetensors' --report page.html photos"}},
	}
	for range 199 {
		v.Calibration = append(v.Calibration, random.NormFloat64())
	}
	slices.Sort(v.Calibration)
	v.Threshold = v.Calibration[9] // the tenth of 199: 5%
	unreadable := func() (image.Image, error) { return nil, errors.New("it moved") }
	for i := range n {
		score := random.NormFloat64() - 2*float64(i%2)
		below, _ := slices.BinarySearch(v.Calibration, score)
		item := Verdict{
			Image:   images.Picture{Path: fmt.Sprintf("photos/%04d.jpg", i), Decode: drawing(i)},
			Verdict: detector.Verdict{Class: v.Classes[i%3], Confidence: random.Float64(), Score: score, PValue: float64(1+below) / 200, OOD: score < v.Threshold},
			Explanation: detector.Explanation{Why: "It is far from every class.", Parts: []detector.ScorePart{
				{Name: "mds++", Deviations: score - 1, Meaning: "how far it is from the centre of its class"}, {Name: "head", Deviations: score, Meaning: "how sure the head is"},
				{Name: "neighbours", Deviations: -score / 2, Meaning: fmt.Sprintf("it has %d neighbours", i)}}},
		}
		for k := range 3 {
			near := detector.Neighbour{Image: images.Picture{Path: fmt.Sprintf("train/%d.jpg", (i+k)%5), Decode: drawing(100 + (i+k)%5)}, Class: v.Classes[k], Distance: 1 + float64(k)/3}
			if (i+k)%5 == 4 {
				near.Image.Decode = unreadable
			}
			item.Nearest = append(item.Nearest, near)
		}
		switch i % 6 {
		case 1:
			item.Where = &detector.Map{Width: 4, Height: 3, Values: []float32{0, 0, 0, 0, 0, 1, .5, 0, 0, -1, 0, float32(math.NaN())}, Area: [4]float64{.1, 0, .9, 1}}
		case 3:
			item.Image.Label = "tulip"
		}
		if i%20 == 7 {
			item.Image.Decode = unreadable
		}
		v.Items = append(v.Items, item)
	}
	v.Failed = []features.Failure{{Path: "photos/broken.jpg", Error: "it is cut short"}}
	return v
}

// writeVerdictPages writes the pages and returns the first.
func writeVerdictPages(t *testing.T, file string, v Verdicts) string {
	t.Helper()
	if err := WriteVerdicts(file, v); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	v := judged(60)
	page := writeVerdictPages(t, filepath.Join(t.TempDir(), "new", "page.html"), v)
	flagged := 0
	for _, item := range v.Items {
		if item.OOD {
			flagged++
		}
	}
	for _, want := range []string{
		fmt.Sprintf("<dd>%d</dd>", flagged), "images judged", "photos/broken.jpg", "it is cut short", "It is far from every class.",
		"(label: tulip)", "Images that cannot be shown", "pictures of training images cannot be shown", "OOD, nearest: tulip",
		`"x":[10,0,80,100]`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// The most surprising come first.
	last := math.Inf(-1)
	for _, line := range strings.Split(page, `"s":`)[1:] {
		var score float64
		if _, err := fmt.Sscanf(line, "%g", &score); err != nil || score < last {
			t.Errorf("score %g after %g, %v", score, last, err)
		}
		last = score
	}
}

// TestPicturesBeside: many images have their pictures in files, which replace those of an
// earlier page.
func TestPicturesBeside(t *testing.T) {
	defer func(one int) { onePage = one }(onePage)
	onePage = 20
	file := filepath.Join(t.TempDir(), "a #1?.html")
	pictures := func() (names []string) {
		entries, _ := os.ReadDir(strings.TrimSuffix(file, ".html") + "-pictures")
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	page := writeVerdictPages(t, file, judged(30))
	if got := pictures(); len(got) != 28 || got[0] != "00000.jpg" { // two cannot be read
		t.Errorf("pictures %v", got)
	}
	if want := `"./a%20%231%3F-pictures/00000.jpg"`; !strings.Contains(page, want) || strings.Count(page, "data:image/jpeg") > 20 {
		t.Errorf("the page lacks %s, or has pictures of its own", want)
	}
	mine := filepath.Join(strings.TrimSuffix(file, ".html")+"-pictures", "mine.jpg")
	if err := os.WriteFile(mine, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	writeVerdictPages(t, file, judged(20))
	if got := pictures(); !slices.Equal(got, []string{"mine.jpg"}) {
		t.Errorf("left of the earlier page are %v", got)
	}
}

// TestMillionVerdicts: the page holds the most surprising images, and counts all.
func TestMillionVerdicts(t *testing.T) {
	v := judged(40)
	v.Scores = make([]float64, 1_000_000)
	for i := range v.Scores {
		v.Scores[i] = 10
	}
	for i, item := range v.Items {
		v.Scores[i] = item.Score
	}
	page := writeVerdictPages(t, filepath.Join(t.TempDir(), "page.html"), v)
	for _, want := range []string{"<dd>1,000,000</dd>", "the 40 that are most surprising are shown"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	v.Scores, v.Items = nil, make([]Verdict, MostVerdicts+1)
	if page := writeVerdictPages(t, filepath.Join(t.TempDir(), "page.html"), v); strings.Count(page, `"q":`) != MostVerdicts {
		t.Errorf("the page has %d images", strings.Count(page, `"q":`))
	}
}

// TestCost compares the interval with what a detector prints: a share is
// Beta(k, n+1−k) for the k-th smallest of n calibration scores.
func TestCost(t *testing.T) {
	t.Parallel()
	v := Verdicts{}
	for i := range 199 {
		v.Calibration = append(v.Calibration, float64(i))
	}
	// From binomial tails in exact arithmetic: Beta(10, 190), and Clopper and Pearson's
	// interval of 10 of 199.
	at, between := v.cost(9), v.cost(9.5)
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-4 }
	if !near(at.Mean, 0.05) || !near(at.Low, 0.024357) || !near(at.High, 0.084115) {
		t.Errorf("at the tenth score %+v", at)
	}
	if !near(between.Low, 0.024357) || !near(between.High, 0.090470) || !near(between.Mean, 0.055) {
		t.Errorf("between two scores %+v", between)
	}
	if below := v.cost(-1); below.Low != 0 || !near(below.High, 1-math.Pow(0.025, 1.0/199)) {
		t.Errorf("below all scores %+v", below)
	}
	if above := v.cost(500); above.High != 1 || !near(above.Low, math.Pow(0.025, 1.0/199)) {
		t.Errorf("above all scores %+v", above)
	}
	if (&Verdicts{}).cost(1).Known {
		t.Error("without calibration scores the cost is known")
	}
	p := Verdicts{ByPValue: true, Calibration: v.Calibration}
	if c := p.cost(0.05); !near(c.Mean, 0.05) || c.Low != at.Low || c.High != at.High {
		t.Errorf("by the p-value %+v, by the score %+v", c, at)
	}
}

// TestThresholds: the slider's step of the detector's own threshold flags what the
// detector flagged.
func TestThresholds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Verdicts){
		"by score":       func(*Verdicts) {},
		"by p-value":     func(v *Verdicts) { v.ByPValue = true },
		"no calibration": func(v *Verdicts) { v.Calibration = nil },
		"no threshold": func(v *Verdicts) {
			v.Threshold = math.Inf(-1)
			for i := range v.Items {
				v.Items[i].OOD = false
			}
		},
		"-inf": func(v *Verdicts) { v.Items[0].Score, v.Items[0].OOD = math.Inf(-1), true },
	} {
		t.Run(name, func(t *testing.T) {
			v := judged(80)
			change(&v)
			page := writeVerdictPages(t, filepath.Join(t.TempDir(), "page.html"), v)
			flagged := 0
			for _, item := range v.Items {
				if item.OOD {
					flagged++
				}
				v.Scores = append(v.Scores, item.Score)
				if v.ByPValue {
					v.Scores[len(v.Scores)-1] = item.PValue
				}
			}
			slices.Sort(v.Scores)
			s := newSlider(&v)
			if got := s.Steps[s.At].Flagged; got != flagged {
				t.Errorf("its own step flags %d, the detector %d", got, flagged)
			}
			if len(s.Steps) < 30 || s.Steps[0].Flagged != 0 && name != "-inf" {
				t.Errorf("%d steps, of which the first flags %d", len(s.Steps), s.Steps[0].Flagged)
			}
			if !strings.Contains(page, `id="steps"`) || strings.Contains(page, "ZgotmplZ") {
				t.Error("the page has no slider")
			}
		})
	}
}

// TestHostileVerdicts shows that names are text, never markup.
func TestHostileVerdicts(t *testing.T) {
	t.Parallel()
	const evil = "<script>alert(\"1\")</script>&../'%$\xff\n"
	v := judged(2)
	v.Title, v.Detector, v.Classes, v.Notes = evil, evil, []string{evil}, []string{evil}
	v.Commands, v.Facts, v.Failed = []string{evil}, []evaluation.Fact{{Name: evil, Value: evil}}, []features.Failure{{Path: evil, Error: evil}}
	for i := range v.Items {
		item := &v.Items[i]
		item.Image.Path, item.Image.Label, item.Class, item.Why = evil, evil, evil, evil
		item.Parts = []detector.ScorePart{{Name: evil, Adds: math.NaN(), Deviations: math.NaN(), Meaning: evil}, {Name: evil, Deviations: math.Inf(-1), Meaning: evil + "2"}}
		item.Nearest = []detector.Neighbour{{Image: images.Picture{Path: evil, Label: evil}, Class: evil, Distance: math.NaN()}}
		item.PValue, item.Confidence = math.NaN(), math.NaN()
	}
	page := writeVerdictPages(t, filepath.Join(t.TempDir(), "page.html"), v)
	if n := strings.Count(page, "<script>"); n != 3 {
		t.Errorf("the page has %d scripts", n)
	}
	if strings.Contains(page, "alert(\"1\")") || strings.Contains(page, "ZgotmplZ") {
		t.Error("a name is not escaped")
	}
	empty := writeVerdictPages(t, filepath.Join(t.TempDir(), "page.html"), Verdicts{})
	if !strings.Contains(empty, "No image was judged") {
		t.Error("a page of nothing does not say so")
	}
}
