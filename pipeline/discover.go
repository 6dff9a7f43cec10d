package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"unsafe"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/spill"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/discovery"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// DiscoverOptions says which images to judge together.
type DiscoverOptions struct {
	// Detect says which images to judge by what; or Detect.Detector alone, where there are
	// Features. More, SetAside and Explain do not go with it.
	Detect DetectOptions
	// Features are folders of feature sets whose rows are judged in the place of images, or
	// else Rows [n, D] are.
	Features []string
	Rows     []float32
	// Training are the folders of the feature sets that the detector was trained and
	// calibrated on; none means where they were, or beside the detector's file.
	Training []string

	// GroupBy, where set, is a regular expression that names the group of an image by its path,
	// as that of training: of images of one group one is judged together with the others,
	// drawn at random, and all get its Together, QValue and New.
	GroupBy string

	FDR  float64 // the rate of false discoveries that is promised; 0 means DefaultFDR
	Seed uint64  // of what is drawn: folds, and the bounds

	Memory  int64  // for features of images, about; 0 means half of the machine's
	Scratch string // folder for those that do not fit; "" is the system's
}

// DefaultFDR is the default of DiscoverOptions.FDR.
const DefaultFDR = 0.1

// Discovery says what is new among images that were judged together.
type Discovery struct {
	Found []Found `json:"-"` // in the order of the images

	Images      int     `json:"images"`
	Unreadable  int     `json:"unreadable"`
	Copies      int     `json:"copies"`      // images that count once with another, as they have its features or are of its group
	Calibration int     `json:"calibration"` // images that were compared with
	FDR         float64 `json:"fdr"`
	New         int     `json:"new"` // images that are called new, copies too
	// NewAtLeast is how many images, without copies, are new with a confidence of 95%,
	// together with Bounds.
	NewAtLeast int `json:"new_at_least"`
	// LeastFound is about how many must be called new at once for any to be: fewer cannot be
	// told from chance with so few calibration images.
	LeastFound int `json:"least_found"`
	// Listed are those of the images that are called new which are no copies. Of them, with
	// the same confidence, ListedKnown are known ones at most.
	Listed      int `json:"listed"`
	ListedKnown int `json:"listed_known"`
	// Weight is how much of what the folder taught Together has, in deviations of the score,
	// and ListWeight how much of what QValue goes by; 0 where the folder says nothing.
	Weight     float64                     `json:"weight"`
	ListWeight float64                     `json:"list_weight"`
	Bounds     []evaluation.DiscoveryBound `json:"bounds"`
	Groups     []DiscoveredGroup           `json:"groups"` // the largest first
	Notes      []string                    `json:"notes"`
}

// Found is the judgement of an image, and what the others say of it.
//
// Features are those of typical images of groups, and nil for all others.
type Found struct {
	Judgement
	Together float64 // the score that was learned, in the unit of Score: higher = more in-distribution
	// QValue is the smallest rate of false discoveries at which the image counts as new; 1 at
	// most. It does not go by Together, which knows too much of what is compared. It is the rate
	// of the images up to this one together; of those close to it more are known ones.
	QValue float64
	New    bool
	Group  int // index into Discovery.Groups; −1 for none
}

// DiscoveredGroup is one kind of new images.
type DiscoveredGroup struct {
	Images  int    `json:"images"`
	Nearest string `json:"nearest"` // the class that most of them are given
	Typical []int  `json:"typical"` // indices of the most typical images, at most nine
}

const (
	mostFolded  = 20_000 // training rows that the folder is told from, and validation rows
	mostTypical = 9
	leastAlike  = 3 // images of a group
)

// Discover judges images together: what is new among them, and how many of the images
// that are called new can be known ones. Each is judged as by [Detect]; then the folder as a
// whole says in which direction its images differ from the training images. Of the images
// that are called new, at most the share FDR are known ones, in the mean over calibration
// sets and folders, whatever the new images are, as long as the known images of the folder
// are exchangeable with the calibration images (adaptive conformal novelty detection, arXiv
// 2208.06685). The promise is about one folder: parts of one must be judged together.
//
// It needs the features that the detector was trained and calibrated on. A detector of folds
// has no images of its own to calibrate by, and is refused. Images whose features are equal
// count once.
func Discover(ctx context.Context, opts DiscoverOptions) (_ *Discovery, err error) {
	d := opts.Detect.Detector
	if opts.Detect.Judge != nil {
		d = opts.Detect.Judge.detector
	}
	switch {
	case opts.FDR < 0 || opts.FDR >= 1 || math.IsNaN(opts.FDR):
		return nil, options.Errorf("FDR", "%g: a rate of false discoveries lies between 0 and 1", opts.FDR)
	case len(opts.Rows)%d.Dim() != 0:
		return nil, options.Errorf("Rows", "%d values are no rows of the %d features that the detector reads", len(opts.Rows), d.Dim())
	case len(d.Folds) > 0:
		return nil, options.Errorf("Detector", "it was calibrated by folds: each of its images was trained on, so that none is left to compare new ones with; train with calibration images that are set aside")
	}
	space := features.NewSpace(cmp.Or(opts.Memory, spill.Default()), opts.Scratch, 1)
	defer func() { err = errors.Join(err, space.Close()) }()
	known, err := openKnown(ctx, d, opts.Training)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, known.data.Close(), known.close()) }()
	folder := &folderRows{space: space, d: d.Dim(), at: map[uint64][]int{}, seed: maphash.MakeSeed()}
	defer func() { err = errors.Join(err, folder.close()) }()
	out := &Discovery{FDR: cmp.Or(opts.FDR, DefaultFDR), Calibration: len(known.calibration.Scores), Notes: append([]string{}, known.notes...), Groups: []DiscoveredGroup{}, Bounds: []evaluation.DiscoveryBound{}}
	err = opts.judge(ctx, known, folder, out)
	if err == nil {
		err = opts.oneOfEach(folder, out)
	}
	if err != nil {
		return nil, err
	}
	return out, out.discover(ctx, d, known, folder, opts.Seed)
}

// judge judges each image by itself, and keeps its features.
func (opts *DiscoverOptions) judge(ctx context.Context, known *knownRows, folder *folderRows, out *Discovery) error {
	add := func(j Judgement) error {
		f := Found{Judgement: j, Group: -1, QValue: 1, Together: j.Score}
		f.Features = nil
		out.Images++
		if j.Err != nil {
			out.Unreadable++
			folder.of = append(folder.of, -1)
		} else if err := folder.add(j.Features, j.Score); err != nil {
			return err
		}
		out.Found = append(out.Found, f)
		return nil
	}
	if opts.Rows == nil && len(opts.Features) == 0 {
		_, err := Detect(ctx, opts.Detect, add)
		return err
	}
	n, path, row := len(opts.Rows)/folder.d, func(int) string { return "" }, func(i int) []float32 { return opts.Rows[i*folder.d : (i+1)*folder.d] }
	if opts.Rows == nil {
		table, err := known.detector.OpenTable(ctx, folder.space, opts.Features...)
		if err != nil {
			return err
		}
		folder.table = table
		if err := features.SameSpace(known.data.Sets[0], table.Sets[0]); err != nil {
			return err
		}
		n, row = len(table.Labels), table.Row
		paths := make([]string, 0, n)
		for _, set := range table.Sets {
			known, err := set.Images()
			if err != nil {
				return err
			}
			for i := range set.N {
				if paths = append(paths, fmt.Sprintf("row %d", i)); i < len(known) {
					paths[len(paths)-1] = known[i].Path
				}
			}
		}
		path = func(i int) string { return paths[i] }
	}
	folder.whole = row
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	var failed error
	err := known.detector.EachVerdict(ctx, row, all, func(i int, v Verdict) {
		failed = cmp.Or(failed, add(Judgement{Path: path(i), Verdict: v, Features: row(i)}))
	})
	return cmp.Or(err, failed)
}

// oneOfEach leaves one row of each group.
func (opts *DiscoverOptions) oneOfEach(folder *folderRows, out *Discovery) error {
	if opts.GroupBy == "" {
		return nil
	}
	var paths []string
	var rows []int // of images that could be read
	for i, f := range out.Found {
		if at := folder.of[i]; at >= 0 {
			paths, rows = append(paths, f.Path), append(rows, at)
		}
	}
	names, err := training.GroupNames(opts.GroupBy, paths)
	if err != nil {
		return err
	}
	groups := training.JoinGroups(slices.Clone(rows), names)
	row := map[int]int{} // what is left of each group
	var kept []int
	for _, i := range features.OneOfEach(groups, opts.Seed) {
		row[groups[i]] = len(kept)
		kept = append(kept, rows[i])
	}
	for i, at := range folder.of {
		if at >= 0 {
			folder.of[i], groups = row[groups[0]], groups[1:]
		}
	}
	folder.keep(kept)
	return nil
}

// discover says what is new, when all images are judged.
func (out *Discovery) discover(ctx context.Context, d *Detector, known *knownRows, folder *folderRows, seed uint64) error {
	m, n := len(folder.scores), out.Calibration
	out.Copies = out.Images - out.Unreadable - m
	if m == 0 {
		return nil
	}
	learned, err := discovery.Learn(ctx, discovery.Input{
		D: d.Heads[0].Dim(), Training: embeddings(d, known.training), Validation: embeddings(d, known.validation), Calibration: embeddings(d, known.calibration),
		Folder: embeddings(d, discovery.Rows{N: m, Row: folder.row, Scores: folder.scores}), Seed: seed,
	})
	if err != nil {
		return err
	}
	out.Weight, out.ListWeight = learned.RankWeight, learned.Weight
	ranks := discovery.PValues(learned.Calibration, learned.Folder)
	q := discovery.QValues(ranks, n)
	out.LeastFound = discovery.LeastFound(n, m, out.FDR)
	certificate := discovery.Certify(ranks, n)
	out.NewAtLeast = certificate.New
	out.bound(certificate, ranks, learned.Ranked)
	carries := out.LeastFound <= m && n > 0
	switch {
	case n == 0:
		out.Notes = append(out.Notes, "there are no calibration images: images are ranked, and nothing can be promised of those that are new; groups are of the images that are OOD")
	case !carries:
		out.Notes = append(out.Notes, fmt.Sprintf("with %d calibration images, and %d images that were judged together, no list can be promised to have at most %.3g%% known ones: images are ranked, and groups are of the images that are OOD by themselves; calibrate on more images", n, m, 100*out.FDR))
	}
	var listed []int
	for i, r := range ranks {
		if carries && min(1, q[i]) <= out.FDR {
			listed = append(listed, r)
		}
	}
	if out.Listed = len(listed); out.Listed > 0 {
		out.ListedKnown = certificate.Known(listed)[out.Listed-1]
	}
	first := make([]int, m) // of the images with this row
	for i := len(out.Found) - 1; i >= 0; i-- {
		if at := folder.of[i]; at >= 0 {
			f := &out.Found[i]
			f.Together, first[at] = learned.Ranked[at], i
			if n > 0 {
				f.QValue = min(1, q[at])
			}
			if f.New = carries && f.QValue <= out.FDR; f.New {
				out.New++
			}
		}
	}
	return out.group(ctx, known, folder, d.Heads[0].Dim(), first, carries)
}

// bound sets the bounds of the images that come first by their scores.
func (out *Discovery) bound(certificate discovery.Certificate, ranks []int, scores []float64) {
	if len(certificate.Bounds) == 0 {
		return
	}
	order, listed := make([]int, len(scores)), make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	for i, row := range order {
		listed[i] = ranks[row]
	}
	known := certificate.Known(listed)
	for _, n := range append(discovery.Spaced(len(order)), len(order)) {
		score := scores[order[n-1]]
		for n < len(order) && scores[order[n]] == score {
			n++
		}
		if k := len(out.Bounds); k == 0 || out.Bounds[k-1].Found < n {
			out.Bounds = append(out.Bounds, evaluation.DiscoveryBound{Together: score, Found: n, Known: known[n-1]})
		}
	}
}

// group puts the new images into groups, and those that are OOD where no list can be
// promised. What is alike is so in the first dim features, without layers.
func (out *Discovery) group(ctx context.Context, known *knownRows, folder *folderRows, dim int, first []int, carries bool) error {
	var rows []int
	for at, i := range first {
		if f := out.Found[i]; f.New || !carries && f.OOD {
			rows = append(rows, at)
		}
	}
	if len(rows) < leastAlike {
		return nil
	}
	slices.SortStableFunc(rows, func(a, b int) int {
		return cmp.Compare(out.Found[first[a]].Together, out.Found[first[b]].Together)
	})
	for _, s := range known.data.Sets {
		if err := s.With(nil); err != nil {
			return err
		}
	}
	_, reach, err := features.Reach(ctx, known.data.Sets)
	if err != nil {
		return err
	}
	row := func(at int) []float32 { return folder.row(at)[:dim] }
	groups, err := features.Kinds(ctx, len(rows), func(i int) []float32 { return row(rows[i]) }, reach, leastAlike)
	if err != nil {
		return err
	}
	of := map[int]int{} // the group of a row
	for g, members := range groups {
		classes := map[string]int{}
		for k, i := range members {
			at := rows[i]
			of[at], members[k] = g, at
			classes[out.Found[first[at]].Class]++
		}
		group := DiscoveredGroup{}
		for class, n := range classes {
			if most := classes[group.Nearest]; n > most || n == most && class < group.Nearest {
				group.Nearest = class
			}
		}
		for _, at := range typical(members, row) {
			group.Typical = append(group.Typical, first[at])
			out.Found[first[at]].Features = slices.Clone(folder.row(at))
		}
		out.Groups = append(out.Groups, group)
	}
	for i := range out.Found {
		if g, ok := of[folder.of[i]]; ok {
			out.Found[i].Group = g
			out.Groups[g].Images++
		}
	}
	return nil
}

// typical returns the rows that are nearest to the mean direction of all.
func typical(rows []int, row func(int) []float32) []int {
	unit := func(x []float32) []float64 {
		u := kernels.Converted[float64](x)
		linalg.Normalise(u)
		return u
	}
	mean := make([]float64, len(row(rows[0])))
	for _, at := range rows {
		for i, v := range unit(row(at)) {
			mean[i] += v
		}
	}
	near := map[int]float64{}
	for _, at := range rows {
		near[at] = kernels.Dot(mean, unit(row(at)))
	}
	sorted := slices.SortedStableFunc(slices.Values(rows), func(a, b int) int { return cmp.Compare(near[b], near[a]) })
	return sorted[:min(len(sorted), mostTypical)]
}

// knownRows are the rows that a detector was made of.
type knownRows struct {
	detector                          *Detector
	data                              *detector.TrainingData
	own                               []*features.Set // for validation
	calibrated                        *detector.Calibration
	training, validation, calibration discovery.Rows
	notes                             []string
}

// openKnown opens the feature sets of a detector.
func openKnown(ctx context.Context, d *Detector, dirs []string) (_ *knownRows, err error) {
	data, err := d.OpenTraining(ctx, dirs)
	if err != nil {
		return nil, inTraining(err)
	}
	k := &knownRows{detector: d, data: data}
	defer disk.OnError(&err, func() error { return errors.Join(data.Close(), k.close()) })
	k.training = rowsAt(features.Every(data.Train, mostFolded), data.Row)
	if err = k.validate(ctx, dirs); err == nil {
		err = k.calibrate(ctx, dirs)
	}
	if err != nil {
		return nil, inTraining(err)
	}
	if k.validation.N < discovery.LeastValidation {
		k.notes = append(k.notes, fmt.Sprintf("the detector has %d validation images, and %d are needed to learn from the folder: each image is ranked by itself", k.validation.N, discovery.LeastValidation))
	}
	if d.ByClass != nil {
		k.notes = append(k.notes, "the detector has a threshold for each class; what is called new here goes by the score alone")
	}
	return k, nil
}

// inTraining is an error about the features of a detector, which DiscoverOptions.Training
// names.
func inTraining(err error) error {
	if about, ok := errors.AsType[*options.Error](err); ok && about.Option == "Features" {
		return options.Errorf("Training", "%w", about.Err)
	}
	return err
}

func (k *knownRows) close() error {
	errs := lists.Map(k.own, (*features.Set).Close)
	if k.calibrated != nil {
		errs = append(errs, k.calibrated.Close())
	}
	return errors.Join(errs...)
}

// embeddings returns the rows without layers.
func embeddings(d *Detector, r discovery.Rows) discovery.Rows {
	row := r.Row
	r.Row = func(i int) []float32 { return row(i)[:d.Heads[0].Dim()] }
	return r
}

// rowsAt returns some rows of a matrix.
func rowsAt(index []int, row func(int) []float32) discovery.Rows {
	return discovery.Rows{N: len(index), Row: func(i int) []float32 { return row(index[i]) }}
}

// validate reads the validation rows, which are training rows that were set aside or of
// feature sets of their own.
func (k *knownRows) validate(ctx context.Context, dirs []string) error {
	index, row := k.detector.Splits["validation"], k.data.Row
	if len(index) == 0 && len(k.detector.Training.Sets) > 0 {
		sets, err := k.detector.OpenSets(ctx, detector.ForValidation, dirs)
		if err != nil || len(sets) == 0 {
			return err
		}
		k.own, row = sets, sets[0].Row
		for i, y := range sets[0].Labels() {
			if y >= 0 {
				index = append(index, i)
			}
		}
	}
	index = features.Every(index, mostFolded)
	k.validation = rowsAt(index, row)
	return k.detector.EachVerdict(ctx, row, index, func(_ int, v Verdict) {
		k.validation.Scores = append(k.validation.Scores, v.Score)
	})
}

// calibrate reads the calibration rows, if there are any.
func (k *knownRows) calibrate(ctx context.Context, dirs []string) (err error) {
	k.calibrated, err = k.detector.OpenCalibration(ctx, k.data, dirs)
	if errors.Is(err, detector.ErrNoCalibration) {
		return nil
	}
	if err != nil {
		return err
	}
	images, err := k.calibrated.Images(ctx)
	var index []int
	for _, image := range images {
		index = append(index, image.Row)
		k.calibration.Scores = append(k.calibration.Scores, image.Score)
	}
	k.calibration.N, k.calibration.Row = len(index), rowsAt(index, k.calibrated.Row).Row
	return err
}

// folderRows are the features of the images of a folder, each kind of equal ones once.
type folderRows struct {
	space  *features.Space
	d      int
	of     []int // the row of each image; −1 for none
	scores []float64

	table *features.Table
	whole func(int) []float32 // the rows of all images, where they are kept elsewhere
	first []int               // and the first image of each row there

	kept   []int // rows that are left; nil for all
	blocks []features.Rows
	last   []float32 // the rows after those of blocks
	seed   maphash.Seed
	at     map[uint64][]int // rows by the hash of their features
}

const keptRows = 4096 // of a block

// keep leaves these rows alone, numbered anew.
func (f *folderRows) keep(rows []int) {
	scores := make([]float64, len(rows))
	for i, row := range rows {
		scores[i] = f.scores[row]
	}
	f.kept, f.scores = rows, scores
}

// row returns a row.
func (f *folderRows) row(i int) []float32 {
	if f.kept != nil {
		i = f.kept[i]
	}
	switch {
	case f.whole != nil:
		return f.whole(f.first[i])
	case i/keptRows < len(f.blocks):
		return f.blocks[i/keptRows].Row(i % keptRows)
	}
	i -= len(f.blocks) * keptRows
	return f.last[i*f.d : (i+1)*f.d]
}

// add adds the features of the next image.
func (f *folderRows) add(x []float32, score float64) error {
	hash := maphash.Bytes(f.seed, unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)))
	for _, at := range f.at[hash] {
		if slices.Equal(f.row(at), x) {
			f.of = append(f.of, at)
			return nil
		}
	}
	at := len(f.scores)
	f.at[hash] = append(f.at[hash], at)
	f.first = append(f.first, len(f.of))
	f.of, f.scores = append(f.of, at), append(f.scores, score)
	if f.whole != nil {
		return nil
	}
	if f.last = append(f.last, x...); len(f.last) == keptRows*f.d {
		block, err := f.space.Make(f.d, make([]int64, keptRows), func(write func(int, []float32) error) error { return write(0, f.last) })
		if err != nil {
			return fmt.Errorf("keep the features of images: %w", err)
		}
		f.blocks, f.last = append(f.blocks, block), f.last[:0]
	}
	return nil
}

func (f *folderRows) close() error {
	errs := lists.Map(f.blocks, features.Rows.Close)
	if f.table != nil {
		errs = append(errs, f.table.Close())
	}
	return errors.Join(errs...)
}
