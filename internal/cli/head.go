package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"mlrbfn/pipeline"
)

// HeadFlags are the flags of programs that train heads.
type HeadFlags struct {
	flags                            *pflag.FlagSet
	options                          pipeline.TrainOptions
	val, depression, balance, preset string
	seeds                            Seeds
}

// presets are the paper's settings that differ from its usual ones.
var presets = map[string]map[string]string{
	"imagenet1k": {"layers": "5", "epochs": "1000"},
	"mnist":      {"centroids": "200", "batch": "256", "epochs": "200"},
	"moons":      {"layers": "3", "batch": "100", "epochs": "250"},
}

// AddHeadFlags adds the flags; seeds are the default ones.
func AddHeadFlags(f *pflag.FlagSet, seeds ...uint64) *HeadFlags {
	h := &HeadFlags{flags: f, seeds: seeds}
	o := &h.options
	f.StringVar(&h.val, "val", "0.1", "part of the training images, or `FEATURES`, to steer the learning rate by; 0: none")
	f.IntVar(&o.Head.Layers, "layers", 4, "RBF layers")
	f.IntVar(&o.Head.Centroids, "centroids", 50, "centroids of each hidden layer")
	f.IntVar(&o.Head.Projection, "projection", 100, "outputs of each hidden layer")
	f.Float64Var(&o.Head.Norm, "norm", 2, "k ≥ 1 of the distance ‖x−c‖ₖᵏ")
	f.Float64Var(&o.Head.Recovery, "recovery", 1.1, "how fast depression recovers from layer to layer, ≥ 1")
	f.StringVar(&h.depression, "depression", "paper", "the depression mechanism: `paper|none`")
	f.IntVar(&o.Train.Epochs, "epochs", 500, "passes over the training images")
	f.IntVar(&o.Train.Batch, "batch", 128, "images of a step; the first batch also initialises")
	f.Float64Var(&o.Train.LR, "lr", 0.001, "Adam's learning rate")
	f.IntVar(&o.Train.Patience, "patience", 50, "epochs without improvement before the learning rate is halved")
	f.StringVar(&h.balance, "balance", "none", "whether an epoch shows each image once, or every class equally often: `none|sample`")
	usage := "one head is trained per seed"
	if h.seeds.String() == "0" { // which pflag takes for no default
		usage += " (default 0)"
	}
	f.Var(&h.seeds, "seeds", usage)
	f.Var(&h.seeds, "seed", "the same as --seeds")
	f.StringVar(&h.preset, "preset", "", "the paper's settings for `imagenet1k|mnist|moons`; flags that are given go before")
	f.Bool("paper", false, "the paper's settings, which are the defaults in this version")
	return h
}

// Options returns what the flags say, after Parse.
func (h *HeadFlags) Options() (pipeline.TrainOptions, error) {
	o := h.options
	if h.preset != "" {
		settings, ok := presets[h.preset]
		if !ok {
			return o, Usagef("--preset %s: it is imagenet1k, mnist or moons", h.preset)
		}
		for name, value := range settings {
			if h.flags.Changed(name) {
				continue
			}
			if err := h.flags.Set(name, value); err != nil {
				return o, fmt.Errorf("preset %s: %w", h.preset, err)
			}
		}
		o = h.options
	}
	switch h.depression {
	case "paper":
	case "none":
		o.Head.NoDepression = true
	default:
		return o, Usagef("--depression %s: it is paper or none", h.depression)
	}
	switch h.balance {
	case "none":
	case "sample":
		o.Train.Balance = true
	default:
		return o, Usagef("--balance %s: it is none or sample", h.balance)
	}
	// A zero would mean the default further on, not what was asked for.
	for name, value := range map[string]float64{
		"layers": float64(o.Head.Layers), "centroids": float64(o.Head.Centroids), "projection": float64(o.Head.Projection),
		"norm": o.Head.Norm, "recovery": o.Head.Recovery,
		"epochs": float64(o.Train.Epochs), "batch": float64(o.Train.Batch), "lr": o.Train.LR, "patience": float64(o.Train.Patience),
	} {
		if !(value > 0) {
			return o, Usagef("--%s %g: it is positive", name, value)
		}
	}
	if _, err := o.Head.WithDefaults(); err != nil {
		return o, Usagef("%w", err)
	}
	if _, err := o.Train.WithDefaults(); err != nil {
		return o, Usagef("%w", err)
	}
	var err error
	if o.Validation, err = Share("val", h.val); err != nil {
		return o, err
	}
	o.Seeds = h.seeds
	return o, nil
}

// Share reads the value of the flag name: a part of the training images, or a
// feature set.
func Share(name, text string) (pipeline.Share, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case text == "":
		return pipeline.Share{}, Usagef("--%s is empty", name)
	case err != nil:
		return pipeline.Share{Features: text}, nil
	case v == 0:
		return pipeline.Share{None: true}, nil
	case !(v > 0 && v < 1):
		return pipeline.Share{}, Usagef("--%s %s: a part lies between 0 and 1", name, strings.TrimSpace(text))
	}
	return pipeline.Share{Fraction: v}, nil
}
