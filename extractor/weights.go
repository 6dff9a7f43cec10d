package extractor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/edsrzf/mmap-go"

	"mlrbfn/internal/onnx"
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
	names = onnx.ExternalFiles(data)
	for _, name := range names {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("they are said to lie in %q, which is not below its folder", name)
		}
	}
	return names, nil
}
