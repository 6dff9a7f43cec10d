package preprocess

import (
	"image"

	"github.com/mlrbfn/mlrbfn/internal/jpeg"
)

// fromYCbCr returns a function that converts the rows of img with the arithmetic of
// libwebp, which Pillow reads WebP with: chroma is interpolated between the
// centres of samples ("fancy upsampling").
func fromYCbCr(img *image.YCbCr) row {
	w := img.Rect.Dx()
	up := upsampler{img.CStride, (w + 1) / 2, (img.Rect.Dy() + 1) / 2}
	cb, cr := make([]uint8, 2*up.w), make([]uint8, 2*up.w)
	return func(dst []uint8, y int) {
		up.widen(cb, img.Cb, y)
		up.widen(cr, img.Cr, y)
		videoRange.RGBA(dst, img.Y[y*img.YStride:][:w], cb, cr)
	}
}

// upsampler brings the rows of chroma, which is halved along both edges, to the
// size of the image.
type upsampler struct {
	stride int
	// w and h are how many samples belong to the image. A decoder's planes may
	// hold more, to whole blocks, but libwebp repeats the edge.
	w, h int
}

// widen interpolates row y of the image from the nearest row of samples and the
// next nearest, with weights 3:1 across rows and columns.
func (u *upsampler) widen(dst, plane []uint8, y int) {
	beside := min(max(y/2-1+y%2*2, 0), u.h-1)
	near, far := plane[y/2*u.stride:][:u.w], plane[beside*u.stride:][:u.w]
	this := 3*int(near[0]) + int(far[0])
	last := this
	for x := range near {
		next := this
		if x+1 < len(near) {
			next = 3*int(near[x+1]) + int(far[x+1])
		}
		pair := dst[2*x : 2*x+2 : 2*x+2]
		pair[0] = uint8((3*this + last + 8) >> 4)
		pair[1] = uint8((3*this + next + 8) >> 4)
		last, this = this, next
	}
}

// videoRange is libwebp's (yuv.h): BT.601 with luma from 16 to 235, which Go
// takes for full range.
var videoRange = videoMatrix()

func videoMatrix() (video jpeg.YCbCr) {
	for i := range 256 {
		v := int32(i)
		// libwebp has 6 bits after the point, truncated from 14.
		scaled := func(by int32) int32 { return v * by >> 8 << 10 }
		video.Y[i] = scaled(19077)
		video.CrR[i] = scaled(26149) - 14234<<10
		video.CbG[i] = 8708<<10 - scaled(6419)
		video.CrG[i] = -scaled(13320)
		video.CbB[i] = scaled(33050) - 17685<<10
	}
	return video
}
