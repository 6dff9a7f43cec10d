// Command promise measures how often a detector flags new in-distribution images,
// where it promises at most 5%. The made-up features imitate folders that people
// have: with several copies of images, frames of videos, or classes of one image.
// Each seed draws features, trains a detector and judges new rows.
//
//	scripts/run promise -seeds 200
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// A kind of folder: how training rows and new rows are drawn.
type kind struct {
	name string
	make func(*world) set
	// fresh draws a new row; nil draws one of a random class.
	fresh func(*world) ([]float32, int)
	// calibration, if set, makes a feature set for calibration.
	calibration func(*world, set) set
	groupBy     string
	folds       int
	strays      int // of the training rows, the last so many are of no class, and a person finds them
}

type set struct {
	x      []float32
	labels []int64
	groups []int // nil: no paths
}

func (s *set) add(row []float32, label int) {
	s.x, s.labels = append(s.x, row...), append(s.labels, int64(label))
}

const dim = 64

// world is the distribution of the rows: a normal distribution per class.
type world struct {
	rng     *rand.Rand
	classes [][]float64
}

func newWorld(seed uint64, classes int) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0x776f726c64))}
	for range classes {
		w.classes = append(w.classes, w.normal(0.5))
	}
	return w
}

func (w *world) normal(scale float64) []float64 {
	row := make([]float64, dim)
	for i := range row {
		row[i] = scale * w.rng.NormFloat64()
	}
	return row
}

// row draws a row around the middle of a class and others.
func (w *world) row(class int, more ...[]float64) []float32 {
	row := make([]float32, dim)
	for i, v := range w.normal(1) {
		v += 1 + w.classes[class][i]
		for _, m := range more {
			v += m[i]
		}
		row[i] = float32(v)
	}
	return row
}

const large = 5 // classes of many rows

func times(rows, copies int) func(*world) set {
	return func(w *world) (s set) {
		for i := range rows {
			row := w.row(i % large)
			for range copies {
				s.add(row, i%large)
			}
		}
		return s
	}
}

const singles = 500

// video draws the part that all frames of one video share.
func (w *world) video() []float64 { return w.normal(2) }

var kinds = []kind{
	{name: "2,000 rows", make: times(2000, 1)},
	{name: "1,000 rows twice", make: times(1000, 2)},
	{name: "666 rows three times", make: times(666, 3)},
	{name: "400 rows five times", make: times(400, 5)},
	{name: "1,000 rows, and again times 1 + 1e-6", make: func(w *world) (s set) {
		s = times(1000, 1)(w)
		for i, v := range s.x {
			s.x = append(s.x, v*(1+1e-6))
			_ = i
		}
		s.labels = append(s.labels, s.labels...)
		return s
	}},
	{name: "calibration rows: 300 new, 100 of training times 1 + 1e-6", make: times(2000, 1), calibration: func(w *world, s set) set {
		own := times(300, 1)(w)
		for i := range 100 {
			row := slices.Clone(s.x[i*dim : (i+1)*dim])
			for j := range row {
				row[j] *= 1 + 1e-6
			}
			own.add(row, int(s.labels[i]))
		}
		return own
	}},
	{name: "500 classes of one row, five of 400: new rows of the five", make: withSingles, fresh: func(w *world) ([]float32, int) {
		c := w.rng.IntN(large)
		return w.row(c), c
	}},
	{name: "the same: new rows of all, by their shares", make: withSingles, fresh: func(w *world) ([]float32, int) {
		c := w.rng.IntN(large*400 + singles)
		if c = large + c - large*400; c < large {
			c = w.rng.IntN(large)
		}
		return w.row(c), c
	}},
	{name: "400 videos of 1 to 9 frames, --group-by", make: videos, fresh: frame, groupBy: "^v[0-9]+"},
	{name: "the same without --group-by", make: videos, fresh: frame},
	{name: "400 videos of 1 to 9 frames that get noisier, --group-by, cross:5", make: noisier, fresh: noisyFrame, groupBy: "^v[0-9]+", folds: 5},
	{name: "1,900 rows and 100 of another class as strays", make: func(w *world) (s set) {
		s = times(1900, 1)(w)
		for i := range 100 {
			s.add(w.row(large), i%large)
		}
		return s
	}, strays: 100},
}

// noisier are videos whose later frames are unlike what was before.
func noisier(w *world) (s set) {
	for v := range 400 {
		video := w.video()
		for f := range 1 + w.rng.IntN(9) {
			s.add(w.row(v%large, video, w.normal(noise*float64(f))), v%large)
			s.groups = append(s.groups, v)
		}
	}
	return s
}

const noise = 0.25 // that each frame adds

// noisyFrame is any frame of a new video.
func noisyFrame(w *world) ([]float32, int) {
	c := w.rng.IntN(large)
	return w.row(c, w.video(), w.normal(noise*float64(w.rng.IntN(1+w.rng.IntN(9))))), c
}

func withSingles(w *world) set {
	s := times(large*400, 1)(w)
	for i := range singles {
		s.add(w.row(large+i), large+i)
	}
	return s
}

func videos(w *world) (s set) {
	for v := range 400 {
		video := w.video()
		for range 1 + w.rng.IntN(9) {
			s.add(w.row(v%large, video), v%large)
			s.groups = append(s.groups, v)
		}
	}
	return s
}

func frame(w *world) ([]float32, int) {
	c := w.rng.IntN(large)
	return w.row(c, w.video()), c
}

func (s set) write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if s.groups != nil {
		var lines strings.Builder
		for i, g := range s.groups {
			fmt.Fprintf(&lines, "{\"path\":\"v%d/%d.png\"}\n", g, i)
		}
		if err := os.WriteFile(filepath.Join(dir, "images.jsonl"), []byte(lines.String()), 0o666); err != nil {
			return err
		}
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), s.x, len(s.labels), dim); err != nil {
		return err
	}
	return npy.WriteFile(filepath.Join(dir, "labels.npy"), s.labels, len(s.labels))
}

// measure returns the share of new rows that a detector flags; with strays also the share
// of new strays, and again both once a person has looked at the lowest calibration rows.
func (k kind) measure(ctx context.Context, seed uint64, dir string, newRows int) ([]float64, error) {
	w := newWorld(seed, large+singles)
	train := k.make(w)
	if err := train.write(filepath.Join(dir, "train")); err != nil {
		return nil, err
	}
	opts := options(k, filepath.Join(dir, "train"))
	opts.Seeds = []uint64{seed}
	if k.calibration != nil {
		own := filepath.Join(dir, "calibration")
		if err := k.calibration(w, train).write(own); err != nil {
			return nil, err
		}
		opts.Calibration.Features = own
	}
	d, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		return nil, err
	}
	var x []float32
	for i := range newRows {
		var row []float32
		if k.fresh != nil {
			row, _ = k.fresh(w)
		} else {
			row = w.row(i % large)
		}
		x = append(x, row...)
	}
	shares := []float64{flagged(d, x)}
	if k.strays == 0 {
		return shares, nil
	}
	var strays []float32
	for range newRows {
		strays = append(strays, w.row(large)...)
	}
	shares = append(shares, flagged(d, strays))
	if err := trim(ctx, d, len(train.labels)-k.strays); err != nil {
		return nil, err
	}
	return append(shares, flagged(d, x), flagged(d, strays)), nil
}

// flagged is the share of rows that are flagged.
func flagged(d *pipeline.Detector, x []float32) float64 {
	n := 0
	all, _ := d.Verdicts(context.Background(), x) // fails only when cancelled
	for _, v := range all {
		if v.OOD {
			n++
		}
	}
	return float64(n) / float64(len(all))
}

// trim removes the calibration rows from the row first on among the lowest, as many as must
// be looked at.
func trim(ctx context.Context, d *pipeline.Detector, first int) (err error) {
	data, err := d.OpenTraining(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	c, err := d.OpenCalibration(ctx, data, nil)
	if err != nil {
		return err
	}
	images, err := c.Images(ctx)
	if err != nil {
		return err
	}
	var remove []int
	for at, image := range images {
		if image.Row >= first {
			remove = append(remove, image.Row)
		}
		if err = c.Trim(ctx, images, at+1, remove); err == nil {
			break
		}
	}
	return err
}

func main() {
	seeds := flag.Int("seeds", 200, "`number` of seeds")
	rows := flag.Int("rows", 1000, "new rows per seed")
	only := flag.String("only", "", "only the folders with this `text` in their names")
	flag.Parse()
	scratch, err := os.MkdirTemp("", "promise")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(scratch)
	fmt.Printf("%% of %d new rows that are flagged, promised 5: mean ± standard error over %d seeds; with strays, also of new strays, and both again once a person has looked at the lowest calibration rows\n", *rows, *seeds)
	for _, k := range kinds {
		if !strings.Contains(k.name, *only) {
			continue
		}
		shares := make([][]float64, *seeds)
		group, ctx := errgroup.WithContext(context.Background())
		group.SetLimit(runtime.GOMAXPROCS(0))
		for seed := range shares {
			group.Go(func() (err error) {
				dir := filepath.Join(scratch, fmt.Sprint(seed))
				shares[seed], err = k.measure(ctx, uint64(seed), dir, *rows)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			log.Fatalf("%s: %v", k.name, err)
		}
		fmt.Printf("| %s |", k.name)
		for i := range shares[0] {
			var sum, squares float64
			for _, s := range shares {
				sum += s[i]
				squares += s[i] * s[i]
			}
			n := float64(len(shares))
			mean := sum / n
			fmt.Printf(" %.2f ± %.2f |", 100*mean, 100*math.Sqrt(max(0, squares/n-mean*mean)/n))
		}
		fmt.Println()
	}
}

func options(k kind, features string) pipeline.TrainOptions {
	o := pipeline.TrainOptions{Features: []string{features}}
	o.GroupBy, o.Calibration.Folds = k.groupBy, k.folds
	return o
}
