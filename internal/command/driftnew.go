package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file judges together the images since the evidence of a change began to grow.

// mostSince bounds these images: the first ones are judged.
const mostSince = 20_000

// sinceThen are features and paths of images since the evidence began to grow.
type sinceThen struct {
	from  int // the first, counted from 1
	rows  []float32
	paths []string
	more  bool // than are kept
}

func (s *sinceThen) add(image int, j pipeline.Judgement) {
	if s.from == 0 {
		s.from = image
	}
	if s.more = len(s.paths) >= mostSince; !s.more {
		s.rows, s.paths = append(s.rows, j.Features...), append(s.paths, j.Path)
	}
}

// newSince is what is new among the images since then.
type newSince struct {
	Since int `json:"since"` // the first of them
	*pipeline.Discovery
	Groups []newGroup `json:"groups"`
}

// newGroup is a kind of new images.
type newGroup struct {
	Images  int      `json:"images"`
	Nearest string   `json:"nearest"`
	Typical []string `json:"typical"` // paths, at most nine
}

// discover says what is new, in the Notes why nothing can be said where that is so.
func (s *sinceThen) discover(ctx context.Context, d *pipeline.Detector, training []string) (*newSince, error) {
	n := &newSince{Since: s.from, Groups: []newGroup{}, Discovery: &pipeline.Discovery{}}
	found, err := pipeline.Discover(ctx, pipeline.DiscoverOptions{Detect: pipeline.DetectOptions{Detector: d}, Rows: slices.Clip(s.rows), Training: training})
	about, of := errors.AsType[*options.Error](err)
	switch {
	case of && about.Option == "Detector":
		n.Notes = []string{fmt.Sprintf("which images are new cannot be said: %v", about.Err)}
		return n, nil
	case errors.Is(err, detector.ErrTrainingSets) || of && about.Option == "Training" && len(training) == 0:
		n.Notes = []string{"which images are new needs the features that the detector was trained and calibrated on (--training), which are not found, or have changed"}
		return n, nil
	case err != nil:
		return nil, err
	}
	if n.Discovery = found; s.more {
		n.Notes = append(n.Notes, fmt.Sprintf("of the images since then the first %d were judged together", mostSince))
	}
	for _, g := range found.Groups {
		group := newGroup{Images: g.Images, Nearest: g.Nearest}
		for _, i := range g.Typical {
			group.Typical = append(group.Typical, disk.EncodePath(s.paths[i]))
		}
		n.Groups = append(n.Groups, group)
	}
	return n, nil
}

// lines say what is new, a line each.
func (n *newSince) lines() (lines []string) {
	if n.Images > 0 {
		lines = append(lines, fmt.Sprintf("of %s since image %d, %d are called new, and at least %d are (95%%)", count(n.Images, "image"), n.Since, n.New, n.NewAtLeast))
	}
	for i, g := range n.Groups[:min(len(n.Groups), mostRows)] {
		lines = append(lines, fmt.Sprintf("group %d: %s, nearest to %s, such as %s", i, count(g.Images, "image"), Printable(g.Nearest), Printable(strings.Join(g.Typical[:min(3, len(g.Typical))], ", "))))
	}
	return append(lines, n.Notes...)
}
