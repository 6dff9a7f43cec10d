package command

import "testing"

func TestBytes(t *testing.T) {
	for text, want := range map[string]struct {
		bytes Bytes
		shown string
	}{
		"1GiB": {1 << 30, "1GiB"}, "1.5KiB": {1536, "1536B"}, "512MiB": {512 << 20, "512MiB"}, "1000": {1000, "1000B"}, "2048B": {2048, "2KiB"},
	} {
		var b Bytes
		if err := b.Set(text); err != nil || b != want.bytes || b.String() != want.shown {
			t.Errorf("%s: %d, %s, %v", text, b, b.String(), err)
		}
	}
	for _, text := range []string{"", "lots", "-1", "0", "1GB", "NaN", "1e30TiB"} {
		if err := new(Bytes).Set(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
