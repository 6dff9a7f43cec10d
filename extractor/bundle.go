package extractor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Copy finds the model, as Find does, and copies its graph, its weights and its
// configurations into a folder. It checks the copies by their hashes, and writes
// over no file that is another.
func (r ModelReference) Copy(ctx context.Context, folder string) error {
	graph, err := r.Find(ctx)
	if err != nil {
		return err
	}
	paths, err := graphFiles(graph)
	if err != nil {
		return err
	}
	root := filepath.Dir(graph)
	if filepath.Base(root) == "onnx" { // as transformers.js and Optimum lay models out
		root = filepath.Dir(root)
	}
	configs, err := fs.Glob(os.DirFS(root), "*.json")
	if err != nil {
		return err
	}
	for _, name := range configs {
		paths = append(paths, filepath.Join(root, name))
	}
	for _, path := range paths {
		name, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(name) {
			return fmt.Errorf("file %s of the model is not in its folder %s", path, root)
		}
		if err := errors.Join(ctx.Err(), copyFile(path, filepath.Join(folder, name))); err != nil {
			return err
		}
	}
	name, err := filepath.Rel(root, graph)
	if err != nil {
		return err
	}
	hash, err := hashGraph(ctx, filepath.Join(folder, name))
	if err == nil && hash != r.SHA256 {
		err = fmt.Errorf("the copy of %s in %s is another model", graph, folder)
	}
	return err
}

// copyFile copies a file and compares the hashes. A file that is there already
// must be the same.
func copyFile(from, to string) error {
	want, err := disk.SHA256(from, disk.Weights)
	if err != nil {
		return err
	}
	if _, err := os.Stat(to); err == nil {
		if have, err := disk.SHA256(to, disk.Weights); err != nil || have != want {
			return errors.Join(fmt.Errorf("%s exists and is another file than %s", to, from), err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	err = disk.Create(to, func(w io.Writer) error { return disk.Copy(context.Background(), w, from, disk.Weights) })
	if err != nil {
		return err
	}
	if have, err := disk.SHA256(to, disk.Weights); err != nil || have != want {
		return errors.Join(fmt.Errorf("the copy %s of %s is damaged", to, from), err)
	}
	return nil
}
