package command

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// A screen that help has to fit.
const (
	screenWidth  = 100
	screenHeight = 40
)

// printHelp explains a command and its flags, section by section; those that
// are rare only where all are wanted.
func printHelp(w io.Writer, name, synopsis, about string, f *pflag.FlagSet, all bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "usage: %s\n\n", strings.TrimSpace(name+" "+synopsis))
	for paragraph := range strings.SplitSeq(strings.TrimSpace(about), "\n\n") {
		b.WriteString(wrap(strings.ReplaceAll(paragraph, "\n", " "), 0) + "\n\n")
	}
	sections, hidden := inSections(f, all)
	for _, section := range sections {
		fmt.Fprintf(&b, "%s:\n", section.title)
		for _, flag := range section.flags {
			b.WriteString(describeFlag(flag))
		}
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "%s --help-all shows %s more.\n", name, count(hidden, "flag"))
	}
	io.WriteString(w, b.String())
}

// section is a section of the help.
type section struct {
	title string
	flags []*pflag.Flag
}

// inSections returns the flags by section, those that are rare only where all are
// wanted, and the number of others.
func inSections(f *pflag.FlagSet, all bool) (sections []section, hidden int) {
	f.VisitAll(func(flag *pflag.Flag) {
		switch {
		case flag.Hidden || flag.Name == "help":
		case flag.Annotations[isRare] != nil && !all:
			hidden++
		default:
			title := "flags"
			if s := flag.Annotations[inSection]; s != nil && s[0] != "" {
				title = s[0]
			}
			at := slices.IndexFunc(sections, func(s section) bool { return s.title == title })
			if at < 0 {
				at, sections = len(sections), append(sections, section{title: title})
			}
			sections[at].flags = append(sections[at].flags, flag)
		}
	})
	return sections, hidden
}

// column is where the explanation of a flag begins.
const column = 28

// flagText returns a flag as one types it, and its explanation.
func flagText(f *pflag.Flag) (left, text string) {
	value, text := pflag.UnquoteUsage(f)
	if short, ok := map[string]string{"int": "N", "float": "X", "seeds": "N,N,…"}[value]; ok {
		value = short
	}
	left = "--" + f.Name
	if f.Shorthand != "" {
		left = "-" + f.Shorthand + ", --" + f.Name
	}
	if c, ok := f.Value.(*choice); ok {
		if value = strings.Join(c.words, "|"); len(left+value) > column-5 {
			value, text = "WORD", text+": "+value
		}
	}
	if value != "" {
		left += " " + value
	}
	if value := f.DefValue; !slices.Contains([]string{"", "0", "false", "[]", "0s"}, value) && !strings.Contains(text, "(default") {
		text += " (default " + strings.Trim(value, "[]") + ")"
	}
	return left, text
}

// describeFlag explains a flag.
func describeFlag(f *pflag.Flag) string {
	left, text := flagText(f)
	left = "  " + left
	if n := utf8.RuneCountInString(left); n < column-1 {
		left += strings.Repeat(" ", column-n)
	} else {
		left += "  "
	}
	return wrap(left+text, column) + "\n"
}

// wrap breaks a text into lines of the screen's width; those after the first
// are indented.
func wrap(text string, indent int) string {
	var b strings.Builder
	width := 0
	// What stands before the first word stays as it is.
	for i, word := range strings.SplitAfter(text, " ") {
		n := utf8.RuneCountInString(strings.TrimSuffix(word, " "))
		if i > 0 && width > indent && width+n > screenWidth {
			head := strings.TrimRight(b.String(), " ")
			b.Reset()
			b.WriteString(head + "\n" + strings.Repeat(" ", indent))
			width = indent
		}
		b.WriteString(word)
		width += utf8.RuneCountInString(word)
	}
	return strings.TrimRight(b.String(), " ")
}
