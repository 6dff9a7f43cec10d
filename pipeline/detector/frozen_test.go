package detector

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// names returns the names in the metadata of a detector file, those of nested
// objects with a dot and of arrays' elements with [], and of its tensors.
func names(t *testing.T, path string) (metadata, tensors []string) {
	t.Helper()
	file, err := safetensors.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var object any
	if err := json.Unmarshal([]byte(file.Metadata["mlrbfn"]), &object); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var visit func(prefix string, v any)
	visit = func(prefix string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, within := range v {
				visit(prefix+"."+name, within)
			}
		case []any:
			for _, within := range v {
				visit(prefix+"[]", within)
			}
		default:
			found[strings.TrimPrefix(prefix, ".")] = true
		}
	}
	visit("", object)
	for _, s := range file.Tensors {
		tensors = append(tensors, s.Name)
	}
	slices.Sort(tensors)
	return slices.Sorted(maps.Keys(found)), tensors
}

// commonNames are in the metadata of every detector.
const commonNames = `version classes[] norm recovery depression threshold target_tpr false_alarms[] seeds[]
fingerprint model model_sha256 output pool preprocess
history[][].epoch history[][].steps history[][].lr history[][].train_loss history[][].val_loss history[][].val_accuracy
training.features[] training.layers training.centroids training.projection training.epochs training.batch training.lr
training.patience training.schedule training.balance training.validation training.calibration
training.rows.train training.rows.validation training.rows.calibration training.rows.unlabelled `

const residualNames = `open conditioning.kind conditioning.l2 conditioning.shrinkage conditioning.dims training.class_rows[] `

// Tensors of all detectors, and of the residual heads with one seed.
const (
	commonTensors  = `calibration.scores splits.calibration splits.validation `
	frozenResidual = `conditioning.mean conditioning.matrix density.means density.radii score
layers.0.centroids layers.0.beta layers.0.init_beta layers.0.projections layers.1.centroids layers.1.beta layers.1.init_beta `
)

// assessedNames are what an assessment says of a class.
func assessedNames(class string) string {
	return strings.ReplaceAll("assessment.classes.C.auroc assessment.classes.C.caught_at_5_percent assessment.classes.C.images assessment.classes.C.taken_for ", "C", class)
}

// TestFrozenNames: the names in detector files never change, or other versions of
// the program could not read them. Detectors of all kinds are written with the
// names that these have always had.
func TestFrozenNames(t *testing.T) {
	t.Parallel()
	ablated := detectorOf(1)
	ablated.Training.ClassRows, ablated.Training.SumLoss, ablated.Training.Window = []int{1}, true, 9
	ablated.Training.Sets, ablated.Relabelled = []TrainingSet{{"/a", ForTraining, 9, "00"}}, map[int]int{3: -1}
	ablated.Training.Tool, ablated.Training.Kept, ablated.Training.Review = "train", true, &CalibrationReview{}
	ablated.Training.Score, ablated.Training.ClassCalibration = "mlrbfn", []int{1}
	ablated.Validation = &Validation{Confusion: []Confused{{0, 1, 2}}, Flagged: make([]FlaggedImages, len(ablated.Classes))}
	ablated.Assessment = &Assessment{FalseAlarms: []float64{0.1}, Curve: []float64{0.5}, Classes: map[string]AssessedClass{"0": {Curve: []float64{0.5}}}}
	ablated.Training.NoHoldOut, ablated.Training.LinearC = true, 0.1
	ablated.Training.Conditioning = &head.ConditioningOptions{Kind: head.Auto}
	first := ablated.Heads[0].Network.(*head.PaperNetwork)
	first.NoDepression, first.NoRatio, first.NoProjections = true, true, true
	first.Layers[0].Projections = nil
	scaled := detectorOf(1)
	scaled.Heads[0].Conditioning = &head.Conditioning{
		ConditioningOptions: head.ConditioningOptions{Kind: head.Standardise}, Mean: []float32{1, 2, 3, 4}, Scale: []float32{5, 6, 7, 8},
	}
	load := func(name string) *Detector {
		d, err := Load(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	layers := func(prefix string) string {
		return strings.NewReplacer("layers.", prefix+"layers.").Replace(
			`layers.0.centroids layers.0.beta layers.0.init_beta layers.0.projections layers.1.centroids layers.1.beta layers.1.init_beta `)
	}
	recent := commonNames + residualNames + `scores.name scores.parts[].name scores.parts[].kind scores.guard.low scores.guard.middle scores.guard.weight
		training.sets[].path training.sets[].use training.sets[].rows training.sets[].content_sha256 training.tool training.scores training.fitted_c
		confidence.slope confidence.slope_high confidence.offset reference training.class_calibration[]
		training.conditioning.kind training.conditioning.l2 training.conditioning.shrinkage training.conditioning.dims
		assessment.auroc assessment.auroc_interval[] assessment.caught_at_5_percent assessment.false_alarms[] assessment.curve[]
		assessment.classes.0.curve[] assessment.classes.1.curve[] assessment.classes.2.curve[] ` + assessedNames("0") + assessedNames("1") + assessedNames("2")
	layered := recent + `embedding_fingerprint layers[].name layers[].d layers[].pool scores.parts[].layer`
	layerTensors := commonTensors + frozenResidual + `scores.scales scores.classifier.weights scores.classifier.bias reference.parts validation.confusion validation.flagged
		scores.2.gamma scores.2.m scores.3.mean scores.3.deviation scores.3.kind scores.3.score.classes scores.3.score.distances scores.3.score.mean scores.4.l2 scores.4.means scores.4.within.mean scores.4.within.whiten `
	for name, tt := range map[string]struct {
		d                 *Detector
		metadata, tensors string
	}{
		"layers":           {load("version7.safetensors"), layered, layerTensors},
		"patches":          {load("version8.safetensors"), layered, layerTensors + "patches"},
		"paper, two seeds": {load("version1.safetensors"), commonNames + "conditioning training.class_rows", commonTensors + layers("heads.0.") + layers("heads.1.")},
		"residual":         {load("version2.safetensors"), commonNames + residualNames, commonTensors + frozenResidual},
		"residual, ensemble": {
			load("version3.safetensors"), commonNames + residualNames + `scores.name scores.parts[].name scores.parts[].kind`,
			commonTensors + frozenResidual + `scores.scales scores.classifier.weights scores.classifier.bias
				scores.1.gamma scores.1.m scores.2.classes scores.2.distances scores.2.mean scores.3.l2 scores.3.means scores.3.within.mean scores.3.within.whiten`,
		},
		"residual, joined score": {
			load("version4.safetensors"), commonNames + residualNames + `scores.name scores.parts[].name scores.parts[].kind scores.guard.low scores.guard.middle scores.guard.weight
				assessment.auroc assessment.caught_at_5_percent ` + assessedNames("0") + assessedNames("1") + assessedNames("2"),
			commonTensors + frozenResidual + `scores.scales scores.classifier.weights scores.classifier.bias
				scores.1.mean scores.1.deviation scores.1.kind scores.1.score.alpha scores.1.score.residual.basis scores.1.score.residual.origin
				scores.1.score.head.in scores.1.score.head.out scores.1.score.head.weights scores.1.score.head.bias
				scores.2.mean scores.2.deviation scores.2.kind scores.2.score.classes scores.2.score.distances scores.2.score.mean`,
		},
		"known outliers": {
			load("version6.safetensors"), recent + `training.start_c assessment.outliers.images assessment.outliers.weight
				assessment.outliers.classes.auroc assessment.outliers.classes.auroc_without assessment.outliers.classes.caught_at_5_percent assessment.outliers.classes.caught_at_5_percent_without
				assessment.outliers.outliers.auroc assessment.outliers.outliers.auroc_without assessment.outliers.outliers.caught_at_5_percent assessment.outliers.outliers.caught_at_5_percent_without`,
			commonTensors + frozenResidual + `scores.scales scores.classifier.weights scores.classifier.bias reference.parts validation.confusion validation.flagged
				scores.2.gamma scores.2.m scores.3.mean scores.3.deviation scores.3.kind scores.3.score.alpha scores.3.score.residual.basis scores.3.score.residual.origin
				scores.3.score.head.in scores.3.score.head.out scores.3.score.head.weights scores.3.score.head.bias
				scores.4.mean scores.4.deviation scores.4.kind scores.4.score.classes scores.4.score.distances scores.4.score.mean
				scores.5.head.in scores.5.head.out scores.5.head.weights scores.5.head.bias`,
		},
		"ablated": {
			ablated, strings.NewReplacer("pool preprocess", "pool preprocess.exif", "false_alarms[]", "false_alarms").Replace(commonNames) +
				`conditioning training.class_rows[] training.sum_loss training.window no_ratio no_projections
				training.sets[].path training.sets[].use training.sets[].rows training.sets[].content_sha256 training.kept training.calibration_review.reviewed training.calibration_review.removed training.tool training.scores training.class_calibration[] training.no_hold_out training.linear_c
				assessment.auroc assessment.caught_at_5_percent assessment.false_alarms[] assessment.curve[] assessment.classes.0.curve[] ` + assessedNames("0") + `
				training.conditioning.kind training.conditioning.l2 training.conditioning.shrinkage training.conditioning.dims`,
			commonTensors + `labels.rows labels.classes validation.confusion validation.flagged ` + strings.ReplaceAll(layers(""), "layers.0.projections", ""),
		},
		"scaled": {
			scaled, strings.NewReplacer("pool preprocess", "pool preprocess.exif", "false_alarms[]", "false_alarms").Replace(commonNames) +
				`conditioning.kind conditioning.l2 conditioning.shrinkage conditioning.dims training.class_rows`,
			commonTensors + layers("") + `conditioning.mean conditioning.scale`,
		},
	} {
		metadata, tensors := names(t, save(t, tt.d))
		for what, c := range map[string]struct {
			got  []string
			want string
		}{"metadata": {metadata, tt.metadata}, "tensors": {tensors, tt.tensors}} {
			want := strings.Fields(c.want)
			slices.Sort(want)
			if !slices.Equal(c.got, want) {
				t.Errorf("%s: the names of its %s are\n%q\nwant\n%q", name, what, c.got, want)
			}
		}
	}
}
