//go:build !(linux || darwin)

package setaside

import (
	"errors"
	"os"
)

const nonblock = 0

// syncFolder does nothing: not every system can.
func syncFolder(*os.File) error { return nil }

// rename leaves it to copying: there is no way to rename from one open folder to
// another.
func (p *place) rename(*source) (string, error) { return "", errors.ErrUnsupported }
