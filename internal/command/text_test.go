package command

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

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

func TestForPeople(t *testing.T) {
	for text, want := range map[string]string{
		"a line\twith ünïcode, 日本\n":  "a line\twith ünïcode, 日本\n",
		"\x1b[2Jgone\r\n":             `\x1b[2Jgone\r` + "\n",
		"\u009b31m":                   `\u009b31m`,
		"abc\u202egnp.exe":            `abc\u202egnp.exe`,
		"cut \xff":                    `cut \xff`,
		"a\x00b\x7f\u2028\U000e0001":  `a\x00b\x7f\u2028\U000e0001`,
		"its own replacement: \ufffd": "its own replacement: \ufffd",
	} {
		var b strings.Builder
		if n, err := ForPeople(ForPeople(&b)).Write([]byte(text)); n != len(text) || err != nil || b.String() != want {
			t.Errorf("%q becomes %q, want %q (%d, %v)", text, b.String(), want, n, err)
		}
	}
}

// FuzzJSON: a line of JSON says what went in and has nothing in it that a
// terminal obeys.
func FuzzJSON(f *testing.F) {
	f.Add("\x1b[31m")
	f.Add("\u009b\u202e\U000e0001<>&")
	f.Fuzz(func(t *testing.T, text string) {
		var b strings.Builder
		if err := writeJSON(&b, text); err != nil {
			t.Fatal(err)
		}
		if escape(strings.TrimSuffix(b.String(), "\n")) != strings.TrimSuffix(b.String(), "\n") {
			t.Errorf("%q becomes %q", text, b.String())
		}
		var back string
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != strings.ToValidUTF8(text, "\ufffd") && utf8.ValidString(text) {
			t.Errorf("%q comes back as %q, %v", text, back, err)
		}
	})
}

func TestHarmless(t *testing.T) {
	for cell, want := range map[string]string{
		"": "", "a.png": "a.png", "=1+1": "'=1+1", "+1": "'+1", "-rf.png": "'-rf.png", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "a=1": "a=1",
	} {
		if got := harmless(cell); got != want {
			t.Errorf("%q becomes %q, want %q", cell, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range []string{"0 images", "1 image", "2 images"} {
		if got := count(n, "image"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := count(2, "class"); got != "2 classes" {
		t.Error(got)
	}
}
