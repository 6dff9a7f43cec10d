package report

import (
	"errors"
	"fmt"
	"image"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// shownDetector is the page of a detector of so many classes, with names that are
// markup and images that cannot be shown.
func shownDetector(classes int) Detector {
	assessment := &detector.Assessment{AUROC: 0.9, Caught: 0.8, FalseAlarms: []float64{0.01, 0.05, 0.5}, Curve: []float64{0.5, 0.8, 1}}
	validation := &detector.Validation{}
	d := Detector{
		Summary: &evaluation.Summary{
			Detector:   &detector.Detector{Threshold: -2, Assessment: assessment, History: make([][]head.Epoch, 1)},
			Validation: validation, Map: &evaluation.SummaryMap{Shares: []float64{0.4, 0.3, 0.2, 0.1}},
		},
		Frame: Frame{Title: "The detector <d>", Lead: []string{"It knows & tells."}, Notes: []string{"Something <is> missing."},
			Commands: []string{"mlrbfn train --features '<f>'"}, Facts: []evaluation.Fact{{Name: "seeds", Value: "0"}}},
	}
	d.Summary.Detector.Training.Rows.Validation = 4 * classes
	name := func(i int) string { return fmt.Sprintf("<b>class %d</b>", i) }
	for i := range classes {
		assessed := &detector.AssessedClass{AUROC: 0.9 + float64(i)/1000, Images: 7, TakenFor: name((i + 1) % classes), Curve: []float64{0.5, 0.8, 1}}
		d.Classes = append(d.Classes, evaluation.SummaryClass{Name: name(i), Train: 10 + i, Validation: 4, Calibration: -1, Right: 3, Assessed: assessed})
		d.Summary.Detector.Classes = append(d.Summary.Detector.Classes, name(i))
		validation.Confusion = append(validation.Confusion, detector.Confused{Label: i, Given: i, Images: 3}, detector.Confused{Label: i, Given: (i + 1) % classes, Images: 1})
		for j := range 5 {
			at := []float64{float64(i) + float64(j)/10, float64(j), -float64(i * j), float64(i%3) - float64(j)/7}
			image := images.Picture{Path: fmt.Sprintf("%s/<img src=x>%d.jpg", name(i), j), Label: name(i), Decode: drawing(5*i + j)}
			p := evaluation.Point{At: at, Image: image, Class: i, Part: evaluation.Training}
			if j == 0 {
				p.Part = evaluation.Validating
			}
			p.Verdict.Class, p.Verdict.OOD = name(i), j == 4
			d.Map.Points = append(d.Map.Points, p)
		}
	}
	d.FalseAlarms = []evaluation.FalseAlarms{{Threshold: math.Inf(-1), Share: 0.001, High: 0.01}}
	for i := range 30 {
		share := float64(i+1) / 31
		d.FalseAlarms = append(d.FalseAlarms, evaluation.FalseAlarms{Threshold: float64(i) - 10, Share: share, Low: share / 2, High: min(1, share*1.5)})
		history := &d.Summary.Detector.History[0]
		*history = append(*history, head.Epoch{Epoch: i + 1, TrainLoss: 1 / float64(i+1), ValLoss: 1.1 / float64(i+1), ValAccuracy: 0.9})
	}
	d.Closest = []evaluation.ClosestImage{
		{Image: images.Picture{Path: "near.jpg", Label: name(0), Decode: drawing(1)}, Score: -2, Threshold: -2, Given: name(1)},
		{Image: images.Picture{Path: "<gone>.jpg", Label: name(0), Decode: func() (image.Image, error) { return nil, errors.New("no <such> file") }}, Score: -2.1, Threshold: -2, OOD: true, Given: name(0)},
	}
	for i := range 2 {
		d.Lowest = append(d.Lowest, evaluation.LowestImage{Image: images.Picture{Path: "low.jpg", Decode: drawing(i)}, ReviewedImage: training.ReviewedImage{Path: "=low,.jpg", Row: i, Label: name(0), Class: name(1), Score: -3, PValue: 0.1}})
	}
	d.Change = &Change{
		Old: "old <one>", Note: "Compared on some.",
		Added: []detector.AddedClass{{Class: name(0), New: true, Images: 9, FlaggedBefore: 8, HeldOut: 0}},
		All:   detector.ChangedClass{Tally: detector.Tally{Class: "all", Images: 8, RightBefore: 7, RightAfter: 6}, AUROCBefore: math.NaN(), AUROCAfter: 0.5},
	}
	return d
}

func detectorPage(t *testing.T, d Detector) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "d.html")
	if err := WriteDetector(file, d); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDetectorPage: names are text, what cannot be shown is listed, and what is missing
// leaves no empty section.
func TestDetectorPage(t *testing.T) {
	t.Parallel()
	page := detectorPage(t, shownDetector(5))
	if n := strings.Count(page, `data-review="&#34;&#39;=low,.jpg&#34;,1,&lt;b&gt;class 0&lt;/b&gt;`); n != 1 {
		t.Errorf("the page has the line of the list %d times", n)
	}
	for _, bad := range []string{"<b>class", "<img src=x>", "<gone>", "<such>", "<one>", "<d>", "<is>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has the markup %q", bad)
		}
	}
	for _, want := range []string{
		`<span class="path">&lt;gone&gt;.jpg</span>: no &lt;such&gt; file`, "1 image could not be shown", "8 of 9 (88.9%)", `class="right" style="--share:75%"`, `class="confused" style="--share:25%"`, ".plane-card{",
		"all classes (mean)", "80.0%", "0.900", "Images not shown",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	many := detectorPage(t, shownDetector(31))
	if strings.Contains(many, `class="confusion"`) || !strings.Contains(many, "Most frequent confusions") || strings.Contains(many, `class="plane-legend"`) {
		t.Error("31 classes have a matrix or a legend")
	}
	one := func() Detector {
		return Detector{Summary: &evaluation.Summary{Detector: &detector.Detector{Threshold: math.Inf(-1)}, Classes: []evaluation.SummaryClass{{Name: "one"}}}}
	}
	bare := detectorPage(t, one())
	if n := strings.Count(bare, "<section"); n != 1 || strings.Contains(bare, ">NaN") || strings.Contains(bare, "Inf<") {
		t.Errorf("the page of next to nothing has %d sections", n)
	}
	// Points that are all the same, and one far off.
	d := one()
	d.Map = &evaluation.SummaryMap{Shares: []float64{0, 0}}
	for i := range 300 {
		p := evaluation.Point{At: []float64{1, float64(i % 7)}}
		if i == 0 {
			p.At[1] = 1e9
		}
		d.Map.Points = append(d.Map.Points, p)
	}
	if page := detectorPage(t, d); strings.Contains(page, `="NaN"`) || !strings.Contains(page, `x="450.0" y="14.0"`) {
		t.Error("equal points are not in the middle, or the far one is not at the edge")
	}
	if err := WriteDetector(filepath.Join("detector_test.go"), d); !errors.Is(err, metrics.ErrForeign) {
		t.Errorf("onto a file of somebody else: %v", err)
	}
}

func TestDetectorInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	file := filepath.Join(t.TempDir(), "d.html")
	if err := WriteDetector(file, shownDetector(9)); err != nil {
		t.Fatal(err)
	}
	Look(t, b, "detector", file)

	tab := b.Open(t)
	tab.Show(Screens[0].Screen)
	tab.Go(browser.File(t, file))
	card := func() string {
		if tab.Count("[data-plane-card]") == 0 {
			return ""
		}
		return tab.Text("[data-plane-card]")
	}
	if card() != "" {
		t.Error("an image of the map is shown unasked")
	}
	// The pointer.
	tab.Eval(`(() => {
		document.getElementById("map").scrollIntoView();
		const box = document.querySelector("[data-mark='7']").getBoundingClientRect();
		document.querySelector(".plane svg").dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2}));
	})()`, nil)
	if got := card(); !strings.Contains(got, "<img src=x>2.jpg") || tab.Count("[data-plane-card] .thumb") != 1 {
		t.Errorf("at the pointer: %q", got)
	}
	// A finger, which only taps: the card stays.
	tab.Eval(`(() => {
		const svg = document.querySelector(".plane svg");
		svg.dispatchEvent(new PointerEvent("pointerleave", {pointerType: "mouse"}));
		document.querySelector(".plane").dispatchEvent(new PointerEvent("pointerleave", {pointerType: "mouse"}));
		const box = document.querySelector("[data-mark='3']").getBoundingClientRect();
		const at = {bubbles: true, pointerType: "touch", clientX: box.x + box.width / 2 + 10, clientY: box.y + box.height / 2};
		for (const kind of ["pointerdown", "pointerup", "pointerout"]) svg.dispatchEvent(new PointerEvent(kind, at));
		document.querySelector(".plane").dispatchEvent(new PointerEvent("pointerleave", {pointerType: "touch"}));
	})()`, nil)
	if got := card(); got == "" {
		t.Error("after a tap no image is shown")
	}
	// The keyboard: one stop of Tab, arrows from mark to mark.
	var focusable int
	if tab.Eval(`document.querySelectorAll("[data-mark][tabindex='0']").length`, &focusable); focusable != 1 {
		t.Errorf("Tab stops at %d marks", focusable)
	}
	tab.Eval(`document.querySelector("[data-mark][tabindex='0']").focus()`, nil)
	first := card()
	tab.Press("ArrowRight")
	second := card()
	if first == "" || second == "" || first == second {
		t.Errorf("the keyboard goes from %q to %q", first, second)
	}
	tab.Press("ArrowLeft")
	if got := card(); got != first {
		t.Errorf("and back to %q", got)
	}
	tab.Press("Escape")
	if got := card(); got != "" {
		t.Errorf("after Escape: %q", got)
	}
	// Other axes, one class.
	place := func() (x string) {
		tab.Eval(`document.querySelector("[data-mark='7']").getAttribute("x")`, &x)
		return x
	}
	before := place()
	tab.Choose("[data-plane-axes]", "2")
	if place() == before || !strings.Contains(tab.Text("[data-plane-labels]"), "axis 3") {
		t.Errorf("the axes are still %q", tab.Text("[data-plane-labels]"))
	}
	tab.Choose("[data-plane-class]", "<b>class 3</b>")
	if n := tab.Count("[data-mark]:not(.dim)"); n != 5 {
		t.Errorf("%d images of a class of 5 are highlighted", n)
	}
	// What is ticked among the lowest images is marked in the list that is saved.
	var saved string
	tab.Eval(`(() => {
		let saved = "";
		HTMLAnchorElement.prototype.click = function () { saved = decodeURIComponent(this.href.slice(this.href.indexOf(",") + 1)); };
		document.querySelectorAll("[data-review]")[1].click();
		document.querySelector("[data-review-head] button").click();
		return saved;
	})()`, &saved)
	if saved != "path,row,label,class,score,p_value,remove\n\"'=low,.jpg\",0,<b>class 0</b>,<b>class 1</b>,-3,0.100000,\n\"'=low,.jpg\",1,<b>class 0</b>,<b>class 1</b>,-3,0.100000,x\n" {
		t.Errorf("the list is %q", saved)
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
