package command

import (
	"os"

	"golang.org/x/sys/windows"
)

// isTerminal tells whether f is a terminal on which a line can be written over. Windows'
// console does that only once it is asked to.
func isTerminal(f *os.File) bool {
	var mode uint32
	console := windows.Handle(f.Fd())
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return false
	}
	return mode&windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING != 0 || windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
