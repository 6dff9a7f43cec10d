package training

import (
	"errors"
	"fmt"
	"time"

	"mlrbfn/conditioning"
	"mlrbfn/head"
)

// Options says what to train a detector on, and how. A zero field takes
// its default.
type Options struct {
	Features []string `json:"-"` // folders of feature sets, all of one model; needed

	// Validation steers the learning rate; Calibration sets the threshold and
	// the p-values and is used for nothing else. Each takes a tenth of the
	// labelled rows by default.
	Validation, Calibration Share `json:"-"`

	// Paper trains the paper's head, and makes the paper's settings the defaults
	// of the fields below. Otherwise it is an open head, and the defaults are
	// what docs/research.md found best: conditioning.Auto, 2
	// layers, 20 epochs with a learning rate of 0.003 that falls with the
	// cosine.
	Paper bool

	// Conditioning is done to the features before the head; it is fitted on the
	// training rows.
	Conditioning conditioning.Options

	Head  head.Config       // Open is set by Paper
	Train head.TrainOptions // Seed, Progress, Checkpoint and Resume are set per head
	Seeds []uint64          // one head each, trained side by side; nil means 0. The first also makes the split

	// Scores names the score to judge by: "" or detector.OwnScore is the heads' own;
	// any of Methods, or an ensemble "ensemble(A,B,…)", is fitted on the rows
	// that the heads are trained on, and an ensemble put on one scale by the
	// validation rows. Where it reads logits, they are those of a linear head
	// that is trained as Linear says (Epochs 0 means 100) with the first seed.
	Scores string
	Linear head.TrainOptions

	TargetTPR float64 `json:"-"` // share of in-distribution images that the threshold keeps; 0 means 0.95

	// Memory is how many bytes, about, the rows that heads read may take, and
	// again those that are read from files at a time; 0 means half of the machine's
	// memory. What does not fit goes to temporary files in the folder Scratch, ""
	// being the system's, and is shuffled as head.Train says.
	Memory  int64  `json:"-"`
	Scratch string `json:"-"`

	// Checkpoint, where set, is the file that keeps the state of all heads
	// every CheckpointEvery (0 means 30 s) and when training ends early. A
	// later call with the same options and features goes on from it, to the
	// bit; one with others is refused with ErrOtherTraining. The caller removes
	// the file when the detector is saved.
	Checkpoint      string        `json:"-"`
	CheckpointEvery time.Duration `json:"-"`
	Resume          Resume        `json:"-"` // what to do about a checkpoint that is there

	// Resumed, where set, is told before training goes on from a checkpoint how
	// many epochs each head has behind it.
	Resumed func(epochs []int) `json:"-"`

	// Progress, where set, is called after each epoch of each head (counted
	// from 0), from several goroutines.
	Progress func(head int, e head.Epoch) `json:"-"`
}

// Share is a part of the training rows to set aside: a fraction of them, drawn
// class by class, or a feature set of its own. The zero value is a tenth.
type Share struct {
	None     bool    // set nothing aside
	Fraction float64 // in (0, 1); 0 means 0.1
	Features string  // folder of a feature set; takes the place of a fraction
}

// fraction returns the part of the training rows that goes to the share.
func (s Share) fraction() float64 {
	switch {
	case s.None || s.Features != "":
		return 0
	case s.Fraction == 0:
		return 0.1
	}
	return s.Fraction
}

func (s Share) String() string {
	if s.Features != "" {
		return s.Features
	}
	return fmt.Sprint(s.fraction())
}

// withOurs fills in the zero fields that do not mean the paper's settings.
func (o *Options) withOurs() {
	o.Head.Open = !o.Paper
	if o.Paper {
		return
	}
	if o.Conditioning.Kind == "" {
		o.Conditioning.Kind = conditioning.Auto
	}
	if o.Head.Layers == 0 {
		o.Head.Layers = 2
	}
	if o.Train.Epochs == 0 {
		o.Train.Epochs = 20
	}
	if o.Train.LR == 0 {
		o.Train.LR = 0.003
	}
	if o.Train.Schedule == "" {
		o.Train.Schedule = head.Cosine
	}
}

var errNoScale = errors.New("an ensemble needs validation images, which put its parts on one scale: --val is not 0")
