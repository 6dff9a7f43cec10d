package preprocess

import (
	"bytes"
	"context"
	"encoding/binary"
	"image"
)

// exif returns the EXIF block of a JPEG, which has the form of a TIFF file; nil
// where there is none.
func exif(jpeg []byte) []byte {
	const startOfScan, app1 = 0xda, 0xe1
	for at := 2; at+4 <= len(jpeg) && jpeg[at] == 0xff && jpeg[at+1] != startOfScan; {
		segment := jpeg[at+4:]
		length := int(binary.BigEndian.Uint16(jpeg[at+2:])) - 2
		if length < 0 || length > len(segment) {
			return nil
		}
		if block, ok := bytes.CutPrefix(segment[:length], []byte("Exif\x00\x00")); ok && jpeg[at+1] == app1 {
			return block
		}
		at += 4 + length
	}
	return nil
}

// orientation returns the orientation tag of a TIFF file or EXIF block, 1 to 8;
// 1, upright, where there is none.
func orientation(tiff []byte) int {
	if value := tag(tiff, tagOrientation, 1); value >= 1 && value <= 8 {
		return value
	}
	return 1
}

// upright undoes an orientation: Pillow's ImageOps.exif_transpose.
func upright(ctx context.Context, img *image.NRGBA, orientation int) (*image.NRGBA, error) {
	if orientation == 1 {
		return img, nil
	}
	w, h := img.Rect.Dx(), img.Rect.Dy()
	right, bottom := w-1, h-1
	from := [...]func(x, y int) (int, int){
		2: func(x, y int) (int, int) { return right - x, y },
		3: func(x, y int) (int, int) { return right - x, bottom - y },
		4: func(x, y int) (int, int) { return x, bottom - y },
		5: func(x, y int) (int, int) { return y, x },
		6: func(x, y int) (int, int) { return y, bottom - x },
		7: func(x, y int) (int, int) { return right - y, bottom - x },
		8: func(x, y int) (int, int) { return right - y, x },
	}[orientation]
	if orientation >= 5 {
		w, h = h, w
	}
	dst := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for x := range w {
			fx, fy := from(x, y)
			copy(dst.Pix[dst.PixOffset(x, y):], img.Pix[img.PixOffset(fx, fy):][:4])
		}
	}
	return dst, nil
}
