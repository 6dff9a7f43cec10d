// Package explained has the JSON form of an explanation, for the answers of programs and
// of the service.
package explained

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/pathtext"
	"github.com/mlrbfn/mlrbfn/pipeline/explanation"
)

// Reasons are the fields of an explanation, beside those of the verdict.
type Reasons struct {
	Why     string      `json:"why"`
	Parts   []Part      `json:"parts"`
	Nearest []Neighbour `json:"nearest"` // null where the training features are not known
	Where   *Map        `json:"where,omitempty"`
}

// Part is one part of the score.
type Part struct {
	Name    string   `json:"name"`
	Value   *float64 `json:"value"` // null where nothing is known of calibration images
	Adds    *float64 `json:"adds"`
	Meaning string   `json:"meaning"`
}

// Neighbour is a training image. Its path is relative to the folder of the training
// images.
type Neighbour struct {
	Path      string  `json:"path"`
	PathBytes []byte  `json:"path_bytes,omitempty"`
	Row       int     `json:"row"`
	Class     string  `json:"class"`
	Distance  float64 `json:"distance"`
}

// Map is a map of the region that made the score fall.
type Map struct {
	Width  int       `json:"width"`
	Height int       `json:"height"`
	Values []float32 `json:"values"`
	// Area is the part of the image that the map covers, as the model sees no more: left,
	// top, right and bottom as shares of its width and height.
	Area [4]float64 `json:"area"`
}

// Of returns what JSON has of an explanation; nil for none.
func Of(e *explanation.Explanation) *Reasons {
	if e == nil {
		return nil
	}
	r := &Reasons{Why: e.Why, Parts: []Part{}}
	for _, p := range e.Parts {
		r.Parts = append(r.Parts, Part{p.Name, finite(p.Deviations), finite(p.Adds), p.Meaning})
	}
	for _, n := range e.Nearest {
		r.Nearest = append(r.Nearest, Neighbour{pathtext.Encode(n.Image.Path), pathtext.Bytes(n.Image.Path), n.Row, n.Class, n.Distance})
	}
	if m := e.Where; m != nil {
		r.Where = &Map{m.Width, m.Height, m.Values, m.Area}
	}
	return r
}

func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
