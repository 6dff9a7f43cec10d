package serve

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// This file reads and writes the inference requests of the Open Inference
// Protocol, version 2, as KServe and Triton have it over HTTP: JSON, and the binary
// extension, where the bytes of tensors follow the JSON. It knows no detector.
//
// https://github.com/kserve/open-inference-protocol, and Triton's
// docs/protocol/extension_binary_data.md.

// headerLength is the header that says how many bytes of a body are its JSON. Without
// it all are.
const headerLength = "Inference-Header-Content-Length"

// The types of tensors that a request may have.
const (
	inferBytes = "BYTES"
	FP32       = "FP32"
)

// errInfer is wrapped by the errors of requests that cannot be read.
var errInfer = errors.New("not a request of the Open Inference Protocol")

// inferRequest is an inference request.
type inferRequest struct {
	ID         string        `json:"id"`
	Parameters parameters    `json:"parameters"`
	Inputs     []inferTensor `json:"inputs"`
	Outputs    []struct {    // in the order that they are to have; none means all
		Name       string     `json:"name"`
		Parameters parameters `json:"parameters"`
	} `json:"outputs"`
}

// tensor describes an input or output.
type tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// inferTensor is an input. Of BYTES it has elements, of FP32 values.
type inferTensor struct {
	tensor
	Parameters parameters      `json:"parameters"`
	Data       json.RawMessage `json:"data"`
	Elements   [][]byte        `json:"-"`
	Values     []float32       `json:"-"`
}

// parameters are those of the protocol's that count here. Others change nothing.
type parameters struct {
	Size         *int64 `json:"binary_data_size"`
	Binary       *bool  `json:"binary_data"`
	BinaryOutput bool   `json:"binary_data_output"`
	Shared       string `json:"shared_memory_region"`
	Classes      int64  `json:"classification"`
}

// readInfer reads a request from a body. length is the value of the header HeaderLength.
func readInfer(body []byte, length string) (*inferRequest, error) {
	text, rest := body, []byte(nil)
	if length != "" {
		n, err := strconv.ParseUint(length, 10, 63)
		if err != nil || n > uint64(len(body)) {
			return nil, fmt.Errorf("%w: %s %q of a body of %d bytes", errInfer, headerLength, length, len(body))
		}
		text, rest = body[:n], body[n:]
	}
	r := &inferRequest{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%w: %w", errInfer, err)
	}
	for i := range r.Inputs {
		var err error
		if rest, err = r.Inputs[i].read(rest); err != nil {
			return nil, fmt.Errorf("%w: input %q: %w", errInfer, r.Inputs[i].Name, err)
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes follow the last input", errInfer, len(rest))
	}
	for _, output := range r.Outputs {
		if p := output.Parameters; p.Classes != 0 || p.Shared != "" {
			return nil, fmt.Errorf("%w: output %q: neither classification nor shared memory is offered", errInfer, output.Name)
		}
	}
	return r, nil
}

// read reads the elements or values of a tensor, and returns what is left of the bytes
// that follow the JSON.
func (t *inferTensor) read(rest []byte) (left []byte, err error) {
	n, err := elements(t.Shape)
	if err != nil {
		return nil, err
	}
	size := t.Parameters.Size
	switch {
	case t.Parameters.Shared != "":
		err = errors.New("shared memory is not offered")
	case t.Datatype != inferBytes && t.Datatype != FP32:
		err = fmt.Errorf("data type %q; %s and %s can be read", t.Datatype, inferBytes, FP32)
	case size == nil && t.Data == nil:
		err = errors.New("it has neither data nor binary_data_size")
	case size == nil && t.Datatype == inferBytes:
		t.Elements, err = jsonElements(t.Data)
	case size == nil:
		t.Values, err = flat[float32](t.Data)
	case t.Data != nil:
		err = errors.New("it has both data and binary_data_size")
	case *size < 0 || *size > int64(len(rest)):
		err = fmt.Errorf("binary_data_size %d, and %d bytes are left", *size, len(rest))
	default:
		var data []byte
		data, rest = rest[:*size], rest[*size:]
		if t.Datatype == inferBytes {
			t.Elements, err = binaryElements(data)
		} else {
			t.Values, err = binaryValues(data)
		}
	}
	t.Data = nil // which may be large
	if has := int64(len(t.Elements) + len(t.Values)); err == nil && has != n {
		err = fmt.Errorf("%d elements where the shape %v has %d", has, t.Shape, n)
	}
	return rest, err
}

// elements returns how many elements a shape has.
func elements(shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt32/d {
			return 0, fmt.Errorf("the shape %v", shape)
		}
		n *= d
	}
	return n, nil
}

// jsonElements reads strings of base64, in lists of lists or not.
func jsonElements(data json.RawMessage) ([][]byte, error) {
	texts, err := flat[string](data)
	if err != nil {
		return nil, err
	}
	all := make([][]byte, len(texts))
	for i, text := range texts {
		if all[i], err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("element %d must be base64: %w", i, err)
		}
	}
	return all, nil
}

// maxDepth is how deep lists of lists may be, more than any shape needs.
const maxDepth = 8

// flat reads a list, or lists of lists in the order of their elements.
func flat[T string | float32](data json.RawMessage) ([]T, error) {
	var all []T
	var walk func(data json.RawMessage, depth int) error
	walk = func(data json.RawMessage, depth int) error {
		var here []T
		if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '[' {
			return errors.New("its data is no list")
		} else if inner := bytes.TrimLeft(trimmed[1:], " \t\r\n"); len(inner) == 0 || inner[0] != '[' {
			err := json.Unmarshal(data, &here)
			all = append(all, here...)
			return err
		}
		var lists []json.RawMessage
		if err := json.Unmarshal(data, &lists); err != nil {
			return err
		}
		if depth == maxDepth {
			return errors.New("its data has too many lists within lists")
		}
		for _, list := range lists {
			if err := walk(list, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return all, walk(data, 1)
}

// binaryElements reads elements that follow their lengths, of 4 bytes each.
func binaryElements(data []byte) (all [][]byte, err error) {
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, errors.New("its bytes end within a length")
		}
		n := int64(binary.LittleEndian.Uint32(data))
		if data = data[4:]; n > int64(len(data)) {
			return nil, fmt.Errorf("element %d of %d bytes, and %d are left", len(all), n, len(data))
		}
		all, data = append(all, data[:n:n]), data[n:]
	}
	return all, nil
}

func binaryValues(data []byte) ([]float32, error) {
	if len(data)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are no whole number of float32", len(data))
	}
	all := make([]float32, len(data)/4)
	_, err := binary.Decode(data, binary.LittleEndian, all)
	return all, err
}

// inferResponse is the answer to a request.
type inferResponse struct {
	Model   string        `json:"model_name"`
	Version string        `json:"model_version,omitempty"`
	ID      string        `json:"id,omitempty"`
	Outputs []inferOutput `json:"outputs"`
}

// inferOutput is a tensor of an answer. Its data is a []string (BYTES), []float64 (FP64),
// []int64 (INT64) or []bool (BOOL).
type inferOutput struct {
	tensor
	Parameters *binarySize `json:"parameters,omitempty"`
	Data       any         `json:"data,omitempty"`
	binary     bool
}

// binarySize says how many of the bytes that follow the JSON are a tensor's.
type binarySize struct {
	Size int `json:"binary_data_size"`
}

// choose returns the outputs that a request wants, of all.
func (r *inferRequest) choose(all []inferOutput) ([]inferOutput, error) {
	chosen := []inferOutput{}
	if len(r.Outputs) == 0 {
		chosen = slices.Clone(all)
	}
	for _, wanted := range r.Outputs {
		at := slices.IndexFunc(all, func(o inferOutput) bool { return o.Name == wanted.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: there is no output %q", errInfer, wanted.Name)
		}
		chosen = append(chosen, all[at])
	}
	for i := range chosen {
		chosen[i].binary = r.Parameters.BinaryOutput
		if len(r.Outputs) > 0 && r.Outputs[i].Parameters.Binary != nil {
			chosen[i].binary = *r.Outputs[i].Parameters.Binary
		}
	}
	return chosen, nil
}

// encode returns the body of the response, and how many bytes of it are JSON: all if no
// output is binary.
func (r *inferResponse) encode() (body []byte, header int, err error) {
	var tail []byte
	for i := range r.Outputs {
		if o := &r.Outputs[i]; o.binary {
			before := len(tail)
			if tail, err = appendBinary(tail, o.Data); err != nil {
				return nil, 0, err
			}
			o.Data, o.Parameters = nil, &binarySize{len(tail) - before}
		}
	}
	if body, err = json.Marshal(r); err != nil {
		return nil, 0, err
	}
	return append(body, tail...), len(body), nil
}

func appendBinary(to []byte, data any) ([]byte, error) {
	texts, ok := data.([]string)
	if !ok {
		return binary.Append(to, binary.LittleEndian, data)
	}
	for _, text := range texts {
		to = append(binary.LittleEndian.AppendUint32(to, uint32(len(text))), text...)
	}
	return to, nil
}
