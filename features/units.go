package features

import (
	"cmp"
	"slices"
	"strconv"
)

// SortClasses sorts the names of classes: by their values where all are numbers.
func SortClasses(names []string) {
	numbers := make(map[string]int, len(names))
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			slices.Sort(names)
			return
		}
		numbers[name] = n
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(numbers[a], numbers[b]), cmp.Compare(a, b))
	})
}

// uniteClasses gives shards of tars and the like the classes of all: a shard knows only
// those of its own images, as nobody else has read the others.
func uniteClasses(sets []*Set) {
	var all []string
	for _, s := range sets {
		if s == nil || s.Shard == nil || s.Shard.Units == 0 {
			return
		}
		all = append(all, s.Classes...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	SortClasses(all)
	index := make(map[string]int64, len(all))
	for i, name := range all {
		index[name] = int64(i)
	}
	for _, s := range sets {
		for i, label := range s.labels {
			if label >= 0 {
				s.labels[i] = index[s.Classes[label]]
			}
		}
		s.Classes = slices.Clone(all)
	}
}

// sourcesOf returns the lines of sources.jsonl of all sets, in order.
func sourcesOf(sets []*Set) (all []sourceLine, err error) {
	for _, s := range sets {
		lines, err := s.sourceLines()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	slices.SortFunc(all, func(a, b sourceLine) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}
