package evaluation

import (
	"encoding/json"
	"math"
)

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
