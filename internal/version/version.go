// Package version holds the version of the program, of which all packages of it are
// made: the wheel, the .deb, the container image and the archives.
package version

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var file string

// Version is a semantic version, such as "0.1.0".
var Version = strings.TrimSpace(file)
