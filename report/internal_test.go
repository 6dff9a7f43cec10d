package report

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/gif"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// TestThinKeepsAreas draws curves of scores that overlap more or less, of few
// and many images, and of ties.
func TestThinKeepsAreas(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	worst := 0.0
	for _, c := range []struct {
		nID, nOOD  int
		apart, tie float64
	}{
		{9000, 1000, 2, 0}, {50_000, 10_000, 0.2, 0}, {300, 20_000, 1, 0}, {20_000, 120, 3, 0},
		{2000, 2000, 0, 0}, {5000, 5000, 1, 0.05}, {3000, 3000, 5, 0}, {400, 400, -1, 0},
	} {
		scores := func(n int, mean float64) []float64 {
			s := make([]float64, n)
			for i := range s {
				s[i] = mean + random.NormFloat64()
				if c.tie > 0 {
					s[i] = math.Round(s[i]/c.tie) * c.tie
				}
			}
			return s
		}
		roc, pr := metrics.Curves(scores(c.nID, c.apart), scores(c.nOOD, 0))
		for name, full := range map[string][]metrics.Point{"ROC": roc, "PR": pr} {
			less := thin(full, curvePoints)
			if len(less) > curvePoints || less[0] != full[0] || less[len(less)-1] != full[len(full)-1] {
				t.Errorf("%+v: %d points from %v to %v", c, len(less), less[0], less[len(less)-1])
			}
			off := math.Abs(area(less) - area(full))
			worst = max(worst, off)
			if off > 1e-3 {
				t.Errorf("%+v: area under %s is %.5f with all points, %.5f with %d", c, name, area(full), area(less), len(less))
			}
		}
	}
	t.Logf("areas are at most %.2g off", worst)
}

func TestThinDropsWhatIsStraight(t *testing.T) {
	t.Parallel()
	var line []metrics.Point
	for i := range 1001 {
		x := float64(i) / 1000
		line = append(line, metrics.Point{X: x, Y: math.Min(2*x, 1)})
	}
	if got, want := thin(line, 3), []metrics.Point{{X: 0, Y: 0}, {X: .5, Y: 1}, {X: 1, Y: 1}}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if got := thin(line[:2], 3); len(got) != 2 {
		t.Errorf("of two points are left %v", got)
	}
}

func TestExtremes(t *testing.T) {
	t.Parallel()
	scores := []float64{2, math.NaN(), math.Inf(-1), 2, math.Inf(1), -5}
	if got, want := extremes(scores, 3, false), []int{2, 5, 0}; !slices.Equal(got, want) {
		t.Errorf("lowest %v, want %v", got, want)
	}
	if got, want := extremes(scores, 4, true), []int{4, 0, 3, 5}; !slices.Equal(got, want) {
		t.Errorf("highest %v, want %v", got, want)
	}
}

// TestNearest compares the single pass with sorting all cosines.
func TestNearest(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(2, 2))
	const n, d, k = 300, 7, 4
	rows := make([][]float32, n)
	for i := range rows {
		rows[i] = make([]float32, d)
		for j := range rows[i] {
			rows[i][j] = float32(random.IntN(3)) // ties, and rows of zeros
		}
	}
	rows[5] = make([]float32, d)
	train := &images.Set{N: n, Row: func(i int) []float32 { return rows[i] }}
	queries := [][]float32{rows[17], make([]float32, d), nil}
	best := nearest(train, queries, k)
	for q, query := range queries[:2] {
		order := make([]int, n)
		cosines := make([]float64, n)
		for i, row := range rows {
			order[i] = i
			if scale := math.Sqrt(dot(row, row)) * math.Sqrt(dot(query, query)); scale > 0 {
				cosines[i] = dot(row, query) / scale
			}
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case cosines[a] > cosines[b]:
				return -1
			case cosines[a] < cosines[b]:
				return 1
			}
			return 0
		})
		for j, want := range order[:k] {
			if got := best[q][j].row; got != want {
				t.Errorf("neighbour %d is %d, want %d", j, got, want)
			}
		}
	}
	if len(best[2]) != 0 {
		t.Errorf("an image without features has the neighbours %v", best[2])
	}
}

// TestThumbnails reads files of every kind; one that is not an image has no
// thumbnail.
func TestThumbnails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
		return name
	}
	of := func(name string) string {
		t, _ := thumbnail(images.Pictures([]string{dir})(&features.Set{}, features.Image{Path: name}).Decode, thumbnailSide)
		if t == nil {
			return ""
		}
		return string(t.URL)
	}
	var tall, cut bytes.Buffer
	if err := gif.Encode(&tall, image.NewGray(image.Rect(0, 0, 3, 300)), nil); err != nil {
		t.Fatal(err)
	}
	if err := jpeg.Encode(&cut, image.NewGray(image.Rect(0, 0, 300, 300)), nil); err != nil {
		t.Fatal(err)
	}
	digits := append([]byte{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2}, make([]byte, 2*4*2)...)
	write("digits-idx3-ubyte", digits)
	for name, want := range map[string]image.Point{
		write("tall.gif", tall.Bytes()): {1, thumbnailSide},
		"digits-idx3-ubyte#1":           {thumbnailSide / 2, thumbnailSide},
	} {
		data, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(of(name), "data:image/jpeg;base64,"))
		if err != nil {
			t.Fatal(err)
		}
		config, err := jpeg.DecodeConfig(bytes.NewReader(data))
		if err != nil || (image.Point{config.Width, config.Height}) != want {
			t.Errorf("the thumbnail of %s has %d × %d, want %v, %v", name, config.Width, config.Height, want, err)
		}
	}
	// A bitmap that says it has 65,535 × 65,535 pixels.
	bomb := append([]byte("GIF89a"), 0xff, 0xff, 0xff, 0xff, 0, 0, 0)
	for what, name := range map[string]string{
		"absent": "none", "folder": ".", "no name": "", "no such digit": "digits-idx3-ubyte#2", "a negative digit": "digits-idx3-ubyte#-1",
		"text": write("text.png", []byte("text")), "empty": write("empty.jpg", nil),
		"cut short": write("cut.jpg", cut.Bytes()[:cut.Len()-40]), "bomb": write("bomb.gif", bomb),
	} {
		if got := of(name); got != "" {
			t.Errorf("%s: it has the thumbnail %.40s", what, got)
		}
	}
}

func TestBest(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, c := range []struct {
		means []float64
		lower bool
		want  []bool
	}{
		{[]float64{.9, nan, .8}, false, []bool{true, false, false}},
		{[]float64{.9, nan, .8}, true, []bool{false, false, true}},
		{[]float64{.90001, .90002, .8}, false, []bool{true, true, false}}, // the same as printed
		{[]float64{.9, .9}, false, []bool{false, false}},
		{[]float64{.9, .9, .9, .8}, false, []bool{true, true, true, false}},
		{[]float64{.9, .9, .9, .9, .8}, false, make([]bool, 5)}, // one network's accuracy
		{[]float64{nan}, false, []bool{false}},
		{[]float64{.5}, false, []bool{false}},
	} {
		var values []Value
		for _, m := range c.means {
			values = append(values, Value{Mean: m})
		}
		if got := best(values, c.lower); !slices.Equal(got, c.want) {
			t.Errorf("%v, lower %v: %v, want %v", c.means, c.lower, got, c.want)
		}
	}
}

// TestContrast checks the contrast of colours by WCAG: 4.5 for text, 3 for lines.
func TestContrast(t *testing.T) {
	t.Parallel()
	colours := map[string][2]string{}
	for _, c := range Palette {
		colours[c.Name] = [2]string{c.Light, c.Dark}
	}
	for name, least := range map[string]float64{
		"ink": 7, "faint": 4.5, "link": 4.5, "wrong": 4.5, "c0": 3, "c1": 3, "c2": 3, "c3": 3, "c4": 3, "c5": 3,
	} {
		for mode := range 2 {
			for _, below := range []string{"paper", "panel"} {
				a, b := luminance(colours[name][mode]), luminance(colours[below][mode])
				if ratio := (max(a, b) + .05) / (min(a, b) + .05); ratio < least {
					t.Errorf("%s on %s, mode %d: contrast %.2f, want %v", name, below, mode, ratio, least)
				}
			}
		}
	}
}

// luminance is the relative luminance of #rrggbb by WCAG 2.
func luminance(colour string) float64 {
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		digits := "0123456789abcdef"
		v := float64(strings.IndexByte(digits, colour[1+2*i])*16+strings.IndexByte(digits, colour[2+2*i])) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		sum += weight * v
	}
	return sum
}

// BenchmarkNearest searches 20,000 rows of 1,024 for the neighbours of 42 images.
func BenchmarkNearest(b *testing.B) {
	random := rand.New(rand.NewPCG(3, 3))
	const d = 1024
	rows := make([][]float32, 1000)
	for i := range rows {
		rows[i] = make([]float32, d)
		for j := range rows[i] {
			rows[i][j] = float32(random.NormFloat64())
		}
	}
	train := &images.Set{N: 20_000, Row: func(i int) []float32 { return rows[i%1000] }}
	for b.Loop() {
		nearest(train, rows[:42], 3)
	}
}

// TestStyleSheets: a brace that is missing would take away all rules after it.
func TestStyleSheets(t *testing.T) {
	for _, name := range []string{"style.css", "map.css"} {
		depth := 0
		for _, c := range asset(name) {
			switch c {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		if depth != 0 {
			t.Errorf("%s has %d braces too many", name, depth)
		}
	}
}

// TestLogarithmic: the curve stays, and begins at the least share.
func TestLogarithmic(t *testing.T) {
	f := &Chart{X: Axis{Max: 1}, Series: []Series{{Points: []metrics.Point{{}, {Y: 0.5}, {X: 1, Y: 1}}}}}
	points := f.logarithmic().Series[0].Points
	if !f.X.Log || f.X.Min != leastFlagged || len(points) < 6 {
		t.Fatalf("%+v of %d points", f.X, len(points))
	}
	for i, p := range points {
		if p.X < leastFlagged || i > 0 && (p.X < points[i-1].X || p.Y < points[i-1].Y) || i > 1 && math.Abs(p.Y-(0.5+p.X/2)) > 1e-9 {
			t.Errorf("point %d is %+v", i, p)
		}
	}
}
