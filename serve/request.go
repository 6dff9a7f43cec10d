package serve

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	ID      string
	Inputs  []inferTensor
	Outputs []inferWanted // in the order that they are to have; none means all
	Binary  bool          // whether outputs that are not named are to be binary
}

// inferTensor is an input. Of BYTES it has elements, of FP32 values.
type inferTensor struct {
	Name, Datatype string
	Shape          []int64
	Elements       [][]byte
	Values         []float32
}

// inferWanted is an output that the request names.
type inferWanted struct {
	Name   string
	Binary bool
}

type jsonRequest struct {
	ID         string     `json:"id"`
	Parameters parameters `json:"parameters"`
	Inputs     []struct {
		Name       string          `json:"name"`
		Shape      []int64         `json:"shape"`
		Datatype   string          `json:"datatype"`
		Parameters parameters      `json:"parameters"`
		Data       json.RawMessage `json:"data"`
	} `json:"inputs"`
	Outputs []struct {
		Name       string     `json:"name"`
		Parameters parameters `json:"parameters"`
	} `json:"outputs"`
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
	var in jsonRequest
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%w: %w", errInfer, err)
	}
	r := &inferRequest{ID: in.ID, Binary: in.Parameters.BinaryOutput}
	for _, input := range in.Inputs {
		t := inferTensor{Name: input.Name, Datatype: input.Datatype, Shape: input.Shape}
		wrong := func(err error) (*inferRequest, error) {
			return nil, fmt.Errorf("%w: input %q: %w", errInfer, input.Name, err)
		}
		n, err := elements(input.Shape)
		if err != nil {
			return wrong(err)
		}
		size := input.Parameters.Size
		switch {
		case input.Parameters.Shared != "":
			err = errors.New("shared memory is not offered")
		case input.Datatype != inferBytes && input.Datatype != FP32:
			err = fmt.Errorf("data type %q; %s and %s can be read", input.Datatype, inferBytes, FP32)
		case size == nil && input.Data == nil:
			err = errors.New("it has neither data nor binary_data_size")
		case size == nil && input.Datatype == inferBytes:
			t.Elements, err = jsonElements(input.Data)
		case size == nil:
			t.Values, err = jsonValues(input.Data)
		case input.Data != nil:
			err = errors.New("it has both data and binary_data_size")
		case *size < 0 || *size > int64(len(rest)):
			err = fmt.Errorf("binary_data_size %d, and %d bytes are left", *size, len(rest))
		default:
			var data []byte
			data, rest = rest[:*size], rest[*size:]
			if input.Datatype == inferBytes {
				t.Elements, err = binaryElements(data)
			} else {
				t.Values, err = binaryValues(data)
			}
		}
		if err != nil {
			return wrong(err)
		}
		if has := int64(len(t.Elements) + len(t.Values)); has != n {
			return wrong(fmt.Errorf("%d elements where the shape %v has %d", has, input.Shape, n))
		}
		r.Inputs = append(r.Inputs, t)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes follow the last input", errInfer, len(rest))
	}
	for _, output := range in.Outputs {
		p := output.Parameters
		if p.Classes != 0 || p.Shared != "" {
			return nil, fmt.Errorf("%w: output %q: neither classification nor shared memory is offered", errInfer, output.Name)
		}
		w := inferWanted{output.Name, r.Binary}
		if p.Binary != nil {
			w.Binary = *p.Binary
		}
		r.Outputs = append(r.Outputs, w)
	}
	return r, nil
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

func jsonValues(data json.RawMessage) ([]float32, error) { return flat[float32](data) }

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
	for i := range all {
		all[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return all, nil
}
