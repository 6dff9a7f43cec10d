package report_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

func TestEvaluationInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	dir := t.TempDir()
	r := synthetic(t, 4, 2, 1, 100, 50)
	earlier := writeEarlier(t, r)
	var err error
	if r.Against, err = evaluation.ReadEarlier(earlier); err != nil {
		t.Fatal(err)
	}
	scores := r.Runs[1].Scores
	r.Runs[1].Scores = func(dataset string) ([]float64, error) { // the last image of each set changes sides
		s, err := scores(dataset)
		s = slices.Clone(s)
		s[len(s)-1] = map[bool]float64{true: -100, false: 100}[dataset == "id"]
		return s, err
	}
	write(t, dir, r)
	page := filepath.Join(dir, "report.html")
	report.Look(t, b, "evaluation", page)

	tab := b.Open(t)
	tab.Show(report.Screens[0].Screen)
	tab.Go(browser.File(t, page))
	if tab.Eval(`document.querySelector("#summary thead tr:last-child th button").focus()`, nil); tab.Count("#summary th[data-further]:not([hidden])") > 0 {
		t.Error("single sets are shown unasked")
	}
	tab.Press("Enter")
	var values []float64
	tab.Eval(`[...document.querySelectorAll("#summary tbody tr")].map((r) => Number(r.cells[1].dataset.sort))`, &values)
	for i := range values {
		if i > 0 && values[i] > values[i-1] {
			t.Errorf("sorted by AUROC: %v", values)
		}
	}
	if len(values) != 4 || tab.Count("#summary th[aria-sort=descending]") != 1 {
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
	// What changed since the earlier report: the method whose scores changed is open.
	if n := tab.Count("#against details[open] .gallery > li"); n < 2 || tab.Count("#against details") != 1 {
		t.Errorf("%d images that changed sides are shown, of %d methods", n, tab.Count("#against details"))
	}
	tab.Click("#against details summary")
	if n := tab.Count("#against details[open]"); n != 0 {
		t.Error("the list of changed images does not fold")
	}
	tab.Click("#against thead tr:last-child th button")
	if tab.Count("#against th[aria-sort]") == 0 {
		t.Error("the table of changes cannot be sorted")
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
