package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// What layers of the model add to the default score: the same trainings with and without.
const layersKey = "layers"

// layerRows is how many images of a class are trained on, all parts together.
const layerRows = 150

// wide are rows with their layers, and labels.
type wide struct {
	x, layers []float32
	labels    []int64
}

// add adds the rows of a class from the at-th on, up to n.
func (r *wide) add(s *features.Set, class int64, label int64, at, n int) {
	seen := 0
	for i, y := range s.Labels() {
		if y == class || class < 0 {
			if seen++; seen > at && seen <= at+n {
				r.x, r.layers = append(r.x, s.Row(i)...), append(r.layers, s.RowLayers(i)...)
				r.labels = append(r.labels, label)
			}
		}
	}
}

// layeredTask is what is known and what is new.
type layeredTask struct {
	name             string
	classes          []string
	train            wide
	known, near, far wide
	said             []float64 // the scores of known and near rows, without layers
}

// runLayers measures all tasks and prints them.
func (e *experiment) runLayers(ctx context.Context, w io.Writer, models []string, seeds string, epochs int, only []string) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	fmt.Fprint(w, "| features | task | near without; with | gain | far without; with | near caught without; with | false alarms without; with |\n|---|---|---|---|---|---|---|\n")
	for _, m := range models {
		pools, err := e.pools(m, only)
		if err != nil {
			return err
		}
		var gains, rows [][]float64
		var all layersTold
		line := func(name string, v []float64, gain string) {
			fmt.Fprintf(w, "| %s | %s | %.1f; %.1f | %s | %.1f; %.1f | %.0f; %.0f | %.1f; %.1f |\n", m, name, 100*v[0], 100*v[1], gain, 100*v[2], 100*v[3], 100*v[4], 100*v[5], 100*v[6], 100*v[7])
		}
		for _, p := range pools {
			task, err := e.layeredTask(m, p)
			if err != nil {
				return err
			}
			values := make([]float64, 8)
			for with := range 2 {
				v, err := task.measure(ctx, e.train[false], p.train, with == 1)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", m, task.name, err)
				}
				for i := range v {
					values[2*i+with] = v[i]
				}
			}
			line(task.name, values, fmt.Sprintf("%+.1f", 100*(values[1]-values[0])))
			if p.only != nil {
				gains, rows = append(gains, []float64{100 * (values[1] - values[0])}), append(rows, values)
				if err := all.add(ctx, task, p.train); err != nil {
					return err
				}
			}
		}
		if n := len(rows); n > 1 {
			mean, gain := make([]float64, 8), []float64{}
			for i, v := range rows {
				gain = append(gain, gains[i][0])
				for k := range v {
					mean[k] += v[k] / float64(n)
				}
			}
			line(fmt.Sprintf("%d superclasses, mean", n), mean, fmt.Sprintf("%+.1f ± %.1f", stat.Mean(gain, nil), stat.StdDev(gain, nil)/math.Sqrt(float64(n))))
			bound, err := all.bound(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "| %s | told the new classes | %.1f; %.1f | %+.1f | | | |\n", m, 100*mean[0], 100*bound, 100*(bound-mean[0]))
		}
	}
	return nil
}

// layersTold is what layers say at most: known and near rows of all tasks, by the score without
// layers and, of each layer, its density and the largest logit of a linear head.
type layersTold struct {
	x      []float32
	labels []int64 // 1: known
	ends   []int   // of the tasks
}

// add adds the rows of a task, in standard deviations of the known ones.
func (a *layersTold) add(ctx context.Context, t *layeredTask, like *features.Set) error {
	columns, width, from, known := [][]float64{t.said}, features.LayersDim(like.Layers), 0, len(t.known.labels)
	for _, l := range like.Layers {
		cut := func(of wide) []float32 { return features.Columns(of.layers, width, from, from+l.D) }
		train, rows := cut(t.train), slices.Concat(cut(t.known), cut(t.near))
		density, err := posthoc.FitLayer(ctx, posthoc.NewData(train, l.D, t.train.labels, len(t.classes)))
		if err != nil {
			return err
		}
		fitted, err := head.FitLinear(ctx, features.All(train, l.D, t.train.labels), features.Rows{}, len(t.classes), head.LinearOptions{C: 0.01})
		if err != nil {
			return err
		}
		near, largest := make([]float64, len(t.said)), []float64{}
		if err := density.Score(ctx, near, posthoc.Batch{Features: rows}); err != nil {
			return err
		}
		for logits := range slices.Chunk(posthoc.MLP{fitted.Linear}.OfFeatures(rows), len(t.classes)) {
			largest = append(largest, slices.Max(logits))
		}
		columns, from = append(columns, near, largest), from+l.D
	}
	for i := range t.said {
		for _, c := range columns {
			mean, deviation := stat.MeanStdDev(c[:known], nil)
			a.x = append(a.x, float32((c[i]-mean)/deviation))
		}
		a.labels = append(a.labels, map[bool]int64{true: 1}[i < known])
	}
	a.ends = append(a.ends, len(a.labels))
	return nil
}

// bound returns the mean AUROC of the tasks by one linear score that is fitted on the very rows
// that it judges.
func (a *layersTold) bound(ctx context.Context) (mean float64, err error) {
	d := len(a.x) / len(a.labels)
	fitted, err := head.FitLinear(ctx, features.All(a.x, d, a.labels), features.Rows{}, 2, head.LinearOptions{C: 1})
	if err != nil {
		return 0, err
	}
	logits, from := posthoc.MLP{fitted.Linear}.OfFeatures(a.x), 0
	for _, end := range a.ends {
		var by [2][]float64
		for i := from; i < end; i++ {
			by[a.labels[i]] = append(by[a.labels[i]], logits[2*i+1]-logits[2*i])
		}
		mean, from = mean+metrics.AUROC(by[1], by[0])/float64(len(a.ends)), end
	}
	return mean, nil
}

// layeredTask reads a task: of a superclass the last class is new, of other pools what the
// sets beside them have.
func (e *experiment) layeredTask(backbone string, p *pool) (t *layeredTask, err error) {
	t = &layeredTask{name: p.task}
	from := func(name string, to *wide) {
		s, openErr := features.Open(context.Background(), filepath.Join(e.features, backbone, name))
		if openErr != nil {
			err = openErr
			return
		}
		to.add(s, -1, -1, 0, s.N)
		err = s.Close()
	}
	if t.classes = p.only; p.only == nil {
		t.classes = p.train.Classes
	} else {
		t.classes = p.only[:len(p.only)-1]
		t.near.add(p.train, int64(slices.Index(p.train.Classes, p.only[len(p.only)-1])), -1, 0, 1000)
		for c := range p.train.Classes {
			if !slices.Contains(p.only, p.train.Classes[c]) {
				t.far.add(p.train, int64(c), -1, 0, 5)
			}
		}
	}
	for label, name := range t.classes {
		class := int64(slices.Index(p.train.Classes, name))
		t.train.add(p.train, class, int64(label), 0, layerRows)
		if p.fresh == nil {
			t.known.add(p.train, class, -1, layerRows, 1000)
		}
	}
	if p.fresh != nil {
		t.known.add(p.fresh, -1, -1, 0, p.fresh.N)
		near := []string{"imagewoof"}
		if p.task == "CIFAR-10" {
			near = []string{"cifar100", "tin"}
		}
		for _, name := range near {
			from(name, &t.near)
		}
		for _, name := range []string{"texture", "scenes"} {
			from(name, &t.far)
		}
	}
	return t, err
}

// measure trains and returns the AUROC of near and of far images, the share of near images
// below the threshold, and that of known ones.
func (t *layeredTask) measure(ctx context.Context, opts pipeline.TrainOptions, like *features.Set, with bool) (v [4]float64, err error) {
	set, err := features.InMemory(t.train.x, like.D, t.train.labels, t.classes)
	if err == nil && with {
		err = set.SetLayers(like.Layers, t.train.layers)
	}
	if err != nil {
		return v, err
	}
	opts.Rows = set
	d, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		return v, err
	}
	judge := func(of wide) (scores []float64, flagged float64, err error) {
		x, width := of.x, features.LayersDim(like.Layers)
		if len(d.Source.Layers) > 0 {
			x = nil
			for i := range of.labels {
				x = append(append(x, of.x[i*like.D:(i+1)*like.D]...), of.layers[i*width:(i+1)*width]...)
			}
		}
		verdicts, err := d.Verdicts(ctx, x)
		for _, v := range verdicts {
			scores = append(scores, v.Score)
			if v.OOD {
				flagged += 1 / float64(len(verdicts))
			}
		}
		return scores, flagged, err
	}
	known, alarms, err := judge(t.known)
	if err != nil {
		return v, err
	}
	near, caught, err := judge(t.near)
	if err != nil {
		return v, err
	}
	if !with {
		t.said = slices.Concat(known, near)
	}
	far, _, err := judge(t.far)
	return [4]float64{metrics.AUROC(known, near), metrics.AUROC(known, far), caught, alarms}, err
}
