package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
)

// This file says what a threshold flags and what it costs in false alarms.

// slider is the JSON that the page's script reads about thresholds.
type slider struct {
	// Steps are possible limits, ascending: of the score, or with ByPValue of the
	// p-value, and what each costs.
	Steps []step `json:"steps"`
	// At is the step of the verdicts.
	At       int  `json:"at"`
	ByPValue bool `json:"byPValue"`
	Images   int  `json:"images"`
}

// step is a limit: images with a lower score, or a p-value that is not higher, are
// flagged.
type step struct {
	Limit   float64
	Flagged int // of all images
	cost
}

// cost is the share of in-distribution images that a limit flags in the long run.
type cost struct {
	Known     bool
	Mean      float64
	Interval  bool
	Low, High float64 // with a chance of 95% it lies between these
}

// MarshalJSON writes [limit, flagged, mean, low, high]; null for what is not known.
func (s step) MarshalJSON() ([]byte, error) {
	number := func(known bool, v float64) string {
		if !known {
			return "null"
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return fmt.Appendf(nil, "[%s,%d,%s,%s,%s]", exact(s.Limit), s.Flagged, number(s.Known, s.Mean), number(s.Interval, s.Low), number(s.Interval, s.High)), nil
}

// betaInterval returns the 95% interval of a share that lies between the low-th and
// the high-th smallest of n values that are uniform on [0, 1]: from the 2.5% quantile
// of Beta(low, n+1−low) to the 97.5% quantile of Beta(high, n+1−high).
func betaInterval(low, high, n int) (from, to float64) {
	if low > 0 {
		from = distuv.Beta{Alpha: float64(low), Beta: float64(n + 1 - low)}.Quantile(0.025)
	}
	if to = 1; high == 0 {
		to = 0
	} else if high <= n {
		to = distuv.Beta{Alpha: float64(high), Beta: float64(n + 1 - high)}.Quantile(0.975)
	}
	return from, to
}

// cost returns what a limit costs. For a threshold that is the k-th smallest of n
// calibration scores the share is Beta(k, n+1−k), as train prints it. Between two
// scores the interval is that of Clopper and Pearson.
func (v *Verdicts) cost(limit float64) cost {
	n := len(v.Calibration)
	if v.ByPValue {
		c := cost{Known: true, Mean: limit}
		if k := int(math.Floor(limit*float64(n+1) + 1e-9)); n > 0 && k <= n {
			c.Interval, c.Mean = true, float64(k)/float64(n+1)
			c.Low, c.High = betaInterval(k, k, n)
		}
		return c
	}
	if n == 0 {
		return cost{}
	}
	below, _ := slices.BinarySearch(v.Calibration, limit)
	atMost := below
	for atMost < n && v.Calibration[atMost] == limit {
		atMost++
	}
	c := cost{Known: true, Mean: float64(min(below+1, n+1)) / float64(n+1), Interval: true}
	c.Low, c.High = betaInterval(min(atMost, below+1), below+1, n)
	return c
}

// flagged returns how many of all images a limit flags.
func (*slider) flagged(v *Verdicts, limit float64) int {
	if v.ByPValue {
		n, _ := slices.BinarySearch(v.Scores, math.Nextafter(limit+1e-9, 2))
		return n
	}
	n, _ := slices.BinarySearch(v.Scores, limit)
	return n
}

// limit is the limit of the verdicts.
func (v *Verdicts) limit() float64 {
	if v.ByPValue {
		return v.MaxFalseAlarms
	}
	return v.Threshold
}

// Steps of the slider that fall on calibration scores, and on scores of images below
// all of them.
const (
	scoreSteps = 240
	lowSteps   = 40
)

// newSlider chooses the limits that the page offers.
func newSlider(v *Verdicts) *slider {
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	var limits []float64
	add := func(x float64) {
		if finite(x) {
			limits = append(limits, x)
		}
	}
	// thin adds n of these values, with more of the low ones.
	thin := func(values []float64, n int) {
		for i := range n {
			at := float64(i) / float64(max(1, n-1))
			if len(values) > 0 {
				add(values[int(at*at*float64(len(values)-1)+.5)])
			}
		}
	}
	if v.ByPValue {
		add(0)
		thin(v.Scores, scoreSteps)
	} else {
		from := v.Calibration
		if len(from) == 0 {
			from = v.Scores
		}
		thin(from, scoreSteps)
		if len(from) > 0 {
			below, _ := slices.BinarySearch(v.Scores, from[0])
			thin(v.Scores[:below], lowSteps)
		}
	}
	if add(v.limit()); !finite(v.limit()) && len(v.Scores) > 0 {
		add(v.Scores[0]) // which flags nothing, as a threshold of −∞ does
	}
	slices.Sort(limits)
	limits = slices.Compact(limits)
	if len(limits) < 2 {
		return &slider{} // there is nothing to choose
	}
	s := &slider{ByPValue: v.ByPValue, Images: len(v.Scores)}
	for _, limit := range limits {
		s.Steps = append(s.Steps, step{limit, s.flagged(v, limit), v.cost(limit)})
	}
	if at, found := slices.BinarySearch(limits, v.limit()); found {
		s.At = at
	}
	return s
}

// Thresholds returns, in JSON, what the slider of WriteVerdicts knows: possible limits,
// what each flags of v.Scores, which are in order, and what it costs in false alarms.
func Thresholds(v *Verdicts) json.RawMessage {
	text, err := json.Marshal(newSlider(v))
	if err != nil {
		panic(err) // numbers always work
	}
	return text
}

// Max is the last step.
func (s *slider) Max() int { return len(s.Steps) - 1 }

// costs is a table of thresholds for readers without JavaScript.
func (v *Verdicts) costs() *table {
	n := len(v.Calibration)
	if n == 0 || v.ByPValue || len(v.Scores) == 0 {
		return nil
	}
	t := &table{Caption: "What other thresholds would flag", Head: "flag at most", Columns: []string{"threshold", "images flagged", "false alarms, 95% interval"}}
	for _, share := range []float64{0.01, 0.02, 0.05, 0.1, 0.2} {
		k := int(math.Floor(share*float64(n+1) + 1e-9))
		if k < 1 {
			continue
		}
		limit := v.Calibration[k-1]
		c := v.cost(limit)
		flagged := (*slider)(nil).flagged(v, limit)
		t.Rows = append(t.Rows, tableRow{fmt.Sprintf("%g%%", 100*share), []tableCell{
			{Mean: short(limit), Sort: exact(limit)},
			whole(flagged),
			{Mean: fmt.Sprintf("%.2g%% to %.2g%%", 100*c.Low, 100*c.High), Sort: exact(c.Low)}}})
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}

// thousands prints a number with commas.
func thousands(n int) string { return strings.Fields(count(n))[0] }
