package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// line is one measurement in the file of -results, as JSON.
type line struct {
	Step                           string
	Rows, Features, Classes        int
	Queries, Others                int
	Cores                          int
	Kernels                        string
	Seconds, CPU                   float64
	MiB, MiBWithFiles, MiBFromDisk int64
}

// record adds a line to the file of -results, so that a run that is cut off leaves what
// was measured.
func (b *thousand) record(e ended) error {
	if b.results == "" {
		return nil
	}
	text, err := json.Marshal(line{
		e.name, b.rows, b.dim, b.classes, b.queries, b.others, runtime.GOMAXPROCS(0), kernels.Set(),
		e.took.wall.Seconds(), e.took.cpu.Seconds(), e.private >> 20, e.all >> 20, e.disk >> 20,
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(b.results, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}

// earlier reads the file of -results.
func (b *thousand) earlier() (lines []line, err error) {
	text, err := os.ReadFile(b.results)
	if errors.Is(err, os.ErrNotExist) || b.results == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for one := range strings.Lines(string(text)) {
		var l line
		if err := json.Unmarshal([]byte(one), &l); err != nil {
			return nil, fmt.Errorf("%s: %w", b.results, err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// has reports whether a step was measured with these sizes.
func (b *thousand) has(lines []line, step string) bool {
	return slices.ContainsFunc(lines, func(l line) bool {
		return l.Step == step && l.Rows == b.rows && l.Features == b.dim && l.Classes == b.classes && l.Queries == b.queries && l.Others == b.others
	})
}

// printAll prints all lines of the file of -results.
func (b *thousand) printAll() error {
	lines, err := b.earlier()
	if err != nil || len(lines) == 0 {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nstep\trows\tfeatures\tclasses\tqueries\tcores\ts\tCPU s\tMiB\twith files\tMiB from disk\t")
	for _, l := range lines {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%d\t%d\t%d\t\n", l.Step, l.Rows, l.Features, l.Classes, l.Queries+l.Others, l.Cores, l.Seconds, l.CPU, l.MiB, l.MiBWithFiles, l.MiBFromDisk)
	}
	return table.Flush()
}

// trainOptions are those of train by default, or of a preset of the paper's heads.
func (b *thousand) trainOptions(dir, preset string, w *steps) (pipeline.TrainOptions, error) {
	o := pipeline.TrainOptions{
		Features: []string{filepath.Join(dir, "train")}, Memory: b.memory, Scratch: b.folder, Train: head.TrainOptions{Epochs: b.epochs}, Linear: head.LinearOptions{C: b.c},
		Stage:    func(what string, _, _ int) { w.step(what) },
		Progress: func(int, head.Epoch) { w.step(training.TrainingStage) },
	}
	if preset != "" {
		p, ok := head.PaperPresets[preset]
		if !ok {
			return o, fmt.Errorf("there is no preset %s", preset)
		}
		o.Head = p.Paper
		if b.epochs == 0 {
			o.Train = p.Train
		}
	}
	return o, nil
}

// evaluate measures evaluate with all methods and one seed, a step for each of them.
func (b *thousand) evaluate(ctx context.Context, dir string) (err error) {
	out, err := os.MkdirTemp(b.folder, "evaluate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	w := watchSteps("evaluate: ", b.record)
	train, err := b.trainOptions(dir, "", w)
	if err != nil {
		return errors.Join(err, w.close())
	}
	train.Stage, train.Progress, train.Seeds = nil, nil, []uint64{0}
	_, err = pipeline.Evaluate(ctx, pipeline.EvaluateOptions{
		Train: train, ID: filepath.Join(dir, "id"), OOD: []pipeline.OODSet{{Group: "near", Name: "new", Features: filepath.Join(dir, "near")}},
		Memory: b.memory, Out: out, Bootstrap: -1,
		Progress: func(what string, _, _ int) { w.step(what) },
		Warn:     func(text string) { log.Print(text) },
	})
	if err != nil {
		return errors.Join(err, w.stopped())
	}
	return w.close()
}

// peers measures what others can do of this in 8 GiB.
func (b *thousand) peers(ctx context.Context, dir string, lines []line) error {
	for _, what := range growthPeers {
		if b.has(lines, what) {
			continue
		}
		c, seconds, err := peerCost(ctx, what, dir, strconv.Itoa(8<<30), strconv.Itoa(b.queries), strconv.Itoa(b.others))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.Printf("%s: %v", what, err) // such as too little memory
			continue
		}
		fmt.Printf("%s: %.1f s, %.1f s of processor time, %.0f MiB\n", what, seconds, c.seconds, c.memory/(1<<20))
		e := ended{name: what, private: int64(c.memory)}
		e.took.wall, e.took.cpu = time.Duration(seconds*float64(time.Second)), time.Duration(c.seconds*float64(time.Second))
		if err := b.record(e); err != nil {
			return err
		}
	}
	return nil
}

// methods measures fit and scores of methods, with the head of the nearest mean, of
// which nothing is trained. What several need of the training rows is computed for the
// first of them, as in evaluate.
func (b *thousand) methods(ctx context.Context, dir string, names []string) (err error) {
	t, err := features.OpenTable(ctx, nil, filepath.Join(dir, "train"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	var queries []*features.Table
	for i, name := range []string{"id", "near"} {
		q, err := features.OpenTable(ctx, nil, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer q.Close()
		if want := []int{b.queries, b.others}[i]; len(q.Labels) < want {
			return fmt.Errorf("%s has %d queries, not %d", q.Dirs[0], len(q.Labels), want)
		}
		queries = append(queries, q)
	}
	linear, err := nearestMean(t.X, b.dim, t.Labels, b.classes)
	if err != nil {
		return err
	}
	c := training.ClassifierOf(posthoc.MLP{linear})
	rows := make([]int, len(t.Labels))
	for i := range rows {
		rows[i] = i
	}
	data := c.Data(t, rows, t.Labels, b.classes)
	for _, name := range names {
		debug.FreeOSMemory()
		w := watchSteps(name+": ", b.record)
		w.step("fit")
		s, err := posthoc.Fit(ctx, name, posthoc.Input{Train: data, LastLayer: linear, Memory: b.memory})
		if err == nil {
			w.step("scores")
			err = b.score(ctx, name, s, c, queries)
		}
		if ctx.Err() != nil {
			return errors.Join(err, w.stopped())
		}
		if err != nil {
			log.Printf("%s: %v", name, err)
			err = w.stopped()
		} else {
			err = w.close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// score scores the queries a block at a time, as evaluate does. Kept sets may have more
// rows than it is to score.
func (b *thousand) score(ctx context.Context, name string, s posthoc.Scorer, c *training.Classifier, queries []*features.Table) error {
	block := max(1, int(b.memory/4/8/int64(b.dim+b.classes)))
	for i, n := range []int{b.queries, b.others} {
		q := queries[i]
		for from := 0; from < n; from += block {
			to := min(from+block, n)
			batch := posthoc.Batch{Features: q.Block(from, to)}
			if posthoc.ReadsLogits(name) {
				var err error
				if batch.Logits, err = c.All(ctx, q, from, to); err != nil {
					return err
				}
			}
			if err := s.Score(ctx, make([]float64, to-from), batch); err != nil {
				return err
			}
		}
	}
	return nil
}
