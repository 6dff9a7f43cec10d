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
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// TestDiscoverOfWindow: of the images of a window the new ones are a group, one decision on
// its images names a class that is learned, and the answer is what pipeline.Discover says.
func TestDiscoverOfWindow(t *testing.T) {
	w := teach(t, nil)
	send := func(source string, data []byte) string {
		t.Helper()
		_, _, text := ask(t, "POST", w.url+"/v1/detect?source="+source, nil, bytes.NewReader(data))
		var r result
		if decode(t, text, &r); r.Stored == nil || !*r.Stored {
			t.Fatal(text)
		}
		return r.ID
	}
	send("other", noise(1))
	var ids, red []string
	for i := range uint64(25) {
		ids = append(ids, send("camera", servetest.Image(int(i%2), 500+i)), send("camera", redImage(i)))
		red = append(red, ids[len(ids)-1])
	}
	var k newKinds
	w.call("GET", "/v1/discover?source=camera", "", 200, &k)
	if k.Images != 50 || k.More || k.Detector != "main" || k.Calibration < 20 || len(k.Bounds) == 0 || k.NewAtLeast < 10 || len(k.Groups) != 1 || !k.From.Before(k.To) {
		t.Fatalf("%+v, %+v, %d groups", k.Discovery, k.Bounds, len(k.Groups))
	}
	g := k.Groups[0]
	if g.Images != len(g.IDs) || g.Waiting != g.Images || g.Images < 24 || g.First.Before(k.From) || g.Last.After(k.To) || len(g.Typical) != 9 || !g.Typical[0].Kept {
		t.Errorf("%+v", g)
	}
	for _, id := range red {
		if !slices.Contains(g.IDs, id) {
			t.Errorf("the red image %s is in no group", id)
		}
	}
	// The same as by the library.
	slices.Reverse(ids)
	known, err := w.db.Features(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	var rows []float32
	for _, id := range ids {
		rows = append(rows, known[id]...)
	}
	d, err := pipeline.LoadDetector(w.file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pipeline.Discover(t.Context(), pipeline.DiscoverOptions{Detect: pipeline.DetectOptions{Detector: d}, Rows: rows})
	if err != nil || want.New != k.New || want.NewAtLeast != k.NewAtLeast || want.Groups[0].Images != g.Images || ids[want.Groups[0].Typical[0]] != g.Typical[0].ID {
		t.Errorf("the service says %+v, the library %+v, %v", k, want, err)
	}

	// Parts of the window, and one of more images than are judged together.
	w.call("GET", "/v1/discover", "", 200, &k)
	if k.Images != 51 {
		t.Errorf("of all sources %d images", k.Images)
	}
	w.call("GET", "/v1/discover?detector=main&to="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)), "", 200, &k)
	if k.Images != 0 || len(k.Groups) > 0 {
		t.Errorf("before anything came: %+v", k)
	}
	defer func(most, once int) { mostTogether, atOnce = most, once }(mostTogether, atOnce)
	mostTogether, atOnce = 40, 7
	if text := w.call("GET", "/v1/discover?source=camera", "", 200, &k); k.Images != 40 || !k.More || !strings.Contains(text, "the newest 40") {
		t.Errorf("%s", text)
	}
	mostTogether = 1000
	for _, bad := range []string{"from=today", "limit=3", "ood=true"} {
		w.call("GET", "/v1/discover?"+bad, "", 400, nil)
	}
	w.call("GET", "/v1/discover?detector=none", "", 404, nil)

	// Named, learned, and known.
	var reviews []string
	for _, id := range g.IDs {
		reviews = append(reviews, fmt.Sprintf(`{"id":%q,"new":"red"}`, id))
	}
	w.call("POST", "/v1/reviews", "["+strings.Join(reviews, ",")+"]", 200, nil)
	w.call("GET", "/v1/discover?source=camera", "", 200, &k)
	if g := k.Groups[0]; g.Waiting != 0 || len(g.IDs) != g.Images {
		t.Errorf("after the reviews %+v", g)
	}
	var learned struct {
		Reviews struct{ Classes []struct{ Class string } }
	}
	if w.call("GET", "/v1/learn", "", 200, &learned); len(learned.Reviews.Classes) != 1 || learned.Reviews.Classes[0].Class != "red" {
		t.Errorf("%+v", learned)
	}

	// Of images whose features were dropped nothing older is judged, though reviewed ones have theirs.
	if _, err := w.db.DropFeatures(t.Context(), 1<<40); err != nil {
		t.Fatal(err)
	}
	last := send("camera", redImage(99))
	w.call("GET", "/v1/discover?source=camera", "", 200, &k)
	if newest := k.Images; !k.More || newest > 3 || newest < 1 {
		t.Errorf("after features were dropped %d images are judged, of which %s is the newest", newest, last)
	}
	set := filepath.Join(filepath.Dir(w.file), "features")
	if err := os.Rename(set, set+".gone"); err != nil {
		t.Fatal(err)
	}
	if text := w.call("GET", "/v1/discover", "", 422, nil); strings.Contains(text, "/") {
		t.Errorf("the answer names a place: %s", text)
	}
}
