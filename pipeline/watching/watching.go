// Package watching says how far the runs have come that write a feature set or verdicts:
// what is done in each shard, how fast, what failed, and which shard does not move.
package watching

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

	"github.com/mlrbfn/mlrbfn/bucket"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/progress"
	"github.com/mlrbfn/mlrbfn/pipeline/verdicts"
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

// Shard is how far one shard has come.
type Shard struct {
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

// Folder is how far a folder has come.
type Folder struct {
	Kind      string            `json:"kind"` // "features" or "verdicts"
	Shards    []Shard           `json:"shards"`
	Finished  int               `json:"finished"` // shards
	Done      int               `json:"done"`     // images
	Total     int               `json:"total"`    // images; of shards that are not known, what the others have on average; −1 if none is known
	PerSecond float64           `json:"images_per_second"`
	Left      float64           `json:"seconds_left"` // at that speed; −1 if unknown
	Errors    map[string]int    `json:"errors"`
	Whole     string            `json:"unfinished,omitempty"` // why it is no feature set yet
	Summary   *verdicts.Summary `json:"summary,omitempty"`    // of the finished parts
}

// Is tells whether a path is a folder that Look can say something of.
func Is(path string) bool {
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

// Look looks at a folder that extract or detect --out writes, or has written. Of one in a
// bucket it tells which shards are finished.
func Look(ctx context.Context, dir string, now time.Time) (*Folder, error) {
	if bucket.IsURL(dir) {
		return lookInto(ctx, dir)
	}
	parts, err := features.ListParts(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := verdicts.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f := &Folder{Errors: map[string]int{}, Total: -1, Left: -1}
	isVerdicts := slices.ContainsFunc(files, func(p verdicts.Part) bool { return p.Record != nil })
	if entries, _ := fs.Glob(os.DirFS(dir), "part-*.partial/lines.jsonl"); len(entries) > 0 {
		isVerdicts = true
	}
	switch {
	case isVerdicts:
		f.verdicts(dir, files, now)
	case len(parts) > 0:
		f.features(dir, parts, now)
	default:
		return f, f.plain(dir, now)
	}
	f.sum()
	return f, nil
}

// lookInto looks at verdicts or at a set of parts in a bucket.
func lookInto(ctx context.Context, url string) (*Folder, error) {
	judged, err := verdicts.OpenBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	files, err := judged.Parts(ctx)
	if err != nil && !errors.Is(err, bucket.ErrReadOnly) { // of a web server, which lists nothing
		return nil, err
	}
	if len(files) > 0 {
		f := &Folder{Errors: map[string]int{}, Total: -1, Left: -1}
		f.verdicts(url, files, time.Time{})
		f.sum()
		return f, nil
	}
	set, err := features.OpenBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	f := &Folder{Kind: "features", Errors: map[string]int{}, Total: -1, Left: -1}
	parts, err := set.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s: %w: no shard is finished there", url, fs.ErrNotExist)
	}
	f.fill(parts[len(parts)-1].Count)
	for _, p := range parts {
		if p.Count != len(f.Shards) {
			continue
		}
		meta, failed, err := set.Look(ctx, p.Shard)
		if err != nil {
			return nil, err
		}
		s := &f.Shards[p.Index-1]
		s.State, s.Done, s.Total, s.Errors = Finished, meta.N+len(failed), meta.N+len(failed), kinds(failed)
	}
	unfinished, err := set.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	if unfinished != nil {
		f.Whole = unfinished.Error()
	}
	f.sum()
	return f, nil
}

// fill lists all shards of a count, those that are not there included.
func (f *Folder) fill(count int) {
	for i := len(f.Shards); i < count; i++ {
		f.Shards = append(f.Shards, Shard{Shard: features.Shard{Index: i + 1, Count: count}.String(), State: Missing, Total: -1})
	}
}

// running describes a shard that is not finished.
func running(s Shard, file string, now time.Time) Shard {
	p, ok := progress.Read(file)
	if !ok {
		s.State = Running
		return s
	}
	s.Done, s.Total, s.About, s.PerSecond, s.Errors, s.Moved, s.Host = p.Done, p.About(), p.Total < 0, p.PerSecond(), p.Failed, &p.Moved, p.Host
	switch {
	case p.Stopped:
		s.State = Stopped
	case now.Sub(p.Moved) > Still:
		s.State = NotMoved
	default:
		s.State = Running
	}
	return s
}

func (f *Folder) verdicts(dir string, parts []verdicts.Part, now time.Time) {
	f.Kind, f.Summary = "verdicts", &verdicts.Summary{}
	f.Summary.Add(verdicts.Summary{})
	f.fill(parts[0].Count)
	for _, p := range parts {
		if p.Index > len(f.Shards) {
			continue
		}
		s := &f.Shards[p.Index-1]
		file := verdicts.ProgressFile(dir, p.Shard)
		if p.Record == nil {
			*s = running(*s, file, now)
			continue
		}
		ended, _ := progress.Read(file)
		s.State, s.Done, s.Total, s.Errors, s.PerSecond, s.Host = Finished, p.Record.Images, p.Record.Images, p.Record.Errors, ended.PerSecond(), ended.Host
		f.Summary.Add(p.Record.Summary)
	}
}

func (f *Folder) features(dir string, parts []features.PartFolder, now time.Time) {
	f.Kind = "features"
	f.fill(parts[0].Count)
	for _, p := range parts {
		if p.Index > len(f.Shards) {
			continue
		}
		s := &f.Shards[p.Index-1]
		if p.Begun || !p.Finished {
			*s = running(*s, p.Dir+".progress", now)
			if !p.Finished || s.State == Running {
				continue
			}
			*s = Shard{Shard: s.Shard} // a run that was killed left a work folder
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
		ended, _ := progress.Read(p.Dir + ".progress")
		s.State, s.Done, s.Total, s.PerSecond, s.Host = Finished, set.N+len(failed), set.N+len(failed), ended.PerSecond(), ended.Host
		s.Errors = kinds(failed)
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
		errs[progress.Kind(e.Error, e.Path)]++
	}
	return errs
}

// plain describes a set that is not of parts.
func (f *Folder) plain(dir string, now time.Time) error {
	f.Kind = "features"
	s := Shard{Shard: "1/1", Total: -1}
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
		s.State, s.Done, s.Total, s.Errors = Finished, set.N+len(failed), set.N+len(failed), kinds(failed)
	}
	f.Shards = []Shard{s}
	f.sum()
	return nil
}

// sum fills in what is true of all shards.
func (f *Folder) sum() {
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

// Duration says in a few words how long something takes.
func Duration(seconds float64) string {
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
