//go:build unix

package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func TestPostgres(t *testing.T) {
	server := testenv.StartPostgres(t)
	n := 0
	place := func(t *testing.T) string { // in a schema of its own
		n++
		d := &db{}
		must(t, d.openPostgres(server.URL))
		defer d.Close()
		_, err := d.write.ExecContext(ctx, fmt.Sprintf("CREATE SCHEMA test%d", n))
		must(t, err)
		return fmt.Sprintf("%s&search_path=test%d", server.URL, n)
	}
	suite(t, place)
	t.Run("stopped and started", func(t *testing.T) { testStopped(t, server, place(t)) })
}

// testStopped stops the server under load, in order and as by a crash, and starts it
// again. Answers go on, and all that was said to be stored is there.
func testStopped(t *testing.T, server *testenv.Postgres, place string) {
	s := open(t, place)
	q := newQueue(s, queueOptions{Wait: time.Second, Timeout: time.Second, Retry: 20 * time.Millisecond, Log: quiet})
	var mu sync.Mutex
	var stored []string
	var refused atomic.Int64
	end := make(chan struct{})
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(time.Millisecond):
				}
				v := verdicts(1)[0]
				v.ID = NewID()
				asked := time.Now()
				err := q.Add(ctx, v)
				if took := time.Since(asked); took > 10*time.Second {
					t.Errorf("an answer took %v", took)
				}
				if err != nil {
					refused.Add(1)
					continue
				}
				mu.Lock()
				stored = append(stored, v.ID)
				mu.Unlock()
			}
		})
	}
	// more waits until n more verdicts were stored, or refused.
	more := func(what string, count func() int64, n int64) {
		t.Helper()
		until := time.Now().Add(30 * time.Second)
		for from := count(); count() < from+n; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("nothing was %s for 30 seconds: %+v", what, q.Stats())
			}
		}
	}
	storedNow := func() int64 { return q.Stats().Stored }
	more("stored", storedNow, 20)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		server.Stop(t, signal)
		more("refused", refused.Load, 20)
		if q.Stats().Down == nil {
			t.Error("the database is gone, and the queue does not say so")
		}
		server.Start(t)
		more("stored", storedNow, 20)
	}
	close(end)
	wait.Wait()
	must(t, q.Close(ctx))
	for _, id := range stored {
		if _, err := s.Get(ctx, id); err != nil {
			t.Errorf("stored and lost: %v", err)
		}
	}
	head, err := s.Verify(ctx)
	if must(t, err); head.Seq < int64(len(stored)) {
		t.Errorf("%d lines of %d", head.Seq, len(stored))
	}
	t.Logf("%d acknowledged, %d refused, %d lines", len(stored), refused.Load(), head.Seq)
}
