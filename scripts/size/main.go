// Command size prints how large the tree is: lines of code of each package, without tests,
// comments, blank lines and generated code, and what a reader has to hold.
//
//	scripts/run size [-functions] [FOLDER]
//
// Packages that exist for tests only are counted, and summed up beside the product.
// Modules within the tree are printed as one line each.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// longest is how many lines a function may have.
const longest = 80

// forTests are the folders of packages that only tests use.
var forTests = []string{"internal/testenv", "pipeline/internal/pipetest", "serve/internal/servetest"}

// tree is what was counted of a module.
type tree struct {
	packages map[string]int // lines of code by folder
	public   map[string]bool
	types    int // exported ones of public packages
	long     []string
}

func main() {
	log.SetFlags(0)
	functions := flag.Bool("functions", false, "also list the functions of more than 80 lines")
	flag.Parse()
	root := cmp.Or(flag.Arg(0), ".")
	modules, assembly, err := count(root)
	if err != nil {
		log.Fatal(err)
	}
	main := modules["."]
	tests := 0
	for _, folder := range slices.Sorted(maps.Keys(main.packages)) {
		fmt.Printf("%6d  %s\n", main.packages[folder], folder)
		if slices.ContainsFunc(forTests, func(f string) bool { return folder == f || strings.HasPrefix(folder, f+"/") }) {
			tests += main.packages[folder]
		}
	}
	all := main.lines()
	fmt.Printf("%6d  the main module, %d of them for tests only\n", all, tests)
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if name != "." {
			fmt.Printf("%6d  the module %s\n", modules[name].lines(), name)
		}
	}
	fmt.Printf("%6d  lines of assembly\n", assembly)
	fmt.Printf("%6d  packages, %d of them public, with %d exported types\n", len(main.packages), len(main.public), main.types)
	fmt.Printf("%6d  functions of more than %d lines\n", len(main.long), longest)
	if *functions {
		fmt.Println(strings.Join(main.long, "\n"))
	}
}

func (t *tree) lines() (n int) {
	for _, lines := range t.packages {
		n += lines
	}
	return n
}

// count reads the tree at root. Its modules are named by their folders.
func count(root string) (modules map[string]*tree, assembly int, err error) {
	modules = map[string]*tree{}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		switch name = filepath.ToSlash(name); {
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir():
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				modules[name] = &tree{packages: map[string]int{}, public: map[string]bool{}}
			}
			return nil
		case !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".s"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".s") {
			assembly += strings.Count(string(text), "\n")
			return nil
		}
		module := filepath.ToSlash(filepath.Dir(name))
		for modules[module] == nil {
			module = filepath.ToSlash(filepath.Dir(module))
		}
		return modules[module].add(name, text)
	})
	return modules, assembly, err
}

// add counts a file.
func (t *tree) add(name string, text []byte) error {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	folder := filepath.ToSlash(filepath.Dir(name))
	t.packages[folder] += 0
	public := parsed.Name.Name != "main" && !strings.Contains("/"+folder+"/", "/internal/")
	if public {
		t.public[folder] = true
	}
	if ast.IsGenerated(parsed) {
		return nil
	}
	t.packages[folder] += code(text)
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if n := files.Position(decl.End()).Line - files.Position(decl.Pos()).Line + 1; n > longest {
				t.long = append(t.long, fmt.Sprintf("%6d  %s: %s", n, name, decl.Name.Name))
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if named, ok := spec.(*ast.TypeSpec); ok && public && named.Name.IsExported() {
					t.types++
				}
			}
		}
	}
	return nil
}

// code counts the lines that have something else than comments on them.
func code(text []byte) int {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // which the scanner inserts
		}
		for i := range 1 + strings.Count(literal, "\n") {
			lines[file.Line(pos)+i] = true
		}
	}
}
