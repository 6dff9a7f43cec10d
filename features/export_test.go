package features

import "bytes"

// ParseMeta reads features.json, EncodeMeta writes it.
var ParseMeta, EncodeMeta = parseMeta, Meta.encode

// ParseImages reads images.jsonl.
func ParseImages(data []byte) (images []Image, err error) {
	err = readLines(bytes.NewReader(data), func(img Image) error {
		images = append(images, img)
		return nil
	})
	return images, err
}
