package disk

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// This file writes paths, which may have any bytes but NUL, as UTF-8 text,
// for JSON. [EncodePath] is for what is written now; [EncodePercent] is the form that
// detectors and old feature sets have.

// EncodePath returns the path as it is if it is UTF-8. In any other path, each byte
// that is not UTF-8 becomes a NUL and two hexadecimal digits. No path has a NUL,
// so the text is unambiguous.
func EncodePath(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	var b strings.Builder
	for len(path) > 0 {
		r, size := utf8.DecodeRuneInString(path)
		if r == utf8.RuneError && size == 1 {
			b.WriteByte(0)
			b.WriteString(hex.EncodeToString([]byte{path[0]}))
		} else {
			b.WriteString(path[:size])
		}
		path = path[size:]
	}
	return b.String()
}

// DecodePath is the inverse of Encode.
func DecodePath(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "\x00")
		if b.WriteString(before); !found {
			return b.String()
		}
		if c, err := hex.DecodeString(after[:min(2, len(after))]); err == nil && len(c) == 1 {
			b.WriteByte(c[0])
			after = after[2:]
		} else {
			b.WriteByte(0) // which Encode never wrote
		}
		text = after
	}
}

// PathBytes returns the bytes of a path that Encode changes, and nil of any other,
// for programs that would rather read those.
func PathBytes(path string) []byte {
	if utf8.ValidString(path) {
		return nil
	}
	return []byte(path)
}
