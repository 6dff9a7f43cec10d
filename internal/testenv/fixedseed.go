package testenv

import (
	"flag"

	_ "pgregory.net/rapid" // which registers the flag first
)

// A test binary that imports this package draws the same cases in the property tests of
// every run. The flag -rapid.seed, which is read later, still chooses others.
func init() {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}
