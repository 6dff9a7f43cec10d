package parts

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// This file records in a small file how far a long run has come, for others that
// want to know. Nothing depends on the file but what is shown.

// State is how far a run has come.
type State struct {
	Total   int            `json:"total"`           // images, −1 while they are not all known
	Known   int            `json:"known"`           // those that earlier runs had done
	Done    int            `json:"done"`            // those that are through, Known included
	Share   float64        `json:"share,omitempty"` // of all bytes that are read, where Total is not known
	Failed  map[string]int `json:"failed"`
	Began   time.Time      `json:"began"`
	Moved   time.Time      `json:"moved"` // when an image was last through
	Ended   bool           `json:"ended"`
	Stopped bool           `json:"stopped"` // interrupted, or failed
	Host    string         `json:"host"`
	Process int            `json:"process"`
}

// PerSecond is how many images per second the run has done, 0 if that is not known.
func (s State) PerSecond() float64 {
	took := s.Moved.Sub(s.Began).Seconds()
	if n := s.Done - s.Known; n > 0 && took > 0 {
		return float64(n) / took
	}
	return 0
}

// About is about how many images there are: Total, or what the bytes that are read let one
// expect; −1 if nothing is known.
func (s State) About() int {
	if s.Total < 0 && s.Done > 0 && s.Share > 0 {
		return max(s.Done, int(math.Round(float64(s.Done)/s.Share)))
	}
	return s.Total
}

// Recorder writes a State now and then. A nil Recorder does nothing.
type Recorder struct {
	path string

	mu      sync.Mutex
	state   State
	written time.Time
}

const (
	// suffix is that of the file beside a part.
	suffix = ".progress"
	// every is how often the file is written.
	every = 2 * time.Second
)

// StartRecorder begins to record in the file of a part, whose names begin with path.
func StartRecorder(path string) *Recorder {
	host, _ := os.Hostname()
	now := time.Now()
	return &Recorder{path: path + suffix, state: State{Total: -1, Failed: map[string]int{}, Began: now, Moved: now, Host: host, Process: os.Getpid()}}
}

// Update records a change.
func (r *Recorder) Update(change func(*State)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	done := r.state.Done
	change(&r.state)
	now := time.Now()
	if r.state.Done != done {
		r.state.Moved = now
	}
	if now.Sub(r.written) >= every {
		r.write(now)
	}
}

// Share records which part of all bytes is read.
func (r *Recorder) Share(share float64) { r.Update(func(s *State) { s.Share = share }) }

// Know records images that earlier runs had done.
func (r *Recorder) Know(images int) {
	r.Update(func(s *State) { s.Known, s.Done = s.Known+images, s.Done+images })
}

// End records the end of a run: one that has done all, or one that was interrupted or
// failed. Of a run that did nothing nothing is recorded: it had nothing to do, or another
// run has the file.
func (r *Recorder) End(err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Ended, r.state.Stopped = err == nil, err != nil
	if !r.written.IsZero() {
		r.write(time.Now())
	}
}

// write replaces the file. A failure stops nothing: the next one may succeed.
func (r *Recorder) write(now time.Time) {
	r.written = now
	dir, name := filepath.Split(r.path)
	temp := filepath.Join(dir, "."+name+".tmp")
	text, err := json.Marshal(r.state)
	if err == nil && os.WriteFile(temp, append(text, '\n'), 0o666) == nil && os.Rename(temp, r.path) != nil {
		os.Remove(temp)
	}
}

// ReadState reads the file of a part; false if there is none that can be read.
func ReadState(path string) (s State, ok bool) {
	text, err := disk.ReadFile(path+suffix, disk.Config)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return State{}, false
	}
	return s, true
}

// KindOf returns what is wrong with an image, without what is particular to it: its path
// and numbers.
func KindOf(text, path string) string {
	if path != "" {
		text = strings.ReplaceAll(text, path, "")
	}
	words := strings.Fields(text)
	for i, word := range words {
		if strings.ContainsAny(word, `/\\`) {
			words[i] = "…"
		}
	}
	text = strings.TrimLeft(strings.Join(words, " "), ": ")
	var b strings.Builder
	digits := false
	for _, c := range text {
		number := c >= '0' && c <= '9'
		switch {
		case number && !digits:
			b.WriteByte('N')
		case !number:
			b.WriteRune(c)
		}
		digits = number
		if b.Len() >= 100 {
			b.WriteRune('…')
			break
		}
	}
	return b.String()
}
