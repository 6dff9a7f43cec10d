package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Images judged together: how much better new ones are found, and how many of those that
// are called new are known.
const together = "together"

var (
	togetherSizes  = []int{100, 300, 600, 1000, 3000}
	togetherShares = []float64{0, .02, .05, .1, .3, .5}
	togetherRates  = []float64{.05, .1, .2}
)

// judgedTogether is what came of one folder. Its JSON is a line of the file that an
// interrupted run goes on from.
type judgedTogether struct {
	Backbone, Task string
	Draw, Images   int
	Share          float64

	Single, Together, Weight float64 // AUROC of new against known images
	RTL, OODD, Told          float64 // likewise; Told of folders of mostTold images at most
	Gaussian                 float64 // likewise, each image alone
	Calibration              int
	AtLeast                  int       // new, by the certificate
	Broken                   bool      // a bound of the certificate does not hold
	False, Power             []float64 // share of false discoveries and of new images found, by rate
	PlainFalse, PlainPower   []float64 // of Benjamini and Hochberg's procedure on the single score
}

const (
	mostTold = 600
	// togetherGaussian is the score of one image that gains were measured against before
	// scores were chosen by class hold-out.
	togetherGaussian = "mds"
)

// folderTask is where folders come from.
type folderTask struct {
	name  string
	known []*features.Set // rows to train on and rows of the folder
	but   string          // class of known that is new; "" for none
	only  []string        // classes; nil for all
	new   *features.Set   // nil: class but
	rows  int             // of each class, to train on
}

// rows returns the rows and labels of the known classes, in a random order, and the new
// ones.
func (t *folderTask) draw(random *rand.Rand) (known [][]float32, labels []string, new [][]float32) {
	for _, s := range t.known {
		for i, y := range s.Labels() {
			switch name := s.Classes[y]; {
			case name == t.but:
				new = append(new, s.Row(i))
			case t.only == nil || slices.Contains(t.only, name):
				known, labels = append(known, s.Row(i)), append(labels, name)
			}
		}
	}
	if t.new != nil {
		new = new[:0]
		for i := range t.new.N {
			new = append(new, t.new.Row(i))
		}
	}
	random.Shuffle(len(known), func(i, j int) {
		known[i], known[j] = known[j], known[i]
		labels[i], labels[j] = labels[j], labels[i]
	})
	random.Shuffle(len(new), func(i, j int) { new[i], new[j] = new[j], new[i] })
	return known, labels, new
}

// folderTasks are the tasks of a backbone, those of one draw.
func (e *experiment) folderTasks(backbone string, draw int, only []string) (tasks []folderTask, err error) {
	open := func(name string) *features.Set {
		s, openErr := features.Open(context.Background(), filepath.Join(e.features, backbone, name))
		err = errors.Join(err, openErr)
		return s
	}
	want := func(name string) bool { return only == nil || slices.Contains(only, name) }
	if want("cifar10") {
		train, test := open("cifar10-train"), open("cifar10-test")
		if err == nil {
			known := []*features.Set{train, test}
			tasks = append(tasks, folderTask{"CIFAR-10, a class of it", known, train.Classes[draw%10], nil, nil, 400},
				folderTask{"CIFAR-10, CIFAR-100", known, "", nil, open("cifar100"), 400},
				folderTask{"CIFAR-10, Tiny ImageNet", known, "", nil, open("tin"), 400})
		}
	}
	if want("imagenette") {
		train, val := open("imagenette-train"), open("imagenette-val")
		if err == nil {
			tasks = append(tasks, folderTask{"Imagenette, a class of it", []*features.Set{train, val}, train.Classes[draw%10], nil, nil, 35})
		}
	}
	if want("super") && err == nil {
		pools, poolsErr := e.pools(backbone, []string{"super"})
		test := open("cifar100")
		if err = errors.Join(err, poolsErr); err != nil {
			return nil, err
		}
		for _, p := range pools {
			tasks = append(tasks, folderTask{p.task, []*features.Set{p.train, test}, p.only[draw%5], p.only, nil, 80})
		}
	}
	return tasks, err
}

// measure trains on three quarters of t.rows known rows of each class, and judges folders. A
// third as many of the other rows calibrate, others for each folder, and the folder has what is
// left. Peers judge the first folder of each kind.
func (t *folderTask) measure(ctx context.Context, opts pipeline.TrainOptions, dir string, draw, folders int) (all []judgedTogether, err error) {
	random := rand.New(rand.NewPCG(uint64(draw), 36))
	known, labels, fresh := t.draw(random)
	classes := slices.Compact(slices.Sorted(slices.Values(labels)))
	d := len(known[0])
	var x []float32
	var y []int64
	for i, row := range known {
		x, y = append(x, row...), append(y, int64(slices.Index(classes, labels[i])))
	}
	n := len(y)
	if err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, n, d), npy.WriteFile(filepath.Join(dir, "labels.npy"), y, n)); err != nil {
		return nil, err
	}
	part := float64(t.rows*len(classes)) / float64(n)
	opts.Features, opts.NoHoldOut = []string{dir}, true
	opts.Validation, opts.Calibration = pipeline.Share{Fraction: .1 * part}, pipeline.Share{Fraction: 1 - .75*part}
	detector, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		return nil, err
	}
	rest, calibrates := detector.Splits["calibration"], t.rows*len(classes)/4
	var trained [][]float32
	var labelled []int64
	for i, row := range known {
		if !slices.Contains(rest, i) {
			trained, labelled = append(trained, row), append(labelled, y[i])
		}
	}
	gaussian, err := posthoc.Fit(ctx, togetherGaussian, posthoc.Input{Train: posthoc.NewData(slices.Concat(trained...), d, labelled, len(classes))})
	if err != nil {
		return nil, err
	}
	scores := map[int]float64{}
	if err := detector.EachVerdict(ctx, func(i int) []float32 { return known[i] }, rest, func(i int, v pipeline.Verdict) { scores[i] = v.Score }); err != nil {
		return nil, err
	}
	for _, size := range togetherSizes {
		if size == 600 && calibrates+1000 <= len(rest) {
			continue // it stands for a thousand
		}
		for _, share := range togetherShares {
			of := int(math.Round(share * float64(size)))
			if calibrates+size-of > len(rest) || of > len(fresh) || share > 0 && of == 0 {
				continue
			}
			for folder := range max(1, min(folders, folders*300/size)) { // fewer that are large
				random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
				random.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
				calibrated := *detector
				calibrated.Splits = maps.Clone(detector.Splits)
				calibrated.Splits["calibration"], calibrated.Splits["left_out"] = rest[:calibrates], rest[calibrates:]
				calibrated.CalibrationScores = nil
				for _, i := range rest[:calibrates] {
					calibrated.CalibrationScores = append(calibrated.CalibrationScores, scores[i])
				}
				slices.Sort(calibrated.CalibrationScores)
				var old [][]float32
				for _, i := range rest[calibrates:][:size-of] {
					old = append(old, known[i])
				}
				j, err := judgeFolder(ctx, &calibrated, gaussian, trained, old, fresh[:of], random, folder == 0)
				if err != nil {
					return nil, err
				}
				j.Task, j.Draw, j.Share = t.name, draw, share
				all = append(all, j)
			}
		}
	}
	return all, nil
}

// judgeFolder judges a folder of known and new rows.
func judgeFolder(ctx context.Context, d *pipeline.Detector, gaussian posthoc.Scorer, training, known, fresh [][]float32, random *rand.Rand, peers bool) (j judgedTogether, err error) {
	folder := slices.Concat(known, fresh)
	r, err := pipeline.Discover(ctx, pipeline.DiscoverOptions{Detect: pipeline.DetectOptions{Detector: d}, Rows: slices.Concat(folder...), Seed: random.Uint64()})
	if err != nil {
		return j, err
	}
	j = judgedTogether{Images: r.Images, Weight: r.Weight, Calibration: r.Calibration, AtLeast: r.NewAtLeast, Broken: r.NewAtLeast > len(fresh)}
	of := func(from, to int, score func(pipeline.Found) float64) (scores []float64) {
		for _, f := range r.Found[from:to] {
			scores = append(scores, score(f))
		}
		return scores
	}
	single, joint := func(f pipeline.Found) float64 { return f.Score }, func(f pipeline.Found) float64 { return f.Together }
	if k := len(known); len(fresh) > 0 {
		auroc := func(scores []float64) float64 { return metrics.AUROC(scores[:k], scores[k:]) }
		scores := of(0, r.Images, single)
		j.Single, j.Together = auroc(scores), auroc(of(0, r.Images, joint))
		if peers {
			j.RTL, j.OODD = auroc(rtl(folder, scores)), auroc(queue(d, training, folder, random.Perm(len(folder))))
		}
		if peers && len(folder) <= mostTold {
			j.Told = auroc(told(training, folder, k))
		}
		if err := gaussian.Score(ctx, scores, posthoc.Batch{Features: slices.Concat(folder...)}); err != nil {
			return j, err
		}
		j.Gaussian = auroc(scores)
	}
	for _, b := range r.Bounds {
		wrong := 0
		for _, f := range r.Found[:len(known)] {
			if f.Together <= b.Together {
				wrong++
			}
		}
		j.Broken = j.Broken || wrong > b.Known
	}
	plain := of(0, r.Images, func(f pipeline.Found) float64 { return f.PValue })
	order := slices.Sorted(slices.Values(plain))
	for _, rate := range togetherRates {
		limit := 0.0
		for i, p := range order {
			if p*float64(len(order)) <= rate*float64(i+1) {
				limit = p
			}
		}
		count := func(found func(i int) bool) (wrong, power float64) {
			right := 0
			bad := 0
			for i := range r.Found {
				switch {
				case !found(i):
				case i < len(known):
					bad++
				default:
					right++
				}
			}
			return float64(bad) / float64(max(1, bad+right)), float64(right) / float64(max(1, len(fresh)))
		}
		wrong, power := count(func(i int) bool { return r.Found[i].QValue <= rate })
		j.False, j.Power = append(j.False, wrong), append(j.Power, power)
		wrong, power = count(func(i int) bool { return plain[i] <= limit })
		j.PlainFalse, j.PlainPower = append(j.PlainFalse, wrong), append(j.PlainPower, power)
	}
	return j, nil
}

// runTogether measures all tasks and prints means. The seeds are the draws.
func (e *experiment) runTogether(ctx context.Context, w io.Writer, models []string, seeds string, epochs, folders int, only []string) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	opts := e.train[false]
	draws := opts.Seeds
	if err := os.MkdirAll(e.out, 0o777); err != nil {
		return err
	}
	file := filepath.Join(e.out, together+".jsonl")
	done := map[string]bool{}
	var all []judgedTogether
	if f, err := os.Open(file); err == nil {
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var j judgedTogether
			if json.Unmarshal(lines.Bytes(), &j) == nil {
				all, done[fmt.Sprint(j.Backbone, j.Task, j.Draw)] = append(all, j), true
			}
		}
		f.Close()
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, m := range models {
		for _, draw := range draws {
			tasks, err := e.folderTasks(m, int(draw), only)
			if err != nil {
				return err
			}
			for _, t := range tasks {
				if done[fmt.Sprint(m, t.name, draw)] {
					continue
				}
				dir, err := os.MkdirTemp("", together)
				if err != nil {
					return err
				}
				opts.Seeds = []uint64{draw}
				some, err := t.measure(ctx, opts, dir, int(draw), folders)
				if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
					return fmt.Errorf("%s, %s: %w", m, t.name, err)
				}
				var lines strings.Builder
				for _, j := range some {
					j.Backbone = m
					all = append(all, j)
					text, err := json.Marshal(j)
					if err != nil {
						return err
					}
					fmt.Fprintf(&lines, "%s\n", text)
				}
				if _, err := f.WriteString(lines.String()); err != nil {
					return err
				}
				fmt.Fprintf(e.stderr, "%s, %s, draw %d\n", m, t.name, draw)
			}
		}
	}
	printTogether(w, all)
	return nil
}

// printTogether prints means over draws, and over the superclasses: how much AUROC is gained by
// what ranks the folder, and what became of the promise.
func printTogether(w io.Writer, all []judgedTogether) {
	type key struct {
		backbone, task string
		images         int
	}
	byKey := map[key][]judgedTogether{}
	for _, j := range all {
		k := key{j.Backbone, j.Task, j.Images}
		if !strings.Contains(k.task, ", ") {
			k.task = "superclasses"
		}
		byKey[k] = append(byKey[k], j)
	}
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.backbone, b.backbone), cmp.Compare(a.task, b.task), cmp.Compare(a.images, b.images))
	})
	row := func(k key, name, least string, shares []float64, cell func(group []judgedTogether) string) {
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s |", k.backbone, k.task, k.images, name, least)
		for _, share := range shares {
			group := slices.DeleteFunc(slices.Clone(byKey[k]), func(j judgedTogether) bool { return j.Share != share })
			if text := cell(group); len(group) > 0 {
				fmt.Fprintf(w, " %s |", text)
			} else {
				fmt.Fprint(w, " – |")
			}
		}
		fmt.Fprintln(w)
	}
	head := func(fourth, fifth string, shares []float64) {
		fmt.Fprintf(w, "\n| features | task | images | %s | %s |", fourth, fifth)
		for _, share := range shares {
			fmt.Fprintf(w, " %g%% |", 100*share)
		}
		fmt.Fprintf(w, "\n%s|\n", strings.Repeat("|---", 5+len(shares)))
	}
	head("ranked by", "AUROC by itself", togetherShares[1:])
	for _, k := range keys {
		single, joint := func(j judgedTogether) float64 { return j.Single }, func(j judgedTogether) float64 { return j.Together }
		for _, by := range []struct {
			name      string
			of, above func(judgedTogether) float64
		}{
			{"together", joint, single},
			{"RTL", func(j judgedTogether) float64 { return j.RTL }, single},
			{"OODD", func(j judgedTogether) float64 { return j.OODD }, single},
			{"told what is new", func(j judgedTogether) float64 { return j.Told }, single},
			{"together, above " + togetherGaussian, joint, func(j judgedTogether) float64 { return j.Gaussian }},
		} {
			above := func(j judgedTogether) float64 { return 100 * cmp.Or(by.above(j), math.NaN()) }
			alone, _ := meanTogether(byKey[k], true, above)
			row(k, by.name, fmt.Sprintf("%.1f", alone), togetherShares[1:], func(group []judgedTogether) string {
				gain, e := meanTogether(group, true, func(j judgedTogether) float64 { return 100*cmp.Or(by.of(j), math.NaN()) - above(j) })
				return fmt.Sprintf("%+.1f±%.1f", gain, e)
			})
		}
	}
	head("rate", "folders", togetherShares)
	for _, k := range keys {
		byShare := map[float64]int{}
		for _, j := range byKey[k] {
			byShare[j.Share]++
		}
		folders := slices.Max(slices.Collect(maps.Values(byShare)))
		promise := func(name string, wrong, power func(judgedTogether) float64) {
			row(k, name, fmt.Sprint(folders), togetherShares, func(group []judgedTogether) string {
				v, e := meanTogether(group, false, wrong)
				p, _ := meanTogether(group, false, power)
				return fmt.Sprintf("%.3f±%.3f; %.2f", v, e, p)
			})
		}
		for r, rate := range togetherRates {
			promise(fmt.Sprint(rate), func(j judgedTogether) float64 { return j.False[r] }, func(j judgedTogether) float64 { return j.Power[r] })
		}
		promise("0.1, single score", func(j judgedTogether) float64 { return j.PlainFalse[1] }, func(j judgedTogether) float64 { return j.PlainPower[1] })
		row(k, "bounds broken", fmt.Sprint(folders), togetherShares, func(group []judgedTogether) string {
			v, e := meanTogether(group, false, func(j judgedTogether) float64 {
				if j.Broken {
					return 1
				}
				return 0
			})
			return fmt.Sprintf("%.3f±%.3f", v, e)
		})
	}
	empty := slices.DeleteFunc(slices.Clone(all), func(j judgedTogether) bool { return j.Share > 0 })
	broken := 0
	for _, j := range empty {
		if j.Broken {
			broken++
		}
	}
	fmt.Fprintf(w, "\nWith nothing new a bound did not hold in %d of %d folders.\n", broken, len(empty))
}

// meanTogether returns the mean of a value, NaN where it was not measured, and its standard
// error, over folders, each with calibration images of its own, which is what is promised, or
// over the means of detectors.
func meanTogether(group []judgedTogether, detectors bool, of func(judgedTogether) float64) (mean, deviation float64) {
	byDetector := map[string][]float64{}
	for i, j := range group {
		detector := fmt.Sprint(j.Task, j.Draw)
		if !detectors {
			detector = fmt.Sprint(i)
		}
		if v := of(j); !math.IsNaN(v) {
			byDetector[detector] = append(byDetector[detector], v)
		}
	}
	var means []float64
	for _, detector := range slices.Sorted(maps.Keys(byDetector)) {
		means = append(means, stat.Mean(byDetector[detector], nil))
	}
	mean, deviation = stat.MeanStdDev(means, nil)
	return mean, deviation / math.Sqrt(float64(len(means)))
}
