// Package docs_test holds the documentation against the program.
package docs_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestReadmeIsShort: the README is for somebody who has two minutes.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n >= 1000 {
		t.Errorf("README.md has %d words; the rest belongs into docs/", n)
	}
}

// TestTargets: between a target of make and its words, `make help` has a space.
func TestTargets(t *testing.T) {
	makefile := read(t, "Makefile")
	var width int
	if _, err := fmt.Sscanf(makefile[strings.Index(makefile, "%-"):], "%%-%ds", &width); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(makefile, -1) {
		if len(m[1]) >= width {
			t.Errorf("make help has no space after %s", m[1])
		}
	}
}

var link = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)

// TestLinks: what a page links to exists, headings too.
func TestLinks(t *testing.T) {
	links := 0
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(withoutCode(read(t, page)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			path, heading, _ := strings.Cut(m[1], "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
			}
			if _, err := os.Stat(filepath.Join(testenv.Root(t), to)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if heading != "" && !slices.Contains(headings(read(t, to)), heading) {
				t.Errorf("%s links to %s, which has no such heading", page, m[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links were found in all pages", links)
	}
}

// TestCommands: each flag that a page names with a command is one of that command's.
func TestCommands(t *testing.T) {
	flags := 0
	for _, page := range pages(t) {
		section := ""
		for _, code := range codes(read(t, page)) {
			if name, ok := strings.CutPrefix(code, "## "); ok {
				section = name
				continue
			}
			words := strings.Fields(code)
			if len(words) == 0 {
				continue
			}
			name := ""
			switch {
			case slices.Contains(names(t), words[0]) && len(words) > 1 && strings.HasPrefix(words[1], "-"):
				name = words[0]
			case page == "docs/commands.md" && strings.HasPrefix(words[0], "-") && slices.Contains(names(t), section):
				name = section
			}
			for i, word := range words {
				program := filepath.Base(strings.Trim(word, "`"))
				switch {
				case strings.Trim(word, `\|`) == "" || strings.HasPrefix(word, "#"):
					name = ""
				case program == "mlrbfn" && i+1 < len(words) && regexp.MustCompile(`^[a-z]+$`).MatchString(words[i+1]):
					if name = words[i+1]; !slices.Contains(names(t), name) {
						t.Errorf("%s: there is no command %s: %s", page, name, code)
						name = ""
					}
				case name != "" && strings.HasPrefix(word, "-") && word != "-" && word != "--help-all": // which is no flag of its own
					flag, _, _ := strings.Cut(strings.TrimRight(word, ",.;:"), "=")
					if !regexp.MustCompile(`(^|\s)` + regexp.QuoteMeta(flag) + `(,|\s|$)`).MatchString(help(t, name)) {
						t.Errorf("%s: mlrbfn %s has no flag %s: %s", page, name, flag, code)
					}
					flags++
				}
			}
		}
	}
	if flags < 50 {
		t.Errorf("%d flags were found in all pages", flags)
	}
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are all pages of the repository but the changelog, which tells of what is
// no more.
func pages(t *testing.T) (all []string) {
	t.Helper()
	root := testenv.Root(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "demo", "dist", "reproduced", "mnist"}, name)) && name != ".":
			return filepath.SkipDir
		case filepath.Ext(name) == ".md" && name != "CHANGELOG.md":
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil || len(all) < 10 {
		t.Fatalf("the pages are %v: %v", all, err)
	}
	return all
}

// withoutCode leaves out blocks and spans of code.
func withoutCode(text string) string {
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllStringFunc(text, func(code string) string {
		return strings.NewReplacer("[", "", "]", "", "(", "", ")", "").Replace(code)
	})
}

// codes lists the headings of a page, the lines of its blocks of code and its
// spans of code, in their order.
func codes(text string) (all []string) {
	block := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			block = !block
		case block, strings.HasPrefix(line, "## "):
			all = append(all, line)
		default:
			for i, part := range strings.Split(line, "`") {
				if i%2 == 1 {
					all = append(all, part)
				}
			}
		}
	}
	return all
}

// headings lists the anchors of a page, as GitHub makes them.
func headings(text string) (all []string) {
	for line := range strings.Lines(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			all = append(all, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return all
}

// names lists the commands, as the help has them.
func names(t *testing.T) (all []string) {
	t.Helper()
	_, list, ok := strings.Cut(help(t, ""), "commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		all = append(all, strings.Fields(line)[0])
	}
	if !ok || len(all) < 5 {
		t.Fatalf("the commands are %v", all)
	}
	return all
}

var helped = map[string]string{}

// help returns the whole help of a command, or that of the program.
func help(t *testing.T, name string) string {
	t.Helper()
	if helped[name] == "" {
		args := []string{name, "--help-all"}
		if name == "" {
			args = []string{"--help"}
		} else if name == "completion" {
			args[1] = "--help"
		}
		var out, errs bytes.Buffer
		if code := command.Run(t.Context(), args, command.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); code != 0 {
			t.Fatal(fmt.Sprint(args), code, errs.String())
		}
		helped[name] = out.String()
	}
	return helped[name]
}
