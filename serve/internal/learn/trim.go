package learn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file sets the threshold of a detector anew, where a person has looked through its
// calibration images.

// Lowest are the calibration images of the detector that serves, as a person should look
// at them.
type Lowest struct {
	Detector    string                   `json:"detector"`
	SHA256      string                   `json:"sha256"`      // of its file
	Calibration int                      `json:"calibration"` // images
	Threshold   *float64                 `json:"threshold"`   // null where nothing is flagged
	Pictures    bool                     `json:"pictures"`    // rows are those of the training images
	Images      []training.ReviewedImage `json:"images"`      // the lowest p-values first
}

// ErrOther says that another detector serves than the one whose images were looked at.
var ErrOther = errors.New("another version of the detector serves by now: look at its images")

// Lowest returns those of a detector: some more than the threshold needs.
func (l *Learner) Lowest(ctx context.Context, name string) (r *Lowest, err error) {
	err = l.calibrated(ctx, name, func(d *detector.Detector, sha256 string, c *detector.Calibration, images []detector.CalibrationImage) error {
		r = &Lowest{Detector: name, SHA256: sha256, Calibration: len(images), Pictures: len(d.Splits["calibration"]) > 0}
		if len(images) > 0 && detector.Rank(len(images), d.TargetTPR) > 0 {
			r.Threshold = &d.Threshold
		}
		r.Images, err = training.ReviewList(c, images, c.Some())
		return err
	})
	return r, err
}

// Trim makes a version without the calibration images with some rows, of the first that
// Lowest gave of the file with a SHA-256.
func (l *Learner) Trim(ctx context.Context, name, sha256 string, reviewed int, remove []int) (version Version, d *detector.Detector, err error) {
	l.mu.Lock()
	busy := l.stop != nil
	l.mu.Unlock()
	if busy {
		return version, nil, ErrBusy // a job tidies up folders
	}
	err = l.calibrated(ctx, name, func(now *detector.Detector, of string, c *detector.Calibration, images []detector.CalibrationImage) error {
		if of != sha256 {
			return ErrOther
		}
		if err := c.Trim(ctx, images, reviewed, remove); err != nil {
			return err
		}
		d = now
		id := store.NewID()
		file := filepath.Join(l.folder(name, id), DetectorFile)
		err := os.MkdirAll(filepath.Dir(file), 0o700)
		if err == nil {
			err = d.Save(file)
		}
		r := Learned{Trained: time.Now(), Classes: d.Classes}
		if err == nil {
			r.SHA256, err = disk.SHA256(file, disk.Tensors)
		}
		if err == nil {
			err = l.add(ctx, Job{ID: id, Detector: name}, &r)
		}
		if err != nil {
			return errors.Join(err, os.RemoveAll(filepath.Dir(file)))
		}
		version = Version{id, r.Trained.UTC(), r.SHA256, 0, len(d.Classes)}
		return nil
	})
	return version, d, err
}

// calibrated calls do with a copy of the detector that serves, and its calibration images.
func (l *Learner) calibrated(ctx context.Context, name string, do func(*detector.Detector, string, *detector.Calibration, []detector.CalibrationImage) error) (err error) {
	now := l.opts.Detectors.Use(name)
	if now == nil {
		return ErrNoResult
	}
	defer now.Release()
	d := *now.Detector
	data, err := d.OpenTraining(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	c, err := d.OpenCalibration(ctx, data, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	images, err := c.Images(ctx)
	if err != nil {
		return err
	}
	return do(&d, now.SHA256, c, images)
}
