package pillow

import (
	"encoding/binary"
	"errors"
	"strings"
)

// Tags of TIFF and EXIF.
const (
	tagWidth           = 256
	tagHeight          = 257
	tagBits            = 258
	tagCompression     = 259
	tagPhotometric     = 262
	tagFillOrder       = 266
	tagStripOffsets    = 273
	tagOrientation     = 274
	tagSamples         = 277
	tagRowsPerStrip    = 278
	tagStripByteCounts = 279
	tagPlanar          = 284
	tagGroup3Options   = 292
	tagPredictor       = 317
	tagColourMap       = 320
	tagTileWidth       = 322
	tagTileHeight      = 323
	tagTileOffsets     = 324
	tagTileByteCounts  = 325
	tagExtraSamples    = 338
	tagSampleFormat    = 339
	tagJPEGTables      = 347

	tagDateTime           = 306
	tagExifIFD            = 0x8769
	tagDateTimeOriginal   = 0x9003
	tagOffsetTimeOriginal = 0x9011
)

// ifd is the first directory of a TIFF file or EXIF block.
type ifd struct {
	order binary.ByteOrder
	tags  map[uint16]field
}

// field is the value of a tag: n of them, of a type of TIFF.
type field struct {
	kind uint16
	data []byte
}

// Types of TIFF.
const (
	typeShort    = 3
	typeLong     = 4
	typeRational = 5
	typeSShort   = 8
	typeSLong    = 9
	typeIFD      = 13
	typeLong8    = 16
)

// fieldSizes are the bytes of a value of each type.
var fieldSizes = map[uint16]uint64{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}

// readIFD reads the first directory of a TIFF or BigTIFF file. As in Pillow, the
// first of several entries with the same tag is used, and all entries after one
// whose values are outside the file are ignored.
func readIFD(data []byte) (*ifd, error) { return readDirectory(data, 0) }

// readDirectory reads the directory at an offset, 0 for the first.
func readDirectory(data []byte, offset uint64) (*ifd, error) {
	d := &ifd{order: binary.LittleEndian, tags: map[uint16]field{}}
	if len(data) < 8 {
		return nil, errTruncated
	}
	if data[0] == 'M' {
		d.order = binary.BigEndian
	}
	// BigTIFF has 43 where TIFF has 42, and 8 bytes where it has 4 or 2.
	big := data[2] == 43 || data[3] == 43
	word, countSize, entry := uint64(4), uint64(2), uint64(12)
	at := uint64(d.order.Uint32(data[4:]))
	if big {
		if len(data) < 16 {
			return nil, errTruncated
		}
		word, countSize, entry = 8, 8, 20
		at = d.order.Uint64(data[8:])
	}
	if offset != 0 {
		at = offset
	}
	length := uint64(len(data))
	uint := func(at, size uint64) uint64 {
		switch size {
		case 2:
			return uint64(d.order.Uint16(data[at:]))
		case 4:
			return uint64(d.order.Uint32(data[at:]))
		}
		return d.order.Uint64(data[at:])
	}
	if at > length || length-at < countSize {
		return nil, errors.New("its directory lies outside the file")
	}
	count := uint(at, countSize)
	at += countSize
	outside := uint64(0) // bytes of values that are not in the directory
	for ; count > 0 && length-at >= entry; count, at = count-1, at+entry {
		tag, kind := d.order.Uint16(data[at:]), d.order.Uint16(data[at+2:])
		size, known := fieldSizes[kind]
		if _, seen := d.tags[tag]; seen || !known {
			continue
		}
		n := uint(at+4, word)
		if n > length { // more values than the file can hold
			outside = length
			continue
		}
		from := at + 4 + word
		if n*size > word {
			if from = uint(from, word); from >= 1<<63 {
				continue
			}
			if outside += n * size; outside > length {
				continue
			}
			if from > length || length-from < n*size {
				return d, nil
			}
		}
		d.tags[tag] = field{kind, data[from : from+n*size]}
	}
	return d, nil
}

// count returns how many whole numbers a tag has: none if it is missing or of another type.
func (d *ifd) count(tag uint16) int {
	f := d.tags[tag]
	switch f.kind {
	case typeShort, typeSShort, typeLong, typeIFD, typeSLong, typeLong8:
		return len(f.data) / int(fieldSizes[f.kind])
	}
	return 0
}

// at returns whole number i of a tag.
func (d *ifd) at(tag uint16, i int) int {
	f := d.tags[tag]
	v := f.data[i*int(fieldSizes[f.kind]):]
	switch f.kind {
	case typeShort:
		return int(d.order.Uint16(v))
	case typeSShort:
		return int(int16(d.order.Uint16(v)))
	case typeSLong:
		return int(int32(d.order.Uint32(v)))
	case typeLong8:
		return int(d.order.Uint64(v) & (1<<63 - 1))
	}
	return int(d.order.Uint32(v))
}

// ints returns the whole numbers of a tag; nil if it has none.
func (d *ifd) ints(tag uint16) []int {
	var values []int
	if n := d.count(tag); n > 0 {
		values = make([]int, n)
	}
	for i := range values {
		values[i] = d.at(tag, i)
	}
	return values
}

// int returns the first whole number of a tag, or the value of otherwise if there is none.
func (d *ifd) int(tag uint16, otherwise int) int {
	if d.count(tag) > 0 {
		return d.at(tag, 0)
	}
	return otherwise
}

// orientation returns the orientation, 1 to 8; 1, upright, if the file gives none.
func (d *ifd) orientation() int {
	if v := d.int(tagOrientation, 1); v >= 1 && v <= 8 {
		return v
	}
	return 1
}

// Taken returns when a photograph was taken, as an EXIF block says it: the text of
// DateTimeOriginal or else DateTime, such as 2026:01:31 23:59:59, and of the offset of its
// time zone, such as +01:00; "" where it does not say.
func Taken(exif []byte) (when, zone string) {
	d, err := readIFD(exif)
	if err != nil {
		return "", ""
	}
	text := func(d *ifd, tag uint16) string { return strings.Trim(string(d.tags[tag].data), "\x00 ") }
	when, zone = text(d, tagDateTime), ""
	if at := d.int(tagExifIFD, 0); at > 0 {
		if sub, err := readDirectory(exif, uint64(at)); err == nil && text(sub, tagDateTimeOriginal) != "" {
			when, zone = text(sub, tagDateTimeOriginal), text(sub, tagOffsetTimeOriginal)
		}
	}
	return when, zone
}

// Orientation returns the orientation that an EXIF block, which has the form of
// a TIFF file, gives: 1 to 8; 0 if it gives none.
func Orientation(exif []byte) int {
	d, err := readIFD(exif)
	if err != nil || d.tags[tagOrientation].data == nil {
		return 0
	}
	return d.orientation()
}
