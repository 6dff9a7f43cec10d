package serve

import (
	"bytes"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestKindsInBrowser: a person looks for new kinds, names a group, and undoes it.
func TestKindsInBrowser(t *testing.T) {
	b := browser.Start(t)
	w := teach(t, nil)
	for i := range uint64(25) {
		for _, data := range [][]byte{servetest.Image(int(i%2), 500+i), redImage(i)} {
			if status, _, text := ask(t, "POST", w.url+"/v1/detect?source=camera", nil, bytes.NewReader(data)); status != 200 {
				t.Fatal(text)
			}
		}
	}
	tab := b.Open(t)
	tab.Show(browser.Screen{Width: 390, Height: 844, Phone: true})
	tab.Go(w.url + "/")
	tab.Wait(`document.getElementById("state").textContent === "live"`)
	tab.Click("#look")
	tab.Wait(`document.querySelectorAll("#found .mosaic img").length === 9 && document.querySelectorAll("#found form").length === 1`)
	tab.Click("#found input")
	tab.Press("r", "e", "d")
	tab.Click("#found form button")
	tab.Wait(`document.querySelector("#found form [role=status]").textContent.endsWith("it is red.")`)
	named := func() int {
		list, err := w.db.List(t.Context(), store.Query{Decisions: []store.Decision{store.IsNew}})
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := named(); n < 24 {
		t.Errorf("%d images are red", n)
	}
	if wide := tab.Overflow(); len(wide) > 0 {
		t.Errorf("wider than the screen: %q", wide)
	}
	for _, v := range tab.Violations() {
		t.Error(v)
	}
	tab.Click("#found form button")
	tab.Wait(`document.querySelector("#found form [role=status]").textContent === "Not any more."`)
	if n := named(); n != 0 {
		t.Errorf("after undo %d images are red", n)
	}
	for _, c := range tab.Complaints() {
		t.Errorf("the page complains: %s", c)
	}
}
