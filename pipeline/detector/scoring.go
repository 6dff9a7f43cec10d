package detector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Names of scores that are not post-hoc scores of one kind.
const (
	// JoinedScore joins the parts that class hold-out weighs on the training data
	// themselves; docs/holdout.md describes it. It is the default. Of the paper's
	// heads it is their own score.
	JoinedScore = "mlrbfn"
	// HeadScore is the score that the heads give themselves.
	HeadScore = "head"

	ensembleName = "ensemble"
)

// Names of parts that are the heads' own. Files hold them.
const (
	HeadPart     = "mlrbfn"   // the heads' own score; in ensembles HeadScore is the same
	DensityPart  = "density"  // how near the nearest class is
	DecisionPart = "decision" // how clearly it is that one
)

// OutliersPart is the name of the part of JoinedScore that tells images from known
// outliers, a [posthoc.Outliers].
const OutliersPart = "outliers"

// PatchesPart is the name of the part of JoinedScore that reads how strange the patches of an
// image are.
const PatchesPart = "patches"

// Depths of layers, with which the names of their parts begin.
const (
	earlyLayer  = "early"
	middleLayer = "middle"
	lateLayer   = "late"
)

// LayerPart returns the name of the part of JoinedScore that reads layer i of some.
func LayerPart(layers []features.Layer, i int) string {
	if layers[i].OfPatches() {
		return PatchesPart
	}
	if last := len(layers) - 1; layers[last].OfPatches() {
		layers = layers[:last]
	}
	depth := middleLayer
	switch {
	case i == len(layers)-1:
		depth = lateLayer
	case i == 0:
		depth = earlyLayer
	}
	return depth + ":" + layers[i].Name
}

// ScoreNames are the scores that a detector can judge by, and the methods that
// an evaluation compares unless it is told others. There are also ensembles of
// any of them, "ensemble(A,B,…)".
var ScoreNames = slices.Concat([]string{JoinedScore, HeadScore}, posthoc.Names(), []string{ensembleName})

// EnsembleParts are the scores that the ensemble without brackets adds up;
// docs/research.md says how they were found.
var EnsembleParts = []string{HeadPart, "gen", "fdbd", "mds++"}

// OwnWeight is how often the heads' own score counts in an ensemble: a residual
// head's is the sum of two.
const OwnWeight = 2

// SplitScores divides a list of names of scores at its commas, those within
// brackets excepted.
func SplitScores(list string) []string {
	var names []string
	depth, from := 0, 0
	for i, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth <= 0:
			names, from = append(names, list[from:i]), i+1
		}
	}
	return append(names, list[from:])
}

// ScoreParts returns the scores that a name stands for: itself, or for
// "ensemble" and "ensemble(a,b,…)" the parts. HeadScore stands for HeadPart.
// JoinedScore stands for parts that only the data tell.
func ScoreParts(name string) (parts []string, ensemble bool, err error) {
	switch name {
	case ensembleName:
		return EnsembleParts, true, nil
	case JoinedScore:
		return nil, false, nil
	}
	parts = []string{name}
	if list, ok := strings.CutPrefix(name, ensembleName+"("); ok && strings.HasSuffix(list, ")") {
		parts, ensemble = strings.Split(strings.TrimSuffix(list, ")"), ","), true
		if len(parts) < 2 {
			return nil, false, fmt.Errorf("score %q: an ensemble has several parts", name)
		}
	}
	for i, p := range parts {
		if p == HeadScore {
			p = HeadPart
			parts[i] = p
		}
		if p != HeadPart && !slices.Contains(posthoc.Names(), p) {
			return nil, false, fmt.Errorf("there is no score %q; there are %s, ensemble and ensemble(A,B,…) of these", p, strings.Join(ScoreNames[:len(ScoreNames)-1], ", "))
		}
		if slices.Contains(parts[:i], p) {
			return nil, false, fmt.Errorf("score %q: an ensemble has each part once", p)
		}
	}
	return parts, ensemble, nil
}

// CheckScores reports what is wrong with the name of a score, or of an ensemble.
func CheckScores(name string) error {
	_, _, err := ScoreParts(name)
	return err
}

// Scoring is a score of images by what is not the heads' own score alone.
type Scoring struct {
	Name  string // as it was asked for: a post-hoc score, "ensemble", "ensemble(A,B,…)" or JoinedScore
	Parts []Part // whose scaled scores are added
	Guard *Guard // added to these; nil for none

	// Classifier gives the logits that parts read; nil where none does.
	Classifier *posthoc.Linear
}

// Part is a score with its place on the common scale.
type Part struct {
	Name  string
	Layer string         // of the Source, that the score reads in the place of the embedding; "" for none
	Score posthoc.Scorer // nil for what the heads give themselves: HeadPart, DensityPart or DecisionPart
	Scale head.Scale
}

// Own returns the values of a part that the heads compute, which has no Score of its own.
func (p Part) Own(own head.Outputs) []float64 {
	switch p.Name {
	case DensityPart:
		return own.Nearness
	case DecisionPart:
		return own.Decision
	}
	return own.Scores
}

// Scores returns the scores of the rows of b by the part; own are the heads' outputs for
// them. Do not change them: they may be part of own.
func (p Part) Scores(ctx context.Context, b Batch, own head.Outputs) ([]float64, error) {
	if p.Score == nil {
		return p.Own(own), ctx.Err()
	}
	scores := make([]float64, len(own.Scores))
	return scores, p.Score.Score(ctx, scores, p.reads(b))
}

// Batch is rows as the parts of a score read them.
type Batch struct {
	posthoc.Batch                      // the embedding, with the logits of the score's classifier
	Layers        map[string][]float32 // [n, ·] by name, those that a part reads
}

// reads returns what the part reads of rows.
func (p Part) reads(b Batch) posthoc.Batch {
	if p.Layer != "" {
		return posthoc.Batch{Features: b.Layers[p.Layer]}
	}
	return b.Batch
}

// Guard keeps images flagged that are far from all classes: a sum of parts may
// miss them, as logits can be confident anywhere. With the density −m of
// DensityPart it adds
//
//	Weight · min(0, (−m − Low)/(Middle − Low))
//
// which is 0 for nearly all in-distribution images. Its JSON names are those of
// detector files.
type Guard struct {
	Low    float64 `json:"low"`    // quantile of −m on the validation rows
	Middle float64 `json:"middle"` // likewise, the median
	Weight float64 `json:"weight"`
}

// Of returns the term that the guard adds to the score of a row with a density.
func (g *Guard) Of(nearness float64) float64 {
	return g.Weight * min(0, (nearness-g.Low)/(g.Middle-g.Low))
}

func (g *Guard) valid() bool {
	return !math.IsInf(g.Low, 0) && g.Low < g.Middle && !math.IsInf(g.Middle, 0) && g.Weight >= 0 && !math.IsInf(g.Weight, 0)
}

// Unscaled leaves a score as it is.
var Unscaled = head.Scale{Deviation: 1}

// Share makes equal arrays of the parts the same ones, so that a verdict reads them
// once.
func (s *Scoring) Share() {
	scores := lists.Map(s.Parts, func(p Part) posthoc.Scorer { return p.Score })
	posthoc.Share(scores)
}

// Score puts the scores of the rows of b into dst [n]; own are the heads' outputs
// for them.
func (s *Scoring) Score(ctx context.Context, dst []float64, b Batch, own head.Outputs) error {
	scores, err := s.posthoc(ctx, len(dst), b)
	if err != nil {
		return err
	}
	return s.join(dst, scores, own)
}

// posthoc returns the scores of the n rows of b by each part that the heads do not give.
func (s *Scoring) posthoc(ctx context.Context, n int, b Batch) (scores [][]float64, err error) {
	var scorers []posthoc.Scorer // of the embedding, which share work
	var shared [][]float64
	var batches []posthoc.Batch
	for _, p := range s.Parts {
		if p.Score == nil {
			continue
		}
		scores = append(scores, make([]float64, n))
		if p.Layer == "" {
			scorers, shared, batches = append(scorers, p.Score), append(shared, scores[len(scores)-1]), append(batches, b.Batch)
		} else if err := p.Score.Score(ctx, scores[len(scores)-1], p.reads(b)); err != nil {
			return nil, fmt.Errorf("score %s of the layer %s: %w", s.Name, p.Layer, err)
		}
	}
	if err := posthoc.ScoreAll(ctx, shared, scorers, batches); err != nil {
		return nil, fmt.Errorf("score %s: %w", s.Name, err)
	}
	return scores, nil
}

// join puts the joined scores into dst [n]: of posthoc's scores and the heads' outputs.
func (s *Scoring) join(dst []float64, scores [][]float64, own head.Outputs) error {
	sum := make([]float64, len(dst))
	for _, p := range s.Parts {
		var part []float64
		if p.Score == nil {
			part = p.Own(own)
		} else {
			part, scores = scores[0], scores[1:]
		}
		if len(part) != len(dst) {
			return fmt.Errorf("score %s: only a residual head has it", p.Name)
		}
		for i, v := range part {
			sum[i] += p.Scale.Of(v)
		}
	}
	if s.Guard != nil {
		if len(own.Nearness) != len(dst) {
			return errors.New("a guard needs a residual head")
		}
		for i, v := range own.Nearness {
			sum[i] += s.Guard.Of(v)
		}
	}
	copy(dst, sum)
	return nil
}

// roundsInBlocks reports whether scores of many rows may differ in the last bits from
// those of each row alone.
func (s *Scoring) roundsInBlocks() bool {
	return s != nil && slices.ContainsFunc(s.Parts, func(p Part) bool {
		_, rounds := p.Score.(interface{ RoundsInBlocks() })
		return rounds
	})
}

// scoringRecord is the JSON form of a Scoring in a detector's metadata.
type scoringRecord struct {
	Name  string       `json:"name"`
	Parts []partRecord `json:"parts"`
	Guard *Guard       `json:"guard,omitempty"`
}

type partRecord struct {
	Name  string `json:"name"`
	Kind  string `json:"kind,omitempty"`  // the type in package posthoc; "" for what the heads give
	Layer string `json:"layer,omitempty"` // that it reads; "" for the embedding
}

const scoresPrefix = "scores."

// encode returns the scoring as a detector's file stores it: the parts as
// tensors scores.I.…, their scales as scores.scales [parts, 2], and the
// classifier as scores.classifier.….
func (s *Scoring) encode() (*scoringRecord, []safetensors.Tensor, error) {
	if s == nil {
		return nil, nil, nil
	}
	r := &scoringRecord{Name: s.Name, Guard: s.Guard}
	var scales []float64
	var tensors []safetensors.Tensor
	for i, p := range s.Parts {
		part := partRecord{Name: p.Name, Layer: p.Layer}
		if p.Score != nil {
			kind, own, err := posthoc.Tensors(p.Score)
			if err != nil {
				return nil, nil, err
			}
			part.Kind = kind
			for _, t := range own {
				t.Name = scoresPrefix + strconv.Itoa(i) + "." + t.Name
				tensors = append(tensors, safetensors.Tensor(t))
			}
		}
		r.Parts = append(r.Parts, part)
		scales = append(scales, p.Scale.Mean, p.Scale.Deviation)
	}
	tensors = append(tensors, safetensors.Tensor{Name: scoresPrefix + "scales", Shape: []int{len(s.Parts), 2}, Data: scales})
	if c := s.Classifier; c != nil {
		tensors = append(tensors,
			safetensors.Tensor{Name: scoresPrefix + "classifier.weights", Shape: []int{c.Out, c.In}, Data: c.Weights},
			safetensors.Tensor{Name: scoresPrefix + "classifier.bias", Shape: []int{c.Out}, Data: c.Bias})
	}
	return r, tensors, nil
}

// ReadsLayers reports whether a part of the score reads a layer.
func (s *Scoring) ReadsLayers() bool {
	return s != nil && slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Layer != "" })
}

// isNew reports whether programs that know of no guard would misread the scoring.
func (s *Scoring) isNew() bool {
	return s != nil && (s.Guard != nil || slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Score == nil && p.Name != HeadPart }))
}

// knowsOutliers reports whether a part is of known outliers.
func (s *Scoring) knowsOutliers() bool {
	return s != nil && slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Name == OutliersPart })
}

// readScoring is the inverse of encode. It scores a row of zeros, so that parts that
// do not fit the detector, whose heads are read before, are found out at once.
func (det *Detector) readScoring(file *safetensors.Reader, r *scoringRecord) (*Scoring, error) {
	if r == nil {
		return nil, nil
	}
	s := &Scoring{Name: r.Name, Guard: r.Guard}
	if s.Guard != nil && !s.Guard.valid() {
		return nil, fmt.Errorf("the guard of its score is %+v", *s.Guard)
	}
	scales, _ := safetensors.Values[float64](file, scoresPrefix+"scales")
	if file.Err != nil {
		return nil, file.Err
	}
	if len(r.Parts) == 0 || len(scales) != 2*len(r.Parts) {
		return nil, fmt.Errorf("its score %q has %d parts and %d numbers to scale them, want 2 each", r.Name, len(r.Parts), len(scales))
	}
	for i, part := range r.Parts {
		if part.Layer != "" && (part.Kind == "" || !slices.ContainsFunc(det.Source.Layers, func(l features.Layer) bool { return l.Name == part.Layer })) {
			return nil, fmt.Errorf("its score %s reads the layer %q, which its features lack", part.Name, part.Layer)
		}
		p := Part{Name: part.Name, Layer: part.Layer, Scale: head.Scale{Mean: scales[2*i], Deviation: scales[2*i+1]}}
		if !p.Scale.Valid() {
			return nil, fmt.Errorf("the scale of its score %s is %+v", part.Name, p.Scale)
		}
		if part.Kind != "" {
			var err error
			p.Score, err = posthoc.Load(part.Kind, func(name string) (posthoc.Tensor, bool) {
				t, found := file.File.Tensor(scoresPrefix + strconv.Itoa(i) + "." + name)
				return posthoc.Tensor(t), found
			})
			if err != nil {
				return nil, fmt.Errorf("its score %s: %w", part.Name, err)
			}
		}
		s.Parts = append(s.Parts, p)
	}
	if weights, shape, found := safetensors.Optional[float64](file, scoresPrefix+"classifier.weights"); found {
		bias, _ := safetensors.Values[float64](file, scoresPrefix+"classifier.bias")
		d := det.Heads[0].Dim()
		if file.Err == nil && !slices.Equal(shape, []int{len(bias), d}) {
			return nil, fmt.Errorf("the classifier of its score has %v weights and %d biases for %d features", shape, len(bias), d)
		}
		s.Classifier = &posthoc.Linear{In: d, Out: len(bias), Weights: weights, Bias: bias}
	}
	if file.Err != nil {
		return nil, file.Err
	}
	s.Share()
	zeros := make([]float32, det.Dim())
	row, own := det.BatchFor(s, zeros), det.Own(zeros)
	if err := s.Score(context.Background(), make([]float64, 1), row, own); err != nil {
		return nil, err
	}
	return s, nil
}

// BatchFor returns rows x [n, D] as the parts of a score read them.
func (d *Detector) BatchFor(s *Scoring, x []float32) Batch {
	b := Batch{Batch: posthoc.Batch{Features: d.Embeddings(x)}}
	if c := s.Classifier; c != nil {
		b.Logits = posthoc.MLP{c}.OfFeatures(b.Features)
	}
	from := d.Heads[0].Dim()
	for _, l := range d.Source.Layers {
		if b.Layers == nil {
			b.Layers = map[string][]float32{}
		}
		b.Layers[l.Name] = features.Columns(x, d.Dim(), from, from+l.D)
		from += l.D
	}
	return b
}
