package preprocess

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
)

// Tags of TIFF and EXIF.
const (
	tagCompression   = 259
	tagPhotometric   = 262
	tagFillOrder     = 266
	tagOrientation   = 274
	tagSamples       = 277
	tagPlanarLayout  = 284
	tagGroup3Options = 292
)

// tag returns the first value of a tag in the first directory of a TIFF file or
// EXIF block; otherwise where there is none that is a whole number.
func tag(tiff []byte, number uint16, otherwise int) int {
	const entry, asByte, asShort, asLong = 12, 1, 3, 4
	var order binary.ByteOrder = binary.LittleEndian
	if bytes.HasPrefix(tiff, []byte("MM")) {
		order = binary.BigEndian
	}
	if len(tiff) < 8 {
		return otherwise
	}
	at := int(order.Uint32(tiff[4:]))
	if at+2 > len(tiff) {
		return otherwise
	}
	count := int(order.Uint16(tiff[at:]))
	for at += 2; count > 0 && at+entry <= len(tiff); count, at = count-1, at+entry {
		if order.Uint16(tiff[at:]) != number {
			continue
		}
		switch order.Uint16(tiff[at+2:]) {
		case asByte:
			return int(tiff[at+8])
		case asShort:
			return int(order.Uint16(tiff[at+8:]))
		case asLong:
			return int(order.Uint32(tiff[at+8:]))
		}
		return otherwise
	}
	return otherwise
}

// isFax tells whether a TIFF has one of the CCITT compressions 3 and 4.
func isFax(tiff []byte) bool {
	compression := tag(tiff, tagCompression, 1)
	return compression == 3 || compression == 4
}

// checkTIFF refuses what golang.org/x/image/tiff would read without a word and
// get wrong.
func checkTIFF(tiff []byte) error {
	fax := isFax(tiff)
	photometric := tag(tiff, tagPhotometric, 0)
	switch {
	case tag(tiff, tagPlanarLayout, 1) == 2 && tag(tiff, tagSamples, 1) > 1:
		return errors.New("separate planes for each colour (PlanarConfiguration 2) are not supported")
	case fax && photometric > 1:
		return fmt.Errorf("PhotometricInterpretation %d with CCITT compression is not supported", photometric)
	case tag(tiff, tagCompression, 1) == 3 && tag(tiff, tagGroup3Options, 0)&1 != 0:
		return errors.New("two-dimensional CCITT group 3 compression is not supported")
	case !fax && tag(tiff, tagFillOrder, 1) == 2:
		return errors.New("bits from the lowest up (FillOrder 2) are not supported without CCITT compression")
	}
	return nil
}

// invertFax corrects the pixels of a TIFF in which CCITT's white is black
// (PhotometricInterpretation 1): golang.org/x/image/tiff takes it for white.
func invertFax(tiff []byte, decoded image.Image) {
	if grey, ok := decoded.(*image.Gray); ok && isFax(tiff) && tag(tiff, tagPhotometric, 0) == 1 {
		for i := range grey.Pix {
			grey.Pix[i] ^= 0xff
		}
	}
}
