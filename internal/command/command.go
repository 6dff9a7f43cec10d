package command

import (
	"cmp"
	"context"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/features"
)

// commands are the commands of mlrbfn, by name. Each is declared in its file.
//
//go:generate go test -run ^TestTableOfCommands$ . -update
var commands = map[string]declared{}

// declared makes a command, and says where the help lists it.
type declared struct {
	make func() *command
	at   int
}

// declare adds a command. The help lists commands in the order of at. Synopsis is what
// follows the name on the command line, short the line in the list of commands, and about
// the text of the help; add adds the flags, and says what runs.
func declare(name string, at int, synopsis, short, about string, add func(c *command)) struct{} {
	commands[name] = declared{func() *command {
		c := newCommand(name, synopsis, short, about)
		add(c)
		return c.done()
	}, at}
	return struct{}{}
}

// order returns the names of the commands in the order of the help.
func order() []string {
	return slices.SortedFunc(maps.Keys(commands), func(a, b string) int { return cmp.Or(cmp.Compare(commands[a].at, commands[b].at), cmp.Compare(a, b)) })
}

// command is one command. Its flags are those of cmd.
type command struct {
	*pflag.FlagSet
	cmd      *cobra.Command
	title    string // of the section that the next flags belong to
	required []string
	// environment, unless "", is what the variables begin with that stand for flags which are
	// not given: --token-file is PREFIX_TOKEN_FILE.
	environment string
	// readsURLs are the flags whose values may be URLs of what is read, and "" if what
	// follows the flags may be some.
	readsURLs []string
	least     int // words that follow the flags, see takes
	most      int
	wanted    string
	asJSON    bool              // --json
	quiet     bool              // --quiet
	options   []any             // pointers to structs whose fields flags set
	fields    map[string]string // the flag of each field, as [command.flagOf] has found them
	run       func(ctx context.Context, s Streams) error
	of        any // what holds the values of its flags, where others read them
}

// newCommand returns a command without flags.
func newCommand(name, synopsis, short, about string) *command {
	cmd := &cobra.Command{Use: name + " " + synopsis, Short: short, Long: about, SilenceErrors: true, SilenceUsage: true, DisableFlagsInUseLine: true}
	c := &command{FlagSet: cmd.Flags(), cmd: cmd}
	c.SortFlags = false
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(c.FlagSet, err) })
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { c.help(cmd.OutOrStdout(), false) })
	all := c.Bool("help-all", false, "show all flags")
	c.Lookup("help-all").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *all {
			c.help(cmd.OutOrStdout(), true)
			return nil
		}
		return c.do(cmd.Context(), Streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()})
	}
	return c
}

// do runs the command, whose flags are set.
func (c *command) do(ctx context.Context, s Streams) error {
	if err := c.fromEnvironment(); err != nil {
		return err
	}
	if err := needed(c.FlagSet, c.required); err != nil {
		return err
	}
	if err := cmp.Or(c.checkWords(), c.useBuckets(), c.useFetched()); err != nil {
		return err
	}
	return c.advise(c.run(ctx, s))
}

// Annotations of flags.
const (
	inSection = "section" // its title
	isRare    = "rare"    // only --help-all shows the flag
	offered   = "offered" // words that shells offer as its value
	ofFields  = "fields"  // of options that it stands for
	isProgram = "program" // libraries for other languages do not offer it
)

// section begins a section of the help, to which the flags belong that are
// added from here on.
func (c *command) section(title string) {
	c.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[inSection] == nil {
			annotate(f, inSection, c.title)
		}
	})
	c.title = title
}

// rare leaves flags to --help-all.
func (c *command) rare(names ...string) {
	for _, name := range names {
		annotate(c.Lookup(name), isRare)
	}
}

// sets names the options whose fields flags set, by pointers to them.
func (c *command) sets(options ...any) { c.options = append(c.options, options...) }

// means says which fields of options a flag stands for that does not hold their value
// itself.
func (c *command) means(name string, fields ...string) { annotate(c.Lookup(name), ofFields, fields...) }

// programOnly leaves flags out of what libraries for other languages offer.
func (c *command) programOnly(names ...string) {
	for _, name := range names {
		annotate(c.Lookup(name), isProgram)
	}
}

// names returns the names of the flags so far.
func (c *command) names() (names []string) {
	c.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// addJSON adds the flag that has [command.print] print JSON.
func (c *command) addJSON(usage string) { c.BoolVar(&c.asJSON, "json", false, usage) }

// addQuiet adds the flag that has [command.progress] show none.
func (c *command) addQuiet(usage string) { c.BoolVar(&c.quiet, "quiet", false, usage) }

// progress shows the progress of the command.
func (c *command) progress(s Streams, unit string) *Progress {
	return NewProgress(s.Err, unit, c.quiet)
}

// print prints what a command found: result with --json, else text.
func (c *command) print(s Streams, result any, text string) error {
	if c.asJSON {
		return writeJSON(s.Out, result)
	}
	_, err := io.WriteString(ForPeople(s.Out), text)
	return err
}

func annotate(f *pflag.Flag, key string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = append([]string{}, values...) // not nil
}

// done ends the sections.
func (c *command) done() *command {
	c.section("")
	return c
}

// anyNumber is how many words may follow the flags of a command that takes any.
const anyNumber = math.MaxInt

// takes says how many words follow the flags, none unless it is called, and what to say where
// there are others.
func (c *command) takes(least, most int, wanted string) {
	c.least, c.most, c.wanted = least, most, wanted
}

// checkWords refuses other numbers of words.
func (c *command) checkWords() error {
	switch n := c.NArg(); {
	case n > c.most && c.most == 0:
		return Usagef("unexpected argument %q%s", c.Arg(0), c.wanted)
	case n < c.least || n > c.most:
		return Usagef("%s", c.wanted)
	}
	return nil
}

// line is the command with the flags that were given, as one types it.
func (c *command) line() string {
	words := []string{c.cmd.Name()}
	c.VisitAll(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		switch {
		case !f.Changed:
		case ok:
			for _, value := range list.GetSlice() {
				words = append(words, "--"+f.Name, value)
			}
		case f.Value.Type() == "bool":
			words = append(words, "--"+f.Name+strings.TrimSuffix("="+f.Value.String(), "=true"))
		default:
			words = append(words, "--"+f.Name, f.Value.String())
		}
	})
	return CommandLine("mlrbfn", append(words, c.Args()...))
}

// schemeOf returns the scheme of a value that is a URL, perhaps behind NAME=, or "".
func schemeOf(value string) string {
	if _, behind, ok := strings.Cut(value, "="); ok && !strings.Contains(value[:len(value)-len(behind)], "/") {
		value = behind
	}
	return urls.FindString(value)
}

var (
	urls  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)
	disks = regexp.MustCompile(`\b(FILE|DIR|FOLDER|FEATURES|DETECTOR|REPORT)\b`)
)

// onDisk tells by the name of a flag's value in the help whether it is a file or a folder.
func onDisk(f *pflag.Flag) bool {
	name, _ := pflag.UnquoteUsage(f)
	return disks.MatchString(name) && !strings.Contains(name, "://")
}

// addCacheFlag adds the flag for temporary copies of sets in buckets.
func (c *command) addCacheFlag() {
	c.String("cache", "", "`DIR` for temporary copies of feature sets in buckets (default: in memory)")
	c.means("cache", "Cache", "Copies")
	c.rare("cache")
}

// useBuckets refuses URLs where only the disk will do, lest a folder is called s3: or
// https:, and says where sets in buckets are copied to.
func (c *command) useBuckets() (err error) {
	c.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			scheme := schemeOf(value)
			switch {
			case err != nil || scheme == "" || !onDisk(f) || slices.Contains(c.readsURLs, f.Name):
			default:
				err = Usagef("--%s %s: it must be on the disk, and not at a URL; name a file or folder here, and copy it there or from there by other means", f.Name, value)
			}
		}
	})
	if i := slices.IndexFunc(c.Args(), func(arg string) bool { return schemeOf(arg) != "" }); i >= 0 && !slices.Contains(c.readsURLs, "") && err == nil {
		err = Usagef("%s: it must be on the disk, and not at a URL", c.Arg(i))
	}
	if cache := c.Lookup("cache"); cache != nil {
		copies := features.Copies{Dir: cache.Value.String()}
		if memory := c.Lookup("memory"); memory != nil && memory.Changed {
			if bytes, ok := memory.Value.(*Bytes); ok {
				copies.Memory = int64(*bytes)
			}
		}
		features.SetCopies(copies)
	}
	return err
}
