package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	_ "github.com/mlrbfn/mlrbfn/internal/command/figures" // draws the charts of pages
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/posthoc"
	"github.com/mlrbfn/mlrbfn/report"
)

// evaluating is the command evaluate.
type evaluating struct {
	*command
	opts                   pipeline.EvaluateOptions
	sets                   *setFlags
	heads                  *HeadFlags
	file, methods, network string
	leaderboard            string
	layers                 int
	load                   func(string) (*pipeline.Detector, error)
	verify, assessAlone    bool // assessAlone: nothing is compared, the detector is assessed
}

var _ = declare("evaluate", 40, "--train FEATURES --id FEATURES --near NAME=FEATURES… --out REPORT [flags]", "Compare methods of OOD detection",
	`Trains heads, fits scores, and measures on test sets how well each tells OOD images from in-distribution ones: AUROC, AUPR, FPR@95 and accuracy, in REPORT/report.html and results.csv. With --detector it also says how often that detector is right at its own threshold; then OOD sets are optional.

Methods: `+detector.JoinedScore+` (what train judges by), `+detector.HeadScore+` (the head's own score), `+strings.Join(posthoc.Names(), " ")+`, and ensemble or ensemble(A,B,…).`, addEvaluate)

func addEvaluate(c *command) {
	c.readsURLs = []string{"train", "id", "val", "near", "far"}
	e := &evaluating{command: c, heads: &HeadFlags{flags: c.FlagSet}, opts: pipeline.EvaluateOptions{Memory: posthoc.DefaultMemory}}
	c.sets(&e.opts, &e.heads.options, &e.heads.shape)
	c.section("input")
	c.StringArrayVar(&e.heads.options.Features, "train", nil, "`FEATURES` to train on (repeat for several)")
	c.StringVar(&e.opts.ID, "id", "", "`FEATURES` of in-distribution test images")
	e.sets = addSetFlags(c)
	c.StringVar(&e.file, "detector", "", "trained `DETECTOR` to use for its scores, instead of training")
	c.means("detector", "Detector")
	e.load = addPublicKeyFlag(c.FlagSet)
	c.rare("public-key")
	c.section("what is compared")
	c.StringVar(&e.methods, "methods", "all", "`METHODS` with commas between them; all leaves out what cannot be fitted")
	c.means("methods", "Methods")
	Choice(c.FlagSet, &e.network, "head", "linear", "linear|mlp|backbone|mlrbfn", "whose logits post-hoc scores read; the backbone's are logits.npy of the sets")
	c.means("head", "Head")
	c.IntVar(&e.layers, "mlp-layers", head.DefaultLayers, "linear layers of --head mlp, 1 to 4, with ReLU between them; 1: the paper's linear head")
	c.StringVar(&e.leaderboard, "leaderboard", "", "CSV `FILE` of OpenOOD's leaderboard to compare with")
	c.rare("mlp-layers", "leaderboard")
	c.section("head and training")
	e.heads.add(evaluation.DefaultSeeds())
	c.rare(rareHeadFlags...)
	c.rare("preset", "balance", "conditioning", "group-by")
	c.section("output")
	c.StringVar(&e.opts.Out, "out", "", "folder `REPORT` to write to")
	c.IntVar(&e.opts.Bootstrap, "bootstrap", metrics.DefaultResamples, "resamples of the test images for 95% confidence intervals; 0: none")
	c.StringVar(&e.opts.Against, "against", "", "folder `REPORT` of an earlier evaluation on these images, to compare")
	c.StringArrayVar(&e.opts.ImageRoots, "images", nil, "`FOLDER` that images of the report may come from (repeat); default: those that the feature sets record")
	c.means("images", "Images", "Sources", "Roots")
	c.rare("images")
	c.addJSON("print all results as one JSON object")
	c.addQuiet("show no progress")
	c.section("running")
	c.Var((*Bytes)(&e.opts.Memory), "memory", "memory for scores, about; where it is given, for features too")
	c.addCacheFlag()
	c.BoolVar(&e.verify, "verify", false, "first compare the feature sets with their checksums")
	c.rare("verify")
	c.run = e.run
}

// check reads and checks the flags.
func (e *evaluating) check() (err error) {
	if e.opts.OOD, err = e.sets.sets(); err != nil {
		return err
	}
	e.assessAlone = e.file != "" && (len(e.opts.OOD) == 0 || len(e.heads.options.Features) == 0 && e.opts.Out == "")
	need := []string{"train", "id", "out"}
	if e.assessAlone {
		need = []string{"id"}
	}
	if err := needed(e.FlagSet, need); err != nil {
		return err
	}
	if len(e.opts.OOD) == 0 && e.file == "" {
		return Usagef("name at least one set of OOD images with --near or --far, or a --detector to judge the test images by")
	}
	switch {
	case e.network != "mlp" && e.Changed("mlp-layers"):
		return Usagef("--mlp-layers goes with --head mlp")
	case e.network == "mlp" && (e.layers < 1 || e.layers > 4):
		return Usagef("--mlp-layers %d: it is 1 to 4", e.layers)
	case e.network == "mlp":
		e.opts.Softmax = &head.MLPConfig{Layers: e.layers}
	case e.network != "linear":
		e.opts.Head = e.network
	}
	if e.methods != "all" {
		e.opts.Methods = detector.SplitScores(e.methods)
	}
	if !e.assessAlone {
		if err := e.opts.Check(); err != nil {
			return e.usage(err)
		}
	}
	if e.opts.Train, err = e.heads.Options(); err != nil {
		return err
	}
	if e.opts.Bootstrap < 0 {
		return Usagef("--bootstrap %d: it is a number of resamples", e.opts.Bootstrap)
	}
	e.opts.Bootstrap = cmp.Or(e.opts.Bootstrap, -1)
	if e.Changed("memory") {
		e.opts.Train.Memory = e.opts.Memory
	}
	return nil
}

// verifySets compares the feature sets with their checksums.
func (e *evaluating) verifySets(ctx context.Context) error {
	all := append(slices.Clone(e.opts.Train.Features), e.opts.ID)
	for _, set := range e.opts.OOD {
		all = append(all, set.Features)
	}
	if v := e.opts.Train.Validation.Features; v != "" {
		all = append(all, v)
	}
	return pipeline.Verify(ctx, all...)
}

func (e *evaluating) run(ctx context.Context, s Streams) error {
	err := e.check()
	if err == nil && e.verify {
		err = e.verifySets(ctx)
	}
	if err == nil && e.file != "" {
		e.opts.Detector, err = e.load(e.file)
	}
	result := evaluationJSON{Out: e.opts.Out, Results: []resultJSON{}, Intervals: []intervalJSON{}, Differences: []evaluation.Difference{}, Findings: []string{}}
	text := ""
	if err == nil && !e.assessAlone {
		text, err = e.compare(ctx, s, &result)
	}
	if err == nil && e.opts.Detector != nil {
		var a *labelCheck
		if a, err = assess(ctx, e.opts); err == nil {
			result.assess(a)
			text += a.String()
		}
	}
	if err != nil {
		return err
	}
	return e.print(s, result, text)
}

// compare evaluates the methods, fills result and returns what is printed for people.
func (e *evaluating) compare(ctx context.Context, s Streams, result *evaluationJSON) (text string, err error) {
	opts := e.opts
	var published []report.Line
	if e.leaderboard != "" {
		board, err := report.ReadLeaderboard(e.leaderboard)
		if err != nil {
			return "", err
		}
		published = report.Benchmarks(nil, board)
	}
	opts.Report = func(e *evaluation.Evaluation) error {
		result.add(e)
		return report.Write(opts.Out, e, published...)
	}
	opts.Commands, opts.Facts = []string{e.line()}, madeBy()
	progress := e.progress(s, "")
	opts.Progress = progress.Phase
	opts.Warn = func(text string) { fmt.Fprintf(s.Err, "evaluate: warning: %s\n", e.adviseText(text)) }
	opts.Leaked = func(leaks []evaluation.Leak) { printLeaks(s.Err, leaks) }
	var reliability *evaluation.Reliability
	opts.Reliable = func(r evaluation.Reliability) {
		reliability = &r
		result.reliable(r)
	}
	results, err := pipeline.Evaluate(ctx, opts)
	progress.Close()
	if err != nil {
		return "", err
	}
	text = resultsText(results, filepath.Join(opts.Out, "report.html"))
	for _, f := range result.Findings {
		text += Printable(f) + "\n"
	}
	if reliability != nil {
		text += reliabilityText(*reliability)
	}
	return text, nil
}

// printLeaks prints which images are in two sets.
func printLeaks(w io.Writer, leaks []evaluation.Leak) {
	fmt.Fprintln(w, "evaluate: warning: sets share images (identical or nearly identical features), so that metrics are wrong, most often too good:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range leaks {
		fmt.Fprintf(t, "  %s: %d of %d\t%s: %d of %d\n", Printable(l.A), l.RowsA, l.OfA, Printable(l.B), l.RowsB, l.OfB)
	}
	t.Flush()
}

// reliabilityText says how often confidences are right: the reliability diagram as a
// table.
func reliabilityText(r evaluation.Reliability) string {
	w := new(strings.Builder)
	fmt.Fprintf(w, "Confidence of the class: %s\n", r)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "confidence\tright\timages\t")
	for _, b := range r.Bins {
		if b.N > 0 {
			fmt.Fprintf(t, "%.3f\t%.3f\t%d\t\n", b.Confidence, b.Right, b.N)
		}
	}
	t.Flush()
	return w.String()
}

// mostMethods bounds the rows of resultsText, so that they and those of reliabilityText
// fit a screen.
const mostMethods = 20

// resultsText lists the methods with their means over the near and the far sets, and
// names the file with the rest.
func resultsText(results []metrics.Measurement, rest string) string {
	w := new(strings.Builder)
	type key struct{ method, group string }
	means, deviations := map[key]metrics.Measurement{}, map[key]metrics.Measurement{}
	var methods []string
	var groups []string
	seeds := map[string]bool{}
	for _, r := range results {
		if r.Dataset != "mean" {
			continue
		}
		if r.Seed != "mean" && r.Seed != "std" {
			seeds[r.Seed] = true
		}
		k := key{r.Method, r.Group}
		switch r.Seed {
		case "mean":
			means[k] = r
			if !slices.Contains(methods, r.Method) {
				methods = append(methods, r.Method)
			}
			if !slices.Contains(groups, r.Group) {
				groups = append(groups, r.Group)
			}
		case "std":
			deviations[k] = r
		}
	}
	cell := func(mean, std float64) string {
		if math.IsNaN(mean) {
			return "–"
		}
		if len(seeds) < 2 {
			return fmt.Sprintf("%.2f", 100*mean)
		}
		return fmt.Sprintf("%.2f ± %.2f", 100*mean, 100*std)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "%\t")
	for _, group := range groups {
		fmt.Fprintf(t, "AUROC %s\tFPR@95 %s\t", group, group)
	}
	fmt.Fprintln(t, "accuracy\t")
	for _, method := range methods[:min(len(methods), mostMethods)] {
		fmt.Fprintf(t, "%s\t", Printable(method))
		for _, group := range groups {
			mean, std := means[key{method, group}], deviations[key{method, group}]
			fmt.Fprintf(t, "%s\t%s\t", cell(mean.AUROC, std.AUROC), cell(mean.FPR95, std.FPR95))
		}
		k := key{method, groups[0]}
		fmt.Fprintf(t, "%s\t\n", cell(means[k].IDAcc, deviations[k].IDAcc))
	}
	t.Flush()
	andMore(w, len(methods)-mostMethods, "method")
	if len(seeds) > 1 {
		fmt.Fprint(w, "Means ± standard deviations over the seeds. ")
	}
	fmt.Fprintf(w, "Each set, AUPR and intervals: %s\n", rest)
	return w.String()
}

// assess says how often the detector is right on the test sets at its own threshold.
func assess(ctx context.Context, opts pipeline.EvaluateOptions) (*labelCheck, error) {
	a := newLabelCheck(opts.Detector.Classes)
	add := func(dir string, label func(set *features.Set, row int) string) (err error) {
		table, err := features.OpenTable(ctx, nil, dir) // which names a row that is absurd
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, table.Close()) }()
		set := table.Sets[0]
		if err := set.With(opts.Detector.Source.Layers); err != nil {
			return err
		}
		if set.D != opts.Detector.Dim() {
			return fmt.Errorf("features %s have %d columns and the detector reads %d", dir, set.D, opts.Detector.Dim())
		}
		if !features.Comparable(set.Space(), opts.Detector.Source.Space()) {
			return fmt.Errorf("features %s and the detector: %w", dir, features.ErrFingerprint)
		}
		const block = 4096
		for at := 0; at < set.N; at += block {
			verdicts, err := opts.Detector.Verdicts(ctx, set.Block(at, min(at+block, set.N)))
			if err != nil {
				return err
			}
			for i, v := range verdicts {
				if name := label(set, at+i); name != "" {
					a.add(name, v)
				}
			}
		}
		return nil
	}
	err := add(opts.ID, func(set *features.Set, row int) string {
		if y := set.Labels()[row]; y >= 0 {
			return set.Classes[y]
		}
		return ""
	})
	for _, set := range opts.OOD {
		if err == nil {
			err = add(set.Features, func(*features.Set, int) string { return set.Group + "-OOD " + set.Name })
		}
	}
	return a, err
}

// Names of the JSON object that evaluate prints. What was not measured is null.
type (
	evaluationJSON struct {
		Out         string                  `json:"out,omitempty"`
		Results     []resultJSON            `json:"results"` // the lines of results.csv
		Intervals   []intervalJSON          `json:"intervals"`
		Differences []evaluation.Difference `json:"differences"` // the lines of differences.csv
		Own         string                  `json:"own,omitempty"`
		Findings    []string                `json:"findings"`
		Confidence  *confidenceJSON         `json:"confidence"`
		Detector    []labelJSON             `json:"detector,omitempty"` // at its own threshold, by label
	}
	resultJSON struct {
		Method  string `json:"method"`
		Seed    string `json:"seed"`
		Group   string `json:"group"`
		Dataset string `json:"dataset"`
		NID     int    `json:"n_id"`
		NOOD    int    `json:"n_ood"`
		metricsJSON[*float64]
		IDAcc *float64 `json:"id_acc"`
	}
	intervalJSON struct {
		Method  string `json:"method"`
		Group   string `json:"group"`
		Dataset string `json:"dataset"`
		metricsJSON[[2]float64]
	}
	metricsJSON[T any] struct {
		AUROC   T `json:"auroc"`
		AUPROut T `json:"aupr_out"`
		AUPRIn  T `json:"aupr_in"`
		FPR95   T `json:"fpr95"`
		FPR95ID T `json:"fpr95_id"`
	}
	confidenceJSON struct {
		Error  float64                  `json:"expected_calibration_error"`
		Chance float64                  `json:"chance"`
		Images int                      `json:"images"`
		Seeds  int                      `json:"seeds"`
		Bins   []metrics.ReliabilityBin `json:"bins"`
	}
	labelJSON struct {
		Label   string `json:"label"`
		Known   bool   `json:"known"` // to the detector
		Images  int    `json:"images"`
		Right   int    `json:"right"`
		Flagged int    `json:"flagged"`
	}
)

// measured is null for what was not measured.
func measured(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

// add adds what the methods have.
func (j *evaluationJSON) add(e *evaluation.Evaluation) {
	j.Own, j.Findings = e.Own, append([]string{}, e.Findings()...)
	for _, r := range e.Results {
		j.Results = append(j.Results, resultJSON{r.Method, r.Seed, r.Group, r.Dataset, r.NID, r.NOOD, metricsJSON[*float64]{
			measured(r.AUROC), measured(r.AUPROut), measured(r.AUPRIn), measured(r.FPR95), measured(r.FPR95ID)}, measured(r.IDAcc)})
	}
	pair := func(i metrics.Interval) [2]float64 { return [2]float64{i.Low, i.High} }
	for _, i := range e.Intervals {
		j.Intervals = append(j.Intervals, intervalJSON{i.Method, i.Group, i.Dataset, metricsJSON[[2]float64]{
			pair(i.AUROC), pair(i.AUPROut), pair(i.AUPRIn), pair(i.FPR95), pair(i.FPR95ID)}})
	}
	j.Differences = append(j.Differences, e.Differences...)
}

// reliable adds how often confidences are right.
func (j *evaluationJSON) reliable(r evaluation.Reliability) {
	j.Confidence = &confidenceJSON{Error: r.Error, Chance: r.Chance, Images: r.Images, Seeds: r.Seeds, Bins: []metrics.ReliabilityBin{}}
	for _, b := range r.Bins {
		if b.N > 0 {
			j.Confidence.Bins = append(j.Confidence.Bins, b)
		}
	}
}

// assess adds the verdicts of the detector.
func (j *evaluationJSON) assess(a *labelCheck) {
	for name, l := range a.labels {
		j.Detector = append(j.Detector, labelJSON{name, slices.Contains(a.classes, name), l.images, l.right, l.flagged})
	}
	slices.SortFunc(j.Detector, func(a, b labelJSON) int {
		if a.Label < b.Label {
			return -1
		}
		return 1
	})
}

// setFlags are the flags of commands that compare methods on sets of OOD images.
type setFlags struct{ near, far *[]string }

// addSetFlags adds the flags.
func addSetFlags(c *command) *setFlags {
	s := &setFlags{
		near: c.StringArray("near", nil, "`NAME=FEATURES` of near-OOD images: unknown classes like the known ones (repeat)"),
		far:  c.StringArray("far", nil, "`NAME=FEATURES` of far-OOD images: nothing like the known classes (repeat)"),
	}
	c.means("near", "OOD")
	return s
}

// sets returns the sets that the flags name. Call it after Parse.
func (s *setFlags) sets() ([]pipeline.OODSet, error) {
	var all []pipeline.OODSet
	for _, group := range []struct {
		name string
		sets []string
	}{{pipeline.Near, *s.near}, {pipeline.Far, *s.far}} {
		for _, set := range group.sets {
			name, dir, ok := strings.Cut(set, "=")
			if !ok || name == "" || dir == "" {
				return nil, Usagef("--%s %s: it is NAME=FEATURES", group.name, set)
			}
			all = append(all, pipeline.OODSet{Group: group.name, Name: name, Features: dir})
		}
	}
	return all, nil
}
