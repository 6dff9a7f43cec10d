package evaluation

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"math/rand/v2"
	"testing"

	"golang.org/x/image/draw"
)

// photograph is smooth random shades with a few sharp shapes.
func photograph(seed uint64, width, height int) *image.RGBA {
	random := rand.New(rand.NewPCG(seed, 1))
	coarse := image.NewRGBA(image.Rect(0, 0, 7, 6))
	for i := range coarse.Pix {
		coarse.Pix[i] = uint8(random.IntN(256))
		if i%4 == 3 {
			coarse.Pix[i] = 255
		}
	}
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.CatmullRom.Scale(img, img.Rect, coarse, coarse.Rect, draw.Src, nil)
	for range 5 {
		x, y := random.IntN(width), random.IntN(height)
		shade := color.Gray{uint8(random.IntN(256))}
		draw.Draw(img, image.Rect(x, y, x+width/8, y+height/9), image.NewUniform(shade), image.Point{}, draw.Src)
	}
	return img
}

func part(img *image.RGBA, left, top, right, bottom float64) image.Image {
	w, h := float64(img.Rect.Dx()), float64(img.Rect.Dy())
	return img.SubImage(image.Rect(int(left*w), int(top*h), int((1-right)*w), int((1-bottom)*h)))
}

func mirrored(img *image.RGBA) image.Image {
	out := image.NewRGBA(img.Rect)
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			out.Set(img.Rect.Dx()-1-x, y, img.At(x, y))
		}
	}
	return out
}

func recompressed(t *testing.T, img image.Image, quality int) image.Image {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, &jpeg.Options{Quality: quality}); err != nil {
		t.Fatal(err)
	}
	out, err := jpeg.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func resized(img image.Image, width, height int) image.Image {
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.CatmullRom.Scale(out, out.Rect, img, img.Bounds(), draw.Src, nil)
	return out
}

// TestAlike: copies are found, and other pictures are not taken for them.
func TestAlike(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		img := photograph(seed, 240, 180)
		whole := pictureOf(img)
		for name, tt := range map[string]struct {
			img   image.Image
			least float64
		}{
			"resized":                {resized(img, 100, 75), surelyAlike},
			"recompressed":           {recompressed(t, img, 30), surelyAlike},
			"mirrored":               {mirrored(img), surelyAlike},
			"cropped on all sides":   {part(img, .05, .05, .05, .05), leastAlike},
			"cropped on two sides":   {part(img, 0, .06, .08, 0), leastAlike},
			"mirrored, recompressed": {recompressed(t, mirrored(img), 50), leastAlike},
		} {
			p := pictureOf(tt.img)
			if r := alike(whole, p); !(r >= tt.least) || r > 1+1e-9 {
				t.Errorf("photograph %d, %s: %.4f", seed, name, r)
			}
			if a, b := alike(whole, p), alike(p, whole); a != b {
				t.Errorf("photograph %d, %s: %v, and %v the other way round", seed, name, a, b)
			}
		}
		if r := alike(whole, pictureOf(photograph(seed+100, 240, 180))); r >= leastAlike {
			t.Errorf("photograph %d is like another: %.4f", seed, r)
		}
	}
	blank := pictureOf(image.NewRGBA(image.Rect(0, 0, 9, 9)))
	if r := alike(blank, blank); r != 0 || blank.Spread >= blankSpread {
		t.Errorf("a blank picture is %v like itself and has the spread %v", r, blank.Spread)
	}
}
