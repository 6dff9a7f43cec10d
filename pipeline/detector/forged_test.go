package detector

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// oddNumbers are what a tensor may be filled with.
var oddNumbers = []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 1e300, -1e300, 5e-324}

// forgeTensor returns what may stand in a tensor's place. A nil Data means that the
// tensor is missing.
func forgeTensor(t safetensors.Tensor) (forged []safetensors.Tensor) {
	add := func(data any, shape ...int) {
		forged = append(forged, safetensors.Tensor{Name: t.Name, Shape: shape, Data: data})
	}
	add(nil)
	switch data := t.Data.(type) {
	case []float32:
		for _, v := range oddNumbers {
			add(slices.Repeat([]float32{float32(v)}, len(data)), t.Shape...)
		}
		if len(data) > 0 {
			one := slices.Clone(data)
			one[len(one)/2] = float32(math.NaN())
			add(one, t.Shape...)
			add(data[1:], len(data)-1)
		}
		add([]float32{}, 0)
		wide := make([]float64, len(data))
		for i, v := range data {
			wide[i] = float64(v)
		}
		add(wide, t.Shape...)
	case []float64:
		for _, v := range oddNumbers {
			add(slices.Repeat([]float64{v}, len(data)), t.Shape...)
		}
		if len(data) > 0 {
			one := slices.Clone(data)
			one[len(one)/2] = math.NaN()
			add(one, t.Shape...)
			add(data[1:], len(data)-1)
			backwards := slices.Clone(data)
			slices.Reverse(backwards)
			add(backwards, t.Shape...)
		}
		add([]float64{}, 0)
		add(make([]float32, len(data)), t.Shape...)
	case []int64:
		for _, v := range []int64{-1, 1, math.MaxInt64, math.MinInt64, 1 << 40} {
			add(slices.Repeat([]int64{v}, len(data)), t.Shape...)
		}
		add([]int64{}, 0)
	case []uint8:
		for _, v := range []uint8{0, 1, 255} {
			add(slices.Repeat([]uint8{v}, len(data)), t.Shape...)
		}
		add([]uint8{}, 0)
	}
	if n := len(t.Shape); n > 1 && t.Shape[0] != t.Shape[n-1] {
		turned := slices.Clone(t.Shape)
		slices.Reverse(turned)
		add(t.Data, turned...)
		add(t.Data, product(t.Shape))
	}
	add(t.Data, append([]int{1}, t.Shape...)...)
	return forged
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// forgeMetadata returns the metadata of a detector with each value, at any depth,
// replaced in turn.
func forgeMetadata(t testing.TB, text string) (forged []string) {
	t.Helper()
	var whole any
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		t.Fatal(err)
	}
	odd := []json.RawMessage{
		[]byte(`null`), []byte(`-1`), []byte(`0`), []byte(`0.5`), []byte(`1e308`), []byte(`-1e308`), []byte(`9007199254740993`), []byte(`1e400`), []byte(`""`),
		[]byte(`"\u001b]0;x\u0007\u202e"`), []byte(`"../../etc/passwd"`), []byte(`"/dev/zero"`), []byte(`[]`), []byte(`{}`), []byte(`[[]]`), []byte(`true`),
	}
	for name := range strings.FieldsSeq("NaN Infinity -Infinity") { // no JSON
		odd = append(odd, []byte(name))
	}
	put := func(set func(v any), old any) {
		for _, v := range odd {
			set(v)
			if changed, err := json.Marshal(whole); err == nil {
				forged = append(forged, string(changed))
			} else { // a value that is no JSON
				set("\x00here")
				changed, err := json.Marshal(whole)
				if err != nil {
					t.Fatal(err)
				}
				forged = append(forged, strings.Replace(string(changed), `"\u0000here"`, string(v), 1))
			}
		}
		set(old)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				old := v[key]
				put(func(odd any) { v[key] = odd }, old)
				walk(old)
			}
		case []any:
			for i, old := range v[:min(len(v), 3)] {
				put(func(odd any) { v[i] = odd }, old)
				walk(old)
			}
			if len(v) > 1 {
				last := v[len(v)-1]
				put(func(odd any) { v[len(v)-1] = v[0] }, last) // one twice
			}
		}
	}
	walk(whole)
	return append(forged, `null`, `[]`, `{}`, ``, strings.Repeat(`[`, 1e5), strings.Repeat(`{"version":`, 1e5))
}

// TestForgedDetectors alters each tensor and each value of the metadata of detectors
// of all formats and scores, with a checksum that fits. Each forgery is refused, or
// judges images by numbers.
func TestForgedDetectors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("thousands of detectors")
	}
	files, err := filepath.Glob("testdata/version*.safetensors")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	scores, err := filepath.Glob("testdata/scores/*.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, scores...) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".safetensors"), func(t *testing.T) {
			good, err := safetensors.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			for at, old := range good.Tensors {
				if slices.Contains(scores, path) && !strings.HasPrefix(old.Name, scoresPrefix) {
					continue // the versions have it
				}
				for i, forged := range forgeTensor(old) {
					tensors := slices.Clone(good.Tensors)
					if tensors[at] = forged; forged.Data == nil {
						tensors = slices.Delete(tensors, at, at+1)
					}
					judgeForged(t, fmt.Sprintf("%s, %d: %v %.60v", old.Name, i, forged.Shape, forged.Data), good.Metadata, tensors)
				}
			}
			if name := filepath.Base(path); name != "version4.safetensors" && name != "ensemble.safetensors" {
				return // the metadata hardly differ
			}
			for _, text := range forgeMetadata(t, good.Metadata[metadataKey]) {
				metadata := maps.Clone(good.Metadata)
				metadata[metadataKey] = text
				judgeForged(t, text, metadata, good.Tensors)
			}
		})
	}
}

// judgeForged reads a detector and, if it is not refused, judges rows.
func judgeForged(t *testing.T, what string, metadata map[string]string, tensors []safetensors.Tensor) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: panic: %v", what, p)
		}
	}()
	d, err := parseDetector(&safetensors.File{Metadata: metadata, Tensors: tensors})
	if err != nil {
		return
	}
	x := make([]float32, 3*d.Dim())
	for i := range x {
		x[i] = float32(i%7)/3 - float32(i/d.Dim())
	}
	for i, v := range verdictsOf(t, d, x) {
		_, err := json.Marshal(v) // which refuses NaN and infinities
		if err != nil || v.Class == "" {
			t.Errorf("%s: row %d is judged %+v", what, i, v)
			return
		}
	}
	judge := d.VerdictFunc()
	judge(x)
}
