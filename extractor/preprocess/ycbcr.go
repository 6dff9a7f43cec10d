package preprocess

import "image"

// fromYCbCr returns what converts the rows of img with the arithmetic of
// libjpeg-turbo or, for the video range, libwebp: what Pillow reads JPEG and
// WebP with. Chroma that is halved along an edge is interpolated between the
// centres of samples ("fancy upsampling"), other chroma replicated.
func fromYCbCr(img *image.YCbCr, video bool) row {
	w := img.Rect.Dx()
	table := &fullRange
	if video {
		table = &videoRange
	}
	up := newUpsampler(img, video)
	cb, cr := make([]uint8, up.w*up.right), make([]uint8, up.w*up.right)
	return func(dst []uint8, y int) {
		table.convert(dst, img.Y[y*img.YStride:][:w], up.row(cb, img.Cb, y), up.row(cr, img.Cr, y))
	}
}

// upsampler brings the rows of chroma to the size of the image.
type upsampler struct {
	stride int
	// w and h are how many samples belong to the image. A decoder's planes may
	// hold more, to whole blocks, but libjpeg and libwebp repeat the edge.
	w, h int
	// right and down are how many pixels share a sample.
	right, down int
	smooth      bool
	// even and odd round the columns, in sixteenths. libjpeg rounds what lies
	// in the middle between two levels down and up in turn.
	even, odd int
}

func newUpsampler(img *image.YCbCr, video bool) upsampler {
	u := upsampler{stride: img.CStride, right: 1, down: 1}
	switch img.SubsampleRatio {
	case image.YCbCrSubsampleRatio422:
		u.right, u.even, u.odd = 2, 4, 8
	case image.YCbCrSubsampleRatio420:
		u.right, u.down, u.even, u.odd = 2, 2, 8, 7
	case image.YCbCrSubsampleRatio440:
		u.down = 2
	case image.YCbCrSubsampleRatio411:
		u.right = 4
	case image.YCbCrSubsampleRatio410:
		u.right, u.down = 4, 2
	}
	u.w = (img.Rect.Dx() + u.right - 1) / u.right
	u.h = (img.Rect.Dy() + u.down - 1) / u.down
	// libjpeg does not interpolate images that are no wider than two samples.
	u.smooth = u.right == 1 || u.right == 2 && (u.w > 2 || video)
	if video {
		u.odd = 8
	}
	return u
}

// row returns the samples for row y of the image, at least as many as it is
// wide. It may use buf, which has room for w·right of them.
func (u *upsampler) row(buf, plane []uint8, y int) []uint8 {
	near := plane[y/u.down*u.stride:][:u.w]
	far := near
	if u.down == 2 {
		beside := min(max(y/2-1+y%2*2, 0), u.h-1)
		far = plane[beside*u.stride:][:u.w]
	}
	switch {
	case !u.smooth:
		for x := range buf {
			buf[x] = near[x/u.right]
		}
	case u.right == 2:
		u.widen(buf, near, far)
	case u.down == 2:
		for x := range near {
			buf[x] = uint8((3*int(near[x]) + int(far[x]) + 1 + y%2) >> 2)
		}
	default:
		return near
	}
	return buf
}

// widen interpolates one row from the nearest row of samples and the next
// nearest, with weights 3:1 across rows and columns; the two are the same where
// only columns are halved.
func (u *upsampler) widen(dst, near, far []uint8) {
	even, odd := u.even, u.odd
	far = far[:len(near)]
	this := 3*int(near[0]) + int(far[0])
	last := this
	for x := 1; x < len(near); x++ {
		next := 3*int(near[x]) + int(far[x])
		pair := dst[2*x-2 : 2*x : 2*x]
		pair[0] = uint8((3*this + last + even) >> 4)
		pair[1] = uint8((3*this + next + odd) >> 4)
		last, this = this, next
	}
	pair := dst[2*len(near)-2:]
	pair[0] = uint8((3*this + last + even) >> 4)
	pair[1] = uint8((4*this + odd) >> 4)
}

// matrix converts YCbCr to RGB: what each value of a component adds to each
// colour, with 16 bits after the point.
type matrix struct {
	y, crR, cbG, crG, cbB [256]int32
}

// fullRange is libjpeg's (jdcolor.c), videoRange libwebp's (yuv.h): BT.601 with
// luma from 16 to 235, which Go takes for full range.
var fullRange, videoRange = matrices()

func matrices() (full, video matrix) {
	const half = 1 << 15
	for i := range 256 {
		v, c := int32(i), int32(i-128)
		full.y[i] = v<<16 + half
		full.crR[i] = 91881 * c // 1.40200
		full.cbG[i] = -22554 * c
		full.crG[i] = -46802 * c
		full.cbB[i] = 116130 * c // 1.77200
		// libwebp has 6 bits after the point, truncated from 14.
		scaled := func(by int32) int32 { return v * by >> 8 << 10 }
		video.y[i] = scaled(19077)
		video.crR[i] = scaled(26149) - 14234<<10
		video.cbG[i] = 8708<<10 - scaled(6419)
		video.crG[i] = -scaled(13320)
		video.cbB[i] = scaled(33050) - 17685<<10
	}
	return full, video
}

func (m *matrix) convert(dst, luma, cb, cr []uint8) {
	cb, cr, dst = cb[:len(luma)], cr[:len(luma)], dst[:4*len(luma)]
	for x, v := range luma {
		y, b, r := m.y[v], cb[x], cr[x]
		set(dst, x, whole(y+m.crR[r]), whole(y+m.cbG[b]+m.crG[r]), whole(y+m.cbB[b]))
	}
}

// whole drops the bits after the point and clips, with a branch because few
// colours need it.
func whole(v int32) uint8 {
	if uint32(v)>>24 == 0 {
		return uint8(v >> 16)
	}
	return uint8(^(v >> 31)) // 0 below, 255 above
}
