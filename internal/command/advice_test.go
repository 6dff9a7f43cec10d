package command

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// usedOptions returns the names with which the packages of the module report
// errors about options, and where.
func usedOptions(t *testing.T) map[string]string {
	t.Helper()
	root := testenv.Root(t)
	used := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var name ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				if isOptions(n.Fun, "Errorf") {
					name = n.Args[0]
				}
			case *ast.CompositeLit:
				if isOptions(n.Type, "Error") {
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok && fmt.Sprint(kv.Key) == "Option" {
							name = kv.Value
						}
					}
				}
			}
			if text, ok := name.(*ast.BasicLit); ok {
				option, err := strconv.Unquote(text.Value)
				if err != nil {
					t.Fatal(err)
				}
				used[option] = path
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

func isOptions(e ast.Expr, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && fmt.Sprint(s.X) == "options" && s.Sel.Name == name
}

// notAFlag are options that no flag sets.
var notAFlag = []string{"Start", "Order", "Class", "Step", "ReadOnly", "Decision", "Scratch", "Checkpoint", "C", "Near", "Rows"}

// TestEveryOptionHasAFlag: an option that an error names has a flag of a command, unless
// no command sets it.
func TestEveryOptionHasAFlag(t *testing.T) {
	var all []*command
	for _, name := range order() {
		all = append(all, commands[name].make())
	}
	for option, path := range usedOptions(t) {
		has := slices.ContainsFunc(all, func(c *command) bool { return c.flagOf(option) != "" })
		if !has && !slices.Contains(notAFlag, option) {
			t.Errorf("%s: no flag is known for the option %s", path, option)
		}
	}
}

func TestAdvise(t *testing.T) {
	detect := commands["detect"].make()
	cause := errors.New("x")
	err := detect.advise(fmt.Errorf("reading: %w", errors.Join(
		options.Errorf("MaxPixels", "%d is too small: %w", 1, cause), options.Errorf("Nothing", "y"))))
	if want := "reading: --max-pixels: 1 is too small: x\nNothing: y"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if !errors.Is(err, cause) || options.Name(err) != "MaxPixels" {
		t.Errorf("the cause of %v is lost", err)
	}
	if err := commands["merge"].make().advise(options.Errorf("MaxPixels", "1 is too small")); err.Error() != "MaxPixels: 1 is too small" {
		t.Errorf("a command without the flag says %q", err)
	}
	if err := commands["evaluate"].make().advise(options.Errorf("Features", "none")); err.Error() != "--train: none" {
		t.Errorf("evaluate says %q", err)
	}
	for _, err := range []error{fmt.Errorf("%w: name it by InitRuntime", extractor.ErrNoRuntime), &extractor.RuntimeError{File: "x.so", Err: cause}} {
		if text := detect.advise(err).Error(); !strings.Contains(text, "make setup") || strings.Contains(text, "InitRuntime") {
			t.Errorf("of a missing library it says %q", text)
		}
	}
	_, missing := os.Stat("nothere.jpg")
	_, model := os.Stat("nothere/" + defaultModel)
	for want, err := range map[string]error{
		"nothing to look at: nothere.jpg: no such file or directory": fmt.Errorf("nothing to look at: %w", missing),
		"nothere.jpg: no such file or directory":                     fmt.Errorf("nothere.jpg: %w", missing),
		"detector d: none; mlrbfn train makes one":                   errors.New("detector d: none; training makes one"),
		"mkdir x: no space":                                          &fs.PathError{Op: "mkdir", Path: "x", Err: errors.New("no space")},
		"--model: nothere/efficientnet-lite0: no such file or directory; it names a folder" + modelAdvice: options.Errorf("Model", "%w; it names a folder", model),
		"--model: nothere.jpg: no such file or directory; it names a folder":                              options.Errorf("Model", "%w; it names a folder", missing),
		"--max-false-alarms 0.01: too few":                                                                options.Errorf("MaxFalseAlarms", "0.01: too few"),
	} {
		if got := detect.advise(err).Error(); got != want {
			t.Errorf("of %q it says %q, want %q", err, got, want)
		}
	}
	if detect.advise(cause) != cause || detect.advise(nil) != nil {
		t.Error("an error that is about no option is changed")
	}
}

// TestAdviseText: a warning names flags, where the command has them.
func TestAdviseText(t *testing.T) {
	c := commands["train"].make()
	for warning, want := range map[string]string{
		"set aside 0.14 of the images (‹Calibration›), or name others": "set aside 0.14 of the images (--calibration), or name others",
		"try more epochs (‹Train.Epochs›)":                             "try more epochs (--epochs)",
		"mds is left out: ‹Memory›: 50000 features need 19 GiB":        "mds is left out: --memory: 50000 features need 19 GiB; fewer features need less (of pixels, extract --size)",
		"‹Opset› and ‹Nonsense› are no flags of it (95%)":              "Opset and Nonsense are no flags of it (95%)",
		"let all calibrate (‹Calibration cross:10›), or not":           "let all calibrate (--calibration cross:10), or not",
	} {
		if got := c.adviseText(warning); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
