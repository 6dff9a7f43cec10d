package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// This file compares a report with an earlier one on the same images.

// comparison holds the differences from an earlier report for the page.
type comparison struct {
	Earlier string
	Notes   []string
	Metrics table
	Sides   *table
	Own     []string // methods that are judged by the thresholds of detectors
	Changed []missed // images that changed sides, by method
}

// side says which images a threshold accepts.
type side struct {
	scores []float64 // of a set
	id     []float64 // of the in-distribution test images, ascending
	limit  float64
}

// accepts95 returns the highest threshold that accepts at least 95% of the
// in-distribution images.
func accepts95(id []float64) float64 {
	n := len(id)
	at := n - int(math.Ceil(0.95*float64(n)-1e-9))
	return id[max(0, min(at, n-1))]
}

func (s side) accepted(i int) bool { return s.scores[i] >= s.limit }

// rank is the share of in-distribution images with lower scores.
func (s side) rank(i int) float64 {
	at, _ := slices.BinarySearch(s.id, s.scores[i])
	return float64(at) / float64(len(s.id))
}

// change is an image that changed sides.
type change struct {
	place
	from, to float64 // ranks
}

// compare compares the report with the earlier one.
func (v *view) compare() error {
	e := v.Against
	if e == nil {
		return nil
	}
	if err := e.Check(v.ID, v.OOD); err != nil {
		return err
	}
	c := &comparison{Earlier: e.Dir, Metrics: v.metricsAgainst(e.Results)}
	if !e.Recorded() || v.ID.Images == "" {
		c.Notes = append(c.Notes, "One of the reports does not record which images it is on; only the names and sizes of the sets were compared.")
	}
	methods := slices.Clone(v.methods)
	if at := slices.Index(methods, v.GalleryMethod); at > 0 {
		methods = slices.Insert(slices.Delete(methods, at, at+1), 0, v.GalleryMethod)
	}
	sides := table{Caption: "Images that changed sides", Head: "method", Groups: []columnGroup{
		{"in-distribution images", 2}, {"OOD images", 2},
	}, Columns: []string{"newly flagged", "newly accepted", "newly caught", "newly missed"}}
	for _, method := range methods {
		run, ok := v.firstRun(method)
		if !ok {
			continue
		}
		seed, ok := e.Seed(method, run.Seed)
		if !ok {
			continue
		}
		changes, err := v.changes(e, run, seed)
		if err != nil {
			return err
		}
		row := tableRow{Head: method}
		switch before, now := e.Threshold(method, seed) != nil, run.Threshold != nil; {
		case before && now:
			c.Own = append(c.Own, method)
		case before:
			c.Own = append(c.Own, method+" in the earlier report")
		case now:
			c.Own = append(c.Own, method+" in this report")
		}
		m := missed{Method: method}
		for i, list := range changes {
			row.Cells = append(row.Cells, whole(len(list)))
			if g := v.changedGallery(sideTitles[i], list); len(g.Tiles) > 0 {
				m.Galleries = append(m.Galleries, g)
			}
		}
		sides.Rows = append(sides.Rows, row)
		if len(m.Galleries) > 0 {
			c.Changed = append(c.Changed, m)
		}
	}
	if len(sides.Rows) > 0 {
		c.Sides = &sides
	} else {
		c.Notes = append(c.Notes, "No method is in both reports, so no images can have changed sides.")
	}
	v.Comparison = c
	return nil
}

// sideTitles are of the lists of changes.
var sideTitles = []string{"In-distribution images that are newly flagged", "In-distribution images that are newly accepted",
	"OOD images that are newly caught", "OOD images that are newly missed"}

// changes lists the images that changed sides as sideTitles says, those that moved
// farthest first.
func (v *view) changes(e *evaluation.Earlier, run evaluation.Run, seed string) (lists [4][]change, err error) {
	before, now := side{}, side{}
	sets := []*images.Set{&v.ID}
	for i := range v.OOD {
		sets = append(sets, &v.OOD[i])
	}
	for at, set := range sets {
		dataset := set.Name
		if at == 0 {
			dataset = "id"
		}
		if now.scores, err = v.scores(run, dataset); err != nil {
			return lists, err
		}
		if before.scores, err = e.Scores(run.Method, seed, dataset, len(now.scores)); err != nil {
			return lists, err
		}
		if at == 0 {
			for _, s := range []*side{&before, &now} {
				s.id = slices.Clone(s.scores)
				slices.Sort(s.id)
				if len(s.id) == 0 {
					return lists, nil
				}
				s.limit = accepts95(s.id)
			}
			if own := e.Threshold(run.Method, seed); own != nil {
				before.limit = *own
			}
			if run.Threshold != nil {
				now.limit = *run.Threshold
			}
		}
		for i := range now.scores {
			was, is := before.accepted(i), now.accepted(i)
			if was == is {
				continue
			}
			list := 0
			switch {
			case at == 0 && is:
				list = 1
			case at > 0 && was:
				list = 2
			case at > 0:
				list = 3
			}
			lists[list] = append(lists[list], change{place{set, i}, before.rank(i), now.rank(i)})
		}
	}
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b change) int { return cmp.Compare(math.Abs(b.to-b.from), math.Abs(a.to-a.from)) })
	}
	return lists, nil
}

// changedGallery shows the images that moved farthest.
func (v *view) changedGallery(title string, list []change) gallery {
	g := gallery{Title: fmt.Sprintf("%s (%d)", title, len(list))}
	for _, c := range list {
		if len(g.Tiles) == gallerySize {
			break
		}
		if c.set.Image == nil {
			continue
		}
		t := &tile{picture: v.Page.Album.of(c.set.Image(c.row), thumbnailSide)}
		t.says(tileLine{Name: "label", Value: t.Label})
		if c.set != &v.ID {
			t.Lines = append(t.Lines, tileLine{Name: "set", Value: c.set.Name})
		}
		t.Lines = append(t.Lines, tileLine{Name: "rank", Value: fmt.Sprintf("%.1f%% → %.1f%%", 100*c.from, 100*c.to)})
		g.Tiles = append(g.Tiles, t)
	}
	return g
}

// metricsAgainst is the table of both reports' metrics side by side.
func (v *view) metricsAgainst(earlier []metrics.Measurement) table {
	now, before := v.results, index(earlier)
	methods := order(slices.Concat(v.Results, earlier), func(r metrics.Measurement) string { return r.Method })
	t := newTable("Metrics of the earlier report, of this one, and their difference, in per cent", methods)
	add := func(of func(rs results, method string) Value) {
		var was, is, differs []Value
		for _, m := range methods {
			a, b := of(before, m), of(now, m)
			was, is, differs = append(was, a), append(is, b), append(differs, Value{b.Mean - a.Mean, math.NaN()})
		}
		t.addColumn("earlier", false, was, nil)
		t.addColumn("now", false, is, nil)
		t.addColumn("difference", false, differs, nil)
		for i := range t.Rows { // nothing is best here
			cells := t.Rows[i].Cells
			for k := len(cells) - 3; k < len(cells); k++ {
				cells[k].Best = false
			}
			if last := &cells[len(cells)-1]; differs[i].Mean > 0 {
				last.Mean = "+" + last.Mean
			} else {
				last.Mean = strings.Replace(last.Mean, "-", "−", 1)
			}
		}
	}
	for _, m := range []Metric{AUROC, FPR95} {
		for _, group := range groups(v.Results) {
			t.Groups = append(t.Groups, columnGroup{Label: m.arrow() + ", " + group})
			add(func(rs results, method string) Value { return rs.value(m, method, group, "mean") })
		}
	}
	t.Groups = append(t.Groups, columnGroup{Label: "accuracy ↑"})
	add(func(rs results, method string) Value { return rs.accuracy(method) })
	return t
}
