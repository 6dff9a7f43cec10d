package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// inliner moves weights from external files into the graph.
type inliner struct {
	graph string // its file
	size  int64  // of all that was read so far, the graph included
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
			external = int32(f.value) == 1
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
	e, err := external(where)
	if err != nil {
		return nil, err
	}
	f, err := e.open(in.graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	offset, length, err := e.within(f)
	if err != nil {
		return nil, err
	}
	in.size += length
	if err := checkSize(in.size); err != nil {
		return nil, err
	}
	data := make([]byte, length)
	_, err = io.ReadFull(io.NewSectionReader(f, offset, length), data)
	return data, err
}

// External is where a model keeps the values of a tensor outside its file.
type External struct {
	// File is relative to the folder of the graph, as the model says.
	File string
	// Offset and Length are in bytes; a Length of −1 is to the end of the file.
	Offset, Length int64
	// Leftover is an entry that nothing reads, because the tensor has its values in the
	// model. The file may have been deleted.
	Leftover bool
}

// external reads the entries of a tensor's external data.
func external(where map[string]string) (e External, err error) {
	e = External{File: where["location"], Length: -1}
	if text := where["offset"]; text != "" {
		if e.Offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			return e, fmt.Errorf("their offset: %w", err)
		}
	}
	if text := where["length"]; text != "" {
		if e.Length, err = strconv.ParseInt(text, 10, 64); err == nil && e.Length < 0 {
			err = errors.New("it is negative")
		}
		if err != nil {
			return e, fmt.Errorf("their length: %w", err)
		}
	}
	return e, nil
}

// Check tells what is wrong with the place of a tensor's values: it is outside the
// folder of the graph, no regular file, or beyond the end of the file.
func (e External) Check(graph string) error {
	f, err := e.open(graph)
	if err != nil {
		return err
	}
	_, _, err = e.within(f)
	return errors.Join(err, f.Close())
}

// open opens the file. Where links lead, it must be below the folder of the graph, or of
// the file that the graph is a link to, as in the cache of Hugging Face's hub.
func (e External) open(graph string) (*os.File, error) {
	if !filepath.IsLocal(e.File) {
		return nil, fmt.Errorf("the model says that they are in %q, which is not below the graph's folder", e.File)
	}
	// Older versions of onnxruntime take the offset of this "file" for an address in memory.
	if filepath.ToSlash(e.File) == "*/_ORT_MEM_ADDR_/*" {
		return nil, fmt.Errorf("the model says that they are in %q, which would be the program's own memory", e.File)
	}
	// As the system reads the path, and onnxruntime by it: Join would take away a link
	// with a .. behind it, which lead elsewhere, and a NUL, where a path in C ends.
	path := filepath.Dir(graph) + string(filepath.Separator) + e.File
	f, err := disk.Open(path, disk.Weights)
	if err != nil {
		return nil, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(graph))
	if err == nil && below(folder, target) {
		return f, nil
	}
	if linked, err := filepath.EvalSymlinks(graph); err == nil && below(filepath.Dir(linked), target) {
		return f, nil
	}
	return nil, errors.Join(fmt.Errorf("the model says that they are in %q, and a link leads from there to %s, outside the graph's folder", e.File, target), f.Close())
}

// below tells whether a file is in a folder, both without links.
func below(folder, file string) bool {
	rest, err := filepath.Rel(folder, file)
	return err == nil && filepath.IsLocal(rest)
}

// within returns which bytes of the file they are.
func (e External) within(f *os.File) (offset, length int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	size := info.Size()
	if offset, length = e.Offset, e.Length; length < 0 {
		length = size - offset
	}
	if offset < 0 || length < 0 || length > size-offset {
		return 0, 0, fmt.Errorf("%s has %d bytes, and they are said to be %d from byte %d on", f.Name(), size, length, offset)
	}
	return offset, length, nil
}

// Externals returns where a model keeps values outside its file, each place once, by
// file and offset. Data that are not a model are an error.
func Externals(model []byte) ([]External, error) {
	found := map[External]bool{}
	collect := edits{tensor: func(tensor []byte) ([]byte, error) {
		fields, err := split(tensor)
		if err != nil {
			return nil, err
		}
		where := map[string]string{}
		outside, inside := false, false
		for _, f := range fields {
			switch f.number {
			case tensorDataLocation:
				outside = int32(f.value) == 1
			case tensorFloats, tensorInt32s, tensorStrings, tensorInt64s, tensorRawData, tensorDoubles, tensorUint64s:
				inside = true
			case tensorExternalData:
				pair, err := split(f.body)
				if err != nil {
					return nil, err
				}
				key := text(pair, 1)
				if _, twice := where[key]; twice {
					return nil, fmt.Errorf("weights of %q: they have two of %s", text(fields, tensorName), key)
				}
				where[key] = text(pair, 2)
			}
		}
		if len(where) == 0 {
			return tensor, nil
		}
		e, err := external(where)
		if err != nil {
			return nil, fmt.Errorf("weights of %q: %w", text(fields, tensorName), err)
		}
		e.Leftover = inside && !outside
		found[e] = true
		return tensor, nil
	}}
	fields, err := split(model)
	if err != nil {
		return nil, err
	}
	for _, f := range fields {
		switch f.number {
		case modelGraph:
			_, err = collect.message(f.body, graphKind, 0)
		case modelFunction:
			_, err = collect.message(f.body, functionKind, 0)
		}
		if err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b External) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length))
	}), nil
}
