//go:build !linux

package features

import "errors"

// renameExchange is not to be had here.
func renameExchange(_, _ string) error { return errors.ErrUnsupported }
