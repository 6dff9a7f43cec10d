package serve

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestPageInBrowser: a person sees what came in, a flagged image as it comes, walks the
// review queue by keys, undoes, moves the slider, lets the detector learn, activates what
// came of it and goes back. On each screen nothing is wider than it, nothing is against
// the page's own policy, and axe-core finds nothing serious.
func TestPageInBrowser(t *testing.T) {
	b := browser.Start(t)
	w := teach(t, func(o *Options) {
		o.Detectors.Load = func(file string) (*pipeline.Detector, error) {
			d, err := pipeline.LoadDetector(file)
			if err == nil {
				d.SetThreshold(1e9) // every image is flagged
			}
			return d, err
		}
	})
	const markup = "<img src=x onerror=alert(1)>.png"
	send := func(data []byte, name string) string {
		t.Helper()
		_, _, text := ask(t, "POST", w.url+"/v1/detect?source=camera&name="+url.QueryEscape(name), nil, bytes.NewReader(data))
		var r result
		if decode(t, text, &r); r.Stored == nil || !*r.Stored || !r.OOD {
			t.Fatal(text)
		}
		return r.ID
	}
	first := send(servetest.Image(0, 301), markup)
	for i := range uint64(14) {
		send(redImage(i), fmt.Sprintf("folder/a-rather-long-name-of-a-red-image-%d.png", i))
	}
	for i := range uint64(4) {
		send(noise(i), fmt.Sprintf("noise-%d.png", i))
	}
	tab := b.Open(t)
	tab.Show(browser.Screen{Width: 1280, Height: 900})
	open := func() {
		t.Helper()
		tab.Go(w.url + "/")
		tab.Wait(`document.getElementById("state").textContent === "live"`)
	}
	// Without JavaScript the page shows what came, but for reviews.
	tab.Scripts(false)
	tab.Go(w.url + "/?span=month")
	if n, m := tab.Count("#flagged>li img"), tab.Count(".chart"); n != 19 || m != 3 {
		t.Errorf("without JavaScript there are %d images and %d charts", n, m)
	}
	if got := tab.Text("#lead"); got != "19 images came in the last 30 days. 19 were flagged: 100%." {
		t.Errorf("without JavaScript: %q", got)
	}
	tab.Scripts(true)

	open()
	tab.Wait(`document.querySelectorAll("#flagged>li img").length === 19`)
	if got := tab.Text("#v-" + first + " .path"); got != markup {
		t.Errorf("the name is %q", got)
	}
	tab.Click(`#came [data-span=hour]`)
	tab.Wait(`document.getElementById("lead").textContent.includes("last hour")`)
	live := send(servetest.Image(1, 90), "live.png")
	tab.Wait(`document.querySelector("#flagged>li").id === "v-` + live + `"`)

	// The queue by keys.
	shown := func() string {
		var id string
		tab.Eval(`document.querySelector("#card [data-id]")?.dataset.id || ""`, &id)
		return id
	}
	review := func(id string) *store.Review {
		t.Helper()
		v, err := w.db.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return v.Review
	}
	tab.Wait(`document.querySelectorAll("#card .nearest img").length === 3`)
	isRed := func() bool { return strings.Contains(tab.Text("#card h3"), "red-image") }
	for range 20 {
		if isRed() {
			break
		}
		at := shown()
		tab.Press("j")
		if shown() == at {
			t.Fatal("j does not go on")
		}
	}
	var group []string
	tab.Eval(`[...document.querySelectorAll("#card .mosaic input")].map(i => i.value)`, &group)
	if len(group) != 14 {
		t.Errorf("%d images of 14 are in one group", len(group))
	}
	said := func(want string) {
		t.Helper()
		tab.Wait(fmt.Sprintf(`document.getElementById("said").textContent.startsWith(%q)`, want))
	}
	tab.Press("s")
	said("1 image ticked")
	tab.Press("s")
	said("14 images ticked")
	tab.Press("n", "r", "e", "d", "Enter")
	said("14 images: it is red.")
	for _, id := range group {
		if r := review(id); r == nil || r.Decision != store.IsNew || r.Class != "red" {
			t.Errorf("the review is %+v", r)
		}
	}
	tab.Press("u")
	said("14 images: not it is red any more.")
	for _, id := range group {
		if r := review(id); r != nil {
			t.Errorf("after undo the review is %+v", r)
		}
	}
	if shown() != group[0] {
		t.Error("what was undone is not shown")
	}
	tab.Press("3") // which is red by now
	said("14 images: it is red.")
	// What is left, until nothing is.
	for n := 0; shown() != "" && n < 20; n++ {
		at, key, want := shown(), "x", store.IsJunk
		switch name := tab.Text("#card h3"); {
		case name == markup:
			key, want = "f", store.IsFine
		case name == "live.png":
			key, want = "2", store.IsClass
		}
		tab.Press(key)
		tab.Wait(fmt.Sprintf(`(document.querySelector("#card [data-id]")?.dataset.id || "") !== %q`, at))
		if r := review(at); r == nil || r.Decision != want {
			t.Errorf("%s: the review is %+v", key, r)
		}
	}
	if got := tab.Text("#card"); got != "No flagged image waits for a review." {
		t.Errorf("the queue: %q", got)
	}

	// The slider.
	before := tab.Text("#effect")
	tab.Eval(`document.getElementById("threshold").focus()`, nil)
	tab.Press("Home")
	tab.Wait(`document.getElementById("effect").textContent.startsWith("Would flag")`)
	if after := tab.Text("#effect"); !strings.Contains(before, "images. False alarms: about 100%") || !strings.Contains(after, "with 95% probability between") {
		t.Errorf("the slider says %q, then %q", before, after)
	}

	// Learning.
	tab.Wait(`document.getElementById("reviews").textContent.startsWith("16 images can be learned from, and 4 images are junk")`)
	tab.Click("#start")
	tab.Wait(`document.getElementById("job").textContent === "Learning is done."`)
	tab.Wait(`document.getElementById("result").textContent.includes("Have I labelled enough?")`)
	tab.Eval(`document.querySelectorAll("#result details").forEach(d => { d.open = true })`, nil)
	tab.Wait(`document.querySelectorAll("#result .gallery img").length > 0`)
	tab.Click("#activate")
	tab.Wait(`document.getElementById("job").textContent === "The new detector serves."`)
	var known []string
	if tab.Eval("classes", &known); !slices.Equal(known, []string{"0", "1", "red"}) {
		t.Errorf("the new detector knows %q", known)
	}
	tab.Click("#back")
	tab.Wait(`document.getElementById("job").textContent === "The original serves."`)

	// It is the same after it is opened anew, on every screen.
	send(servetest.Image(0, 302), "later.png")
	shots := t.ArtifactDir()
	for name, screen := range map[string]browser.Screen{
		"desk-light": {Width: 1280, Height: 900}, "desk-dark": {Width: 1280, Height: 900, Dark: true},
		"phone-light": {Width: 390, Height: 844, Phone: true}, "phone-dark": {Width: 390, Height: 844, Phone: true, Dark: true},
	} {
		tab.Show(screen)
		open()
		tab.Wait(`document.querySelectorAll("#card .nearest img").length === 3`)
		tab.Wait(`document.getElementById("result").textContent.includes("Have I labelled enough?")`)
		if got := tab.Text("#v-" + first + " .said"); got != "fine" {
			t.Errorf("%s: %q", name, got)
		}
		if wide := tab.Overflow(); len(wide) > 0 {
			t.Errorf("%s: wider than the screen: %q", name, wide)
		}
		tab.Eval(`dispatchEvent(new Event("beforeprint"))`, nil) // draws charts out of sight, too
		tab.Screenshot(filepath.Join(shots, "serve-"+name+".png"), true)
		for _, v := range tab.Violations() {
			t.Errorf("%s: %s", name, v)
		}
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}

// TestPageWithToken: without the token the page holds nothing about images; with it, it
// shows them.
func TestPageWithToken(t *testing.T) {
	b := browser.Start(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("a-token-of-a-test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := teach(t, func(o *Options) { o.TokenFile = tokens })
	status, _, text := ask(t, "POST", w.url+"/v1/detect?name=secret.png", map[string]string{"Authorization": "Bearer a-token-of-a-test"}, bytes.NewReader(noise(1)))
	if status != 200 {
		t.Fatal(text)
	}
	if status, _, text := ask(t, "GET", w.url+"/page", nil, nil); status != 401 {
		t.Errorf("%d %s", status, text)
	}
	if _, _, text := ask(t, "GET", w.url+"/", nil, nil); strings.Contains(text, "secret") || strings.Contains(text, "camera") {
		t.Error(text)
	}
	tab := b.Open(t)
	tab.Go(w.url + "/")
	tab.Wait(`!document.getElementById("login").hidden`)
	tab.Click("#token")
	tab.Press(strings.Split("a-token-of-a-test", "")...)
	tab.Click("#login button")
	tab.Wait(`document.getElementById("state").textContent === "live"`)
	tab.Wait(`document.querySelector("#came .lead")?.textContent.startsWith("1 image came")`)
}
