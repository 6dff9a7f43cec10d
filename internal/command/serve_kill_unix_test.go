//go:build unix

package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

var serveKills = flag.Int("serve-kills", 3, "how often TestServeKilled kills a service")

// underLoad is a service that clients ask without end, while a folder that it watches
// fills and a webhook is told of what it stores.
type underLoad struct {
	t     *testing.T
	place string // of the store
	args  []string
	image []byte
	cmd   *exec.Cmd
	url   string

	mu                 sync.Mutex
	serial             int
	stored, reviewed   []string // ids that were acknowledged
	notStored, dropped int      // answers that said so, and requests without an answer
	end                chan struct{}
	clients            sync.WaitGroup
}

func newUnderLoad(t *testing.T, place string, args ...string) *underLoad {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "0.png")
	picture(t, file, 0, 100)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	u := &underLoad{t: t, place: place, image: data}
	u.args = append([]string{"serve", "--detector", "main=" + w.detector, "--store", place, "--keep", "none", "--listen", "127.0.0.1:0", "--per-client", "-1"}, args...)
	return u
}

// start starts the service.
func (u *underLoad) start() {
	u.t.Helper()
	u.cmd = process(u.t, u.args...)
	u.cmd.Stderr = nil
	log, err := u.cmd.StderrPipe()
	if err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		u.t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	u.url = ""
	var said []string
	for u.url == "" && lines.Scan() {
		said = append(said, lines.Text())
		if m := regexp.MustCompile(`msg=listening address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			u.url = "http://" + m[1]
		}
	}
	if u.url == "" {
		u.t.Fatalf("it does not start:\n%s", strings.Join(said, "\n"))
	}
	go io.Copy(io.Discard, log)
}

// load has clients ask until stop.
func (u *underLoad) load() {
	u.end = make(chan struct{})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, DisableCompression: true}}
	for range 8 {
		u.clients.Go(func() {
			defer client.CloseIdleConnections()
			for {
				select {
				case <-u.end:
					return
				default:
					u.ask(client)
				}
			}
		})
	}
}

// ask has one image judged and, now and then, reviews it.
func (u *underLoad) ask(client *http.Client) {
	u.mu.Lock()
	u.serial++
	serial := u.serial
	u.mu.Unlock()
	post := func(path string, body []byte, to any) bool {
		began := time.Now()
		response, err := client.Post(u.url+path, "application/octet-stream", bytes.NewReader(body))
		if err == nil {
			defer response.Body.Close()
			var text []byte
			if text, err = io.ReadAll(response.Body); err == nil && response.StatusCode == 200 {
				err = json.Unmarshal(text, to)
			} else if err == nil {
				err = errors.New(response.Status)
			}
		}
		if took := time.Since(began); err == nil && took > 20*time.Second {
			u.t.Errorf("an answer took %v", took)
		}
		return err == nil
	}
	var got struct {
		ID, Class string
		Stored    bool
	}
	// Bytes after the end of an image make it another one.
	ok := post("/v1/detect", fmt.Appendf(bytes.Clone(u.image), "%d", serial), &got)
	reviewed := ok && got.Stored && serial%7 == 0 && post("/v1/reviews", fmt.Appendf(nil, `[{"id":%q,"verdict":"junk"}]`, got.ID), new(any))
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !ok:
		u.dropped++
	case got.Stored:
		u.stored = append(u.stored, got.ID)
	default:
		u.notStored++
	}
	if reviewed {
		u.reviewed = append(u.reviewed, got.ID)
	}
}

func (u *underLoad) stop() {
	close(u.end)
	u.clients.Wait()
}

// until waits until n more are counted.
func (u *underLoad) until(what string, n int, count func() int) {
	u.t.Helper()
	now := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return count()
	}
	for from, deadline := now(), time.Now().Add(60*time.Second); now() < from+n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			u.t.Fatalf("no %s for a minute", what)
		}
	}
}

func (u *underLoad) countStored() int    { return len(u.stored) }
func (u *underLoad) countNotStored() int { return u.notStored }

// check looks for all that was acknowledged and returns what the store has.
func (u *underLoad) check() []store.Record {
	t := u.t
	t.Helper()
	call(t, 0, "audit", u.place)
	s, err := store.OpenReadOnly(t.Context(), u.place)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	has, err := s.Has(t.Context(), u.stored)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range u.stored {
		if !has[id] {
			t.Errorf("stored and lost: %s", id)
		}
	}
	for _, id := range u.reviewed {
		if all, err := s.Reviews(t.Context(), id); err != nil || len(all) != 1 {
			t.Errorf("reviewed and lost: %s: %v, %v", id, all, err)
		}
	}
	return u.records()
}

// TestServeKilled kills a service under load at random moments. No verdict and no review
// that was acknowledged is lost, each image of the folder has one verdict, and the webhook
// is told of every verdict.
func TestServeKilled(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.Mkdir(in, 0o777); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "secret")
	write(t, secret, "a secret of a test\n")
	var mu sync.Mutex
	told, twice := map[string]bool{}, 0
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("webhook-id")
		if told[id] {
			twice++
		}
		told[id] = true
	}))
	defer hook.Close()
	u := newUnderLoad(t, filepath.Join(dir, "store.db"), "--watch", in, "--watch-settle", "10ms", "--watch-every", "10ms",
		"--webhook", hook.URL, "--webhook-secret", secret, "--webhook-on", "all", "--webhook-timeout", "500ms")
	rng := rand.New(rand.NewPCG(*killSeed, 1))
	files := 0
	for range *serveKills {
		u.start()
		u.load()
		u.until("verdicts", 1, u.countStored)
		for range 5 {
			name := filepath.Join(in, fmt.Sprintf("%d.png", files))
			write(t, name+".part", string(u.image)+fmt.Sprint(" of the folder ", files))
			if err := os.Rename(name+".part", name); err != nil {
				t.Fatal(err)
			}
			files++
		}
		time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
		if err := u.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = u.cmd.Wait() // killed
		u.stop()
	}
	u.start()
	judged := func() (n int) {
		for _, r := range u.records() {
			if r.Source == "in" {
				n++
			}
		}
		return n
	}
	for until := time.Now().Add(60 * time.Second); judged() < files && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	for until := time.Now().Add(60 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		mu.Lock()
		n := len(told)
		mu.Unlock()
		if n >= len(u.records()) {
			break
		}
	}
	if err := errors.Join(u.cmd.Process.Signal(syscall.SIGTERM), u.cmd.Wait()); err != nil {
		t.Error(err)
	}
	all := u.check()
	if n := judged(); n != files {
		t.Errorf("%d verdicts on %d files", n, files)
	}
	for _, r := range all {
		if !told[r.ID] {
			t.Errorf("the webhook was not told of line %d, %s", r.Seq, r.Source)
		}
	}
	t.Logf("%d kills: %d verdicts and %d reviews acknowledged, %d files, %d lines of verdicts; %d events, %d of them twice", *serveKills, len(u.stored), len(u.reviewed), files, len(all), len(told), twice)
}

// records lists all verdicts of the store.
func (u *underLoad) records() []store.Record {
	s, err := store.OpenReadOnly(u.t.Context(), u.place)
	if err != nil {
		u.t.Fatal(err)
	}
	defer s.Close()
	all, err := s.List(u.t.Context(), store.Query{Order: store.Oldest, Limit: 1 << 30})
	if err != nil {
		u.t.Fatal(err)
	}
	return all
}

// TestServePostgresStops stops PostgreSQL under load, in order and as by a crash, and
// starts it again. Answers go on, and what was said to be stored is there.
func TestServePostgresStops(t *testing.T) {
	server := testenv.StartPostgres(t)
	u := newUnderLoad(t, server.URL)
	u.start()
	u.load()
	u.until("verdicts", 20, u.countStored)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		server.Stop(t, signal)
		u.until("answers that say that nothing is stored", 20, u.countNotStored)
		server.Start(t)
		u.until("verdicts", 20, u.countStored)
	}
	u.stop()
	if err := errors.Join(u.cmd.Process.Signal(syscall.SIGTERM), u.cmd.Wait()); err != nil {
		t.Error(err)
	}
	if u.dropped > 0 {
		t.Errorf("%d requests had no answer", u.dropped)
	}
	all := u.check()
	t.Logf("%d verdicts and %d reviews acknowledged, %d answered without being stored, %d lines of verdicts", len(u.stored), len(u.reviewed), u.notStored, len(all))
}
