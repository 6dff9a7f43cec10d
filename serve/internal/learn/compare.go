package learn

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file compares two detectors on images that neither was trained on, and on those
// that came last.

// Compared is old against new.
type Compared struct {
	// Calibration are images of the old training features that both detectors set aside;
	// Of says for what, "calibration" or "validation".
	Calibration Tallied  `json:"calibration"`
	Of          string   `json:"of"`
	Reviews     Tallied  `json:"reviews"` // reviewed images that were set aside
	Junk        Tally    `json:"junk"`    // that was not learned from, which should be flagged
	JunkChanges []Change `json:"junk_changes"`
}

// Tallied counts images, and lists those whose verdict changes.
type Tallied struct {
	All     Tally    `json:"all"`
	Classes []Tally  `json:"classes"`
	Changes []Change `json:"changes"` // at most 200
}

// Tally counts the images of a class by two detectors.
type Tally = detector.Tally

// Change is an image of which two detectors say different things.
type Change struct {
	ID     string           `json:"id,omitempty"`    // of its verdict
	Image  string           `json:"image,omitempty"` // SHA-256
	Name   string           `json:"name"`
	Row    *int             `json:"row,omitempty"`   // of a training image, among all
	Label  string           `json:"label,omitempty"` // what it is, if that is known
	Before detector.Verdict `json:"before"`
	After  detector.Verdict `json:"after"`
}

// Traffic is what came last, judged by both detectors.
type Traffic struct {
	Images    int      `json:"images"`
	Changed   int      `json:"changed"`
	Flagged   int      `json:"flagged"`   // of those changed, flagged from now on
	Unflagged int      `json:"unflagged"` // not flagged any more
	Changes   []Change `json:"changes"`   // at most 200, the newest
}

const (
	mostCompared = 5000 // training images
	mostTraffic  = 2000
)

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// featuresOf are the features of reviewed images, by their numbers.
func featuresOf(images []reviewed) func(int) []float32 {
	return func(i int) []float32 { return images[i].features }
}

// pair is the verdicts of the detector that serves and of the new one on the same images.
type pair struct{ was, is []detector.Verdict }

func (t *Task) both(ctx context.Context, next *detector.Detector, n int, row func(int) []float32) (p pair, err error) {
	p.was, p.is, err = detector.Both(ctx, t.Now, next, row, lists.UpTo(n))
	return p, err
}

func (p pair) differ(i int) bool {
	return p.was[i].OOD != p.is[i].OOD || p.was[i].Class != p.is[i].Class
}

// changes lists the images of which the two say different things, at most 200.
func (p pair) changes(named func(int) Change) []Change {
	list := []Change{}
	for i := range p.was {
		if p.differ(i) && len(list) < mostListed {
			c := named(i)
			c.Before, c.After = p.was[i], p.is[i]
			list = append(list, c)
		}
	}
	return list
}

// tally counts images of known classes.
func (p pair) tally(labels []string, named func(int) Change) Tallied {
	t := Tallied{Classes: []Tally{}}
	at := map[string]int{}
	for i, class := range labels {
		if _, ok := at[class]; !ok {
			at[class] = len(t.Classes)
			t.Classes = append(t.Classes, Tally{Class: class})
		}
		for _, to := range []*Tally{&t.All, &t.Classes[at[class]]} {
			to.Count(class, p.was[i], p.is[i])
		}
	}
	t.Changes = p.changes(func(i int) Change {
		c := named(i)
		c.Label = labels[i]
		return c
	})
	slices.SortFunc(t.Classes, func(a, b Tally) int { return cmp.Compare(a.Class, b.Class) })
	return t
}

// compare compares the detector that serves with the new one.
func (r *Learned) compare(ctx context.Context, t *Task, next *detector.Detector, held, junk []reviewed) error {
	if err := r.onCalibration(ctx, t, next); err != nil {
		return err
	}
	p, err := t.both(ctx, next, len(held), featuresOf(held))
	if err != nil {
		return err
	}
	labels := lists.Map(held, func(r reviewed) string { return r.class })
	c := &r.Compare
	c.Reviews = p.tally(labels, func(i int) Change { return changeOf(&held[i].Record) })
	if p, err = t.both(ctx, next, len(junk), featuresOf(junk)); err != nil {
		return err
	}
	c.Junk.Images = len(junk)
	for i := range junk {
		c.Junk.FlaggedBefore += count(p.was[i].OOD)
		c.Junk.FlaggedAfter += count(p.is[i].OOD)
	}
	c.JunkChanges = p.changes(func(i int) Change { return changeOf(&junk[i].Record) })
	return nil
}

// local is a path that names no folder of this machine.
func local(path string) string {
	if !filepath.IsLocal(filepath.FromSlash(path)) {
		return ""
	}
	return strings.ToValidUTF8(path, "\ufffd")
}

func changeOf(r *store.Record) Change { return Change{ID: r.ID, Image: r.Image, Name: r.Name} }

// onCalibration compares on images that the old training set aside, and the new one too.
func (r *Learned) onCalibration(ctx context.Context, t *Task, next *detector.Detector) (err error) {
	data, err := next.OpenTraining(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	row, label := data.Row, func(i int) string { return next.Classes[data.Labels[i]] }
	named := func(i int) Change { // set below
		set, at := data.At(i)
		return Change{Name: local(set.ImagePath(at)), Row: &i}
	}
	var rows []int
	for _, r.Compare.Of = range []string{detector.ForCalibration, detector.ForValidation} {
		if rows = t.Base.Splits[r.Compare.Of]; len(rows) > 0 {
			break
		}
		sets, err := t.Base.OpenSets(ctx, r.Compare.Of, nil)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || len(sets) == 0 {
			continue
		}
		set := sets[0]
		defer func() { err = errors.Join(err, set.Close()) }()
		row, label = set.Row, func(i int) string { return set.Classes[set.Labels()[i]] }
		named = func(i int) Change { return Change{Name: local(set.ImagePath(i))} }
		for i, y := range set.Labels() {
			if y >= 0 {
				rows = append(rows, i)
			}
		}
		if len(rows) > 0 {
			break
		}
	}
	rows = features.Every(rows, mostCompared)
	labels := lists.Map(rows, label)
	p, err := t.both(ctx, next, len(rows), func(k int) []float32 { return row(rows[k]) })
	if err != nil {
		return err
	}
	r.Compare.Calibration = p.tally(labels, func(k int) Change { return named(rows[k]) })
	return nil
}

// traffic judges what came last by both detectors. It is nil where no features are kept.
func (t *Task) traffic(ctx context.Context, db store.Store, next *detector.Detector) (*Traffic, error) {
	var list []store.Record
	for until := int64(0); len(list) < mostTraffic; {
		some, err := db.List(ctx, store.Query{WithFeatures: true, UntilSeq: until, Limit: page})
		if err != nil {
			return nil, err
		}
		for _, v := range some {
			until = v.Seq - 1
			if t.Files[v.Detector] && v.Model == t.Model && len(list) < mostTraffic {
				list = append(list, v)
			}
		}
		if len(some) < page || until == 0 {
			break
		}
	}
	ids := lists.Map(list, func(r store.Record) string { return r.ID })
	known, err := db.Features(ctx, ids)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(v store.Record) bool { return len(known[v.ID]) != t.Dim })
	if len(list) == 0 {
		return nil, nil
	}
	p, err := t.both(ctx, next, len(list), func(i int) []float32 { return known[list[i].ID] })
	if err != nil {
		return nil, err
	}
	traffic := &Traffic{Images: len(list)}
	for i := range list {
		traffic.Changed += count(p.differ(i))
		traffic.Flagged += count(p.is[i].OOD && !p.was[i].OOD)
		traffic.Unflagged += count(p.was[i].OOD && !p.is[i].OOD)
	}
	traffic.Changes = p.changes(func(i int) Change {
		c := changeOf(&list[i])
		if list[i].Review != nil {
			c.Label = said(&list[i])
		}
		return c
	})
	return traffic, nil
}
