// Package learn lets detectors learn from reviews: it makes training features of
// reviewed images, trains a detector on the old features and these, compares the two,
// and keeps the detectors that came of it, so that one can be activated and taken back.
//
// One job runs at a time, also where replicas share a store: the state of jobs and which
// version is active is in the store. The package knows nothing of HTTP.
package learn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// Options says what learns, and where the results are.
type Options struct {
	Store     store.Store
	Detectors *pool.Set
	// Load loads a detector file; nil is detector.Load.
	Load   func(file string) (*detector.Detector, error)
	Images *store.Images // that are kept, or nil
	Dir    string        // of the results: a folder for each detector, and in it one for each version
	Tool   string        // names the program, for files
	Log    *slog.Logger
}

// State is that of a job.
type State string

// The states.
const (
	Running     State = "running"
	Done        State = "done"
	Failed      State = "failed"
	Cancelled   State = "cancelled"
	Interrupted State = "interrupted" // the program ended before the job did; it can be started again
)

// Job is one time of learning.
type Job struct {
	ID       string     `json:"id"`
	Detector string     `json:"detector"`
	State    State      `json:"state"`
	Stage    string     `json:"stage,omitempty"` // what is being done
	Error    string     `json:"error,omitempty"`
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`
	// Ready says that the new detector can be activated; of a job that runs, the learning
	// curve is still to come.
	Ready  bool     `json:"ready"`
	Result *Learned `json:"result,omitempty"`
}

// entry is a job in the store.
type entry struct {
	Job
	Beat   time.Time `json:"beat"` // when the program that runs it last said so
	Cancel bool      `json:"cancel,omitempty"`
}

// Times of jobs. Beats are written by the clock of the machine that runs a job, so that
// the clocks of replicas must agree to a few seconds.
const (
	beatEvery = 2 * time.Second
	lostAfter = 15 * time.Second // without a beat
	mostJobs  = 20               // that are remembered
	slowest   = time.Minute      // to write a state
)

// Errors of learning.
var (
	ErrBusy     = errors.New("a job is running already")
	ErrNoJob    = errors.New("there is no such job")
	ErrNoResult = errors.New("there is no such version")
)

// Learner learns. Close ends it.
type Learner struct {
	opts Options
	log  *slog.Logger

	mu      sync.Mutex
	stop    context.CancelCauseFunc // of the job that runs here, or nil
	running string
	closed  bool
	jobs    sync.WaitGroup

	changes sync.Mutex        // one activation at a time
	refused map[string]string // of each detector: the version that could not be activated, and on which file
	origins map[string]origin // of each detector
}

// New returns a learner. Follow must be called from time to time.
func New(opts Options) *Learner {
	if opts.Load == nil {
		opts.Load = detector.Load
	}
	return &Learner{opts: opts, log: opts.Log, refused: map[string]string{}, origins: map[string]origin{}}
}

var errEnding = errors.New("the program ends")

// Close ends the job that runs here; it is interrupted.
func (l *Learner) Close() {
	l.mu.Lock()
	l.closed = true
	if l.stop != nil {
		l.stop(errEnding)
	}
	l.mu.Unlock()
	l.jobs.Wait()
}

const jobsKey = "learn/jobs"

func resultKey(id string) string { return "learn/result/" + id }

// interrupt marks the jobs that nobody runs any more as interrupted.
func interrupt(jobs []entry) {
	for i := range jobs {
		if j := &jobs[i]; j.State == Running && time.Since(j.Beat) > lostAfter {
			j.State, j.Stage, j.Ended = Interrupted, "", &j.Beat
			j.Error = "the program ended before the job did; start it again"
		}
	}
}

// update changes the jobs in the store, the newest first.
func (l *Learner) update(ctx context.Context, change func([]entry) ([]entry, error)) error {
	var gone []entry
	err := store.UpdateValue(ctx, l.opts.Store, jobsKey, func(jobs *[]entry) (err error) {
		interrupt(*jobs)
		if *jobs, err = change(*jobs); err != nil {
			return err
		}
		kept := min(len(*jobs), mostJobs)
		*jobs, gone = (*jobs)[:kept], (*jobs)[kept:]
		return nil
	})
	for _, job := range gone {
		err = errors.Join(err, l.opts.Store.SetState(ctx, resultKey(job.ID), nil))
	}
	return err
}

// change changes one job.
func (l *Learner) change(ctx context.Context, id string, do func(*entry)) (job entry, err error) {
	err = l.update(ctx, func(jobs []entry) ([]entry, error) {
		at := slices.IndexFunc(jobs, func(j entry) bool { return j.ID == id })
		if at < 0 {
			return nil, ErrNoJob
		}
		do(&jobs[at])
		job = jobs[at]
		return jobs, nil
	})
	return job, err
}

// Jobs lists the jobs, the newest first, without their results.
func (l *Learner) Jobs(ctx context.Context) ([]Job, error) {
	entries, err := store.Value[[]entry](ctx, l.opts.Store, jobsKey)
	interrupt(entries)
	jobs := []Job{}
	for _, e := range entries {
		jobs = append(jobs, e.Job)
	}
	return jobs, err
}

// Job returns a job with its result.
func (l *Learner) Job(ctx context.Context, id string) (Job, error) {
	all, err := l.Jobs(ctx)
	if err != nil {
		return Job{}, err
	}
	at := slices.IndexFunc(all, func(j Job) bool { return j.ID == id })
	if at < 0 {
		return Job{}, ErrNoJob
	}
	job := all[at]
	job.Result, err = store.Value[*Learned](ctx, l.opts.Store, resultKey(id))
	return job, err
}

// Reviews says what a detector would learn from.
func (l *Learner) Reviews(ctx context.Context, name string) (*Gathered, error) {
	subject, now, err := l.subject(ctx, name)
	if err != nil {
		return nil, err
	}
	defer now.Release()
	return gather(ctx, l.opts.Store, subject, l, false)
}

// Has tells whether an image is kept.
func (l *Learner) Has(hash string) bool { return l.opts.Images != nil && l.opts.Images.Has(hash) }

// Features computes the features of an image that is kept.
func (l *Learner) Features(ctx context.Context, name, hash string) ([]float32, error) {
	if l.opts.Images == nil {
		return nil, store.ErrNotFound
	}
	data, err := l.opts.Images.Get(hash)
	if err != nil {
		return nil, err
	}
	d := l.opts.Detectors.Use(name)
	if d == nil {
		return nil, store.ErrNotFound
	}
	defer d.Release()
	return d.Features(ctx, data)
}

// subject returns the detector that learns, and the one that serves, which must be released.
func (l *Learner) subject(ctx context.Context, name string) (_ Subject, now *pool.Used, err error) {
	if now = l.opts.Detectors.Use(name); now == nil {
		return Subject{}, nil, ErrNoResult
	}
	versions, err := l.Versions(ctx, now.Name)
	if err != nil {
		now.Release()
		return Subject{}, nil, err
	}
	s := Subject{Name: now.Name, Classes: now.Classes, Model: now.Source.Fingerprint, Dim: now.Dim(), Files: map[string]bool{now.SHA256: true}}
	for _, hash := range versions.Hashes {
		s.Files[hash] = true
	}
	return s, now, nil
}

// Start begins a job for a detector, "" being the first. The error wraps ErrBusy while
// one runs.
func (l *Learner) Start(ctx context.Context, name string) (Job, error) {
	subject, now, err := l.subject(ctx, name)
	if err != nil {
		return Job{}, err
	}
	job := entry{Job: Job{ID: store.NewID(), Detector: subject.Name, State: Running, Started: time.Now().UTC()}, Beat: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		now.Release()
		return Job{}, errEnding
	}
	err = l.update(ctx, func(jobs []entry) ([]entry, error) {
		if len(jobs) > 0 && jobs[0].State == Running || l.stop != nil {
			return nil, ErrBusy
		}
		return slices.Insert(jobs, 0, job), nil
	})
	if err != nil {
		now.Release()
		return Job{}, err
	}
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	l.stop, l.running = stop, job.ID
	l.jobs.Go(func() {
		defer now.Release()
		l.work(working, stop, job.Job, subject, now)
		l.mu.Lock()
		l.stop, l.running = nil, ""
		l.mu.Unlock()
	})
	return job.Job, nil
}

var errCancelled = errors.New("cancelled")

// Cancel ends a job, wherever it runs.
func (l *Learner) Cancel(ctx context.Context, id string) (Job, error) {
	job, err := l.change(ctx, id, func(e *entry) { e.Cancel = e.State == Running })
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.running == id {
		l.stop(errCancelled)
	}
	return job.Job, err
}

// endOf returns the state in which a job ends with err, and what people read of it.
func endOf(ctx context.Context, err error) (State, string) {
	switch cause := context.Cause(ctx); {
	case err == nil:
		return Done, ""
	case errors.Is(cause, errCancelled):
		return Cancelled, ""
	case errors.Is(cause, errEnding):
		return Interrupted, "the program ended before the job did; start it again"
	case errors.Is(err, ErrNothing):
		return Failed, err.Error()
	case errors.Is(err, detector.ErrTrainingSets):
		return Failed, "the features that the detector was trained on are not found, or are others now; the log has more"
	}
	return Failed, "training failed; the log says why"
}

// beat stores again and again, until done, how far a job is, and stops it if another
// process says so.
func (l *Learner) beat(ctx context.Context, stop context.CancelCauseFunc, job string, done <-chan struct{}, say func(*entry)) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		write, cancel := context.WithTimeout(context.WithoutCancel(ctx), slowest)
		e, err := l.change(write, job, func(e *entry) {
			if e.State == Interrupted { // it was slow, and lives
				e.State, e.Error, e.Ended = Running, "", nil
			}
			say(e)
			e.Beat = time.Now()
		})
		cancel()
		if err != nil {
			l.log.Warn("the state of a job is not up to date", "job", job, "error", err)
		} else if e.Cancel {
			stop(errCancelled)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// work does a job and keeps its state up to date.
func (l *Learner) work(ctx context.Context, stop context.CancelCauseFunc, job Job, subject Subject, now *pool.Used) {
	defer stop(nil)
	var mu sync.Mutex
	stage, ready := "beginning", false
	say := func(text string) { mu.Lock(); defer mu.Unlock(); stage = text }
	var result []byte // as it was stored last
	keep := func(r *Learned) error {
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		result = data
		write, cancel := context.WithTimeout(context.WithoutCancel(ctx), slowest)
		defer cancel()
		return l.opts.Store.SetState(write, resultKey(job.ID), data)
	}
	var beats sync.WaitGroup
	done := make(chan struct{})
	beats.Go(func() {
		l.beat(ctx, stop, job.ID, done, func(e *entry) {
			mu.Lock()
			defer mu.Unlock()
			e.Stage, e.Ready = stage, ready
		})
	})
	l.log.Info("learning from reviews", "job", job.ID, "detector", job.Detector)
	r, err := l.learn(ctx, job, subject, now, say, func(r *Learned) error {
		if err := keep(r); err != nil {
			return err
		}
		if err := l.add(ctx, job, r); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		ready = true
		return nil
	})
	if err == nil {
		err = keep(r)
	}
	close(done)
	beats.Wait()
	state, text := endOf(ctx, err)
	if err != nil && state == Failed {
		l.log.Error("learning from reviews failed", "job", job.ID, "error", err)
	}
	if result == nil { // nothing came of it
		if err := os.RemoveAll(l.folder(job.Detector, job.ID)); err != nil {
			l.log.Error("the folder of a job was not removed", "job", job.ID, "error", err)
		}
	}
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), slowest)
	defer cancel()
	ended := time.Now().UTC()
	if _, err := l.change(write, job.ID, func(e *entry) {
		e.State, e.Stage, e.Error, e.Ended, e.Ready = state, "", text, &ended, ready
	}); err != nil {
		l.log.Error("the state of a job is not up to date", "job", job.ID, "error", err)
	}
	l.log.Info("learning ended", "job", job.ID, "state", state)
}

// learn does a job.
func (l *Learner) learn(ctx context.Context, job Job, subject Subject, now *pool.Used, say func(string), ready func(*Learned) error) (*Learned, error) {
	base, err := l.opts.Load(l.opts.Detectors.File(job.Detector))
	if err != nil {
		return nil, err
	}
	dir := l.folder(job.Detector, job.ID)
	if err := errors.Join(l.tidy(ctx, job.Detector), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	root := ""
	if l.opts.Images != nil {
		if root, err = filepath.Abs(l.opts.Images.Dir()); err != nil {
			return nil, err
		}
	}
	subject.Classes = base.Classes
	return Run(ctx, l.opts.Store, l, Task{
		Subject: subject, Base: base, Now: now.Detector, Dir: dir, Root: root, Tool: l.opts.Tool, Stage: say, Ready: ready,
	})
}

// tidy removes the folders of jobs that were killed. No other job runs.
func (l *Learner) tidy(ctx context.Context, name string) error {
	v, err := l.Versions(ctx, name)
	if err != nil {
		return err
	}
	folders, err := os.ReadDir(filepath.Join(l.opts.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, folder := range folders {
		known := slices.ContainsFunc(v.Versions, func(one Version) bool { return one.ID == folder.Name() })
		if len(folder.Name()) == len(store.NewID()) && !known {
			err = errors.Join(err, os.RemoveAll(l.folder(name, folder.Name())))
		}
	}
	return err
}

// folder is that of a version of a detector.
func (l *Learner) folder(name, id string) string { return filepath.Join(l.opts.Dir, name, id) }

// Versions are the detectors that served, or can, under one name.
type Versions struct {
	Hashes   []string  `json:"hashes"`   // of the files that served
	Versions []Version `json:"versions"` // the newest first
	// Active is the version that serves, "" being the file that the service was started
	// with, and Before those that served before it, the last one last. Both count only
	// while that file has the hash Origin: who replaces it wants it to serve.
	Active string   `json:"active"`
	Before []string `json:"before"`
	Origin string   `json:"origin"`
}

// Version is a detector that came of reviews.
type Version struct {
	ID      string    `json:"id"` // of its job
	Made    time.Time `json:"made"`
	SHA256  string    `json:"sha256"`
	Learned int       `json:"learned"` // reviewed images
	Classes int       `json:"classes"`
}

// mostVersions bounds the versions of a detector that are kept.
const mostVersions = 20

func versionsKey(name string) string { return "learn/versions/" + name }

// Versions returns those of a detector.
func (l *Learner) Versions(ctx context.Context, name string) (Versions, error) {
	return store.Value[Versions](ctx, l.opts.Store, versionsKey(name))
}

func (l *Learner) updateVersions(ctx context.Context, name string, change func(*Versions) error) error {
	return store.UpdateValue(ctx, l.opts.Store, versionsKey(name), change)
}

// serves notes that a file serves.
func (v *Versions) serves(hash string) {
	if !slices.Contains(v.Hashes, hash) {
		v.Hashes = append(v.Hashes, hash)
	}
}

// add adds what a job made to the versions, and removes the oldest that never served.
func (l *Learner) add(ctx context.Context, job Job, r *Learned) error {
	var gone []string
	err := l.updateVersions(ctx, job.Detector, func(v *Versions) error {
		v.Versions = slices.Insert(v.Versions, 0, Version{job.ID, r.Trained.UTC(), r.SHA256, r.Learned, len(r.Classes)})
		gone = nil
		for i := len(v.Versions) - 1; i > 0 && len(v.Versions) > mostVersions; i-- {
			if id := v.Versions[i].ID; id != v.Active && !slices.Contains(v.Before, id) {
				gone, v.Versions = append(gone, id), slices.Delete(v.Versions, i, i+1)
			}
		}
		return nil
	})
	for _, id := range gone {
		err = errors.Join(err, os.RemoveAll(l.folder(job.Detector, id)))
	}
	return err
}

// origin is the file that a detector was opened with.
type origin struct{ stamp, hash string }

// originOf returns its hash, computed again when the file changes.
func (l *Learner) originOf(name string) (string, error) {
	file := pool.FileOf(l.opts.Detectors.File(name))
	stamp := disk.Stamp(file)
	if known := l.origins[name]; stamp != "" && known.stamp == stamp {
		return known.hash, nil
	}
	hash, err := disk.SHA256(file, disk.Tensors)
	if err == nil {
		l.origins[name] = origin{stamp, hash}
	}
	return hash, err
}

// Previous is the version that Activate takes back to.
const Previous = "previous"

// Activate lets a version of a detector serve: "" is the file that the service was
// started with, Previous the one that served before. One that fails its test is refused,
// and the old one stays.
func (l *Learner) Activate(ctx context.Context, name, version string) error {
	l.changes.Lock()
	defer l.changes.Unlock()
	v, err := l.Versions(ctx, name)
	if err != nil {
		return err
	}
	hash, err := l.originOf(name)
	if err != nil {
		return err
	}
	if v.Origin != hash { // what was active before is of another file
		v.Active, v.Before = "", nil
	}
	before := append(slices.Clone(v.Before), v.Active)
	if version == Previous {
		if len(v.Before) == 0 {
			return fmt.Errorf("%w: nothing served before", ErrNoResult)
		}
		version, before = v.Before[len(v.Before)-1], v.Before[:len(v.Before)-1]
	}
	if err := l.put(ctx, name, version, &v); err != nil {
		return err
	}
	return l.updateVersions(ctx, name, func(now *Versions) error {
		const most = 50
		now.Active, now.Before, now.Origin = version, before[max(0, len(before)-most):], hash
		for _, known := range now.Versions {
			if known.ID == version {
				now.serves(known.SHA256)
			}
		}
		now.serves(hash)
		return nil
	})
}

// put puts a version in the place of the detector, unless it is there.
func (l *Learner) put(ctx context.Context, name, version string, v *Versions) error {
	if version == "" {
		return l.opts.Detectors.Replace(ctx, name, "")
	}
	at := slices.IndexFunc(v.Versions, func(one Version) bool { return one.ID == version })
	if at < 0 {
		return ErrNoResult
	}
	file := filepath.Join(l.folder(name, version), DetectorFile)
	if hash, err := disk.SHA256(file, disk.Tensors); err != nil {
		return err
	} else if hash != v.Versions[at].SHA256 {
		return fmt.Errorf("%s is not the file that came of learning", file)
	}
	return l.opts.Detectors.Replace(ctx, name, file)
}

// Follow lets the versions serve that the store says, which another replica may have
// activated, and notes which files served.
func (l *Learner) Follow(ctx context.Context) {
	l.changes.Lock()
	defer l.changes.Unlock()
	for _, name := range l.opts.Detectors.Names() {
		if err := l.follow(ctx, name); err != nil && ctx.Err() == nil {
			l.log.Error("the version of a detector is not the one that was activated", "detector", name, "error", err)
		}
	}
}

func (l *Learner) follow(ctx context.Context, name string) error {
	v, err := l.Versions(ctx, name)
	if err != nil {
		return err
	}
	hash, err := l.originOf(name)
	if err != nil {
		return nil // the file is gone, and the detector stays
	}
	version, want := "", hash
	if v.Origin == hash && v.Active != "" {
		if at := slices.IndexFunc(v.Versions, func(one Version) bool { return one.ID == v.Active }); at >= 0 {
			version, want = v.Active, v.Versions[at].SHA256
		}
	}
	now := l.opts.Detectors.Use(name)
	serves := now.SHA256
	now.Release()
	if key := version + " " + hash; serves != want && l.refused[name] != key {
		// Files that change are the business of the set, unless a version serves.
		if version == "" && !l.opts.Detectors.Replaced(name) {
			return nil
		}
		if err := l.put(ctx, name, version, &v); err != nil {
			l.refused[name] = key // it is not tried over and over
			return err
		}
		serves = want
	}
	if slices.Contains(v.Hashes, serves) {
		return nil
	}
	return l.updateVersions(ctx, name, func(v *Versions) error {
		v.serves(serves)
		return nil
	})
}
