package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

const (
	// Still is after which time without an image a shard is said not to move.
	Still = time.Minute
	// sendingStill is that time for a part that is sent to a bucket.
	sendingStill = time.Hour
)

// States of a shard.
const (
	Finished = "finished"
	Running  = "running"
	NotMoved = "not moving" // no image for Still: it was killed, or something hangs
	Sending  = "being sent" // to its bucket; all its images are through
	Stopped  = "interrupted"
	Missing  = "not begun"
)

// RunShard is how far one shard has come.
type RunShard struct {
	Shard     string         `json:"shard"`
	State     string         `json:"state"`
	Done      int            `json:"done"`
	Total     int            `json:"total"`           // −1 if unknown
	About     bool           `json:"about,omitempty"` // Total is an estimate, by the bytes that are read
	PerSecond float64        `json:"images_per_second"`
	Errors    map[string]int `json:"errors,omitempty"` // by their kind
	Moved     *time.Time     `json:"moved,omitempty"`  // when an image was last through
	Host      string         `json:"host,omitempty"`   // where the last run was
}

// RunFolder is how far a folder has come.
type RunFolder struct {
	Kind      string          `json:"kind"` // "features" or "verdicts"
	Shards    []RunShard      `json:"shards"`
	Finished  int             `json:"finished"` // shards
	Done      int             `json:"done"`     // images
	Total     int             `json:"total"`    // images; of shards that are not known, what the others have on average; −1 if none is known
	PerSecond float64         `json:"images_per_second"`
	Left      float64         `json:"seconds_left"` // at that speed; −1 if unknown
	Errors    map[string]int  `json:"errors"`
	Whole     string          `json:"unfinished,omitempty"` // why it is no feature set yet
	Summary   *VerdictSummary `json:"summary,omitempty"`    // of the finished parts
}

// IsWatchable tells whether a path is a folder that Look can say something of.
func IsWatchable(path string) bool {
	if bucket.IsURL(path) {
		return true
	}
	for _, name := range []string{"features.npy", "part*"} {
		if found, _ := fs.Glob(os.DirFS(path), name); len(found) > 0 {
			return true
		}
	}
	_, ok := features.Unfinished(path)
	return ok
}

// LookAt looks at a folder that extract or detect --out writes, or has written, on the disk
// or in a bucket. Runs send their state to a bucket every half minute.
//
// LookAt says how far the runs have come that write a feature set or verdicts:
// what is done in each shard, how fast, what failed, and which shard does not move.
func LookAt(ctx context.Context, dir string, now time.Time) (*RunFolder, error) {
	if bucket.IsURL(dir) {
		return lookInto(ctx, dir, now)
	}
	folders, err := features.ListParts(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := ListVerdicts(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f := &RunFolder{Errors: map[string]int{}, Total: -1, Left: -1}
	isVerdicts := slices.ContainsFunc(files, func(p VerdictPart) bool { return p.Record != nil })
	if entries, _ := fs.Glob(os.DirFS(dir), "part-*.partial/lines.jsonl"); len(entries) > 0 {
		isVerdicts = true
	}
	switch {
	case isVerdicts:
		states := map[parts.Shard]parts.State{}
		for _, p := range files {
			if state, ok := parts.ReadState(ProgressFile(dir, p.Shard)); ok {
				states[parts.Shard(p.Shard)] = state
			}
		}
		f.verdicts(files[0].Count, files, states, now)
	case len(folders) > 0:
		f.features(dir, folders, now)
	default:
		return f, f.plain(dir, now)
	}
	f.sum()
	return f, nil
}

// lookInto looks at verdicts or at a set of parts in a bucket.
func lookInto(ctx context.Context, url string, now time.Time) (*RunFolder, error) {
	judged, err := OpenVerdictBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	files, err := judged.Parts(ctx)
	if err != nil {
		return nil, err
	}
	f := &RunFolder{Errors: map[string]int{}, Total: -1, Left: -1}
	states, err := parts.StatesIn(ctx, judged.Folder(), parts.Verdicts)
	if err != nil {
		return nil, err
	}
	largest := 0
	for _, p := range files {
		largest = p.Count
	}
	if count := countOf(states, largest, now); count > 0 {
		f.verdicts(count, files, states, now)
		f.sum()
		return f, nil
	}
	set, err := features.OpenBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	finished, err := set.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if states, err = parts.StatesIn(ctx, set.Folder(), parts.PartKind); err != nil {
		return nil, err
	}
	largest = 0
	for _, p := range finished {
		largest = p.Count
	}
	count := countOf(states, largest, now)
	if count == 0 {
		return nil, fmt.Errorf("%s: %w: no shard has begun there", url, fs.ErrNotExist)
	}
	return f, f.featuresIn(ctx, set, count, finished, states, now)
}

// countOf chooses the number of shards to tell of, where a folder has several: that of the
// run that moved last, if it still runs or if no shard is finished, or else the finished one.
func countOf(states map[parts.Shard]parts.State, finished int, now time.Time) int {
	count, moved := finished, time.Time{}
	for at, state := range states {
		if is := stateOf(state, now); (is == Running || is == Sending || finished == 0) && state.Moved.After(moved) {
			count, moved = at.Count, state.Moved
		}
	}
	return count
}

// featuresIn describes the shards of a set in a bucket.
func (f *RunFolder) featuresIn(ctx context.Context, set *features.Bucket, count int, finished []features.PartFolder, states map[parts.Shard]parts.State, now time.Time) error {
	f.Kind = "features"
	f.begun(count, states, now)
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(32)
	for _, p := range finished {
		state, ok := states[parts.Shard(p.Shard)]
		again := ok && !state.Ended && !state.Stopped && now.Sub(state.Moved) <= Still // images were added
		if p.Count != count || again {
			continue
		}
		s := &f.Shards[p.Index-1]
		group.Go(func() error {
			meta, failed, err := set.Look(groupCtx, p.Shard)
			if err != nil {
				return err
			}
			s.finished(meta.N+len(failed), kinds(failed), parts.State{})
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	unfinished, err := set.Unfinished(ctx)
	if err != nil {
		return err
	}
	if unfinished != nil {
		f.Whole = unfinished.Error()
	}
	f.sum()
	return nil
}

// fill lists all shards of a count, those that are not there included.
func (f *RunFolder) fill(count int) {
	for i := len(f.Shards); i < count; i++ {
		f.Shards = append(f.Shards, RunShard{Shard: features.Shard{Index: i + 1, Count: count}.String(), State: Missing, Total: -1})
	}
}

// begun lists all shards of a count, and describes those whose runs are known.
func (f *RunFolder) begun(count int, states map[parts.Shard]parts.State, now time.Time) {
	f.fill(count)
	for at, state := range states {
		if at.Count == count {
			f.Shards[at.Index-1].describe(state, true, now)
		}
	}
}

// describe describes a shard that is not finished by the state of its run, if that is known.
func (s *RunShard) describe(p parts.State, ok bool, now time.Time) {
	if !ok {
		s.State = Running
		return
	}
	s.Done, s.Total, s.About, s.PerSecond, s.Errors, s.Moved, s.Host = p.Done, p.About(), p.Total < 0, p.PerSecond(), p.Failed, &p.Moved, p.Host
	s.State = stateOf(p, now)
}

// stateOf returns the state of a shard that is not finished.
func stateOf(p parts.State, now time.Time) string {
	still := now.Sub(p.Moved)
	switch {
	case p.Stopped:
		return Stopped
	case p.Sending && still <= sendingStill:
		return Sending
	case still > Still:
		return NotMoved
	default:
		return Running
	}
}

// finished describes a finished shard; ended is the state of the run that made it.
func (s *RunShard) finished(images int, errs map[string]int, ended parts.State) {
	*s = RunShard{Shard: s.Shard, State: Finished, Done: images, Total: images, Errors: errs, PerSecond: ended.PerSecond(), Host: ended.Host}
}

func (f *RunFolder) verdicts(count int, files []VerdictPart, states map[parts.Shard]parts.State, now time.Time) {
	f.Kind, f.Summary = "verdicts", &VerdictSummary{}
	f.Summary.Add(VerdictSummary{})
	f.begun(count, states, now)
	for _, p := range files {
		if p.Count != count {
			continue
		}
		s := &f.Shards[p.Index-1]
		state, ok := states[parts.Shard(p.Shard)]
		if p.Record == nil {
			s.describe(state, ok, now)
			continue
		}
		s.finished(p.Record.Images, p.Record.Errors, state)
		f.Summary.Add(p.Record.VerdictSummary)
	}
}

func (f *RunFolder) features(dir string, folders []features.PartFolder, now time.Time) {
	f.Kind = "features"
	states, largest := map[parts.Shard]parts.State{}, 0
	for _, p := range folders {
		if p.Finished {
			largest = p.Count
		}
		if state, ok := parts.ReadState(p.Dir + ".progress"); ok && p.Begun {
			states[parts.Shard(p.Shard)] = state
		}
	}
	f.fill(cmp.Or(countOf(states, largest, now), folders[0].Count))
	for _, p := range folders {
		if p.Count != len(f.Shards) {
			continue
		}
		s := &f.Shards[p.Index-1]
		if p.Begun || !p.Finished {
			state, ok := parts.ReadState(p.Dir + ".progress")
			s.describe(state, ok, now)
			if !p.Finished || s.State == Running {
				continue
			}
			*s = RunShard{Shard: s.Shard} // a run that was killed left a work folder
		}
		set, err := features.Glance(p.Dir)
		if err != nil {
			s.State, s.Errors = "damaged", map[string]int{err.Error(): 1}
			continue
		}
		failed, err := set.Errors()
		if err != nil {
			s.State, s.Errors = "damaged", map[string]int{err.Error(): 1}
			continue
		}
		ended, _ := parts.ReadState(p.Dir + ".progress")
		s.finished(set.N+len(failed), kinds(failed), ended)
	}
	set, err := features.Open(dir)
	if err != nil {
		f.Whole = err.Error()
		return
	}
	set.Close()
}

func kinds(failed []features.Failure) map[string]int {
	errs := map[string]int{}
	for _, e := range failed {
		errs[parts.KindOf(e.Error, e.Path)]++
	}
	return errs
}

// plain describes a set that is not of parts.
func (f *RunFolder) plain(dir string, now time.Time) error {
	f.Kind = "features"
	s := RunShard{Shard: "1/1", Total: -1}
	if work, ok := features.Unfinished(dir); ok {
		s.State, s.Done, s.Moved = Running, work.Rows, &work.Moved
		if took := work.Moved.Sub(work.Began).Seconds(); took > 0 {
			s.PerSecond = float64(work.Rows) / took
		}
		if now.Sub(work.Moved) > Still {
			s.State = NotMoved
		}
		f.Whole = "the extraction is running, or was interrupted"
	} else {
		set, err := features.Glance(dir)
		if err != nil {
			return err
		}
		failed, err := set.Errors()
		if err != nil {
			return err
		}
		s.finished(set.N+len(failed), kinds(failed), parts.State{})
	}
	f.Shards = []RunShard{s}
	f.sum()
	return nil
}

// sum fills in what is true of all shards.
func (f *RunFolder) sum() {
	known, total, speed := 0, 0, 0.
	for _, s := range f.Shards {
		f.Done += s.Done
		for kind, n := range s.Errors {
			f.Errors[kind] += n
		}
		if s.Total >= 0 {
			known++
			total += s.Total
		}
		switch s.State {
		case Finished:
			f.Finished++
		case Running:
			speed += s.PerSecond
		}
	}
	f.PerSecond = speed
	if known > 0 {
		f.Total = total / known * len(f.Shards)
		if known == len(f.Shards) {
			f.Total = total
		}
		if f.Finished == len(f.Shards) {
			f.Left = 0
		} else if speed > 0 {
			f.Left = float64(max(f.Total-f.Done, 0)) / speed
		}
	}
}

// MostErrors returns the kinds of errors, the most frequent first.
func MostErrors(errs map[string]int) []string {
	kinds := slices.Sorted(maps.Keys(errs))
	slices.SortStableFunc(kinds, func(a, b string) int { return cmp.Compare(errs[b], errs[a]) })
	return kinds
}

// DurationText says in a few words how long something takes.
func DurationText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	default:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
}
