package pipeline

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Judge is a detector with its backbone, open: it judges images from anywhere,
// one or many at a time. Any number of goroutines may use it. Close it when none
// does any more.
type Judge struct {
	detector *detector.Detector
	backbone extractor.Backbone
	opts     extractor.Options
}

// OpenJudge opens a detector file and the backbone that its features come from, which it
// finds. For another place of the backbone, and for a file that must be signed, there are
// [NewJudge] and [LoadSignedDetector].
func OpenJudge(ctx context.Context, file string, opts extractor.Options) (*Judge, error) {
	d, err := detector.Load(file)
	if err != nil {
		return nil, err
	}
	return NewJudge(ctx, d, "", opts)
}

// NewJudge opens the backbone of a detector, which lies in the folder model; "" has it
// found. Of opts what would change features does not count.
func NewJudge(ctx context.Context, d *Detector, model string, opts extractor.Options) (*Judge, error) {
	backbone, err := d.OpenBackbone(ctx, model, opts)
	if err != nil {
		return nil, err
	}
	opts.NoHash = true
	return &Judge{d, backbone, opts}, nil
}

// Detector returns the detector that judges. It must not be changed.
func (j *Judge) Detector() *Detector { return j.detector }

// Close lets go of the backbone.
func (j *Judge) Close() error { return j.backbone.Close() }

// Picture is an image to judge, made by [File], [Encoded], [Reader] or [Decoded].
type Picture struct {
	item images.Item
	err  error
}

// File is the image in a file.
func File(path string) Picture {
	return Picture{item: images.Item{Path: path, File: path, Label: -1}}
}

// Encoded is an image in the form of a file, such as the bytes of a JPEG, which
// must not change before it is judged.
func Encoded(data []byte) Picture { return Picture{item: images.EncodedItem("image", data)} }

// mostEncoded bounds what Reader reads, as files are bounded.
const mostEncoded = 1 << 30

// Reader is [Encoded] of all that r gives.
func Reader(r io.Reader) Picture {
	data, err := io.ReadAll(io.LimitReader(r, mostEncoded+1))
	if len(data) > mostEncoded {
		err = fmt.Errorf("the image has more than %d bytes", mostEncoded)
	}
	p := Encoded(data)
	p.err = err
	return p
}

// Decoded is an image that is decoded already. Detectors are trained on what this
// module's decoders give; those of other packages may differ from them, by the
// last bits of a JPEG's pixels for example. Encoded and File leave decoding to
// this module.
func Decoded(img image.Image) Picture { return Picture{item: images.PixelsItem("image", img)} }

// Turned returns a picture of Decoded whose pixels have an EXIF orientation, 1 to 8, that
// has not been applied: a detector whose images were turned upright turns it, too.
func (p Picture) Turned(orientation int) Picture {
	p.item = p.item.Turned(orientation)
	return p
}

// Image judges one image.
func (j *Judge) Image(ctx context.Context, p Picture) (Verdict, error) {
	answers, err := j.Images(ctx, p)
	if err != nil {
		return Verdict{}, err
	}
	return answers[0].Verdict, answers[0].Err
}

// Answer is the result for one image: a verdict, or an error that says why there
// is none.
type Answer struct {
	Verdict
	Err         error
	Explanation *Explanation // of [Judge.Explain]
}

// Images judges many images, which is faster than one after the other. Its
// answers are in their order. An image that cannot be read is an answer with an
// error and disturbs no other.
func (j *Judge) Images(ctx context.Context, pictures ...Picture) ([]Answer, error) {
	answers, _, _, err := j.judge(ctx, false, pictures)
	return answers, err
}

// judge judges pictures and, if asked to, keeps the features of each, and its map, if any.
func (j *Judge) judge(ctx context.Context, keep bool, pictures []Picture) (answers []Answer, rows [][]float32, maps []*WhereMap, err error) {
	answers, rows, maps = make([]Answer, len(pictures)), make([][]float32, len(pictures)), make([]*WhereMap, len(pictures))
	var items []images.Item
	var at []int // which picture an item is
	for i, p := range pictures {
		if p.err != nil {
			answers[i].Err = p.err
			continue
		}
		items, at = append(items, p.item), append(at, i)
	}
	if len(items) == 0 {
		return answers, rows, maps, ctx.Err()
	}
	b := newBatcher(ctx, j.detector, func(_ context.Context, r extractor.Row, v Verdict) error {
		answers[at[r.Index]] = Answer{Verdict: v, Err: r.Err}
		if keep {
			rows[at[r.Index]], maps[at[r.Index]] = r.Features, detector.MapOf(r)
		}
		return nil
	})
	err = b.wait(func(ctx context.Context) error {
		_, err := j.backbone.Extract(ctx, images.Of(items...), j.opts, func(r extractor.Row) error { return b.add(ctx, r) })
		return errors.Join(err, b.flush(ctx))
	})
	if err != nil {
		return nil, nil, nil, err
	}
	return answers, rows, maps, nil
}
