package testenv_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// layers are the rooms of the tree, those at the bottom first. A package imports
// packages of lower layers, and of its own room. A folder belongs to the longest
// name here that it is or lies in.
var layers = [][]string{
	{"internal"},
	{"metrics", "posthoc", "bucket/s3", "extractor/preprocess"},
	{"features"},
	{"images"},
	{"extractor"},
	{"head"},
	{"pipeline/detector"},
	{"pipeline/internal"},
	{"pipeline/training"},
	{"pipeline/evaluation"},
	{"report"},
	{"pipeline"},
	{"serve/store"},
	{"serve"},
	{"internal/command"},
	{"python/internal/native"},
	{"cmd", "docs", "examples", "models", "python", "scripts"},
}

// roomOf returns the room that a folder belongs to and its layer, −1 for none.
func roomOf(folder string) (room string, layer int) {
	layer = -1
	for i, rooms := range layers {
		for _, r := range rooms {
			if len(r) > len(room) && (folder == r || strings.HasPrefix(folder, r+"/")) {
				room, layer = r, i
			}
		}
	}
	return room, layer
}

// sources calls do for each Go file of the program, without tests.
func sources(t *testing.T, do func(file string, parsed *ast.File)) {
	t.Helper()
	root := testenv.Root(t)
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != root && (strings.HasPrefix(base, ".") || base == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, name)
		files++
		do(filepath.ToSlash(file), parsed)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("%d files were found", files)
	}
}

// TestImportsPointDownwards also says that only the commands parse flags.
func TestImportsPointDownwards(t *testing.T) {
	_, commands := roomOf("internal/command")
	sources(t, func(file string, parsed *ast.File) {
		room, layer := roomOf(path.Dir(file))
		if layer < 0 {
			t.Errorf("%s is in no layer", file)
			return
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if layer < commands && strings.HasPrefix(imported, "github.com/spf13/") {
				t.Errorf("%s imports %s, which only internal/command and programs may", file, imported)
			}
			folder, ours := strings.CutPrefix(imported, "github.com/mlrbfn/mlrbfn/")
			if !ours {
				continue
			}
			if to, below := roomOf(folder); to != room && (below < 0 || below >= layer) {
				t.Errorf("%s imports %s, which is not below it", file, folder)
			}
		}
	})
}

var flagName = regexp.MustCompile(`(^|[^\w-])--[a-z]`)

// TestErrorsNameNoFlags: an error below the commands names the field of a Go
// struct, as a program that imports the library has no flags.
func TestErrorsNameNoFlags(t *testing.T) {
	_, commands := roomOf("internal/command")
	sources(t, func(file string, parsed *ast.File) {
		_, layer := roomOf(path.Dir(file))
		if layer >= commands {
			return
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || function.Sel.Name != "Errorf" && function.Sel.Name != "New" {
				return true
			}
			for _, arg := range call.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					text, ok := n.(*ast.BasicLit)
					if ok && text.Kind == token.STRING && flagName.MatchString(text.Value) {
						t.Errorf("%s: an error names a flag: %s", file, text.Value)
					}
					return true
				})
			}
			return true
		})
	})
}

// TestExamples: each package that a program can import has an example of its use, which
// `go test` runs.
func TestExamples(t *testing.T) {
	public, shown := map[string]bool{}, map[string]bool{}
	sources(t, func(file string, parsed *ast.File) {
		folder := path.Dir(file)
		switch top, _, _ := strings.Cut(folder, "/"); {
		case parsed.Name.Name == "main", top == "cmd", top == "examples", top == "scripts", strings.Contains("/"+folder+"/", "/internal/"):
		default:
			public[folder] = true
		}
	})
	for folder := range public {
		tests, err := filepath.Glob(filepath.Join(testenv.Root(t), folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range tests {
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, example := range doc.Examples(parsed) {
				shown[folder] = shown[folder] || example.Output != "" || example.EmptyOutput
			}
		}
		if !shown[folder] {
			t.Errorf("%s has no example that runs", folder)
		}
	}
	if len(public) < 14 {
		t.Errorf("%d packages were found", len(public))
	}
}

// TestPanicsReachTheCaller: what the library for other languages works with starts
// goroutines by internal/parallel alone, whose panics reach whoever waits. On a bare
// goroutine they would end the process of a user's Python.
func TestPanicsReachTheCaller(t *testing.T) {
	excepted := map[string]string{
		"internal/parallel": "which does it",
		"internal/testenv":  "is for tests",
		"internal/command":  "the program, whose process is its own",
		"serve":             "a program too",
		"scripts":           "programs",
		"examples":          "programs",
	}
	used := map[string]bool{}
	sources(t, func(file string, parsed *ast.File) {
		var found []string
		for _, spec := range parsed.Imports {
			if strings.Contains(spec.Path.Value, "golang.org/x/sync/errgroup") {
				found = append(found, "imports errgroup")
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = append(found, "has a go statement")
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && (of.Name+"."+n.Sel.Name == "sync.WaitGroup" || n.Sel.Name == "AfterFunc") {
					found = append(found, "uses "+of.Name+"."+n.Sel.Name)
				}
			}
			return true
		})
		if found == nil {
			return
		}
		for folder := path.Dir(file); folder != "."; folder = path.Dir(folder) {
			if excepted[folder] != "" {
				used[folder] = true
				return
			}
		}
		timers := []string{"internal/bucket/store.go", "extractor/kept.go"} // which cancel a context and close models
		if slices.Contains(timers, file) && len(found) == 1 && found[0] == "uses time.AfterFunc" {
			return
		}
		t.Errorf("%s %s: parallel.Start and parallel.WithContext carry a panic to the caller", file, strings.Join(found, ", "))
	})
	for folder := range excepted {
		if !used[folder] {
			t.Errorf("%s needs no exception", folder)
		}
	}
}
