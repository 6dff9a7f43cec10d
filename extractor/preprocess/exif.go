package preprocess

import (
	"bytes"
	"context"
	"encoding/binary"
	"image"
	"regexp"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

// orientation returns the orientation that a file's EXIF block gives, or else
// its XMP, 1 to 8, as Pillow's getexif does; 1, upright, where there is none.
func orientation(format string, data []byte) int {
	exif, xmp := metadata(format, data)
	value := pillow.Orientation(bytes.TrimPrefix(exif, []byte(exifHeader)))
	if match := xmpOrientation.FindSubmatch(xmp); value == 0 && match != nil {
		value = int(match[1][0] - '0')
	}
	if value < 1 || value > 8 {
		return 1
	}
	return value
}

// metadata returns the EXIF and XMP blocks of a file; nil where there are none.
func metadata(format string, data []byte) (exif, xmp []byte) {
	switch format {
	case "JPEG":
		return jpegMetadata(data)
	case "PNG":
		return pillow.PNGMetadata(data)
	case "WebP":
		return webpMetadata(data)
	}
	return nil, nil
}

// Orientation returns the EXIF orientation of a JPEG, PNG or WebP file, 1 to 8: what
// Decode applies with ApplyEXIF alone. It is 1, upright, where there is none, and of
// other formats, which have none or whose orientation is always applied.
func Orientation(file []byte) int {
	turn := 1
	perhaps(file, func(format string) { turn = orientation(format, file) })
	return turn
}

// Taken returns when a photograph was taken, as the EXIF block of a JPEG, PNG or WebP file
// says it. Where it says no time zone, it is UTC.
func Taken(file []byte) (at time.Time, ok bool) {
	perhaps(file, func(format string) {
		exif, _ := metadata(format, file)
		when, zone := pillow.Taken(bytes.TrimPrefix(exif, []byte(exifHeader)))
		var err error
		if at, err = time.Parse("2006:01:02 15:04:05Z07:00", when+zone); err != nil {
			at, err = time.Parse("2006:01:02 15:04:05", when)
		}
		ok = err == nil && at.Year() > 0
	})
	return at, ok
}

// perhaps calls read with the format of a file, if it is known, and passes over a panic, of a
// broken file.
func perhaps(file []byte, read func(format string)) {
	defer func() { _ = recover() }()
	if f := sniff(file); f != nil {
		read(f.name)
	}
}

const exifHeader = "Exif\x00\x00"

var xmpOrientation = regexp.MustCompile(`tiff:Orientation(?:="|>)([0-9])`)

// jpegMetadata returns the EXIF and XMP blocks of a JPEG; nil where there are
// none.
func jpegMetadata(data []byte) (exif, xmp []byte) {
	const startOfScan, app1 = 0xda, 0xe1
	for at := 2; at+4 <= len(data) && data[at] == 0xff && data[at+1] != startOfScan; {
		segment := data[at+4:]
		length := int(binary.BigEndian.Uint16(data[at+2:])) - 2
		if length < 0 || length > len(segment) {
			break
		}
		segment = segment[:length]
		if bytes.HasPrefix(segment, []byte(exifHeader)) && data[at+1] == app1 && exif == nil {
			exif = segment
		}
		if block, ok := bytes.CutPrefix(segment, []byte("http://ns.adobe.com/xap/1.0/\x00")); ok && data[at+1] == app1 {
			xmp = block
		}
		at += 4 + length
	}
	return exif, xmp
}

// webpMetadata returns the EXIF and XMP chunks of a WebP.
func webpMetadata(data []byte) (exif, xmp []byte) {
	webpChunks(data[webpHeader:], func(kind string, body []byte) bool {
		switch kind {
		case "EXIF":
			exif = body
		case "XMP ":
			xmp = body
		}
		return true
	})
	return exif, xmp
}

// Upright undoes an orientation: Pillow's ImageOps.exif_transpose. All numbers but 2 to 8
// are upright.
func Upright(ctx context.Context, img *image.NRGBA, orientation int) (*image.NRGBA, error) {
	if orientation < 2 || orientation > 8 {
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
