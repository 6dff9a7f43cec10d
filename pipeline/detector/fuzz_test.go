package detector

import (
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// FuzzParseDetector checks that no metadata breaks the reader of detectors,
// whatever the checksum says.
func FuzzParseDetector(f *testing.F) {
	var tensors [5][]safetensors.Tensor
	for i, name := range []string{"version1", "version2", "version3", "version4", "version5"} {
		file, err := safetensors.Read(filepath.Join("testdata", name+".safetensors"))
		if err != nil {
			f.Fatal(err)
		}
		tensors[i] = file.Tensors
		f.Add(file.Metadata[metadataKey], i)
	}
	version4, err := safetensors.Read(filepath.Join("testdata", "version4.safetensors"))
	if err != nil {
		f.Fatal(err)
	}
	for i, text := range forgeMetadata(f, version4.Metadata[metadataKey]) {
		if i%16 == 0 { // or the baseline takes most of the time
			f.Add(text, 3)
		}
	}
	for _, text := range []string{`{"version":3}`, `{"version":1e99}`, `{"version":2,"classes":null,"heads":1000000000}`, `{"version":3,"classes":["a\u001b[31m"],"heads":[{}],"layers":-1}`, `null`, `[`} {
		f.Add(text, 2)
	}
	f.Fuzz(func(t *testing.T, metadata string, set int) {
		d, err := parseDetector(&safetensors.File{Metadata: map[string]string{metadataKey: metadata}, Tensors: tensors[uint(set)%5]})
		if (d == nil) == (err == nil) {
			t.Errorf("%v and %v", d, err)
		}
	})
}
