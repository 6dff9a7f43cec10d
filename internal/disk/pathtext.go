package disk

import (
	"encoding/hex"
	"fmt"
	"strconv"
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

// EncodePercent makes a path UTF-8 as detectors, and feature sets of versions 1 and
// 2, have it: bytes that are not UTF-8 become %XX, and a % that could be read as
// the start of such a code becomes %25. Nearly all paths stay as they are.
func EncodePercent(path string) string {
	if utf8.ValidString(path) && !strings.Contains(path, "%") {
		return path
	}
	var b strings.Builder
	for i, r := range path {
		_, isByte := unescape(path[i:])
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(path[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, "%%%02X", path[i])
		case isByte:
			b.WriteString("%25")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// DecodePercent is the inverse of EncodePercent.
func DecodePercent(path string) string {
	var b strings.Builder
	for {
		before, _, found := strings.Cut(path, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		path = path[len(before):]
		if c, ok := unescape(path); ok {
			b.WriteByte(c)
			path = path[3:]
		} else {
			b.WriteByte('%')
			path = path[1:]
		}
	}
}

// unescape returns the byte that the %XX at the front of s stands for.
func unescape(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:3], 16, 8)
	return byte(n), err == nil
}
