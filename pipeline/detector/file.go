package detector

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"mlrbfn/conditioning"
	"mlrbfn/head"
	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/pathtext"
	"mlrbfn/internal/regular"
	"mlrbfn/internal/safetensors"
	"mlrbfn/pipeline/internal/files"
)

// detectorVersion is the format that is written, and the newest that is read.
const detectorVersion = 3

// plainVersion is the newest format that knows of no scores but the heads' own,
// and what a detector without others is written in.
const plainVersion = 2

// ErrDetector is wrapped by the error of a file that is no detector, or not
// one to be trusted.
var ErrDetector = errors.New("not a usable detector")

// metadata is the JSON object under the key mlrbfn of the file's metadata.
type metadata struct {
	Version int `json:"version"`
	Source
	Classes       []string `json:"classes"`
	Norm          float64  `json:"norm"`
	Recovery      float64  `json:"recovery"`
	Depression    string   `json:"depression"` // "paper" or "none"
	NoRatio       bool     `json:"no_ratio,omitempty"`
	NoProjections bool     `json:"no_projections,omitempty"`
	Open          bool     `json:"open,omitempty"` // the head that goes past the paper's
	Threshold     *float64 `json:"threshold"`      // null: nothing is out of distribution
	TargetTPR     float64  `json:"target_tpr"`
	// FalseAlarms is that of the detector's method, for those who read the file.
	FalseAlarms *[2]float64 `json:"false_alarms"`
	Seeds       []uint64    `json:"seeds"`
	// Conditioning says what the tensors conditioning.* are; null where there
	// are none.
	Conditioning *conditioning.Options `json:"conditioning"`
	Training     TrainingRecord        `json:"training"`
	History      [][]head.Epoch        `json:"history"`
	Scores       *scoringRecord        `json:"scores,omitempty"` // nil: the heads' own
}

const metadataKey = "mlrbfn"

// Save writes the detector to path, whole or not at all.
func (d *Detector) Save(path string) error {
	first := d.Heads[0]
	scores, scoreTensors, err := d.Scoring.encode()
	if err != nil {
		return fmt.Errorf("save detector %s: %w", path, err)
	}
	meta := metadata{
		Version: plainVersion, Scores: scores, Source: d.Source, Classes: d.Classes,
		Norm: first.Norm, Recovery: first.Recovery, Depression: "paper", NoRatio: first.NoRatio, NoProjections: first.NoProjections, Open: first.Open,
		TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Seeds: d.Seeds, Training: d.Training, History: d.History,
	}
	if scores != nil {
		meta.Version = detectorVersion
	}
	meta.Model = pathtext.EncodePercent(meta.Model)
	if first.NoDepression {
		meta.Depression = "none"
	}
	if first.Conditioning != nil {
		meta.Conditioning = &first.Conditioning.Options
	}
	if !math.IsInf(d.Threshold, -1) {
		meta.Threshold = &d.Threshold
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("save detector %s: %w", path, err)
	}
	tensors := []safetensors.Tensor{{Name: "calibration.scores", Shape: []int{len(d.Scores)}, Data: append([]float64{}, d.Scores...)}}
	for name, rows := range d.Splits {
		data := make([]int64, len(rows))
		for i, r := range rows {
			data[i] = int64(r)
		}
		tensors = append(tensors, safetensors.Tensor{Name: "splits." + name, Shape: []int{len(rows)}, Data: data})
	}
	tensors = append(tensors, scoreTensors...)
	tensors = append(tensors, conditioningTensors(first.Conditioning)...)
	for i, h := range d.Heads {
		tensors = append(tensors, headTensors(h, headPrefix(i, len(d.Heads)))...)
	}
	err = atomicfile.Write(path, func(w io.Writer) error {
		return safetensors.Write(w, map[string]string{metadataKey: string(text)}, tensors)
	})
	if err != nil {
		return fmt.Errorf("save detector: %w", err)
	}
	return nil
}

// conditioningTensors are conditioning.mean [D] and either conditioning.scale
// [D] or conditioning.matrix [D, E]; nothing without a conditioning.
func conditioningTensors(c *conditioning.Conditioning) []safetensors.Tensor {
	if c == nil {
		return nil
	}
	mean := safetensors.Tensor{Name: "conditioning.mean", Shape: []int{c.In()}, Data: c.Mean}
	if c.Scale != nil {
		return []safetensors.Tensor{mean, {Name: "conditioning.scale", Shape: []int{c.In()}, Data: c.Scale}}
	}
	return []safetensors.Tensor{mean, {Name: "conditioning.matrix", Shape: []int{c.In(), c.Out()}, Data: c.Matrix}}
}

func readConditioning(file *safetensors.File, o *conditioning.Options) (*conditioning.Conditioning, error) {
	if o == nil {
		return nil, nil
	}
	c := &conditioning.Conditioning{Options: *o}
	for name, to := range map[string]*[]float32{"mean": &c.Mean, "scale": &c.Scale, "matrix": &c.Matrix} {
		values, shape, err := safetensors.Get[float32](file, "conditioning."+name)
		if err != nil && !(name != "mean" && errors.Is(err, safetensors.ErrNoTensor)) {
			return nil, err
		}
		if name == "matrix" && err == nil && len(shape) != 2 {
			return nil, fmt.Errorf("tensor conditioning.matrix has shape %v, want [D, E]", shape)
		}
		*to = values
	}
	return c, nil
}

// headPrefix is what the names of a head's tensors begin with.
func headPrefix(i, heads int) string {
	if heads == 1 {
		return ""
	}
	return "heads." + strconv.Itoa(i) + "."
}

func headTensors(h *head.MLRBFN, prefix string) []safetensors.Tensor {
	var tensors []safetensors.Tensor
	if d := h.Density; d != nil {
		tensors = append(tensors,
			safetensors.Tensor{Name: prefix + "density.means", Shape: []int{len(d.Means) / d.D, d.D}, Data: d.Means},
			safetensors.Tensor{Name: prefix + "density.radii", Shape: []int{2}, Data: []float64{d.Middle, d.Radius}})
	}
	if s := h.Score; s != nil {
		tensors = append(tensors, safetensors.Tensor{Name: prefix + "score", Shape: []int{2, 2}, Data: []float64{
			s.Nearness.Mean, s.Nearness.Deviation, s.Decision.Mean, s.Decision.Deviation,
		}})
	}
	for i, l := range h.Layers {
		add := func(name string, data []float32, shape ...int) {
			tensors = append(tensors, safetensors.Tensor{Name: prefix + "layers." + strconv.Itoa(i) + "." + name, Shape: shape, Data: data})
		}
		add("centroids", l.Centroids, l.N, l.In)
		add("beta", l.Beta, l.N)
		add("init_beta", []float32{l.InitBeta}, 1)
		if len(l.Projections) > 0 {
			add("projections", l.Projections, l.N, l.Out)
		}
	}
	return tensors
}

// Load reads a detector that Save wrote. A file that is cut short or
// altered, of a newer version or no detector at all gives an error that wraps
// ErrDetector, names the file and says what is wrong.
func Load(path string) (*Detector, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("detector %s: %w: it is a folder; `train` makes a file", path, ErrDetector)
	}
	if err := regular.Check(path, regular.Weights); err != nil {
		return nil, fmt.Errorf("detector %s: %w; `train` makes one", path, files.Pathless(err))
	}
	file, err := safetensors.Read(path)
	if err != nil && !files.IsFormatError(err) {
		return nil, fmt.Errorf("detector %s: %w; `train` makes one", path, files.Pathless(err))
	}
	var d *Detector
	if err == nil {
		d, err = parseDetector(file)
	}
	if err != nil {
		return nil, fmt.Errorf("detector %s: %w: %w", path, ErrDetector, err)
	}
	d.file = path
	return d, nil
}

func parseDetector(file *safetensors.File) (*Detector, error) {
	text, ok := file.Metadata[metadataKey]
	if !ok {
		return nil, fmt.Errorf("its metadata has no key %s; `train` makes detectors", metadataKey)
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(text), &version); err != nil {
		return nil, fmt.Errorf("its metadata: %w", err)
	}
	if version.Version < 1 || version.Version > detectorVersion {
		return nil, fmt.Errorf("it has format version %d, and this program knows up to %d; a newer one reads it", version.Version, detectorVersion)
	}
	var meta metadata
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		return nil, fmt.Errorf("its metadata: %w", err)
	}
	if len(meta.Seeds) < 1 || meta.Depression != "paper" && meta.Depression != "none" {
		return nil, fmt.Errorf("its metadata has %d seeds and depression %q", len(meta.Seeds), meta.Depression)
	}
	d := &Detector{
		Classes: meta.Classes, Seeds: meta.Seeds, Threshold: math.Inf(-1), TargetTPR: meta.TargetTPR,
		Source: meta.Source, Training: meta.Training, History: meta.History, Splits: map[string][]int{},
	}
	d.Source.Model = pathtext.DecodePercent(meta.Model)
	if meta.Threshold != nil {
		d.Threshold = *meta.Threshold
	}
	var err error
	if d.Scores, _, err = safetensors.Get[float64](file, "calibration.scores"); err != nil {
		return nil, err
	}
	if !slices.IsSorted(d.Scores) {
		return nil, errors.New("its calibration scores are not ascending")
	}
	for _, name := range []string{"validation", "calibration"} {
		rows, _, err := safetensors.Get[int64](file, "splits."+name)
		if errors.Is(err, safetensors.ErrNoTensor) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			d.Splits[name] = append(d.Splits[name], int(r))
		}
	}
	condition, err := readConditioning(file, meta.Conditioning)
	if err != nil {
		return nil, err
	}
	for i := range meta.Seeds {
		h := &head.MLRBFN{
			Norm: meta.Norm, Recovery: meta.Recovery, Conditioning: condition,
			NoDepression: meta.Depression == "none", NoRatio: meta.NoRatio, NoProjections: meta.NoProjections, Open: meta.Open,
		}
		prefix := headPrefix(i, len(meta.Seeds))
		if err := errors.Join(readOpen(h, file, prefix), readLayers(h, file, prefix+"layers.")); err != nil {
			return nil, err
		}
		if err := h.Validate(); err != nil {
			return nil, fmt.Errorf("head %d: %w", i, err)
		}
		if h.Classes() != len(meta.Classes) {
			return nil, fmt.Errorf("head %d has %d classes, and %d are named", i, h.Classes(), len(meta.Classes))
		}
		if i > 0 && h.Dim() != d.Dim() {
			return nil, fmt.Errorf("head %d reads %d features, and head 0 reads %d", i, h.Dim(), d.Dim())
		}
		d.Heads = append(d.Heads, h)
	}
	d.Scoring, err = readScoring(file, meta.Scores, d.Dim())
	return d, err
}

// readOpen reads what an open head has beside its layers; a head of the
// paper's has none of it.
func readOpen(h *head.MLRBFN, file *safetensors.File, prefix string) error {
	if !h.Open {
		return nil
	}
	means, shape, err := safetensors.Get[float32](file, prefix+"density.means")
	if err != nil {
		return err
	}
	radii, _, err := safetensors.Get[float64](file, prefix+"density.radii")
	if err != nil {
		return err
	}
	score, _, err := safetensors.Get[float64](file, prefix+"score")
	if err != nil {
		return err
	}
	if len(shape) != 2 || len(radii) != 2 || len(score) != 4 {
		return fmt.Errorf("tensors %sdensity.means, density.radii and score have %v dimensions and %d and %d values, want [K, D], 2 and 4", prefix, shape, len(radii), len(score))
	}
	h.Density = &head.Density{D: shape[1], Means: means, Middle: radii[0], Radius: radii[1]}
	h.Score = &head.Score{
		Nearness: head.Scale{Mean: score[0], Deviation: score[1]},
		Decision: head.Scale{Mean: score[2], Deviation: score[3]},
	}
	return nil
}

// readLayers reads the layers that there are under prefix; whether they make a
// head is for Validate to say.
func readLayers(h *head.MLRBFN, file *safetensors.File, prefix string) error {
	for i := 0; ; i++ {
		name := prefix + strconv.Itoa(i) + "."
		centroids, shape, err := safetensors.Get[float32](file, name+"centroids")
		if errors.Is(err, safetensors.ErrNoTensor) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(shape) != 2 {
			return fmt.Errorf("tensor %scentroids has shape %v, want [N, d]", name, shape)
		}
		l := head.Layer{In: shape[1], N: shape[0], Centroids: centroids}
		if l.Beta, _, err = safetensors.Get[float32](file, name+"beta"); err != nil {
			return err
		}
		initBeta, _, err := safetensors.Get[float32](file, name+"init_beta")
		if err != nil {
			return err
		}
		if len(initBeta) != 1 {
			return fmt.Errorf("tensor %sinit_beta has %d values, want 1", name, len(initBeta))
		}
		l.InitBeta = initBeta[0]
		projections, shape, err := safetensors.Get[float32](file, name+"projections")
		switch {
		case errors.Is(err, safetensors.ErrNoTensor):
		case err != nil:
			return err
		case len(shape) != 2:
			return fmt.Errorf("tensor %sprojections has shape %v, want [N, o]", name, shape)
		default:
			l.Projections, l.Out = projections, shape[1]
		}
		if i > 0 && h.NoProjections {
			h.Layers[i-1].Out = h.Layers[i-1].N
		}
		h.Layers = append(h.Layers, l)
	}
}
