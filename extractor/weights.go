package extractor

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/edsrzf/mmap-go"

	"mlrbfn/internal/onnx"
	"mlrbfn/internal/regular"
)

// externalWeights returns the names, sorted and relative to its folder, of the
// files that an ONNX file keeps weights in. A file that is no protobuf has none
// as far as can be told; onnxruntime will say what is wrong with it.
func externalWeights(file string) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("look for the weights of %s: %w", file, err)
		}
	}()
	data, unmap, err := mapFile(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	names = onnx.ExternalFiles(data)
	for _, name := range names {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("the model says that they are in %q, which is not below its folder", name)
		}
	}
	return names, nil
}

// mapFile maps a file into memory, to read until unmap is called.
func mapFile(file string) (data []byte, unmap func() error, err error) {
	f, err := regular.Open(file, regular.Graph)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 { // nothing to map
		return nil, func() error { return nil }, err
	}
	mapped, err := mmap.Map(f, mmap.RDONLY, 0)
	return mapped, mapped.Unmap, err
}
