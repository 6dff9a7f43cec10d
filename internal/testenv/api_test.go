package testenv_test

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestPublicAPIHasPublicTypes: what a program can import has no type in its
// exported names that the program cannot name.
func TestPublicAPIHasPublicTypes(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles everything")
	}
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./...")
	list.Dir, list.Stderr = testenv.Root(t), os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, public := map[string]string{}, []string{}
	for line := range strings.Lines(string(out)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = export
		ours, isOurs := strings.CutPrefix(path, "github.com/mlrbfn/mlrbfn/")
		if isOurs && !strings.Contains("/"+ours+"/", "/internal/") {
			public = append(public, path)
		}
	}
	all := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	names, aliases := 0, map[string]bool{} // aliases: types of internal packages that have a name in a public one
	var packages []*types.Package
	for _, path := range public {
		if exports[path] == "" { // tests alone
			continue
		}
		p, err := all.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
		for _, name := range p.Scope().Names() {
			if alias, ok := p.Scope().Lookup(name).(*types.TypeName); ok && alias.IsAlias() && alias.Exported() {
				aliases[types.Unalias(alias.Type()).String()] = true
			}
		}
	}
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if object := p.Scope().Lookup(name); object.Exported() {
				names++
				for _, hidden := range hiddenTypes(object) {
					if of, _, _ := strings.Cut(hidden, " in "); aliases[of] {
						continue
					}
					t.Errorf("%s.%s shows %s", p.Path(), name, hidden)
				}
			}
		}
	}
	if names < 200 {
		t.Errorf("%d exported names were found", names)
	}
}

// hiddenTypes lists the types of internal packages in the API that an exported
// object has.
func hiddenTypes(object types.Object) (hidden []string) {
	seen := map[types.Type]bool{}
	var look func(where string, t types.Type)
	tuple := func(where string, vars *types.Tuple) {
		for v := range vars.Variables() {
			look(where, v.Type())
		}
	}
	look = func(where string, t types.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Alias:
			look(where, types.Unalias(t))
		case *types.Named:
			if p := t.Obj().Pkg(); p != nil && strings.HasPrefix(p.Path(), "github.com/mlrbfn/mlrbfn/") && strings.Contains(p.Path()+"/", "/internal/") {
				hidden = append(hidden, fmt.Sprintf("%s in %s", t, where))
			}
			for a := range t.TypeArgs().Types() {
				look(where, a)
			}
		case *types.Pointer:
			look(where, t.Elem())
		case *types.Slice:
			look(where, t.Elem())
		case *types.Array:
			look(where, t.Elem())
		case *types.Chan:
			look(where, t.Elem())
		case *types.Map:
			look(where, t.Key())
			look(where, t.Elem())
		case *types.Signature:
			tuple(where, t.Params())
			tuple(where, t.Results())
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					look(where+"."+f.Name(), f.Type())
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				look(where+"."+m.Name(), m.Type())
			}
		}
	}
	look(object.Name(), object.Type())
	if name, ok := object.(*types.TypeName); ok {
		look(object.Name(), name.Type().Underlying())
		methods := types.NewMethodSet(types.NewPointer(name.Type())) // promoted ones too
		for m := range methods.Methods() {
			if m.Obj().Exported() {
				look(object.Name()+"."+m.Obj().Name(), m.Type())
			}
		}
	}
	return hidden
}
