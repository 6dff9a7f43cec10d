package training

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// crossCalibrate trains a detector per fold without the rows of that fold and gives
// it the scores of these rows, one of each group. The data are those that the final
// detector is trained on, not conditioned; no row is set aside for calibration.
func (t *Data) crossCalibrate(ctx context.Context, final *detector.Detector) error {
	folds := t.folds(t.Options.Calibration.Folds, t.Options.Seeds[0])
	for k, rows := range folds {
		t.Options.stage("folds of the calibration", k, len(folds))
		fold, err := t.crossFold(ctx, final, rows)
		if err != nil {
			return fmt.Errorf("fold %d: %w", k, err)
		}
		final.Folds, final.CalibrationScores = append(final.Folds, fold), append(final.CalibrationScores, fold.CalibrationScores...)
	}
	t.Options.stage("folds of the calibration", len(folds), len(folds))
	slices.Sort(final.CalibrationScores)
	final.Threshold = detector.Threshold(final.CalibrationScores, final.TargetTPR)
	return nil
}

// crossFold trains a detector without some rows and scores these.
func (t *Data) crossFold(ctx context.Context, final *detector.Detector, without []int) (_ *detector.Detector, err error) {
	table, o := *t.Table, t.Options
	table.Labels = slices.Clone(table.Labels)
	for _, row := range without {
		table.Labels[row] = -1
	}
	o.Progress, o.Resumed, o.Stage = nil, nil, nil
	part := &Data{Table: &table, Held: t.Held, Options: o, groups: t.groups, hard: t.hard, validation: t.validation, outliers: t.outliers, space: t.space, isFold: true, layers: final.Source.Layers, patches: final.Source.Patches, fitted: t.fitted}
	if part, err = part.resplit(o.Seeds[0]); err != nil {
		return nil, err
	}
	defer part.release()
	raw, trained, err := part.fit(ctx, nil)
	if err != nil {
		return nil, err
	}
	d := trained.detector
	verdicts, err := judged(ctx, d, raw.Table, t.onePerGroup(without))
	if err != nil {
		return nil, err
	}
	d.CalibrationScores = []float64{}
	for _, v := range verdicts {
		d.CalibrationScores = append(d.CalibrationScores, v.Score)
	}
	slices.Sort(d.CalibrationScores)
	d.Threshold = detector.Threshold(d.CalibrationScores, o.TargetTPR)
	return d, nil
}

// folds divides the labelled rows into n folds of nearly equal size, class by class.
// Rows of a group share a fold, and the seed chooses.
func (t *Data) folds(n int, seed uint64) [][]int {
	rng := rand.New(rand.NewPCG(seed, 0x666f6c6473))
	members, byClass := map[int][]int{}, make([][]int, len(t.Classes))
	for row, y := range t.Labels {
		group := t.groupOf(row)
		if y < 0 || t.fitted[group] {
			continue
		}
		if members[group] == nil {
			byClass[y] = append(byClass[y], group)
		}
		members[group] = append(members[group], row)
	}
	folds, next := make([][]int, n), 0
	for _, class := range rng.Perm(len(byClass)) {
		groups := byClass[class]
		rng.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
		for _, group := range groups {
			folds[next%n] = append(folds[next%n], members[group]...)
			next++
		}
	}
	for _, rows := range folds {
		slices.Sort(rows)
	}
	return slices.DeleteFunc(folds, func(rows []int) bool { return len(rows) == 0 })
}

// onePerGroup draws one row of each group, by the seed, as calibrationRows does: copies
// would count twice, and the first row of a group may be unlike the others.
func (t *Data) onePerGroup(rows []int) []int {
	if t.groups == nil {
		return rows
	}
	groups := lists.Map(rows, func(row int) int { return t.groups[row] })
	drawn := features.OneOfEach(groups, t.Options.Seeds[0])
	for i, at := range drawn {
		drawn[i] = rows[at]
	}
	return drawn
}
