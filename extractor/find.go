package extractor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
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
