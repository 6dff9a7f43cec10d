package command

import (
	"strings"

	"github.com/mlrbfn/mlrbfn/pipeline"
)

// setFlags are the flags of commands that compare methods on sets of OOD images.
type setFlags struct{ near, far *[]string }

// addSetFlags adds the flags.
func addSetFlags(c *command) *setFlags {
	s := &setFlags{
		near: c.StringArray("near", nil, "`NAME=FEATURES` of near-OOD images: unknown classes like the known ones (repeat)"),
		far:  c.StringArray("far", nil, "`NAME=FEATURES` of far-OOD images: nothing like the known classes (repeat)"),
	}
	c.means("near", "OOD")
	return s
}

// sets returns the sets that the flags name. Call it after Parse.
func (s *setFlags) sets() ([]pipeline.OODSet, error) {
	var all []pipeline.OODSet
	for _, group := range []struct {
		name string
		sets []string
	}{{pipeline.Near, *s.near}, {pipeline.Far, *s.far}} {
		for _, set := range group.sets {
			name, dir, ok := strings.Cut(set, "=")
			if !ok || name == "" || dir == "" {
				return nil, Usagef("--%s %s: it is NAME=FEATURES", group.name, set)
			}
			all = append(all, pipeline.OODSet{Group: group.name, Name: name, Features: dir})
		}
	}
	return all, nil
}
