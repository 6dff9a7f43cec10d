//go:build !(linux || darwin)

package setaside

import (
	"errors"
	"os"
)

const nonblock = 0

// syncFolder does nothing: not every system can.
func syncFolder(*os.File) error { return nil }

// rename always fails, so that the caller copies: this system cannot rename between
// open folders.
func (p *place) rename(*source) (string, error) { return "", errors.ErrUnsupported }
