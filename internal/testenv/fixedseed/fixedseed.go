// Package fixedseed, imported for its effect, makes the property tests of a
// test binary draw the same cases in every run. The flag -rapid.seed, which is
// read later, still chooses others.
package fixedseed

import (
	"flag"

	_ "pgregory.net/rapid" // which registers the flag first
)

func init() {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}
