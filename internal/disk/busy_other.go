//go:build !windows

package disk

// Busy tells whether an operation failed because another program has the file open, which
// happens on Windows alone.
func Busy(error) bool { return false }

func patiently(_ string, do func() error) error { return do() }
