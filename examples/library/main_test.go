package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

// TestLibrary runs the program.
func TestLibrary(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`^trained on 320 rows, 40 set`, `class dog, [0-9]{1} of 100 flagged; others: (9[5-9]|100) of 100 flagged; AUROC (0\.99|1)`, `(?m)^Flagged: `} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if strings.Count(out.String(), "\n") != 3 {
		t.Error(out.String())
	}
}
