// Package command is the program mlrbfn: its commands, their flags, what they
// print and the exit codes. It turns the errors of packages below, which name
// the fields of options, into advice about flags.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes of all commands.
const (
	done        = 0
	failed      = 1
	usage       = 2
	partial     = 3 // done, but some images could not be read or set aside
	foundOOD    = 4 // detect --fail-on-ood found some
	interrupted = 130
)

// Errors of a command that did its work, with an exit code of their own.
var (
	ErrPartial     = errors.New("some images could not be read")
	ErrNotSetAside = errors.New("some images could not be set aside")
	ErrOOD         = errors.New("some images are out of distribution")
)

// UsageError is an error about the command line.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Streams are the standard streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// links are the commands that the program is when it is called by their names.
var links = []string{"extract", "train", "detect"}

// Main runs mlrbfn, or the one command of it that is named, with the arguments
// of the process, and exits. Without a name the program's own name may be one.
func Main(name ...string) {
	cmd := newRoot()
	if called := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"); len(name) == 0 && slices.Contains(links, called) {
		name = []string{called}
	}
	if len(name) > 0 {
		cmd = commands[name[0]].make().completing()
	}
	exit(func(ctx context.Context, s Streams) int { return run(ctx, cmd, os.Args[1:], s) })
}

// Run runs mlrbfn with args and returns its exit code.
func Run(ctx context.Context, args []string, s Streams) int { return run(ctx, newRoot(), args, s) }

// Program runs a program that has no commands and exits.
func Program(name string, main func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	exit(func(ctx context.Context, s Streams) int {
		return tell(s.Err, name, main(ctx, os.Args[1:], s.Out, ForPeople(s.Err)))
	})
}

// exit ends the process with the exit code of main, whose context the first
// Ctrl-C or SIGTERM cancels; the second ends the process at once.
func exit(main func(context.Context, Streams) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(main(ctx, Streams{os.Stdin, os.Stdout, os.Stderr}))
}

// run runs a command with args and returns its exit code.
func run(ctx context.Context, cmd *cobra.Command, args []string, s Streams) int {
	ran, err := execute(ctx, cmd, args, s)
	return tell(s.Err, ran.CommandPath(), err)
}

// execute runs a command, or the one below it that args name, and returns which
// it was.
func execute(ctx context.Context, cmd *cobra.Command, args []string, s Streams) (*cobra.Command, error) {
	cmd.SetArgs(joinWords(args))
	cmd.SetIn(s.In)
	cmd.SetOut(s.Out)
	cmd.SetErr(ForPeople(s.Err))
	addCompletion(cmd)
	if err := kernels.Check(); err != nil {
		return cmd, &UsageError{err}
	}
	return cmd.ExecuteContextC(ctx)
}

// tell prints the error that ends the program name, and returns its exit code.
func tell(stderr io.Writer, name string, err error) int {
	code := exitCode(err)
	stderr = ForPeople(stderr)
	switch code {
	case done:
	case interrupted:
		fmt.Fprintf(stderr, "%s: interrupted\n", name)
	case usage:
		fmt.Fprintf(stderr, "%s: %s (see %s --help)\n", name, oneLine(err), name)
	default:
		fmt.Fprintf(stderr, "%s: %s\n", name, oneLine(err))
	}
	return code
}

func exitCode(err error) int {
	_, wrong := errors.AsType[*UsageError](err)
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return done
	case errors.Is(err, context.Canceled):
		return interrupted
	case wrong:
		return usage
	case errors.Is(err, ErrOOD):
		return foundOOD
	case errors.Is(err, ErrPartial), errors.Is(err, ErrNotSetAside):
		return partial
	}
	return failed
}

// oneLine joins the lines of errors that were joined.
func oneLine(err error) string {
	return strings.Join(slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(s string) bool { return strings.TrimSpace(s) == "" }), "; ")
}

// Flags returns the flags of a program that has no commands. Its help is
// printed on stdout.
func Flags(name, synopsis, text string, stdout io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard) // errors are printed once, at the end
	f.Usage = func() { printHelp(stdout, name, synopsis, text, f, true) }
	return f
}

// Parse parses the arguments of such a program and checks that the flags in
// required are given.
func Parse(f *pflag.FlagSet, args []string, required ...string) error {
	if err := f.Parse(args); err != nil {
		return flagError(f, err)
	}
	return needed(f, required)
}

// needed checks that flags are given and not empty.
func needed(f *pflag.FlagSet, names []string) error {
	var missing []string
	for _, name := range names {
		if value := f.Lookup(name).Value.String(); !f.Changed(name) || value == "" || value == "[]" {
			missing = append(missing, "--"+name)
		}
	}
	switch last := len(missing) - 1; last {
	case -1:
		return nil
	case 0:
		return Usagef("%s is needed", missing[0])
	default:
		return Usagef("%s and %s are needed", strings.Join(missing[:last], ", "), missing[last])
	}
}

// flagError says in plain words what is wrong with a flag on the command line.
func flagError(f *pflag.FlagSet, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := e.GetFlag()
		what := map[string]string{
			"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0 on", "float64": "a number",
			"float64Slice": "numbers with commas between them", "duration": "a time such as 30s or 5m", "bool": "true or false",
		}[flag.Value.Type()]
		switch {
		case e.GetValue() == "":
			return Usagef("--%s is empty", flag.Name)
		case what == "":
			return Usagef("--%s %s: %w", flag.Name, e.GetValue(), e.Unwrap())
		}
		return Usagef("--%s %s: it is %s", flag.Name, e.GetValue(), what)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return Usagef("--%s needs a value", e.GetFlag().Name)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := e.GetSpecifiedName()
		if e.GetSpecifiedShortnames() != "" {
			return Usagef("there is no flag -%s", e.GetSpecifiedShortnames())
		}
		if near := nearest(f, name); near != "" {
			return Usagef("there is no flag --%s; did you mean --%s?", name, near)
		}
		return Usagef("there is no flag --%s", name)
	}
	return Usagef("%w", err)
}

// nearest returns the flag with the most similar name, or "".
func nearest(f *pflag.FlagSet, name string) string {
	var names []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden || flag.Name == "help-all" {
			names = append(names, flag.Name)
		}
	})
	return similar(name, names...)
}

// similar returns the first of words that somebody may have meant by text, or "".
func similar(text string, words ...string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2} // its search for similar names is used
	for _, word := range words {
		all.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
	}
	if found := all.SuggestionsFor(text); len(found) > 0 {
		return found[0]
	}
	return ""
}
