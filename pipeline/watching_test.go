package pipeline

import (
	"slices"
	"testing"
	"time"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/parts"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

var now = time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)

// ago is a state that moved some time ago.
func ago(d time.Duration, sending, stopped bool) parts.State {
	return parts.State{Moved: now.Add(-d), Sending: sending, Stopped: stopped}
}

// TestStates: a shard that does not move is noticed after a minute, and one that is sent to
// a bucket after an hour.
func TestStates(t *testing.T) {
	for _, c := range []struct {
		state parts.State
		want  string
	}{
		{ago(time.Minute, false, false), Running},
		{ago(time.Minute+1, false, false), NotMoved},
		{ago(time.Hour, true, false), Sending},
		{ago(time.Hour+1, true, false), NotMoved},
		{ago(time.Second, true, true), Stopped},
		{ago(time.Hour, false, true), Stopped},
	} {
		s := RunShard{State: Missing}
		if s.describe(c.state, true, now); s.State != c.want {
			t.Errorf("%+v is %s, want %s", c.state, s.State, c.want)
		}
	}
}

// TestCount: of several numbers of shards the one is chosen that runs write.
func TestCount(t *testing.T) {
	long, still, sending, stopped := ago(3*time.Hour, false, false), ago(5*time.Minute, false, false), ago(30*time.Minute, true, false), ago(time.Second, false, true)
	for _, c := range []struct {
		states         map[[2]int]parts.State
		finished, want int
	}{
		{nil, 4, 4},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: long}, 0, 2},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: stopped}, 4, 4},
		{map[[2]int]parts.State{{1, 2}: still, {1, 3}: sending}, 4, 3},
		{map[[2]int]parts.State{{1, 2}: ago(0, false, false), {1, 3}: sending}, 4, 2},
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

// TestVerdictsInBucket: while a run writes verdicts in three shards beside finished ones in
// two, all that is said is of three.
func TestVerdictsInBucket(t *testing.T) {
	testenv.Start(t, "s3")
	const url = "s3://data/verdicts"
	to, err := OpenVerdictBucket(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	dir, shard := t.TempDir(), features.Shard{Index: 1, Count: 2}
	w, err := CreateVerdicts(dir, shard, Work{Images: 1, Format: JSONL}, func(string) bool { return false }, VerdictOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append([]byte(`{"path": "a.jpg", "class": "cat", "confidence": 0.9, "score": 1.5, "ood": true, "p_value": 0.01}` + "\n")); err != nil {
		t.Fatal(err)
	}
	record, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.SendPart(t.Context(), shard, dir, record); err != nil {
		t.Fatal(err)
	}
	r := parts.StartRecorder(t.TempDir() + "/state")
	r.SendTo(t.Context(), to.Folder, parts.Verdicts, parts.Shard{Index: 2, Count: 3})
	look := func(want ...string) {
		t.Helper()
		f, err := LookAt(t.Context(), url, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range f.Shards {
			got = append(got, s.Shard+" "+s.State)
		}
		if f.Kind != "verdicts" || !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", f.Kind, got, want)
		}
	}
	r.Update(func(s *parts.State) { s.Total, s.Done = 10, 4 })
	r.Sends()
	r.Sends() // waits until the state is there
	look("1/3 not begun", "2/3 being sent", "3/3 not begun")
	r.End(nil)
	look("1/2 finished", "2/2 not begun")
}
