// Package preprocess turns image files into the tensors that a vision backbone
// expects, with the arithmetic of the Python libraries that the backbones were
// trained with: Pillow for decoding and resizing, and for the steps around
// them Hugging Face transformers, timm (torchvision) and OpenCLIP. Results are
// the same to the bit, but for JPEGs, which [Decode] says more about, and the
// last bit of a float32.
//
//	bytes ──Decode──▶ RGB image ──Spec.Crop──▶ H×W uint8 ──Spec.Tensor──▶ float32
//
// [Load] reads which steps a model wants from the configuration beside it and
// returns them as a [Spec], one canonical description of the whole pipeline.
// Nothing is guessed: a configuration that this package does not know to the
// letter is an error.
//
// The package starts no goroutines, keeps no state and may be called from many.
package preprocess

import (
	"errors"
	"fmt"
	"image"
	"math"
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

// Crop resizes and crops img and returns a fresh opaque image of exactly
// Height×Width with its origin at 0, 0. The alpha of img is not looked at.
// Only what the crop shows is computed.
//
// It returns an error where the Spec is not valid, where img is empty, or where
// img is so elongated that the libraries fail too: an edge would shrink to
// nothing, or the work would not fit into memory.
func (s *Spec) Crop(img *image.NRGBA) (*image.NRGBA, error) {
	if err := s.Validate(); err != nil {
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
	x, y := s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height)
	seen := image.Rect(x, y, x+s.Width, y+s.Height).Intersect(image.Rect(0, 0, width, height))
	part := img
	if (image.Point{X: width, Y: height}) != img.Rect.Max {
		var err error
		if part, err = resize(img, width, height, seen, s.Filter); err != nil {
			return nil, err
		}
		if part.Rect.Max == (image.Point{X: s.Width, Y: s.Height}) {
			return part, nil
		}
	} else {
		part = img.SubImage(seen).(*image.NRGBA)
	}

	out := image.NewNRGBA(image.Rect(0, 0, s.Width, s.Height))
	for i := 0; i < len(out.Pix); i += 4 {
		copy(out.Pix[i:], s.Fill[:])
		out.Pix[i+3] = 255
	}
	for row := range seen.Dy() {
		from := part.Pix[row*part.Stride:]
		to := out.Pix[out.PixOffset(seen.Min.X-x, seen.Min.Y-y+row):]
		for i := 0; i < 4*seen.Dx(); i += 4 {
			copy(to[i:i+3], from[i:i+3])
		}
	}
	return out, nil
}

// Tensor crops img as Crop does and writes the normalised values to dst, which
// must hold [Spec.Channels]·Height·Width of them. With x the uint8 value they are
// (float32(x·Scale) − Mean)/Std in float32, in that order, as transformers'
// rescale and normalize round them.
func (s *Spec) Tensor(dst []float32, img *image.NRGBA, layout Layout) error {
	channels := s.Channels()
	if n := channels * s.Height * s.Width; len(dst) != n {
		return fmt.Errorf("tensor has room for %d values, want %d×%d×%d = %d", len(dst), channels, s.Height, s.Width, n)
	}
	crop, err := s.Crop(img)
	if err != nil {
		return err
	}
	step, plane := 1, s.Height*s.Width
	switch layout {
	case NCHW:
	case NHWC:
		step, plane = channels, 1
	default:
		return fmt.Errorf("unknown layout %d", layout)
	}
	levels := s.levels()
	for i := range s.Height * s.Width {
		pixel := crop.Pix[4*i : 4*i+3 : 4*i+3]
		at := i * step
		dst[at] = levels[0][pixel[0]]
		if channels == 3 {
			dst[at+plane] = levels[1][pixel[1]]
			dst[at+2*plane] = levels[2][pixel[2]]
		}
	}
	return nil
}

// Channels is the number of channels of a tensor: 1 where the pipeline is grey,
// else 3.
func (s *Spec) Channels() int {
	if s.Grey {
		return 1
	}
	return 3
}

// levels returns what each of the 256 levels of each channel becomes.
func (s *Spec) levels() (table [3][256]float32) {
	for c := range table {
		mean, std := float32(s.Mean[c]), float32(s.Std[c])
		for v := range table[c] {
			table[c][v] = (float32(float64(v)*s.Scale) - mean) / std
		}
	}
	return table
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
