package preprocess

import (
	"time"

	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

// Cost is about what it takes to decode a file, of the kind of files of that header that take
// most. Errors of files cost less.
type Cost struct {
	Bytes int64         // of memory at a time
	Time  time.Duration // of one core of a server of 2020
}

// CostOf estimates the cost of a file from its header. A file that Decode refuses for its
// header, or with more pixels than allowed, has none.
func CostOf(data []byte, maxPixels int64) Cost {
	picture, ok := pillow.PNGHeader(data) // as the chunks that follow may take long
	if !ok {
		var err error
		if _, picture, err = open(data); err != nil {
			return Cost{}
		}
	}
	width, height := picture.Size()
	if int64(width) > maxPixels/int64(height) {
		return Cost{}
	}
	bytes, pixel, each := 4.0, 0.0, 10.0 // of a pixel: its memory and nanoseconds; and nanoseconds of a byte of the file
	beside := 0.0                        // bytes
	switch p := picture.(type) {
	case *jpegPicture:
		planes := float64(p.config.Components)
		switch pixel = 3 + 2*planes; {
		case p.config.Lossless:
			bytes, pixel = 4+planes, 20*planes
		case p.config.Scans:
			bytes, pixel = 4+2*planes, 12*planes
		}
		if p.config.Arithmetic {
			pixel, each = 2*pixel, 60
		}
	case *webpPicture:
		if bytes, pixel = 5.5, 30; string(p.still[webpHeader:][:4]) == "VP8L" {
			pixel = 55
			beside = 2800 * float64(min(1<<16, len(data)/2)) // tables of codes
		}
	case *pillow.TIFF:
		depth := float64(p.Depth()) / 8
		bytes, pixel = 4+depth, 8+3*depth
		if p.Compressed() {
			pixel += 15
		}
		if p.Orientation() != 1 {
			bytes += 4
		}
	case interface{ Depth() int }: // a PNG
		pixel = 4 + 2.5*float64(p.Depth())/8
	default: // a GIF or BMP
		bytes, pixel = 5, 8
	}
	if Orientation(data) != 1 {
		bytes += 4
	}
	n := float64(width) * float64(height)
	return Cost{int64(min(n*bytes+beside, 1<<50)), time.Duration(min(n*pixel+each*float64(len(data)), 1<<50))}
}
