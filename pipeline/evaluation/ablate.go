package evaluation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// AblateOptions says which heads to compare on what. A zero field takes its
// default.
type AblateOptions struct {
	// Train is the training features and how heads are trained, ReLU networks
	// too; Seeds are those to repeat with, nil means DefaultSeeds. Head is what
	// steps are taken back from, and Head.Layers counts for these alone; nil means
	// head.Paper{}. Calibration is ignored.
	Train training.Options
	ID    string // feature set of in-distribution test images
	OOD   []OODSet

	// Depths are the numbers of layers at which an MLRBFN is compared with a ReLU
	// network; nil means DefaultDepths. Steps are those of Steps to take back; nil
	// means all. Either may be empty.
	Depths []int
	Steps  []string
	Hidden int // outputs of the ReLU networks' hidden layers; 0 means head.DefaultHidden

	Out string // folder of the report

	// Draw, where set, draws results: by depth, and if steps are not nil those of the
	// whole head, the first, and of heads that lack a step.
	Draw func(results []metrics.Measurement, depth bool, steps []string) error

	// Warn, where set, is told what is odd about the training features, and of
	// heads whose training diverged, which have no results.
	Warn func(string)

	// Progress, where set, is told which head is being trained, and how many of
	// the epochs of all heads are done. It is called from several goroutines.
	Progress func(head string, done, total int)
}

// DefaultDepths are the depths that an ablation compares.
func DefaultDepths() []int { return []int{1, 2, 3, 4} }

func (o AblateOptions) withDefaults() AblateOptions {
	if o.Depths == nil {
		o.Depths = DefaultDepths()
	}
	if o.Steps == nil {
		o.Steps = Steps
	}
	if o.Train.Head == nil {
		o.Train.Head = head.Paper{}
	}
	return o
}

// Steps are the names of heads that lack a step of the paper's or, the last two,
// differ in one; "earlier" lacks depression and projections, as the architecture
// that the paper starts from. Package head says how each is read.
var Steps = []string{"no-depression", "no-ratio", "no-projections", "earlier", "sum-loss", "recovery-1.05"}

// paperSteps makes the heads of Steps of the paper's network.
var paperSteps = map[string]func(*head.Paper){
	"no-depression":  func(c *head.Paper) { c.NoDepression = true },
	"no-ratio":       func(c *head.Paper) { c.NoRatio = true },
	"no-projections": func(c *head.Paper) { c.NoProjections = true },
	"earlier":        func(c *head.Paper) { c.NoDepression, c.NoProjections = true, true },
	"sum-loss":       func(c *head.Paper) { c.SumLoss = true },
	"recovery-1.05":  func(c *head.Paper) { c.Recovery = 1.05 },
}

// residualSteps makes those that the residual network can do without.
var residualSteps = map[string]func(*head.Residual){
	"sum-loss":      func(c *head.Residual) { c.SumLoss = true },
	"recovery-1.05": func(c *head.Residual) { c.Recovery = 1.05 },
}

// takeBack returns a network without a step.
func takeBack(c head.Config, step string) (head.Config, error) {
	switch c := c.(type) {
	case head.Paper:
		paperSteps[step](&c)
		return c, nil
	case head.Residual:
		if change, ok := residualSteps[step]; ok {
			change(&c)
			return c, nil
		}
	}
	return nil, fmt.Errorf("%s: only the paper's network has this step", step)
}

// withLayers returns a network of another depth.
func withLayers(c head.Config, layers int) head.Config {
	switch c := c.(type) {
	case head.Paper:
		c.Layers = layers
		return c
	case head.Residual:
		c.Layers = layers
		return c
	}
	panic(fmt.Sprintf("evaluation: a network of type %T has no depth", c))
}

// Check reports what is wrong with the depths, the steps and the names of the
// sets.
func (o AblateOptions) Check() error {
	o = o.withDefaults()
	if len(o.Depths)+len(o.Steps) == 0 {
		return options.Errorf("Depths", "neither depths nor steps are named")
	}
	for i, d := range o.Depths {
		if d < 1 || d > 100 || slices.Contains(o.Depths[:i], d) {
			return options.Errorf("Depths", "depth %d: each once, from 1 to 100 layers", d)
		}
	}
	for i, s := range o.Steps {
		if !slices.Contains(Steps, s) || slices.Contains(o.Steps[:i], s) {
			return options.Errorf("Steps", "step %q: each once, of %s", s, strings.Join(Steps, ", "))
		}
	}
	return Options{OOD: o.OOD}.Check()
}

// mlrbfnName and reluName name the heads of so many layers.
func mlrbfnName(layers int) string { return fmt.Sprintf("mlrbfn-%d", layers) }
func reluName(layers int) string   { return fmt.Sprintf("relu-%d", layers) }

// contenders lists the heads to compare, each once, from options whose defaults
// are filled in.
func (o AblateOptions) contenders(train training.Options) ([]contender, error) {
	var all []contender
	add := func(name string, change func(*contender)) {
		c := contender{name: name, head: train.Head, train: train.Train}
		change(&c)
		all = append(all, c)
	}
	for _, layers := range o.Depths {
		add(mlrbfnName(layers), func(c *contender) { c.head = withLayers(c.head, layers) })
	}
	for _, layers := range o.Depths {
		add(reluName(layers), func(c *contender) { c.softmax = &head.MLPConfig{Layers: layers, Hidden: o.Hidden} })
	}
	if layers := train.Head.Settings().Layers; len(o.Steps) > 0 && !slices.Contains(o.Depths, layers) {
		add(mlrbfnName(layers), func(*contender) {})
	}
	for _, name := range o.Steps {
		changed, err := takeBack(train.Head, name)
		if err != nil {
			return nil, err
		}
		add(name, func(c *contender) { c.head = changed })
	}
	return all, nil
}

// Ablate compares MLRBFNs with ReLU networks of as many layers (paper, figure
// 6) and with MLRBFNs that lack one of the paper's steps. It trains each, once
// per seed, and writes the results of all as Evaluate does to ablation.csv
// under opts.Out, with the methods mlrbfn-1 (max log φ of one layer), relu-1
// (MSP of one layer), …, and the names of the steps. It removes the pictures
// figures/depth and figures/steps, PNG and SVG, of an earlier run.
func Ablate(ctx context.Context, opts AblateOptions) ([]metrics.Measurement, error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	e, err := openEvaluation(ctx, Options{Train: opts.Train, ID: opts.ID, OOD: opts.OOD, Warn: opts.Warn})
	if err != nil {
		return nil, err
	}
	defer e.close()
	file := filepath.Join(opts.Out, "ablation.csv")
	if err := errors.Join(detector.MkdirFor(file), disk.CheckWritable(file), clearAblation(opts.Out, file)); err != nil {
		return nil, err
	}
	var results []metrics.Measurement
	contenders, err := opts.contenders(e.train.Options)
	if err != nil {
		return nil, err
	}
	var done atomic.Int64
	total := len(contenders) * len(e.train.Options.Seeds) * e.train.Options.Train.Epochs
	for _, c := range contenders {
		c.progress = func(head.Epoch) {
			if n := int(done.Add(1)); opts.Progress != nil {
				opts.Progress(c.name, n, total)
			}
		}
		rows, err := e.contend(ctx, c)
		switch {
		case errors.Is(err, head.ErrDiverged):
			if opts.Warn != nil {
				opts.Warn(fmt.Sprintf("%s is left out: %s", c.name, options.Text(err)))
			}
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		results = append(results, rows...)
	}
	if err := metrics.WriteResults(file, results); err != nil {
		return nil, err
	}
	if opts.Draw == nil {
		return results, nil
	}
	var steps []string
	if len(opts.Steps) > 0 {
		steps = append([]string{mlrbfnName(e.train.Options.Head.Settings().Layers)}, opts.Steps...)
	}
	return results, opts.Draw(results, len(opts.Depths) > 1, steps)
}

// clearAblation removes what an earlier run has left in dir, and nothing else.
func clearAblation(dir, results string) error {
	if err := metrics.RemoveResults(results); err != nil {
		return err
	}
	for _, name := range []string{"depth.png", "depth.svg", "steps.png", "steps.svg"} {
		if err := os.Remove(filepath.Join(dir, "figures", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("report folder: %w", err)
		}
	}
	return nil
}
