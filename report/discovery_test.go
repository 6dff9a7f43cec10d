package report

import (
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// judgedTogether is a discovery with two groups and new images in none, of names that are
// markup.
func judgedTogether() Discovery {
	const evil = "<script>alert(1)</script>\xff"
	d := Discovery{
		Images: 1200, New: 40, Known: 6, Last: -3, AtLeast: 35, FDR: .1,
		Bounds: []evaluation.DiscoveryBound{{Together: -9, Found: 1, Known: 0}, {Together: -5, Found: 20, Known: 2}, {Together: -3, Found: 40, Known: 6}, {Together: -1.5, Found: 90, Known: 55}, {Together: 0, Found: 500, Known: 465}},
		Failed: []features.Failure{{Path: evil, Error: "it is cut short"}}, Frame: Frame{Notes: []string{evil}, Commands: []string{"mlrbfn discover"}, Facts: []evaluation.Fact{{Name: "version", Value: "1"}}},
	}
	near := detector.Neighbour{Image: images.Picture{Path: "train/1.jpg", Label: "rose", Decode: drawing(100)}, Class: "rose", Distance: 1.5}
	for k, n := range []int{12, 5, 3} {
		kind := NewKind{Title: fmt.Sprint("Group ", k), Total: 10 * n, Nearest: []detector.Neighbour{near, {Row: 7, Class: evil}}, Command: fmt.Sprintf("mlrbfn train --add NAME=new/group-%d.txt", k)}
		if k == 2 {
			kind.Title, kind.Total, kind.Nearest, kind.Command = "New, in no group", n, nil, ""
		}
		for i := range n {
			img := NewImage{Image: images.Picture{Path: fmt.Sprintf("%d%s%d.jpg", k, evil, i), Decode: drawing(10*k + i)}, Together: -9 + float64(10*k+i)/3}
			if i == 3 {
				img.Image.Decode = func() (image.Image, error) { return nil, errors.New("it moved") }
			}
			kind.Images = append(kind.Images, img)
		}
		d.Kinds = append(d.Kinds, kind)
	}
	return d
}

func writeDiscovery(t *testing.T, d Discovery) (file, page string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "new", "page.html")
	if err := WriteDiscovery(file, d); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, string(text)
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	_, page := writeDiscovery(t, judgedTogether())
	for _, want := range []string{
		"40 of 1,200 images are called new. Of these 40 at most 6 are known (95%), and at least 35 of all are new. In the mean over folders, at most 10% of those",
		"Group 0: 120 images", "Shown are 12 of them.", "New, in no group: 3 images", "new/group-1.txt", "it is cut short", "row 7", `value="2"`,
		`<span class="path">0&lt;script&gt;`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "ZgotmplZ") || strings.Count(page, "<script>") != 2 {
		t.Error("a name is markup")
	}
	if shown, unread := strings.Count(page, "<li data-item"), strings.Count(page, `<span class="path">`); shown != 20 || unread != 2 || !strings.Contains(page, "data:image/jpeg") {
		t.Errorf("%d images, %d of them without pictures", shown, unread)
	}
	for want, d := range map[string]Discovery{
		"No image was judged":                   {},
		"None of 9 images is called new.":       {Images: 9, Bounds: []evaluation.DiscoveryBound{{Together: 1, Found: 2, Known: 2}}},
		"at least 5 are new, with a confidence": {Images: 900, AtLeast: 5, Bounds: []evaluation.DiscoveryBound{{Together: 1, Found: 10, Known: 10}, {Together: 2, Found: 50, Known: 45}, {Together: 3, Found: 90, Known: 85}}},
	} {
		if _, page := writeDiscovery(t, d); !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	mine := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(mine, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(CheckPage(mine), WriteDiscovery(mine, Discovery{})); !errors.Is(err, metrics.ErrForeign) {
		t.Errorf("over a page of another program: %v", err)
	}
}

func TestDiscoveryInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	d := judgedTogether()
	file, _ := writeDiscovery(t, d)
	Look(t, b, "discovery", file)
	tab := b.Open(t)
	tab.Show(Screens[0].Screen)
	tab.Go(browser.File(t, file))
	for _, step := range []struct {
		key  string
		at   int
		text string
	}{
		{"", 2, "Of these 40 images at most 6 are known (95%), so that at least 34 are new."},
		{"End", 4, "Of these 500 images at most 465 are known (95%), so that at least 35 are new."},
		{"Home", 0, "Of these 1 image at most 0 are known (95%), so that at least 1 is new."},
	} {
		tab.Eval(`document.getElementById("position").focus()`, nil)
		if step.key != "" {
			tab.Press(step.key)
		}
		if got := tab.Text("#effect"); got != step.text {
			t.Errorf("%s: the slider says %q", step.key, got)
		}
		beyond := 0
		for _, k := range d.Kinds {
			for _, img := range k.Images {
				if img.Together > d.Bounds[step.at].Together {
					beyond++
				}
			}
		}
		if got := tab.Count(".mosaic .beyond"); got != beyond {
			t.Errorf("%s: %d images are beyond the position, want %d", step.key, got, beyond)
		}
	}
	tab.Click("#kind-0 .copy")
	tab.Wait(`document.querySelector("#kind-0 .copy").textContent === "Copied"`)
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
