package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// remembering is a service with a store, that flags every image.
func remembering(t *testing.T, change ...func(*Options)) (*world, store.Store) {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	images := &store.Images{}
	err = images.Open(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the service
		db.Close()
		images.Close()
	})
	return start(t, func(o *Options) {
		o.Store, o.Images, o.KeepFeatures, o.LearnDir = db, images, -1, filepath.Join(dir, "learned")
		o.Detectors.Load = func(file string) (*pipeline.Detector, error) {
			d, err := pipeline.LoadDetector(file)
			if err == nil {
				d.SetThreshold(1e9)
			}
			return d, err
		}
		for _, change := range change {
			change(o)
		}
	}), db
}

// TestMemory walks what is remembered: verdicts, images, reviews, counts.
func TestMemory(t *testing.T) {
	w, db := remembering(t)
	image := servetest.Image(1, 9)
	_, _, text := ask(t, "POST", w.url+"/v1/detect?source=camera+1&name="+url.QueryEscape("<img src=x>.png"), nil, bytes.NewReader(image))
	var r result
	decode(t, text, &r)
	if r.Stored == nil || !*r.Stored || !r.OOD {
		t.Fatal(text)
	}
	stored, err := db.Get(t.Context(), r.ID)
	if err != nil || stored.Source != "camera 1" || stored.Name != "<img src=x>.png" || stored.Class != r.Class || stored.Score != r.Score || stored.PValue != r.PValue || stored.Threshold != 1e9 || len(stored.Image) != 64 {
		t.Errorf("%+v, %v", stored, err)
	}
	if features, err := db.Features(t.Context(), []string{r.ID}); err != nil || len(features[r.ID]) != 36 {
		t.Errorf("%v, %v", features, err)
	}

	get := func(path string, want int, to any) string {
		t.Helper()
		status, _, text := ask(t, "GET", w.url+path, nil, nil)
		if status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if to != nil {
			decode(t, text, to)
		}
		return text
	}
	var one record
	if get("/v1/verdicts/"+r.ID, 200, &one); one.ID != r.ID || !one.Kept || one.Review != nil {
		t.Errorf("%+v", one)
	}
	if text := get("/v1/verdicts/"+r.ID, 200, nil); strings.Contains(text, "<") {
		t.Errorf("markup: %s", text)
	}
	get("/v1/verdicts/none", 404, nil)
	get("/v1/verdicts/"+r.ID+"?explain=null", 400, nil)
	var list struct{ Verdicts []record }
	if get("/v1/verdicts?ood=true&source=camera+1&order=strangest&limit=5&from=2020-01-01T00:00:00Z", 200, &list); len(list.Verdicts) != 1 {
		t.Errorf("%+v", list)
	}
	if get("/v1/verdicts?ood=false", 200, &list); len(list.Verdicts) != 0 {
		t.Errorf("%+v", list)
	}
	for _, q := range []string{"ood=perhaps", "limit=0", "limit=5000", "order=random", "from=today", "after=-1", "other=1"} {
		get("/v1/verdicts?"+q, 400, nil)
	}
	var counted struct{ Counts []store.Count }
	if get("/v1/counts?step=1h&from="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)), 200, &counted); len(counted.Counts) != 1 || counted.Counts[0].N != 1 || counted.Counts[0].OOD != 1 {
		t.Errorf("%+v", counted)
	}
	get("/v1/counts?step=1h", 400, nil)
	var course struct{ Parts []coursePart }
	if get("/v1/drift/course?source=camera+1", 200, &course); len(course.Parts) != 1 || course.Parts[0].Images != 1 || course.Parts[0].OOD != 1 || course.Parts[0].Classes[r.Class] != 1 ||
		math.Abs(course.Parts[0].MeanP-r.PValue) > 1e-12 || course.Parts[0].MeanPValue == nil || len(course.Parts[0].ExpectedVerdicts.Classes) != 2 {
		t.Errorf("%+v", course)
	}
	get("/v1/drift/course?step=1s", 400, nil)
	get("/v1/drift/course?detector=none", 404, nil)
	get("/v1/counts?step=1ms", 400, nil)
	status, header, data := ask(t, "GET", w.url+"/v1/images/"+stored.Image, nil, nil)
	if status != 200 || data != string(image) || header.Get("Content-Type") != "image/png" || !strings.Contains(header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d %v", status, header)
	}
	get("/v1/images/"+strings.Repeat("0", 64), 404, nil)
	get("/v1/images/..%2f..%2fstore.db", 404, nil)

	for body, want := range map[string]int{
		`[{"id":"` + r.ID + `","label":"light"}]`:                                 200,
		`[{"id":"` + r.ID + `","new":"bird"}]`:                                    200,
		`[{"id":"` + r.ID + `","verdict":"fine","by":"me"}]`:                      200,
		`[{"id":"` + r.ID + `","label":"bird"}]`:                                  400,
		`[{"id":"` + r.ID + `","new":"light"}]`:                                   400,
		`[{"id":"` + r.ID + `","verdict":"good"}]`:                                400,
		`[{"id":"` + r.ID + `","label":"light","verdict":"fine"}]`:                400,
		`[{"id":"` + r.ID + `"}]`:                                                 400,
		`[{"id":"` + r.ID + `","verdict":"fine"},{"id":"none","verdict":"fine"}]`: 404,
		`[]`:     400,
		`{}`:     400,
		`[{"x"`:  400,
		`[{"x":`: 400,
		`[{"id":"` + strings.Repeat("x", 2<<20) + `"}]`: 413,
	} {
		if status, _, text := ask(t, "POST", w.url+"/v1/reviews", nil, strings.NewReader(body)); status != want {
			t.Errorf("%.80s: %d %s, want %d", body, status, text, want)
		}
	}
	if status, _, _ := ask(t, "POST", w.url+"/v1/reviews", map[string]string{"Sec-Fetch-Site": "cross-site"}, strings.NewReader(`[{"id":"`+r.ID+`","verdict":"junk"}]`)); status != 403 {
		t.Errorf("from another site: %d", status)
	}
	if _, _, _ = ask(t, "POST", w.url+"/v1/reviews", nil, strings.NewReader(`[{"id":"`+r.ID+`","verdict":"undo"}]`)); true {
		get("/v1/verdicts/"+r.ID, 200, &one)
		if one.Record.Review != nil || len(one.Reviews) != 4 {
			t.Errorf("%+v", one)
		}
	}
	if _, err := db.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStoreStops: a store that fails ends the storing, and never the answering.
func TestStoreStops(t *testing.T) {
	w, db := remembering(t)
	db.Close()
	for range 3 {
		status, _, text := ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1)))
		var r result
		if decode(t, text, &r); status != 200 || r.Stored == nil || *r.Stored || r.Class == "" {
			t.Errorf("%d %s", status, text)
		}
	}
	if status, _, text := ask(t, "GET", w.url+"/v1/verdicts", nil, nil); status != 503 {
		t.Errorf("%d %s", status, text)
	}
	metrics := httptest.NewServer(w.MetricsHandler())
	defer metrics.Close()
	if _, _, text := ask(t, "GET", metrics.URL+"/metrics", nil, nil); !strings.Contains(text, "mlrbfn_not_stored_total 3") || !strings.Contains(text, "mlrbfn_store_up 0") {
		t.Error(text)
	}
}

// TestForgets: without a store, what is remembered cannot be asked for.
func TestForgets(t *testing.T) {
	w := start(t, nil)
	for _, path := range []string{"/v1/verdicts", "/v1/verdicts/x", "/v1/counts", "/v1/queue", "/v1/discover", "/v1/images/x"} {
		if status, _, text := ask(t, "GET", w.url+path, nil, nil); status != 404 || !strings.Contains(text, "remembers nothing") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/v1/reviews", "/v1/learn", "/v1/jobs/x/cancel", "/v1/detectors/main/activate"} {
		if status, _, text := ask(t, "POST", w.url+path, nil, strings.NewReader("[]")); status != 404 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// TestEvents: a flagged image is told to who listens.
func TestEvents(t *testing.T) {
	w, _ := remembering(t)
	response, err := http.Get(w.url + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), ":") || response.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(lines.Text())
	}
	_, _, text := ask(t, "POST", w.url+"/v1/detect?name=a%0Ab", nil, bytes.NewReader(servetest.Image(0, 1)))
	var r result
	decode(t, text, &r)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var e event
			if err := json.Unmarshal([]byte(data), &e); err != nil || e.ID != r.ID || e.Name != "a\nb" || !e.Stored || !e.Kept {
				t.Errorf("%s, %v", data, err)
			}
			break
		}
	}
	w.events.close() // as the end of the service does
	for lines.Scan() {
	}
}

// TestDrift: the test for drift of a source goes on after a restart.
func TestDrift(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	file := servetest.Detector(t, 1)
	drift := func(images int) sourceDrift {
		s, err := New(t.Context(), Options{Store: db, Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}}})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Handler())
		for i := range images {
			if status, _, text := ask(t, "POST", server.URL+"/v1/detect?source=a", nil, bytes.NewReader(servetest.Image(i%2, uint64(i)))); status != 200 {
				t.Fatal(text)
			}
		}
		s.drift.update(t.Context(), true)
		_, _, text := ask(t, "GET", server.URL+"/v1/drift", nil, nil)
		var got struct{ Sources []sourceDrift }
		decode(t, text, &got)
		_, _, page := ask(t, "GET", server.URL+"/page", nil, nil)
		for _, want := range []string{"Evidence over time", `aria-label="Evidence of drift of a over the last day, at most `, "Classes over time", `aria-label="share of &lt;b&gt;dark&lt;/b&gt; over the last day`, "95% interval"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %s", want)
			}
		}
		server.Close()
		s.Close()
		if len(got.Sources) != 1 || got.Sources[0].All == nil {
			t.Fatal(text)
		}
		return got.Sources[0]
	}
	if d := drift(20); d.All.Images != 20 || d.Source != "a" || d.Waiting != 0 {
		t.Errorf("%+v", d)
	}
	if d := drift(10); d.All.Images != 30 || d.All.Alarm {
		t.Errorf("after a restart: %+v", d)
	}
	// What was noted before a restart is there without any new image.
	s, err := New(t.Context(), Options{Store: db, Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.drift.takeOver(t.Context(), s.detectors)
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	var course struct{ Evidence []sourceHistory }
	_, _, text := ask(t, "GET", server.URL+"/v1/drift/course", nil, nil)
	if decode(t, text, &course); len(course.Evidence) != 1 || course.Evidence[0].Source != "a" || len(course.Evidence[0].Points) < 1 {
		t.Error(text)
	}
}
