package disk

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// This file writes words as one types them into a shell.

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*$`)

// Quote returns a word so that a shell (bash, zsh, ksh) takes it literally, whatever
// bytes it has, except NUL, which no path has. What is returned is printable, so that
// it can be pasted into a terminal.
func Quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	printable := true
	for _, r := range word {
		printable = printable && r != utf8.RuneError && unicode.IsPrint(r)
	}
	if printable {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for len(word) > 0 {
		r, size := utf8.DecodeRuneInString(word)
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + word[:size])
		case r != utf8.RuneError && unicode.IsPrint(r):
			b.WriteString(word[:size])
		default:
			for i := range size {
				fmt.Fprintf(&b, `\%03o`, word[i])
			}
		}
		word = word[size:]
	}
	return b.String() + "'"
}
