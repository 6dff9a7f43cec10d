package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// sources are the states of a service's sources, by name.
func (w *world) sources(t *testing.T) map[string]sourceDrift {
	t.Helper()
	w.drift.update(t.Context(), false)
	all := map[string]sourceDrift{}
	for _, s := range w.drift.list() {
		all[s.Source] = s
	}
	return all
}

// came notes verdicts of a source, of which flagged are.
func (w *world) came(source string, n int, flagged func(i int) bool) {
	d := w.detectors.Use("")
	defer d.Release()
	scores := d.CalibrationScores
	for i := range n {
		w.drift.add(d.Loaded, source, pipeline.Verdict{Class: d.Classes[0], Score: scores[i%len(scores)], OOD: flagged(i)})
	}
}

// tooManyFlagged counts the alarms that more are flagged than promised.
func (s sourceDrift) tooManyFlagged() (n int) {
	for _, a := range s.Alarms {
		if a.Kind == "flagged" && a.Since != nil {
			n++
		}
	}
	return n
}

func never(int) bool { return false }

// TestTooManySources: whatever names clients give sources, no image is unwatched: from the
// 64th on sources are watched together, which log, metrics and the answer say, and a source
// that is idle makes room.
func TestTooManySources(t *testing.T) {
	var text logged
	w, db := remembering(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&text, nil)) })
	for i := range 2 * maxSources {
		w.came(fmt.Sprint("x", i), 1, never)
	}
	w.came("gate", 60, func(int) bool { return true })
	all := w.sources(t)
	if len(all) != maxSources+1 || all[otherSources].tooManyFlagged() != 1 {
		t.Errorf("%d sources, %+v", len(all), all[otherSources])
	}
	if n := strings.Count(text.String(), "level=ERROR msg=\"there are too many sources"); n != 1 {
		t.Errorf("the log says so %d times:\n%s", n, text.String())
	}
	metrics := httptest.NewServer(w.MetricsHandler())
	defer metrics.Close()
	_, _, offered := ask(t, "GET", metrics.URL+"/metrics", nil, nil)
	if want := fmt.Sprintf("mlrbfn_unwatched_images_total %d\n", maxSources+60); !strings.Contains(offered, want) {
		t.Errorf("no %s", want)
	}
	_, _, said := ask(t, "GET", w.url+"/v1/drift", nil, nil)
	if !strings.Contains(said, fmt.Sprintf(`"watched_together":%d`, maxSources+60)) {
		t.Error(said)
	}
	main := w.detectors.Use("main")
	defer main.Release()
	var restarted *drifts
	var err error
	for range 200 { // the service may be about to store it
		restarted = newDrifts(&Options{Alpha: 0.01, Store: db, Log: w.log}, nil)
		if err = restarted.share(t.Context(), []*pool.Loaded{main.Loaded}); err != nil || restarted.together() == maxSources+60 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil || restarted.together() != maxSources+60 {
		t.Errorf("after a restart %d images are watched together (%v)", restarted.together(), err)
	}
	w.drift.mu.Lock()
	for _, s := range w.drift.sources {
		s.last, s.unsaved = time.Now().Add(-2*idleFew), false
	}
	w.drift.mu.Unlock()
	w.came("gate", 1, never)
	if all := w.sources(t); all["gate"].All == nil || all["gate"].All.Images != 1 || all[otherSources].All == nil {
		t.Errorf("an idle source makes no room: %+v", all["gate"])
	}
}

// TestNamedSources: those that are named are watched by themselves, whatever others come.
func TestNamedSources(t *testing.T) {
	w, _ := remembering(t, func(o *Options) { o.Sources = []string{"gate"} })
	for i := range 2 * maxSources {
		w.came(fmt.Sprint("x", i), 1, never)
	}
	w.came("gate", 3, never)
	if all := w.sources(t); len(all) != 2 || all["gate"].All.Images != 3 || all[otherSources].All.Images != 2*maxSources {
		t.Errorf("%+v", all)
	}
}

// TestPromiseIsWatched: a share of flagged images above the promised one is noticed from the
// first image on, and again after a reset, which is that of one source and a line of the
// trail.
func TestPromiseIsWatched(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef-ann ann operate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, db := remembering(t, func(o *Options) { o.TokenFile, o.MaxFalseAlarms = tokens, 0.05 })
	post := func(path string, want int) {
		t.Helper()
		if status, _, text := ask(t, "POST", w.url+path, map[string]string{"Authorization": "Bearer 0123456789abcdef-ann"}, nil); status != want {
			t.Fatalf("%s: %d %s", path, status, text)
		}
	}
	fifth := func(i int) bool { return i%5 == 0 }
	for round := range 2 {
		w.came("gate", 150, fifth)
		w.came("yard", 150, fifth)
		w.came("calm", 150, func(i int) bool { return i%40 == 0 })
		all := w.sources(t)
		for name, alarms := range map[string]int{"gate": 1, "yard": 1, "calm": 0} {
			if s := all[name]; s.tooManyFlagged() != alarms || s.Flagged.Promised != 0.05 {
				t.Errorf("round %d, %s: %+v", round, name, s)
			}
		}
		post("/v1/drift/reset", 400)
		post("/v1/drift/reset?source=gate", 400)
		post("/v1/drift/reset?source=none&detector=main", 404)
		post("/v1/drift/acknowledge?source=yard&detector=main", 200)
		post("/v1/drift/reset?source=gate&detector=main", 200)
		if all = w.sources(t); len(all["gate"].Alarms) != 0 || all["yard"].tooManyFlagged() != 1 || all["yard"].Acknowledged == nil || all["yard"].Acknowledged.By != "ann" {
			t.Errorf("after the reset: %+v\n%+v", all["gate"], all["yard"])
		}
	}
	lines, err := db.Reviews(t.Context(), "drift/reset")
	if err != nil || len(lines) != 2 || lines[0].By != "ann" || lines[0].Decision != store.Acted || lines[0].Class != "main, gate" {
		t.Errorf("%+v, %v", lines, err)
	}
	if _, err := db.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNow: the first screen says what an operator must see: whether verdicts are stored, what
// is not watched, alarms with since when, how much and what to do, and broken files; and with
// tokens it says nothing before one is given.
func TestNow(t *testing.T) {
	w, db := remembering(t, func(o *Options) { o.MaxFalseAlarms = 0.05 })
	page := func() string {
		t.Helper()
		w.drift.update(t.Context(), false)
		status, _, text := ask(t, "GET", w.url+"/", nil, nil)
		now, _, _ := strings.Cut(text, `id="newest"`)
		if status != 200 || !strings.Contains(now, `id="now-h"`) {
			t.Fatalf("%d %s", status, text)
		}
		return now
	}
	for _, want := range []string{"mlrbfn test", "detector main", "Verdicts are stored.", "No alarm is raised."} {
		if now := page(); !strings.Contains(now, want) {
			t.Errorf("no %q in %s", want, now)
		}
	}
	for i := range maxSources {
		w.came(fmt.Sprint("x", i), 1, never)
	}
	w.came("gate <1>", 200, func(i int) bool { return i%4 == 0 })
	page() // which stores the alarm
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1)))
	w.folders.broken = map[string]brokenFile{"a": {}}
	for _, want := range []string{
		"<strong>Nothing is stored</strong>", "201 images came</strong>", "1 file of watched folders", "(other sources)",
	} {
		if now := page(); !strings.Contains(strings.ReplaceAll(now, " of sources that are not watched each by itself.", "</strong>"), want) {
			t.Errorf("no %q in %s", want, now)
		}
	}
}

// TestAlarmOnPage: with alarms open the first screen lists each with its buttons, which work,
// and the flagged images of one source can be looked at.
func TestAlarmOnPage(t *testing.T) {
	b := browser.Start(t)
	w, db := remembering(t, func(o *Options) { o.MaxFalseAlarms = 0.05 })
	for i := range 60 { // all are flagged
		ask(t, "POST", fmt.Sprintf("%s/v1/detect?name=%d.png&source=%s", w.url, i, []string{"gate", "yard"}[i%2]), nil, bytes.NewReader(servetest.Image(i%2, uint64(i))))
	}
	w.drift.update(t.Context(), false)
	tab := b.Open(t)
	tab.Show(browser.Screen{Width: 390, Height: 844, Phone: true})
	tab.Go(w.url + "/")
	tab.Wait(`document.querySelectorAll("#now .alarm").length >= 2 && !document.querySelector("#now [data-act]").hidden`)
	if wide := tab.Overflow(); len(wide) > 0 {
		t.Errorf("wider than the screen: %q", wide)
	}
	var hidden bool
	if tab.Eval(`[...document.querySelectorAll(".scroll")].some(e => e.scrollWidth > e.clientWidth)`, &hidden); hidden {
		t.Error("a table has columns beyond the screen")
	}
	for _, v := range tab.Violations() {
		t.Error(v)
	}
	click := func(act string) { // at once: the page may be brought up to date between a press and its end
		t.Helper()
		tab.Eval(`document.querySelector('#now [data-act="/v1/drift/`+act+`"][data-source="gate"]').click()`, nil)
	}
	click("acknowledge")
	tab.Wait(`document.querySelector("#now .alarm").textContent.includes("Acknowledged")`)
	click("reset")
	tab.Wait(`document.getElementById("acted").textContent.includes("begin anew")`)
	click("reset")
	tab.Wait(`document.getElementById("acted").textContent.includes("reset: done for gate") && !document.querySelector('#now [data-source="gate"]') && document.querySelector('#now [data-source="yard"]')`)
	for what, n := range map[string]int{"drift/acknowledge": 1, "drift/reset": 1} {
		if lines, err := db.Reviews(t.Context(), what); err != nil || len(lines) != n {
			t.Errorf("%s: %+v, %v", what, lines, err)
		}
	}
	_, _, text := ask(t, "GET", w.url+"/?source=gate", nil, nil)
	if !strings.Contains(text, "UTC from gate") || strings.Contains(text, "UTC from yard") {
		t.Error("images of another source are shown")
	}
}
