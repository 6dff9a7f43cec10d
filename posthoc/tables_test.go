package posthoc

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
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
	testenv.Generated(t, *update, "posthoc/doc.go", "//\tname ", "//\n", rows.String())
	list := func(of string) string { return "`" + strings.Join(by[of], " ") + "`" }
	testenv.Generated(t, *update, "docs/commands.md", "<!-- scores -->", "<!-- end -->",
		fmt.Sprintf("<!-- scores -->%s read logits, %s features, and %s both, or features and the classifier", list("logits"), list("features"), list("both")))
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
