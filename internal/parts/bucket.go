package parts

import (
	"context"
	"encoding/json"
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

// suffix is that of the object beside a part that goes to a bucket which has its state.
const suffix = ".progress"

const (
	sendEvery    = 30 * time.Second
	patience     = 10 * time.Second // for sending a state
	lastPatience = 3 * time.Second  // for the last one, also of a run that is interrupted
)

// SendTo has the state of a shard sent to the folder of a bucket, too: with the first change,
// every 30 seconds, and when the run fails. It is deleted when the run has done all, for
// then the part is there. A state that cannot be sent stops nothing.
func (r *Recorder) SendTo(ctx context.Context, folder *bucket.Folder, kind string, index, count int) {
	name := Name(kind, Shard{Index: index, Count: count}) + suffix
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

// StatesIn reads the states of shards in the folder of a bucket.
func StatesIn(ctx context.Context, folder *bucket.Folder, kind string) (map[Shard]State, error) {
	var mu sync.Mutex
	states := map[Shard]State{}
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for o, err := range folder.List(ctx, kind+"-") {
		if err != nil {
			_ = group.Wait()
			return nil, err
		}
		name, is := strings.CutSuffix(o.Name, suffix)
		shard, ok := Parse(kind, name)
		if !is || !ok {
			continue
		}
		group.Go(func() error {
			text, _, err := folder.Read(groupCtx, o.Name, disk.Config)
			var s State
			if err != nil || json.Unmarshal(text, &s) != nil {
				return groupCtx.Err() // as if it were not there
			}
			mu.Lock()
			defer mu.Unlock()
			states[shard] = s
			return nil
		})
	}
	return states, group.Wait()
}
