package safetensors

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"
)

// Write writes a safetensors file with its checksum. The bytes depend on the
// arguments only, and not on the order of tensors: metadata and header are in
// the order of keys and names; the data are too, but the types of eight bytes
// come first and U8 last, so that every value is aligned.
//
// A name that is empty or used twice, text that is not UTF-8, a shape that does
// not agree with its data, data of another type, and the reserved names
// __metadata__ and, in metadata, sha256, are errors; then nothing is written.
func Write(w io.Writer, metadata map[string]string, tensors []Tensor) error {
	sorted, err := sortTensors(tensors)
	if err != nil {
		return err
	}
	head, at, err := encodeHeader(metadata, sorted)
	if err != nil {
		return err
	}
	hash := sha256.New()
	// The checksum comes before what it sums up, hence two passes.
	if err := emit(hash, head, sorted); err != nil {
		return err
	}
	hex.Encode(head[at:], hash.Sum(nil))
	return emit(w, head, sorted)
}

// sortTensors checks the tensors and returns them in the order of their data.
func sortTensors(tensors []Tensor) ([]Tensor, error) {
	if len(tensors) > maxTensors {
		return nil, fmt.Errorf("safetensors: %d tensors are more than %d", len(tensors), maxTensors)
	}
	names := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		dtype, count := describe(t.Data)
		switch {
		case t.Name == "" || t.Name == metadataName || !utf8.ValidString(t.Name):
			return nil, fmt.Errorf("safetensors: tensor name %q cannot be used", t.Name)
		case names[t.Name]:
			return nil, fmt.Errorf("safetensors: two tensors are called %q", t.Name)
		case dtype == "":
			return nil, fmt.Errorf("safetensors: tensor %q holds %T, which cannot be written", t.Name, t.Data)
		case len(t.Shape) > maxDims:
			return nil, fmt.Errorf("safetensors: tensor %q has %d dimensions, more than %d", t.Name, len(t.Shape), maxDims)
		}
		if n, err := elements(t.Shape); err != nil || n != count {
			return nil, fmt.Errorf("safetensors: tensor %q has shape %v and %d values", t.Name, t.Shape, count)
		}
		names[t.Name] = true
	}
	return slices.SortedFunc(slices.Values(tensors), func(a, b Tensor) int {
		dtypeA, _ := describe(a.Data)
		dtypeB, _ := describe(b.Data)
		return cmp.Or(cmp.Compare(dtypeSizes[dtypeB], dtypeSizes[dtypeA]), cmp.Compare(a.Name, b.Name))
	}), nil
}

// describe returns the dtype and the number of values of a tensor's data.
func describe(data any) (dtype string, count int) {
	switch data := data.(type) {
	case []float32:
		return "F32", len(data)
	case []float64:
		return "F64", len(data)
	case []int64:
		return "I64", len(data)
	case []uint8:
		return "U8", len(data)
	}
	return "", 0
}

// info is a tensor's entry in the header.
type info struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

// encodeHeader returns the file's bytes up to the data, with zeros for the
// checksum, and the offset of the zeros.
func encodeHeader(metadata map[string]string, tensors []Tensor) (head []byte, at int, err error) {
	if len(metadata) > maxMetadata {
		return nil, 0, fmt.Errorf("safetensors: %d keys of metadata are more than %d", len(metadata), maxMetadata)
	}
	withSum := map[string]string{checksumKey: checksumZero}
	for key, value := range metadata {
		if key == checksumKey || !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, 0, fmt.Errorf("safetensors: metadata %q: %.50q cannot be written", key, value)
		}
		withSum[key] = value
	}
	infos := make(map[string]info, len(tensors))
	end := 0
	for _, t := range tensors {
		dtype, count := describe(t.Data)
		begin := end
		end += count * dtypeSizes[dtype]
		infos[t.Name] = info{dtype, append([]int{}, t.Shape...), [2]int{begin, end}}
	}

	// Written piece by piece, to know the offset of the checksum.
	b := bytes.NewBuffer(make([]byte, 8))
	sep := `{"` + metadataName + `":{`
	for _, key := range slices.Sorted(maps.Keys(withSum)) {
		fmt.Fprintf(b, "%s%s:", sep, mustMarshal(key))
		if key == checksumKey {
			at = b.Len() + 1
		}
		b.Write(mustMarshal(withSum[key]))
		sep = ","
	}
	b.WriteByte('}')
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		fmt.Fprintf(b, ",%s:%s", mustMarshal(name), mustMarshal(infos[name]))
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, 0, fmt.Errorf("safetensors: the header would have %d bytes, more than %d", b.Len()-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), at, nil
}

// mustMarshal encodes strings, numbers and structs of them, which cannot fail.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// emit writes the file's bytes.
func emit(w io.Writer, head []byte, tensors []Tensor) error {
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, t := range tensors {
		var err error
		switch data := t.Data.(type) {
		case []float32:
			err = emitValues(w, data)
		case []float64:
			err = emitValues(w, data)
		case []int64:
			err = emitValues(w, data)
		case []uint8:
			_, err = w.Write(data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// emitValues writes values by blocks, so that a large tensor is not doubled.
func emitValues[T float32 | float64 | int64](w io.Writer, values []T) error {
	for block := range slices.Chunk(values, 1<<15) {
		if err := binary.Write(w, binary.LittleEndian, block); err != nil {
			return err
		}
	}
	return nil
}
