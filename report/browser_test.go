package report

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Screens are what every page is looked at on.
var Screens = []struct {
	name string
	browser.Screen
	plain bool // also without scripts, and with axe-core
}{
	{"desk-light", browser.Screen{Width: 1280, Height: 900}, true},
	{"desk-dark", browser.Screen{Width: 1280, Height: 900, Dark: true}, false},
	{"phone-light", browser.Screen{Width: 390, Height: 844, Phone: true}, false},
	{"phone-dark", browser.Screen{Width: 390, Height: 844, Phone: true, Dark: true}, true},
}

// Look opens a page on every screen, with and without scripts: nothing is wider than
// the screen, nothing is read from elsewhere, no script fails and axe-core finds
// nothing. With -artifacts, screenshots remain.
func Look(t *testing.T, b *browser.Browser, name, file string) {
	t.Helper()
	address := browser.File(t, file)
	shots := t.ArtifactDir()
	show := func(t *testing.T, shot string, screen browser.Screen, scripts bool) *browser.Tab {
		tab := b.Open(t)
		tab.Scripts(scripts)
		tab.Show(screen)
		tab.Go(address)
		if wide := tab.Overflow(); len(wide) > 0 {
			t.Errorf("wider than the screen: %q", wide)
		}
		if scripts {
			tab.Eval(`dispatchEvent(new Event("beforeprint"))`, nil) // draws charts out of sight, too
		}
		tab.Screenshot(filepath.Join(shots, shot+".png"), true)
		for _, c := range tab.Complaints() {
			t.Errorf("the page complains: %s", c)
		}
		if r := tab.Requests(); len(r) != 1 {
			t.Errorf("what was read: %q", r)
		}
		return tab
	}
	for _, screen := range Screens {
		at := name + "-" + screen.name
		t.Run(at, func(t *testing.T) {
			tab := show(t, at, screen.Screen, true)
			tab.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil)
			if wide := tab.Overflow(); len(wide) > 0 {
				t.Errorf("wider than the screen, unfolded: %q", wide)
			}
			if !screen.plain {
				return
			}
			rules := []string{"color-contrast", "target-size"} // which differ in dark mode and on a phone
			if !screen.Phone {
				rules = nil
			}
			for _, v := range tab.Violations(rules...) {
				t.Error(v)
			}
		})
		if screen.plain {
			t.Run(at+"-without-scripts", func(t *testing.T) {
				tab := show(t, at+"-without-scripts", screen.Screen, false)
				if n := tab.Count("form, button, main select, .needs-script"); n > 0 {
					t.Errorf("without scripts there are %d controls that do nothing", n)
				}
			})
		}
	}
}

func TestVerdictsInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "page.html")
	v := judged(24)
	names := []string{"it's <b>one</b>.jpg", "-rf\n$(touch x).jpg"}
	v.Items[1].Image.Path, v.Items[3].Image.Path = names[0], names[1]
	v.Items[1].Score, v.Items[1].PValue, v.Items[1].OOD = -20, 0.005, true
	v.Items[3].Score, v.Items[3].PValue, v.Items[3].OOD = -19, 0.005, true
	writeVerdictPages(t, file, v)
	Look(t, b, "verdicts", file)

	tab := b.Open(t)
	tab.Show(Screens[0].Screen)
	tab.Go(browser.File(t, file))
	flagged := 0
	perClass := map[string]int{}
	for _, item := range v.Items {
		perClass[item.Class]++
		if item.OOD {
			flagged++
		}
	}
	shown := func(what string, want int) {
		t.Helper()
		if got, want := tab.Text("#shown"), fmt.Sprintf("%d images shown", want); got != want && !strings.HasPrefix(got, want+", ") {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	shown("at first", flagged)
	if got, want := tab.Text("#effect"), fmt.Sprintf("Flags %d of 24 images. False alarms: about 5%% of in-distribution images; with 95%% probability between 2.44%% and 8.41%% in the long run.", flagged); got != want {
		t.Errorf("the slider says %q, want %q", got, want)
	}
	// Filters say how many they hide.
	tab.Eval(`document.querySelector(".more").open = true`, nil)
	tab.Choose("[data-by=o]", "")
	shown("all", 24)
	tab.Choose("[data-by=c]", "tulip")
	shown("tulips", perClass["tulip"])
	if got, want := tab.Text("#shown"), fmt.Sprintf("%d images shown, %d hidden by filters", perClass["tulip"], 24-perClass["tulip"]); got != want {
		t.Errorf("the filter says %q, want %q", got, want)
	}
	tab.Choose("[data-by=c]", "")
	tab.Choose("[data-by=o]", "OOD")
	// The slider, by keyboard, with the filter on.
	tab.Eval(`document.getElementById("threshold").focus()`, nil)
	tab.Press("End")
	n := 0
	for _, item := range v.Items {
		if item.Score < v.Calibration[len(v.Calibration)-1] {
			n++
		}
	}
	shown("at the highest threshold", n)
	if got := tab.Text("#effect"); !strings.HasPrefix(got, fmt.Sprintf("Would flag %d of 24 images.", n)) {
		t.Errorf("the slider says %q", got)
	}
	tab.Press("Home")
	shown("at the lowest threshold", 0)
	tab.Click("#reset")
	shown("as judged", flagged)
	// Large, and back.
	tab.Eval(`document.querySelector(".cell .open").focus()`, nil)
	tab.Press("Enter")
	if got := tab.Text("#large-h"); got != names[0] {
		t.Errorf("the strangest image is %q", got)
	}
	tab.Screenshot(filepath.Join(t.ArtifactDir(), "verdict-large.png"), false)
	tab.Click("#after")
	if got := tab.Text("#large-h"); got != strings.ReplaceAll(names[1], "\n", " ") {
		t.Errorf("the next image is %q", got)
	}
	for _, v := range tab.Violations() {
		t.Error(v)
	}
	tab.Press("Escape")
	tab.Wait(fmt.Sprintf("document.activeElement.title === %q", names[1]))
	tab.Press("k", "x", "j", "x")
	if got := tab.Text("#chosen"); got != "· 2 selected" {
		t.Errorf("after two keys: %q", got)
	}
	// Copying: what a shell reads from the command is the paths.
	paste := func() string {
		t.Helper()
		tab.Wait(`[...document.querySelectorAll("#act button")].some((b) => b.textContent === "Copied")`)
		tab.Eval(`document.getElementById("paste")?.remove(); document.body.insertAdjacentHTML("beforeend", "<textarea id=paste></textarea>"); document.getElementById("paste").focus()`, nil)
		tab.Paste()
		tab.Wait(`document.getElementById("paste").value`)
		var text string
		tab.Eval(`document.getElementById("paste").value`, &text)
		return text
	}
	tab.Click("#command")
	command := paste()
	for _, want := range []string{"mlrbfn detect --detector 'my detectors/flowers.safetensors'", "--threshold=" + exact(v.Threshold), "--move-ood 'ood'", "--null -"} {
		if !strings.Contains(command, want) {
			t.Errorf("the command lacks %q: %s", want, command)
		}
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		run := exec.Command(bash, "-c", "mlrbfn() { cat; }; "+command)
		run.Dir = dir
		out, err := run.Output()
		if want := strings.Join(names, "\x00") + "\x00"; err != nil || string(out) != want {
			t.Errorf("a shell reads %q from %s, %v; want %q", out, command, err, want)
		}
		if made, _ := filepath.Glob(filepath.Join(dir, "x*")); len(made) > 0 {
			t.Errorf("a name ran a command that made %q", made)
		}
	}
	tab.Click("#none")
	tab.Choose("[data-by=c]", "rose")
	var roses []string
	for _, item := range v.Items {
		if item.OOD && item.Class == "rose" {
			roses = append(roses, disk.Quote(item.Image.Path))
		}
	}
	tab.Wait(`document.getElementById("command").textContent !== "Copied"`)
	tab.Click("#paths")
	got := strings.Split(paste(), "\n")
	slices.Sort(got)
	if slices.Sort(roses); !slices.Equal(got, roses) {
		t.Errorf("without a selection the paths are %q, want the flagged roses %q", got, roses)
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}

// TestManyVerdictsInBrowser: of 20,000 images the document has those that one sees, and
// pictures are read as they come into sight.
func TestManyVerdictsInBrowser(t *testing.T) {
	b := browser.Start(t)
	file := filepath.Join(t.TempDir(), "a #1?.html")
	v := judged(40)
	for i := range MostVerdicts - len(v.Items) {
		item := v.Items[i%40]
		item.Image.Path = fmt.Sprintf("photos/%d/%05d.jpg", i%7, i)
		if i >= 100 { // one picture is like another
			item.Image.Decode = nil
		}
		item.Group = i % 50
		v.Items = append(v.Items, item)
	}
	writeVerdictPages(t, file, v)
	tab := b.Open(t)
	for _, screen := range []int{0, 3} {
		tab.Show(Screens[screen].Screen)
		tab.Go(browser.File(t, file))
		tab.Eval(`document.querySelector("[data-by=o]").value = ""; document.querySelector("[data-by=o]").dispatchEvent(new Event("change"))`, nil)
		if got := tab.Text("#shown"); got != "20,000 images shown" {
			t.Errorf("the page says %q", got)
		}
		var last string
		tab.Eval(`document.getElementById("wall").scrollIntoView({ block: "end" })`, nil)
		tab.Wait(`document.querySelector('.cell[aria-posinset="20000"]') !== null`)
		tab.Eval(`[...document.querySelectorAll(".cell")].map((li) => Number(li.getAttribute("aria-posinset"))).reduce((a, b) => Math.max(a, b)) + " of " + document.querySelector(".cell").getAttribute("aria-setsize")`, &last)
		if n := tab.Count(".cell"); n > 200 || last != "20000 of 20000" {
			t.Errorf("at the end %d images are in the document, the last %s", n, last)
		}
		if wide := tab.Overflow(); len(wide) > 0 {
			t.Errorf("wider than the screen: %q", wide)
		}
		for _, c := range tab.Complaints() {
			t.Errorf("the page complains: %s", c)
		}
	}
}

func TestInspectionInBrowser(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	dir := t.TempDir()
	finding := func(i int, label, suggested string) Finding {
		return Finding{Image: images.Picture{Path: fmt.Sprintf("%s/%d.jpg", label, i), Label: label, Decode: drawing(i)}, Suggested: suggested, Score: "0.98"}
	}
	copied := finding(3, "cat", "")
	copied.Other = &images.Picture{Path: "dog/a very long name of a file that does not end.jpg", Label: "dog", Decode: drawing(3)}
	odd := finding(4, "dog", "")
	odd.What, odd.Image.Decode = "blank", nil
	copied.Line, copied.Ticked, copied.OtherLine = "cat/3.jpg,3,duplicate\n", true, "dog/9.jpg,9,duplicate\n"
	wrong := finding(1, "cat", "dog")
	wrong.Line = "cat/1.jpg,1,label\n"
	in := Inspection{
		Head:  "path,row,kind\n",
		Frame: Frame{Lead: []string{"4 images of 2 classes."}, Notes: []string{"1 image has no label."}, Commands: []string{"mlrbfn inspect --features F --out REPORT"}, Facts: []evaluation.Fact{{Name: "version", Value: "1"}}},
		Sections: []FindingSection{
			{ID: "label", Title: "Labels that seem wrong", Note: "The most certain come first.", Total: 2, Shown: []Finding{wrong, finding(2, "dog", "cat")}},
			{ID: "duplicate", Title: "Copies", Total: 7, Shown: []Finding{copied}},
			{ID: "leak", Title: "Leaks"},
		},
		Odd:      []Finding{odd},
		Classes:  []evaluation.InspectedClass{{Name: "cat", Rows: 32, Accuracy: 0.917, Wrong: 1}, {Name: "dog", Rows: 3, Accuracy: math.NaN()}, {Name: "newt", Rows: 100, Accuracy: 0.08}},
		Overlaps: []evaluation.ClassOverlap{{Label: "cat", Predicted: "dog", Rows: 3, Share: 0.25}, {Label: "dog", Predicted: "cat", Rows: 1, Share: 0.05}},
	}
	if err := WriteInspection(dir, in); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "report.html")
	Look(t, b, "inspection", file)

	tab := b.Open(t)
	tab.Show(Screens[2].Screen)
	tab.Go(browser.File(t, file))
	if n := tab.Count(".gallery > li"); n != 4 {
		t.Errorf("%d images are shown", n)
	}
	tab.Choose("[data-filter]", "newt")
	if n := tab.Count(".gallery > li"); n != 0 {
		t.Errorf("of a class without findings %d images are shown", n)
	}
	tab.Choose("[data-filter]", "dog") // as the label, or as what it seems to be
	if n := tab.Count(".gallery > li"); n != 3 || tab.Text("[data-shown]") != "3 shown, 1 hidden by the filter" {
		t.Errorf("of dogs %d images are shown; %q", n, tab.Text("[data-shown]"))
	}
	order := func() (names string) {
		tab.Eval(`[...document.querySelectorAll("#classes tbody")[0].rows].map((r) => r.cells[0].textContent).join(" ")`, &names)
		return names
	}
	tab.Click("#classes thead th:nth-child(3) button")
	if got := order(); got != "cat newt dog" {
		t.Errorf("by accuracy: %s", got)
	}
	tab.Click("#classes thead th:nth-child(3) button")
	if got := order(); got != "newt cat dog" {
		t.Errorf("by accuracy, ascending: %s", got)
	}
	tab.Press("j", "j", "j", "j", "j")
	var at string
	if tab.Eval(`document.activeElement.dataset.class`, &at); at != "dog" {
		t.Errorf("the keyboard is at %q", at)
	}
	tab.Click("#repeat .copy")
	tab.Wait(`document.querySelector("#repeat .copy").textContent === "Copied"`)
	// What is ticked is saved, a copy at first.
	var saved string
	tab.Eval(`(() => {
		let href;
		HTMLAnchorElement.prototype.click = function () { href = this.download + ": " + decodeURIComponent(this.href.split(",").slice(1).join(",")); };
		document.querySelector("[data-review-head] button").click();
		document.querySelector("[data-review]").click();
		document.querySelector("[data-review-head] button").click();
		return href;
	})()`, &saved)
	if want := "issues.csv: path,row,kind\ncat/1.jpg,1,label\ncat/3.jpg,3,duplicate\n"; saved != want || tab.Text("[data-review-head] [role=status]") != "2 of 3 ticked" {
		t.Errorf("saved is %q, want %q; it says %q", saved, want, tab.Text("[data-review-head] [role=status]"))
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
