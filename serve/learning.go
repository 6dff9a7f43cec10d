package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/internal/learn"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file has the requests of learning: jobs, and the versions of detectors that come
// of them.

const (
	followEvery   = 5 * time.Second
	featuresEvery = 10 * time.Minute // between two times that old features are dropped
)

// jobs is what requests ask of the jobs of learning, and learned of what came of them.
type (
	jobs interface {
		Start(ctx context.Context, detector string) (learn.Job, error)
		Jobs(context.Context) ([]learn.Job, error)
		Job(ctx context.Context, id string) (learn.Job, error)
		Cancel(ctx context.Context, id string) (learn.Job, error)
	}
	learned interface {
		Reviews(ctx context.Context, detector string) (*learn.Gathered, error)
		Versions(ctx context.Context, detector string) (learn.Versions, error)
		Activate(ctx context.Context, detector, version string) error
		Lowest(ctx context.Context, detector string) (*learn.Lowest, error)
		Trim(ctx context.Context, detector, sha256 string, reviewed int, remove []int) (learn.Version, *detector.Detector, error)
	}
)

// learnRequests are the requests about learning.
type learnRequests struct {
	jobs      jobs
	learned   learned // nil does not learn
	detectors detectors
	acted     acted
	log       *slog.Logger
}

// openLearner lets the service learn, where it has a store and a folder for what comes of
// it.
func (s *Server) openLearner(ctx context.Context) {
	if s.opts.Store == nil || s.opts.LearnDir == "" {
		return
	}
	tool := "mlrbfn"
	if s.opts.Version != "" {
		tool += " " + s.opts.Version
	}
	s.learner = learn.New(learn.Options{
		Store: s.opts.Store, Detectors: s.detectors, Load: s.opts.Detectors.Load, Images: s.opts.Images, Dir: s.opts.LearnDir, Tool: tool, Log: s.log,
	})
	s.learner.Follow(ctx)
}

// every calls do each time that so long has passed, until ctx is cancelled.
func every(ctx context.Context, long time.Duration, do func()) {
	tick := time.NewTicker(long)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// dropFeatures drops the features of all but the newest verdicts and those that were
// reviewed.
func (s *Server) dropFeatures(ctx context.Context) {
	if n, err := s.dropOldFeatures(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("old features were not dropped", "error", err)
	} else if n > 0 {
		s.log.Info("old features were dropped", "verdicts", n)
	}
}

func (s *Server) dropOldFeatures(ctx context.Context) (int, error) {
	oldest, err := s.opts.Store.List(ctx, store.Query{Skip: s.opts.KeepFeatures - 1, Limit: 1})
	if err != nil || len(oldest) == 0 {
		return 0, err
	}
	return s.opts.Store.DropFeatures(ctx, oldest[0].Seq)
}

// errNoLearning is for who asks a service that does not learn.
var errNoLearning = &statusError{http.StatusNotFound, "this service does not learn: it was started without a store, or without a folder for what comes of it"}

// ask is a question about learning.
func (l *learnRequests) ask(do question) question {
	return func(ctx context.Context, r *http.Request) (any, error) {
		if l.learned == nil {
			return nil, errNoLearning
		}
		answer, err := do(ctx, r)
		return answer, asked(err)
	}
}

// of is a question about the learning of the detector that a request means, the first if it
// names none.
func (l *learnRequests) of(do func(ctx context.Context, r *http.Request, name string) (any, error)) question {
	return l.ask(func(ctx context.Context, r *http.Request) (any, error) {
		names := l.detectors.Names()
		name := cmp.Or(r.PathValue("name"), r.URL.Query().Get("detector"), names[0])
		if !slices.Contains(names, name) {
			return nil, refuse(http.StatusNotFound, "there is no detector %q", name)
		}
		return do(ctx, r, name)
	})
}

func (l *learnRequests) whatToLearn(ctx context.Context, _ *http.Request, name string) (any, error) {
	g, err := l.learned.Reviews(ctx, name)
	return map[string]any{"detector": name, "minimum_of_a_new_class": learn.MinNew, "reviews": g}, err
}

func (l *learnRequests) startLearning(ctx context.Context, _ *http.Request, name string) (any, error) {
	job, err := l.jobs.Start(ctx, name)
	if err == nil {
		err = l.acted.did(ctx, "learn", name+", job "+job.ID)
	}
	return withStatus{http.StatusAccepted, job}, err
}

func (l *learnRequests) listJobs(ctx context.Context, _ *http.Request) (any, error) {
	jobs, err := l.jobs.Jobs(ctx)
	return map[string]any{"jobs": jobs}, err
}

func (l *learnRequests) getJob(ctx context.Context, r *http.Request) (any, error) {
	job, err := l.jobs.Job(ctx, r.PathValue("id"))
	return job, err
}

func (l *learnRequests) cancelJob(ctx context.Context, r *http.Request) (any, error) {
	job, err := l.jobs.Cancel(ctx, r.PathValue("id"))
	if err == nil {
		err = l.acted.did(ctx, "cancel", "job "+job.ID)
	}
	return job, err
}

// getCalibration answers with the calibration images that score lowest.
func (l *learnRequests) getCalibration(ctx context.Context, _ *http.Request, name string) (any, error) {
	lowest, err := l.learned.Lowest(ctx, name)
	return lowest, l.reviewFailed(ctx, name, err)
}

// trim makes a version without the calibration images that a person says are of no class.
func (l *learnRequests) trim(ctx context.Context, r *http.Request, name string) (any, error) {
	var said struct {
		SHA256   string `json:"sha256"`
		Reviewed *int   `json:"reviewed"`
		Remove   []int  `json:"remove"`
	}
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 1<<20))
	if err != nil || json.Unmarshal(data, &said) != nil || said.Reviewed == nil {
		return nil, refuse(http.StatusBadRequest, `a review is {"sha256": of the detector, "reviewed": the number of images that were looked at, "remove": [rows]}`)
	}
	v, d, err := l.learned.Trim(ctx, name, said.SHA256, *said.Reviewed, said.Remove)
	if err != nil {
		return nil, l.reviewFailed(ctx, name, err)
	}
	if err := l.acted.did(ctx, "calibration", fmt.Sprintf("%s, version %s, %d of %d images removed", name, v.ID, len(said.Remove), *said.Reviewed)); err != nil {
		return nil, err
	}
	return map[string]any{"detector": name, "version": v.ID, "sha256": v.SHA256, "threshold": number(d.Threshold), "calibration": len(d.CalibrationScores), "review": d.Training.Review}, nil
}

// reviewFailed is the error of a review of calibration images, as clients may know it.
func (l *learnRequests) reviewFailed(ctx context.Context, name string, err error) error {
	about, ok := errors.AsType[*options.Error](err)
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, learn.ErrBusy):
		return err
	case errors.Is(err, learn.ErrOther):
		return refuse(http.StatusConflict, "%s", err)
	case errors.Is(err, detector.ErrTrainingSets) || errors.Is(err, detector.ErrNoCalibration):
		l.log.Warn("the calibration images cannot be shown", "detector", name, "error", err)
		return refuse(http.StatusNotFound, "the calibration images of %s are not to be had here; the log says why", name)
	case ok:
		return refuse(http.StatusUnprocessableEntity, "%s", about.Err)
	}
	return err
}

// original is what requests call the file that the service was started with.
const original = "original"

// versionOf is a version of a detector in JSON.
type versionOf struct {
	Version string     `json:"version"` // the id of its job, or "original"
	Serves  bool       `json:"serves"`
	SHA256  string     `json:"sha256,omitempty"`
	Made    *time.Time `json:"made,omitempty"`
	Learned int        `json:"learned"` // reviewed images that it learned from
	Classes int        `json:"classes,omitempty"`
}

// describe says which versions of a detector there are.
func (l *learnRequests) describe(ctx context.Context, _ *http.Request, name string) (any, error) {
	v, err := l.learned.Versions(ctx, name)
	if err != nil {
		return nil, err
	}
	now := l.detectors.Use(name)
	defer now.Release()
	active := original
	all := []versionOf{}
	for _, one := range v.Versions {
		serves := one.SHA256 == now.SHA256
		if serves {
			active = one.ID
		}
		all = append(all, versionOf{one.ID, serves, one.SHA256, &one.Made, one.Learned, one.Classes})
	}
	all = append(all, versionOf{Version: original, Serves: active == original})
	var previous any
	if len(v.Before) > 0 {
		last := v.Before[len(v.Before)-1]
		last = cmp.Or(last, original)
		previous = last
	}
	return map[string]any{
		"detector": name, "active": active, "previous": previous, "sha256": now.SHA256, "classes": now.Classes, "versions": all,
	}, nil
}

// activate answers POST /v1/detectors/NAME/activate: {"version": ID}, where ID is that of
// a job, "original" or "previous".
func (l *learnRequests) activate(ctx context.Context, r *http.Request, name string) (any, error) {
	var asked struct {
		Version string `json:"version"`
	}
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 1<<16))
	if err != nil || json.Unmarshal(data, &asked) != nil || asked.Version == "" {
		return nil, refuse(http.StatusBadRequest, `a version is chosen by {"version": ID}: the id of a job, "original" or "previous"`)
	}
	version := asked.Version
	if version == original {
		version = ""
	}
	switch err := l.learned.Activate(ctx, name, version); {
	case errors.Is(err, learn.ErrNoResult):
		return nil, err
	case err != nil:
		l.log.Error("a version was not activated", "request", idOf(ctx), "detector", name, "version", asked.Version, "error", err)
		return nil, refuse(http.StatusUnprocessableEntity, "it could not be loaded or failed its test, and the old one stays; the log says why")
	}
	if err := l.acted.did(ctx, "activate", name+", version "+asked.Version); err != nil {
		return nil, err
	}
	return l.describe(ctx, r, name)
}
