package parts

import "testing"

// TestNames: every name is that of one shard, and others are of none.
func TestNames(t *testing.T) {
	for _, s := range []Shard{{1, 1}, {7, 12}, {65535, 65536}} {
		if got, ok := parse(name(s)); got != s || !ok {
			t.Errorf("%s: %v, %v", name(s), got, ok)
		}
	}
	for _, name := range []string{"", "part", "part-1-of-3", "part-00004-of-00003", "part-00000-of-00003", "part-00001-of-00003x", "parts-00001-of-00003"} {
		if s, ok := parse(name); ok {
			t.Errorf("%q is %v", name, s)
		}
	}
}
