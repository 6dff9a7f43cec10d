package detector

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// This file has the JSON form of an explanation, for the answers of programs and
// of the service.

// Reasons are the fields of an explanation, beside those of the verdict.
type Reasons struct {
	Why     string            `json:"why"`
	Parts   []ReasonPart      `json:"parts"`
	Nearest []ReasonNeighbour `json:"nearest"` // null where the training features are not known
	Where   *ReasonMap        `json:"where,omitempty"`
}

// ReasonPart is one part of the score.
type ReasonPart struct {
	Name    string   `json:"name"`
	Value   *float64 `json:"value"` // null where nothing is known of calibration images
	Adds    *float64 `json:"adds"`
	Meaning string   `json:"meaning"`
}

// ReasonNeighbour is a training image. Its path is relative to the folder of the training
// images.
type ReasonNeighbour struct {
	Path      string  `json:"path"`
	PathBytes []byte  `json:"path_bytes,omitempty"`
	Row       int     `json:"row"`
	Class     string  `json:"class"`
	Distance  float64 `json:"distance"`
}

// ReasonMap is a map of the region that made the score fall.
type ReasonMap struct {
	Width  int       `json:"width"`
	Height int       `json:"height"`
	Values []float32 `json:"values"`
	// Area is the part of the image that the map covers, as the model sees no more: left,
	// top, right and bottom as shares of its width and height.
	Area [4]float64 `json:"area"`
}

// ReasonsOf returns what JSON has of an explanation; nil for none.
func ReasonsOf(e *Explanation) *Reasons {
	if e == nil {
		return nil
	}
	r := &Reasons{Why: e.Why, Parts: []ReasonPart{}}
	for _, p := range e.Parts {
		r.Parts = append(r.Parts, ReasonPart{p.Name, jsonFinite(p.Deviations), jsonFinite(p.Adds), p.Meaning})
	}
	for _, n := range e.Nearest {
		r.Nearest = append(r.Nearest, ReasonNeighbour{disk.EncodePath(n.Image.Path), disk.PathBytes(n.Image.Path), n.Row, n.Class, n.Distance})
	}
	if m := e.Where; m != nil {
		r.Where = &ReasonMap{m.Width, m.Height, m.Values, m.Area}
	}
	return r
}

func jsonFinite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
