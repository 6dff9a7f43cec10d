package detector

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io/fs"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// ExplainOptions says what to explain verdicts by. The zero value is the usual way.
type ExplainOptions struct {
	// Features are the feature sets that the detector was trained on, in any order.
	// Without any, those that it names are taken where they are found and have not
	// changed; see [detector.Detector.OpenTraining].
	Features []string
	// Roots are folders that pictures of training images may come from; see
	// [images.FeatureSet].
	Roots []string
	// Nearest is how many training images, also of those that were set aside for
	// validation and calibration, are sought for each image; 0 means 3, and
	// negative none.
	Nearest int
	// Memory is how many bytes of training features may stay in memory, about; 0
	// means half of the machine's.
	Memory int64
}

// Explanation says why an image was judged as it was.
//
// It says why a detector judges an image as it does: which parts
// of the score made the verdict, in words and numbers; which training images are
// nearest; and which region of the image made the score fall. It never changes a
// verdict.
type Explanation struct {
	Why   string      `json:"why"`   // one sentence in plain words
	Parts []ScorePart `json:"parts"` // of the score, in the detector's order
	// Nearest are the training images nearest to the image, the nearest first; nil
	// where the training features are not known.
	Nearest []Neighbour `json:"nearest"`
	// Where says which region of the image made the score fall; nil unless asked for.
	Where    *Map  `json:"where,omitempty"`
	WhereErr error `json:"-"` // why there is no map, though it was asked for
}

// ScorePart is one part of the score of an image.
type ScorePart struct {
	Name string
	// Adds is the part's contribution to the score; the contributions of all parts sum up to it.
	Adds float64
	// Deviations is how many standard deviations it is above the mean of the
	// calibration images (or, without these, the validation images): negative is
	// less in-distribution. NaN if nothing is known of such images, as with older detectors.
	Deviations float64
	Meaning    string // what that means, in plain words
}

// MarshalJSON writes name, value, which are the Deviations, adds and meaning; a number that
// is not known is null.
func (p ScorePart) MarshalJSON() ([]byte, error) {
	known := func(v float64) *float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return unescaped(struct {
		Name    string   `json:"name"`
		Value   *float64 `json:"value"`
		Adds    *float64 `json:"adds"`
		Meaning string   `json:"meaning"`
	}{p.Name, known(p.Deviations), known(p.Adds), p.Meaning})
}

// unescaped returns v as JSON; whoever writes it escapes < and & or does not.
func unescaped(v any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return text.Bytes(), err
}

// Neighbour is a training image near to another image.
type Neighbour struct {
	Row   int            // among the rows of all training features
	Image images.Picture // Path is "" if the features do not list their images
	Class string
	// Distance is Euclidean, between the values that the head's layers read: of the
	// default head the conditioned features that tell the classes apart, in
	// standard deviations within the classes.
	Distance float64
}

// MarshalJSON writes the path, relative to the folder of the training images, row, class and
// distance.
func (n Neighbour) MarshalJSON() ([]byte, error) {
	return unescaped(struct {
		Path      string  `json:"path"`
		PathBytes []byte  `json:"path_bytes,omitempty"`
		Row       int     `json:"row"`
		Class     string  `json:"class"`
		Distance  float64 `json:"distance"`
	}{disk.EncodePath(n.Image.Path), disk.PathBytes(n.Image.Path), n.Row, n.Class, n.Distance})
}

// Explainer explains the verdicts of a detector. Any number of goroutines may use it.
// Close it when none does any more.
type Explainer struct {
	detector *Detector
	names    []string // of the parts
	ref      *Reference
	scales   []head.Scale  // of the reference's parts
	data     *TrainingData // nil without training features
	bank     *bank         // likewise
	nearest  int
	picture  func(*features.Set, features.Image) images.Picture
	notes    []string
}

// NewExplainer returns an explainer of a detector's verdicts. Without training features it
// explains without neighbours; Notes says so.
func NewExplainer(ctx context.Context, d *Detector, opts ExplainOptions) (_ *Explainer, err error) {
	if opts.Memory < 0 {
		return nil, options.Errorf("Memory", "%d is negative", opts.Memory)
	}
	e := &Explainer{
		detector: d, names: d.PartNames(), nearest: cmp.Or(max(opts.Nearest, -1), 3),
		picture: images.Pictures(opts.Roots),
	}
	var note string
	if e.data, note, err = openTraining(ctx, d, opts.Features); err != nil {
		return nil, err
	}
	if note != "" {
		e.notes = append(e.notes, note)
	}
	defer func() {
		if err != nil {
			_ = e.Close() // the error says more
		}
	}()
	if e.data != nil && (e.nearest > 0 || d.Reference == nil) {
		if e.bank, err = newBank(ctx, e.data, spaceOf(d.Heads[0]), cmp.Or(opts.Memory, features.DefaultMemory())); err != nil {
			return nil, err
		}
	}
	if e.ref, err = e.reference(ctx); err != nil {
		return nil, err
	}
	if e.ref == nil {
		e.notes = append(e.notes, "the detector is of an older version and does not say what the parts of its score are for calibration images: for each part, what it adds to the score is shown in the place of standard deviations")
		return e, nil
	}
	for _, part := range e.ref.Parts {
		e.scales = append(e.scales, head.ScaleOf(part))
	}
	return e, nil
}

// Notes says what explanations lack, and why. They name fields of Options in
// brackets.
func (e *Explainer) Notes() []string { return e.notes }

// Sets returns the training features that neighbours come from; nil if they are
// missing.
func (e *Explainer) Sets() []*features.Set {
	if e.data == nil {
		return nil
	}
	return e.data.Sets
}

// Picture returns the image of a row among all training features.
func (e *Explainer) Picture(row int) (images.Picture, error) {
	if e.data == nil || row < 0 || row >= len(e.data.Labels) {
		return images.Picture{}, fs.ErrNotExist
	}
	set, at := e.data.At(row)
	found, err := set.ImagesAt([]int{at})
	if err != nil {
		return images.Picture{}, err
	}
	img, known := found[at]
	if !known {
		return images.Picture{}, fs.ErrNotExist
	}
	return e.picture(set, img), nil
}

// Close lets go of the training features.
func (e *Explainer) Close() error {
	if e.data == nil {
		return nil
	}
	return e.data.Close()
}

// Explain explains the verdicts on the rows x [n, D] of features. The same rows
// give the same explanations, whatever the others are. It fails only when cancelled,
// or where the training features cannot be read.
func (e *Explainer) Explain(ctx context.Context, x []float32, verdicts []Verdict) ([]Explanation, error) {
	d := e.detector
	n, count := len(verdicts), len(e.names)
	if len(x) != n*d.Dim() {
		panic("explanation: as many rows as verdicts")
	}
	adds, err := d.Parts(ctx, x)
	if err != nil {
		return nil, err
	}
	own, linear := e.likely(x)
	all := make([]Explanation, n)
	for i := range all {
		parts := make([]scored, count)
		for j, name := range e.names {
			p := scored{name: name, adds: adds[i*count+j], deviations: math.NaN(), classes: own[i]}
			if linear != nil && byLogits(name) {
				p.classes = linear[i]
			}
			if e.ref != nil {
				p.reference = e.ref.Parts[j]
				p.deviations, p.deficit = e.scales[j].Of(p.adds), e.scales[j].Mean-p.adds
			}
			parts[j] = p
			deviations := p.deviations
			if e.ref == nil {
				deviations = p.adds // in weighted standard deviations of the validation images
			}
			all[i].Parts = append(all[i].Parts, ScorePart{name, p.adds, p.deviations, wordsFor(name).meaning(deviations, p.classes)})
		}
		of := "calibration"
		if e.ref != nil {
			of = e.ref.Of
		}
		all[i].Why = why(verdicts[i], d.ThresholdOf(verdicts[i].Label), parts, of)
	}
	if e.bank == nil || e.nearest < 1 {
		return all, nil
	}
	neighbours, err := e.neighbours(ctx, d.Embeddings(x))
	for i := range neighbours {
		all[i].Nearest = neighbours[i]
	}
	return all, err
}

// likely returns the two most likely classes of each row, by the heads and by the
// linear head; the latter nil if there is none.
func (e *Explainer) likely(x []float32) (own, linear [][2]string) {
	d := e.detector
	classes := len(d.Classes)
	const confidences = 1 << 19 // that lie in memory at once
	for block := range slices.Chunk(x, max(1, min(1024, confidences/classes))*d.Dim()) {
		for row := range slices.Chunk(d.Own(block).LogConfidences, classes) {
			own = append(own, e.topTwo(row))
		}
		if s := d.Scoring; s != nil && s.Classifier != nil && s.Classifier.Out == classes {
			for row := range slices.Chunk(d.BatchFor(s, block).Logits, classes) {
				linear = append(linear, e.topTwo(row))
			}
		}
	}
	return own, linear
}

func (e *Explainer) topTwo(row []float64) (names [2]string) {
	first, second := 0, -1
	for c, v := range row {
		switch {
		case c == 0:
		case v > row[first]:
			first, second = c, first
		case second < 0 || v > row[second]:
			second = c
		}
	}
	names[0] = e.detector.Classes[first]
	if second >= 0 {
		names[1] = e.detector.Classes[second]
	}
	return names
}

// neighbours finds the training images nearest to each row.
func (e *Explainer) neighbours(ctx context.Context, x []float32) ([][]Neighbour, error) {
	rows, err := e.bank.nearest(ctx, x, e.nearest)
	if err != nil {
		return nil, err
	}
	wanted := map[*features.Set][]int{} // rows of each set
	for _, row := range rows {
		for _, f := range row {
			set, at := e.data.At(f.row)
			wanted[set] = append(wanted[set], at)
		}
	}
	images := map[*features.Set]map[int]features.Image{}
	for set, at := range wanted {
		if images[set], err = set.ImagesAt(at); err != nil {
			return nil, err
		}
	}
	all := make([][]Neighbour, len(rows))
	for i, row := range rows {
		for _, f := range row {
			set, at := e.data.At(f.row)
			n := Neighbour{Row: f.row, Distance: f.distance, Class: e.detector.Classes[e.data.Labels[f.row]]}
			if img, known := images[set][at]; known {
				n.Image = e.picture(set, img)
			}
			n.Image.Label = n.Class
			all[i] = append(all[i], n)
		}
	}
	return all, nil
}
