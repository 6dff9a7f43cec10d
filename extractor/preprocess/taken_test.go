package preprocess

import (
	"encoding/binary"
	"testing"
	"time"
)

// exifJPEG is the beginning of a JPEG with an EXIF block that has these texts.
func exifJPEG(order binary.AppendByteOrder, changed, taken, zone string) []byte {
	block := []byte("II*\x00\x08\x00\x00\x00")
	if order == binary.BigEndian {
		block = []byte("MM\x00*\x00\x00\x00\x08")
	}
	var tail []byte
	entry := func(tag, kind uint16, n int, value uint32) []byte {
		b := order.AppendUint16(order.AppendUint16(nil, tag), kind)
		return order.AppendUint32(order.AppendUint32(b, uint32(n)), value)
	}
	text := func(tag uint16, s string) []byte {
		at := 8 + 2 + 2*12 + 4 + 2 + 2*12 + 4 + len(tail)
		tail = append(append(tail, s...), 0, 0, 0, 0)
		return entry(tag, 2, len(s)+1, uint32(at))
	}
	block = append(order.AppendUint16(block, 2), text(306, changed)...)
	block = append(block, entry(0x8769, 4, 1, 8+2+2*12+4)...)
	block = order.AppendUint16(order.AppendUint32(block, 0), 2)
	block = append(append(block, text(0x9003, taken)...), text(0x9011, zone)...)
	block = append(order.AppendUint32(block, 0), tail...)
	segment := append([]byte(exifHeader), block...)
	return append(binary.BigEndian.AppendUint16([]byte("\xff\xd8\xff\xe1"), uint16(len(segment)+2)), segment...)
}

func TestTaken(t *testing.T) {
	t.Parallel()
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, tt := range []struct{ changed, taken, zone, want string }{
			{"2026:02:01 00:00:00", "2026:01:31 23:59:59", "+01:00", "2026-01-31T22:59:59Z"},
			{"2026:02:01 00:00:00", "2026:01:31 23:59:59", "      ", "2026-01-31T23:59:59Z"},
			{"2026:02:01 00:00:00", "    ", "      ", "2026-02-01T00:00:00Z"},
			{"0000:00:00 00:00:00", "    :  :     :  :  ", "", ""},
		} {
			at, ok := Taken(exifJPEG(order, tt.changed, tt.taken, tt.zone))
			if got := at.UTC().Format(time.RFC3339); ok != (tt.want != "") || ok && got != tt.want {
				t.Errorf("%+v: %s, %v", tt, got, ok)
			}
		}
		whole := exifJPEG(order, "2026:02:01 00:00:00", "2026:01:31 23:59:59", "+01:00")
		for n := range whole {
			Taken(whole[:n]) // which must not fail
		}
	}
	for _, data := range []string{"", "no image", "\xff\xd8\xff", "\x89PNG\r\n\x1a\n"} {
		if at, ok := Taken([]byte(data)); ok {
			t.Errorf("%q was taken at %v", data, at)
		}
	}
}
