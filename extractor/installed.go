package extractor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// This file finds what was installed together with the program.

// programFolder is the folder of the executable, "" if that is not known.
func programFolder() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	return filepath.Dir(exe)
}

// besideProgram is the folder dir of the executable, and lib in it, where a library
// lies that was copied to a machine together with the program, lib/mlrbfn beside a
// folder bin, where packages of a system have it, and where Python's package
// onnxruntime has it if pip installed the program.
func besideProgram(dir string) []string {
	if dir == "" {
		return nil
	}
	folders := []string{dir, filepath.Join(dir, "lib")}
	if filepath.Base(dir) == "bin" {
		folders = append(folders, filepath.Join(filepath.Dir(dir), "lib", "mlrbfn"))
	}
	for _, packages := range pythonPackages(dir) {
		folders = append(folders, filepath.Join(packages, "onnxruntime", "capi"))
	}
	return folders
}

// pythonPackages are the folders of Python's packages that belong to a folder of
// programs, as pip lays them out in environments, systems and homes.
func pythonPackages(programs string) (folders []string) {
	if base := filepath.Base(programs); base != "bin" && base != "Scripts" {
		return nil
	}
	root := filepath.Dir(programs)
	for _, pattern := range []string{"lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages", "lib/python/site-packages", "Lib/site-packages", "site-packages"} {
		found, _ := fs.Glob(os.DirFS(root), pattern)
		for _, name := range found {
			folders = append(folders, filepath.Join(root, filepath.FromSlash(name)))
		}
	}
	return folders
}

// sharedFolders are the folders of what comes with a program in a folder: Python's
// package mlrbfn, and share/mlrbfn beside a folder bin.
func sharedFolders(programs string) (folders []string) {
	for _, packages := range pythonPackages(programs) {
		folders = append(folders, filepath.Join(packages, "mlrbfn"))
	}
	if filepath.Base(programs) == "bin" {
		folders = append(folders, filepath.Join(filepath.Dir(programs), "share", "mlrbfn"))
	}
	return folders
}

// FindShared returns the file that comes with the program: at the path installed
// within Python's package mlrbfn or share/mlrbfn, or at the path built within the
// checkout. The error wraps fs.ErrNotExist.
func FindShared(installed, built string) (string, error) {
	var tried []string
	for _, folder := range sharedFolders(programFolder()) {
		tried = append(tried, filepath.Join(folder, installed))
	}
	for _, dir := range upward(startFolders()) {
		tried = append(tried, filepath.Join(dir, built))
	}
	for _, file := range tried {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w", built, fs.ErrNotExist)
}

// ModelPath returns the folder of a model that is named by its path, or by its name if
// it lies in a folder that MLRBFN_MODELS lists, comes with the program, or is in the
// folder models of the checkout. What is none of these is returned as it is.
func ModelPath(name string) string {
	if _, err := os.Lstat(name); err == nil || name == "" || name != filepath.Base(name) {
		return name
	}
	for _, folder := range modelFolders() {
		if path := filepath.Join(folder, name); len(graphsIn(path)) > 0 {
			return path
		}
	}
	return name
}

// InstalledModels returns the folders that models are looked for in by name, and those in
// them that have a graph.
func InstalledModels() (folders, models []string) {
	for _, folder := range modelFolders() {
		if folder = filepath.Clean(folder); slices.Contains(folders, folder) {
			continue
		}
		folders = append(folders, folder)
		for _, entry := range someEntries(folder) {
			if path := filepath.Join(folder, entry.Name()); len(graphsIn(path)) > 0 {
				models = append(models, path)
			}
		}
	}
	return folders, models
}

// modelFolders are the folders that models are looked for in.
func modelFolders() []string {
	folders := filepath.SplitList(os.Getenv(modelsEnv))
	for _, folder := range sharedFolders(programFolder()) {
		folders = append(folders, filepath.Join(folder, "models"))
	}
	for _, dir := range upward(startFolders()) {
		// Only a checkout's: another folder of the name has no say.
		if _, err := os.Stat(filepath.Join(dir, ".setup")); err == nil {
			folders = append(folders, filepath.Join(dir, "models"))
		}
	}
	return folders
}
