package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// Bounds of the page of discover --report.
const (
	mostKinds  = 40 // groups
	mostOfKind = 30 // images of each
	mostAlone  = 60 // new images in no group
	mostNear   = 6  // training images beside a group
)

// writePage writes the page of what was found.
func (d *discovering) writePage(ctx context.Context, r *pipeline.Discovery) error {
	page := report.Discovery{Images: r.Images - r.Unreadable, New: r.Listed, Known: r.ListedKnown, Last: math.Inf(-1), AtLeast: r.NewAtLeast, FDR: r.FDR, Bounds: r.Bounds,
		Frame: report.Frame{Notes: slices.Clone(r.Notes), Commands: []string{d.line()}}}
	page.Facts = append(madeBy(), evaluation.Fact{Name: "detector", Value: d.file},
		evaluation.Fact{Name: "images", Value: fmt.Sprintf("%s, %d unreadable, %d copies", count(r.Images, "image"), r.Unreadable, r.Copies)},
		evaluation.Fact{Name: "calibration images", Value: fmt.Sprint(r.Calibration)},
		evaluation.Fact{Name: "weight of what the folder taught", Value: fmt.Sprintf("%.3g to rank by, %.3g for the list", r.Weight, r.ListWeight)})
	kinds := make([][]int, len(r.Groups)+1) // the last are new images of no group
	for i, f := range r.Found {
		if f.New {
			page.Last = max(page.Last, f.Together)
		}
		switch {
		case f.Err != nil:
			page.Failed = append(page.Failed, features.Failure{Path: f.Path, Error: text(d.adviseImage(f.Judgement))})
		case f.Group >= 0:
			kinds[f.Group] = append(kinds[f.Group], i)
		case f.New:
			kinds[len(r.Groups)] = append(kinds[len(r.Groups)], i)
		}
	}
	if n := len(r.Groups); n > mostKinds {
		page.Notes = append(page.Notes, fmt.Sprintf("the page shows the %d largest of %d groups", mostKinds, n))
		kinds = slices.Delete(kinds, mostKinds, n)
	}
	if d.out == "" && len(d.opts.Features) == 0 && len(r.Groups) > 0 {
		page.Commands[0] += " --out " + usualOut
		page.Notes = append(page.Notes, "the commands that make a class read the lists that the command at the end of this page writes")
	}
	nearest, err := d.nearest(ctx, r, len(kinds)-1)
	if err != nil {
		return err
	}
	var shown []int
	for g, all := range kinds {
		k := report.NewKind{Title: "New, in no group", Total: len(all)}
		var typical []int
		most := mostAlone
		if g < len(nearest) {
			typical, most = r.Groups[g].Typical, mostOfKind
			k.Title, k.Nearest = fmt.Sprintf("Group %d, nearest to %s", g, r.Groups[g].Nearest), nearest[g]
			if len(d.opts.Features) == 0 {
				k.Command = d.makeClass(g)
			}
		}
		if len(all) == 0 {
			continue
		}
		rest := slices.DeleteFunc(all, func(i int) bool { return slices.Contains(typical, i) })
		slices.SortStableFunc(rest, func(a, b int) int { return cmp.Compare(r.Found[a].Together, r.Found[b].Together) })
		rest = slices.Concat(typical, rest)
		for _, i := range rest[:min(most, len(rest))] {
			shown = append(shown, i)
			k.Images = append(k.Images, report.NewImage{Together: r.Found[i].Together})
		}
		page.Kinds = append(page.Kinds, k)
	}
	pictures, err := d.pictures(ctx, r, shown)
	if err != nil {
		return err
	}
	for _, k := range page.Kinds {
		for i := range k.Images {
			k.Images[i].Image, pictures = pictures[0], pictures[1:]
		}
	}
	return report.WriteDiscovery(d.page, page)
}

// nearest returns the training images that are nearest to typical ones of each of the first
// n groups.
func (d *discovering) nearest(ctx context.Context, r *pipeline.Discovery, n int) (_ [][]pipeline.Neighbour, err error) {
	if n == 0 {
		return nil, nil
	}
	e, err := pipeline.NewExplainer(ctx, d.opts.Detect.Detector, pipeline.ExplainOptions{Features: d.opts.Training, Memory: d.opts.Memory})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	var x []float32
	var verdicts []pipeline.Verdict
	for _, g := range r.Groups[:n] {
		for _, i := range g.Typical {
			x, verdicts = append(x, r.Found[i].Features...), append(verdicts, r.Found[i].Verdict)
		}
	}
	all, err := e.Explain(ctx, x, verdicts)
	if err != nil {
		return nil, err
	}
	nearest := make([][]pipeline.Neighbour, n)
	for g := range nearest {
		var near []pipeline.Neighbour
		for range r.Groups[g].Typical {
			near, all = append(near, all[0].Nearest...), all[1:]
		}
		slices.SortFunc(near, func(a, b pipeline.Neighbour) int {
			return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.Distance, b.Distance))
		})
		near = slices.CompactFunc(near, func(a, b pipeline.Neighbour) bool { return a.Row == b.Row })
		slices.SortStableFunc(near, func(a, b pipeline.Neighbour) int { return cmp.Compare(a.Distance, b.Distance) })
		nearest[g] = near[:min(mostNear, len(near))]
	}
	return nearest, nil
}

// pictures returns those of the images with these indices.
func (d *discovering) pictures(ctx context.Context, r *pipeline.Discovery, shown []int) ([]images.Picture, error) {
	pictures, places := make([]images.Picture, len(shown)), map[int]int{}
	for k, i := range shown {
		if places[i] = k; len(d.opts.Features) > 0 {
			pictures[k].Path = r.Found[i].Path
		} else {
			pictures[k] = pictureOf(ctx, r.Found[i].Judgement)
		}
	}
	first, picture := 0, images.Pictures(nil)
	for _, dir := range d.opts.Features {
		set, err := features.Open(ctx, dir)
		if err != nil {
			return nil, err
		}
		var rows []int
		for _, i := range shown {
			if i >= first && i < first+set.N {
				rows = append(rows, i-first)
			}
		}
		known, err := set.ImagesAt(rows)
		for row, img := range known {
			pictures[places[first+row]] = picture(set, img)
		}
		first += set.N
		if err := errors.Join(err, set.Close()); err != nil {
			return nil, err
		}
	}
	return pictures, nil
}
