package version

import (
	"regexp"
	"testing"
)

// semantic matches what semver.org and Python's packages both accept as a release.
var semantic = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$`)

func TestVersion(t *testing.T) {
	if !semantic.MatchString(Version) || file != Version+"\n" {
		t.Errorf("VERSION holds %q", file)
	}
}
