package disk

import (
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestQuote asks a shell what it reads.
func TestQuote(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		testenv.Missing(t, "bash", "install it", err)
	}
	words := []string{"", "plain/word-1.png", "it's", `a "b" $HOME ` + "`id`", `back\slash`, "-rf", "=ls", "~", "new\nline\ttab", "\x1b[31mred\x07", "\xff\xfe1.png", "\x000"[1:],
		"\u202egnp.exe", "käse/日本.png", "*", "a;b|c&d", "!!", "''", `$'x'`, "\x1b9", " "}
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = Quote(word)
		for _, r := range quoted[i] {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %q, which is not printable", quoted[i], r)
			}
		}
	}
	out, err := exec.Command(bash, "-c", `printf '%s\0' `+strings.Join(quoted, " ")).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(got) != len(words) {
		t.Fatalf("the shell reads %d words of %d: %q", len(got), len(words), got)
	}
	for i, word := range words {
		if got[i] != word {
			t.Errorf("%q is quoted as %s, and read as %q", word, quoted[i], got[i])
		}
	}
	if Quote("plain/word-1.png") != "plain/word-1.png" || Quote("two words") != "'two words'" {
		t.Errorf("%s, %s", Quote("plain/word-1.png"), Quote("two words"))
	}
}
