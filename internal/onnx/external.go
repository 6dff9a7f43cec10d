package onnx

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"mlrbfn/internal/regular"
)

// inliner moves weights from external files into the graph.
type inliner struct {
	dir  string
	size int64 // of all that was read so far, the graph included
}

// inline returns a TensorProto with its data inside.
func (in *inliner) inline(tensor []byte) ([]byte, error) {
	fields, err := split(tensor)
	if err != nil {
		return nil, err
	}
	var kept []field
	where := map[string]string{}
	external := false
	for _, f := range fields {
		switch f.number {
		case tensorExternalData:
			pair, err := split(f.body)
			if err != nil {
				return nil, err
			}
			where[text(pair, 1)] = text(pair, 2)
		case tensorDataLocation:
			external = f.value == 1
		default:
			kept = append(kept, f)
		}
	}
	if !external {
		return tensor, nil
	}
	data, err := in.read(where)
	if err != nil {
		return nil, fmt.Errorf("weights of %q: %w", text(fields, tensorName), err)
	}
	return message(append(kept, bytesField(tensorRawData, data))...), nil
}

// read returns the bytes that location, offset and length of external data name.
func (in *inliner) read(where map[string]string) (_ []byte, err error) {
	if !filepath.IsLocal(where["location"]) {
		return nil, fmt.Errorf("the model says that they are in %q, which is not below the graph's folder", where["location"])
	}
	f, err := regular.Open(filepath.Join(in.dir, where["location"]), regular.Weights)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var offset int64
	if text := where["offset"]; text != "" {
		if offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("their offset: %w", err)
		}
	}
	length := info.Size() - offset
	if text := where["length"]; text != "" {
		if length, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("their length: %w", err)
		}
	}
	if offset < 0 || length < 0 || length > info.Size()-offset {
		return nil, fmt.Errorf("%s has %d bytes, and they are said to be %d from byte %d on", f.Name(), info.Size(), length, offset)
	}
	in.size += length
	if err := checkSize(in.size); err != nil {
		return nil, err
	}
	data := make([]byte, length)
	_, err = io.ReadFull(io.NewSectionReader(f, offset, length), data)
	return data, err
}

// ExternalFiles returns the names, sorted and relative to the model's folder, of
// the files with a model's weights. It returns none if the data are not a model.
func ExternalFiles(model []byte) []string {
	found := map[string]bool{}
	collect := edits{tensor: func(tensor []byte) ([]byte, error) {
		fields, err := split(tensor)
		for _, f := range fields {
			if f.number == tensorExternalData && text(f.parts(), 1) == "location" {
				found[text(f.parts(), 2)] = true
			}
		}
		return tensor, err
	}}
	fields, err := split(model)
	for _, f := range fields {
		var bad error
		switch f.number {
		case modelGraph:
			_, bad = collect.message(f.body, graphKind, 0)
		case modelFunction:
			_, bad = collect.message(f.body, functionKind, 0)
		}
		err = errors.Join(err, bad)
	}
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(found))
}
