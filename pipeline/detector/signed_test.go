package detector

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/signature"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

const signedKey = "RWRHaCgszjM9Rn1Hd5aC6Ze53VSscmQ+J6YDyLvpnDB38wJfdNgAgcem"

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestLoadSigned checks signatures that minisign itself made.
func TestLoadSigned(t *testing.T) {
	t.Parallel()
	from := filepath.Join("testdata", "version3.safetensors")
	in := func(name string) string { return filepath.Join("testdata", "signed", name) }
	detector, valid, legacy := read(t, from), read(t, in("version3.minisig")), read(t, in("legacy.minisig"))
	replaced := func(data []byte, old, new string) []byte {
		if !bytes.Contains(data, []byte(old)) {
			t.Fatalf("%q lacks %q", data, old)
		}
		return bytes.Replace(data, []byte(old), []byte(new), 1)
	}
	altered := bytes.Clone(detector)
	altered[len(altered)-1] ^= 1
	for name, test := range map[string]struct {
		detector, signature []byte
		key                 string
		says                string // "" for a valid one
	}{
		"valid":                {detector, valid, signedKey, ""},
		"valid, key of a file": {detector, valid, in("test.pub"), ""},
		"altered":              {altered, valid, signedKey, "of another file"},
		"not a detector":       {[]byte("none"), valid, signedKey, "of another file"},
		"empty":                {nil, valid, signedKey, "of another file"},
		"another comment":      {detector, replaced(valid, "timestamp:0", "timestamp:1"), signedKey, "altered"},
		"another key":          {detector, valid, in("other.pub"), "by the key 463D33CE2C286847, not by CECA592E50BC9438"},
		"another key's name":   {detector, replaced(valid, "RURHaCgszjM9R", "RUQ4lLxQLlnKz"), in("other.pub"), "of another file"},
		"an old kind":          {detector, legacy, signedKey, "old kind"},
		"old as new":           {detector, replaced(legacy, "RWRHaCgs", "RURHaCgs"), signedKey, "of another file"},
		"no signature":         {detector, []byte{}, signedKey, "invalid signature"},
		"cut short":            {detector, valid[:100], signedKey, "invalid signature"},
		"none":                 {detector, nil, signedKey, "no such file"},
		"a signature of 1 MB":  {detector, append(bytes.Clone(valid), make([]byte, 1<<20)...), signedKey, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "d")
			err := os.WriteFile(file, test.detector, 0o666)
			if test.signature != nil {
				err = errors.Join(err, os.WriteFile(file+signature.Suffix, test.signature, 0o666))
			}
			if err != nil {
				t.Fatal(err)
			}
			d, err := LoadSigned(file, test.key)
			switch {
			case test.says == "" && (err != nil || len(d.Classes) != 3):
				t.Error(err)
			case test.says != "" && (!errors.Is(err, ErrSignature) || errors.Is(err, ErrDetector) || !strings.Contains(err.Error(), test.says)):
				t.Errorf("%v, want it to say %q", err, test.says)
			}
		})
	}
	for _, key := range []string{"", signedKey[1:], from, "absent"} {
		if _, err := LoadSigned(from, key); options.Name(err) != "PublicKey" {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// TestSignAsMinisign: Ed25519 leaves no choice, so that what minisign signed is
// signed here with the same bytes.
func TestSignAsMinisign(t *testing.T) {
	t.Parallel()
	in := func(name string) string { return filepath.Join("testdata", "signed", name) }
	got, key, err := signature.Sign(bytes.NewReader(read(t, filepath.Join("testdata", "version3.safetensors"))), read(t, in("test.key")), nil, "timestamp:0\tfile:version3.safetensors\thashed")
	if want := read(t, in("version3.minisig")); err != nil || !bytes.Equal(got, want) || key.String() != signedKey {
		t.Errorf("%s by %s, %v; want %s", got, key, err, want)
	}
	if _, _, err := signature.Sign(strings.NewReader(""), read(t, in("test.pub")), nil, ""); err == nil {
		t.Error("a public key signs")
	}
}

// TestSignedModel: a signature covers the model, which is named by its hash.
func TestSignedModel(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	d, err := Load(filepath.Join("testdata", "version3.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	d.signed, d.Source = true, Source{Model: "elsewhere"}
	if _, err := d.OpenBackbone(t.Context(), t.TempDir(), extractor.Options{}); !errors.Is(err, ErrDetector) {
		t.Errorf("without a hash: %v", err)
	}
	// The model is another, and is not even opened: it is an empty graph.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), []byte{0x3a, 0}, 0o666); err != nil {
		t.Fatal(err)
	}
	d.Source.SHA256, d.Source.Fingerprint = strings.Repeat("0", 64), strings.Repeat("0", 64)
	if _, err := d.OpenBackbone(t.Context(), dir, extractor.Options{}); !errors.Is(err, ErrOtherModel) {
		t.Errorf("another model: %v", err)
	}
}
