package jpeg

import (
	"slices"
	"testing"
)

// TestRGBA: colours are clipped on both sides and truncated, not rounded.
func TestRGBA(t *testing.T) {
	var m YCbCr
	for i := range 256 {
		m.Y[i] = int32(i) << 16
		m.CrR[i] = int32(i-128) << 17
		m.CbG[i], m.CrG[i] = int32(i-128)<<15, int32(128-i)<<14
		m.CbB[i] = int32(128-i) << 17
	}
	got := make([]uint8, 12)
	m.RGBA(got, []uint8{100, 100, 7}, []uint8{128, 255, 129}, []uint8{128, 0, 128})
	want := []uint8{
		100, 100, 100, 255,
		0, 195, 0, 255, // 100-256, 100+63.5+32, 100-254
		7, 7, 5, 255, // 7, 7.5, 7-2
	}
	if !slices.Equal(got, want) {
		t.Errorf("colours are %v, want %v", got, want)
	}
	m.RGBA(got[:4], []uint8{100}, []uint8{0}, []uint8{255})
	if want := []uint8{255, 4, 255, 255}; !slices.Equal(got[:4], want) { // 100+254, 100-64-31.75, 100+256
		t.Errorf("colours are %v, want %v", got[:4], want)
	}
}
