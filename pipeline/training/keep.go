package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file repeats a training with more rows.

// Recorded returns the options that a detector was trained with, as its file has them.
// Options about checkpoints, memory and progress are not set. Settings that a file of
// an older program does not have are those of the default; notes say which.
func Recorded(d *detector.Detector) (o Options, notes []string, err error) {
	r := d.Training
	settings := d.Heads[0].Network.Settings()
	if settings.Residual {
		o.Head = head.Residual{Layers: r.Layers, Centroids: r.Centroids, Projection: r.Projection, Recovery: settings.Recovery, SumLoss: r.SumLoss}
	} else {
		o.Head = head.Paper{
			Layers: r.Layers, Centroids: r.Centroids, Projection: r.Projection, Norm: settings.Norm, Recovery: settings.Recovery,
			NoDepression: settings.NoDepression, NoRatio: settings.NoRatio, NoProjections: settings.NoProjections, SumLoss: r.SumLoss,
		}
	}
	o.Train.MostSteps = -1 // the record has what came of it
	o.Train.Epochs, o.Train.Batch, o.Train.LR, o.Train.Patience, o.Train.Balance = r.Epochs, r.Batch, r.LR, r.Patience, r.Balance
	o.Train.Schedule = head.Schedule(r.Schedule)
	o.Seeds, o.TargetTPR, o.GroupBy = slices.Clone(d.Seeds), d.TargetTPR, r.GroupBy
	o.PerClass, o.NoHoldOut, o.Linear.C, o.Tool = d.ByClass != nil, r.NoHoldOut, r.LinearC, r.Tool
	o.Score = cmp.Or(r.Score, d.ScoreName())
	switch c := d.Heads[0].Conditioning; {
	case r.Conditioning != nil:
		o.Conditioning = *r.Conditioning
	case c == nil:
		o.Conditioning.Kind = head.None
	default:
		o.Conditioning.Kind, o.Conditioning.L2, o.Conditioning.Dims = c.Kind, c.L2, c.Dims
		notes = append(notes, "the detector's file is older than the record of the conditioning that was asked for; the kind that it has is fitted")
	}
	o.Features = slices.Clone(r.Features)
	if o.Validation, err = parseShare(r.Validation); err == nil {
		o.Calibration, err = parseShare(r.Calibration)
	}
	at := 0
	for _, set := range r.Sets {
		switch {
		case set.Use == detector.ForTraining && at < len(o.Features):
			o.Features[at] = set.Path
			at++
		case set.Use == detector.ForValidation:
			o.Validation.Features = set.Path
		case set.Use == detector.ForCalibration:
			o.Calibration.Features = set.Path
		case set.Use == detector.ForOutliers:
			o.Outliers = append(o.Outliers, set.Path)
		}
	}
	return o, notes, err
}

// OptionsOf returns the options that repeat the training of a detector on the feature
// sets that it was trained on, which are in dirs or, with none, where they were or
// beside its file; see [detector.Detector.OpenTraining]. They are those of [Recorded];
// Keep is the detector, so that rows that it set aside stay so when more sets are
// added to Features.
func OptionsOf(ctx context.Context, d *detector.Detector, dirs []string) (o Options, notes []string, err error) {
	if o, notes, err = Recorded(d); err != nil {
		return o, notes, err
	}
	for use, share := range map[string]*Share{detector.ForValidation: &o.Validation, detector.ForCalibration: &o.Calibration} {
		if share.Features == "" || len(d.Training.Sets) == 0 {
			continue
		}
		sets, err := d.OpenSets(ctx, use, dirs)
		if err != nil {
			return o, notes, err
		}
		for _, set := range sets {
			share.Features = set.Dir
			err = errors.Join(err, set.Close())
		}
		if err != nil {
			return o, notes, err
		}
	}
	if len(o.Outliers) > 0 {
		sets, err := d.OpenSets(ctx, detector.ForOutliers, dirs)
		if err != nil {
			return o, notes, err
		}
		o.Outliers = nil
		for _, set := range sets {
			o.Outliers = append(o.Outliers, set.Dir)
			err = errors.Join(err, set.Close())
		}
		if err != nil {
			return o, notes, err
		}
	}
	data, err := d.OpenTraining(ctx, dirs)
	if err != nil {
		return o, notes, err
	}
	o.Features = nil
	for _, set := range data.Sets {
		o.Features = append(o.Features, set.Dir)
	}
	if data.Unverified {
		notes = append(notes, "the detector's file is older than the record of what it was trained on: its features have the right number of rows and classes, and no more is known of them")
	}
	o.Keep = d
	return o, notes, data.Close()
}

// parseShare is the inverse of Share.String.
func parseShare(text string) (Share, error) {
	if folds, ok := strings.CutPrefix(text, "cross:"); ok {
		n, err := strconv.Atoi(folds)
		return Share{Folds: n}, err
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return Share{Features: text}, nil
	case f == 0:
		return Share{None: true}, nil
	case !(f > 0 && f < 1):
		return Share{}, fmt.Errorf("the detector says that it set %g of the images aside: %w", f, detector.ErrDetector)
	}
	return Share{Fraction: f}, nil
}

// kept are the rows of an earlier detector among those of a training.
type kept struct {
	rows   int // the first of all
	splits map[string][]int
}

// keptSplit reports whether the split is not the one that the seed gives.
func (t *Data) keptSplit() bool {
	old := t.Options.Keep
	return old != nil && (old.Training.Kept || t.kept.rows < len(t.Labels))
}

// keep takes over labels and splits of Options.Keep.
func (t *Data) keep(ctx context.Context) error {
	old := t.Options.Keep
	if old == nil {
		return nil
	}
	sets := 0
	for _, named := range old.Training.Sets {
		if named.Use != detector.ForTraining {
			continue
		}
		if sets == len(t.Sets) {
			return options.Errorf("Keep", "the detector was trained on more feature sets than the %d that there are: %w", sets, detector.ErrTrainingSets)
		}
		if content, err := t.Sets[sets].Content(ctx); err != nil {
			return err
		} else if content != named.Content {
			return options.Errorf("Keep", "features %s: %w, nor in its order", t.Sets[sets].Dir, detector.ErrTrainingSets)
		}
		sets++
	}
	if sets == 0 { // a file that is older than the record
		sets = min(len(old.Training.Features), len(t.Sets))
	}
	t.kept = &kept{splits: old.Splits}
	for _, set := range t.Sets[:sets] {
		t.kept.rows += set.N
	}
	for _, rows := range old.Splits {
		for _, row := range rows {
			if row < 0 || row >= t.kept.rows {
				return options.Errorf("Keep", "the detector set row %d aside, and its features have %d: %w", row, t.kept.rows, detector.ErrTrainingSets)
			}
		}
	}
	if len(old.Relabelled) == 0 {
		return nil
	}
	t.Labels = slices.Clone(t.Labels)
	t.relabelled = map[int]int{}
	for row, class := range old.Relabelled {
		y := -1
		if class >= 0 {
			if class >= len(old.Classes) || row < 0 || row >= t.kept.rows {
				return options.Errorf("Keep", "the detector has the label %d for row %d: %w", class, row, detector.ErrTrainingSets)
			}
			if y = slices.Index(t.Classes, old.Classes[class]); y < 0 { // of a folder without subfolders
				y, t.Classes = len(t.Classes), append(slices.Clone(t.Classes), old.Classes[class])
			}
		}
		if y < 0 {
			t.excluded++
		}
		t.Labels[row], t.relabelled[row] = int64(y), y
	}
	return nil
}

// parts divides the labelled rows.
func (t *Data) parts(seed uint64) (features.Parts, error) {
	validation, calibration := t.Options.Validation.fraction(), t.Options.Calibration.fraction()
	if t.kept == nil {
		return t.splitOthers(validation, calibration, seed)
	}
	group := t.groupOf
	part := map[int]string{} // of the groups that have earlier rows
	for g := range t.fitted {
		part[g] = "train"
	}
	rows := map[string][]int{}
	for name, aside := range t.kept.splits {
		for _, row := range aside {
			if t.Labels[row] >= 0 {
				rows[name] = append(rows[name], row)
				part[group(row)] = name
			}
		}
	}
	aside := map[int]bool{}
	for _, of := range rows {
		for _, row := range of {
			aside[row] = true
		}
	}
	for row, y := range t.Labels[:t.kept.rows] {
		if y >= 0 && !aside[row] {
			rows["train"] = append(rows["train"], row)
			part[group(row)] = "train" // a group that was in several parts trains
		}
	}
	labels := slices.Clone(t.Labels)
	for row, y := range labels {
		name, known := part[group(row)]
		switch {
		case row < t.kept.rows:
			labels[row] = -1
		case known && y >= 0:
			labels[row] = -1
			if name == "calibration" { // one row of each group is for it
				name = "left_out"
			}
			rows[name] = append(rows[name], row)
		}
	}
	fresh, err := features.Split(labels, t.groups, len(t.Classes), validation, calibration, seed)
	if err != nil {
		return features.Parts{}, err
	}
	s := features.Parts{
		Train: append(rows["train"], fresh.Train...), Validation: append(rows["validation"], fresh.Validation...),
		Calibration: append(rows["calibration"], fresh.Calibration...), LeftOut: append(rows["left_out"], fresh.LeftOut...),
		Groups: len(part) + fresh.Groups,
	}
	groups := make([]map[int]bool, len(t.Classes))
	for row, y := range t.Labels {
		if y < 0 {
			continue
		}
		if groups[y] == nil {
			groups[y] = map[int]bool{}
		}
		groups[y][group(row)] = true
	}
	for row, y := range t.Labels {
		if y >= 0 && len(groups[y]) == 1 {
			s.OneGroup = append(s.OneGroup, row)
		}
	}
	for _, all := range [][]int{s.Train, s.Validation, s.Calibration, s.LeftOut} {
		slices.Sort(all)
	}
	return s, nil
}
