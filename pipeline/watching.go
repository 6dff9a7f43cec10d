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
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// Still is after which time without an image a shard is said not to move.
const Still = time.Minute

// States of a shard.
const (
	Finished = "finished"
	Running  = "running"
	NotMoved = "not moving" // no image for Still: it was killed, or something hangs
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
	for _, name := range []string{"features.npy", "part*"} {
		if found, _ := fs.Glob(os.DirFS(path), name); len(found) > 0 {
			return true
		}
	}
	_, ok := features.Unfinished(path)
	return ok
}

// LookAt looks at a folder that extract or detect --out writes, or has written.
//
// LookAt says how far the runs have come that write a feature set or verdicts:
// what is done in each shard, how fast, what failed, and which shard does not move.
func LookAt(ctx context.Context, dir string, now time.Time) (*RunFolder, error) {
	f := &RunFolder{Errors: map[string]int{}, Total: -1, Left: -1}
	if err := f.lookAt(ctx, dir, now); err != nil {
		return nil, err
	}
	f.sum()
	return f, nil
}

// lookAt looks at a folder.
func (f *RunFolder) lookAt(ctx context.Context, dir string, now time.Time) error {
	folders, err := parts.InFolder(dir, "")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	files, err := parts.InFolder(dir, ".json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	isVerdicts := slices.ContainsFunc(files, func(p parts.Part) bool { return p.Finished })
	if entries, _ := fs.Glob(os.DirFS(dir), "part-*.partial/lines.jsonl"); len(entries) > 0 {
		isVerdicts = true
	}
	found := folders
	if isVerdicts {
		found = files
	}
	if len(found) == 0 {
		return f.plain(dir, now)
	}
	states := map[parts.Shard]parts.State{}
	for _, p := range found {
		if state, ok := parts.ReadState(p.Path); ok {
			states[p.Shard] = state
		}
	}
	if isVerdicts {
		f.verdicts(ctx, found, states, now)
		return nil
	}
	f.shards(ctx, "features", found, states, now, func(p parts.Part) (int, map[string]int, error) { return glance(p.Path) })
	set, err := features.Open(ctx, dir)
	if err != nil {
		f.Whole = err.Error()
		return nil
	}
	return set.Close()
}

// countOf chooses the number of shards to tell of, where a folder has several: that of the
// run that moved last, if it still runs or if no shard is finished, or else the finished one.
func countOf(found []parts.Part, states map[parts.Shard]parts.State, now time.Time) int {
	count, moved, finished := 0, time.Time{}, false
	for _, p := range found {
		if p.Finished {
			count, finished = p.Count, true
		}
	}
	for _, p := range found {
		state, ok := states[p.Shard]
		is := stateOf(state, now)
		if p.Begun && ok && (is == Running || !finished) && state.Moved.After(moved) {
			count, moved = p.Count, state.Moved
		}
	}
	return cmp.Or(count, found[0].Count)
}

// shards describes the shards that were found, and the states of their runs. done tells how
// many images a finished one has, and what is wrong with some.
func (f *RunFolder) shards(ctx context.Context, kind string, found []parts.Part, states map[parts.Shard]parts.State, now time.Time,
	done func(parts.Part) (images int, errs map[string]int, err error)) {
	f.Kind = kind
	count := countOf(found, states, now)
	for i := range count {
		f.Shards = append(f.Shards, RunShard{Shard: features.Shard{Index: i + 1, Count: count}.String(), State: Missing, Total: -1})
	}
	group, _ := parallel.WithContext(ctx)
	group.SetLimit(32)
	for _, p := range found {
		if p.Count != count {
			continue
		}
		s := &f.Shards[p.Index-1]
		state, ok := states[p.Shard]
		if p.Begun || !p.Finished {
			s.describe(state, ok, now)
			again := !ok || !state.Stopped && now.Sub(state.Moved) <= Still
			if !p.Finished || again {
				continue
			}
		}
		group.Go(func() error {
			images, errs, err := done(p)
			if err != nil { // what is wrong with one shard hides no other
				s.State, s.Errors = "damaged", map[string]int{err.Error(): 1}
				return nil
			}
			*s = RunShard{Shard: s.Shard, State: Finished, Done: images, Total: images, Errors: errs}
			if state.Ended {
				s.PerSecond, s.Host = state.PerSecond(), state.Host
			}
			return nil
		})
	}
	_ = group.Wait() // of functions without errors
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
	case still > Still:
		return NotMoved
	default:
		return Running
	}
}

// verdicts describes the shards of verdicts, and adds up those that are finished.
func (f *RunFolder) verdicts(ctx context.Context, found []parts.Part, states map[parts.Shard]parts.State, now time.Time) {
	f.Summary = &VerdictSummary{}
	f.Summary.init()
	var mu sync.Mutex
	f.shards(ctx, "verdicts", found, states, now, func(p parts.Part) (int, map[string]int, error) {
		r, err := readRecord(p.Path + ".json")
		if err != nil {
			return 0, nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		f.Summary.Add(r.VerdictSummary)
		return r.Images, r.Errors, nil
	})
}

// glance returns how many images a feature set is of, and what is wrong with those that could
// not be read.
func glance(dir string) (images int, errs map[string]int, err error) {
	set, err := features.Glance(dir)
	if err != nil {
		return 0, nil, err
	}
	failed, err := set.Errors()
	return set.N + len(failed), kinds(failed), err
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
		images, errs, err := glance(dir)
		if err != nil {
			return err
		}
		s.State, s.Done, s.Total, s.Errors = Finished, images, images, errs
	}
	f.Shards = []RunShard{s}
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
