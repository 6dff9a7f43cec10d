package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// This file compares a report with an earlier one on the same images.

// ErrOtherImages means that two reports are not on the same images.
var ErrOtherImages = errors.New("the reports are not on the same images")

// Earlier is an earlier report to compare with.
type Earlier struct {
	Dir     string
	Results []Measurement
	sets    []setRecord // nil if it does not record them
	limits  []limitRecord
}

// setRecord says in sets.json which images a set of a report has.
type setRecord struct {
	Name   string `json:"name"` // "id" for the in-distribution test images
	Group  string `json:"group,omitempty"`
	N      int    `json:"n"`
	Images string `json:"images,omitempty"` // see Set.Images
}

// limitRecord says in sets.json by which threshold a detector decides.
type limitRecord struct {
	Method    string  `json:"method"`
	Seed      string  `json:"seed"`
	Threshold float64 `json:"threshold"`
}

type setsFile struct {
	Version    int           `json:"version"`
	Sets       []setRecord   `json:"sets"`
	Thresholds []limitRecord `json:"thresholds,omitempty"`
}

const setsName = "sets.json"

func recordSets(id Set, ood []Set) []setRecord {
	records := []setRecord{{"id", "", id.N, id.Images}}
	for _, s := range ood {
		records = append(records, setRecord{s.Name, s.Group, s.N, s.Images})
	}
	return records
}

func writeSets(dir string, r Report) error {
	var limits []limitRecord
	for _, run := range r.Runs {
		if run.Threshold != nil {
			limits = append(limits, limitRecord{run.Method, run.Seed, *run.Threshold})
		}
	}
	return disk.Write(filepath.Join(dir, setsName), func(w io.Writer) error {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(setsFile{1, recordSets(r.ID, r.OOD), limits})
	})
}

// ReadEarlier reads what a report of an evaluation left in its folder.
func ReadEarlier(dir string) (*Earlier, error) {
	e := &Earlier{Dir: dir}
	var err error
	if e.Results, err = ReadResults(filepath.Join(dir, "results.csv")); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, setsName)
	text, err := disk.ReadFile(file, disk.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil // a report of an earlier version
	}
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var sets setsFile
	if err := json.Unmarshal(text, &sets); err != nil {
		return nil, fmt.Errorf("report: %s: %w", file, err)
	}
	if sets.Version != 1 {
		return nil, fmt.Errorf("report: %s has version %d, and this program reads version 1", file, sets.Version)
	}
	e.sets, e.limits = sets.Sets, sets.Thresholds
	return e, nil
}

// threshold returns the threshold of the detector that gave a method's scores; nil
// without one.
func (e *Earlier) threshold(method, seed string) *float64 {
	for _, l := range e.limits {
		if l.Method == method && l.Seed == seed {
			return &l.Threshold
		}
	}
	return nil
}

// Check returns an error that wraps ErrOtherImages unless the earlier report is on
// these images, in this order. Where it does not record them, their numbers count.
func (e *Earlier) Check(id Set, ood []Set) error {
	want := recordSets(id, ood)
	have := e.sets
	if have == nil {
		for _, r := range e.Results {
			if r.Dataset == "mean" {
				continue
			}
			for _, s := range []setRecord{{Name: "id", N: r.NID}, {Name: r.Dataset, Group: r.Group, N: r.NOOD}} {
				if !slices.Contains(have, s) {
					have = append(have, s)
				}
			}
		}
	}
	var wrong []string
	for _, s := range want {
		at := slices.IndexFunc(have, func(h setRecord) bool { return h.Name == s.Name })
		switch {
		case at < 0:
			wrong = append(wrong, fmt.Sprintf("%s is not in it", s.Name))
		case have[at].N != s.N:
			wrong = append(wrong, fmt.Sprintf("%s had %s and has %d", s.Name, count(have[at].N), s.N))
		case have[at].Group != s.Group:
			wrong = append(wrong, fmt.Sprintf("%s was a %s set", s.Name, have[at].Group))
		case have[at].Images != s.Images && have[at].Images != "" && s.Images != "":
			wrong = append(wrong, fmt.Sprintf("%s has other images, or in another order", s.Name))
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(s setRecord) bool { return s.Name == h.Name }) {
			wrong = append(wrong, h.Name+" is only in it")
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("report %s: %w: %s", e.Dir, ErrOtherImages, strings.Join(wrong, "; "))
	}
	return nil
}

// recorded reports whether the earlier report says which images it is on.
func (e *Earlier) recorded() bool {
	return !slices.ContainsFunc(e.sets, func(s setRecord) bool { return s.Images == "" }) && e.sets != nil
}

// scores reads n scores of a method on a set.
func (e *Earlier) scores(method, seed, dataset string, n int) ([]float64, error) {
	name := filepath.Join("scores", method, seed, dataset+".npy")
	if !filepath.IsLocal(name) || strings.ContainsAny(method+seed+dataset, `/\`) {
		return nil, fmt.Errorf("report %s: no file can be named by method %q, seed %q and set %q", e.Dir, method, seed, dataset)
	}
	scores, _, err := npy.ReadUpTo[float64](filepath.Join(e.Dir, name), n)
	if err != nil {
		return nil, fmt.Errorf("report %s: %w", e.Dir, err)
	}
	if len(scores) != n {
		return nil, fmt.Errorf("report %s: %s has %d scores, and there are %s", e.Dir, name, len(scores), count(n))
	}
	return scores, nil
}

// seed is the seed of a method that is compared: the given one if it is there.
func (e *Earlier) seed(method, wanted string) (seed string, ok bool) {
	for _, r := range e.Results {
		if r.Method != method || r.Seed == "mean" || r.Seed == "std" {
			continue
		}
		if r.Seed == wanted {
			return wanted, true
		}
		if !ok {
			seed, ok = r.Seed, true
		}
	}
	return seed, ok
}

// digest tells sets of images apart: the SHA-256 of what identifies each image.
func digest(each []string) string {
	h := sha256.New()
	for _, text := range each {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

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
	if !e.recorded() || v.ID.Images == "" {
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
		seed, ok := e.seed(method, run.Seed)
		if !ok {
			continue
		}
		changes, err := v.changes(e, run, seed)
		if err != nil {
			return err
		}
		row := tableRow{Head: method}
		switch before, now := e.threshold(method, seed) != nil, run.Threshold != nil; {
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
func (v *view) changes(e *Earlier, run Run, seed string) (lists [4][]change, err error) {
	before, now := side{}, side{}
	sets := []*Set{&v.ID}
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
		if before.scores, err = e.scores(run.Method, seed, dataset, len(now.scores)); err != nil {
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
			if own := e.threshold(run.Method, seed); own != nil {
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
		if len(g.Tiles) == cmp.Or(v.GallerySize, 6) {
			break
		}
		if c.set.Image == nil {
			continue
		}
		t := &tile{picture: v.Page.Album.of(c.set.Image(c.row), thumbnailSide)}
		if t.Label != "" {
			t.Lines = append(t.Lines, tileLine{Name: "label", Value: t.Label})
		}
		if c.set != &v.ID {
			t.Lines = append(t.Lines, tileLine{Name: "set", Value: c.set.Name})
		}
		t.Lines = append(t.Lines, tileLine{Name: "rank", Value: fmt.Sprintf("%.1f%% → %.1f%%", 100*c.from, 100*c.to)})
		g.Tiles = append(g.Tiles, t)
	}
	return g
}

// metricsAgainst is the table of both reports' metrics side by side.
func (v *view) metricsAgainst(earlier []Measurement) table {
	now, before := v.results, index(earlier)
	methods := order(slices.Concat(v.Results, earlier), func(r Measurement) string { return r.Method })
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
