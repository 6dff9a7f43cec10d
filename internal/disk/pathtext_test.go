package disk

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEncodePercent(t *testing.T) {
	tests := []struct{ path, want string }{
		{"cat/1.png", "cat/1.png"},
		{"käse/\U0001F9C0.png", "käse/\U0001F9C0.png"},
		{"\xff\xfe", "%FF%FE"},
		{"100%.png", "100%.png"},
		{"100%ff.png", "100%25ff.png"},
		{"%\xff", "%%FF"},
		{"%4\xff1", "%4%FF1"},
		{"replaced \uFFFD", "replaced \uFFFD"},
		{"", ""},
	}
	for _, test := range tests {
		if got := EncodePercent(test.path); got != test.want {
			t.Errorf("EncodePercent(%q) = %q, want %q", test.path, got, test.want)
		}
		if got := DecodePercent(test.want); got != test.path {
			t.Errorf("DecodePercent(%q) = %q, want %q", test.want, got, test.path)
		}
	}
}

func FuzzEncodePercent(f *testing.F) {
	f.Add("a%ff\xff%")
	f.Fuzz(func(t *testing.T, path string) {
		encoded := EncodePercent(path)
		if decoded := DecodePercent(encoded); decoded != path {
			t.Fatalf("%q became %q, then %q", path, encoded, decoded)
		}
		if strings.ToValidUTF8(encoded, "") != encoded {
			t.Fatalf("%q became %q", path, encoded)
		}
	})
}

func TestEncode(t *testing.T) {
	for _, test := range []struct{ path, want string }{
		{"cat/1.png", "cat/1.png"},
		{"scan%20001.jpg", "scan%20001.jpg"},
		{"100%ff.png", "100%ff.png"},
		{"\\xff\n\t\"", "\\xff\n\t\""},
		{"replaced \uFFFD", "replaced \uFFFD"},
		{"\xff\xfe", "\x00ff\x00fe"},
		{"k\u00e4se/\xe4%FF", "k\u00e4se/\x00e4%FF"},
		{"", ""},
	} {
		if got := EncodePath(test.path); got != test.want {
			t.Errorf("Encode(%q) = %q, want %q", test.path, got, test.want)
		}
		if got := DecodePath(test.want); got != test.path {
			t.Errorf("Decode(%q) = %q, want %q", test.want, got, test.path)
		}
		if got := PathBytes(test.path); (got == nil) != (test.path == test.want) || got != nil && string(got) != test.path {
			t.Errorf("Bytes(%q) = %q", test.path, got)
		}
	}
	for _, odd := range []string{"\x00", "\x00f", "\x00zz", "a\x00"} {
		if got := DecodePath(odd); got != odd {
			t.Errorf("Decode(%q) = %q", odd, got)
		}
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("a%ff\xff%")
	f.Fuzz(func(t *testing.T, path string) {
		path = strings.ReplaceAll(path, "\x00", "")
		text, err := json.Marshal(EncodePath(path))
		var back string
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || DecodePath(back) != path {
			t.Fatalf("%q became %q, then %q: %v", path, text, DecodePath(back), err)
		}
	})
}
