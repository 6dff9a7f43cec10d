package webhook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestSignature: the example of Standard Webhooks' own libraries.
func TestSignature(t *testing.T) {
	secret, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	if got := Signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

type received struct {
	Specversion, ID, Source, Type, Subject string
	Time                                   time.Time
	Data                                   json.RawMessage
}

// receiver takes some requests and refuses others in all ways.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	taken  []received
	failed int
}

const secret = "0123456789abcdef-secret"

func newReceiver(t *testing.T, bad float64) *receiver {
	r := &receiver{}
	rng := rand.New(rand.NewPCG(1, 2))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		if q.URL.Path != "/hook" {
			t.Errorf("a redirect was followed to %s", q.URL)
		}
		if q.Header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" || q.Method != "POST" {
			t.Errorf("%s %v", q.Method, q.Header)
		}
		want := Signature([]byte(secret), q.Header.Get("webhook-id"), q.Header.Get("webhook-timestamp"), body)
		if !slices.Contains(strings.Fields(q.Header.Get("webhook-signature")), want) {
			t.Errorf("signature %q, want %s", q.Header.Get("webhook-signature"), want)
		}
		var e received
		if err := json.Unmarshal(body, &e); err != nil || e.Specversion != "1.0" || e.ID != q.Header.Get("webhook-id") || e.Time.IsZero() {
			t.Errorf("%v: %s", err, body)
		}
		if rng.Float64() < bad {
			r.failed++
			switch rng.IntN(4) {
			case 0:
				w.WriteHeader(500)
			case 1:
				http.Redirect(w, q, "/elsewhere", http.StatusTemporaryRedirect)
			case 2:
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(429)
			case 3: // it was taken, and the answer is lost
				r.taken = append(r.taken, e)
				panic(http.ErrAbortHandler)
			}
			return
		}
		r.taken = append(r.taken, e)
	}))
	r.Config.ErrorLog = nil
	t.Cleanup(r.Close)
	return r
}

// ids are those of what was taken, each once, in the order of coming.
func (r *receiver) ids() (ids []string, doubles int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.taken {
		if slices.Contains(ids, e.ID) {
			doubles++
			continue
		}
		ids = append(ids, e.ID)
	}
	return ids, doubles
}

func (r *receiver) wait(t *testing.T, n int) []string {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if ids, _ := r.ids(); len(ids) >= n || time.Now().After(until) {
			if len(ids) < n {
				t.Fatalf("%d events, want %d", len(ids), n)
			}
			return ids
		}
	}
}

func opened(t *testing.T) store.Store {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func secretFile(t *testing.T) string {
	file := filepath.Join(t.TempDir(), "secret")
	text := "# old and new\nwhsec_" + base64.StdEncoding.EncodeToString([]byte("an old secret, too")) + "\n" + secret + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// run starts a replica and returns what ends it.
func run(t *testing.T, o Options) (stop func()) {
	t.Helper()
	o.Every, o.MaxPause = time.Millisecond, time.Millisecond
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() {
		w.Run(ctx)
		close(ended)
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := w.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func add(t *testing.T, s store.Store, from, to int) (flagged []string) {
	t.Helper()
	var list []store.Verdict
	for i := from; i < to; i++ {
		v := store.Verdict{ID: fmt.Sprint("id-", i), Time: time.UnixMilli(1e12), Source: "camera/ä 1", Name: "<b>.jpg", Verdict: detector.Verdict{OOD: i%3 == 0, PValue: 0.01}}
		if list = append(list, v); v.OOD {
			flagged = append(flagged, v.ID)
		}
	}
	if err := s.Add(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return flagged
}

// TestWebhook: flagged verdicts come at least once, in order, over restarts and refusals,
// and nothing of before the webhook was named.
func TestWebhook(t *testing.T) {
	s, r := opened(t), newReceiver(t, 0.3)
	add(t, s, 0, 30)
	o := Options{URL: r.URL + "/hook", SecretFile: secretFile(t), Store: s}
	stop := run(t, o)
	want := add(t, s, 30, 90)
	r.wait(t, len(want))
	stop()
	want = append(want, add(t, s, 90, 600)...) // more than are read at a time
	stop = run(t, o)
	r.wait(t, len(want)/2)
	stop() // in the middle
	stop = run(t, o)
	ids := r.wait(t, len(want))
	stop()
	if !slices.Equal(ids, want) {
		t.Errorf("%q, want %q", ids, want)
	}
	if r.failed == 0 {
		t.Error("nothing was refused")
	}
	e := r.taken[0]
	var data store.Record
	if err := json.Unmarshal(e.Data, &data); err != nil || e.Type != "mlrbfn.verdict" || e.Source != "/mlrbfn/camera%2F%C3%A4%201" || e.Subject != "<b>.jpg" || data.ID != e.ID || data.Seq != 31 {
		t.Errorf("%+v %s", e, e.Data)
	}
}

// TestReplicas: while all goes well, several replicas send nothing twice, and another one
// goes on when the one that sends ends.
func TestReplicas(t *testing.T) {
	s, r := opened(t), newReceiver(t, 0)
	o := Options{URL: r.URL + "/hook", SecretFile: secretFile(t), Store: s, On: OnAll}
	var stops []func()
	for range 3 {
		stops = append(stops, run(t, o))
	}
	for i, stop := range stops {
		add(t, s, 20*i, 20*(i+1))
		r.wait(t, 20*(i+1))
		stop()
	}
	if _, doubles := r.ids(); doubles > 0 {
		t.Errorf("%d events came twice", doubles)
	}
}

// TestAlarms: an alarm is sent once as long as it is raised, whoever sends, and again when
// it is raised anew.
func TestAlarms(t *testing.T) {
	s, r := opened(t), newReceiver(t, 0)
	var mu sync.Mutex
	raised := []Alarm{{Key: "a", Source: "gate", Data: "one"}}
	set := func(all ...Alarm) {
		mu.Lock()
		defer mu.Unlock()
		raised = all
	}
	o := Options{URL: r.URL + "/hook", SecretFile: secretFile(t), Store: s, On: OnDrift, Alarms: func(context.Context) ([]Alarm, error) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(raised), nil
	}}
	stop := run(t, o)
	add(t, s, 0, 10) // which is not told
	r.wait(t, 1)
	stop()
	stop = run(t, o)
	defer stop()
	set(raised[0], Alarm{Key: "b", Source: "gate", Data: "two"})
	r.wait(t, 2)
	set(Alarm{Key: "b"}) // the first has been dealt with
	set(Alarm{Key: "b"}, Alarm{Key: "c"})
	r.wait(t, 3)
	set(Alarm{Key: "a", Data: "again"})
	r.wait(t, 4)
	if e := r.taken[0]; e.Type != "mlrbfn.drift" || e.Source != "/mlrbfn/gate" || string(e.Data) != `"one"` {
		t.Errorf("%+v", e)
	}
	if _, doubles := r.ids(); doubles > 0 {
		t.Errorf("%d alarms came twice", doubles)
	}
}

// TestSetAside: an event that the receiver refuses does not block others, and is sent again
// when somebody asks for it; an answer of 410 ends it all.
func TestSetAside(t *testing.T) {
	s := opened(t)
	var mu sync.Mutex
	var taken []string
	refuses, gone := "id-3", false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch id := q.Header.Get("webhook-id"); {
		case gone:
			w.WriteHeader(http.StatusGone)
		case id == refuses:
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			taken = append(taken, id)
		}
	}))
	t.Cleanup(server.Close)
	o := Options{URL: server.URL, SecretFile: secretFile(t), Store: s, Every: time.Millisecond, MaxPause: time.Millisecond, Tries: 3}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	go func() {
		w.Run(t.Context())
		close(ended)
	}()
	until := func(n int) {
		for {
			mu.Lock()
			now := len(taken)
			mu.Unlock()
			if now >= n {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	add(t, s, 0, 9) // of which 0, 3 and 6 are flagged
	until(2)
	aside, err := w.Refused(t.Context())
	if err != nil || len(aside) != 1 || aside[0].ID != "id-3" || aside[0].Status != http.StatusUnprocessableEntity || !slices.Equal(taken, []string{"id-0", "id-6"}) {
		t.Errorf("%v, %+v, %v", taken, aside, err)
	}
	if n, m, err := w.Again(t.Context(), "ann"); n != 0 || m != 1 || err != nil {
		t.Errorf("%d taken, %d refused, %v", n, m, err)
	}
	mu.Lock()
	refuses = ""
	mu.Unlock()
	if n, m, err := w.Again(t.Context(), "ann"); n != 1 || m != 0 || err != nil {
		t.Errorf("%d taken, %d refused, %v", n, m, err)
	}
	if aside, err := w.Refused(t.Context()); err != nil || len(aside) != 0 {
		t.Errorf("%+v, %v", aside, err)
	}
	if lines, err := s.Reviews(t.Context(), "webhook/again"); err != nil || len(lines) != 2 || lines[1].By != "ann" || lines[1].Class != "1 taken, 0 refused" {
		t.Errorf("the trail says %+v, %v", lines, err)
	}
	mu.Lock()
	gone = true
	mu.Unlock()
	add(t, s, 9, 10)
	<-ended
}

func TestRefused(t *testing.T) {
	s, file := opened(t), secretFile(t)
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{
		{URL: "ftp://user:password@host/", SecretFile: file, Store: s}, {URL: "http://", SecretFile: file, Store: s}, {URL: "hook", SecretFile: file, Store: s},
		{URL: "http://user:password@h/", Store: s}, {URL: "http://user:password@h/", SecretFile: file}, {URL: "http://h/", SecretFile: short, Store: s},
		{URL: "http://h/", SecretFile: file + "none", Store: s}, {URL: "http://h/", SecretFile: file, Store: s, On: "some"},
	} {
		if _, err := New(o); err == nil || strings.Contains(err.Error(), "password") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	w, err := New(Options{URL: "http://user:password@127.0.0.1:1/", SecretFile: file, Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.send(t.Context(), "id", nil); err == nil || strings.Contains(err.Error(), "password") {
		t.Error(err)
	}
}
