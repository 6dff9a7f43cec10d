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

// CopyUsers counts those who use or wait for copies of sets in buckets.
func CopyUsers() (n int) {
	copies.Lock()
	defer copies.Unlock()
	for _, c := range copies.open {
		n += c.users
	}
	return n
}
