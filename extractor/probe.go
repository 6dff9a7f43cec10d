package extractor

import (
	"context"
	"fmt"
	"image"
	"math"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
)

// probeVersion is the version of the images that [ProbeImage] draws. Other images need
// another, and files keep theirs.
const probeVersion = 1

// probeImages is how many images a probe has: few, so that it costs little with a large
// model.
const probeImages = 4

// keptProbe is a probe that was made.
type keptProbe struct {
	sync.Mutex
	probe *features.Probe
}

// Probe runs the images of [ProbeImage] through the model, as Extract runs any, and
// returns what it answers. It runs them once. Features of an image that the model
// answers with infinities or NaNs for are NaNs.
func (m *Model) Probe(ctx context.Context) (*features.Probe, error) {
	m.probed.Lock()
	defer m.probed.Unlock()
	if m.probed.probe != nil {
		return m.probed.probe, nil
	}
	var items []images.Item
	for i := range probeImages {
		size := probeSizes[i]
		if m.Spec.Resize == preprocess.Exact {
			size = image.Pt(m.Spec.Width, m.Spec.Height)
		}
		items = append(items, images.PixelsItem(fmt.Sprintf("%d of the probe", i), ProbeImage(i, size.X, size.Y)))
	}
	p := &features.Probe{Version: probeVersion, Images: probeImages, Features: make([]float32, probeImages*m.Dim())}
	_, err := m.Extract(ctx, images.Of(items...), Options{Batch: 1, NoHash: true}, func(r Row) error {
		row := p.Features[r.Index*m.Dim() : (r.Index+1)*m.Dim()]
		copy(row, r.Features)
		if r.Err != nil {
			for i := range row {
				row[i] = float32(math.NaN())
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	m.probed.probe = p
	return p, nil
}

// Probe returns nil: where features are the pixels themselves there is no model.
func (p *Pixels) Probe(context.Context) (*features.Probe, error) { return nil, nil }

// probeSizes are the sizes of the images, of several shapes so that resizing and
// cropping count.
var probeSizes = [probeImages]image.Point{{320, 240}, {224, 300}, {288, 288}, {400, 260}}

// ProbeImage draws image i of a probe, from 0 to 3, by whole numbers alone, so that it is
// the same on every machine: a scene, patterns with sharp edges, clouds of colour, and
// shapes on a gradient.
func ProbeImage(i, width, height int) *image.NRGBA {
	draw := [probeImages]func(x, y, u, v int) [3]int{probeScene, probePatterns, probeClouds, probeShapes}[i]
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			colour := draw(x, y, x*1024/width, y*1024/height)
			at := img.PixOffset(x, y)
			for c, value := range colour {
				img.Pix[at+c] = uint8(max(0, min(value, 255)))
			}
			img.Pix[at+3] = 255
		}
	}
	return img
}

// The functions below give the colour of a pixel; u and v, from 0 to 1023, are where it
// lies in the image.

func probeScene(x, y, u, v int) [3]int {
	sun := (u-760)*(u-760) + (v-220)*(v-220)
	grain := probeNoise(x, y, 1) % 48
	switch {
	case sun < 110*110:
		return [3]int{250, 220 - sun/300, 90}
	case u > 180 && u < 480 && v > 430 && v < 860: // a house
		if (u/50)%3 == 1 && (v/60)%3 == 1 {
			return [3]int{40, 50, 80}
		}
		return [3]int{170 + grain/4, 90 + grain/4, 70}
	case v > 330 && v < 430 && u > 180-(v-330)+40 && u < 480+(v-330)-40:
		return [3]int{110, 40, 35}
	case v > 640+probeWave(u, 300)/6:
		return [3]int{60 + grain, 110 + grain, 40 + grain/2}
	default:
		return [3]int{90 + v/8, 140 + v/10, 235 - v/12}
	}
}

func probePatterns(x, y, u, v int) [3]int {
	on := func(yes bool, a, b [3]int) [3]int {
		if yes {
			return a
		}
		return b
	}
	switch {
	case u < 512 && v < 512:
		return on(x/4%2 == 0, [3]int{240, 240, 235}, [3]int{20, 20, 60})
	case v < 512:
		return on((x/9+y/9)%2 == 0, [3]int{200, 30, 40}, [3]int{250, 230, 120})
	case u < 512:
		return on((x+2*y)/14%2 == 0, [3]int{30, 120, 70}, [3]int{180, 210, 190})
	default:
		dx, dy := x%24-12, y%24-12
		return on(dx*dx+dy*dy < 49, [3]int{120, 60, 160}, [3]int{225, 215, 205})
	}
}

func probeClouds(x, y, _, _ int) [3]int {
	var colour [3]int
	for c := range colour {
		for octave, weight := range []int{5, 2, 1} {
			colour[c] += weight * probeLattice(x, y, 64>>(2*octave), c*8+octave)
		}
		colour[c] /= 8
	}
	return colour
}

func probeShapes(x, y, u, v int) [3]int {
	ground := [3]int{60 + u/12, 70 + v/12, 150 - u/16}
	for i := range 7 {
		cu, cv, r := probeNoise(i, 0, 2)*4, probeNoise(i, 1, 2)*4, 60+probeNoise(i, 2, 2)/2
		colour := [3]int{probeNoise(i, 3, 2), probeNoise(i, 4, 2), probeNoise(i, 5, 2)}
		du, dv := u-cu, v-cv
		switch {
		case i%2 == 0 && du*du+dv*dv < r*r:
			ground = colour
		case i%2 == 1 && dv > -r && dv < r && 2*du < dv+r && -2*du < dv+r:
			ground = colour
		}
	}
	grain := probeNoise(x, y, 3)%16 - 8
	return [3]int{ground[0] + grain, ground[1] + grain, ground[2] + grain}
}

// probeWave goes up and down between 0 and the period, with the period twice that.
func probeWave(x, period int) int {
	if x %= 2 * period; x > period {
		return 2*period - x
	}
	return x
}

// probeNoise is a number from 0 to 255 that depends on all of its arguments.
func probeNoise(x, y, seed int) int {
	h := uint32(x)*0x9e3779b1 ^ uint32(y)*0x85ebca77 ^ uint32(seed)*0xc2b2ae3d
	h ^= h >> 15
	h *= 0x2c1b3c6d
	h ^= h >> 12
	h *= 0x297a2d39
	h ^= h >> 15
	return int(h >> 24)
}

// probeLattice is noise at the corners of cells and between them in proportion.
func probeLattice(x, y, cell, seed int) int {
	i, j, s, t := x/cell, y/cell, x%cell, y%cell
	top := probeNoise(i, j, seed)*(cell-s) + probeNoise(i+1, j, seed)*s
	bottom := probeNoise(i, j+1, seed)*(cell-s) + probeNoise(i+1, j+1, seed)*s
	return (top*(cell-t) + bottom*t) / (cell * cell)
}
