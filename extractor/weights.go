package extractor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/edsrzf/mmap-go"
	"google.golang.org/protobuf/encoding/protowire"
)

// An onnxMessage is a kind of protobuf message of onnx.proto, as far as the way
// to a tensor's weights leads through it.
type onnxMessage int

const (
	onnxModel onnxMessage = iota
	onnxFunction
	onnxGraph
	onnxNode
	onnxAttribute
	onnxSparseTensor
	onnxTensor
	onnxExternalData // a StringStringEntryProto
)

// onnxFields are the numbers of the fields that lead on.
var onnxFields = map[onnxMessage]map[protowire.Number]onnxMessage{
	onnxModel:        {7: onnxGraph, 25: onnxFunction},
	onnxFunction:     {7: onnxNode, 11: onnxAttribute},
	onnxGraph:        {1: onnxNode, 5: onnxTensor, 15: onnxSparseTensor},
	onnxNode:         {5: onnxAttribute},
	onnxAttribute:    {5: onnxTensor, 6: onnxGraph, 10: onnxTensor, 11: onnxGraph, 22: onnxSparseTensor, 23: onnxSparseTensor},
	onnxSparseTensor: {1: onnxTensor, 2: onnxTensor},
	onnxTensor:       {13: onnxExternalData},
}

// externalWeights returns the names, sorted and relative to its folder, of the
// files that an ONNX file keeps weights in. A file that is no protobuf has none
// as far as can be told; onnxruntime will say what is wrong with it.
func externalWeights(file string) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("look for the weights of %s: %w", file, err)
		}
	}()
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() == 0 {
		return nil, err
	}
	data, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, data.Unmap()) }()
	found := map[string]bool{}
	if !findLocations(data, onnxModel, found) {
		return nil, nil
	}
	for name := range found {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("they are said to lie in %q, which is not below its folder", name)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// findLocations adds to found what the external data of all tensors in a
// message name as their location. It reports whether the message is whole.
func findLocations(message []byte, kind onnxMessage, found map[string]bool) bool {
	var key, value string
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if wire != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, wire, message); n < 0 {
				return false
			}
			message = message[n:]
			continue
		}
		field, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		switch {
		case kind == onnxExternalData && number == 1:
			key = string(field)
		case kind == onnxExternalData && number == 2:
			value = string(field)
		default:
			if inner, ok := onnxFields[kind][number]; ok && !findLocations(field, inner, found) {
				return false
			}
		}
	}
	if key == "location" {
		found[value] = true
	}
	return true
}
