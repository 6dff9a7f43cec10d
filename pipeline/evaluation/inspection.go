package evaluation

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// DefaultFolds is the default of Options.
const DefaultFolds = 5

// DefaultFalseOutliers is the default of [InspectOptions].
const DefaultFalseOutliers = .05

// InspectOptions says what to inspect. Only Features is needed.
type InspectOptions struct {
	Features []string // feature sets, of the same model
	Test     []string // feature sets of test images, which should have none of the same images

	// NoImages looks at features alone: copies are then found only if their
	// features are nearly equal, and odd files are not looked for.
	NoImages bool
	// Roots are folders that images may come from; see [images.FeatureSet].
	Roots []string

	// FalseOutliers is the share of the listed outliers that may be none, in (0, 1]; 0
	// means DefaultFalseOutliers. 1 lists all labelled rows as outliers, the farthest first.
	FalseOutliers float64

	Folds  int    // parts for out-of-fold predictions; 0 means DefaultFolds
	Seed   uint64 // of the folds
	Memory int64  // in bytes, about; 0 means half of the machine's
	// Scratch is the folder for temporary files; "" means the system's.
	Scratch string

	Progress func(what string, done, total int) // may be nil
}

func (o InspectOptions) withDefaults() (InspectOptions, error) {
	if len(o.Features) == 0 {
		return o, options.Errorf("Features", "none are named")
	}
	o.Folds = cmp.Or(o.Folds, DefaultFolds)
	if o.Folds < 2 {
		return o, options.Errorf("Folds", "%d: there are at least 2", o.Folds)
	}
	if o.FalseOutliers = cmp.Or(o.FalseOutliers, DefaultFalseOutliers); !(o.FalseOutliers > 0 && o.FalseOutliers <= 1) {
		return o, options.Errorf("FalseOutliers", "%g does not lie between 0 and 1", o.FalseOutliers)
	}
	o.Memory = cmp.Or(o.Memory, features.DefaultMemory())
	return o, nil
}

// Inspection lists the findings of an inspection.
type Inspection struct {
	Classes []InspectedClass
	Rows    int // rows of the features
	Test    int // rows of the test features
	// Unlabelled rows have no label, and are looked at for copies alone.
	Unlabelled int
	// Accuracy is the share of labelled rows whose label the out-of-fold prediction
	// is; NaN where there were too few rows or classes to predict any.
	Accuracy float64
	Overlaps []ClassOverlap
	Issues   []training.Issue // the most certain first
	Odd      []Odd
	// Unread is how many images could not be read any more; they are judged by their
	// features alone.
	Unread int
	// Failed are images that have no row, as they could not be decoded when the
	// features were made.
	Failed []features.Failure
	// Notes say what was not looked at, and why.
	Notes []string

	Images []images.Picture // of all rows, the test's last; Decode reads them
}

// InspectedClass counts the findings in the rows of a label.
type InspectedClass struct {
	Name string
	Rows int
	// Issues of each kind.
	Wrong, Copies, Leaked, Outliers int

	Accuracy float64 // share of its rows that are predicted as this class; NaN if unknown
}

// FewImages is how many images a class should have at least.
const FewImages = 20

// ClassOverlap is a class that images of another are taken for.
type ClassOverlap struct {
	Label, Predicted string
	Rows             int
	Share            float64 // of the label's rows
}

// inspector is one inspection.
type inspector struct {
	InspectOptions
	*features.Table     // features, and after them those of the test sets
	train           int // rows of Features
	known           []images.Picture
	pictures        *pictures
	report          *Inspection
}

func (in *inspector) rowOf(i int) []float32 { return in.Rows.Row(i) }

func (in *inspector) progress(what string, done, total int) {
	if in.Progress != nil {
		in.Progress(what, done, total)
	}
}

// Inspect inspects feature sets.
func Inspect(ctx context.Context, o InspectOptions) (_ *Inspection, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := features.Distinct(append(append([]string{}, o.Features...), o.Test...)); err != nil {
		return nil, err
	}
	space := features.NewSpace(o.Memory/2, o.Scratch, 1)
	defer func() { err = errors.Join(err, space.Close()) }()
	table, err := features.OpenTable(ctx, space, append(append([]string{}, o.Features...), o.Test...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, table.Close()) }()
	in := &inspector{InspectOptions: o, Table: table, report: &Inspection{Accuracy: math.NaN()}}
	for i, set := range table.Sets {
		if i < len(o.Features) {
			in.train += set.N
		} else {
			in.report.Test += set.N
		}
		failed, err := set.Errors()
		if err != nil {
			return nil, err
		}
		in.report.Failed = append(in.report.Failed, failed...)
	}
	in.report.Rows = in.train
	if in.pictures, err = newPictures(o.Scratch, len(in.Labels)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.pictures.Close()) }()
	if err := in.readImages(ctx); err != nil {
		return nil, err
	}
	if err := in.run(ctx); err != nil {
		return nil, err
	}
	in.report.Images = in.known
	return in.report, nil
}

// readImages reads every image once, for its picture and what is odd about it.
func (in *inspector) readImages(ctx context.Context) (err error) {
	n := len(in.Labels)
	all, err := images.FeatureSet("", "", in.Roots, in.Sets...)
	if err != nil {
		return err
	}
	in.known = make([]images.Picture, n)
	if all.Image == nil {
		in.report.Notes = append(in.report.Notes, "the feature sets do not list their images, so only features were compared")
		return nil
	}
	for i := range n {
		in.known[i] = all.Image(i)
	}
	if in.NoImages {
		in.report.Notes = append(in.report.Notes, "images were not read, so copies are found by their features alone")
		return nil
	}
	var counting sync.Mutex
	done := 0
	count := func() {
		counting.Lock()
		defer counting.Unlock()
		done++
		in.progress("reading images", done, n)
	}
	err = parallel.Ranges(ctx, n, 8, func() func(int, int) error {
		return func(from, to int) error {
			for i := from; i < to; i++ {
				if err := ctx.Err(); err != nil {
					return err
				}
				if p := decode(in.known[i]); p != nil {
					if err := in.pictures.put(i, p); err != nil {
						return err
					}
				}
				count()
			}
			return nil
		}
	})
	if err != nil {
		return err
	}
	for i := range n {
		if !in.pictures.has(i) {
			in.report.Unread++
		}
	}
	return nil
}

// decode returns the picture of an image; nil if it cannot be read.
func decode(img images.Picture) (p *picture) {
	defer func() {
		if recover() != nil { // decoders of odd formats have panicked before
			p = nil
		}
	}()
	from, err := img.Decode()
	if err != nil || from.Bounds().Empty() {
		return nil
	}
	return pictureOf(from)
}

// run looks for everything.
func (in *inspector) run(ctx context.Context) error {
	n, classes := len(in.Labels), len(in.Classes)
	copies, err := in.copies(ctx)
	if err != nil {
		return err
	}
	r := in.report
	r.Classes = make([]InspectedClass, classes)
	for c, name := range in.Classes {
		r.Classes[c] = InspectedClass{Name: name, Accuracy: math.NaN()}
	}
	for _, y := range in.Labels[:in.train] {
		if y < 0 {
			r.Unlabelled++
		} else {
			r.Classes[y].Rows++
		}
	}
	// Copies share a part, else a model would know them.
	group := lists.UpTo(n)
	first := func(i int) int {
		for group[i] != i {
			i = group[i]
		}
		return i
	}
	for _, c := range copies {
		a, b := first(c.a), first(c.b)
		group[max(a, b)] = min(a, b)
	}
	for i := range group {
		group[i] = first(i)
	}
	order := rand.New(rand.NewPCG(in.Seed, 0x510e527f)).Perm(in.train)
	out, err := in.outOfFold(ctx, folds(in.Labels[:in.train], group[:in.train], in.Folds, order))
	if err != nil {
		return err
	}
	in.addCopies(copies)
	in.addLabels(out, in.addOutliers(out))
	in.addOdd()
	training.SortIssues(r.Issues)
	r.Classes = slices.DeleteFunc(r.Classes, func(c InspectedClass) bool { return c.Rows == 0 }) // of test images alone
	return nil
}
