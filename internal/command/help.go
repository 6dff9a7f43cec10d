package command

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/internal/version"
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

func (c *command) help(w io.Writer, all bool) {
	_, synopsis, _ := strings.Cut(c.cmd.Use, " ")
	printHelp(w, c.cmd.CommandPath(), synopsis, c.cmd.Long, c.FlagSet, all)
}

// newRoot returns mlrbfn with all its commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "mlrbfn", SilenceErrors: true, SilenceUsage: true,
		Long: `Says for every image which class it is of, and whether it is of any class that was learned.`,
		Args: cobra.ArbitraryArgs, SuggestionsMinimumDistance: 2,
	}
	version := root.Flags().Bool("version", false, "print the version")
	unknown := func(name string) error {
		if near := root.SuggestionsFor(name); len(near) > 0 {
			return Usagef("there is no command %q; did you mean %s?", name, near[0])
		}
		return Usagef("there is no command %q", name)
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.Flags().NArg() > 0 { // what is wrong is the command before the flag
			return unknown(c.Flags().Arg(0))
		}
		return flagError(c.Flags(), err)
	})
	root.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *version:
			return new(command).printVersion(Streams{Out: cmd.OutOrStdout()})
		case len(args) == 0:
			return cmd.Help()
		}
		return unknown(args[0])
	}
	usual := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd == root {
			printCommands(cmd.OutOrStdout(), cmd)
			return
		}
		usual(cmd, args)
	})
	for _, name := range order() {
		root.AddCommand(commands[name].make().completing())
	}
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return root.RunE(root, args)
			}
			return cmd.Help()
		},
	})
	return root
}

// addCompletion adds the command that prints scripts for shells. They go to what
// is root's output now.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || completion == root {
		return // a program of one command
	}
	completion.Short, completion.Args = "Print a completion script for bash, zsh or fish", cobra.ArbitraryArgs
	completion.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usagef("name a shell: bash, zsh, fish or powershell")
		}
		return Usagef("there is no script for %q, only for bash, zsh, fish and powershell", args[0])
	}
}

// printCommands lists the commands.
func printCommands(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, "usage: mlrbfn COMMAND [flags]\n\n%s\n\ncommands:\n", root.Long)
	for _, name := range append(order(), "completion") {
		cmd, _, err := root.Find([]string{name})
		if err == nil {
			fmt.Fprintf(w, "  %-12s%s\n", name, strings.TrimSuffix(cmd.Short, "."))
		}
	}
	fmt.Fprintf(w, "\n%s:\n%s\nmlrbfn COMMAND --help explains a command.\n", usualWay, usualCommands)
}

// completing returns the command for the command line, where shells complete the values of
// flags. What cobra notes for that, it keeps for ever: other commands, of which libraries
// make one for each call, are without.
func (c *command) completing() *cobra.Command {
	c.VisitAll(func(f *pflag.Flag) {
		name, _ := pflag.UnquoteUsage(f)
		words := f.Annotations[offered]
		if value, ok := f.Value.(*choice); ok {
			words = value.words
		}
		switch {
		case f.Hidden:
		case len(words) > 0:
			_ = c.cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		case name == "DIR" || name == "FEATURES" || name == "REPORT":
			_ = c.cmd.MarkFlagDirname(f.Name)
		case !slices.Contains([]string{"FILE", "MODEL", "DETECTOR", "NAME=FEATURES", "FILE.onnx", "FILE.html", "DIR|FILE", "KEY|FILE"}, name):
			_ = c.cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	return c.cmd
}

// What the help and the manual page show first.
const (
	usualWay      = "The usual way, with one folder of images per class"
	usualCommands = `  mlrbfn extract --model MODEL --images PHOTOS --out FEATURES
  mlrbfn train   --features FEATURES --out DETECTOR
  mlrbfn detect  --detector DETECTOR NEW…
`
)

// ManPages returns the manual pages of mlrbfn and of its commands by the names of their
// files. They say what --help-all says. date is that of the release.
func ManPages(date time.Time) map[string]string {
	pages := map[string]string{}
	head := func(name, short, synopsis string) string {
		return fmt.Sprintf(".TH %s 1 %s \"mlrbfn %s\" \"User Commands\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n%s\n",
			strings.ToUpper(roff(name)), date.UTC().Format(time.DateOnly), version.Version, roff(name), roff(short), roff(synopsis))
	}
	root := newRoot()
	main := head("mlrbfn", "tell which class an image is of, and whether it is of any that is known", "mlrbfn COMMAND [flags]") +
		".SH DESCRIPTION\n" + roff(root.Long) + "\n.PP\n" + roff(usualWay) + ":\n.PP\n.nf\n" + roff(usualCommands) + ".fi\n.SH COMMANDS\n"
	for _, name := range order() {
		c := commands[name].make()
		_, synopsis, _ := strings.Cut(c.cmd.Use, " ")
		page := head("mlrbfn-"+name, c.cmd.Short, "mlrbfn "+name+" "+synopsis) + ".SH DESCRIPTION\n"
		for i, paragraph := range strings.Split(strings.TrimSpace(c.cmd.Long), "\n\n") {
			if i > 0 {
				page += ".PP\n"
			}
			page += roff(strings.ReplaceAll(paragraph, "\n", " ")) + "\n"
		}
		sections, _ := inSections(c.FlagSet, true)
		for _, section := range sections {
			page += ".SH " + strings.ToUpper(roff(section.title)) + "\n"
			for _, flag := range section.flags {
				left, text := flagText(flag)
				page += ".TP\n\\fB" + roff(left) + "\\fR\n" + roff(text) + "\n"
			}
		}
		pages["mlrbfn-"+name+".1"] = page + ".SH SEE ALSO\n.BR mlrbfn (1)\n"
		main += ".TP\n.BR mlrbfn\\-" + roff(name) + " (1)\n" + roff(c.cmd.Short) + "\n"
	}
	main += ".SH EXIT STATUS\n"
	for _, code := range []struct {
		code int
		when string
	}{
		{done, "done"}, {failed, "failed"}, {usage, "wrong usage"}, {partial, "done, but some images could not be read or set aside"},
		{foundOOD, "detect --fail-on-ood found images that are out of distribution"}, {interrupted, "interrupted"},
	} {
		main += fmt.Sprintf(".TP\n%d\n%s\n", code.code, roff(code.when))
	}
	pages["mlrbfn.1"] = main
	return pages
}

// roff writes plain text so that a manual page shows it as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\(rs`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
