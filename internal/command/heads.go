package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// HeadFlags are the flags of programs that train heads.
type HeadFlags struct {
	flags                         *pflag.FlagSet
	options                       pipeline.TrainOptions // with what the flags say that hold its fields
	shape                         head.Settings
	preset, network, conditioning string
	paper                         bool
}

// networkFlags are those that take sets.
var networkFlags = []string{"network", "conditioning", "schedule", "layers", "centroids", "projection", "norm", "recovery", "depression", "epochs", "batch", "lr", "patience", "balance"}

// take gives the flags of networks the settings of one; zero fields have the network's
// defaults.
func (h *HeadFlags) take(network string, c head.Config, o head.TrainOptions) error {
	c, err := c.WithDefaults()
	if err != nil {
		return err
	}
	if o, err = c.TrainOptions(o); err != nil {
		return err
	}
	o.MostSteps = 0 // the default of whatever network it will be
	h.network, h.conditioning, h.shape, h.options.Train = network, string(c.Conditioning().Kind), c.Settings(), o
	return nil
}

// takePaper takes the paper's settings for one of its experiments, "" being the usual ones.
func (h *HeadFlags) takePaper(preset string) error {
	p := head.PaperPresets[preset]
	return h.take("paper", p.Paper, p.Train)
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
	if err := h.take("residual", head.Residual{}, head.TrainOptions{}); err != nil {
		panic(err)
	}
	f.BoolVar(&h.paper, "paper", false, "the paper's head and settings; other flags still apply")
	Choice(f, &h.preset, "preset", "", strings.Join(slices.Sorted(maps.Keys(head.PaperPresets)), "|"), "the paper's settings for a data set; other flags still apply")
	Choice(f, &h.network, "network", h.network, "residual|paper", "kind of head")
	also(f, "network", "open", "residual")
	annotate(f.Lookup("preset"), ofFields, "PaperPresets")
	annotate(f.Lookup("network"), ofFields, "Head")
	addShare(f, &o.Validation, false, "val", "`SHARE` of the training images, or feature set, to validate on; 0: none")
	f.StringVar(&o.GroupBy, "group-by", "", "images whose paths match regular expression `PATTERN` alike stay together")
	f.StringVar(&h.conditioning, "conditioning", h.conditioning, "`KIND` of conditioning of the features: auto|none|l2|standardise|pca|whiten, or l2+ one of the last three")
	annotate(f.Lookup("conditioning"), offered, "auto", "none", "l2", "standardise", "pca", "whiten", "l2+standardise", "l2+pca", "l2+whiten")
	annotate(f.Lookup("conditioning"), ofFields, "Conditioning")
	f.Float64Var(&o.Conditioning.Shrinkage, "shrinkage", 0, "shrinkage of whitening; 0: the one that fits the validation images")
	f.IntVar(&o.Conditioning.Dims, "pca-dims", 0, "principal axes that pca leaves; 0: all")
	f.IntVar(&h.shape.Layers, "layers", h.shape.Layers, "RBF layers")
	f.IntVar(&h.shape.Centroids, "centroids", h.shape.Centroids, "centroids of each hidden layer")
	f.IntVar(&h.shape.Projection, "projection", h.shape.Projection, fmt.Sprintf("features that the layers read; 0: %d, or classes − 1 if that is more; for the paper's network the outputs of each hidden layer", head.LeastProjection))
	f.Float64Var(&h.shape.Norm, "norm", h.shape.Norm, "k ≥ 1 of the distance ‖x−c‖ₖᵏ; only the paper's network has others than 2")
	f.Float64Var(&h.shape.Recovery, "recovery", h.shape.Recovery, "how fast depression recovers from layer to layer, ≥ 1")
	eitherOr(f, &h.shape.NoDepression, "depression", "paper|none", "depression mechanism")
	f.IntVar(&o.Train.Epochs, "epochs", o.Train.Epochs, "passes over the training images (residual, unless given: at most 30,000 steps)")
	f.IntVar(&o.Train.Batch, "batch", o.Train.Batch, "images per training step; the first batch also initialises the paper's network")
	f.Float64Var(&o.Train.LR, "lr", o.Train.LR, "learning rate of Adam")
	Choice(f, (*string)(&o.Train.Schedule), "schedule", string(o.Train.Schedule), "cosine|plateau", "how the learning rate falls")
	f.IntVar(&o.Train.Patience, "patience", o.Train.Patience, "epochs without improvement before plateau halves the learning rate")
	eitherOr(f, &o.Train.Balance, "balance", "none|sample", "an epoch has each image once, or each class equally often")
	usage := "train one head per seed"
	given := (*Seeds)(&o.Seeds)
	if given.String() == "0" { // which is taken for no default
		usage += " (default 0)"
	}
	f.Var(given, "seeds", usage)
	f.Var(given, "seed", "")
	f.Lookup("seed").Hidden = true
	err := h.takePaper("")
	for _, name := range networkFlags {
		if flag := f.Lookup(name); flag.Value.String() != flag.DefValue {
			flag.Usage += " (paper: " + flag.Value.String() + ")"
		}
	}
	if err = errors.Join(err, h.take("residual", head.Residual{}, head.TrainOptions{})); err != nil {
		panic(err) // defaults that are refused
	}
}

// rareHeadFlags are those of AddHeadFlags that few need.
var rareHeadFlags = []string{"network", "layers", "lr", "val", "shrinkage", "pca-dims", "centroids", "projection", "norm", "recovery", "depression", "batch", "schedule", "patience"}

// PaperByDefault makes the paper's settings the defaults.
func (h *HeadFlags) PaperByDefault() *HeadFlags {
	if err := h.takePaper(""); err != nil {
		panic(err)
	}
	for _, name := range networkFlags {
		flag := h.flags.Lookup(name)
		flag.DefValue = flag.Value.String()
	}
	h.flags.Lookup("paper").DefValue = "true"
	return h
}

// settle takes the paper's settings for those flags that were not given.
func (h *HeadFlags) settle() error {
	given := map[string]string{}
	for _, name := range networkFlags {
		if flag := h.flags.Lookup(name); flag.Changed {
			given[name] = flag.Value.String()
		}
	}
	err := h.takePaper(h.preset)
	for name, value := range given {
		err = errors.Join(err, h.flags.Set(name, value))
	}
	return err
}

// Options returns the options that the flags stand for. Call it after Parse.
func (h *HeadFlags) Options() (pipeline.TrainOptions, error) {
	if h.preset != "" || h.paper {
		if err := h.settle(); err != nil {
			return h.options, err
		}
	}
	o := h.options
	if err := h.condition(&o.Conditioning); err != nil {
		return o, err
	}
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
			Norm: shape.Norm, Recovery: shape.Recovery, NoDepression: shape.NoDepression,
		}
	case shape.Norm != 2:
		return nil, Usagef("--norm %g: only --network paper has other norms than 2", shape.Norm)
	case shape.NoDepression:
		return nil, Usagef("--depression none: only --network paper can do without it")
	default:
		c = head.Residual{Layers: shape.Layers, Centroids: shape.Centroids, Projection: shape.Projection, Recovery: shape.Recovery}
	}
	if _, err := c.WithDefaults(); err != nil {
		return nil, Usagef("%w", err)
	}
	return c, nil
}
