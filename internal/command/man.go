package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/version"
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
