package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// kinds are all scores, in the order of their files. Each is declared in the file of
// its type, by declare.
var kinds []kind

// kind is a type of scores.
type kind struct {
	name    string // in files; it never changes
	methods []method
	empty   func() stored                 // a score to load
	of      func(s Scorer) (stored, bool) // the score, if it is of this kind
}

// kindOf returns the kind of a score, and the score as a file can hold it.
func kindOf(s Scorer) (k kind, own stored, found bool) {
	for _, k := range kinds {
		if own, ok := k.of(s); ok {
			return k, own, true
		}
	}
	return kind{}, nil, false
}

// emptyOf returns a score to load, of the kind that files call name.
func emptyOf(name string) (stored, error) {
	for _, k := range kinds {
		if k.name == name {
			return k.empty(), nil
		}
	}
	return nil, fmt.Errorf("a score of the kind %q is not known", name)
}

// method is a way to fit a score.
type method struct {
	name  string // that users know
	reads needs  // of an image to score: features, logits or both
	needs needs  // to be fitted
	words Words
	// group is the same for methods that share work when they are scored
	// together; "" for those that share none.
	group string
	fit   func(ctx context.Context, in Input) (Scorer, error)
	// memory is how many float64 the matrices hold at once at most while the score is
	// fitted on features [·, d] in c classes; nil where none grows with d², c² or
	// c·d.
	memory func(d, c float64) float64
}

// Words say to people what a score measures. {A} and {B} stand for the two most likely
// classes.
type Words struct {
	Strange string // what a low value means: "…"
	Usual   string // what a usual or high value means
	More    string // compares with other images: "… than 99% of the calibration images"
}

// WordsOf returns the words of the score called name; found is false where there is none.
func WordsOf(name string) (w Words, found bool) {
	m, found := methodOf(name)
	return m.words, found
}

// needs is a set of what scores need.
type needs uint

const (
	featureRows needs = 1 << iota
	logitRows         // of any classifier
	labelRows         // of training images
	validation        // its needs are better met by images that were not trained on
	lastLayer         // of the classifier, a linear head on the features
	network           // the whole classifier on the features, to differentiate

	classifier = logitRows | lastLayer | network
)

// declare adds the scores of type T to those that there are. It is called once for
// each type, as the value of a variable of its file. name is the type's in files.
func declare[T any, P interface {
	*T
	stored
}](name string, methods ...method) struct{} {
	kinds = append(kinds, kind{
		name: name, methods: methods,
		empty: func() stored { return P(new(T)) },
		of: func(s Scorer) (stored, bool) {
			if v, ok := any(s).(T); ok {
				return P(&v), true
			}
			p, ok := s.(P)
			return p, ok
		},
	})
	return struct{}{}
}

// plain is a method that fits nothing.
func plain(s Scorer) func(context.Context, Input) (Scorer, error) {
	return func(context.Context, Input) (Scorer, error) { return s, nil }
}

// Input holds what scores are fitted on. What a score does not need may be
// nil.
type Input struct {
	Train     *Data   // training rows
	Val       *Data   // in-distribution rows that nothing was trained on; nil means Train
	LastLayer *Linear // the last layer, on the same features
	Network   Network // ODIN's, from the same features; nil means LastLayer
	// Memory is how many bytes the matrices may take that fitting needs at once,
	// and, of KNN, NNGuide and Relation, scoring. 0 means 1 GiB.
	Memory int64
}

// Names lists the names that Fit knows, in alphabetical order.
func Names() []string {
	var names []string
	for m := range methods {
		names = append(names, m.name)
	}
	slices.Sort(names)
	return names
}

// methods are all ways to fit a score.
func methods(yield func(method) bool) {
	for _, k := range kinds {
		for _, m := range k.methods {
			if !yield(m) {
				return
			}
		}
	}
}

// methodOf returns the method with a name.
func methodOf(name string) (m method, found bool) {
	for m := range methods {
		if m.name == name {
			return m, true
		}
	}
	return method{}, false
}

// Headless reports whether the score called name needs only features and labels, no
// classifier.
func Headless(name string) bool {
	m, found := methodOf(name)
	return found && (m.reads|m.needs)&classifier == 0
}

// ReadsLogits reports whether the score called name reads logits of the images that it
// scores.
func ReadsLogits(name string) bool {
	m, found := methodOf(name)
	return !found || m.reads&logitRows != 0
}

// Related lists the scores, with that called name, that share work in [ScoreAll].
func Related(name string) []string {
	m, _ := methodOf(name)
	if m.group == "" {
		return []string{name}
	}
	var names []string
	for other := range methods {
		if other.group == m.group {
			names = append(names, other.name)
		}
	}
	return names
}

// Fit fits the score called name with OpenOOD's defaults. The error wraps
// ErrMissing if the input lacks what the score needs, and is an [options.Error]
// about Memory if that is too little.
func Fit(ctx context.Context, name string, in Input) (Scorer, error) {
	m, found := methodOf(name)
	if !found {
		return nil, fmt.Errorf("score %q: it is one of %q", name, Names())
	}
	if in.Val == nil {
		in.Val = in.Train
	}
	if in.Network == nil && in.LastLayer != nil {
		in.Network = in.LastLayer
	}
	err := m.check(in)
	if err == nil {
		var s Scorer
		if s, err = m.fit(ctx, in); err == nil {
			if s, ok := s.(interface{ limit(memory int64) }); ok {
				s.limit(in.Memory)
			}
			return s, nil
		}
	}
	return nil, fmt.Errorf("score %s: %w", name, err)
}

// check reports what the input lacks.
func (m method) check(in Input) error {
	data := in.Train
	if m.needs&validation != 0 {
		data = in.Val
	}
	if rows := m.needs & (featureRows | logitRows | labelRows); rows != 0 {
		if err := data.need(rows); err != nil {
			return err
		}
	}
	if m.needs&lastLayer != 0 {
		if err := in.LastLayer.need(); err != nil {
			return err
		}
	}
	if m.needs&network != 0 && in.Network == nil {
		return fmt.Errorf("a network to differentiate: %w", ErrMissing)
	}
	d, c := 0, 0
	if data != nil {
		d, c = data.D, data.Classes
	}
	if in.LastLayer != nil {
		d, c = max(d, in.LastLayer.In), max(c, in.LastLayer.Out)
	}
	return m.fits(d, c, in.Memory)
}

// fits reports that the matrices of features [·, d] in c classes are too large for
// the memory.
func (m method) fits(d, c int, memory int64) error {
	if m.memory == nil {
		return nil
	}
	if need, have := 8*m.memory(float64(d), float64(c)), float64(cmp.Or(memory, DefaultMemory)); need > have {
		return options.Errorf("Memory", "%.3g GiB are too few: %d features in %d classes need %.3g GiB", have/(1<<30), d, c, need/(1<<30))
	}
	return nil
}

// CheckMemory returns the error that Fit would return for want of memory with
// features [·, d] in c classes, before anything that Fit needs is trained. 0 means
// 1 GiB.
func CheckMemory(name string, d, c int, memory int64) error {
	m, _ := methodOf(name)
	if err := m.fits(d, c, memory); err != nil {
		return fmt.Errorf("score %s: %w", name, err)
	}
	return nil
}

// DefaultMemory is how many bytes a score takes, about, where nothing else is said.
const DefaultMemory = 1 << 30

// Detach copies the training rows that a score still reads into memory, so that
// their source can be closed.
func Detach(s Scorer) {
	if s, ok := s.(interface{ detach() }); ok {
		s.detach()
	}
}

func residualMemory(d, c float64) float64 { return 6*d*d + 3*c*d }
