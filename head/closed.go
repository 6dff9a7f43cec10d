package head

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
)

// ClosedForm returns the network with one layer before its first training step:
// Gaussians at the class means, with one width, and the score. It needs no training
// and its scores are nearly those of a trained network, so it shows how a network
// trained on other rows would score. The rows are conditioned. from is
// Config.Start.
func ClosedForm(ctx context.Context, train, val features.Rows, classes int, from *Linear) (_ *ResidualNetwork, err error) {
	made, err := Residual{Layers: 1, Start: from}.Prepare(ctx, train, val, classes, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	p := made.(*residualPrepared)
	n := residualNewNetwork(p.cfg, p.density.D, classes)
	n.Density = p.density
	t := &residualTrainer{residualNetwork: residualCompute[float32](n, BatchRows), model: n, val: p.val, from: from}
	if err := t.Start(ctx, nil, BatchRows, p.train, rand.New(rand.NewPCG(0, 0))); err != nil {
		return nil, err
	}
	n.Score, err = n.fitScore(ctx, p.given)
	return n, err
}
