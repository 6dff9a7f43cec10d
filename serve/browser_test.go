package serve

import (
	"bytes"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"mlrbfn/internal/testenv/browser"
	"mlrbfn/serve/internal/servetest"
	"mlrbfn/serve/store"
)

// TestPageInBrowser: a person sees what came in, a flagged image as it comes, and reviews
// it by keys and by clicks. On each screen nothing is wider than it, nothing is against
// the page's own policy, and axe-core finds nothing serious.
func TestPageInBrowser(t *testing.T) {
	b := browser.Start(t)
	w, db := remembering(t)
	send := func(seed uint64, name string) string {
		t.Helper()
		_, _, text := ask(t, "POST", w.url+"/v1/detect?source=camera&name="+url.QueryEscape(name), nil, bytes.NewReader(servetest.Image(int(seed%2), seed)))
		var r result
		if decode(t, text, &r); r.Stored == nil || !*r.Stored || !r.OOD {
			t.Fatal(text)
		}
		return r.ID
	}
	first := send(1, "<img src=x onerror=alert(1)>.png")
	for i := range uint64(6) {
		send(2+i, fmt.Sprintf("folder/a-rather-long-name-of-an-image-%d.png", i))
	}
	tab := b.Open(t)
	tab.Show(browser.Screen{Width: 1280, Height: 900})
	tab.Go(w.url + "/")
	tab.Wait(`document.getElementById("state").textContent === "live"`)
	tab.Wait(`document.querySelectorAll("#flagged>li img").length === 7`)
	if n := tab.Count("#flagged>li"); n != 7 {
		t.Errorf("%d flagged images", n)
	}
	var all string
	tab.Eval(`document.querySelector("#counts tbody tr").innerText.replace(/\s+/g, " ")`, &all)
	if all != "all 7 100% 7 100% 7 100%" {
		t.Errorf("what came in: %q", all)
	}
	if got := tab.Text("#v-" + first + " .path"); got != "<img src=x onerror=alert(1)>.png" {
		t.Errorf("the name is %q", got)
	}

	live := send(90, "live.png")
	tab.Wait(`document.querySelector("#flagged>li").id === "v-` + live + `"`)

	// Reviews by keys.
	review := func(id string, want store.Decision, class string) {
		t.Helper()
		v, err := db.Get(t.Context(), id)
		if err != nil || v.Review == nil || v.Review.Decision != want || v.Review.Class != class {
			t.Errorf("the review is %+v, %v; want %s %s", v.Review, err, want, class)
		}
	}
	said := func(id, want string) {
		t.Helper()
		tab.Wait(`document.querySelector("#v-` + id + ` .said").textContent === ` + fmt.Sprintf("%q", want))
	}
	tab.Eval(`document.getElementById("v-`+live+`").focus()`, nil)
	tab.Press("f")
	said(live, "fine")
	review(live, store.IsFine, "")
	tab.Press("2")
	said(live, "it is light")
	review(live, store.IsClass, "light")
	tab.Press("u")
	said(live, "")
	if v, err := db.Get(t.Context(), live); err != nil || v.Review != nil {
		t.Errorf("undone is %+v, %v", v.Review, err)
	}
	tab.Press("x")
	said(live, "junk")
	review(live, store.IsJunk, "")
	// And by clicks.
	tab.Choose("#v-"+first+" select", servetest.Classes[0])
	said(first, "it is "+servetest.Classes[0])
	review(first, store.IsClass, servetest.Classes[0])
	tab.Click("#v-" + first + " button:last-child")
	said(first, "")

	// It is the same after it is opened anew, on every screen.
	shots := t.ArtifactDir()
	for name, screen := range map[string]browser.Screen{
		"desk-light": {Width: 1280, Height: 900}, "desk-dark": {Width: 1280, Height: 900, Dark: true},
		"phone-light": {Width: 390, Height: 844, Phone: true}, "phone-dark": {Width: 390, Height: 844, Phone: true, Dark: true},
	} {
		tab.Show(screen)
		tab.Go(w.url + "/")
		tab.Wait(`document.querySelectorAll("#flagged>li img").length === 8 && document.getElementById("counts").tBodies[0].rows.length`)
		said(live, "junk")
		if wide := tab.Overflow(); len(wide) > 0 {
			t.Errorf("%s: wider than the screen: %q", name, wide)
		}
		tab.Screenshot(filepath.Join(shots, "serve-"+name+".png"), true)
		for _, v := range tab.Violations() {
			t.Errorf("%s: %s", name, v)
		}
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
