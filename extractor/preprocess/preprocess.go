// Package preprocess turns image files into the tensors that a vision backbone
// expects, with the arithmetic of the Python libraries that the backbones were
// trained with: Pillow for decoding and resizing, and for the steps around
// them Hugging Face transformers, timm (torchvision) and OpenCLIP. Results are
// bit-identical, except for what [Decode] names and the last
// bit of a float32.
//
//	bytes ──Decode──▶ RGB image ──Spec.Tensor──▶ float32, normalised
//	                            └─Spec.Crop────▶ H×W uint8 ──Spec.Normalise──▶ the same
//
// Tensor resizes and crops. A [Cropped] image has a type of its own, so that it
// cannot be cropped again.
// [Load] reads which steps a model wants from the configuration beside it and
// returns them as a [Spec], one canonical description of the whole pipeline.
// Nothing is guessed: a configuration that this package does not know to the
// letter is an error.
//
// Resizing and normalising are assembly for AVX-512 with VBMI and VNNI or for
// AVX2, where the processor has them, and plain Go elsewhere, with the same bits;
// MLRBFN_KERNELS chooses as it does for package kernels.
//
// The package starts no goroutines and may be called from many. Between images it
// keeps room to work in and the weights of recent sizes, nothing else.
package preprocess

import (
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"
	"sync"
)

// Version is the version of the arithmetic: it goes up whenever the tensor of
// some image changes for the same Spec, so that features of before and after
// are not mixed.
const Version = 2

// MaxSide is the largest height or width that a Spec may resize or crop to.
const MaxSide = 8192

// ResizeMode says what an image is resized to before the crop. Below, h×w is
// the image, H×W the Spec's ResizeHeight and ResizeWidth.
type ResizeMode string

const (
	// None leaves the image as it is.
	None ResizeMode = "none"
	// Exact leaves the image as it is and refuses one that is not of the size
	// of the output already.
	Exact ResizeMode = "exact"
	// Squash resizes to H×W and ignores the aspect ratio.
	Squash ResizeMode = "squash"
	// Shortest resizes the shorter edge to H (= W) and the longer to
	// ⌊H·long/short⌋: transformers' get_resize_output_image_size, torchvision's
	// Resize with one number.
	Shortest ResizeMode = "shortest"
	// Cover divides both edges by min(h/H, w/W) and rounds half to even, so that
	// the result covers H×W: timm's and OpenCLIP's ResizeKeepRatio, longest=0.
	Cover ResizeMode = "cover"
	// Contain divides both edges by max(h/H, w/W) and rounds half to even, so
	// that the result fits into H×W: ResizeKeepRatio with longest=1.
	Contain ResizeMode = "contain"
)

// Rounding says where a centred crop begins when the margins differ by one.
type Rounding string

const (
	// Floor begins at ⌊(edge − crop)/2⌋, for images smaller than the crop too:
	// transformers' center_crop (NumPy).
	Floor Rounding = "floor"
	// HalfEven begins at (edge − crop)/2 rounded half to even, and pads smaller
	// images by ⌊(crop − edge)/2⌋ before: torchvision's center_crop, timm's and
	// OpenCLIP's center_crop_or_pad.
	HalfEven Rounding = "half-even"
)

// Layout is the order of a tensor's axes.
type Layout int

const (
	// NCHW is channel, row, column: three planes.
	NCHW Layout = iota
	// NHWC is row, column, channel: interleaved pixels.
	NHWC
)

// ErrSize is wrapped by the error of an image that [Exact] refuses.
var ErrSize = errors.New("image of another size")

// Spec is one preprocessing pipeline: grey where wanted, resize, centred crop or
// padding to Height×Width, then (x·Scale − Mean)/Std for each channel.
//
// It is a plain value without maps: two equal pipelines marshal to the same
// JSON, which is what makes it fit for a fingerprint. The zero Spec is not
// valid; see Validate.
type Spec struct {
	// Grey makes the image grey first, as Pillow's convert("L") does; the
	// tensor has one channel then, the first.
	Grey bool `json:"grey,omitempty"`

	Resize       ResizeMode `json:"resize"`
	ResizeHeight int        `json:"resize_height"` // 0 for None and Exact
	ResizeWidth  int        `json:"resize_width"`  // 0 for None and Exact
	Filter       Filter     `json:"filter"`        // "" for None and Exact

	// Height and Width are the size of the output, whatever the image.
	Height   int      `json:"height"`
	Width    int      `json:"width"`
	Rounding Rounding `json:"rounding"`
	Fill     [3]uint8 `json:"fill"` // colour around images smaller than the crop

	Scale float64    `json:"scale"`
	Mean  [3]float64 `json:"mean"`
	Std   [3]float64 `json:"std"`
}

// Validate reports the first thing that makes the pipeline impossible: an
// unknown mode, filter or rounding, a size outside 1…MaxSide, or numbers that
// would give values which are not finite.
func (s *Spec) Validate() error {
	if err := s.validateGeometry(); err != nil {
		return err
	}
	for c, levels := range s.levels() {
		if s.Scale == 0 || s.Std[c] == 0 {
			return errors.New("neither scale nor std may be 0")
		}
		for _, x := range levels {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return fmt.Errorf("scale %v, mean %v and std %v give values that are not finite", s.Scale, s.Mean, s.Std)
			}
		}
	}
	return nil
}

// validateGeometry is Validate without the numbers of values.
func (s *Spec) validateGeometry() error {
	type side struct {
		name string
		size int
	}
	sides := []side{{"height", s.Height}, {"width", s.Width}}
	switch s.Resize {
	case None, Exact:
	case Squash, Cover, Contain, Shortest:
		sides = append(sides, side{"resize height", s.ResizeHeight}, side{"resize width", s.ResizeWidth})
		if _, ok := kernels[s.Filter]; !ok && s.Filter != Nearest {
			return fmt.Errorf("unknown filter %q", s.Filter)
		}
		if s.Resize == Shortest && s.ResizeHeight != s.ResizeWidth {
			return fmt.Errorf("shortest edge is both %d and %d", s.ResizeHeight, s.ResizeWidth)
		}
	default:
		return fmt.Errorf("unknown resize mode %q", s.Resize)
	}
	for _, side := range sides {
		if side.size < 1 || side.size > MaxSide {
			return fmt.Errorf("%s is %d, want 1 to %d", side.name, side.size, MaxSide)
		}
	}
	if s.Rounding != Floor && s.Rounding != HalfEven {
		return fmt.Errorf("unknown rounding %q", s.Rounding)
	}
	return nil
}

// Cropped is an opaque image of Height×Width pixels with its origin at 0, 0, which
// a Spec has resized and cropped.
type Cropped image.NRGBA

// Crop resizes and crops img. The alpha of img is not looked at. Only what the
// crop shows is computed. Use it to look at what a model gets.
//
// It returns an error where the Spec is not valid, where img is empty, or where
// img is so elongated that the libraries fail too: an edge would shrink to
// nothing, or the work would not fit into memory.
func (s *Spec) Crop(img *image.NRGBA) (*Cropped, error) {
	var room workroom
	crop, err := room.crop(s, img)
	return (*Cropped)(crop), err
}

// A workroom holds what making a tensor takes, to be used again for the next
// image. The zero value is ready.
type workroom struct {
	resizer
	normaliser
	out image.NRGBA
}

// workrooms are those that nobody uses just now.
var workrooms = sync.Pool{New: func() any { return new(workroom) }}

// maxIdle bounds the bytes of pixels that an unused workroom may hold.
const maxIdle = 1 << 26

// crop is Spec.Crop. The result is valid until the next.
func (r *workroom) crop(s *Spec, img *image.NRGBA) (*image.NRGBA, error) {
	if err := r.normaliser.set(s); err != nil {
		return nil, fmt.Errorf("preprocessing: %w", err)
	}
	img = &image.NRGBA{Pix: img.Pix, Stride: img.Stride, Rect: img.Rect.Sub(img.Rect.Min)}
	if img.Rect.Empty() {
		return nil, errors.New("image has no pixels")
	}
	if size := (image.Point{X: s.Width, Y: s.Height}); s.Resize == Exact && img.Rect.Max != size {
		return nil, fmt.Errorf("%w: %d×%d pixels, want %d×%d", ErrSize, img.Rect.Dx(), img.Rect.Dy(), s.Width, s.Height)
	}
	if s.Grey {
		img = grey(img)
	}
	height, width := s.resized(img.Rect.Dy(), img.Rect.Dx())
	if height < 1 || width < 1 {
		return nil, fmt.Errorf("image of %d×%d pixels is too elongated to fit into %d×%d",
			img.Rect.Dx(), img.Rect.Dy(), s.ResizeWidth, s.ResizeHeight)
	}
	n := 4 * s.Width * s.Height
	out := &r.out
	*out = image.NRGBA{Pix: slices.Grow(out.Pix[:0], n)[:n], Stride: 4 * s.Width, Rect: image.Rect(0, 0, s.Width, s.Height)}
	x, y := s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height)
	seen := out.Rect.Add(image.Pt(x, y)).Intersect(image.Rect(0, 0, width, height))
	place := seen.Sub(image.Pt(x, y)) // of what is seen in the output
	if place != out.Rect {
		for i := range s.Width * s.Height {
			set(out.Pix, i, s.Fill[0], s.Fill[1], s.Fill[2])
		}
	}
	to := crop(out, place)
	if (image.Point{X: width, Y: height}) != img.Rect.Max {
		return out, r.resize(to, img, width, height, seen, s.Filter)
	}
	from := crop(img, seen)
	for row := range seen.Dy() {
		pixels := to.Pix[row*to.Stride:][:4*seen.Dx()]
		copy(pixels, from.Pix[row*from.Stride:])
		for i := 3; i < len(pixels); i += 4 {
			pixels[i] = 255
		}
	}
	return out, nil
}

// Tensor crops img as Crop does and writes the normalised values to dst, which
// must hold [Spec.Channels]·Height·Width of them. With x the uint8 value they are
// (float32(x·Scale) − Mean)/Std in float32, in that order, as transformers'
// rescale and normalize round them.
func (s *Spec) Tensor(dst []float32, img *image.NRGBA, layout Layout) error {
	if err := s.fits(dst, layout); err != nil {
		return err
	}
	room := workrooms.Get().(*workroom)
	crop, err := room.crop(s, img)
	if err == nil {
		room.normalise(dst, crop.Pix, layout)
	}
	if cap(room.out.Pix)+cap(room.between)+cap(room.ring) <= maxIdle {
		workrooms.Put(room)
	}
	return err
}

// Normalise writes the values that Tensor gives an image of which img is the crop.
func (s *Spec) Normalise(dst []float32, img *Cropped, layout Layout) error {
	if err := s.fits(dst, layout); err != nil {
		return err
	}
	if img.Rect != image.Rect(0, 0, s.Width, s.Height) || img.Stride != 4*s.Width || len(img.Pix) != 4*s.Width*s.Height {
		return fmt.Errorf("%w: the crop has %d×%d pixels, want %d×%d", ErrSize, img.Rect.Dx(), img.Rect.Dy(), s.Width, s.Height)
	}
	var n normaliser
	if err := n.set(s); err != nil {
		return fmt.Errorf("preprocessing: %w", err)
	}
	n.normalise(dst, img.Pix, layout)
	return nil
}

// fits checks the room for a tensor.
func (s *Spec) fits(dst []float32, layout Layout) error {
	channels := s.Channels()
	if n := channels * s.Height * s.Width; len(dst) != n {
		return fmt.Errorf("tensor has room for %d values, want %d×%d×%d = %d", len(dst), channels, s.Height, s.Width, n)
	}
	if layout != NCHW && layout != NHWC {
		return fmt.Errorf("unknown layout %d", layout)
	}
	return nil
}

// String says what is done to an image, in order.
func (s *Spec) String() string {
	var b strings.Builder
	if s.Grey {
		b.WriteString("made grey, ")
	}
	switch s.Resize {
	case None:
	case Exact:
		fmt.Fprintf(&b, "refused unless of %d×%d pixels, ", s.Width, s.Height)
	case Squash:
		fmt.Fprintf(&b, "resized to %d×%d whatever their shape (%s), ", s.ResizeWidth, s.ResizeHeight, s.Filter)
	case Shortest:
		fmt.Fprintf(&b, "resized so that the shorter edge is %d (%s), ", s.ResizeHeight, s.Filter)
	case Cover:
		fmt.Fprintf(&b, "resized to cover %d×%d (%s), ", s.ResizeWidth, s.ResizeHeight, s.Filter)
	case Contain:
		fmt.Fprintf(&b, "resized to fit into %d×%d (%s), ", s.ResizeWidth, s.ResizeHeight, s.Filter)
	}
	fmt.Fprintf(&b, "cropped or padded in the centre to %d×%d, times %.6g, minus %.6g, divided by %.6g", s.Width, s.Height, s.Scale, s.Mean, s.Std)
	return b.String()
}

// Channels is the number of channels of a tensor: 1 where the pipeline is grey,
// else 3.
func (s *Spec) Channels() int {
	if s.Grey {
		return 1
	}
	return 3
}

// resized returns the height and width that an image of h×w is resized to.
func (s *Spec) resized(h, w int) (height, width int) {
	ratioH, ratioW := float64(h)/float64(s.ResizeHeight), float64(w)/float64(s.ResizeWidth)
	switch s.Resize {
	case Squash:
		return s.ResizeHeight, s.ResizeWidth
	case Shortest:
		// Integer division is what truncating Python's float quotient gives:
		// the products stay far below 2⁵³.
		if w <= h {
			return s.ResizeHeight * h / w, s.ResizeHeight
		}
		return s.ResizeHeight, s.ResizeHeight * w / h
	case Cover:
		return keepRatio(h, w, min(ratioH, ratioW))
	case Contain:
		return keepRatio(h, w, max(ratioH, ratioW))
	}
	return h, w
}

// Enlarges reports whether an image of this size is too small for the pipeline: it
// is scaled up, or padded if it is not resized.
func (s *Spec) Enlarges(width, height int) bool {
	switch s.Resize {
	case Exact:
		return false
	case None:
		return height < s.Height || width < s.Width
	}
	h, w := s.resized(height, width)
	return h > height || w > width
}

func keepRatio(h, w int, ratio float64) (height, width int) {
	return int(math.RoundToEven(float64(h) / ratio)), int(math.RoundToEven(float64(w) / ratio))
}

// origin returns where, along one edge, a centred crop begins; negative where
// the image is smaller than the crop.
func (r Rounding) origin(edge, crop int) int {
	margin := edge - crop
	if r == Floor {
		return margin >> 1 // rounds down for negative margins, unlike /
	}
	if margin < 0 {
		return margin / 2
	}
	return int(math.RoundToEven(float64(margin) / 2))
}

// kept returns the part of an image of w×h that Crop reads, or little more.
func (s *Spec) kept(w, h int) image.Rectangle {
	if s.validateGeometry() != nil {
		return image.Rectangle{}
	}
	height, width := s.resized(h, w)
	seen := image.Rect(0, 0, s.Width, s.Height).
		Add(image.Pt(s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height))).
		Intersect(image.Rect(0, 0, width, height))
	if seen.Empty() || width == w && height == h {
		return seen
	}
	left, right := s.Filter.reach(w, width, seen.Min.X, seen.Max.X)
	top, bottom := s.Filter.reach(h, height, seen.Min.Y, seen.Max.Y)
	return image.Rect(left, top, right, bottom)
}

// Seen returns the part of the crop of an image of w×h that shows the image, which is
// all of it but for padding, and the part of the image that is seen there: left, top,
// right and bottom as shares of its width and height.
func (s *Spec) Seen(w, h int) (crop image.Rectangle, area [4]float64) {
	height, width := s.resized(h, w)
	from := image.Pt(s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height))
	seen := image.Rect(0, 0, s.Width, s.Height).Add(from).Intersect(image.Rect(0, 0, width, height))
	x, y := float64(width), float64(height)
	return seen.Sub(from), [4]float64{float64(seen.Min.X) / x, float64(seen.Min.Y) / y, float64(seen.Max.X) / x, float64(seen.Max.Y) / y}
}

func set(dst []uint8, x int, r, g, b uint8) {
	pixel := dst[4*x : 4*x+4 : 4*x+4]
	pixel[0], pixel[1], pixel[2], pixel[3] = r, g, b, 255
}

// grey returns a grey copy of an image, with the fixed-point ITU-R 601-2 luma of
// Pillow's convert("L"), so that an image that is grey already keeps its levels.
func grey(img *image.NRGBA) *image.NRGBA {
	dst := image.NewNRGBA(image.Rectangle{Max: img.Rect.Size()})
	for y := range dst.Rect.Dy() {
		from := img.Pix[y*img.Stride:][:dst.Stride]
		to := dst.Pix[y*dst.Stride:][:dst.Stride]
		for x := range dst.Rect.Dx() {
			l := uint8((int(from[4*x])*19595 + int(from[4*x+1])*38470 + int(from[4*x+2])*7471 + 0x8000) >> 16)
			set(to, x, l, l, l)
		}
	}
	return dst
}
