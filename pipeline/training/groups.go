package training

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file finds the rows that must stay in one part of a split.

// byGroups is the name, in detectors and checkpoints, of the split that keeps
// groups of rows in one part. The split without groups has none: it is the same
// with and without the rule.
const byGroups = "groups"

// rule names what the split goes by.
func (t *Data) rule() string {
	if t.groups == nil {
		return ""
	}
	return byGroups
}

// findGroups finds the groups of the labelled rows.
func (t *Data) findGroups(ctx context.Context) error {
	key, err := groupsOf(t.Options.GroupBy, t.Table)
	if err != nil {
		return err
	}
	labelled := t.Rows.Labelled()
	t.Options.stage("looking for copies", 0, -1)
	alike, err := features.Alike(ctx, labelled)
	if err != nil {
		return err
	}
	t.copies, t.different = copies(alike[0]), len(slices.Compact(slices.Sorted(slices.Values(alike[0]))))
	if t.copies == 0 && key == nil {
		return nil
	}
	t.groups = lists.UpTo(len(t.Labels))
	for i, row := range labelled.Index {
		t.groups[row] = labelled.Index[alike[0][i]]
	}
	t.groups = JoinGroups(t.groups, key)
	return nil
}

// copies counts the rows that share a number with another.
func copies(numbers []int) int {
	count := make(map[int]int, len(numbers))
	for _, n := range numbers {
		count[n]++
	}
	total := 0
	for _, n := range count {
		if n > 1 {
			total += n
		}
	}
	return total
}

// groupsOf returns the groups of the images of a table by their paths; nil without a
// pattern.
func groupsOf(pattern string, t *features.Table) ([]string, error) {
	if pattern == "" {
		return nil, nil
	}
	var paths []string
	for _, set := range t.Sets {
		images, err := set.Images()
		if err != nil {
			return nil, err
		}
		if len(images) == 0 && set.N > 0 {
			return nil, options.Errorf("GroupBy", "features %s have no paths of images", set.Dir)
		}
		for _, image := range images {
			paths = append(paths, image.Path)
		}
	}
	return GroupNames(pattern, paths)
}

// GroupNames returns the match of the pattern in each path, or of its first brackets, and ""
// where it finds nothing. It must match one of the paths, if there are any.
func GroupNames(pattern string, paths []string) ([]string, error) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return nil, options.Errorf("GroupBy", "%w", err)
	}
	groups, found := make([]string, len(paths)), len(paths) == 0
	for i, path := range paths {
		if match := expression.FindStringSubmatch(path); match != nil {
			groups[i] = match[min(1, len(match)-1)]
		}
		found = found || groups[i] != ""
	}
	if !found {
		return nil, options.Errorf("GroupBy", "%s matches no path, such as %s", pattern, paths[0])
	}
	return groups, nil
}

// JoinGroups joins groups by number with those by name: rows that share either share
// the number that it returns. A row without a name shares none.
func JoinGroups(numbers []int, names []string) []int {
	if names == nil {
		return numbers
	}
	parent := map[int]int{}
	find := func(n int) int {
		for {
			p, ok := parent[n]
			if !ok {
				return n
			}
			if q, ok := parent[p]; ok {
				parent[n] = q
			}
			n = p
		}
	}
	named := map[string]int{}
	for row, name := range names {
		if name == "" {
			continue
		}
		x := find(numbers[row])
		if first, known := named[name]; !known {
			named[name] = x
		} else if y := find(first); x != y {
			parent[max(x, y)] = min(x, y)
		}
	}
	for row, n := range numbers {
		numbers[row] = find(n)
	}
	return numbers
}

// warnOfGroups notes what the groups of the rows mean for the split.
func (t *Data) warnOfGroups() {
	if t.copies > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf(
			"%d of %d images have features that are identical or nearly identical to those of another image: such groups of images stay in one part of the split, and one image of each group is used for calibration",
			t.copies, t.labelled()))
	}
	if t.different*fewGroups < t.labelled() && t.copies > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf(
			"the features have few different values: %d images are %d groups of identical or nearly identical features; few groups calibrate, and since images of a group get the same score, far fewer images may be flagged than the threshold allows",
			t.labelled(), t.different))
	}
	if t.Options.Calibration.fraction() == 0 {
		return
	}
	if n := len(t.split.OneGroup); n > 0 && n < t.labelled() {
		classes := map[int64]bool{}
		for _, row := range t.split.OneGroup {
			classes[t.Labels[row]] = true
		}
		share := float64(n) / float64(t.labelled())
		t.Warnings = append(t.Warnings, fmt.Sprintf(
			"%d of %d images belong to %d classes that have one image or one group of images each: they cannot be used for calibration, so that the bound on false alarms holds for images of the other classes; if new images come from all classes equally often, up to %.3g%% may be flagged",
			n, t.labelled(), len(classes), 100*(share+(1-share)*(1-t.Options.TargetTPR))))
	}
}

// fewGroups is how many images a group of copies may have in the mean before training warns of it.
const fewGroups = 5

// labelled counts the rows with a label.
func (t *Data) labelled() int {
	s := t.split
	return len(s.Train) + len(s.Validation) + len(s.Calibration) + len(s.LeftOut)
}

// calibrationRows returns the rows of a feature set of its own that calibrate: one
// of each group, and none that is like an image to train on or to validate by.
func (t *Data) calibrationRows(ctx context.Context, own *features.Table) ([]int, error) {
	names, err := groupsOf(t.Options.GroupBy, own)
	if err != nil {
		return nil, err
	}
	sets := []features.Rows{own.Rows, t.Rows}
	if t.Held != nil {
		sets = append(sets, t.Held.Rows)
	}
	alike, err := features.Alike(ctx, sets...)
	if err != nil {
		return nil, err
	}
	known := map[int]bool{}
	for _, numbers := range alike[1:] {
		for _, n := range numbers {
			known[n] = true
		}
	}
	fitted, err := t.inFit(own)
	if err != nil {
		return nil, err
	}
	groups, repeated := JoinGroups(slices.Clone(alike[0]), names), 0
	spoiled := map[int]bool{}
	for i, n := range alike[0] {
		if known[n] || fitted[i] {
			spoiled[groups[i]] = true
		}
	}
	for i, g := range groups {
		if spoiled[g] {
			groups[i] = -1
			repeated++
		}
	}
	if repeated > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf(
			"%d of %d calibration images are left out: they, or others of their groups, have features that are identical or nearly identical to those of images to train on or to validate by, which score higher than new ones",
			repeated, len(groups)))
	}
	rows := features.OneOfEach(groups, t.Options.Seeds[0])
	t.leftOut = len(groups) - len(rows)
	return rows, nil
}

// warnOfTies notes that many calibration scores are equal.
func (r *Result) warnOfTies(d *detector.Detector) {
	tied := 0
	for i, s := range d.CalibrationScores {
		if i > 0 && d.CalibrationScores[i-1] == s || i+1 < len(d.CalibrationScores) && d.CalibrationScores[i+1] == s {
			tied++
		}
	}
	if share := float64(tied) / float64(len(d.CalibrationScores)); share > mostTies {
		r.Warnings = append(r.Warnings, fmt.Sprintf(
			"%d of %d calibration scores are equal to others: fewer images may be flagged than the threshold allows, and the interval of false alarms does not hold",
			tied, len(d.CalibrationScores)))
	}
}

// mostTies is the share of calibration scores that may be equal to others without
// a word.
const mostTies = 0.1
