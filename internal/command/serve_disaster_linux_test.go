package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// post sends a request and decodes the answer, whose status must be 200.
func (u *underLoad) post(method, path string, body []byte, to any) {
	u.t.Helper()
	request, err := http.NewRequest(method, u.url+path, bytes.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		u.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 == 2 {
		err = json.Unmarshal(text, to)
	} else if err == nil {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	if err != nil {
		u.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// TestServeFullDisk: with a full disk the service goes on answering and says that it
// stores nothing; when there is room again it stores, and the trail is whole.
func TestServeFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); errors.Is(err, syscall.EPERM) {
		testenv.Missing(t, "mount", "run as a user who may mount a tmpfs", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	u := newUnderLoad(t, filepath.Join(disk, "store.db"), "--keep", "all")
	u.start()
	serial := 0
	judge := func() (stored bool) {
		t.Helper()
		var got struct {
			Class  string
			Stored bool
		}
		serial++
		u.post("POST", "/v1/detect", fmt.Appendf(bytes.Clone(u.image), "%d", serial), &got)
		if got.Class == "" {
			t.Error("an answer without a class")
		}
		return got.Stored
	}
	until := func(stored bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); judge() != stored; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("for a minute no answer said stored: %t", stored)
			}
		}
	}
	if !judge() {
		t.Fatal("nothing is stored at first")
	}
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o666); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk does not fill: %v", err)
	}
	until(false)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	until(true)
	if err := errors.Join(u.cmd.Process.Signal(syscall.SIGTERM), u.cmd.Wait()); err != nil {
		t.Error(err)
	}
	call(t, 0, "audit", u.place)
}

// TestServeKilledWhileLearning: a version that was activated serves again after a kill,
// also one in the midst of learning, and the reviews are all there.
func TestServeKilledWhileLearning(t *testing.T) {
	dir := t.TempDir()
	u := newUnderLoad(t, filepath.Join(dir, "store.db"))
	kill := func() {
		t.Helper()
		if err := u.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = u.cmd.Wait() // killed
	}
	u.start()
	var said []string
	for i := range 20 {
		file := filepath.Join(dir, fmt.Sprintf("%d.png", i))
		picture(t, file, 2, uint64(i))
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ ID string }
		u.post("POST", "/v1/detect", data, &got)
		said = append(said, fmt.Sprintf(`{"id":%q,"new":"stripes"}`, got.ID))
	}
	u.post("POST", "/v1/reviews", []byte("["+strings.Join(said, ",")+"]"), new(any))
	type job struct {
		ID, State, Stage, Error string
		Ready                   bool
	}
	var learned job
	u.post("POST", "/v1/learn", nil, &learned)
	for !learned.Ready {
		time.Sleep(10 * time.Millisecond)
		if u.post("GET", "/v1/jobs/"+learned.ID, nil, &learned); learned.State == "failed" {
			t.Fatal(learned.Error)
		}
	}
	var versions struct{ Active string }
	u.post("POST", "/v1/detectors/main/activate", fmt.Appendf(nil, `{"version":%q}`, learned.ID), &versions)
	for learned.State == "running" { // the learning curve
		time.Sleep(10 * time.Millisecond)
		u.post("GET", "/v1/jobs/"+learned.ID, nil, &learned)
	}
	check := func(when string) {
		t.Helper()
		u.post("GET", "/v1/detectors/main", nil, &versions)
		var model struct{ Classes []string }
		u.post("GET", "/v2/models/main", nil, &model)
		if versions.Active != learned.ID || !slices.Contains(model.Classes, "stripes") {
			t.Errorf("%s: %q serves with the classes %q", when, versions.Active, model.Classes)
		}
		var reviews struct {
			Reviews struct {
				Classes []struct {
					Class  string
					Images int
				}
			}
		}
		if u.post("GET", "/v1/learn", nil, &reviews); len(reviews.Reviews.Classes) != 1 || reviews.Reviews.Classes[0].Images != 20 {
			t.Errorf("%s: reviews %+v", when, reviews.Reviews)
		}
	}
	kill()
	u.start()
	check("after a kill")
	var second job
	u.post("POST", "/v1/learn", nil, &second)
	for second.Stage == "" && second.State == "running" {
		u.post("GET", "/v1/jobs/"+second.ID, nil, &second)
	}
	if second.State != "running" {
		t.Fatalf("%+v", second)
	}
	kill()
	u.start()
	check("after a kill while learning")
	if err := errors.Join(u.cmd.Process.Signal(syscall.SIGTERM), u.cmd.Wait()); err != nil {
		t.Error(err)
	}
	call(t, 0, "audit", u.place)
}
