package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/learn"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// redImage is a picture of a class that no detector knows.
func redImage(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 2))
	img := image.NewNRGBA(image.Rect(0, 0, 4, 3))
	for i := range 12 {
		img.Set(i%4, i/4, color.NRGBA{uint8(200 + rng.IntN(50)), uint8(rng.IntN(40)), uint8(rng.IntN(40)), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// noise is a picture of nothing.
func noise(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	img := image.NewNRGBA(image.Rect(0, 0, 4, 3))
	for i := range 12 {
		on := func() uint8 { return uint8(255 * rng.IntN(2)) }
		img.Set(i%4, i/4, color.NRGBA{on(), on(), on(), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// teaching is a service that remembers, whose classes are those of its training features,
// and what a test says to it.
type teaching struct {
	*world
	t  *testing.T
	db store.Store
}

func teach(t *testing.T, change func(*Options)) *teaching {
	t.Helper()
	return teachIn(t, filepath.Join(t.TempDir(), "store.db"), change)
}

// teachIn is teach with the store at a place.
func teachIn(t *testing.T, place string, change func(*Options)) *teaching {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	images := &store.Images{Keep: store.KeepAll}
	err = images.Open(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the service
		db.Close()
		images.Close()
	})
	w := start(t, func(o *Options) {
		file := o.Detectors.Detectors[0].File
		d, err := pipeline.LoadDetector(file)
		if err != nil {
			t.Fatal(err)
		}
		d.Classes = []string{"0", "1"} // those of the training features
		if err := d.Save(file); err != nil {
			t.Fatal(err)
		}
		o.Store, o.Images, o.KeepFeatures, o.LearnDir = db, images, -1, filepath.Join(dir, "learned")
		if change != nil {
			change(o)
		}
	})
	return &teaching{w, t, db}
}

// call asks, and decodes the answer.
func (w *teaching) call(method, path, body string, want int, to any) string {
	w.t.Helper()
	status, _, text := ask(w.t, method, w.url+path, nil, strings.NewReader(body))
	if status != want {
		w.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if to != nil {
		decode(w.t, text, to)
	}
	return text
}

// send judges an image and returns its verdict.
func (w *teaching) send(data []byte) result {
	w.t.Helper()
	status, _, text := ask(w.t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(data))
	var r result
	if decode(w.t, text, &r); status != 200 || r.Stored == nil || !*r.Stored {
		w.t.Fatal(text)
	}
	return r
}

// say reviews verdicts.
func (w *teaching) say(what string, ids ...string) {
	w.t.Helper()
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf(`{"id":%q,%s}`, id, what))
	}
	w.call("POST", "/v1/reviews", "["+strings.Join(all, ",")+"]", 200, nil)
}

// wait waits for the end of a job.
func (w *teaching) wait(id string) (job learn.Job) {
	w.t.Helper()
	for {
		if w.call("GET", "/v1/jobs/"+id, "", 200, &job); job.State != learn.Running {
			return job
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestLearn walks from reviews to a detector that knows a new class, and back.
func TestLearn(t *testing.T) {
	w := teach(t, nil)
	var first learn.Gathered
	ready := func() (g learn.Gathered) {
		var answer struct{ Reviews learn.Gathered }
		w.call("GET", "/v1/learn", "", 200, &answer)
		return answer.Reviews
	}
	if first = ready(); first.Images != 0 {
		t.Errorf("%+v", first)
	}
	// Nothing is reviewed.
	var job learn.Job
	w.call("POST", "/v1/learn", "", 202, &job)
	if job = w.wait(job.ID); job.State != learn.Failed || !strings.Contains(job.Error, "no image is reviewed") || job.Ready {
		t.Errorf("%+v", job)
	}

	var red []string
	for i := range uint64(40) {
		red = append(red, w.send(redImage(i)).ID)
	}
	var junk []string
	for i := range uint64(5) {
		junk = append(junk, w.send(noise(i)).ID)
	}
	dark := w.send(servetest.Image(0, 500))
	w.say(`"new":"red"`, red[:6]...)
	if g := ready(); len(g.Classes) != 1 || g.Classes[0] != (learn.ClassReviews{Class: "red", New: true, Images: 6, Missing: 4}) {
		t.Errorf("%+v", g)
	}
	w.call("POST", "/v1/learn", "", 202, &job)
	if job = w.wait(job.ID); job.State != learn.Failed || !strings.Contains(job.Error, `the new class "red" has 6 images`) {
		t.Errorf("%+v", job)
	}
	w.say(`"new":"rad"`, red[6]) // which somebody else corrects
	w.say(`"new":"red"`, red[6:30]...)
	w.say(`"verdict":"junk"`, junk...)
	w.say(`"verdict":"fine"`, dark.ID)
	g := ready()
	if g.Junk != 5 || g.Images != 31 || len(g.Classes) != 2 || g.WithoutCount != 0 {
		t.Errorf("%+v", g)
	}

	w.call("POST", "/v1/learn?detector=main", "", 202, &job)
	job = w.wait(job.ID)
	r := job.Result
	if job.State != learn.Done || !job.Ready || job.Error != "" || r == nil {
		t.Fatalf("%+v", job)
	}
	if r.Reviews.Disagreed != 1 || r.Learned+r.HeldOut != 36 || r.HeldOut < 6 || r.HeldOut > 20 || len(r.Classes) != 3 {
		t.Errorf("%+v", r)
	}
	held := r.Compare.Reviews.All
	if held.Images != r.HeldOut-5 || held.RightBefore > 1 || held.RightAfter < held.Images-1 || len(r.Compare.Reviews.Changes) < held.Images-1 {
		t.Errorf("on reviews: %+v", r.Compare.Reviews)
	}
	if c := r.Compare.Calibration.All; r.Compare.Of != "calibration" || c.Images < 20 || c.RightAfter < c.RightBefore-2 {
		t.Errorf("on calibration images: %+v", r.Compare.Calibration)
	}
	if r.Compare.Junk.Images != 5 {
		t.Errorf("on junk: %+v", r.Compare.Junk)
	}
	if r.Traffic == nil || r.Traffic.Images != 46 || r.Traffic.Changed < 35 {
		t.Errorf("traffic: %+v", r.Traffic)
	}
	if r.Curve == nil || len(r.Curve.Points) != 4 || r.Curve.Points[0].Reviews != 0 || r.Curve.Points[3].Reviews != r.Learned || r.Curve.Points[3].Right < r.Curve.Points[0].Right || r.Curve.Because == "" {
		t.Errorf("curve: %+v", r.Curve)
	}
	if text := w.call("GET", "/v1/jobs/"+job.ID, "", 200, nil); strings.Contains(text, os.TempDir()) {
		t.Error("an answer names a folder of this machine")
	}

	// What came of it is an ordinary feature set and an ordinary detector.
	dir := filepath.Join(w.opts.LearnDir, "main", job.ID)
	set, err := features.Open(t.Context(), filepath.Join(dir, "features"))
	if err != nil {
		t.Fatal(err)
	}
	if set.N != r.Learned || set.Verify(t.Context()) != nil {
		t.Errorf("%+v", set.Meta)
	}
	set.Close()
	judge, err := pipeline.OpenJudge(t.Context(), filepath.Join(dir, "detector.safetensors"), extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	if v, err := judge.Image(t.Context(), pipeline.Encoded(redImage(900))); err != nil || v.Class != "red" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "part0")); !os.IsNotExist(err) {
		t.Error("parts of the learning curve are left")
	}

	// One request lets it serve, and one takes it back.
	if v := w.send(redImage(901)); v.Class == "red" {
		t.Errorf("%+v", v)
	}
	var versions struct{ Active, Previous string }
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+job.ID+`"}`, 200, &versions)
	if versions.Active != job.ID || versions.Previous != "original" {
		t.Errorf("%+v", versions)
	}
	if v := w.send(redImage(902)); v.Class != "red" {
		t.Errorf("%+v", v)
	}
	w.learner.Follow(t.Context()) // which changes nothing
	if v := w.send(redImage(903)); v.Class != "red" {
		t.Errorf("%+v", v)
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"previous"}`, 200, &versions)
	if v := w.send(redImage(904)); v.Class == "red" || versions.Active != "original" {
		t.Errorf("%+v, %+v", v, versions)
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"previous"}`, 404, nil)
	w.call("POST", "/v1/detectors/main/activate", `{"version":"none"}`, 404, nil)
	w.call("POST", "/v1/detectors/main/activate", `{}`, 400, nil)
	w.call("POST", "/v1/detectors/other/activate", `{"version":"original"}`, 404, nil)
	w.call("GET", "/v1/jobs/none", "", 404, nil)

	// A version whose file was altered is refused, and the old one stays.
	if err := os.WriteFile(filepath.Join(dir, "detector.safetensors"), []byte("broken"), 0o666); err != nil {
		t.Fatal(err)
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+job.ID+`"}`, 422, nil)
	if v := w.send(redImage(905)); v.Class == "red" {
		t.Errorf("%+v", v)
	}
}

// TestActiveVersion: the version that was activated serves after a restart, until
// somebody replaces the detector's file.
func TestActiveVersion(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { testActiveVersion(t, filepath.Join(t.TempDir(), "store.db")) })
	t.Run("PostgreSQL", func(t *testing.T) {
		testActiveVersion(t, testenv.StartPostgres(t).URL)
	})
}

func testActiveVersion(t *testing.T, place string) {
	w := teachIn(t, place, nil)
	var red []string
	for i := range uint64(12) {
		red = append(red, w.send(redImage(i)).ID)
	}
	w.say(`"new":"red"`, red...)
	var job learn.Job
	w.call("POST", "/v1/learn", "", 202, &job)
	if job = w.wait(job.ID); job.State != learn.Done {
		t.Fatalf("%+v", job)
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+job.ID+`"}`, 200, nil)
	again, err := New(t.Context(), w.opts) // another replica, or the next start
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	serves := func(s *Server) int {
		d := s.detectors.Use("")
		defer d.Release()
		return len(d.Classes)
	}
	if serves(again) != 3 {
		t.Error("the version that was activated does not serve")
	}
	// What one replica takes back, the other takes back, too.
	w.call("POST", "/v1/detectors/main/activate", `{"version":"previous"}`, 200, nil)
	again.learner.Follow(t.Context())
	if serves(again) != 2 {
		t.Error("the other replica did not follow")
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+job.ID+`"}`, 200, nil)
	data, err := os.ReadFile(servetest.Detector(t, 2))
	if err == nil {
		err = os.WriteFile(w.file, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.learner.Follow(t.Context())
	if serves(w.Server) != 2 {
		t.Error("the new file does not serve")
	}
}

// TestJobs: one job runs at a time, it can be cancelled, and one whose program ended is
// interrupted.
func TestJobs(t *testing.T) {
	w := teach(t, nil)
	var red []string
	for i := range uint64(12) {
		red = append(red, w.send(redImage(i)).ID)
	}
	w.say(`"new":"red"`, red...)
	// A job of a program that is gone.
	lost := fmt.Sprintf(`[{"id":"lost","detector":"main","state":"running","started":%q,"beat":%q}]`,
		time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339))
	if err := w.db.SetState(t.Context(), "learn/jobs", []byte(lost)); err != nil {
		t.Fatal(err)
	}
	var job learn.Job
	if w.call("GET", "/v1/jobs/lost", "", 200, &job); job.State != learn.Interrupted || job.Error == "" || job.Ended == nil {
		t.Errorf("%+v", job)
	}
	// A job of another replica that lives.
	alive := strings.ReplaceAll(lost, time.Now().Add(-time.Hour).Format(time.RFC3339)[:13], time.Now().Add(time.Hour).Format(time.RFC3339)[:13])
	if err := w.db.SetState(t.Context(), "learn/jobs", []byte(alive)); err != nil {
		t.Fatal(err)
	}
	w.call("POST", "/v1/learn", "", 409, nil)
	if err := w.db.SetState(t.Context(), "learn/jobs", []byte(lost)); err != nil {
		t.Fatal(err)
	}
	w.call("POST", "/v1/learn", "", 202, &job)
	w.call("POST", "/v1/learn", "", 409, nil)
	w.call("POST", "/v1/jobs/"+job.ID+"/cancel", "", 200, nil)
	if job = w.wait(job.ID); job.State != learn.Cancelled && job.State != learn.Done { // it may have been done just before
		t.Errorf("%+v", job)
	}
	w.call("POST", "/v1/jobs/none/cancel", "", 404, nil)
	var list struct{ Jobs []learn.Job }
	if w.call("GET", "/v1/jobs", "", 200, &list); len(list.Jobs) != 2 || list.Jobs[0].ID != job.ID || list.Jobs[1].State != learn.Interrupted {
		t.Errorf("%+v", list)
	}
	// The end of the program interrupts a job, which can be started again.
	w.call("POST", "/v1/learn", "", 202, &job)
	w.learner.Close()
	if w.call("GET", "/v1/jobs/"+job.ID, "", 200, &job); job.State != learn.Interrupted && job.State != learn.Done {
		t.Errorf("%+v", job)
	}
}

// TestWithoutFeatures: reviewed images whose features are not stored are learned from
// where the image was kept, and named where it was not.
func TestWithoutFeatures(t *testing.T) {
	w := teach(t, func(o *Options) { o.KeepFeatures = 0 })
	var red []string
	for i := range uint64(13) {
		red = append(red, w.send(redImage(i)).ID)
	}
	w.say(`"new":"red"`, red...)
	gone, err := w.db.Get(t.Context(), red[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(w.opts.Images.Dir(), gone.Image[:2], gone.Image)); err != nil {
		t.Fatal(err)
	}
	var job learn.Job
	w.call("POST", "/v1/learn", "", 202, &job)
	job = w.wait(job.ID)
	if r := job.Result; job.State != learn.Done || r.Reviews.Images != 12 || r.Reviews.WithoutCount != 1 || r.Reviews.Without[0].ID != red[0] || r.Traffic != nil {
		t.Errorf("%+v", job)
	}
	if _, err := json.Marshal(job); err != nil {
		t.Error(err)
	}
}

// TestLearnJunk: a default score learns from junk alone, as known outliers; some of it is set
// aside, and what is too little is not learned from.
func TestLearnJunk(t *testing.T) {
	w := teach(t, nil)
	var ids []string
	for i := range uint64(24) {
		ids = append(ids, w.send(noise(i)).ID)
	}
	var job learn.Job
	w.say(`"verdict":"junk"`, ids[:4]...)
	w.call("POST", "/v1/learn", "", 202, &job)
	if job = w.wait(job.ID); job.State != learn.Failed || !strings.Contains(job.Error, "too little of it") {
		t.Fatalf("%+v", job)
	}
	w.say(`"verdict":"junk"`, ids[4:]...)
	w.call("POST", "/v1/learn", "", 202, &job)
	job = w.wait(job.ID)
	r := job.Result
	if job.State != learn.Done || !job.Ready || r == nil {
		t.Fatalf("%+v", job)
	}
	if r.Learned != 0 || r.Outliers < 10 || r.HeldOut < 1 || r.Outliers+r.HeldOut != 24 || r.Compare.Junk.Images != r.HeldOut || r.Curve.Enough != "unclear" {
		t.Errorf("%+v", r)
	}
	d, err := pipeline.LoadDetector(filepath.Join(w.opts.LearnDir, "main", job.ID, "detector.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	sets, err := d.OpenSets(t.Context(), detector.ForOutliers, nil)
	if err != nil || len(sets) != 1 || sets[0].N != r.Outliers || len(sets[0].Classes) != 0 || sets[0].Fingerprint != d.Source.Fingerprint {
		t.Fatalf("outliers %v, %v", sets, err)
	}
	sets[0].Close()
	if !slices.Contains(d.PartNames(), detector.OutliersPart) {
		t.Errorf("parts %v", d.PartNames())
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+job.ID+`"}`, 200, nil)
}

// TestDropFeatures: the features of the newest verdicts and of reviewed ones stay, also where
// the clock was put right between them: the newest are those that were stored last.
func TestDropFeatures(t *testing.T) {
	for name, clock := range map[string][5]time.Duration{
		"a clock that goes on":       {0, 1, 2, 3, 4},
		"a clock that was put back":  {100 * time.Hour, 101 * time.Hour, 102 * time.Hour, 0, 1},
		"a clock that stood in 1970": {-400_000 * time.Hour, 0, 1, -400_000 * time.Hour, -400_000*time.Hour + 1},
	} {
		w := teach(t, func(o *Options) { o.KeepFeatures = 2 })
		var ids []string
		for i, later := range clock {
			ids = append(ids, fmt.Sprint("v", i))
			if err := w.db.Add(t.Context(), []store.Verdict{{ID: ids[i], Time: time.Now().Add(later), Features: []float32{1}}}); err != nil {
				t.Fatal(err)
			}
		}
		w.say(`"verdict":"junk"`, ids[1])
		if n, err := w.dropOldFeatures(t.Context()); n != 2 || err != nil {
			t.Errorf("%s: %d dropped, %v", name, n, err)
		}
		left, err := w.db.Features(t.Context(), ids)
		if err != nil || len(left) != 3 || left[ids[1]] == nil || left[ids[3]] == nil || left[ids[4]] == nil {
			t.Errorf("%s: left are %d, %v", name, len(left), err)
		}
	}
}

// TestReviewsCalibration: without calibration images that a person says are of no class, the
// threshold is another, in a version that can be activated; what was not looked at, another
// detector and rubbish are refused.
func TestReviewsCalibration(t *testing.T) {
	t.Parallel()
	w := teach(t, nil)
	const path = "/v1/detectors/main/calibration"
	var lowest learn.Lowest
	w.call("GET", path, "", 200, &lowest)
	if lowest.Calibration != 32 || len(lowest.Images) != 25 || !lowest.Pictures || lowest.Images[0].Path == "" || lowest.Images[0].PValue > lowest.Images[24].PValue {
		t.Fatalf("%+v", lowest)
	}
	said := func(reviewed int, rows ...int) string {
		text, err := json.Marshal(map[string]any{"sha256": lowest.SHA256, "reviewed": reviewed, "remove": append([]int{}, rows...)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for body, status := range map[string]int{
		"{}": 400, said(0): 422, said(2, lowest.Images[2].Row): 422, said(40): 422, strings.Replace(said(5), lowest.SHA256[:8], "00000000", 1): 409,
	} {
		w.call("POST", path, body, status, nil)
	}
	w.call("GET", "/v1/detectors/other/calibration", "", 404, nil)
	var made struct {
		Version   string
		Threshold float64
		Review    struct{ Reviewed, Removed int }
	}
	w.call("POST", path, said(5, lowest.Images[0].Row), 200, &made)
	if made.Threshold <= *lowest.Threshold || made.Review.Reviewed != 5 || made.Review.Removed != 1 {
		t.Errorf("%+v, the threshold was %g", made, *lowest.Threshold)
	}
	w.call("POST", "/v1/detectors/main/activate", `{"version":"`+made.Version+`"}`, 200, nil)
	var next learn.Lowest
	if w.call("GET", path, "", 200, &next); next.Calibration != 31 || *next.Threshold != made.Threshold || next.Images[0].Row == lowest.Images[0].Row {
		t.Errorf("then %+v", next)
	}
}
