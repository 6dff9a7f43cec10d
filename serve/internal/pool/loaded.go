// Package pool keeps detectors open for a service: it loads them with their
// backbones, tests them, judges images by them from many goroutines, and replaces one
// by what its file has become, between two images. It knows nothing of HTTP.
package pool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// ErrNoImages is the error of images for a detector whose backbone is not known, as
// its training features were made elsewhere. It judges features.
var ErrNoImages = errors.New("this detector judges features, not images: its backbone is not known")

// ImageError says why an image has no verdict. It is the image's fault.
type ImageError struct{ Err error }

func (e *ImageError) Error() string { return e.Err.Error() }
func (e *ImageError) Unwrap() error { return e.Err }

// Loaded is one detector, open. It never changes: another file is another Loaded.
type Loaded struct {
	*detector.Detector        // which must not be changed
	Name               string // by which requests call it
	SHA256             string // of its file, in hex
	Since              time.Time
	Coming             atomic.Int64 // images for it that wait to run; the server's to count

	set      *Set
	backbone *backbone // nil where it is not known
	judges   sync.Pool // of func([]float32) []detector.Verdict
	users    int       // and whether it is still in its place; both guarded by set.mu
	replaced bool

	explaining sync.Once
	explainer  chan opened // of one, which is put back; nil until the first explanation
}

// opened is an explainer, or why there is none.
type opened struct {
	*detector.Explainer
	err error
}

// Version is short for SHA256.
func (l *Loaded) Version() string { return l.SHA256[:12] }

// Images tells whether it judges images, and not only features.
func (l *Loaded) Images() bool { return l.backbone != nil }

// SharesFeatures tells whether two detectors read the same features of an image.
func (l *Loaded) SharesFeatures(other *Loaded) bool { return l.backbone == other.backbone }

// FlagsNothing tells whether it has no threshold: it had too few calibration images.
func (l *Loaded) FlagsNothing() bool {
	for class := range l.Classes {
		if !math.IsInf(l.ThresholdOf(class), -1) {
			return false
		}
	}
	return true
}

// Cost is about what it takes to decode an image.
func (l *Loaded) Cost(data []byte) preprocess.Cost {
	return preprocess.CostOf(data, cmp.Or(l.set.opts.Backbone.MaxPixels, preprocess.DefaultMaxPixels))
}

// Features returns the features of an encoded image, which must not change meanwhile.
// What is wrong with the image is an *ImageError.
func (l *Loaded) Features(ctx context.Context, data []byte) ([]float32, error) {
	if l.backbone == nil {
		return nil, ErrNoImages
	}
	var row []float32
	var unread error
	items := []images.Item{images.EncodedItem("image", data)}
	opts := l.set.opts.run()
	// A file that takes far longer than others of its kind and size is made to.
	opts.ImageTimeout = min(opts.ImageTimeout, 2*time.Second+10*l.Cost(data).Time)
	_, err := l.backbone.Extract(ctx, images.Of(items...), opts, func(r extractor.Row) error {
		if r.Err != nil {
			unread = &ImageError{r.Err}
		}
		row = slices.Clone(r.Features)
		return nil
	})
	return row, errors.Join(err, unread)
}

// Judge judges rows of features [n, Dim].
func (l *Loaded) Judge(ctx context.Context, rows []float32) ([]detector.Verdict, error) {
	judge := l.judges.Get().(func([]float32) []detector.Verdict)
	defer l.judges.Put(judge)
	var verdicts []detector.Verdict
	for block := range slices.Chunk(rows, detector.VerdictRows*l.Dim()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		verdicts = append(verdicts, judge(block)...)
	}
	return verdicts, nil
}

// Explainer returns what explains verdicts, until the detector is released. The first
// call opens the training features, for all calls; where they are not found, no training
// images are named.
func (l *Loaded) Explainer(ctx context.Context) (*detector.Explainer, error) {
	l.explaining.Do(func() {
		l.explainer = make(chan opened, 1)
		l.Retain()
		go func() { // which goes on without this call
			defer l.Release()
			e, err := detector.NewExplainer(context.WithoutCancel(ctx), l.Detector, detector.ExplainOptions{})
			if err == nil {
				for _, note := range e.Notes() {
					l.set.opts.Log.Warn("explanations lack something", "detector", l.Name, "note", note)
				}
			}
			l.explainer <- opened{e, err}
		}()
	})
	select {
	case e := <-l.explainer:
		l.explainer <- e
		return e.Explainer, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Used is a detector that somebody uses until Release, with what runs beside it or nil.
type Used struct {
	*Loaded
	Shadow *Loaded
}

// Retain is another use of both. It must be released, too.
func (u *Used) Retain() {
	u.Loaded.Retain()
	u.Shadow.Retain()
}

// Release ends the use of both.
func (u *Used) Release() {
	u.Loaded.Release()
	u.Shadow.Release()
}

// Retain is another use of a detector that the caller uses. It must be released, too.
// A nil one, such as a shadow that there is not, has none.
func (l *Loaded) Retain() {
	if l == nil {
		return
	}
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	l.users++
}

// Release ends a use.
func (l *Loaded) Release() {
	if l == nil {
		return
	}
	l.set.mu.Lock()
	l.users--
	closing := l.replaced && l.users == 0
	l.set.mu.Unlock()
	if closing {
		l.close()
	}
}

// close lets go of the backbone and of the training features.
func (l *Loaded) close() {
	if l.explainer != nil {
		if e := <-l.explainer; e.err == nil {
			if err := e.Close(); err != nil {
				l.set.opts.Log.Error("closing training features", "detector", l.Name, "error", err)
			}
		}
	}
	if l.backbone != nil {
		if err := l.set.drop(l.backbone); err != nil {
			l.set.opts.Log.Error("closing a model", "detector", l.Name, "error", err)
		}
	}
}

// test refuses a detector that would not work: one whose calibration scores cannot be,
// or whose verdicts on a fixed image cannot be or differ.
func (l *Loaded) test(ctx context.Context) error {
	if !slices.IsSorted(l.CalibrationScores) || slices.ContainsFunc(l.CalibrationScores, math.IsNaN) {
		return errors.New("its calibration scores are not in order")
	}
	row := make([]float32, l.Dim())
	if l.Images() {
		features, err := l.Features(ctx, testImage())
		if _, other := errors.AsType[*ImageError](err); err != nil && !other { // one of pixels may take one size only
			return err
		} else if err == nil {
			row = features
		}
	}
	var verdicts []detector.Verdict
	for range 2 {
		some, err := l.Judge(ctx, row)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, some...)
	}
	switch v := verdicts[0]; {
	case math.IsNaN(v.Score), !(v.Confidence >= 0 && v.Confidence <= 1), !(v.PValue > 0 && v.PValue <= 1), !slices.Contains(l.Classes, v.Class):
		return fmt.Errorf("its verdict on a test image cannot be: %+v", v)
	case v != verdicts[1]:
		return fmt.Errorf("its verdicts on one test image differ: %+v and %+v", v, verdicts[1])
	}
	return nil
}

// testImage is a picture with shades and edges, as a PNG.
var testImage = sync.OnceValue(func() []byte {
	const side = 64
	img := image.NewNRGBA(image.Rect(0, 0, side, side))
	for y := range side {
		for x := range side {
			img.Set(x, y, color.NRGBA{uint8(4 * x), uint8(4 * y), uint8(255 * (x / 8 % 2)), 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
})
