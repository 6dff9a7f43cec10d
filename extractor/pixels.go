package extractor

import (
	"context"
	"errors"
	"fmt"
	"image"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// PixelSpec returns the preprocessing of [Pixels] for the images of a listing. Where the
// options leave their size as it is, the first that can be read tells it.
//
// It returns an error where the options cannot be, where no image can be read,
// or ctx is cancelled.
func (o Options) PixelSpec(ctx context.Context, l *images.Listing) (*preprocess.Spec, error) {
	if !slices.Contains([]string{"", "grey", "rgb"}, o.Channels) {
		return nil, options.Errorf("Channels", "unknown channels %q; they are grey or rgb", o.Channels)
	}
	s := &preprocess.Spec{
		Grey: o.Channels == "grey" || o.Channels == "" && l.Grey, Resize: preprocess.Squash, ResizeHeight: o.Height, ResizeWidth: o.Width, Filter: preprocess.Bicubic,
		Height: o.Height, Width: o.Width, Rounding: preprocess.Floor, Scale: 1. / 255,
	}
	if o.Width == 0 && o.Height == 0 {
		s.Resize, s.Filter = preprocess.Exact, ""
		size, err := firstSize(ctx, l.Items, o.Reading)
		if err != nil {
			return nil, err
		}
		s.Width, s.Height = size.X, size.Y
	}
	for _, v := range []struct {
		name   string
		values []float64
		usual  float64
		to     *[3]float64
	}{{"mean", o.Mean, 0, &s.Mean}, {"std", o.Std, 1, &s.Std}} {
		switch len(v.values) {
		case 0:
			*v.to = [3]float64{v.usual, v.usual, v.usual}
		case 1:
			*v.to = [3]float64{v.values[0], v.values[0], v.values[0]}
		case s.Channels():
			*v.to = [3]float64(v.values)
		default:
			return nil, fmt.Errorf("%d values of %s for %d channel(s): one, or one for each", len(v.values), v.name, s.Channels())
		}
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("pixels: %w", err)
	}
	return s, nil
}

// firstSize returns the width and height of the first image that can be read.
func firstSize(ctx context.Context, items []images.Item, reading preprocess.Reading) (image.Point, error) {
	var first error
	for _, item := range items {
		data, err := item.Read(nil)
		if err == nil {
			var img *image.NRGBA
			if img, err = item.Decode(ctx, data, preprocess.DecodeOptions{Reading: reading}); err == nil {
				return img.Rect.Size(), nil
			}
		}
		if ctx.Err() != nil {
			return image.Point{}, ctx.Err()
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", item.Path, err)
		}
	}
	if first == nil {
		first = images.ErrNoImages
	}
	return image.Point{}, fmt.Errorf("no image could be read to find out the size: %w", first)
}

// Pixels is the model that is none: an image's features are its pixels, channel
// by channel and row by row, as PyTorch's ToTensor and Flatten order them.
type Pixels struct {
	spec        *preprocess.Spec
	reading     preprocess.Reading
	fingerprint string
}

// PixelsName stands for [Pixels] where otherwise a model's folder, and its
// output, is named.
const PixelsName = "pixels"

// NewPixels returns the model with the given preprocessing, which
// [Options.PixelSpec] makes or a feature set says.
func NewPixels(spec *preprocess.Spec, reading preprocess.Reading) (*Pixels, error) {
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("pixels: %w", err)
	}
	fingerprint, err := recipe{Output: PixelsName, Preprocess: spec, EXIF: reading.ApplyEXIF, Scale16: reading.Scale16, Version: preprocess.Version}.fingerprint()
	return &Pixels{spec, reading, fingerprint}, err
}

// Extract is [Model.Extract].
func (p *Pixels) Extract(ctx context.Context, in images.Stream, opts Options, sink func(Row) error) (Stats, error) {
	return extract(ctx, p, in, opts, sink)
}

// Dim is the number of values of an image: channels × height × width.
func (p *Pixels) Dim() int { return p.spec.Channels() * p.spec.Height * p.spec.Width }

// LogitsDim is 0: pixels come with no classifier.
func (p *Pixels) LogitsDim() int { return 0 }

// Fingerprint is that of [Model.Fingerprint].
func (p *Pixels) Fingerprint() string { return p.fingerprint }

// Close does nothing.
func (p *Pixels) Close() error { return nil }

// Batch returns batch: any number will do.
func (p *Pixels) Batch(batch int) int { return batch }

func (p *Pixels) newRunner(batch int) (runner, error) {
	if err := checkBatch(batch, p.Dim(), maxBatch); err != nil {
		return nil, err
	}
	return &pixelRunner{p.Dim(), make([]float32, batch*p.Dim())}, nil
}

func (p *Pixels) prepare(dst []float32, img *image.NRGBA) error {
	err := p.spec.Tensor(dst, img, preprocess.NCHW)
	if errors.Is(err, preprocess.ErrSize) {
		err = options.Errorf("Width", "%w; where it is set, images of any size are resized", err)
	}
	return err
}

func (p *Pixels) prepareCropped(dst []float32, img *preprocess.Cropped) error {
	return p.spec.Normalise(dst, img, preprocess.NCHW)
}

func (p *Pixels) decoding() preprocess.DecodeOptions {
	return preprocess.DecodeOptions{Reading: p.reading, For: p.spec}
}

// Pixels have no session, and nothing to choose.
func (p *Pixels) threads() int                   { return 0 }
func (p *Pixels) freeThreads() bool              { return false }
func (p *Pixels) withThreads(int) (model, error) { return p, nil }
func (p *Pixels) planned() string                { return "" }
func (p *Pixels) batchSizes() []int              { return nil }
func (p *Pixels) exact() bool                    { return true }

// pixelRunner has nothing to run: what goes in comes out.
type pixelRunner struct {
	dim    int
	values []float32
}

func (r *pixelRunner) Input(i int) []float32                { return r.values[i*r.dim : (i+1)*r.dim : (i+1)*r.dim] }
func (r *pixelRunner) Run(ctx context.Context, _ int) error { return ctx.Err() }
func (r *pixelRunner) took() time.Duration                  { return 0 }
func (r *pixelRunner) Features(i int) []float32             { return r.Input(i) }
func (r *pixelRunner) Logits(int) []float32                 { return nil }
func (r *pixelRunner) Close() error                         { return nil }
