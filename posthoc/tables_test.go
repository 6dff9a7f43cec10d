package posthoc

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of scores anew")

// TestTables: the tables of doc.go and of docs/commands.md are those that follow from the
// declarations. `go generate ./posthoc` writes them.
func TestTables(t *testing.T) {
	t.Parallel()
	var rows strings.Builder
	fmt.Fprintf(&rows, "//\t%-12s%-21s%-37s%s\n", "name", "reads", "fitted on", "type")
	by := map[string][]string{}
	for _, name := range Names() {
		for _, k := range kinds {
			for _, m := range k.methods {
				if m.name != name {
					continue
				}
				fmt.Fprintf(&rows, "//\t%-12s%-21s%-37s%s\n", name, namesOf(m.reads&(featureRows|logitRows)), fittedOn(m.needs), reflect.TypeOf(k.empty()).Elem().Name())
				reads := "both"
				switch {
				case m.reads == logitRows:
					reads = "logits"
				case Headless(name):
					reads = "features"
				}
				by[reads] = append(by[reads], name)
				if m.words.Strange == "" || m.words.Usual == "" || m.words.More == "" {
					t.Errorf("%s has no words", name)
				}
			}
		}
	}
	current(t, "doc.go", "//\tname ", "//\n", rows.String())
	list := func(of string) string { return "`" + strings.Join(by[of], " ") + "`" }
	current(t, "../docs/commands.md", "<!-- scores -->", "<!-- end -->",
		fmt.Sprintf("<!-- scores -->%s read logits, %s features, and %s both, or features and the classifier", list("logits"), list("features"), list("both")))
}

// current compares what lies between two marks of a file, the first of them included.
func current(t *testing.T, file, from, to, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin := strings.Index(string(text), from)
	length := strings.Index(string(text)[max(begin, 0):], to)
	if begin < 0 || length < 0 {
		t.Fatalf("%s has no %q … %q", file, from, to)
	}
	if string(text[begin:begin+length]) == want {
		return
	}
	if !*update {
		t.Errorf("%s is stale: go generate ./posthoc", file)
		return
	}
	if err := os.WriteFile(file, slices.Concat(text[:begin], []byte(want), text[begin+length:]), 0o666); err != nil {
		t.Fatal(err)
	}
}

// namesOf says what is in a set of rows.
func namesOf(n needs) string {
	var names []string
	for _, of := range []struct {
		needs
		name string
	}{{featureRows, "features"}, {logitRows, "logits"}, {labelRows, "labels"}} {
		if n&of.needs != 0 {
			names = append(names, of.name)
		}
	}
	return strings.Join(names, ", ")
}

// fittedOn says what a score is fitted on.
func fittedOn(n needs) string {
	text := namesOf(n)
	if text == "" {
		text = "nothing"
	}
	if n&validation != 0 {
		text += " of Val"
	}
	if n&lastLayer != 0 {
		text += "; head"
	}
	if n&network != 0 {
		text += "; network"
	}
	return text
}
