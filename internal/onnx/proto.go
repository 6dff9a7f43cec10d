package onnx

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a protobuf message. Fields that nobody changes are
// written as they were read, known or not.
type field struct {
	number protowire.Number
	raw    []byte // the whole field
	body   []byte // its value; nil unless it is bytes
	value  uint64 // its value where it is a varint
}

var errMalformed = errors.New("it is not an ONNX file, or was cut short")

// split splits a message into its fields.
func split(data []byte) ([]field, error) {
	var fields []field
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, errMalformed
		}
		size := protowire.ConsumeFieldValue(number, wire, data[n:])
		if size < 0 {
			return nil, errMalformed
		}
		f := field{number: number, raw: data[:n+size]}
		switch wire {
		case protowire.BytesType:
			f.body, _ = protowire.ConsumeBytes(data[n:])
		case protowire.VarintType:
			f.value, _ = protowire.ConsumeVarint(data[n:])
		}
		fields = append(fields, f)
		data = data[n+size:]
	}
	return fields, nil
}

// parts splits the message in a field that is known to be well-formed.
func (f field) parts() []field {
	fields, _ := split(f.body)
	return fields
}

// message is the reverse of split.
func message(fields ...field) []byte {
	raws := make([][]byte, len(fields))
	for i, f := range fields {
		raws[i] = f.raw
	}
	return slices.Concat(raws...)
}

func bytesField(number protowire.Number, body []byte) field {
	raw := protowire.AppendTag(make([]byte, 0, len(body)+16), number, protowire.BytesType)
	raw = protowire.AppendBytes(raw, body)
	return field{number: number, raw: raw, body: raw[len(raw)-len(body):]}
}

func stringField(number protowire.Number, s string) field { return bytesField(number, []byte(s)) }

func intField(number protowire.Number, v int64) field {
	raw := protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(v))
	return field{number: number, raw: raw, value: uint64(v)}
}

// entry is a StringStringEntryProto.
func entry(key, value string) []byte { return message(stringField(1, key), stringField(2, value)) }

// text returns the last string field with a number, "" if there is none.
func text(fields []field, number protowire.Number) (s string) {
	for _, f := range fields {
		if f.number == number {
			s = string(f.body)
		}
	}
	return s
}

// A kind is a kind of message of onnx.proto that contains names or tensors,
// directly or in other messages.
type kind int

const (
	graphKind kind = iota
	functionKind
	nodeKind
	attributeKind
	sparseTensorKind
	tensorKind
	valueInfoKind
	annotationKind
	annotationEntryKind
)

// Numbers of fields of GraphProto.
const (
	graphNode              protowire.Number = 1
	graphInitializer       protowire.Number = 5
	graphInput             protowire.Number = 11
	graphOutput            protowire.Number = 12
	graphValueInfo         protowire.Number = 13
	graphAnnotation        protowire.Number = 14
	graphSparseInitializer protowire.Number = 15
)

// leadsTo are the fields whose messages contain names or tensors.
var leadsTo = map[kind]map[protowire.Number]kind{
	graphKind: {
		graphNode: nodeKind, graphInitializer: tensorKind, graphInput: valueInfoKind, graphOutput: valueInfoKind,
		graphValueInfo: valueInfoKind, graphAnnotation: annotationKind, graphSparseInitializer: sparseTensorKind,
	},
	functionKind:     {7: nodeKind, 11: attributeKind},
	nodeKind:         {nodeAttribute: attributeKind},
	attributeKind:    {5: tensorKind, 6: graphKind, 10: tensorKind, 11: graphKind, 22: sparseTensorKind, 23: sparseTensorKind},
	sparseTensorKind: {1: tensorKind, 2: tensorKind},
	annotationKind:   {2: annotationEntryKind},
}

// names are the fields that hold the names of values.
var names = map[kind][]protowire.Number{
	nodeKind: {nodeInput, nodeOutput}, tensorKind: {tensorName}, valueInfoKind: {1}, annotationKind: {1}, annotationEntryKind: {2},
}

// Numbers of fields of NodeProto and TensorProto.
const (
	nodeInput          protowire.Number = 1
	nodeOutput         protowire.Number = 2
	nodeName           protowire.Number = 3
	nodeOp             protowire.Number = 4
	nodeAttribute      protowire.Number = 5
	tensorFloats       protowire.Number = 4
	tensorInt32s       protowire.Number = 5
	tensorStrings      protowire.Number = 6
	tensorInt64s       protowire.Number = 7
	tensorName         protowire.Number = 8
	tensorRawData      protowire.Number = 9
	tensorDoubles      protowire.Number = 10
	tensorUint64s      protowire.Number = 11
	tensorExternalData protowire.Number = 13
	tensorDataLocation protowire.Number = 14
)

// edits change the names of values, and tensors; nil leaves them unchanged.
type edits struct {
	name   func(string) string
	tensor func([]byte) ([]byte, error)
}

// maxDepth is how deep messages may be nested, as in protobuf's own readers.
const maxDepth = 100

// message returns a message of the given kind with the edits made, nested messages
// included. It is the same slice if nothing changed.
func (e edits) message(data []byte, k kind, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return nil, errMalformed
	}
	if k == tensorKind && e.tensor != nil {
		if data, err = e.tensor(data); err != nil {
			return nil, err
		}
	}
	fields, err := split(data)
	if err != nil {
		return nil, err
	}
	changed, err := e.fields(fields, k, depth)
	if err != nil || !changed {
		return data, err
	}
	return message(fields...), nil
}

// fields makes the edits in the fields of a message of the given kind, in
// place, and tells whether there were any.
func (e edits) fields(fields []field, k kind, depth int) (changed bool, err error) {
	for i, f := range fields {
		body := f.body
		child, isMessage := leadsTo[k][f.number]
		switch {
		case body == nil:
		case isMessage:
			if body, err = e.message(body, child, depth+1); err != nil {
				return false, err
			}
		case e.name != nil && slices.Contains(names[k], f.number) && len(body) > 0: // "" is an optional input left out
			body = []byte(e.name(string(body)))
		}
		if !bytes.Equal(body, f.body) {
			fields[i], changed = bytesField(f.number, body), true
		}
	}
	return changed, nil
}

// namesIn returns the names of all values in the fields of a message that is
// whole.
func namesIn(fields []field, k kind) map[string]bool {
	found := map[string]bool{}
	_, _ = edits{name: func(s string) string {
		found[s] = true
		return s
	}}.fields(fields, k, 0)
	return found
}

// maxSize is the size limit of a protobuf message.
const maxSize = math.MaxInt32

func checkSize(size int64) error {
	if size > maxSize {
		return fmt.Errorf("with its weights inside it would have %d bytes, and an ONNX file has at most %d; export the head alone and run it after the backbone", size, int64(maxSize))
	}
	return nil
}
