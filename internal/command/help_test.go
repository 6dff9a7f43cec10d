package command

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/internal/version"
)

// TestHelpFitsAScreen goes through the help of all commands.
func TestHelpFitsAScreen(t *testing.T) {
	for _, name := range append([]string{""}, order()...) {
		args := []string{name, "--help"}
		if name == "" {
			args = args[1:]
		}
		out, stderr := call(t, 0, args...)
		if stderr != "" || !strings.HasPrefix(out, strings.TrimSpace("usage: mlrbfn "+name)) {
			t.Errorf("%s prints\n%s%s", args, out, stderr)
		}
		rows := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if len(rows) > screenHeight {
			t.Errorf("%s prints %d lines", args, len(rows))
		}
		for _, row := range rows {
			if n := utf8.RuneCountInString(row); n > screenWidth {
				t.Errorf("%s prints a line of %d columns: %s", args, n, row)
			}
		}
	}
}

// TestHelpShowsAllFlags: each flag is in one section, and --help-all shows what
// --help leaves out.
func TestHelpShowsAllFlags(t *testing.T) {
	for _, name := range order() {
		short, _ := call(t, 0, name, "--help")
		long, _ := call(t, 0, name, "--help-all")
		left := 0
		commands[name].make().VisitAll(func(f *pflag.Flag) {
			// A flag stands at the beginning of a line.
			has := func(text string) bool {
				return strings.Contains(text, "\n  --"+f.Name+" ") || strings.Contains(text, ", --"+f.Name+" ")
			}
			if has(long) == f.Hidden {
				t.Errorf("%s --help-all: --%s is shown: %v", name, f.Name, !f.Hidden)
			}
			if !f.Hidden && !has(short) {
				left++
			}
			if !f.Hidden && f.Usage == "" {
				t.Errorf("%s: --%s is not explained", name, f.Name)
			}
		})
		if want := "--help-all shows " + count(left, "flag") + " more."; (left > 0) != strings.Contains(short, want) {
			t.Errorf("%s --help leaves out %d flags and ends with %q", name, left, short[max(0, len(short)-60):])
		}
	}
}

func TestWrap(t *testing.T) {
	long := "  --flag N                " + strings.Repeat("word ", 30)
	rows := strings.Split(wrap(long, column), "\n")
	for i, row := range rows {
		if utf8.RuneCountInString(row) > screenWidth || i > 0 && !strings.HasPrefix(row, strings.Repeat(" ", column)+"word") {
			t.Errorf("row %d is %q", i, row)
		}
	}
	if got := strings.Count(strings.Join(rows, "\n"), "word"); got != 30 {
		t.Errorf("%d words of 30", got)
	}
}

// TestCompletion has the scripts for shells checked by the shells that are
// here, and asks for what they would ask for.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, _ := call(t, 0, "completion", shell)
		if !strings.Contains(script, "mlrbfn") {
			t.Errorf("%s: %s", shell, script)
		}
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		cmd := exec.Command(shell, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	refused(t, "\"tcsh\"", "completion", "tcsh")
	refused(t, "bash", "completion")
	refused(t, "\"nonsense\"", "help", "nonsense")
	for _, tt := range []struct {
		args []string
		want []string // among the answers
	}{
		{[]string{""}, []string{"extract", "train", "detect", "evaluate", "export", "merge", "ablate", "version"}},
		{[]string{"train", "--"}, []string{"--features", "--scores"}},
		{[]string{"train", "--network", ""}, []string{"paper", "residual"}},
		{[]string{"train", "--conditioning", ""}, []string{"auto", "whiten"}},
		{[]string{"extract", "--device", ""}, []string{"cpu", "cuda"}},
		{[]string{"detect", "--format", ""}, []string{"csv", "jsonl", "table"}},
	} {
		out, _ := call(t, 0, append([]string{"__complete"}, tt.args...)...)
		var got []string
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, word)
		}
		for _, word := range tt.want {
			if !slices.Contains(got, word) {
				t.Errorf("%q: %s is not in %q", tt.args, word, got)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	plain, _ := call(t, 0, "version")
	flag, _ := call(t, 0, "--version")
	if plain != flag {
		t.Errorf("--version prints %q and version %q", flag, plain)
	}
	for _, want := range []string{"mlrbfn ", "built with", "onnxruntime", "kernels", "processor"} {
		if !strings.Contains(plain, want) {
			t.Errorf("version does not say %s:\n%s", want, plain)
		}
	}
	text, _ := call(t, 0, "version", "--json")
	v := lines(t, text)[0]
	for _, key := range []string{"version", "go", "platform", "kernels", "processor"} {
		if v[key] == nil {
			t.Errorf("version --json lacks %s: %v", key, v)
		}
	}
	if v["version"] != version.Version || !strings.Contains(plain, " "+version.Version+"\n") {
		t.Errorf("version %s says %v and\n%s", version.Version, v["version"], plain)
	}
	refused(t, "argument", "version", "x")
}

// TestWrongUsage: what pflag and cobra find is said in plain words, and is a
// UsageError.
func TestWrongUsage(t *testing.T) {
	for about, args := range map[string][]string{
		`no command "trian"; did you mean train?`: {"trian"},
		`no command "x"`:                                       {"x"},
		"did you mean --features?":                             {"train", "--feature", "x"},
		"did you mean --help-all?":                             {"evaluate", "--help-al"},
		"no flag --nonsense":                                   {"detect", "--nonsense"},
		"no flag -z":                                           {"detect", "-z"},
		"--layers four: it is a whole number":                  {"train", "--layers", "four"},
		"--lr fast: it is a number":                            {"train", "--lr", "fast"},
		"--mean a,b: it is numbers with commas":                {"extract", "--mean", "a,b"},
		"--image-timeout soon: it is a time such as 30s or 5m": {"detect", "--image-timeout", "soon"},
		"--force=perhaps":                                      {"merge", "--force=perhaps"},
		"--memory lots: it is an amount of memory":             {"train", "--memory", "lots"},
		"--network other: it is residual or paper":             {"train", "--network", "other"},
		"--out needs a value":                                  {"train", "--out"},
		"--detector is needed":                                 {"detect", "x"},
		"--features is needed":                                 {"train", "--features", "", "--out", "x"},
	} {
		about = strings.Replace(about, "--force=perhaps", "--force perhaps: it is true or false", 1)
		refused(t, about, args...)
		_, stderr := call(t, usage, args...)
		if strings.Contains(stderr, "strconv") || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "mlrbfn") {
			t.Errorf("%q: %q", args, stderr)
		}
	}
}

// TestStandAlone: the three programs are commands without their first word.
func TestStandAlone(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), commands["train"].make().cmd, []string{"--help"}, Streams{nil, &out, &errs}); code != 0 || !strings.HasPrefix(out.String(), "usage: train --features") {
		t.Errorf("exit code %d, %s%s", code, &out, &errs)
	}
	if code := run(t.Context(), commands["train"].make().cmd, []string{}, Streams{nil, &out, &errs}); code != usage || errs.String() != "train: --features and --out are needed (see train --help)\n" {
		t.Errorf("exit code %d, %s", code, &errs)
	}
}

var update = flag.Bool("update", false, "write the table of commands anew")

// TestTableOfCommands: the table of docs/commands.md follows from the declarations, as
// `go generate ./internal/command` writes it. A name leads to the command's section of that
// page, or to its own page.
func TestTableOfCommands(t *testing.T) {
	docs := filepath.Join(testenv.Root(t), "docs")
	text, err := os.ReadFile(filepath.Join(docs, "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	table := "| command | does |\n|---|---|\n"
	for _, name := range order() {
		shown := "`" + name + "`"
		if strings.Contains(string(text), "\n## "+name+"\n") {
			shown = fmt.Sprintf("[%s](#%s)", shown, name)
		} else if _, err := os.Stat(filepath.Join(docs, name+".md")); err == nil {
			shown = fmt.Sprintf("[%s](%s.md)", shown, name)
		}
		table += fmt.Sprintf("| %s | %s |\n", shown, commands[name].make().cmd.Short)
	}
	testenv.Generated(t, *update, "docs/commands.md", "| command | does |\n", "\n<!-- end -->", table)
}

// TestDocsNameValues: where the page lists the words of a flag, it lists those that the flag
// takes.
func TestDocsNameValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	sections := map[string]string{}
	for section := range strings.SplitSeq(page, "\n## ") {
		name, rest, _ := strings.Cut(section, "\n")
		sections[name] = rest
	}
	listed := 0
	for _, name := range order() {
		commands[name].make().VisitAll(func(f *pflag.Flag) {
			value, ok := f.Value.(*choice)
			_, after, found := strings.Cut(sections[name], "`--"+f.Name+" ")
			words, _, _ := strings.Cut(after, "`")
			if words = strings.ReplaceAll(words, `\|`, "|"); !ok || !found || !strings.Contains(words, "|") {
				return
			}
			if listed++; words != strings.Join(value.words, "|") {
				t.Errorf("the page has --%s %s of %s, which takes %v", f.Name, words, name, value.words)
			}
		})
	}
	if listed < 3 {
		t.Errorf("the page lists the words of %d flags", listed)
	}
}

// TestStumbles are things that newcomers typed, and what helps them.
func TestStumbles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("were", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("were", "is", "no", "folder.html")
	for _, tt := range []struct {
		line, says string
		code       int
	}{
		{"tran --features x", `there is no command "tran"; did you mean train?`, usage},
		{"tran", `there is no command "tran"; did you mean train?`, usage},
		{"--featurs x", "there is no flag --featurs", usage},
		{"detect --detector d --explain whey photos", "--explain whey: it is why or where", usage},
		{"detect --detector d --explain were", "detector d: ", failed}, // a file of this name is there
		{"train --features f --out d --calibration cross", "cross:10", usage},
		{"train --features f --out d --calibration nowhere", "feature set f", failed},
		{"detect --detector d --report " + file + " photos", "folder.html", failed},
		{"discover --detector d --report " + file + " photos", "folder.html", failed},
		{"inspect --features f --out " + filepath.Dir(file), "were", failed},
	} {
		_, stderr := call(t, tt.code, strings.Fields(tt.line)...)
		if !strings.Contains(stderr, tt.says) {
			t.Errorf("%s says %q", tt.line, stderr)
		}
	}
	for _, name := range order() {
		if help, _ := call(t, 0, name, "--help-all"); strings.Contains(help, "default 0B") {
			t.Errorf("%s has a default of 0B", name)
		}
	}
}
