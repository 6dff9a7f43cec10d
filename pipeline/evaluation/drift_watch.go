package evaluation

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// DriftCalibration describes the images that a stream is compared with.
type DriftCalibration struct {
	// Scores are those of the calibration images. They may be none, and then only
	// changes within the stream are noticed; Grid then settles the cells.
	Scores []float64
	// ByClass are the scores of the calibration images that are given each class.
	// Where a class has none, changes within the stream of its images are noticed.
	ByClass map[string][]float64
	// Classes are all that images may be given.
	Classes []string
	// Grid settles the cells of martingales without scores; see [Options].
	Grid []float64
}

// DriftWatch watches the images of one source, all together and by the class that they are
// given. The chance that any of its alarms is ever raised without cause is at most
// alpha: half of it is for all images together, and the classes share the rest.
type DriftWatch struct {
	all     *Martingale
	classes map[string]*Martingale
}

// NewDriftWatch starts to watch a source. Alpha 0 means 0.01; one that is no chance panics.
func NewDriftWatch(alpha float64, c DriftCalibration, seed uint64) *DriftWatch {
	alpha = cmp.Or(alpha, 0.01)
	grid := func(scores []float64) []float64 {
		if len(scores) > 0 {
			return nil // some of them are set apart
		}
		if len(c.Grid) > 0 {
			return c.Grid
		}
		return c.Scores
	}
	w := &DriftWatch{
		all:     NewMartingale(alpha/2, grid(c.Scores), c.Scores, seed),
		classes: make(map[string]*Martingale, len(c.Classes)),
	}
	for _, class := range c.Classes {
		h := fnv.New64a()
		h.Write([]byte(class))
		scores := c.ByClass[class]
		w.classes[class] = NewMartingale(alpha/2/float64(len(c.Classes)), grid(scores), scores, seed^h.Sum64())
	}
	return w
}

// Add takes the score of the next image and the class that it is given, and returns
// the state of the alarm of all images together and of the class.
func (w *DriftWatch) Add(class string, score float64) (all, ofClass DriftAlarm) {
	all = w.all.Add(score)
	if m := w.classes[class]; m != nil {
		ofClass = m.Add(score)
	}
	return all, ofClass
}

// All is the martingale of all images together.
func (w *DriftWatch) All() *Martingale { return w.all }

// Class is the martingale of the images that are given a class; nil for one that was
// not named.
func (w *DriftWatch) Class(class string) *Martingale { return w.classes[class] }

// Classes are those that have a martingale, in order.
func (w *DriftWatch) Classes() []string { return slices.Sorted(maps.Keys(w.classes)) }

// Reset begins new tests; see [Martingale.Reset].
func (w *DriftWatch) Reset() {
	w.all.Reset()
	for _, m := range w.classes {
		m.Reset()
	}
}

// MarshalBinary returns the state of all martingales.
func (w *DriftWatch) MarshalBinary() ([]byte, error) {
	b := []byte{stateVersion}
	b = binary.AppendUvarint(b, uint64(len(w.classes)))
	part := func(name string, m *Martingale) error {
		state, err := m.MarshalBinary()
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		b = append(binary.AppendUvarint(b, uint64(len(state))), state...)
		return err
	}
	err := part("", w.all)
	for _, class := range w.Classes() {
		err = errors.Join(err, part(class, w.classes[class]))
	}
	return b, err
}

// UnmarshalBinary replaces the watch by the one whose state MarshalBinary returned.
func (w *DriftWatch) UnmarshalBinary(data []byte) error {
	if len(data) == 0 || data[0] != stateVersion {
		return errState
	}
	data = data[1:]
	length := func() (int, bool) {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > uint64(len(data)) {
			return 0, false
		}
		data = data[size:]
		return int(n), int(n) <= len(data)
	}
	n, ok := length()
	fresh := DriftWatch{classes: map[string]*Martingale{}}
	for i := 0; ok && i <= n; i++ {
		var size int
		var name string
		if size, ok = length(); !ok {
			break
		}
		name, data = string(data[:size]), data[size:]
		if size, ok = length(); !ok {
			break
		}
		m := &Martingale{}
		if err := m.UnmarshalBinary(data[:size]); err != nil {
			return err
		}
		data = data[size:]
		if i == 0 {
			fresh.all = m
		} else {
			fresh.classes[name] = m
		}
	}
	if !ok || len(data) > 0 || len(fresh.classes) != n {
		return errState
	}
	*w = fresh
	return nil
}

// A FlaggedWatch raises an alarm when a larger share of images is flagged than was promised,
// from the first image on and whatever is normal by now: a [Martingale] compares the stream
// with calibration scores, which may be few, and with itself.
//
// If each image is flagged with a chance of at most the promised share, whatever came before
// it, the alarm is ever raised with a chance of at most alpha. The capital is that of a
// Martingale, with other bets: that the share is 1.5 to 7 times the promised one. A bet on the
// share q multiplies its part by q/promised for a flagged image and by (1 − q)/(1 − promised)
// for another, which is at most 1 on average. What is needed beyond 1/alpha is not bet: where a
// flagged image would win more, all bets are made smaller. The reserve is larger than that of a
// Martingale and lasts longer, as more is paid for in calm times: 0.95/(1 + t/2000) is left
// after t images.
type FlaggedWatch struct {
	capital
	promised float64
	flagged  uint64
}

const (
	flaggedReserve = 0.95
	flaggedScale   = 2000
	flaggedSpread  = 0.001
)

// NewFlaggedWatch returns a watch for a promised share between 0 and 1.
func NewFlaggedWatch(alpha, promised float64) *FlaggedWatch {
	w := &FlaggedWatch{capital: capital{alpha: alpha}, promised: promised}
	w.Reset()
	return w
}

// Add takes whether the next image is flagged.
func (w *FlaggedWatch) Add(flagged bool) DriftAlarm {
	t := float64(w.steps)
	w.pay(w.left*(flaggedScale+t)/(flaggedScale+t+1), flaggedSpread)
	var ifFlagged, won [bets]float64
	most := 0.0 // that the capital in bets is multiplied by
	for i, times := range [bets]float64{1.5, 2.6, 3, 3.4, 7} {
		ifFlagged[i] = min(times*w.promised, (1+w.promised)/2) / w.promised
		most += w.parts[i] * ifFlagged[i]
	}
	made := 1.0
	if w.raisedAt == 0 {
		needed := (1/w.alpha*(1+1e-9) - w.left) / math.Exp(w.logActive)
		made = max(0, min(1, (needed-1)/(most-1)))
	}
	for i, times := range ifFlagged {
		if !flagged {
			times = (1 - times*w.promised) / (1 - w.promised)
		}
		won[i] = 1 + made*(times-1)
	}
	if flagged {
		w.flagged++
	}
	return w.win(won)
}

// Reset begins a new test.
func (w *FlaggedWatch) Reset() {
	w.begin(flaggedReserve)
	w.flagged = 0
}

// Flagged returns how many images were flagged since the start or Reset, and Promised the
// share that may be.
func (w *FlaggedWatch) Flagged() uint64   { return w.flagged }
func (w *FlaggedWatch) Promised() float64 { return w.promised }

// flaggedState is a watch in JSON.
type flaggedState struct {
	Alpha, Promised, LogActive, Left, Highest float64
	Parts                                     [bets]float64
	Steps, RaisedAt, Flagged                  uint64
}

// MarshalJSON returns the state.
func (w *FlaggedWatch) MarshalJSON() ([]byte, error) {
	return json.Marshal(flaggedState{w.alpha, w.promised, w.logActive, w.left, w.highest, w.parts, w.steps, w.raisedAt, w.flagged})
}

// UnmarshalJSON replaces the watch by the one whose state MarshalJSON returned.
func (w *FlaggedWatch) UnmarshalJSON(data []byte) error {
	var s flaggedState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	if s.Left == 0 { // of a version that had the reserve of a Martingale
		s.Left = reserve(s.Steps)
	}
	sum := 0.0
	for _, part := range s.Parts {
		sum += part
	}
	if !(s.Alpha > 0 && s.Alpha < 1) || !(s.Promised > 0 && s.Promised < 1) || !(math.Abs(sum-1) < 1e-6) || !(s.Left > 0 && s.Left <= 1) || s.RaisedAt > s.Steps || s.Flagged > s.Steps {
		return errState
	}
	*w = FlaggedWatch{capital{s.Alpha, s.Steps, s.LogActive, s.Parts, s.Left, s.Highest, s.RaisedAt}, s.Promised, s.Flagged}
	return nil
}

// DriftHistory is the evidence of a source over time: the most in each five minutes of the last
// two hours, and in each hour of the last 31 days. Its zero value is empty.
type DriftHistory struct {
	points []DriftPoint // by time
}

// DriftPoint is the most evidence in a span of time. At 1 the alarm is raised.
type DriftPoint struct {
	Start    time.Time `json:"start"`
	Evidence float64   `json:"evidence"`
}

const (
	fine, coarse         = 5 * time.Minute, time.Hour
	keepFine, keepCoarse = 2 * time.Hour, 31 * 24 * time.Hour
)

// Add notes the evidence at a time.
func (h *DriftHistory) Add(now time.Time, evidence float64) {
	if !math.IsNaN(evidence) {
		h.merge(now, []DriftPoint{{now, max(0, evidence)}})
	}
}

// Merge adds what another history has, such as that of another replica.
func (h *DriftHistory) Merge(now time.Time, other *DriftHistory) { h.merge(now, other.points) }

// Since returns what is known since a time.
func (h *DriftHistory) Since(from time.Time) []DriftPoint {
	at, _ := slices.BinarySearchFunc(h.points, from, func(p DriftPoint, t time.Time) int { return p.Start.Compare(t) })
	return slices.Clone(h.points[at:])
}

func (h *DriftHistory) merge(now time.Time, more []DriftPoint) {
	all := slices.Concat(h.points, more)
	for i := range all {
		width := fine
		if now.Sub(all[i].Start) > keepFine {
			width = coarse
		}
		all[i].Start = all[i].Start.UTC().Truncate(width)
	}
	slices.SortFunc(all, func(a, b DriftPoint) int { return a.Start.Compare(b.Start) })
	h.points = all[:0]
	for _, p := range all {
		switch last := len(h.points) - 1; {
		case now.Sub(p.Start) > keepCoarse || p.Start.After(now):
		case last >= 0 && h.points[last].Start.Equal(p.Start):
			h.points[last].Evidence = max(h.points[last].Evidence, p.Evidence)
		default:
			h.points = append(h.points, p)
		}
	}
}

// MarshalBinary returns the history, at most some 10 kB.
func (h *DriftHistory) MarshalBinary() ([]byte, error) {
	b := []byte{stateVersion}
	for _, p := range h.points {
		b = binary.BigEndian.AppendUint64(b, uint64(p.Start.Unix()))
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(p.Evidence)))
	}
	return b, nil
}

// UnmarshalBinary replaces the history by the one that MarshalBinary returned.
func (h *DriftHistory) UnmarshalBinary(data []byte) error {
	const size = 12
	if len(data) == 0 || data[0] != stateVersion || (len(data)-1)%size != 0 || len(data) > 1<<16 {
		return errState
	}
	var points []DriftPoint
	for one := range slices.Chunk(data[1:], size) {
		p := DriftPoint{time.Unix(int64(binary.BigEndian.Uint64(one)), 0).UTC(), float64(math.Float32frombits(binary.BigEndian.Uint32(one[8:])))}
		if !(p.Evidence >= 0) || len(points) > 0 && !p.Start.After(points[len(points)-1].Start) {
			return errState
		}
		points = append(points, p)
	}
	h.points = points
	return nil
}

// ExpectedVerdicts are the intervals that plain figures of n images lie in with a chance of 95%
// if the images are like the calibration images. They are for looking: of twenty, one
// lies outside.
type ExpectedVerdicts struct {
	Flagged    *[2]float64           `json:"flagged_interval"`      // share of flagged images; nil where it is not known
	MeanPValue *[2]float64           `json:"mean_p_value_interval"` // likewise
	Classes    map[string][2]float64 `json:"class_intervals"`       // share of each class; nil where the calibration images have no labels
}

// ExpectVerdicts returns the intervals for n images. Those of all classes together are not known
// for detectors with several sets of calibration scores: by class, or by folds.
func ExpectVerdicts(d *detector.Detector, n int) (e ExpectedVerdicts) {
	if len(d.Folds) == 0 && d.ByClass == nil && len(d.CalibrationScores) > 0 {
		low, high := MeanPValueInterval(n, len(d.CalibrationScores))
		e.MeanPValue = &[2]float64{low, high}
		if k := detector.Rank(len(d.CalibrationScores), d.TargetTPR); k > 0 {
			low, high = FlaggedInterval(n, len(d.CalibrationScores), k)
			e.Flagged = &[2]float64{low, high}
		}
	}
	total := 0
	for _, of := range d.Training.ClassCalibration {
		total += of
	}
	if total > 0 && len(d.Training.ClassCalibration) == len(d.Classes) {
		e.Classes = make(map[string][2]float64, len(d.Classes))
		for class, of := range d.Training.ClassCalibration {
			low, high := ShareInterval(n, total, of)
			e.Classes[d.Classes[class]] = [2]float64{low, high}
		}
	}
	return e
}

// DriftCalibrationOf returns what a stream should be like whose images a detector judges.
// A detector has scores by class if it was calibrated by class. Of one that was
// calibrated by cross-validation (folds) the scores only settle the cells, as other
// detectors gave them.
func DriftCalibrationOf(d *detector.Detector) DriftCalibration {
	c := DriftCalibration{Classes: d.Classes, Scores: d.CalibrationScores}
	if len(d.Folds) > 0 {
		c.Grid, c.Scores = d.CalibrationScores, nil
	}
	if d.ByClass != nil {
		c.ByClass = make(map[string][]float64, len(d.Classes))
		for class, scores := range d.ByClass[:len(d.Classes)] {
			c.ByClass[d.Classes[class]] = scores
		}
	}
	return c
}

// FewForDrift reports whether so many calibration images are too few to rely on noticing a
// stream of which a small part is different from its first image on. docs/drift.md has
// measurements.
func FewForDrift(calibration int) bool { return calibration < 1000 }

// FlaggedInterval returns the interval that the share of flagged images among n new ones
// lies in with a chance of at least 95%, if they are like the calibration images and
// the threshold is the k-th smallest of m calibration scores: their number has a
// beta-binomial distribution. It is [0, 1] where there is no such threshold.
func FlaggedInterval(n, m, k int) (low, high float64) {
	if n < 1 || k < 1 || k > m {
		return 0, 1
	}
	return betaBinomial(n, float64(k), float64(m+1-k))
}

// ShareInterval returns the interval that the share of a class among n new images lies in with a
// chance of about 95%, if k of m calibration images are of it: a beta-binomial
// distribution after Jeffreys' prior. The class is counted by the labels of the
// calibration images, and by the verdicts on new ones.
func ShareInterval(n, m, k int) (low, high float64) {
	if n < 1 || m < 1 || k < 0 || k > m {
		return 0, 1
	}
	return betaBinomial(n, float64(k)+0.5, float64(m-k)+0.5)
}

// betaBinomial returns the shares of n between which 95% of a beta-binomial distribution
// lie.
func betaBinomial(n int, a, b float64) (low, high float64) {
	lgamma := func(x float64) float64 {
		v, _ := math.Lgamma(x)
		return v
	}
	N := float64(n)
	constant := lgamma(N+1) - lgamma(N+a+b) + lgamma(a+b) - lgamma(a) - lgamma(b)
	const outside = 0.025
	below, from, to := 0.0, -1, n
	for x := 0; x <= n; x++ {
		X := float64(x)
		below += math.Exp(constant + lgamma(X+a) + lgamma(N-X+b) - lgamma(X+1) - lgamma(N-X+1))
		if from < 0 && below > outside {
			from = x
		}
		if below >= 1-outside {
			to = x
			break
		}
	}
	return float64(max(from, 0)) / float64(n), float64(to) / float64(n)
}

// MeanPValueInterval returns the interval that the mean p-value of n new images lies in with a
// chance of about 95%, if they are like the m calibration images: the sum of the ranks
// is Mann and Whitney's U.
func MeanPValueInterval(n, m int) (low, high float64) {
	if n < 1 || m < 1 {
		return 0, 1
	}
	// p = (1 + #{calibration scores ≤ s}) / (m + 1)
	N, M := float64(n), float64(m)
	mean := (1 + M/2) / (M + 1)
	deviation := 1.96 * math.Sqrt((N+M+1)/(12*N*M)) * M / (M + 1)
	return max(mean-deviation, 0), min(mean+deviation, 1)
}
