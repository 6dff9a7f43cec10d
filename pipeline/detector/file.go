package detector

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/internal/signature"
)

// detectorVersion is the format that is written, and the newest that is read.
const detectorVersion = 8

// patchesVersion has a model of patches.
const patchesVersion = 8

// layersVersion is the newest format without; it has parts of the score that read layers.
const layersVersion = 7

// outliersVersion is the newest format without these.
const outliersVersion = 6

// slopesVersion is the newest format that has no part of known outliers.
const slopesVersion = 5

// joinedVersion is the newest format whose map of confidences has one slope.
const joinedVersion = 4

// scoresVersion is the newest format that knows neither of folds nor of guards and
// terms of the heads' score as parts of a score. A detector with another score than
// the heads' own is written in it where it has none of these.
const scoresVersion = 3

// plainVersion is the newest format that knows of no scores but the heads' own,
// and what a detector without others is written in.
const plainVersion = 2

// ErrDetector is wrapped by the error of a file that is no detector, or not
// one to be trusted.
var ErrDetector = errors.New("not a usable detector")

// ErrSignature is wrapped by the error of a file that lacks the signature that it
// must have.
var ErrSignature = signature.ErrSignature

// metadata is the JSON object under the key mlrbfn of the file's metadata. Its
// names, and those within, are those of the format.
type metadata struct {
	Version int `json:"version"`
	Source
	Classes       []string `json:"classes"`
	Norm          float64  `json:"norm"`
	Recovery      float64  `json:"recovery"`
	Depression    string   `json:"depression"` // "paper" or "none"
	NoRatio       bool     `json:"no_ratio,omitempty"`
	NoProjections bool     `json:"no_projections,omitempty"`
	Open          bool     `json:"open,omitempty"` // the head is the residual one
	Threshold     *float64 `json:"threshold"`      // null: nothing is out of distribution
	TargetTPR     float64  `json:"target_tpr"`
	// FalseAlarms is that of the detector's method, for those who read the file.
	FalseAlarms *[2]float64 `json:"false_alarms"`
	Seeds       []uint64    `json:"seeds"`
	// Conditioning says what the tensors conditioning.* are; null where there
	// are none.
	Conditioning *head.ConditioningOptions `json:"conditioning"`
	Training     TrainingRecord            `json:"training"`
	History      [][]head.Epoch            `json:"history"`
	Scores       *scoringRecord            `json:"scores,omitempty"` // nil: the heads' own
	Folds        int                       `json:"folds,omitempty"`
	Assessment   *Assessment               `json:"assessment,omitempty"`
	Confidence   *Platt                    `json:"confidence,omitempty"` // nil: the largest φ
	Reference    string                    `json:"reference,omitempty"`  // whose parts of the score the tensor reference.parts has
	Probe        *probeRecord              `json:"probe,omitempty"`      // what the tensors probe.* are; nil where there are none
}

// probeRecord says which images a probe is of.
type probeRecord struct {
	Version int `json:"version"`
}

// settings returns the settings of the heads.
func (m *metadata) settings() head.Settings {
	return head.Settings{
		Norm: m.Norm, Recovery: m.Recovery, Residual: m.Open,
		NoDepression: m.Depression == "none", NoRatio: m.NoRatio, NoProjections: m.NoProjections,
	}
}

const metadataKey = "mlrbfn"

// Save writes the detector to path, whole or not at all.
func (d *Detector) Save(path string) error {
	text, tensors, err := d.encode()
	metadata := map[string]string{metadataKey: text}
	if err == nil {
		tensors, err = d.encodeFolds(metadata, tensors)
	}
	if p := d.Source.Patches; p != nil {
		tensors = append(tensors, safetensors.Tensor{Name: patchesTensor, Shape: []int{len(p.File())}, Data: p.File()})
	}
	if err != nil {
		return fmt.Errorf("save detector %s: %w", path, err)
	}
	err = disk.Write(path, func(w io.Writer) error {
		return safetensors.Write(w, metadata, tensors)
	})
	if err != nil {
		return fmt.Errorf("save detector: %w", err)
	}
	return nil
}

// encode returns the metadata and the tensors of a detector without its folds.
func (d *Detector) encode() (string, []safetensors.Tensor, error) {
	first := d.Heads[0]
	settings := first.Network.Settings()
	scores, scoreTensors, err := d.Scoring.encode()
	if err != nil {
		return "", nil, err
	}
	meta := metadata{
		Version: plainVersion, Scores: scores, Source: d.Source, Classes: d.Classes,
		Norm: settings.Norm, Recovery: settings.Recovery, Depression: "paper", NoRatio: settings.NoRatio, NoProjections: settings.NoProjections, Open: settings.Residual,
		TargetTPR: d.TargetTPR, FalseAlarms: d.FalseAlarms(), Seeds: d.Seeds, Training: d.Training.encodePaths(disk.EncodePercent),
		History: d.History, Assessment: d.Assessment, Confidence: d.Confidence,
	}
	switch {
	case d.Source.Patches != nil:
		meta.Version, meta.Folds = patchesVersion, len(d.Folds)
	case d.Scoring.ReadsLayers():
		meta.Version, meta.Folds = layersVersion, len(d.Folds)
	case d.Scoring.knowsOutliers():
		meta.Version, meta.Folds = outliersVersion, len(d.Folds)
	case d.Confidence != nil && d.Confidence.high() != d.Confidence.Slope:
		meta.Version, meta.Folds = slopesVersion, len(d.Folds)
	case d.Scoring.isNew() || len(d.Folds) > 0 || d.Confidence != nil || d.ByClass != nil: // others would judge otherwise
		meta.Version, meta.Folds = joinedVersion, len(d.Folds)
	case scores != nil:
		meta.Version = scoresVersion
	}
	meta.Model = disk.EncodePercent(meta.Model)
	if d.Reference != nil {
		meta.Reference = d.Reference.Of
	}
	if d.Probe != nil {
		meta.Probe = &probeRecord{d.Probe.Version}
	}
	if settings.NoDepression {
		meta.Depression = "none"
	}
	if c := first.Conditioning; c != nil {
		meta.Conditioning = &c.ConditioningOptions
	}
	if !math.IsInf(d.Threshold, -1) {
		meta.Threshold = &d.Threshold
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return "", nil, err
	}
	tensors := []safetensors.Tensor{{Name: "calibration.scores", Shape: []int{len(d.CalibrationScores)}, Data: append([]float64{}, d.CalibrationScores...)}}
	for name, rows := range d.Splits {
		data := lists.Map(rows, func(r int) int64 { return int64(r) })
		tensors = append(tensors, safetensors.Tensor{Name: "splits." + name, Shape: []int{len(rows)}, Data: data})
	}
	tensors = slices.Concat(tensors, d.relabelledTensors(), d.Validation.tensors(), d.byClassTensors(), d.Reference.tensors(), d.Probe.tensors(), scoreTensors)
	tensors = append(tensors, conditioningTensors(first.Conditioning)...)
	for i, h := range d.Heads {
		tensors = append(tensors, networkTensors(h.Network, headPrefix(i, len(d.Heads)))...)
	}
	return string(text), tensors, nil
}

// conditioningTensors are conditioning.mean [D] and either conditioning.scale
// [D] or conditioning.matrix [D, E]; nothing without a conditioning.
func conditioningTensors(c *head.Conditioning) []safetensors.Tensor {
	if c == nil {
		return nil
	}
	mean := safetensors.Tensor{Name: "conditioning.mean", Shape: []int{c.In()}, Data: c.Mean}
	if c.Scale != nil {
		return []safetensors.Tensor{mean, {Name: "conditioning.scale", Shape: []int{c.In()}, Data: c.Scale}}
	}
	return []safetensors.Tensor{mean, {Name: "conditioning.matrix", Shape: []int{c.In(), c.Out()}, Data: c.Matrix}}
}

func readConditioning(r *safetensors.Reader, o *head.ConditioningOptions) (*head.Conditioning, error) {
	if o == nil {
		return nil, nil
	}
	c := &head.Conditioning{ConditioningOptions: *o}
	c.Mean, _ = safetensors.Values[float32](r, "conditioning.mean")
	c.Scale, _, _ = safetensors.Optional[float32](r, "conditioning.scale")
	matrix, shape, found := safetensors.Optional[float32](r, "conditioning.matrix")
	if found && len(shape) != 2 {
		return nil, fmt.Errorf("tensor conditioning.matrix has shape %v, want [D, E]", shape)
	}
	c.Matrix = matrix
	return c, r.Err
}

// headPrefix returns the prefix of the names of a head's tensors.
func headPrefix(i, heads int) string {
	if heads == 1 {
		return ""
	}
	return "heads." + strconv.Itoa(i) + "."
}

// Load reads a detector that Save wrote. A file that is cut short or
// altered, of a newer version or no detector at all gives an error that wraps
// ErrDetector, names the file and says what is wrong.
func Load(path string) (*Detector, error) { return load(path, "") }

// LoadSigned is Load of a file that must have a valid signature beside it, in
// minisign's format, by publicKey: that key or a file with it. Of a file without,
// nothing is parsed, and the error wraps ErrSignature. The detector opens no model
// but the one whose hash it has.
func LoadSigned(path, publicKey string) (*Detector, error) {
	if publicKey == "" {
		return nil, options.Errorf("PublicKey", "none is given")
	}
	return load(path, publicKey)
}

func load(path, publicKey string) (*Detector, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		file := filepath.Join(path, BundleFile)
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("detector %s: %w: it is a folder without %s, so not a bundle", path, ErrDetector, BundleFile)
		}
		path = file
	}
	parse := func() (*safetensors.File, error) { return safetensors.Read(path) }
	if publicKey != "" {
		data, err := readSigned(path, publicKey)
		if err != nil {
			return nil, fmt.Errorf("detector %s: %w", path, err)
		}
		parse = func() (*safetensors.File, error) { return safetensors.Parse(data) } // the very bytes that are signed
	}
	file, err := parse()
	if err != nil && !IsFormatError(err) {
		return nil, fmt.Errorf("detector %s: %w; training makes one", path, Pathless(err))
	}
	var d *Detector
	if err == nil {
		d, err = parseDetector(file)
	}
	if err != nil {
		return nil, fmt.Errorf("detector %s: %w: %w", path, ErrDetector, err)
	}
	d.file, d.signed = path, publicKey != ""
	return d, nil
}

// readSigned reads a file that must be signed.
func readSigned(path, publicKey string) ([]byte, error) {
	key, err := signature.PublicKey(publicKey)
	if err != nil {
		return nil, options.Errorf("PublicKey", "%w", err)
	}
	return signature.ReadFile(path, disk.Tensors, key)
}

// parseDetector reads a detector with its folds. A number that is NaN is damage,
// whichever tensor has it.
func parseDetector(file *safetensors.File) (*Detector, error) {
	for _, t := range file.Tensors {
		if hasNaN(t.Data) {
			return nil, fmt.Errorf("tensor %q holds NaN", t.Name)
		}
	}
	d, err := parsePart(file)
	if err != nil {
		return nil, err
	}
	return d, d.readPatches(&safetensors.Reader{File: file})
}

// patchesTensor holds the file of the model of patches.
const patchesTensor = "patches"

// readPatches reads the model of patches that a layer is by.
func (d *Detector) readPatches(r *safetensors.Reader) error {
	for _, l := range d.Source.Layers {
		if !l.OfPatches() {
			continue
		}
		data, _ := safetensors.Values[uint8](r, patchesTensor)
		if r.Err != nil {
			return r.Err
		}
		p, err := extractor.ReadPatches(data)
		if err != nil {
			return err
		}
		if p.Layer() != l {
			return fmt.Errorf("its model of patches is not the one of its layer %q", l.Name)
		}
		d.Source.Patches = p
	}
	return nil
}

func hasNaN(data any) bool {
	switch data := data.(type) {
	case []float32:
		return slices.ContainsFunc(data, func(v float32) bool { return v != v })
	case []float64:
		return slices.ContainsFunc(data, math.IsNaN)
	}
	return false
}

// parseMetadata reads and checks what is said of a detector or one of its folds.
func parseMetadata(file *safetensors.File) (*metadata, error) {
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
	if !(meta.TargetTPR >= 0 && meta.TargetTPR <= 1) {
		return nil, fmt.Errorf("its metadata has the target_tpr %g", meta.TargetTPR)
	}
	if p := meta.Confidence; p != nil && !p.valid() {
		return nil, fmt.Errorf("its confidence has the slopes %g and %g and the offset %g", p.Slope, p.high(), p.Offset)
	}
	return &meta, checkClasses(meta.Classes)
}

// readSplits reads which rows of the training features were set aside.
func (d *Detector) readSplits(r *safetensors.Reader) error {
	for _, name := range []string{"validation", "calibration", "left_out"} {
		rows, _, _ := safetensors.Optional[int64](r, "splits."+name)
		for _, row := range rows {
			if row < 0 {
				return fmt.Errorf("its split %s has the row %d", name, row)
			}
			d.Splits[name] = append(d.Splits[name], int(row))
		}
	}
	return r.Err
}

// parsePart reads a detector or one of its folds.
func parsePart(file *safetensors.File) (*Detector, error) {
	meta, err := parseMetadata(file)
	if err != nil {
		return nil, err
	}
	d := &Detector{
		Classes: meta.Classes, Seeds: meta.Seeds, Threshold: math.Inf(-1), TargetTPR: meta.TargetTPR,
		Source: meta.Source, Training: meta.Training.encodePaths(disk.DecodePercent), Splits: map[string][]int{}, Assessment: meta.Assessment,
		Confidence: meta.Confidence, History: meta.History,
	}
	d.Source.Model = disk.DecodePercent(meta.Model)
	if meta.Threshold != nil {
		d.Threshold = *meta.Threshold
	}
	r := &safetensors.Reader{File: file}
	if d.CalibrationScores, _ = safetensors.Values[float64](r, "calibration.scores"); r.Err != nil {
		return nil, r.Err
	}
	if err := checkCalibration(d.CalibrationScores); err != nil {
		return nil, fmt.Errorf("its calibration scores %w", err)
	}
	for _, read := range []func(*safetensors.Reader) error{d.readSplits, d.readRelabelled, d.readValidation, d.readByClass} {
		if err := read(r); err != nil {
			return nil, err
		}
	}
	condition, err := readConditioning(r, meta.Conditioning)
	if err != nil {
		return nil, err
	}
	for i := range meta.Seeds {
		network, err := readNetwork(r, meta.settings(), headPrefix(i, len(meta.Seeds)))
		if err != nil {
			return nil, err
		}
		h := &head.Head{Network: network, Conditioning: condition}
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
	if d.Scoring, err = d.readScoring(r, meta.Scores); err != nil {
		return nil, err
	}
	if err := d.readReference(r, meta.Reference); err != nil {
		return nil, err
	}
	if meta.Probe != nil {
		if err := d.readProbe(r, meta.Probe.Version); err != nil {
			return nil, err
		}
	}
	return d, d.readFolds(file, meta.Folds)
}

// checkClasses refuses names that no verdict could be told by.
func checkClasses(names []string) error {
	known := map[string]bool{}
	for _, name := range names {
		if name == "" || known[name] {
			return fmt.Errorf("its classes have the name %q twice, or none", name)
		}
		known[name] = true
	}
	return nil
}

// checkCalibration refuses scores that no threshold can be read off.
func checkCalibration(ascending []float64) error {
	if !slices.IsSorted(ascending) {
		return errors.New("are not ascending")
	}
	if n := len(ascending); n > 0 && math.IsInf(ascending[n-1], 1) {
		return errors.New("hold an infinite one")
	}
	return nil
}

// Pathless takes the file's name off an error of the file system.
func Pathless(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// IsFormatError tells whether a safetensors file was read that is none, or that
// is cut short or altered.
func IsFormatError(err error) bool {
	return errors.Is(err, safetensors.ErrFormat) || errors.Is(err, safetensors.ErrChecksum) || errors.Is(err, safetensors.ErrNoChecksum)
}

// MkdirFor makes the folder that a file of a report is written to.
func MkdirFor(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("report folder: %w", err)
	}
	return nil
}

// networkTensors returns a network as tensors whose names begin with prefix.
func networkTensors(network head.Network, prefix string) []safetensors.Tensor {
	switch n := network.(type) {
	case *head.PaperNetwork:
		return layerTensors(n.Layers, prefix)
	case *head.ResidualNetwork:
		return append(residualTensors(n, prefix), layerTensors(n.Layers, prefix)...)
	}
	panic(fmt.Sprintf("detector: a network of type %T cannot be saved", network))
}

// readNetwork is the inverse of networkTensors. Whether the tensors make a
// network is for Validate to say.
func readNetwork(r *safetensors.Reader, s head.Settings, prefix string) (head.Network, error) {
	layers, err := readLayers(r, prefix, s.NoProjections)
	if err != nil {
		return nil, err
	}
	if s.Residual {
		return readResidual(r, s, layers, prefix)
	}
	n := head.PaperFromSettings(s)
	n.Layers = layers
	return n, nil
}

// residualTensors are the tensors of a residual network besides those of its layers.
func residualTensors(n *head.ResidualNetwork, prefix string) []safetensors.Tensor {
	d := n.Density
	tensors := []safetensors.Tensor{
		{Name: prefix + "density.means", Shape: []int{len(d.Means) / d.D, d.D}, Data: d.Means},
		{Name: prefix + "density.radii", Shape: []int{2}, Data: []float64{d.Middle, d.Radius}},
	}
	if s := n.Score; s != nil {
		tensors = append(tensors, safetensors.Tensor{Name: prefix + "score", Shape: []int{2, 2}, Data: []float64{
			s.Nearness.Mean, s.Nearness.Deviation, s.Decision.Mean, s.Decision.Deviation,
		}})
	}
	return tensors
}

func readResidual(r *safetensors.Reader, s head.Settings, layers []head.Layer, prefix string) (*head.ResidualNetwork, error) {
	n, err := head.ResidualFromSettings(s)
	if err != nil {
		return nil, err
	}
	n.Layers = layers
	means, shape := safetensors.Values[float32](r, prefix+"density.means")
	radii, _ := safetensors.Values[float64](r, prefix+"density.radii")
	score, _ := safetensors.Values[float64](r, prefix+"score")
	if r.Err != nil {
		return nil, r.Err
	}
	if len(shape) != 2 || len(radii) != 2 || len(score) != 4 {
		return nil, fmt.Errorf("tensors %sdensity.means, density.radii and score have %v dimensions and %d and %d values, want [K, D], 2 and 4", prefix, shape, len(radii), len(score))
	}
	n.Density = &head.Density{D: shape[1], Means: means, Middle: radii[0], Radius: radii[1]}
	n.Score = &head.HeadScore{
		Nearness: head.Scale{Mean: score[0], Deviation: score[1]},
		Decision: head.Scale{Mean: score[2], Deviation: score[3]},
	}
	return n, nil
}

func layerTensors(layers []head.Layer, prefix string) []safetensors.Tensor {
	var tensors []safetensors.Tensor
	for i, l := range layers {
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

// readLayers reads the layers that there are under prefix. Hidden layers without
// projections give as many values as they have centroids.
func readLayers(r *safetensors.Reader, prefix string, noProjections bool) ([]head.Layer, error) {
	var layers []head.Layer
	for i := 0; ; i++ {
		name := prefix + "layers." + strconv.Itoa(i) + "."
		centroids, shape, found := safetensors.Optional[float32](r, name+"centroids")
		if !found {
			return layers, r.Err
		}
		if len(shape) != 2 {
			return nil, fmt.Errorf("tensor %scentroids has shape %v, want [N, d]", name, shape)
		}
		l := head.Layer{In: shape[1], N: shape[0], Centroids: centroids}
		l.Beta, _ = safetensors.Values[float32](r, name+"beta")
		initBeta, _ := safetensors.Values[float32](r, name+"init_beta")
		if r.Err != nil {
			return nil, r.Err
		}
		if len(initBeta) != 1 {
			return nil, fmt.Errorf("tensor %sinit_beta has %d values, want 1", name, len(initBeta))
		}
		l.InitBeta = initBeta[0]
		projections, shape, found := safetensors.Optional[float32](r, name+"projections")
		if found && len(shape) != 2 {
			return nil, fmt.Errorf("tensor %sprojections has shape %v, want [N, o]", name, shape)
		}
		if found {
			l.Projections, l.Out = projections, shape[1]
		}
		if i > 0 && noProjections {
			layers[i-1].Out = layers[i-1].N
		}
		layers = append(layers, l)
	}
}
