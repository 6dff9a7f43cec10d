package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// HeadFlags are the flags of programs that train heads.
type HeadFlags struct {
	flags               *pflag.FlagSet
	options             pipeline.TrainOptions // with what the flags say that hold its fields
	shape               head.Settings
	depression, balance string
	preset, network     string
	conditioning        string
	paper               bool
}

// flagValues returns the settings of a network as values of flags; zero fields
// have the network's defaults.
func flagValues(network string, c head.Config, o head.TrainOptions) (map[string]string, error) {
	c, err := c.WithDefaults()
	if err != nil {
		return nil, err
	}
	if o, err = c.TrainOptions(o); err != nil {
		return nil, err
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	shape := c.Settings()
	return map[string]string{
		"network": network, "conditioning": string(c.Conditioning().Kind), "schedule": string(o.Schedule),
		"layers": strconv.Itoa(shape.Layers), "centroids": strconv.Itoa(shape.Centroids), "projection": strconv.Itoa(shape.Projection),
		"norm": number(shape.Norm), "recovery": number(shape.Recovery),
		"epochs": strconv.Itoa(o.Epochs), "batch": strconv.Itoa(o.Batch), "lr": number(o.LR), "patience": strconv.Itoa(o.Patience),
	}, nil
}

// paperValues returns the paper's settings for one of its experiments, "" being
// the usual ones.
func paperValues(preset string) (map[string]string, error) {
	p := head.PaperPresets[preset]
	return flagValues("paper", p.Paper, p.Train)
}

// AddHeadFlags adds the flags; seeds are the default ones.
func AddHeadFlags(f *pflag.FlagSet, seeds ...uint64) *HeadFlags {
	h := &HeadFlags{flags: f}
	h.add(seeds)
	return h
}

func (h *HeadFlags) add(seeds []uint64) {
	f, o := h.flags, &h.options
	o.Seeds = seeds
	f.BoolVar(&h.paper, "paper", false, "the paper's head and settings; other flags still apply")
	Choice(f, &h.preset, "preset", "", strings.Join(slices.Sorted(maps.Keys(head.PaperPresets)), "|"), "the paper's settings for a data set; other flags still apply")
	Choice(f, &h.network, "network", "", "residual|paper", "kind of head")
	also(f, "network", "open", "residual")
	annotate(f.Lookup("preset"), ofFields, "PaperPresets")
	annotate(f.Lookup("network"), ofFields, "Head")
	addShare(f, &o.Validation, false, "val", "`SHARE` of the training images, or feature set, to validate on; 0: none")
	f.StringVar(&o.GroupBy, "group-by", "", "images whose paths match regular expression `PATTERN` alike stay together")
	f.StringVar(&h.conditioning, "conditioning", "", "`KIND` of conditioning of the features: auto|none|l2|standardise|pca|whiten, or l2+ one of the last three")
	annotate(f.Lookup("conditioning"), offered, "auto", "none", "l2", "standardise", "pca", "whiten", "l2+standardise", "l2+pca", "l2+whiten")
	annotate(f.Lookup("conditioning"), ofFields, "Conditioning")
	f.Float64Var(&o.Conditioning.Shrinkage, "shrinkage", 0, "shrinkage of whitening; 0: the one that fits the validation images")
	f.IntVar(&o.Conditioning.Dims, "pca-dims", 0, "principal axes that pca leaves; 0: all")
	f.IntVar(&h.shape.Layers, "layers", 0, "RBF layers")
	f.IntVar(&h.shape.Centroids, "centroids", 0, "centroids of each hidden layer")
	f.IntVar(&h.shape.Projection, "projection", 0, fmt.Sprintf("features that the layers read; 0: %d, or classes − 1 if that is more; for the paper's network the outputs of each hidden layer", head.LeastProjection))
	f.Float64Var(&h.shape.Norm, "norm", 0, "k ≥ 1 of the distance ‖x−c‖ₖᵏ; only the paper's network has others than 2")
	f.Float64Var(&h.shape.Recovery, "recovery", 0, "how fast depression recovers from layer to layer, ≥ 1")
	Choice(f, &h.depression, "depression", "paper", "paper|none", "depression mechanism")
	f.IntVar(&o.Train.Epochs, "epochs", 0, "passes over the training images (residual, unless given: at most 30,000 steps)")
	f.IntVar(&o.Train.Batch, "batch", 0, "images per training step; the first batch also initialises the paper's network")
	f.Float64Var(&o.Train.LR, "lr", 0, "learning rate of Adam")
	Choice(f, (*string)(&o.Train.Schedule), "schedule", "", "cosine|plateau", "how the learning rate falls")
	f.IntVar(&o.Train.Patience, "patience", 0, "epochs without improvement before plateau halves the learning rate")
	Choice(f, &h.balance, "balance", "none", "none|sample", "an epoch has each image once, or each class equally often")
	annotate(f.Lookup("balance"), ofFields, "Balance")
	usage := "train one head per seed"
	given := (*Seeds)(&o.Seeds)
	if given.String() == "0" { // which is taken for no default
		usage += " (default 0)"
	}
	f.Var(given, "seeds", usage)
	f.Var(given, "seed", "")
	f.Lookup("seed").Hidden = true
	ours, err := flagValues("residual", head.Residual{}, head.TrainOptions{})
	papers, paperErr := paperValues("")
	if err := errors.Join(err, paperErr); err != nil {
		panic(err) // defaults that are refused
	}
	h.setDefaults(ours)
	for name, value := range papers {
		if value != ours[name] {
			f.Lookup(name).Usage += " (paper: " + value + ")"
		}
	}
}

// rareHeadFlags are those of AddHeadFlags that few need.
var rareHeadFlags = []string{"network", "layers", "lr", "val", "shrinkage", "pca-dims", "centroids", "projection", "norm", "recovery", "depression", "batch", "schedule", "patience"}

// PaperByDefault makes the paper's settings the defaults.
func (h *HeadFlags) PaperByDefault() *HeadFlags {
	settings, err := paperValues("")
	if err != nil {
		panic(err)
	}
	h.setDefaults(settings)
	h.flags.Lookup("paper").DefValue = "true"
	return h
}

// setDefaults gives flags the defaults of settings.
func (h *HeadFlags) setDefaults(settings map[string]string) {
	for name, value := range settings {
		flag := h.flags.Lookup(name)
		flag.DefValue = value
		if err := flag.Value.Set(value); err != nil {
			panic(err)
		}
	}
}

// settle gives the flags that were not given the values of settings.
func (h *HeadFlags) settle(settings map[string]string) error {
	for name, value := range settings {
		if h.flags.Changed(name) {
			continue
		}
		if err := h.flags.Lookup(name).Value.Set(value); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return nil
}

// Options returns the options that the flags stand for. Call it after Parse.
func (h *HeadFlags) Options() (pipeline.TrainOptions, error) {
	if h.preset != "" || h.paper {
		settings, err := paperValues(h.preset)
		if err != nil {
			return h.options, err
		}
		if err := h.settle(settings); err != nil {
			return h.options, err
		}
	}
	o := h.options
	if err := h.condition(&o.Conditioning); err != nil {
		return o, err
	}
	o.Train.Balance = h.balance == "sample"
	if h.flags.Changed("epochs") {
		o.Train.MostSteps = -1
	}
	var err error
	if o.Head, err = h.head(o.Train); err != nil {
		return o, err
	}
	if _, err := o.Train.WithDefaults(); err != nil {
		return o, Usagef("%w", err)
	}
	return o, nil
}

// condition sets what --conditioning says.
func (h *HeadFlags) condition(o *head.ConditioningOptions) error {
	kind, l2 := strings.CutPrefix(h.conditioning, "l2+")
	if h.conditioning == "l2" {
		kind, l2 = "none", true
	}
	if kind == "" {
		return Usagef("--conditioning %q: nothing follows l2+", h.conditioning)
	}
	o.Kind, o.L2 = head.ConditioningKind(kind), l2
	if _, err := o.WithDefaults(); err != nil {
		return Usagef("--conditioning: %w", err)
	}
	switch whitens := o.Kind == head.Whiten || o.Kind == head.Auto; {
	case o.Shrinkage != 0 && !whitens:
		return Usagef("--shrinkage: --conditioning %s does not whiten", h.conditioning)
	case o.Dims != 0 && o.Kind != head.PCA:
		return Usagef("--pca-dims goes with --conditioning pca, not with %s", h.conditioning)
	}
	return nil
}

// head returns the network that the flags describe.
func (h *HeadFlags) head(o head.TrainOptions) (head.Config, error) {
	// A zero would mean the default further on, not what was asked for.
	for _, flag := range []struct {
		name  string
		value float64
	}{
		{"layers", float64(h.shape.Layers)}, {"centroids", float64(h.shape.Centroids)}, {"norm", h.shape.Norm}, {"recovery", h.shape.Recovery},
		{"epochs", float64(o.Epochs)}, {"batch", float64(o.Batch)}, {"lr", o.LR}, {"patience", float64(o.Patience)},
	} {
		if !(flag.value > 0) {
			return nil, Usagef("--%s %g: it must be positive", flag.name, flag.value)
		}
	}
	var c head.Config
	switch shape := h.shape; {
	case h.network == "paper":
		c = head.Paper{
			Layers: shape.Layers, Centroids: shape.Centroids, Projection: shape.Projection,
			Norm: shape.Norm, Recovery: shape.Recovery, NoDepression: h.depression == "none",
		}
	case shape.Norm != 2:
		return nil, Usagef("--norm %g: only --network paper has other norms than 2", shape.Norm)
	case h.depression == "none":
		return nil, Usagef("--depression none: only --network paper can do without it")
	default:
		c = head.Residual{Layers: shape.Layers, Centroids: shape.Centroids, Projection: shape.Projection, Recovery: shape.Recovery}
	}
	if _, err := c.WithDefaults(); err != nil {
		return nil, Usagef("%w", err)
	}
	return c, nil
}
