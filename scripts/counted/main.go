// Command counted runs commands of `go test` and counts what they tested.
//
//	counted COUNTS go test ARGUMENT...   runs it, and adds its counts to the file COUNTS
//	counted COUNTS missing REASON        notes a run that was skipped, and why
//	counted COUNTS                       prints what all runs skipped and why, and the counts
//
// The output is that of `go test` without -v: a line for each package, and all
// that a failed test printed. The exit status is that of the command.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// counts holds the results of tests, of one run or of several.
type counts struct {
	Passed, Failed int
	Skipped        map[string]int // tests by reason
	Missing        []string       // why runs were skipped
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "counted:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	if len(args) == 0 {
		return errors.New("usage: counted COUNTS [go test ARGUMENT... | missing REASON]")
	}
	file, args := args[0], args[1:]
	total := counts{Skipped: map[string]int{}}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &total)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var failed error
	switch {
	case len(args) == 0:
		total.print(w)
		return nil
	case len(args) == 2 && args[0] == "missing":
		total.Missing = append(total.Missing, args[1])
		fmt.Fprintln(w, args[1])
	case len(args) >= 2 && args[1] == "test":
		failed = total.test(args, w)
	default:
		return fmt.Errorf("%q is not a command of go test", args)
	}
	if text, err = json.Marshal(total); err != nil {
		return err
	}
	return errors.Join(failed, os.WriteFile(file, text, 0o666))
}

// test runs one command and adds what it tested.
func (c *counts) test(args []string, w io.Writer) error {
	cmd := exec.Command(args[0], append([]string{"test", "-json"}, args[2:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := c.read(out, w)
	return errors.Join(readErr, cmd.Wait())
}

// test names a test and its package; a package's own output has no test.
type test struct{ Package, Test string }

// read follows the events of `go test -json` (go doc test2json).
func (c *counts) read(r io.Reader, w io.Writer) error {
	output := map[test][]string{}
	ended := map[test]string{}
	show := func(t test) {
		for _, line := range output[t] {
			fmt.Fprint(w, line)
		}
		delete(output, t)
	}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var e struct {
			test
			Action, Output string
		}
		if json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(w, "%s", line)
			continue
		}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			if e.Test != "" {
				if !strings.HasPrefix(e.Output, "=== ") {
					output[e.test] = append(output[e.test], e.Output)
				}
			} else if !strings.HasPrefix(e.Output, "?") && e.Output != "PASS\n" {
				fmt.Fprint(w, e.Output)
			}
		case "pass", "skip", "fail":
			if e.Test == "" {
				if e.Action == "fail" { // tests that did not finish
					for _, t := range slices.SortedFunc(maps.Keys(output), compare) {
						if t.Package == e.Package && ended[t] == "" {
							show(t)
						}
					}
				}
				continue
			}
			ended[e.test] = e.Action
			switch e.Action {
			case "fail":
				show(e.test)
			case "skip":
				c.Skipped[reason(output[e.test])]++
			}
			delete(output, e.test)
		}
	}
	// A test with subtests is counted as these are.
	parents := map[test]bool{}
	for t := range ended {
		if i := strings.LastIndexByte(t.Test, '/'); i >= 0 {
			for ; i >= 0; i = strings.LastIndexByte(t.Test[:i], '/') {
				parents[test{t.Package, t.Test[:i]}] = true
			}
		}
	}
	for t, action := range ended {
		switch {
		case action == "skip": // by its reason, above
		case parents[t]:
		case action == "fail":
			c.Failed++
		default:
			c.Passed++
		}
	}
	return nil
}

func compare(a, b test) int {
	if d := strings.Compare(a.Package, b.Package); d != 0 {
		return d
	}
	return strings.Compare(a.Test, b.Test)
}

var where = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// reason is why a test was skipped: its first message up to a colon, after which
// stands what differs from test to test.
func reason(output []string) string {
	for _, line := range output {
		if at := where.FindString(line); at != "" {
			text, _, _ := strings.Cut(strings.TrimSpace(line[len(at):]), ": ")
			return text
		}
	}
	return "no reason given"
}

func (c *counts) print(w io.Writer) {
	skipped := 0
	for _, text := range slices.Sorted(maps.Keys(c.Skipped)) {
		if skipped == 0 {
			fmt.Fprintln(w, "skipped:")
		}
		tests := "tests"
		if c.Skipped[text] == 1 {
			tests = "test"
		}
		fmt.Fprintf(w, "%5d %s: %s\n", c.Skipped[text], tests, text)
		skipped += c.Skipped[text]
	}
	for _, text := range c.Missing {
		fmt.Fprintf(w, "not run: %s\n", text)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", c.Passed, c.Failed, skipped)
}
