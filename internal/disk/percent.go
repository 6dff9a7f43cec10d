package disk

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
