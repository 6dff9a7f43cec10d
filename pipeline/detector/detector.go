package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/gonum/stat/distuv"

	"mlrbfn/conditioning"
	"mlrbfn/features"
	"mlrbfn/head"
	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/safetensors"
)

// detectorVersion is the format that is written, and the newest that is read.
const detectorVersion = 3

// plainVersion is the newest format that knows of no scores but the heads' own,
// and what a detector without others is written in.
const plainVersion = 2

// ErrDetector is wrapped by the error of a file that is no detector, or not
// one to be trusted.
var ErrDetector = errors.New("not a usable detector")

// Detector is what training gives: everything that a verdict on an image's
// features needs, in one file.
type Detector struct {
	Classes []string       // names, in the order of the heads' outputs
	Heads   []*head.MLRBFN // one per seed; their confidences are averaged
	Seeds   []uint64       // what each head was trained with

	// Scoring gives the score to judge by in place of the heads' own; it may be
	// nil. Class and confidence are the heads' all the same.
	Scoring *Scoring

	// Threshold is the score below which an image is out of distribution;
	// −Inf where nothing is, for want of calibration images.
	Threshold float64
	TargetTPR float64   // share of in-distribution images that the threshold is to keep
	Scores    []float64 // of the calibration images, ascending

	Source   Source           // what made the features
	Training TrainingRecord   // how the heads were trained
	History  [][]head.Epoch   // per head
	Splits   map[string][]int // rows of the training features set aside, by "validation" and "calibration"
}

// Source says how the features of a detector were made, so that those of new
// images can be made the same way. It is empty for features made elsewhere.
type Source struct {
	Fingerprint string          `json:"fingerprint"`  // hash of all below but Model
	Model       string          `json:"model"`        // folder of the backbone when the features were made, or extractor.PixelsName
	SHA256      string          `json:"model_sha256"` // of its graph
	Output      string          `json:"output"`       // which output is the embedding
	Pool        string          `json:"pool"`         // how it becomes one vector
	Preprocess  json.RawMessage `json:"preprocess"`   // what is done to an image before; null if unknown
}

// TrainingRecord is the options that heads were trained with and the rows that
// they saw.
type TrainingRecord struct {
	Features    []string `json:"features"`
	Layers      int      `json:"layers"`
	Centroids   int      `json:"centroids"`
	Projection  int      `json:"projection"`
	Epochs      int      `json:"epochs"`
	Batch       int      `json:"batch"`
	LR          float64  `json:"lr"`
	Patience    int      `json:"patience"`
	Schedule    string   `json:"schedule"`
	Validation  string   `json:"validation"`  // the fraction or the feature set
	Calibration string   `json:"calibration"` // likewise
	Balance     bool     `json:"balance"`     // every class was shown equally often
	Rows        RowCount `json:"rows"`
	ClassRows   []int    `json:"class_rows"` // to train on, per class
	SumLoss     bool     `json:"sum_loss,omitempty"`
	Window      int      `json:"window,omitempty"` // rows that were shuffled together; 0 means all
}

// RowCount says what became of the rows of the training features.
type RowCount struct {
	Train       int `json:"train"`
	Validation  int `json:"validation"`
	Calibration int `json:"calibration"`
	Unlabelled  int `json:"unlabelled"` // left out
}

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

// scoreName names the score that verdicts give.
func (d *Detector) scoreName() string {
	if d.Scoring == nil {
		return OwnScore
	}
	return d.Scoring.Name
}

// Dim returns the number of features that the detector reads.
func (d *Detector) Dim() int { return d.Heads[0].Dim() }

// LogConfidences returns log φ [n, C] for the rows x [n, D] of features; with
// several heads φ is the mean of theirs.
func (d *Detector) LogConfidences(x []float32) []float64 {
	logConfidences, _ := d.outputs(func(h int) ([]float64, []float64) { return d.Heads[h].Outputs(x) })
	return logConfidences
}

// outputs returns the logarithm of the heads' mean confidence and the scores,
// from what each gives. It changes what the first gives. The score of heads
// that have one of their own is the mean of theirs, else that of the mean
// confidence.
func (d *Detector) outputs(of func(head int) (logConfidences, scores []float64)) (logConfidences, scores []float64) {
	logConfidences, scores = of(0)
	n := float64(len(d.Heads))
	for h := 1; h < len(d.Heads); h++ {
		l, s := of(h)
		for i, v := range l {
			logConfidences[i] = logAdd(logConfidences[i], v)
		}
		for i, v := range s {
			scores[i] += v
		}
	}
	if n > 1 {
		for i := range logConfidences {
			logConfidences[i] -= math.Log(n)
		}
		for i := range scores {
			scores[i] /= n
		}
	}
	if d.Heads[0].Score == nil {
		for i := range scores {
			_, scores[i] = best(logConfidences[i*len(d.Classes) : (i+1)*len(d.Classes)])
		}
	}
	return logConfidences, scores
}

// logAdd returns log(eᵃ + eᵇ).
func logAdd(a, b float64) float64 {
	a, b = max(a, b), min(a, b)
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// Verdict is what a detector says of one image.
type Verdict struct {
	Class      string  // the most confident class
	Label      int     // its index
	Confidence float64 // max_c φ_c in [0, 1]
	Score      float64 // higher = more in-distribution; log Confidence for the paper's heads
	OOD        bool    // Score < threshold
	// PValue is (1 + #{calibration scores ≤ Score}) / (n + 1): the chance
	// that an image like the training images scores this low.
	PValue float64
}

// verdictBlock is how many rows are judged at once at least, and mostVerdicts at
// most, so that the confidences of a large set in all classes never lie in memory
// together.
const (
	verdictBlock = 512
	mostVerdicts = 16 * verdictBlock
)

// Verdicts judges the rows x [n, D] of features.
func (d *Detector) Verdicts(x []float32) []Verdict {
	verdicts, _ := d.verdicts(context.Background(), x) // fails only when cancelled
	return verdicts
}

// verdicts is Verdicts that stops with ctx.
func (d *Detector) verdicts(ctx context.Context, x []float32) ([]Verdict, error) {
	verdicts := make([]Verdict, 0, len(x)/d.Dim())
	const confidences = 1 << 19
	rows := max(min(confidences/len(d.Classes), mostVerdicts)/verdictBlock, 1) * verdictBlock
	for block := range slices.Chunk(x, rows*d.Dim()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		logConfidences, scores := d.outputs(func(h int) ([]float64, []float64) { return d.Heads[h].Outputs(block) })
		if err := d.rescore(ctx, scores, block); err != nil {
			return nil, err
		}
		for i, score := range scores {
			verdicts = append(verdicts, d.verdict(logConfidences[i*len(d.Classes):(i+1)*len(d.Classes)], score))
		}
	}
	return verdicts, nil
}

// rescore puts the scores to judge the rows x by in the place of the heads' own.
// It fails only when cancelled.
func (d *Detector) rescore(ctx context.Context, scores []float64, x []float32) error {
	if d.Scoring == nil {
		return nil
	}
	return d.Scoring.score(ctx, scores, d.Scoring.batch(x), slices.Clone(scores))
}

// judgeBlock is how many rows a function of Detector.judge takes at most: with
// so many, reading the conditioning's matrix no longer counts.
const judgeBlock = 16

// judge returns a function that judges up to judgeBlock rows of features [n, D]
// and serves one goroutine. A row's verdict does not depend on the others.
func (d *Detector) judge() func(rows []float32) []Verdict {
	classes := len(d.Classes)
	predictors, out, score := make([]*head.Predictor, len(d.Heads)), make([][]float64, len(d.Heads)), make([][]float64, len(d.Heads))
	for i, h := range d.Heads {
		predictors[i], out[i], score[i] = h.NewPredictor(), make([]float64, judgeBlock*classes), make([]float64, judgeBlock)
	}
	return func(rows []float32) []Verdict {
		n := len(rows) / d.Dim()
		logConfidences, scores := d.outputs(func(h int) ([]float64, []float64) {
			predictors[h].Outputs(out[h][:n*classes], score[h][:n], rows)
			return out[h][:n*classes], score[h][:n]
		})
		verdicts := make([]Verdict, n)
		for i := range verdicts {
			// Not all scores of a block are to the bit those of its rows alone.
			_ = d.rescore(context.Background(), scores[i:i+1], rows[i*d.Dim():(i+1)*d.Dim()]) // fails only when cancelled
			verdicts[i] = d.verdict(logConfidences[i*classes:(i+1)*classes], scores[i])
		}
		return verdicts
	}
}

// verdict judges the log φ [C] and the score of one image.
func (d *Detector) verdict(logConfidences []float64, score float64) Verdict {
	label, most := best(logConfidences)
	return Verdict{
		Class: d.Classes[label], Label: label,
		Confidence: math.Exp(most), Score: score,
		OOD: !(score >= d.Threshold), PValue: pValue(d.Scores, score),
	}
}

// best returns the first largest of a row and where it is.
func best(row []float64) (at int, value float64) {
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at, row[at]
}

// pValue is the conformal p-value of a score among n calibration scores,
// ascending: (1 + #{scores ≤ score}) / (n + 1).
func pValue(ascending []float64, score float64) float64 {
	notAbove, _ := slices.BinarySearchFunc(ascending, score, func(a, s float64) int {
		if a <= s {
			return -1
		}
		return 1
	})
	return float64(1+notAbove) / float64(len(ascending)+1)
}

// rank returns which of n scores, counted from the lowest, is the threshold that
// keeps the share tpr; 0 where n is too small to promise it.
func rank(n int, tpr float64) int {
	// A share like 1−0.9 falls just short of the number that it stands for.
	return int(math.Floor((1-tpr)*float64(n+1) + 1e-9))
}

// FalseAlarms returns the interval that holds, with a chance of 95%, the share
// of in-distribution images that the threshold flags. Over the choice of the n
// calibration images that share is Beta(k, n+1−k) if its rank among their scores
// is k and no scores tie; its mean is k/(n+1) ≤ 1−TargetTPR. It is nil where
// nothing is flagged. It speaks of images like those, and of the share in the long
// run: among few images chance adds its own.
func (d *Detector) FalseAlarms() *[2]float64 {
	n := len(d.Scores)
	k := rank(n, d.TargetTPR)
	if k < 1 || k > n {
		return nil
	}
	share := distuv.Beta{Alpha: float64(k), Beta: float64(n + 1 - k)}
	return &[2]float64{share.Quantile(0.025), share.Quantile(0.975)}
}

// threshold returns the ⌊(1−tpr)(n+1)⌋-th smallest of n scores, ascending: a
// fresh in-distribution image scores below it with a chance of at most 1−tpr.
// It is −Inf where that rank is 0: too few scores to promise it.
func threshold(ascending []float64, tpr float64) float64 {
	k := rank(len(ascending), tpr)
	if k < 1 {
		return math.Inf(-1)
	}
	return ascending[min(k, len(ascending))-1]
}

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
	meta.Model = features.EncodePath(meta.Model)
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

// LoadDetector reads a detector that Save wrote. A file that is cut short or
// altered, of a newer version or no detector at all gives an error that wraps
// ErrDetector, names the file and says what is wrong.
func LoadDetector(path string) (*Detector, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("detector %s: %w: it is a folder; `train` makes a file", path, ErrDetector)
	}
	file, err := safetensors.Read(path)
	if err != nil && !isFormatError(err) {
		return nil, fmt.Errorf("detector %s: %w; `train` makes one", path, pathless(err))
	}
	var d *Detector
	if err == nil {
		d, err = parseDetector(file)
	}
	if err != nil {
		return nil, fmt.Errorf("detector %s: %w: %w", path, ErrDetector, err)
	}
	return d, nil
}

// pathless takes the file's name off an error of the file system.
func pathless(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

func isFormatError(err error) bool {
	return errors.Is(err, safetensors.ErrFormat) || errors.Is(err, safetensors.ErrChecksum) || errors.Is(err, safetensors.ErrNoChecksum)
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
	d.Source.Model = features.DecodePath(meta.Model)
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
