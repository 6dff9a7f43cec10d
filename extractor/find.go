package extractor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// modelsEnv is the environment variable that lists the user's folders of models.
const modelsEnv = "MLRBFN_MODELS"

// A ModelReference names a model in a file that may come from anywhere: by its
// hash, with a hint where it may lie.
type ModelReference struct {
	// SHA256 is the hash of the model, as [Model] has it.
	SHA256 string
	// Hint is the path where the model lay once, a folder or an .onnx file.
	Hint string
	// Beside is the folder of the file that names the model.
	Beside string
}

// Find returns the path of the graph that has the reference's hash. It looks
// beside the file that names the model, at the hint, in the folders that the
// environment variable MLRBFN_MODELS lists, with the program (in Python's package mlrbfn
// or in share/mlrbfn), and in the folder models of the checkout; in each folder and one below it. Nothing but the hash decides: a
// path that a file names opens no other model, and a pipe or device never.
//
// Without a hash, and where there is no such graph, it returns an error about
// the option Model.
func (r ModelReference) Find(ctx context.Context) (string, error) {
	if r.SHA256 == "" {
		return "", options.Errorf("Model", "nothing says which model the features come from; name its folder")
	}
	places := r.places()
	tried := map[string]bool{}
	for _, place := range places {
		for _, file := range r.graphs(place) {
			if tried[file] {
				continue
			}
			tried[file] = true
			if hash, err := hashGraph(ctx, file); err == nil && hash == r.SHA256 {
				return file, nil
			}
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
		}
	}
	was := ""
	if r.Hint != "" {
		was = fmt.Sprintf(", which was at %s,", r.Hint)
	}
	others := ""
	if len(tried) > 0 {
		others = fmt.Sprintf(" (%d graphs there are others)", len(tried))
	}
	return "", options.Errorf("Model", "the model with the SHA-256 %.12s…%s is in none of %s%s; name its folder, or the folder that it lies in with %s: %w",
		r.SHA256, was, strings.Join(places, ", "), others, modelsEnv, fs.ErrNotExist)
}

// places are the folders and files to look at, in order.
func (r ModelReference) places() []string {
	var places []string
	add := func(place string) {
		if whole, err := filepath.Abs(place); err == nil && place != "" && !slices.Contains(places, whole) {
			places = append(places, whole)
		}
	}
	add(r.Beside)
	if filepath.IsAbs(r.Hint) {
		add(r.Hint)
	} else if filepath.IsLocal(r.Hint) && r.Beside != "" {
		add(filepath.Join(r.Beside, r.Hint))
	}
	for _, dir := range modelFolders() {
		add(dir)
	}
	return places
}

// mostEntries bounds how many entries of a folder are looked at for models.
const mostEntries = 1 << 12

// graphs are the graphs at a place, those first whose path ends as the hint does.
func (r ModelReference) graphs(place string) []string {
	if disk.CheckReadable(place, disk.Graph) == nil {
		return []string{place}
	}
	found := graphsIn(place)
	if place != r.Hint {
		for _, entry := range someEntries(place) {
			found = append(found, graphsIn(filepath.Join(place, entry.Name()))...)
		}
	}
	likely := func(file string) int {
		name, hint := filepath.Base(filepath.Dir(file)), r.Hint
		if filepath.Ext(hint) == ".onnx" {
			hint = filepath.Dir(hint)
		}
		switch {
		case filepath.Base(file) == filepath.Base(r.Hint):
			return 0
		case name == filepath.Base(hint):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(found, func(a, b string) int { return likely(a) - likely(b) })
	return found
}

// someEntries returns the first entries of a folder, none where it cannot be read.
func someEntries(dir string) []fs.DirEntry {
	f, err := disk.OpenDir(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, err := f.ReadDir(mostEntries)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries
}

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

// externalWeights returns the names, sorted and relative to its folder, of the files that
// an ONNX file keeps weights in. All of them are there, hold what the model says is in
// them, and lie in its folder, but for files of leftover entries that were deleted.
func externalWeights(file string) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("weights of model %s: %w", file, err)
		}
	}()
	data, unmap, err := disk.Map(file, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	places, err := onnx.Externals(data)
	if err != nil {
		return nil, err
	}
	for _, place := range places {
		err := place.Check(file)
		if place.Leftover && errors.Is(err, fs.ErrNotExist) {
			continue // a file that is there counts, as it always did in a model's hash
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("they are in another file: %w; fetch that too", err)
		} else if err != nil {
			return nil, err
		}
		names = append(names, place.File)
	}
	return slices.Compact(names), nil
}
