package pipeline

import (
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/parts"
)

var now = time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)

// ago is a state that moved some time ago.
func ago(d time.Duration, stopped bool) parts.State {
	return parts.State{Moved: now.Add(-d), Stopped: stopped}
}

// TestStates: a shard that does not move is noticed after a minute.
func TestStates(t *testing.T) {
	for _, c := range []struct {
		state parts.State
		want  string
	}{
		{ago(time.Minute, false), Running},
		{ago(time.Minute+1, false), NotMoved},
		{ago(time.Second, true), Stopped},
		{ago(time.Hour, true), Stopped},
	} {
		s := RunShard{State: Missing}
		if s.describe(c.state, true, now); s.State != c.want {
			t.Errorf("%+v is %s, want %s", c.state, s.State, c.want)
		}
	}
}

// TestCount: of several numbers of shards the one is chosen that runs write.
func TestCount(t *testing.T) {
	long, still, running, stopped := ago(3*time.Hour, false), ago(5*time.Minute, false), ago(30*time.Second, false), ago(time.Second, true)
	for _, c := range []struct {
		states         map[[2]int]parts.State
		finished, want int
	}{
		{nil, 4, 4},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: long}, 0, 2},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: stopped}, 4, 4},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: running}, 4, 3},
		{map[[2]int]parts.State{{1, 2}: ago(0, false), {1, 3}: running}, 4, 2},
	} {
		states, found := map[parts.Shard]parts.State{}, []parts.Part(nil)
		if c.finished > 0 {
			found = append(found, parts.Part{Shard: parts.Shard{Index: 1, Count: c.finished}, Finished: true})
		}
		for at, state := range c.states {
			shard := parts.Shard{Index: at[0], Count: at[1]}
			states[shard], found = state, append(found, parts.Part{Shard: shard, Begun: true})
		}
		if got := countOf(found, states, now); got != c.want {
			t.Errorf("of %v and finished ones of %d it is %d, want %d", c.states, c.finished, got, c.want)
		}
	}
}
