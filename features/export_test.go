package features

import "bytes"

// ParseMeta is what reads features.json, EncodeMeta what writes it.
var ParseMeta, EncodeMeta = parseMeta, Meta.encode

// ParseImages is what reads images.jsonl.
func ParseImages(data []byte) (images []Image, err error) {
	err = readLines(bytes.NewReader(data), func(img Image) error {
		images = append(images, img)
		return nil
	})
	return images, err
}
