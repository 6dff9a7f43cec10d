// Package cli is what the programs share: how they begin and end, and how they
// show progress.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// Exit codes of all programs.
const (
	done        = 0
	failed      = 1
	usage       = 2
	partial     = 3 // done, but for some images that could not be read, or set aside
	foundOOD    = 4 // detect --fail-on-ood found some
	interrupted = 130
)

// Errors that a program ends with to say how it ended.
var (
	// ErrPartial says that all is done but for images that could not be read.
	ErrPartial = errors.New("some images could not be read")
	// ErrKept says that all is done but for images that could not be set aside.
	ErrKept = errors.New("some images could not be set aside")
	// ErrOOD says that images are out of distribution and somebody wanted to
	// know.
	ErrOOD = errors.New("some images are out of distribution")
	// ErrUsage is wrapped by errors about the command line.
	ErrUsage = errors.New("see --help")
)

// Usagef returns an error about the command line.
func Usagef(format string, args ...any) error {
	return fmt.Errorf(format+"; %w", append(args, ErrUsage)...)
}

// Main runs a program and exits. Its context is cancelled by the first Ctrl-C
// or SIGTERM; the second ends the program at once.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	code := exitCode(err)
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
	case code == interrupted:
		fmt.Fprintf(os.Stderr, "%s: interrupted\n", name)
	default:
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, oneLine(err))
	}
	os.Exit(code)
}

func exitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return done
	case errors.Is(err, context.Canceled):
		return interrupted
	case errors.Is(err, ErrUsage):
		return usage
	case errors.Is(err, ErrOOD):
		return foundOOD
	case errors.Is(err, ErrPartial), errors.Is(err, ErrKept):
		return partial
	}
	return failed
}

// oneLine joins the lines of errors that were joined.
func oneLine(err error) string {
	return strings.Join(slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(s string) bool { return strings.TrimSpace(s) == "" }), "; ")
}

// Flags returns a flag set that explains the program with synopsis and text.
func Flags(name, synopsis, text string, stdout io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard) // errors are Main's to print, once
	f.Usage = func() {
		fmt.Fprintf(stdout, "usage: %s %s\n\n%s\n\n%s", name, synopsis, text, f.FlagUsages())
	}
	return f
}

// Parse parses args and checks that the flags in required were given.
func Parse(f *pflag.FlagSet, args []string, required ...string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return Usagef("%w", err)
	}
	for _, name := range required {
		if !f.Changed(name) || f.Lookup(name).Value.String() == "" {
			return Usagef("--%s is needed", name)
		}
	}
	return nil
}

// Seeds is a flag value: seeds separated by commas.
type Seeds []uint64

// String lists the seeds.
func (s *Seeds) String() string {
	var parts []string
	for _, v := range *s {
		parts = append(parts, strconv.FormatUint(v, 10))
	}
	return strings.Join(parts, ",")
}

// Set takes a list of seeds.
func (s *Seeds) Set(text string) error {
	*s = nil
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseUint(strings.TrimSpace(part), 10, 64)
		if err != nil {
			return fmt.Errorf("seed %q is no whole number from 0 on", part)
		}
		if slices.Contains(*s, v) {
			return fmt.Errorf("seed %d stands twice", v)
		}
		*s = append(*s, v)
	}
	return nil
}

// Type names the value in the help text.
func (s *Seeds) Type() string { return "list" }
