package report

import (
	"cmp"
	"fmt"
	"sort"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Discovery holds what the page of images that were judged together shows: groups of new
// ones, and how many of these are known ones at most.
type Discovery struct {
	Frame           // Lead and Answer are the page's own
	Images  int     // that were judged
	New     int     // images that are called new, without copies
	Known   int     // of which are known at most, with a confidence of 95%
	Last    float64 // the highest score of those that are called new
	AtLeast int     // images that are new, with a confidence of 95%
	FDR     float64
	Bounds  []evaluation.DiscoveryBound // by Found, ascending
	Kinds   []NewKind                   // the largest first
	Failed  []features.Failure
}

// NewKind is a group of images that look alike.
type NewKind struct {
	Title   string
	Total   int // of the group; the page may show fewer
	Images  []NewImage
	Nearest []detector.Neighbour // training images
	Command string               // that makes a class of the group; "" for none
}

// NewImage is an image of a group.
type NewImage struct {
	Image    images.Picture
	Together float64
}

// discoveryView is a Discovery as the page's template reads it.
type discoveryView struct {
	Page   layout
	Found  *Discovery
	Kinds  []kindView
	At     int     // the bound of the list
	Steps  [][]any // Together, Found and Known of each bound
	Table  *table
	Failed failures
}

type kindView struct {
	NewKind
	ID    string
	Tiles []newTile
	Near  []nearTile
}

// newTile is an image of a mosaic. Together is for the script.
type newTile struct {
	*picture
	Together string
}

// WriteDiscovery writes the page to the file: one page that needs nothing else.
func WriteDiscovery(file string, d Discovery) error {
	if err := CheckPage(file); err != nil {
		return err
	}
	d.Lead = []string{d.lead()}
	v := discoveryView{Found: &d, Page: layout{Frame: d.titled("What is new"), Script: "discovery.js", Album: &album{}}}
	for i, k := range d.Kinds {
		kind := kindView{NewKind: k, ID: fmt.Sprintf("kind-%d", i)}
		for _, img := range k.Images {
			kind.Tiles = append(kind.Tiles, newTile{v.Page.Album.of(img.Image, thumbnailSide), exact(img.Together)})
		}
		for _, near := range k.Nearest {
			near.Image.Path = cmp.Or(near.Image.Path, fmt.Sprintf("row %d", near.Row))
			kind.Near = append(kind.Near, nearTile{v.Page.Album.of(near.Image, nearSide), near.Class, short(near.Distance)})
		}
		v.Kinds = append(v.Kinds, kind)
		v.Page.Links = append(v.Page.Links, link{kind.ID, fmt.Sprintf("%s (%d)", k.Title, k.Total)})
	}
	v.slider()
	v.Failed = v.Page.failed(d.Failed)
	v.Page.Album.load()
	return writePage(file, "discovery.html", v)
}

// at returns the place of the first bound of all that are called new, or where none is that
// of the first bound by which as many are new as by any.
func (d *Discovery) at() int {
	return sort.Search(len(d.Bounds)-1, func(i int) bool {
		b := d.Bounds[i]
		return d.New > 0 && b.Together >= d.Last || d.New == 0 && b.Found-b.Known >= d.AtLeast
	})
}

// lead says what is new in a sentence.
func (d *Discovery) lead() string {
	switch {
	case d.Images == 0:
		return "No image was judged."
	case d.New == 0 && d.AtLeast == 0:
		return fmt.Sprintf("None of %s is called new.", count(d.Images))
	case d.New == 0:
		return fmt.Sprintf("None of %s can be called new by itself, but at least %s %s new, with a confidence of 95%%.", count(d.Images), thousands(d.AtLeast), isAre(d.AtLeast))
	}
	return fmt.Sprintf("%s of %s %s called new. Of these %s at most %s %s known (95%%), and at least %s of all %s new. In the mean over folders, at most %.3g%% of those that are called new are known.",
		thousands(d.New), count(d.Images), isAre(d.New), thousands(d.New), thousands(d.Known), isAre(d.Known), thousands(d.AtLeast), isAre(d.AtLeast), 100*d.FDR)
}

// boundRows is how many bounds the table for readers without JavaScript has, at most.
const boundRows = 12

// slider makes the slider over the list, and its table.
func (v *discoveryView) slider() {
	bounds := v.Found.Bounds
	if len(bounds) < 2 {
		return // there is nothing to choose
	}
	v.At = v.Found.at()
	for _, b := range bounds {
		v.Steps = append(v.Steps, []any{exact(b.Together), b.Found, b.Known})
	}
	v.Page.Links = append(v.Page.Links, link{"bounds", "How many are known"})
	v.Table = &table{Caption: "Images with the lowest scores, and how many of them are of known classes", Head: "images", Columns: []string{"known at most", "new at least"}}
	for i := range min(boundRows, len(bounds)) {
		b := bounds[i*(len(bounds)-1)/(min(boundRows, len(bounds))-1)]
		v.Table.Rows = append(v.Table.Rows, tableRow{thousands(b.Found), []tableCell{whole(b.Known), whole(b.Found - b.Known)}})
	}
}

// Max is the last step of the slider.
func (v discoveryView) Max() int { return len(v.Found.Bounds) - 1 }
