package safetensors

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Read reads the safetensors file at path as Parse does. Errors name the file.
func Read(path string) (*File, error) {
	// Mapped, since Parse copies: a large file is not in memory twice.
	data, unmap, err := disk.Map(path, disk.Tensors)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	defer unmap()
	file, err := Parse(data)
	if err != nil {
		return file, fmt.Errorf("read %s: %w", path, err)
	}
	return file, nil
}

// Parse reads a safetensors file from its bytes, which it copies.
//
// It checks that the header is well-formed and names nothing twice, that the
// tensors cover the data exactly, without holes or overlaps, that each has the
// bytes that its shape and type take, and the checksum. The error wraps ErrFormat,
// ErrChecksum or ErrNoChecksum. With ErrNoChecksum, and only then, the File is
// returned too, for a caller who has other reasons to trust it.
func Parse(data []byte) (*File, error) {
	if len(data) < 8 {
		return nil, formatErrorf("it has %d bytes, too few for a header", len(data))
	}
	length, rest := binary.LittleEndian.Uint64(data), data[8:]
	if length > maxHeader {
		return nil, formatErrorf("it begins like a file of another format")
	}
	if length > uint64(len(rest)) {
		return nil, formatErrorf("its header should have %d bytes, %d follow: it is cut short or of another format", length, len(rest))
	}
	h, err := parseHeader(rest[:length])
	if err != nil {
		return nil, err
	}
	body := rest[length:]
	// The checksum is compared before the tensors are read: if they are wrong,
	// damage is the likeliest reason.
	if h.sumAt > 0 && !checksumMatches(data, 8+h.sumAt) {
		return nil, ErrChecksum
	}
	file := &File{Metadata: h.metadata}
	slices.SortFunc(h.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]), cmp.Compare(a.name, b.name))
	})
	end := 0
	for _, e := range h.entries {
		if e.Offsets[0] != end || e.Offsets[1] < end || e.Offsets[1] > len(body) {
			return nil, formatErrorf("tensor %q lies at %d to %d, want it to begin at %d and to end by %d", e.name, e.Offsets[0], e.Offsets[1], end, len(body))
		}
		end = e.Offsets[1]
		t, err := e.tensor(body[e.Offsets[0]:end])
		if err != nil {
			return nil, err
		}
		file.Tensors = append(file.Tensors, t)
	}
	if end != len(body) {
		return nil, formatErrorf("its tensors take %d bytes, %d are there", end, len(body))
	}
	if h.sumAt == 0 {
		return file, ErrNoChecksum
	}
	return file, nil
}

// checksumMatches compares the 64 digits at data[at:] with what they should be.
func checksumMatches(data []byte, at int) bool {
	hash := sha256.New()
	hash.Write(data[:at])
	hash.Write([]byte(checksumZero))
	hash.Write(data[at+len(checksumZero):])
	return hex.EncodeToString(hash.Sum(nil)) == string(data[at:at+len(checksumZero)])
}

type header struct {
	metadata map[string]string
	sumAt    int // offset of the checksum's digits in the header, 0 without a checksum
	entries  []entry
}

type entry struct {
	name string
	info
}

// parseHeader reads the header token by token: encoding/json alone would let
// names appear twice, null stand for zero, and unknown fields pass.
func parseHeader(text []byte) (*header, error) {
	if len(text) == 0 || text[0] != '{' || !utf8.Valid(text) || !json.Valid(text) {
		return nil, formatErrorf("its header is not a JSON object")
	}
	h := &header{metadata: make(map[string]string)}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err := object(dec, func(name string) error {
		if name == metadataName {
			return h.parseMetadata(dec, text)
		}
		if len(h.entries) == maxTensors {
			return fmt.Errorf("it is one of more than %d tensors", maxTensors)
		}
		h.entries = append(h.entries, entry{name: name})
		return h.entries[len(h.entries)-1].parse(dec)
	})
	if err != nil {
		return nil, formatErrorf("its header: %w", err)
	}
	return h, nil
}

func (h *header) parseMetadata(dec *json.Decoder, text []byte) error {
	return object(dec, func(key string) error {
		token, err := dec.Token()
		value, ok := token.(string)
		if err != nil || !ok {
			return errors.Join(fmt.Errorf("it is %v, want a string", token), err)
		}
		if key != checksumKey {
			if len(h.metadata) == maxMetadata {
				return fmt.Errorf("it is one of more than %d keys", maxMetadata)
			}
			h.metadata[key] = value
			return nil
		}
		end := int(dec.InputOffset())
		h.sumAt = end - len(checksumZero) - 1
		// Escapes would make the digits longer than they should be.
		if len(value) != len(checksumZero) || string(text[h.sumAt-1:end]) != `"`+value+`"` {
			return fmt.Errorf("it is %.80q, want 64 digits", value)
		}
		return nil
	})
}

func (e *entry) parse(dec *json.Decoder) error {
	fields := 0
	err := object(dec, func(field string) (err error) {
		fields++
		switch field {
		case "dtype":
			token, err := dec.Token()
			if e.DType, _ = token.(string); dtypeSizes[e.DType] == 0 {
				return errors.Join(fmt.Errorf("it is %v, want F32, F64, I64 or U8", token), err)
			}
			return nil
		case "shape":
			e.Shape, err = ints(dec, maxDims)
			return err
		case "data_offsets":
			offsets, err := ints(dec, 2)
			if err == nil && len(offsets) != 2 {
				err = fmt.Errorf("it has %d numbers, want 2", len(offsets))
			}
			if err == nil {
				e.Offsets = [2]int(offsets)
			}
			return err
		}
		return errors.New("it is unknown")
	})
	if err == nil && fields != 3 {
		err = fmt.Errorf("%q lacks one of dtype, shape and data_offsets", e.name)
	}
	return err
}

// object reads a JSON object. It calls value for each name, to read the value from
// dec, and puts the name before an error of value.
func object(dec *json.Decoder, value func(name string) error) error {
	token, err := dec.Token()
	if token != json.Delim('{') {
		return errors.Join(fmt.Errorf("it is %v, want an object", token), err)
	}
	seen := make(map[string]bool)
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		name := token.(string) // JSON has no other keys
		if seen[name] {
			return fmt.Errorf("%q appears twice", name)
		}
		seen[name] = true
		if err := value(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	_, err = dec.Token()
	return err
}

// ints reads a JSON array of at most so many integers, none below zero.
func ints(dec *json.Decoder, most int) ([]int, error) {
	token, err := dec.Token()
	if token != json.Delim('[') {
		return nil, errors.Join(fmt.Errorf("it is %v, want an array", token), err)
	}
	values := []int{}
	for dec.More() {
		token, err := dec.Token()
		number, _ := token.(json.Number)
		n, parseErr := strconv.ParseUint(string(number), 10, strconv.IntSize-1)
		if err != nil || parseErr != nil {
			return nil, errors.Join(fmt.Errorf("it holds %v, want sizes", token), err)
		}
		if len(values) == most {
			return nil, fmt.Errorf("it has more than %d numbers", most)
		}
		values = append(values, int(n))
	}
	_, err = dec.Token()
	return values, err
}

// tensor decodes the tensor's bytes.
func (e entry) tensor(body []byte) (Tensor, error) {
	count, err := elements(e.Shape)
	if err != nil {
		return Tensor{}, formatErrorf("tensor %q: %w", e.name, err)
	}
	if want := count * dtypeSizes[e.DType]; want != len(body) {
		return Tensor{}, formatErrorf("tensor %q has %d bytes, shape %v of %s takes %d", e.name, len(body), e.Shape, e.DType, want)
	}
	var data any
	switch e.DType {
	case "F32":
		data = make([]float32, count)
	case "F64":
		data = make([]float64, count)
	case "I64":
		data = make([]int64, count)
	case "U8":
		data = make([]uint8, count)
	}
	if _, err := binary.Decode(body, binary.LittleEndian, data); err != nil {
		return Tensor{}, formatErrorf("tensor %q: %w", e.name, err)
	}
	return Tensor{Name: e.name, Shape: e.Shape, Data: data}, nil
}

// elements returns the number of values of a shape. Their size in bytes fits in
// an int, whatever their type, even if a dimension of zero were left out.
func elements(shape []int) (int, error) {
	room, count := math.MaxInt/8, 1
	for _, n := range shape {
		if n < 0 || n > room {
			return 0, fmt.Errorf("shape %v is too large or negative", shape)
		}
		room /= max(n, 1)
		count *= n
	}
	return count, nil
}
