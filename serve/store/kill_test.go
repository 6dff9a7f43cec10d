package store

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripts/kill_harness sets these for a long run.
var (
	kills    = flag.Int("kills", 6, "how often a program that stores is killed")
	killSeed = flag.Uint64("kill-seed", 1, "what the random moments follow from")
)

const storeIn = "MLRBFN_TEST_STORE_IN"

// TestMain lets the test binary be the program that is killed.
func TestMain(m *testing.M) {
	if place := os.Getenv(storeIn); place != "" {
		fmt.Fprintln(os.Stderr, storeForEver(place))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// storeForEver stores verdicts and reviews and prints the ids of those that were
// acknowledged, until it is killed.
func storeForEver(place string) error {
	s, err := Open(ctx, place)
	if err != nil {
		return err
	}
	q := newQueue(s, queueOptions{})
	failed := make(chan error)
	for range 8 {
		go func() {
			for {
				v := verdicts(1)[0]
				v.ID, v.Time = NewID(), time.Now()
				if err := q.Add(ctx, v); err != nil {
					failed <- err
				}
				fmt.Fprintf(os.Stdout, "v %s\n", v.ID)
				if v.ID[35] == '0' {
					if err := s.Review(ctx, []Review{{ID: v.ID, Decision: IsJunk}}); err != nil {
						failed <- err
					}
					fmt.Fprintf(os.Stdout, "r %s\n", v.ID)
				}
			}
		}()
	}
	return <-failed
}

// testKilled kills a program that stores at random moments. All that it printed as
// stored is there, and the trail is whole.
func testKilled(t *testing.T, place string) {
	rng := rand.New(rand.NewPCG(*killSeed, 0))
	var stored, reviewed []string
	for range *kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), storeIn+"="+place)
		out, err := cmd.StdoutPipe()
		must(t, err)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		first := make(chan struct{})
		var once sync.Once
		var read sync.WaitGroup
		read.Go(func() {
			lines := bufio.NewReader(out)
			for {
				line, err := lines.ReadString('\n')
				if err != nil { // the line is not whole, so nobody was told
					if err != io.EOF && !errors.Is(err, os.ErrClosed) {
						t.Error(err)
					}
					return
				}
				switch id := strings.TrimSpace(line[2:]); line[0] {
				case 'v':
					stored = append(stored, id)
				case 'r':
					reviewed = append(reviewed, id)
				}
				once.Do(func() { close(first) })
			}
		})
		select {
		case <-first:
		case <-time.After(20 * time.Second):
			t.Error("nothing was stored for 20 seconds")
		}
		time.Sleep(time.Duration(rng.Int64N(int64(60 * time.Millisecond))))
		must(t, cmd.Process.Kill())
		read.Wait()
		_ = cmd.Wait() // killed
		if stderr.Len() > 0 {
			t.Errorf("it failed before it was killed: %s", stderr.String())
		}
	}
	s := open(t, place)
	head, err := s.Verify(ctx)
	must(t, err)
	for _, id := range stored {
		if _, err := s.Get(ctx, id); err != nil {
			t.Errorf("stored and lost: %v", err)
		}
	}
	for _, id := range reviewed {
		if all, err := s.Reviews(ctx, id); err != nil || len(all) != 1 {
			t.Errorf("reviewed and lost: %s: %v", id, err)
		}
	}
	if len(stored) == 0 || head.Seq < int64(len(stored)+len(reviewed)) {
		t.Errorf("%d verdicts and %d reviews were acknowledged, the trail has %d lines", len(stored), len(reviewed), head.Seq)
	}
	t.Logf("%d kills: %d verdicts and %d reviews acknowledged, %d lines", *kills, len(stored), len(reviewed), head.Seq)
}
