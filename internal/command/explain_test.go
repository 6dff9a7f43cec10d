package command

import (
	"errors"
	"fmt"
	"html"
	"image"
	"image/color"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/report"
)

// spot draws a disc or stripes, with noise, and a strange corner if asked for.
func spot(t *testing.T, path string, kind, at int, strange bool) {
	t.Helper()
	img, rng := image.NewNRGBA(image.Rect(0, 0, 16, 16)), rand.New(rand.NewPCG(uint64(at), uint64(kind)))
	for y := range 16 {
		for x := range 16 {
			dx, dy := x-5-at%4, y-5-at/4%4
			v := uint8(40 + rng.IntN(20))
			if kind == 0 && dx*dx+dy*dy < 16 || kind == 1 && (dx+dy)%4 == 0 {
				v += 150
			}
			img.Set(x, y, color.NRGBA{v, v, v, 255})
			if strange && x > 11 && y > 11 {
				img.Set(x, y, color.NRGBA{255, 0, 255, 255})
			}
		}
	}
	testenv.SavePNG(t, path, img)
}

// TestExplain: what a person gets of --explain and --report, with names that hold
// markup, and after the training images were moved away.
func TestExplain(t *testing.T) {
	dir := t.TempDir()
	in := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	const bold, script = "<b>disc", "stripe<script>alert(1)<"
	for i := range 80 {
		spot(t, in("photos", bold, fmt.Sprint(i, ".png")), 0, i, false)
		spot(t, in("photos", script, fmt.Sprint(i, ".png")), 1, i, false)
	}
	call(t, 0, "extract", "--model", "pixels", "--size", "8", "--images", in("photos"), "--out", in("photos.features"))
	call(t, 0, "train", "--features", in("photos.features"), "--out", in("detector"), "--calibration", "0.3", "--quiet")
	new := in("new")
	spot(t, filepath.Join(new, "a<img src=x onerror=alert(2)>.png"), 0, 91, false)
	spot(t, filepath.Join(new, "b.png"), 1, 92, true)
	write(t, filepath.Join(new, "c.png"), "no image")
	detect := func(args ...string) (stdout, stderr string) {
		t.Helper()
		return call(t, 3, append(append([]string{"detect", "--detector", in("detector"), "--quiet"}, args...), new)...)
	}

	plain, _ := detect("--json")
	text, stderr := detect("--json", "--explain")
	usual, got := lines(t, plain), lines(t, text)
	if stderr != "mlrbfn detect: some images could not be read: 1\n" {
		t.Errorf("says %q", stderr)
	}
	verdict := []string{"class", "confidence", "ood", "p_value", "path", "score"}
	for i, row := range usual[:2] {
		if keys := slices.Sorted(maps.Keys(row)); !slices.Equal(keys, verdict) {
			t.Errorf("without --explain, JSON has %q", keys)
		}
		for _, key := range verdict {
			if got[i][key] != row[key] {
				t.Errorf("%s is %v, and without --explain %v", key, got[i][key], row[key])
			}
		}
		if keys := slices.Sorted(maps.Keys(got[i])); !slices.Equal(keys, slices.Sorted(slices.Values(append([]string{"nearest", "parts", "why"}, verdict...)))) {
			t.Errorf("JSON has %q", keys)
		}
	}
	near := got[0]["nearest"].([]any)[0].(map[string]any)
	if part := got[1]["parts"].([]any)[0].(map[string]any); part["name"] != "density" || part["value"].(float64) > -2 || part["adds"] == nil || part["meaning"] != "far from every class" {
		t.Errorf("%v", part)
	}
	if near["class"] != bold || filepath.Dir(near["path"].(string)) != bold || near["distance"].(float64) <= 0 || near["row"] == nil {
		t.Errorf("%v", near)
	}
	if got[0]["ood"] != false || got[1]["ood"] != true || !strings.HasPrefix(got[1]["why"].(string), "Flagged: ") || !slices.Equal(slices.Sorted(maps.Keys(got[2])), []string{"error", "path"}) {
		t.Errorf("%s", text)
	}
	text, _ = detect("--json", "--explain", "where", "--nearest", "0")
	got = lines(t, text)
	m := got[1]["where"].(map[string]any)
	values := m["values"].([]any)
	if got[0]["where"] != nil || got[1]["nearest"] != nil || len(values) != 64 || m["width"] != 8. || m["height"] != 8. {
		t.Errorf("%s", text)
	}
	for i, v := range values { // the corner is cells 6 and 7 of both sides
		if v.(float64) > values[63].(float64) && (i%8 < 5 || i/8 < 5) {
			t.Errorf("cell %d has %v and the strange corner %v", i, v, values[63])
		}
	}
	table, _ := detect("--explain=where")
	for _, want := range []string{"Flagged: ", "density", "nearest", "█", "far from every class"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	csv, _ := detect("--explain", "--format", "csv")
	if rows := strings.Split(csv, "\n"); !strings.HasSuffix(rows[0], ",error,why") || !strings.Contains(rows[2], "Flagged: ") {
		t.Errorf("%s", csv)
	}

	page := in("page.html")
	withPage, _ := detect("--json", "--report", page)
	if withPage != plain {
		t.Errorf("with --report, JSON is\n%swithout\n%s", withPage, plain)
	}
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := read()
	for _, want := range []string{html.EscapeString(bold), html.EscapeString("a<img src=x"), "near to a class", "c.png", "data:image/jpeg"} {
		if !strings.Contains(first, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{bold, "<script>alert", "<img src=x", "cannot be shown"} {
		if strings.Contains(first, not) {
			t.Errorf("the page has %q", not)
		}
	}
	detect("--explain", "--report", page, "--move-ood", in("moved"))
	if again := read(); strings.Count(again, "data:image/jpeg") != strings.Count(first, "data:image/jpeg") {
		t.Error("an image that was moved is not shown")
	}
	if err := os.Rename(in("moved", "b.png"), filepath.Join(new, "b.png")); err != nil {
		t.Fatal(err)
	}

	// The training images, then their features, are moved.
	if err := os.Rename(in("photos"), in("elsewhere")); err != nil {
		t.Fatal(err)
	}
	detect("--report", page)
	if text := read(); !strings.Contains(text, "pictures of training images cannot be shown") || !strings.Contains(text, "data:image/jpeg") {
		t.Error("the page does not say that the training images are gone")
	}
	detect("--report", page, "--images", in("elsewhere"))
	if text := read(); strings.Contains(text, "cannot be shown") {
		t.Error("the page does not show training images in the folder that is named")
	}
	if err := os.Rename(in("photos.features"), in("kept.features")); err != nil {
		t.Fatal(err)
	}
	text, stderr = detect("--json", "--explain", "--report", page)
	if got := lines(t, text); got[0]["nearest"] != nil || got[0]["why"] == "" || !strings.Contains(stderr, "note: the training features are missing") || !strings.Contains(stderr, "(--features)") {
		t.Errorf("%s%s", text, stderr)
	}
	if text := read(); !strings.Contains(text, "no training images are shown") {
		t.Error("the page does not say that the features are gone")
	}
	text, _ = detect("--json", "--explain", "--features", in("kept.features"), "--images", in("elsewhere"))
	if got := lines(t, text); len(got[0]["nearest"].([]any)) != 3 {
		t.Errorf("%s", text)
	}

	// Detectors without one threshold for all images.
	for _, args := range [][]string{{"--calibration", "cross:3"}, {"--calibration", "0.4", "--per-class"}} {
		call(t, 0, append([]string{"train", "--features", in("kept.features"), "--out", in("other"), "--quiet", "--no-assess"}, args...)...)
		text, _ := call(t, 3, "detect", "--detector", in("other"), "--quiet", "--json", "--explain", "where", "--report", page, new)
		if got := lines(t, text)[1]; got["ood"] != true || got["where"] == nil || len(got["nearest"].([]any)) != 3 || !strings.Contains(read(), got["why"].(string)) {
			t.Errorf("%s: %v", args, got)
		}
	}

	fails(t, "--features: ", "detect", "--detector", in("detector"), "--explain", "--features", in("elsewhere"), new)
	refused(t, "--explain or --report", "detect", "--detector", in("detector"), "--features", in("kept.features"), new)
	refused(t, "--nearest", "detect", "--detector", in("detector"), "--explain", "--nearest", "-1", new)
	write(t, in("other.html"), "mine")
	fails(t, "other.html", "detect", "--detector", in("detector"), "--report", in("other.html"), new)
}

// TestPageKeepsTheMostSurprising: of more images than a page shows, it keeps those
// with the lowest p-values, and counts the others.
func TestPageKeepsTheMostSurprising(t *testing.T) {
	d := &pipeline.Detector{Classes: []string{"a"}, TargetTPR: 0.95}
	p := newPage("", d, nil)
	const n = 5 * report.MostVerdicts
	for i := range n {
		score := float64(i * 7919 % n) // each once
		p.add(pipeline.Judgement{Path: fmt.Sprint(i), Verdict: pipeline.Verdict{Score: score, PValue: (1 + score) / n, OOD: score < 10}, Features: []float32{1}})
		p.add(pipeline.Judgement{Err: errors.New("broken")})
		if len(p.kept) >= 2*report.MostVerdicts {
			t.Fatalf("%d are kept", len(p.kept))
		}
	}
	p.cut()
	for i, j := range p.kept {
		if j.Score != float64(i) {
			t.Fatalf("image %d has the score %g", i, j.Score)
		}
	}
	if len(p.kept) != report.MostVerdicts || len(p.scores) != n || p.ood != 10 || p.unread != n || len(p.failed) != report.MostVerdicts {
		t.Errorf("%d kept, %d scores, %d OOD, %d unreadable, %d listed", len(p.kept), len(p.scores), p.ood, p.unread, len(p.failed))
	}
}

func TestJoinWords(t *testing.T) {
	for from, want := range map[string]string{
		"detect --explain where x": "detect --explain=where x", "--explain x": "--explain x", "--explain": "--explain",
		"--explain why --json": "--explain=why --json", "-- --explain where": "-- --explain where", "": "",
	} {
		if got := strings.Join(joinWords(strings.Fields(from)), " "); got != want {
			t.Errorf("%q becomes %q, want %q", from, got, want)
		}
	}
}
