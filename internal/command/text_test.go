package command

import "testing"

func TestPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"a b/ünïcode.png": "a b/ünïcode.png",
		"two\nlines.png":  `"two\nlines.png"`,
		"\x1b[31mred":     `"\x1b[31mred"`,
		"\xff.png":        `"\xff.png"`,
	} {
		if got := Printable(name); got != want {
			t.Errorf("Printable(%q) = %s, want %s", name, got, want)
		}
	}
}
