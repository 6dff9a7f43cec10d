// Package check tells what a model does to images, and whether that is right, by
// running a few through it: the mistakes that nothing reports, as features come
// out all the same, and are worth little. A normalisation that is another
// model's, a quantisation that ruined the weights, an output that says nothing of
// the image.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// DefaultImages is how many images tell most of what a check can find.
const DefaultImages = 48

// Options says what to check a model with.
type Options struct {
	// Images are looked at where they can be read, such as a [Sample] of
	// DefaultImages; without any nothing is said of features.
	Images []images.Item
	// Against, unless nil, is a model that should give the same features, such
	// as the one that this was quantised from.
	Against *extractor.Model
	// Decode is how images are read.
	Decode preprocess.DecodeOptions
}

// Report lists the findings of a check.
type Report struct {
	// Images are those that could be read, Failed the others.
	Images []Image  `json:"images"`
	Failed []Failed `json:"failed,omitempty"`
	// Oriented counts the images with an EXIF orientation other than upright,
	// Enlarged those that are smaller than what the model reads.
	Oriented int `json:"oriented"`
	Enlarged int `json:"enlarged"`
	// Inputs describe the channels of the tensors that the model got.
	Inputs []Channel `json:"channels"`
	// Cosine describes the cosines between the features of all pairs of
	// images.
	Cosine Range `json:"cosine"`
	// Constant counts the features that are the same for all images.
	Constant int `json:"constant_features"`
	// Normalisations are the one that the model's configuration names, first, and
	// others that are common.
	Normalisations []Normalisation `json:"normalisations"`
	// Against compares with the other model; nil where there is none.
	Against *Agreement `json:"against,omitempty"`
	// Warnings say what is probably wrong and what to do.
	Warnings []string `json:"warnings"`

	pictures []*preprocess.Cropped
	seen     []*image.NRGBA // what their tensors show
}

// Image describes the features of one image.
type Image struct {
	Path    string  `json:"path"`
	Norm    float64 `json:"norm"`              // Euclidean, of the features; 0 where it is not finite
	Nearest string  `json:"nearest,omitempty"` // the other image with the highest cosine
	Cosine  float64 `json:"cosine"`            // of the two
}

// Failed is an image that could not be used, and why.
type Failed struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Range describes numbers.
type Range struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

// Channel describes the values of one channel of the inputs.
type Channel struct {
	Range
	Std float64 `json:"std"`
}

// Normalisation is a way to normalise pixels and how the model takes to it.
type Normalisation struct {
	Name  string     `json:"name"`
	Scale float64    `json:"scale"`
	Mean  [3]float64 `json:"mean"`
	Std   [3]float64 `json:"std"`
	// Mirror is the mean cosine between the features of an image and those of
	// its mirror image, both less the mean feature. A model sees little
	// difference between the two where it gets what it was trained on.
	Mirror float64 `json:"mirror"`
	// Margin is by how much, in the mean, that exceeds the cosine with the nearest
	// of the other images' mirror images.
	Margin float64 `json:"margin"`

	each []float64 // Mirror of every image
}

// Agreement compares the features of two models.
type Agreement struct {
	Model  string `json:"model"`
	Cosine Range  `json:"cosine"` // between the two models' features of an image
	// SameNearest is the share of images that have the same nearest image.
	SameNearest float64 `json:"same_nearest"`
}

// Run checks a model. It returns an error where the context ends, or the model
// cannot run at all.
func Run(ctx context.Context, m *extractor.Model, opts Options) (*Report, error) {
	r := &Report{Warnings: []string{}}
	deep := 0                        // images of 16-bit grey
	var others []*preprocess.Cropped // for the other model
	for _, item := range opts.Images {
		img, orientation, err := item.Image(ctx, opts.Decode)
		var crop *preprocess.Cropped
		if err == nil {
			crop, err = m.Spec.Crop(img)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			r.Failed = append(r.Failed, Failed{item.Path, options.Text(err)})
			continue
		}
		if orientation != 1 {
			r.Oriented++
		}
		if data, err := item.Read(nil); err == nil && item.Grey16(data) {
			deep++
		}
		if m.Spec.Enlarges(img.Rect.Dx(), img.Rect.Dy()) {
			r.Enlarged++
		}
		r.Images, r.pictures = append(r.Images, Image{Path: item.Path}), append(r.pictures, crop)
		if opts.Against != nil {
			if crop, err = opts.Against.Spec.Crop(img); err != nil {
				return nil, err
			}
			others = append(others, crop)
		}
	}
	if len(r.Failed) > 0 {
		r.warn("%d of %d images could not be read; the first: %s: %s", len(r.Failed), len(opts.Images), r.Failed[0].Path, r.Failed[0].Error)
	}
	if len(r.Images) == 0 {
		return r, nil
	}
	if deep > 0 && !opts.Decode.Scale16 {
		r.warn("%d of %d images are of 16-bit grey, which is clipped at 255: the model sees most of it as white; ‹Scale16› scales it", deep, len(r.Images))
	}
	if r.Oriented > 0 && !opts.Decode.ApplyEXIF {
		have := "have"
		if r.Oriented == 1 {
			have = "has"
		}
		r.warn("%d of %d images %s an EXIF orientation, which is ignored: the model sees them turned; ‹ApplyEXIF apply› turns them upright", r.Oriented, len(r.Images), have)
	}
	s, err := newSeer(m)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	features, err := r.features(ctx, s)
	if err != nil || features == nil {
		return r, err
	}
	if err := r.normalisations(ctx, s); err != nil {
		return nil, err
	}
	if opts.Against != nil {
		return r, r.compare(ctx, opts.Against, others, features)
	}
	return r, nil
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// seer shows pictures to a model.
type seer struct {
	*extractor.Runner
	model *extractor.Model
}

func newSeer(m *extractor.Model) (seer, error) {
	runner, err := m.NewRunner(1)
	return seer{runner, m}, err
}

// see returns the features of a picture, normalised as spec says, in float64.
func (s seer) see(ctx context.Context, spec preprocess.Spec, picture *preprocess.Cropped) ([]float64, error) {
	if err := spec.Normalise(s.Input(0), picture, s.model.Layout()); err != nil {
		return nil, err
	}
	if err := s.Run(ctx, 1); err != nil {
		return nil, err
	}
	features := make([]float64, s.model.Dim())
	for i, v := range s.Features(0) {
		features[i] = float64(v)
	}
	return features, nil
}

// seeAll is see for several pictures.
func (s seer) seeAll(ctx context.Context, spec preprocess.Spec, pictures []*preprocess.Cropped) (features [][]float64, err error) {
	for _, p := range pictures {
		f, err := s.see(ctx, spec, p)
		if err != nil {
			return nil, err
		}
		features = append(features, f)
	}
	return features, nil
}

// features looks at the features of the images, which it returns unless they
// are useless.
func (r *Report) features(ctx context.Context, s seer) ([][]float64, error) {
	features := make([][]float64, len(r.pictures))
	moments := make([]moments, 3)
	for i, p := range r.pictures {
		var err error
		if features[i], err = s.see(ctx, *s.model.Spec, p); err != nil {
			return nil, err
		}
		spec, shown := s.model.Spec, image.NewNRGBA(p.Rect)
		for at, v := range s.Input(0) {
			pixel, channel := at/3, at%3
			if s.model.Layout() == preprocess.NCHW {
				pixel, channel = at%(spec.Width*spec.Height), at/(spec.Width*spec.Height)
			}
			moments[channel].add(float64(v))
			level := (float64(v)*spec.Std[channel] + spec.Mean[channel]) / spec.Scale
			shown.Pix[4*pixel+channel], shown.Pix[4*pixel+3] = uint8(math.Round(min(max(level, 0), 255))), 255
		}
		r.seen = append(r.seen, shown)
		if norm := math.Sqrt(dot(features[i], features[i])); finite([]float64{norm}) {
			r.Images[i].Norm = norm
		}
	}
	for _, m := range moments {
		r.Inputs = append(r.Inputs, m.channel())
	}
	for i, f := range features {
		if !finite(f) {
			r.warn("features of %s are not finite: the model overflows (half precision? another normalisation?) or its weights are damaged", r.Images[i].Path)
			return nil, nil
		}
	}
	if again, err := s.see(ctx, *s.model.Spec, r.pictures[0]); err != nil {
		return nil, err
	} else if c := cosine(features[0], again); c < repeatedCosine {
		r.warn("the same image gives other features each time (cosine %.4f): the model was exported as it is in training, with dropout; export it again after model.eval()", c)
		return nil, nil
	}
	n := len(features)
	if n == 1 {
		r.warn("one image tells little; give some dozens, of different things")
		return features, nil
	}
	r.Constant = constant(features)
	cosines := pairs(features, features)
	var off []float64
	for i := range n {
		cosines[i][i] = math.Inf(-1)
		at := linalg.ArgMax(cosines[i])
		r.Images[i].Nearest, r.Images[i].Cosine = r.Images[at].Path, cosines[i][at]
		for j := range n {
			if i != j {
				off = append(off, cosines[i][j])
			}
		}
	}
	r.Cosine = rangeOf(off)
	switch d := s.model.Dim(); {
	case r.Constant == d:
		r.warn("all images have the same features: the output %s does not depend on the image; choose another output", s.model.Output())
		return nil, nil
	case r.Cosine.Mean > collapsedCosine:
		r.warn("the features are nearly the same for all images (mean cosine %.4f): another output or pooling may say more, or the images do not differ", r.Cosine.Mean)
	}
	if d := s.model.Dim(); r.Constant > d/2 {
		r.warn("%d of %d features are the same for all images", r.Constant, d)
	}
	return features, nil
}

const (
	// collapsedCosine is above all cosines of useful features, even where
	// the images are alike.
	collapsedCosine = 0.99
	// repeatedCosine is below the cosine of two runs on an image, whatever the order in which
	// a device adds.
	repeatedCosine = 0.9999
	// sameCosine is below the cosines that quantisation keeps where it works: float16 has .99999,
	// int8 about .99.
	sameCosine = 0.98
)

// Common are the normalisations that most published models have one of.
var Common = []Normalisation{
	{Name: "ImageNet", Scale: 1. / 255, Mean: [3]float64{0.485, 0.456, 0.406}, Std: [3]float64{0.229, 0.224, 0.225}},
	{Name: "from −1 to 1", Scale: 1. / 255, Mean: [3]float64{0.5, 0.5, 0.5}, Std: [3]float64{0.5, 0.5, 0.5}},
	{Name: "CLIP", Scale: 1. / 255, Mean: [3]float64{0.48145466, 0.4578275, 0.40821073}, Std: [3]float64{0.26862954, 0.26130258, 0.27577711}},
	{Name: "from 0 to 1", Scale: 1. / 255, Std: [3]float64{1, 1, 1}},
	{Name: "from 0 to 255", Scale: 1, Std: [3]float64{1, 1, 1}},
}

// normalisations tries other normalisations than the model's own. The model
// itself cannot tell what it was trained with, but it knows an image in the mirror
// best where it gets what it knows.
func (r *Report) normalisations(ctx context.Context, s seer) error {
	if len(r.pictures) < 8 {
		return nil // too few to tell
	}
	mirrored := lists.Map(r.pictures, mirror)
	spec := *s.model.Spec
	own := Normalisation{Name: "the configuration's", Scale: spec.Scale, Mean: spec.Mean, Std: spec.Std}
	for i, try := range append([]Normalisation{own}, Common...) {
		spec.Scale, spec.Mean, spec.Std = try.Scale, try.Mean, try.Std
		if i > 0 && alike(own, try) {
			continue
		}
		features, err := s.seeAll(ctx, spec, r.pictures)
		if err != nil {
			return err
		}
		others, err := s.seeAll(ctx, spec, mirrored)
		if err != nil {
			return err
		}
		mean := meanOf(features)
		cosines := pairs(less(features, mean), less(others, mean))
		for i, row := range cosines {
			try.each = append(try.each, row[i])
			row[i] = math.Inf(-1)
			try.Margin += (try.each[i] - row[linalg.ArgMax(row)]) / float64(len(cosines))
		}
		try.Mirror = stat.Mean(try.each, nil)
		r.Normalisations = append(r.Normalisations, try)
	}
	var best *Normalisation
	for i := range r.Normalisations {
		if n := &r.Normalisations[i]; i > 0 && n.fitsBetter(r.Normalisations[0]) && (best == nil || n.Mirror > best.Mirror) {
			best = n
		}
	}
	if best != nil {
		r.warn("the normalisation does not seem to be the model's: with mean %v and std %v of values %s it knows mirror images better (cosine %.3f) than with the configuration's (%.3f)",
			best.Mean, best.Std, scaleName(best.Scale), best.Mirror, r.Normalisations[0].Mirror)
	}
	return nil
}

// fitsBetter tells whether the model likes n clearly better: mirror images are
// nearer by a tenth of what they could be, by enough to see, beyond chance, and
// not because all images look more alike.
func (n Normalisation) fitsBetter(than Normalisation) bool {
	differences := make([]float64, len(n.each))
	for i, v := range n.each {
		differences[i] = v - than.each[i]
	}
	mean, std := stat.MeanStdDev(differences, nil)
	return n.Margin > 0.95*than.Margin && mean > max(0.1*(1-than.Mirror), 0.002) && mean > 3*std/math.Sqrt(float64(len(differences)))
}

func scaleName(scale float64) string {
	if scale == 1 {
		return "from 0 to 255"
	}
	return fmt.Sprintf("times %.6g", scale)
}

// alike tells whether two normalisations differ by less than the models notice.
func alike(a, b Normalisation) bool {
	for c := range 3 {
		// Where black and white come to lie.
		for _, x := range []float64{0, 255} {
			if math.Abs((x*a.Scale-a.Mean[c])/a.Std[c]-(x*b.Scale-b.Mean[c])/b.Std[c]) > 0.05 {
				return false
			}
		}
	}
	return true
}

// compare compares features with what another model makes of the same images.
func (r *Report) compare(ctx context.Context, other *extractor.Model, pictures []*preprocess.Cropped, features [][]float64) error {
	s, err := newSeer(other)
	if err != nil {
		return err
	}
	defer s.Close()
	if a, b := len(features[0]), other.Dim(); a != b {
		return fmt.Errorf("the models have %d and %d features, which cannot be compared", a, b)
	}
	theirs, err := s.seeAll(ctx, *other.Spec, pictures)
	if err != nil {
		return err
	}
	r.Against = &Agreement{Model: other.File}
	var cosines []float64
	for i, f := range features {
		cosines = append(cosines, cosine(f, theirs[i]))
	}
	r.Against.Cosine = rangeOf(cosines)
	ours, others := pairs(features, features), pairs(theirs, theirs)
	for i := range features {
		ours[i][i], others[i][i] = math.Inf(-1), math.Inf(-1)
		if linalg.ArgMax(ours[i]) == linalg.ArgMax(others[i]) {
			r.Against.SameNearest += 1 / float64(len(features))
		}
	}
	if c := r.Against.Cosine; !(c.Mean >= sameCosine) {
		r.warn("the model disagrees with %s: the mean cosine between their features of an image is %.3f, the lowest %.3f, where a sound copy or quantisation keeps %.2f", other.File, c.Mean, c.Min, sameCosine)
	}
	return nil
}

// ErrNoPicture is returned where there is no picture to show.
var ErrNoPicture = errors.New("no image could be read")

// Picture returns the images as the model saw them, side by side, up to
// sixteen: the tensors, with the normalisation undone.
func (r *Report) Picture() (*image.NRGBA, error) {
	shown := r.seen[:min(16, len(r.seen))]
	if len(shown) == 0 {
		return nil, ErrNoPicture
	}
	columns := int(math.Ceil(math.Sqrt(float64(len(shown)))))
	rows := (len(shown) + columns - 1) / columns
	w, h := shown[0].Rect.Dx(), shown[0].Rect.Dy()
	sheet := image.NewNRGBA(image.Rect(0, 0, columns*w, rows*h))
	for i, p := range shown {
		for y := range h {
			copy(sheet.Pix[sheet.PixOffset(i%columns*w, i/columns*h+y):][:4*w], p.Pix[y*p.Stride:])
		}
	}
	return sheet, nil
}

// mirror returns a picture with left and right exchanged.
func mirror(p *preprocess.Cropped) *preprocess.Cropped {
	m := &preprocess.Cropped{Pix: make([]uint8, len(p.Pix)), Stride: p.Stride, Rect: p.Rect}
	for at := 0; at < len(p.Pix); at += 4 {
		row, x := at/p.Stride*p.Stride, at%p.Stride
		copy(m.Pix[row+p.Stride-4-x:][:4], p.Pix[at:])
	}
	return m
}

// moments gathers what describes a channel.
type moments struct{ n, sum, squares, min, max float64 }

func (m *moments) add(v float64) {
	if m.n == 0 {
		m.min, m.max = v, v
	}
	m.n, m.sum, m.squares = m.n+1, m.sum+v, m.squares+v*v
	m.min, m.max = min(m.min, v), max(m.max, v)
}

func (m *moments) channel() Channel {
	mean := m.sum / m.n
	return Channel{Range{m.min, mean, m.max}, math.Sqrt(max(0, m.squares/m.n-mean*mean))}
}

func rangeOf(values []float64) Range {
	return Range{slices.Min(values), stat.Mean(values, nil), slices.Max(values)}
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// cosine is 0 where a vector is.
func cosine(a, b []float64) float64 {
	if c := dot(a, b) / math.Sqrt(dot(a, a)*dot(b, b)); !math.IsNaN(c) {
		return c
	}
	return 0
}

// pairs returns the cosines between all rows of a and b.
func pairs(a, b [][]float64) [][]float64 {
	cosines := make([][]float64, len(a))
	for i, x := range a {
		for _, y := range b {
			cosines[i] = append(cosines[i], cosine(x, y))
		}
	}
	return cosines
}

func meanOf(rows [][]float64) []float64 {
	mean := make([]float64, len(rows[0]))
	for _, row := range rows {
		for i, v := range row {
			mean[i] += v / float64(len(rows))
		}
	}
	return mean
}

func less(rows [][]float64, mean []float64) [][]float64 {
	out := make([][]float64, len(rows))
	for i, row := range rows {
		out[i] = make([]float64, len(row))
		for j, v := range row {
			out[i][j] = v - mean[j]
		}
	}
	return out
}

// constant counts the columns that do not vary.
func constant(rows [][]float64) (n int) {
	for j, first := range rows[0] {
		if !slices.ContainsFunc(rows, func(row []float64) bool { return row[j] != first }) {
			n++
		}
	}
	return n
}

func finite(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// Sample returns up to n items, evenly spaced over all, but for one of each class
// that would be missed so, as long as there is room. Classes take turns, so that
// the first of the sample show as many of them as they can.
func Sample(items []images.Item, n int) []images.Item {
	n = min(n, len(items))
	chosen, all := map[int][]images.Item{}, map[int][]images.Item{}
	for _, item := range items {
		all[item.Label] = append(all[item.Label], item)
	}
	for i := range n {
		item := items[i*len(items)/n]
		chosen[item.Label] = append(chosen[item.Label], item)
	}
	labels := slices.Sorted(maps.Keys(all))
	for _, label := range labels {
		if len(chosen[label]) > 0 {
			continue
		}
		most := slices.MaxFunc(labels, func(a, b int) int { return cmp.Compare(len(chosen[a]), len(chosen[b])) })
		if last := len(chosen[most]) - 1; last > 0 {
			chosen[most], chosen[label] = chosen[most][:last], all[label][:1]
		}
	}
	some := make([]images.Item, 0, n)
	for i := 0; len(some) < n; i++ {
		for _, label := range labels {
			if i < len(chosen[label]) {
				some = append(some, chosen[label][i])
			}
		}
	}
	return some
}
