package training

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file fits post-hoc scores on feature sets, with the logits of a
// classifier.

// Scaler finds the scale of a part from in-distribution rows that it was not
// fitted on.
type Scaler func(context.Context, detector.Part) (head.Scale, error)

// Fitting holds the rows and the network that post-hoc scores are fitted on.
type Fitting struct {
	Train, Val *posthoc.Data // Val may be nil
	Network    posthoc.MLP   // of the classifier; nil where its weights are not known
	Memory     int64
}

// Scoring fits what a name stands for. The parts of an ensemble are put on one
// scale; a score alone stays as it is.
func (f Fitting) Scoring(ctx context.Context, name string, scale Scaler) (*detector.Scoring, error) {
	names, ensemble, err := detector.ScoreParts(name)
	if err != nil {
		return nil, err
	}
	s := &detector.Scoring{Name: name}
	for _, part := range names {
		p := detector.Part{Name: part, Scale: detector.Unscaled}
		if part != detector.HeadPart {
			if p.Score, err = f.fit(ctx, part); err != nil {
				return nil, err
			}
		}
		if ensemble {
			if p.Scale, err = scale(ctx, p); err == nil && !p.Scale.Valid() {
				err = errors.New("it is not finite and has no scale")
			}
			if err != nil {
				return nil, fmt.Errorf("score %s of the validation images: %w", part, err)
			}
			if part == detector.HeadPart {
				p.Scale.Deviation /= detector.OwnWeight
			}
		}
		s.Parts = append(s.Parts, p)
	}
	return s, nil
}

// fit fits a post-hoc score. One that needs a linear head and cannot have it on
// the features, as the classifier has hidden layers, reads what the last layer
// reads.
func (f Fitting) fit(ctx context.Context, name string) (posthoc.Scorer, error) {
	in := posthoc.Input{Train: f.Train, Val: f.Val, Memory: f.Memory}
	switch len(f.Network) {
	case 0:
		return posthoc.Fit(ctx, name, in)
	case 1:
		in.LastLayer = f.Network[0]
		return posthoc.Fit(ctx, name, in)
	}
	in.Network = f.Network
	s, err := posthoc.Fit(ctx, name, in)
	if !errors.Is(err, posthoc.ErrMissing) {
		return s, err
	}
	in.Train, in.Val, in.LastLayer = f.hidden(f.Train), f.hidden(f.Val), f.Network[len(f.Network)-1]
	if s, err = posthoc.Fit(ctx, name, in); err != nil {
		return nil, err
	}
	return &onHidden{s, f.Network}, nil
}

// hidden returns the same rows with the features that the last layer reads.
func (f Fitting) hidden(data *posthoc.Data) *posthoc.Data {
	if data == nil {
		return nil
	}
	return &posthoc.Data{
		N: data.N, D: f.Network[len(f.Network)-1].In, Classes: data.Classes, Labels: data.Labels, Logits: data.Logits,
		Features: func(from, to int) []float32 { return lastHidden(f.Network, data.Features(from, to)) },
	}
}

// onHidden is a score of what the last layer of a network reads.
type onHidden struct {
	score   posthoc.Scorer
	network posthoc.MLP
}

// Score implements posthoc.Scorer.
func (s *onHidden) Score(ctx context.Context, dst []float64, b posthoc.Batch) error {
	b.Features = lastHidden(s.network, b.Features)
	return s.score.Score(ctx, dst, b)
}

func lastHidden(network posthoc.MLP, x []float32) []float32 {
	return kernels.Converted[float32](network.Hidden(kernels.Converted[float64](x)))
}
