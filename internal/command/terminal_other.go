//go:build !windows

package command

import (
	"os"

	"golang.org/x/term"
)

// isTerminal tells whether f is a terminal on which a line can be written over.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
