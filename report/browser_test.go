package report_test

import (
	"path/filepath"
	"testing"

	"mlrbfn/internal/testenv/browser"
)

// screens are what every page is looked at on.
var screens = []struct {
	name string
	browser.Screen
}{
	{"desk-light", browser.Screen{Width: 1280, Height: 900}},
	{"desk-dark", browser.Screen{Width: 1280, Height: 900, Dark: true}},
	{"phone-light", browser.Screen{Width: 390, Height: 844, Phone: true}},
	{"phone-dark", browser.Screen{Width: 390, Height: 844, Phone: true, Dark: true}},
}

// look opens a page on every screen, with and without scripts: nothing is wider than
// the screen, nothing is read from elsewhere, no script fails and axe-core finds
// nothing serious. With -artifacts, screenshots remain.
func look(t *testing.T, b *browser.Browser, name, file string) {
	shots := t.ArtifactDir()
	address := browser.File(t, file)
	for _, scripts := range []bool{true, false} {
		for _, screen := range screens {
			at := name + "-" + screen.name
			if !scripts {
				at += "-without-scripts"
			}
			t.Run(at, func(t *testing.T) {
				tab := b.Open(t)
				tab.Scripts(scripts)
				tab.Show(screen.Screen)
				tab.Go(address)
				if wide := tab.Overflow(); len(wide) > 0 {
					t.Errorf("wider than the screen: %q", wide)
				}
				tab.Screenshot(filepath.Join(shots, at+".png"), true)
				for _, c := range tab.Complaints() {
					t.Errorf("the page complains: %s", c)
				}
				if r := tab.Requests(); len(r) != 1 {
					t.Errorf("what was read: %q", r)
				}
			})
		}
	}
	for _, screen := range screens {
		t.Run(name+"-"+screen.name+"-axe", func(t *testing.T) {
			tab := b.Open(t)
			tab.Show(screen.Screen)
			tab.Go(address)
			tab.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil)
			for _, v := range tab.Violations() {
				t.Error(v)
			}
		})
	}
}

func TestEvaluationInBrowser(t *testing.T) {
	b := browser.Start(t)
	dir := t.TempDir()
	write(t, dir, synthetic(t, 8, 4, 2, 300, 200))
	page := filepath.Join(dir, "report.html")
	look(t, b, "evaluation", page)

	tab := b.Open(t)
	tab.Show(screens[0].Screen)
	tab.Go(browser.File(t, page))
	tab.Click("#summary thead tr:last-child th button")
	var values []float64
	tab.Eval(`[...document.querySelectorAll("#summary tbody tr")].map((r) => Number(r.cells[1].dataset.sort))`, &values)
	for i := range values {
		if i > 0 && values[i] > values[i-1] {
			t.Errorf("sorted by AUROC: %v", values)
		}
	}
	if len(values) != 8 || tab.Count("#summary th[aria-sort=descending]") != 1 {
		t.Errorf("%v; the column does not say that it is sorted", values)
	}
	// Charts are drawn as they come into view.
	tab.Eval(`document.querySelector("#curves .chart").scrollIntoView()`, nil)
	tab.Wait(`Chart.getChart(document.querySelector("#curves .chart canvas"))`)
	// Another score's worst misses are folded until they are asked for.
	if n := tab.Count("#galleries details .gallery > li"); n != 0 {
		t.Errorf("%d images are shown unasked", n)
	}
	tab.Click("#galleries details summary")
	if n := tab.Count("#galleries details .gallery > li"); n != 12 {
		t.Errorf("%d images are shown, not the 6 hardest of either kind", n)
	}
	tab.Press("j", "j")
	var at int
	tab.Eval(`items.filter((i) => i.checkVisibility()).indexOf(document.activeElement)`, &at)
	if at != 1 {
		t.Errorf("after two steps the keyboard is at image %d", at)
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
