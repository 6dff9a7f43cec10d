package cli

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
	f.StringVar(&h.val, "val", "0.1", "part of the training images, or `FEATURES`, to validate by; 0: none")
	f.StringVar(&h.network, "network", "open", "the kind of head: `open|paper`; its package's text explains both (paper: paper)")
	f.StringVar(&h.conditioning, "conditioning", "auto", "what is done to features before the head: `auto|none|l2|standardise|pca|whiten`, the last three also after l2+; auto is l2+whiten, without l2 where that costs accuracy (paper: none)")
	f.Float64Var(&o.Conditioning.Shrinkage, "shrinkage", 0, "of whitening; 0: the one that fits the validation images")
	f.IntVar(&o.Conditioning.Dims, "pca-dims", 0, "principal axes that pca keeps; 0: all")
	f.IntVar(&o.Head.Layers, "layers", 2, "RBF layers (paper: 4)")
	f.IntVar(&o.Head.Centroids, "centroids", 50, "centroids of each hidden layer")
	f.IntVar(&o.Head.Projection, "projection", 0, "features that the layers read; 0: 50, or classes − 1 where these are more (paper: 100, the outputs of each hidden layer)")
	f.Float64Var(&o.Head.Norm, "norm", 2, "k ≥ 1 of the distance ‖x−c‖ₖᵏ; others than 2 for the paper's network alone")
	f.Float64Var(&o.Head.Recovery, "recovery", 1.1, "how fast depression recovers from layer to layer, ≥ 1")
	f.StringVar(&h.depression, "depression", "paper", "the depression mechanism: `paper|none`")
	f.IntVar(&o.Train.Epochs, "epochs", 20, "passes over the training images (paper: 500)")
	f.IntVar(&o.Train.Batch, "batch", 128, "images of a step; the first batch also initialises the paper's network")
	f.Float64Var(&o.Train.LR, "lr", 0.003, "Adam's learning rate (paper: 0.001)")
	f.StringVar(&h.schedule, "schedule", "cosine", "how the learning rate falls: `cosine|plateau`, to 0 or by halves (paper: plateau)")
	f.IntVar(&o.Train.Patience, "patience", 50, "epochs without improvement before plateau halves the learning rate")
	f.StringVar(&h.balance, "balance", "none", "whether an epoch shows each image once, or every class equally often: `none|sample`")
	usage := "one head is trained per seed"
	if h.seeds.String() == "0" { // which pflag takes for no default
		usage += " (default 0)"
	}
	f.Var(&h.seeds, "seeds", usage)
	f.Var(&h.seeds, "seed", "the same as --seeds")
	f.StringVar(&h.preset, "preset", "", "the paper's settings for `imagenet1k|mnist|moons`; flags that are given go before")
	f.BoolVar(&h.paper, "paper", false, "the paper's settings; flags that are given go before")
	return h
}

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
	given := map[string]bool{}
	h.flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for name, value := range settings {
		if given[name] {
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
		settings, ok := presets[h.preset]
		if !ok {
			return h.options, Usagef("--preset %s: it is imagenet1k, mnist or moons", h.preset)
		}
		if err := errors.Join(h.settle("--preset", paper), h.settle("--preset", settings)); err != nil {
			return h.options, err
		}
	} else if h.paper {
		if err := h.settle("--paper", paper); err != nil {
			return h.options, err
		}
	}
	o := h.options
	switch h.network {
	case "open":
	case "paper":
		o.Paper = true
	default:
		return o, Usagef("--network %s: it is open or paper", h.network)
	}
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
