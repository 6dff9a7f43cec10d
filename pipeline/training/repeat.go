package training

import (
	"context"
	"fmt"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file has what package evaluation repeats with many heads and seeds.

// TrainHead trains one head on the rows that a seed gives and returns it as a
// detector without a threshold.
func (t *Data) TrainHead(ctx context.Context, seed uint64, c head.Config, o head.TrainOptions) (*detector.Detector, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	defer rows.release()
	condition, err := rows.condition(ctx)
	if err != nil {
		return nil, err
	}
	prepared, err := startWith(c, rows.begin).Prepare(ctx, rows.train, rows.validation, len(t.Classes), rows.space)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	o.Seed = seed
	h, _, err := prepared.Train(ctx, o)
	if err != nil {
		return nil, err
	}
	h.Conditioning = condition
	d := &detector.Detector{Classes: t.Classes, Heads: []*head.Head{h}}
	raw, err := t.resplit(seed) // not conditioned
	if err != nil {
		return nil, err
	}
	d.Confidence, err = raw.fitConfidence(ctx, d)
	return d, err
}

// TrainNetwork trains a ReLU network on the rows that a seed gives.
func (t *Data) TrainNetwork(ctx context.Context, seed uint64, c head.MLPConfig, o head.TrainOptions) (*Classifier, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	o.Seed = seed
	m, _, err := head.TrainMLP(ctx, c, rows.train, rows.validation, len(t.Classes), o)
	if err != nil {
		return nil, err
	}
	return ClassifierOf(m), nil
}

// FitLinear fits the linear head on the rows that a seed gives.
func (t *Data) FitLinear(ctx context.Context, seed uint64) (*Classifier, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	h, err := head.FitLinear(ctx, rows.train, rows.validation, len(t.Classes), t.Options.Linear)
	if err != nil {
		return nil, fmt.Errorf("the linear head: %w", err)
	}
	return ClassifierOf(posthoc.MLP{h.Linear}), nil
}

// FitEnsemble fits an ensemble on the rows that a seed gives. Its parts read the
// logits of c and the scores of own.
func (t *Data) FitEnsemble(ctx context.Context, seed uint64, name string, c *Classifier, own *detector.Detector, memory int64) (*detector.Scoring, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	return rows.fitOn(ctx, name, c, own, memory)
}

// Labelled returns all training rows with a label.
func (t *Data) Labelled(c *Classifier) *posthoc.Data {
	return c.Data(t.Table, t.Rows.Labelled().Index, t.Labels, len(t.Classes))
}

// HeldOut returns the validation rows where they are a feature set of their own,
// else nil.
func (t *Data) HeldOut(c *Classifier) *posthoc.Data {
	if t.Held == nil {
		return nil
	}
	return c.Data(t.Held, t.validation.Index, t.validation.Labels, len(t.Classes))
}
