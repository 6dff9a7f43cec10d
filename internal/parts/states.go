package parts

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Kinds of what is written in shards.
const (
	PartKind = "part" // of a feature set
	Verdicts = "verdicts"
)

// suffix is that of the file beside a part that has its state, and of the object beside one
// that goes to a bucket.
const suffix = ".progress"

const (
	sendEvery    = 30 * time.Second
	patience     = 10 * time.Second // for sending a state
	lastPatience = 3 * time.Second  // for the last one, also of a run that is interrupted
)

// SendTo has the state of a shard sent to the folder of a bucket, too: with the first change,
// every 30 seconds, and when the run fails. It is deleted when the run has done all, for
// then the part is there. A state that cannot be sent stops nothing.
func (r *Recorder) SendTo(ctx context.Context, folder *bucket.Folder, kind string, shard Shard) {
	name := Name(kind, shard) + suffix
	r.send = func(text []byte, last bool) {
		ctx, patience := ctx, patience
		if last {
			ctx, patience = context.WithoutCancel(ctx), lastPatience
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if text != nil {
			_ = folder.Put(ctx, name, text)
		} else {
			_ = folder.Delete(ctx, name)
		}
	}
}

// wait waits until no state is being sent.
func (r *Recorder) wait() {
	if r.sending != nil {
		r.sending.Wait()
	}
}

// sendLast sends the last state, unless nothing was done that could have one.
func (r *Recorder) sendLast() {
	if r.send == nil || !r.state.Ended && r.sent.IsZero() {
		return
	}
	r.wait()
	if r.state.Ended {
		r.send(nil, true) // also what a run left that was killed
	} else {
		r.send(r.text(), true)
	}
}

// sendNow sends the state if it is time.
func (r *Recorder) sendNow(now time.Time) {
	if r.send == nil || now.Sub(r.sent) < sendEvery {
		return
	}
	if r.sending != nil {
		select {
		case <-r.sending.Done():
		default:
			return
		}
	}
	text := r.text()
	r.sent, r.sending = now, parallel.Start(func() struct{} { r.send(text, false); return struct{}{} })
}

// Runs lists the shards that are finished, or whose runs have told how far they have come, in
// order, and these states.
func (s *Set[R]) Runs(ctx context.Context) (found []Part, states map[Shard]State, err error) {
	found, objects, err := s.list(ctx, s.Kind+"-")
	if err != nil {
		return nil, nil, err
	}
	var begun []Shard
	for name := range objects {
		name, is := strings.CutSuffix(name, suffix)
		if shard, ok := Parse(s.Kind, name); is && ok {
			begun = append(begun, shard)
		}
	}
	var mu sync.Mutex
	states = map[Shard]State{}
	err = each(ctx, len(begun), func(ctx context.Context, i int) error {
		text, _, err := s.Folder.Read(ctx, Name(s.Kind, begun[i])+suffix, disk.Config)
		var state State
		if err != nil || json.Unmarshal(text, &state) != nil {
			return ctx.Err() // as if it were not there
		}
		mu.Lock()
		defer mu.Unlock()
		states[begun[i]] = state
		return nil
	})
	others := maps.Clone(states)
	for i, p := range found {
		_, found[i].Begun = states[p.Shard]
		delete(others, p.Shard)
	}
	for shard := range others {
		found = append(found, Part{Shard: shard, Begun: true})
	}
	slices.SortFunc(found, func(a, b Part) int { return a.Shard.Compare(b.Shard) })
	return found, states, err
}
