package command

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"mlrbfn/conditioning"
	"mlrbfn/head"
	"mlrbfn/pipeline"
)

// HeadFlags are the flags of programs that train heads.
type HeadFlags struct {
	flags                            *pflag.FlagSet
	options                          pipeline.TrainOptions
	val, depression, balance, preset string
	network, schedule, conditioning  string
	paper                            bool
	seeds                            Seeds
}

// paper is the paper's settings where ours are others.
var paper = map[string]string{
	"network": "paper", "conditioning": "none", "layers": "4", "projection": "100",
	"epochs": "500", "lr": "0.001", "schedule": "plateau",
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
	f.BoolVar(&h.paper, "paper", false, "the paper's head and settings; other flags still apply")
	Choice(f, &h.preset, "preset", "", "imagenet1k|mnist|moons", "the paper's settings for a data set; other flags still apply")
	Choice(f, &h.network, "network", "residual", "residual|paper", "kind of head (paper: paper)")
	also(f, "network", "open", "residual")
	f.StringVar(&h.val, "val", "0.1", "`SHARE` of the training images, or feature set, to validate on; 0: none")
	f.StringVar(&h.conditioning, "conditioning", "auto", "`KIND` of conditioning of the features: auto|none|l2|standardise|pca|whiten, or l2+ one of the last three (paper: none)")
	f.Float64Var(&o.Conditioning.Shrinkage, "shrinkage", 0, "shrinkage of whitening; 0: the one that fits the validation images")
	f.IntVar(&o.Conditioning.Dims, "pca-dims", 0, "principal axes that pca leaves; 0: all")
	f.IntVar(&o.Head.Layers, "layers", 2, "RBF layers (paper: 4)")
	f.IntVar(&o.Head.Centroids, "centroids", 50, "centroids of each hidden layer")
	f.IntVar(&o.Head.Projection, "projection", 0, "features that the layers read; 0: 50, or classes − 1 if that is more (paper: 100, the outputs of each hidden layer)")
	f.Float64Var(&o.Head.Norm, "norm", 2, "k ≥ 1 of the distance ‖x−c‖ₖᵏ; only the paper's network has others than 2")
	f.Float64Var(&o.Head.Recovery, "recovery", 1.1, "how fast depression recovers from layer to layer, ≥ 1")
	Choice(f, &h.depression, "depression", "paper", "paper|none", "depression mechanism")
	f.IntVar(&o.Train.Epochs, "epochs", 20, "passes over the training images (paper: 500)")
	f.IntVar(&o.Train.Batch, "batch", 128, "images per training step; the first batch also initialises the paper's network")
	f.Float64Var(&o.Train.LR, "lr", 0.003, "learning rate of Adam (paper: 0.001)")
	Choice(f, &h.schedule, "schedule", "cosine", "cosine|plateau", "how the learning rate falls (paper: plateau)")
	f.IntVar(&o.Train.Patience, "patience", 50, "epochs without improvement before plateau halves the learning rate")
	Choice(f, &h.balance, "balance", "none", "none|sample", "an epoch shows each image once, or each class equally often")
	usage := "train one head per seed"
	if h.seeds.String() == "0" { // which is taken for no default
		usage += " (default 0)"
	}
	f.Var(&h.seeds, "seeds", usage)
	f.Var(&h.seeds, "seed", "")
	f.Lookup("seed").Hidden = true
	return h
}

// rareHeadFlags are those of AddHeadFlags that few need.
var rareHeadFlags = []string{"network", "layers", "lr", "val", "shrinkage", "pca-dims", "centroids", "projection", "norm", "recovery", "depression", "batch", "schedule", "patience"}

// PaperByDefault makes the paper's settings the defaults.
func (h *HeadFlags) PaperByDefault() *HeadFlags {
	for name, value := range paper {
		flag := h.flags.Lookup(name)
		flag.DefValue = value
		if err := flag.Value.Set(value); err != nil {
			panic(err)
		}
	}
	h.flags.Lookup("paper").DefValue = "true"
	return h
}

// settle gives the flags that were not given the values of settings.
func (h *HeadFlags) settle(what string, settings map[string]string) error {
	for name, value := range settings {
		if h.flags.Changed(name) {
			continue
		}
		if err := h.flags.Lookup(name).Value.Set(value); err != nil {
			return fmt.Errorf("%s: --%s: %w", what, name, err)
		}
	}
	return nil
}

// Options returns what the flags say, after Parse.
func (h *HeadFlags) Options() (pipeline.TrainOptions, error) {
	if h.preset != "" {
		if err := errors.Join(h.settle("--preset", paper), h.settle("--preset", presets[h.preset])); err != nil {
			return h.options, err
		}
	} else if h.paper {
		if err := h.settle("--paper", paper); err != nil {
			return h.options, err
		}
	}
	o := h.options
	o.Paper = h.network == "paper"
	o.Head.Open = !o.Paper
	o.Train.Schedule = head.Schedule(h.schedule)
	kind, l2 := strings.CutPrefix(h.conditioning, "l2+")
	if h.conditioning == "l2" {
		kind, l2 = "none", true
	}
	if kind == "" {
		return o, Usagef("--conditioning %q: nothing follows l2+", h.conditioning)
	}
	o.Conditioning.Kind, o.Conditioning.L2 = conditioning.Kind(kind), l2
	if _, err := o.Conditioning.WithDefaults(); err != nil {
		return o, Usagef("--conditioning: %w", err)
	}
	switch whitens := o.Conditioning.Kind == conditioning.Whiten || o.Conditioning.Kind == conditioning.Auto; {
	case o.Conditioning.Shrinkage != 0 && !whitens:
		return o, Usagef("--shrinkage: --conditioning %s does not whiten", h.conditioning)
	case o.Conditioning.Dims != 0 && o.Conditioning.Kind != conditioning.PCA:
		return o, Usagef("--pca-dims: --conditioning %s is no pca", h.conditioning)
	}
	o.Head.NoDepression, o.Train.Balance = h.depression == "none", h.balance == "sample"
	// A zero would mean the default further on, not what was asked for.
	for name, value := range map[string]float64{
		"layers": float64(o.Head.Layers), "centroids": float64(o.Head.Centroids),
		"norm": o.Head.Norm, "recovery": o.Head.Recovery,
		"epochs": float64(o.Train.Epochs), "batch": float64(o.Train.Batch), "lr": o.Train.LR, "patience": float64(o.Train.Patience),
	} {
		if !(value > 0) {
			return o, Usagef("--%s %g: it is positive", name, value)
		}
	}
	if _, err := o.Head.WithDefaults(); err != nil {
		return o, Usagef("%w; see --network and --paper", err)
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

// Share reads the value of the flag name: a share of the training images, or
// a feature set.
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
		return pipeline.Share{}, Usagef("--%s %s: a share lies between 0 and 1", name, strings.TrimSpace(text))
	}
	return pipeline.Share{Fraction: v}, nil
}
