package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Printable quotes a name that would disturb a terminal or the table.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// ForPeople returns a writer of text for a terminal. It escapes characters that are
// not printable, except line ends and tabs, so that no name, label or error text can
// send commands to the terminal. Each call of Write takes whole runes.
func ForPeople(w io.Writer) io.Writer {
	if p, ok := w.(people); ok {
		return p
	}
	return people{w}
}

type people struct{ w io.Writer }

func (p people) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, escape(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escape returns text with characters that are not printable escaped as in Go,
// except line ends and tabs.
func escape(text string) string {
	plain := func(r rune) bool { return r == '\n' || r == '\t' || strconv.IsPrint(r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case plain(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}

// writeJSON writes v as a line of JSON. Letters of all scripts stay as they are;
// control characters, those that change the direction of text among them, are
// escaped.
func writeJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	out := json.NewEncoder(&line)
	out.SetEscapeHTML(false)
	if err := out.Encode(v); err != nil {
		return err
	}
	var b []byte
	for _, r := range strings.TrimSuffix(line.String(), "\n") {
		switch {
		case strconv.IsPrint(r) || r == utf8.RuneError:
			b = utf8.AppendRune(b, r)
		case r <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		}
	}
	_, err := w.Write(append(b, '\n'))
	return err
}

// harmless returns the text of a CSV cell with a ' before what a spreadsheet
// would run as a formula.
func harmless(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

// count says how many there are of what one is called, "1 image" and "2
// images".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "class") {
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// andMore says how many rows of what one is called are not listed, if any.
func andMore(w io.Writer, n int, what string) {
	if n > 0 {
		fmt.Fprintf(w, "and %s more\n", count(n, what))
	}
}

// some lists names as they can be printed, but not more than most.
func some(names []string, most int) string {
	shown := lists.Map(names[:min(len(names), most)], Printable)
	text := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// today is the date that pages have.
func today() string { return time.Now().UTC().Format("2 January 2006, 15:04 UTC") }

// madeBy says by what and when a page was made.
func madeBy() []evaluation.Fact {
	return []evaluation.Fact{{Name: "version", Value: Version()}, {Name: "date", Value: today()}}
}
