package evaluation

import (
	"encoding/binary"
	"errors"
	"image"
	"math"
	"os"
	"slices"

	"golang.org/x/image/draw"
)

// side is the width and height of a picture, in pixels.
const side = 32

// picture is an image in shades of grey, scaled to side×side pixels whatever its
// shape, with what is measured on it.
type picture struct {
	Grey          [side * side]uint8
	Width, Height int     // of the image
	Spread        float64 // standard deviation of the shades, 0 to 127.5
	Detail        float64 // share of the finest of three scales in the contrast
}

// pictureOf scales an image. Transparent pixels are white.
func pictureOf(img image.Image) *picture {
	b := img.Bounds()
	p := &picture{Width: b.Dx(), Height: b.Dy()}
	// Twice as fine first: what the mean of 2×2 pixels loses is the detail.
	const fine = 4 * side
	to := image.NewRGBA(image.Rect(0, 0, fine, fine))
	draw.Draw(to, to.Bounds(), image.White, image.Point{}, draw.Src)
	draw.BiLinear.Scale(to, to.Bounds(), img, b, draw.Over, nil)
	grey := make([]float64, fine*fine)
	for i := range grey {
		c := to.Pix[4*i : 4*i+3]
		grey[i] = .299*float64(c[0]) + .587*float64(c[1]) + .114*float64(c[2])
	}
	half := halved(grey, fine)
	small := halved(half, fine/2)
	for i, v := range small {
		p.Grey[i] = uint8(v + .5)
	}
	p.Spread = deviation(small)
	if all := deviation(grey); all > 0 {
		p.Detail = lost(grey, half, fine) / all
	}
	return p
}

// halved returns the means of 2×2 pixels.
func halved(grey []float64, width int) []float64 {
	n := width / 2
	out := make([]float64, n*n)
	for y := range n {
		for x := range n {
			at := 2*y*width + 2*x
			out[y*n+x] = (grey[at] + grey[at+1] + grey[at+width] + grey[at+width+1]) / 4
		}
	}
	return out
}

// lost returns the root mean square of what halving takes away.
func lost(grey, half []float64, width int) float64 {
	var sum float64
	for y := range width {
		for x := range width {
			d := grey[y*width+x] - half[y/2*(width/2)+x/2]
			sum += d * d
		}
	}
	return math.Sqrt(sum / float64(len(grey)))
}

func deviation(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	n := float64(len(v))
	return math.Sqrt(max(0, squares/n-sum/n*sum/n))
}

// window is a part of a picture, in shares of its width and height.
type window struct {
	x, y, w, h float64
	mirrored   bool
}

// maxCrop is how much of the width or height a crop may lose and still be found.
const maxCrop = .2

// From which correlation on it is worth while to look for a crop, and to look more
// closely.
const (
	leastStart  = .4
	leastCoarse = .8
)

// alike returns how much two pictures are the same, a correlation of the shades in
// [−1, 1]: the largest one over parts of either, mirrored or not, for crops lose
// a margin. It is 0 where a picture has no contrast.
func alike(a, b *picture) float64 {
	best := -1.
	for _, mirrored := range []bool{false, true} {
		// The whole pictures first: what is not even similar needs no search.
		start := correlation(a, window{w: 1, h: 1, mirrored: mirrored}, b)
		if best = max(best, start); start < leastStart || start > surelyAlike {
			continue
		}
		best = max(best, fit(a, b, mirrored), fit(b, a, mirrored))
	}
	return best
}

// fit finds the part of a that is most like b.
func fit(a, b *picture, mirrored bool) float64 {
	best, at := -1., window{}
	for _, size := range []float64{1, .95, .9} {
		for _, x := range []float64{0, .5, 1} {
			for _, y := range []float64{0, .5, 1} {
				w := window{x * (1 - size), y * (1 - size), size, size, mirrored}
				if r := correlation(a, w, b); r > best {
					best, at = r, w
				}
				if size == 1 {
					break
				}
			}
			if size == 1 {
				break
			}
		}
	}
	if best < leastCoarse {
		return best
	}
	// Each edge on its own, in finer and finer steps.
	for _, step := range []float64{.03, .015, .0075} {
		for range 4 {
			before := best
			for edge := range 4 {
				for _, d := range []float64{-step, step} {
					w := at
					switch edge {
					case 0:
						w.x, w.w = w.x+d, w.w-d
					case 1:
						w.w += d
					case 2:
						w.y, w.h = w.y+d, w.h-d
					case 3:
						w.h += d
					}
					const slack = 1e-9
					if w.x < -slack || w.y < -slack || w.x+w.w > 1+slack || w.y+w.h > 1+slack || min(w.w, w.h) < 1-maxCrop {
						continue
					}
					if r := correlation(a, w, b); r > best {
						best, at = r, w
					}
				}
			}
			if best == before {
				break
			}
		}
	}
	return best
}

// correlation of a part of a, scaled to the whole, with b.
func correlation(a *picture, w window, b *picture) float64 {
	var sa, sb, saa, sbb, sab float64
	// The place of each column and row in a.
	type place struct {
		at    int
		share float64
	}
	places := func(from, size float64, mirrored bool) (p [side]place) {
		for i := range p {
			v := min(max((from+(float64(i)+.5)/side*size)*side-.5, 0), side-1)
			at := min(int(v), side-2)
			to := i
			if mirrored {
				to = side - 1 - i
			}
			p[to] = place{at, v - float64(at)}
		}
		return p
	}
	xs, ys := places(w.x, w.w, w.mirrored), places(w.y, w.h, false)
	for y, py := range ys {
		top := a.Grey[py.at*side : py.at*side+side]
		bottom := a.Grey[(py.at+1)*side : (py.at+1)*side+side]
		for x, px := range xs {
			u := float64(top[px.at])*(1-px.share) + float64(top[px.at+1])*px.share
			v := float64(bottom[px.at])*(1-px.share) + float64(bottom[px.at+1])*px.share
			va := u*(1-py.share) + v*py.share
			vb := float64(b.Grey[y*side+x])
			sa += va
			sb += vb
			saa += va * va
			sbb += vb * vb
			sab += va * vb
		}
	}
	const n = side * side
	va, vb := saa/n-sa/n*sa/n, sbb/n-sb/n*sb/n
	if va < 1 || vb < 1 {
		return 0
	}
	return (sab/n - sa/n*sb/n) / math.Sqrt(va*vb)
}

// pictures holds the pictures of many images in a temporary file.
type pictures struct {
	file *os.File
	name string // of the file, if it is to be removed yet
	read []bool // [N], which images could be read
}

const pictureBytes = side*side + 24

func newPictures(scratch string, n int) (*pictures, error) {
	file, err := os.CreateTemp(scratch, "mlrbfn-pictures-*")
	if err != nil {
		return nil, err
	}
	p := &pictures{file: file, read: make([]bool, n)}
	// The name goes at once, so that nothing stays behind whatever happens.
	if os.Remove(file.Name()) != nil { // an open file on Windows
		p.name = file.Name()
	}
	return p, nil
}

func (p *pictures) Close() error {
	err := p.file.Close()
	if p.name != "" {
		err = errors.Join(err, os.Remove(p.name))
	}
	return err
}

func (p *pictures) has(i int) bool { return p.read[i] }

// any reports whether any image could be read.
func (p *pictures) any() bool { return slices.Contains(p.read, true) }

// put may be called from several goroutines, for different images.
func (p *pictures) put(i int, pic *picture) error {
	b := make([]byte, 0, pictureBytes)
	b = append(b, pic.Grey[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(pic.Width))
	b = binary.LittleEndian.AppendUint32(b, uint32(pic.Height))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(pic.Spread))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(pic.Detail))
	if _, err := p.file.WriteAt(b, int64(i)*pictureBytes); err != nil {
		return err
	}
	p.read[i] = true
	return nil
}

// at returns the picture of an image; nil if it could not be read.
func (p *pictures) at(i int) *picture {
	if !p.read[i] {
		return nil
	}
	var b [pictureBytes]byte
	if _, err := p.file.ReadAt(b[:], int64(i)*pictureBytes); err != nil {
		return nil
	}
	pic := &picture{
		Width: int(binary.LittleEndian.Uint32(b[side*side:])), Height: int(binary.LittleEndian.Uint32(b[side*side+4:])),
		Spread: math.Float64frombits(binary.LittleEndian.Uint64(b[side*side+8:])),
		Detail: math.Float64frombits(binary.LittleEndian.Uint64(b[side*side+16:])),
	}
	copy(pic.Grey[:], b[:])
	return pic
}
