package learn

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// This file gathers what people said.

const (
	// MinNew is how many images of a class that the detector does not know are needed to
	// learn it: some of them are set aside to validate, to calibrate, and to compare.
	MinNew = 10
	// mostReviews bounds the reviewed images of one job: the newest count.
	mostReviews = 20_000
	// mostListed bounds the images that are listed one by one.
	mostListed = 200

	page = 1000 // verdicts that are asked for at once
)

// Gathered is what people said about the images that a detector judged.
type Gathered struct {
	Classes []ClassReviews `json:"classes"` // that images are said to be of, by name
	Images  int            `json:"images"`  // to learn from, those of classes with too few included
	Junk    int            `json:"junk"`    // of no class: known outliers for a default score, and a new detector should flag them
	// Without are reviewed images whose features are not known: they were not kept, and
	// neither was the image. At most 200 are listed.
	Without      []Without `json:"without_features"`
	WithoutCount int       `json:"without_features_count"`
	Disagreed    int       `json:"disagreed"` // images about which different things were said: the latest counts
	Others       int       `json:"others"`    // reviews of what other detectors judged
	Dropped      int       `json:"dropped"`   // images beyond the newest 20,000

	reviewed []reviewed // in the order of storing
}

// ClassReviews counts the reviewed images of a class.
type ClassReviews struct {
	Class   string `json:"class"`
	New     bool   `json:"new"` // the detector does not know it
	Images  int    `json:"images"`
	Missing int    `json:"missing"` // how many more are needed to learn the class
}

// Without is a reviewed image that cannot be learned from.
type Without struct {
	ID   string    `json:"id"`
	Name string    `json:"name"`
	Time time.Time `json:"time"`
	Why  string    `json:"why"`
}

// reviewed is an image that people said something about.
type reviewed struct {
	store.Record
	class    string // "" for junk
	features []float32
	held     bool // set aside to compare detectors
}

// hash is that of the image, or of the features where these came alone.
func (r *reviewed) hash() string {
	if r.Image != "" {
		return r.Image
	}
	sum := sha256.New()
	for _, v := range r.features {
		fmt.Fprintf(sum, "%x ", v)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// said is the class that a review says the image is of: "" for junk. What is fine is of
// the class that the detector said.
func said(r *store.Record) string {
	switch r.Review.Decision {
	case store.IsClass, store.IsNew:
		return r.Review.Class
	case store.IsFine:
		return r.Class
	}
	return ""
}

// Subject is the detector that learns.
type Subject struct {
	Name    string
	Classes []string        // that it knows
	Model   string          // fingerprint of what makes its features
	Dim     int             // of its features
	Files   map[string]bool // hashes of the detector files that served under its name
}

// Kept gives the features of images that the store has none of.
type Kept interface {
	// Has tells whether the image with a SHA-256 is kept.
	Has(sha256 string) bool
	// Features computes the features of that image as the detector with a name reads
	// them.
	Features(ctx context.Context, detector, sha256 string) ([]float32, error)
}

// gather returns what was said of the images that a detector judged; with features only
// if read.
func gather(ctx context.Context, db store.Store, of Subject, kept Kept, read bool) (*Gathered, error) {
	g := &Gathered{Classes: []ClassReviews{}, Without: []Without{}}
	yes := true
	latest := map[string]int{} // by image
	differ := map[string]bool{}
	var all []reviewed
	// The reviewed verdicts, the newest first.
	for until := int64(0); ; {
		list, err := db.List(ctx, store.Query{Reviewed: &yes, UntilSeq: until, Limit: page})
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			until = r.Seq - 1
			if !of.Files[r.Detector] {
				g.Others++
				continue
			}
			one := reviewed{Record: r, class: said(&r)}
			if r.Image != "" {
				if at, known := latest[r.Image]; known {
					if all[at].class != one.class {
						differ[r.Image] = true
					}
					if r.Review.Time.After(all[at].Review.Time) {
						all[at] = one
					}
					continue
				}
				latest[r.Image] = len(all)
			}
			if len(all) == mostReviews {
				g.Dropped++
				continue
			}
			all = append(all, one)
		}
		if len(list) < page || until == 0 {
			break
		}
	}
	slices.Reverse(all)
	if read {
		for i := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			was, err := db.Reviews(ctx, all[i].ID)
			if err != nil {
				return nil, err
			}
			if disagree(was) {
				differ[all[i].hash()] = true
			}
		}
	}
	g.Disagreed = len(differ)
	if err := g.fill(ctx, db, of, all, kept, read); err != nil {
		return nil, err
	}
	g.count(of)
	return g, nil
}

// disagree tells whether reviews of a verdict say different things, but for those that
// were undone.
func disagree(all []store.Review) bool {
	var stand []store.Review
	for _, r := range all {
		if r.Decision == store.Undo {
			stand = stand[:max(0, len(stand)-1)]
		} else {
			stand = append(stand, r)
		}
	}
	return slices.ContainsFunc(stand, func(r store.Review) bool {
		return r.Decision != stand[0].Decision || r.Class != stand[0].Class
	})
}

// fill finds the features of all images, or without read those that have some.
func (g *Gathered) fill(ctx context.Context, db store.Store, of Subject, all []reviewed, kept Kept, read bool) error {
	stored := map[string]bool{}
	yes := true
	for after := int64(0); ; {
		list, err := db.List(ctx, store.Query{Reviewed: &yes, WithFeatures: true, AfterSeq: after, Order: store.Oldest, Limit: page})
		if err != nil {
			return err
		}
		for _, r := range list {
			stored[r.ID], after = r.Model == of.Model, r.Seq
		}
		if len(list) < page {
			break
		}
	}
	for block := range slices.Chunk(all, page) {
		var known map[string][]float32
		if read {
			ids := lists.Map(block, func(r reviewed) string { return r.ID })
			var err error
			if known, err = db.Features(ctx, ids); err != nil {
				return err
			}
		}
		for _, r := range block {
			why := ""
			switch {
			case stored[r.ID]:
				r.features = known[r.ID]
			case !kept.Has(r.Image):
				why = "neither its features nor the image were kept"
				if r.Model != of.Model {
					why = "its features are of another model, and the image was not kept"
				}
			case read:
				var err error
				if r.features, err = kept.Features(ctx, of.Name, r.Image); ctx.Err() != nil {
					return ctx.Err()
				} else if err != nil {
					why = "the image could not be read again"
				}
			}
			if read && why == "" && len(r.features) != of.Dim {
				why = "its features have another length"
			}
			if why == "" {
				g.reviewed = append(g.reviewed, r)
				continue
			}
			if g.WithoutCount++; len(g.Without) < mostListed {
				g.Without = append(g.Without, Without{r.ID, r.Name, r.Time, why})
			}
		}
	}
	return nil
}

// count counts the images of each class.
func (g *Gathered) count(of Subject) {
	images := map[string]int{}
	for i := range g.reviewed {
		if class := g.reviewed[i].class; class == "" {
			g.Junk++
		} else {
			images[class]++
			g.Images++
		}
	}
	for class, n := range images {
		c := ClassReviews{Class: class, New: !slices.Contains(of.Classes, class), Images: n}
		if c.New {
			c.Missing = max(0, MinNew-n)
		}
		g.Classes = append(g.Classes, c)
	}
	slices.SortFunc(g.Classes, func(a, b ClassReviews) int { return cmp.Compare(a.Class, b.Class) })
}

// learnable are the images of classes with enough of them, and the junk.
func (g *Gathered) learnable() (images, junk []reviewed) {
	few := map[string]bool{}
	for _, c := range g.Classes {
		few[c.Class] = c.Missing > 0
	}
	for _, r := range g.reviewed {
		switch {
		case r.class == "":
			junk = append(junk, r)
		case !few[r.class]:
			images = append(images, r)
		}
	}
	return images, junk
}

// heldShare: one of so many images is set aside.
const heldShare = 5

// setAside sets a fifth of the images aside, chosen by the hash of the image, so that
// the choice stays when more are reviewed, and no detector that learned from reviews has
// seen them. Images that are alike (equal numbers in groups) stay together. A class with
// none that is so chosen has that with the lowest hash set aside.
func setAside(images []reviewed, groups []int) {
	key := func(i int) string {
		sum := sha256.Sum256([]byte("set aside " + images[i].hash()))
		return hex.EncodeToString(sum[:])
	}
	keys := make([]string, len(images)) // of the first of each group
	held, lowest := map[string]bool{}, map[string]int{}
	for i := range images {
		keys[i] = key(groups[i])
		sum, _ := hex.DecodeString(keys[i][:2])
		if images[i].held = int(sum[0])%heldShare == 0; images[i].held {
			held[images[i].class] = true
		}
		if at, ok := lowest[images[i].class]; !ok || keys[i] < keys[at] {
			lowest[images[i].class] = i
		}
	}
	counts := map[string]int{}
	for i := range images {
		counts[images[i].class]++
	}
	for class, at := range lowest {
		if !held[class] && counts[class] >= heldShare {
			for i := range images {
				images[i].held = images[i].held || groups[i] == groups[at]
			}
		}
	}
	// A class of copies of one image would have none left to learn from.
	left := map[string]int{}
	for i := range images {
		if !images[i].held {
			left[images[i].class]++
		}
	}
	for i := range images {
		if left[images[i].class] == 0 {
			images[i].held = false
		}
	}
}
