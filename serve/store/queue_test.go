package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// TestQueueGroups: while one batch is stored the next gathers, and a batch is bounded.
func TestQueueGroups(t *testing.T) {
	s := &gate{open: make(chan struct{})}
	q := newQueue(s, queueOptions{Size: 20, Batch: 8, Wait: time.Minute, Log: quiet})
	var wait sync.WaitGroup
	add := func(n int) {
		list := verdicts(n)
		wait.Go(func() {
			if err := q.Add(ctx, list...); err != nil {
				t.Error(err)
			}
		})
	}
	waiting := func(n int) {
		t.Helper()
		for range 2000 {
			if q.Stats().Waiting == n {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatalf("%+v, want %d waiting", q.Stats(), n)
	}
	add(1)
	s.open <- struct{}{} // goes alone
	waiting(0)
	add(2)
	waiting(2)
	s.begun(t, 2)
	add(3)
	waiting(5)
	add(5)
	waiting(10)
	add(10) // more than a batch, at once
	waiting(20)
	if err := q.Add(ctx, verdicts(1)...); !errors.Is(err, ErrNotStored) {
		t.Errorf("a full queue took a verdict: %v", err)
	}
	close(s.open)
	wait.Wait()
	must(t, q.Close(ctx))
	if want := "1 2 8 10"; s.sizes() != want {
		t.Errorf("batches of %s, want %s", s.sizes(), want)
	}
	if stats := q.Stats(); stats.Stored != 21 || stats.Refused != 1 || stats.Waiting != 0 || stats.Batches != 4 {
		t.Errorf("%+v", stats)
	}
	if err := q.Add(ctx, verdicts(1)...); !errors.Is(err, ErrNotStored) {
		t.Errorf("a closed queue took a verdict: %v", err)
	}
}

// gate is a store that stores nothing, when it is let.
type gate struct {
	Store
	open chan struct{}

	mu      sync.Mutex
	batches []int
}

func (s *gate) Add(ctx context.Context, list []Verdict) error {
	s.mu.Lock()
	s.batches = append(s.batches, len(list))
	s.mu.Unlock()
	select {
	case <-s.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *gate) Ping(context.Context) error { return nil }

func (s *gate) begun(t *testing.T, n int) {
	t.Helper()
	for range 2000 {
		s.mu.Lock()
		now := len(s.batches)
		s.mu.Unlock()
		if now == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no batch began")
}

func (s *gate) sizes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Trim(fmt.Sprint(s.batches), "[]")
}

// TestQueueHangs: a store that does not answer delays an answer by the wait of the
// queue, and later answers not at all.
func TestQueueHangs(t *testing.T) {
	s := &gate{open: make(chan struct{})}
	q := newQueue(s, queueOptions{Wait: 50 * time.Millisecond, Timeout: time.Minute, Log: quiet})
	if err := q.Add(ctx, verdicts(1)...); !errors.Is(err, ErrNotStored) {
		t.Errorf("%v", err)
	}
	asked := time.Now()
	for range 100 {
		if err := q.Add(ctx, verdicts(1)...); !errors.Is(err, ErrNotStored) {
			t.Errorf("%v", err)
		}
	}
	if took := time.Since(asked); took > 2*time.Second { // 5 s if each waits
		t.Errorf("100 answers took %v", took)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := q.Close(ended); err == nil {
		t.Error("what was not stored was not told")
	}
}

// TestFullDisk fills the disk that SQLite may use. Storing ends and is told, answers
// go on, and storing goes on when there is room again.
func TestFullDisk(t *testing.T) {
	place := filepath.Join(t.TempDir(), "store.db")
	s := open(t, place)
	var log logged
	q := newQueue(s, queueOptions{Retry: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	_, err := s.write.ExecContext(ctx, "PRAGMA max_page_count = 60")
	must(t, err)
	var stored []string
	refused := 0
	for refused < 200 && len(stored) < 100_000 {
		list := verdicts(20)
		for i := range list {
			list[i].ID = NewID()
		}
		switch err := q.Add(ctx, list...); {
		case err == nil:
			for _, v := range list {
				stored = append(stored, v.ID)
			}
		case errors.Is(err, ErrNotStored):
			refused += len(list)
		default:
			t.Fatal(err)
		}
	}
	if len(stored) == 0 || refused < 200 {
		t.Errorf("%d stored, %d refused", len(stored), refused)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "storing has ended") || !strings.Contains(text, "full") {
		t.Errorf("the log says %q", text)
	}
	_, err = s.write.ExecContext(ctx, "PRAGMA max_page_count = 100000")
	must(t, err)
	last := verdicts(1)[0]
	for tries := 0; ; tries++ {
		if err = q.Add(ctx, last); err == nil {
			break
		}
		if tries == 2000 {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if text := log.String(); !strings.Contains(text, "storing goes on") {
		t.Errorf("the log says %q", text)
	}
	must(t, q.Close(ctx))
	head, err := s.Verify(ctx)
	if must(t, err); head.Seq != int64(len(stored)+1) {
		t.Errorf("%d lines, %d acknowledged", head.Seq, len(stored)+1)
	}
	for _, id := range append(stored, last.ID) {
		if _, err := s.Get(ctx, id); err != nil {
			t.Errorf("stored and lost: %v", err)
		}
	}
}

type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// BenchmarkQueue stores verdicts of many clients at once.
func BenchmarkQueue(b *testing.B) {
	s, err := Open(ctx, filepath.Join(b.TempDir(), "store.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	q := newQueue(s, queueOptions{Log: quiet})
	var n atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			v := verdicts(1)[0]
			v.ID = NewID()
			if err := q.Add(ctx, v); err != nil {
				b.Error(err)
				return
			}
			n.Add(1)
		}
	})
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "verdicts/s")
	b.ReportMetric(float64(n.Load())/float64(max(q.Stats().Batches, 1)), "verdicts/commit")
	if err := q.Close(ctx); err != nil {
		b.Fatal(err)
	}
}
