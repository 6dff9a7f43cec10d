package posthoc

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Tensor is a named array of numbers. A fitted score is stored as some of them.
type Tensor struct {
	Name  string
	Shape []int // empty for a single number
	Data  any   // []float32, []float64, []int64 or []uint8, in C order
}

// Tensors returns the contents of a file that loads as the score: its kind and its
// tensors. A bank of training rows is stored with it, however large. [Load] is the
// inverse.
func Tensors(s Scorer) (kind string, tensors []Tensor, err error) {
	k, own, found := kindOf(s)
	if !found {
		return "", nil, fmt.Errorf("store a score: a %T cannot be stored", s)
	}
	var f fields
	if own.fields(&f); f.err != nil {
		return "", nil, fmt.Errorf("store a score: %w", f.err)
	}
	return k.name, f.tensors, nil
}

// Load makes a score of the kind and the tensors that [Tensors] returned. find
// returns the tensor of a name. The error says which tensor is missing or does not
// fit the others.
func Load(kind string, find func(name string) (t Tensor, found bool)) (Scorer, error) {
	s, err := emptyOf(kind)
	if err != nil {
		return nil, err
	}
	f := fields{find: find}
	if s.fields(&f); f.err != nil {
		return nil, f.err
	}
	return s, nil
}

// stored is a score that a file can hold.
type stored interface {
	Scorer
	// fields names each field of the score to f, which writes or reads it. Users'
	// files have these names: they never change.
	fields(f *fields)
}

// fields writes the fields of a score to tensors or, with find, reads them. After
// an error nothing more happens. Writing changes nothing of the score: others may
// score with it meanwhile.
type fields struct {
	find    func(name string) (Tensor, bool) // nil when writing
	tensors []Tensor                         // written so far
	prefix  string                           // of the names
	err     error
}

// loading reports whether fields are read, without an error so far.
func (f *fields) loading() bool { return f.find != nil && f.err == nil }

// values writes the values of a field or reads them with their shape.
func values[T float32 | float64 | int64 | uint8](f *fields, name string, v *[]T, shape ...int) []int {
	name = f.prefix + name
	switch {
	case f.err != nil:
	case f.find == nil:
		f.tensors = append(f.tensors, Tensor{Name: name, Shape: shape, Data: *v})
		return shape
	default:
		t, ok := f.find(name)
		if !ok {
			f.err = fmt.Errorf("tensor %q is missing", name)
			return nil
		}
		if *v, ok = t.Data.([]T); !ok {
			f.err = fmt.Errorf("tensor %q holds %T, want %T", name, t.Data, *v)
			return nil
		}
		return t.Shape
	}
	return nil
}

// refuse reports a field that does not fit, when reading.
func (f *fields) refuse(wrong bool, name, format string, args ...any) {
	if f.loading() && wrong {
		f.err = fmt.Errorf("tensor %q: "+format, append([]any{f.prefix + name}, args...)...)
	}
}

// one is a field with a single value.
func one[T float64 | int64 | uint8](f *fields, name string, v *T) {
	all := []T{*v}
	values(f, name, &all)
	f.refuse(len(all) != 1, name, "it has %d values, want one", len(all))
	if f.loading() {
		*v = all[0]
	}
}

func (f *fields) float(name string, v *float64) { one(f, name, v) }

// notNegative is a float that has no meaning below 0.
func (f *fields) notNegative(name string, v *float64) {
	f.float(name, v)
	f.refuse(!(*v >= 0 && *v <= math.MaxFloat64), name, "it is %g", *v)
}

func (f *fields) int(name string, v *int) {
	n := int64(*v)
	one(f, name, &n)
	if f.loading() {
		*v = int(n)
	}
}

func (f *fields) bool(name string, v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	one(f, name, &b)
	if f.loading() {
		*v = b != 0
	}
}

func text[T ~string](f *fields, name string, v *T) {
	bytes := []uint8(*v)
	values(f, name, &bytes, len(bytes))
	if f.loading() {
		*v = T(bytes)
	}
}

// vector is a field [n]; when reading, n is as large as want unless that is
// negative.
func (f *fields) vector(name string, v *[]float64, want int) {
	shape := values(f, name, v, len(*v))
	f.refuse(len(shape) != 1 || want >= 0 && len(*v) != want, name, "its shape %v does not fit", shape)
}

// matrix is a field [n, cols]; when reading, n is as large as want unless that is
// negative.
func (f *fields) matrix(name string, v *[]float64, want, cols int) {
	shape := values(f, name, v, len(*v)/max(cols, 1), cols)
	f.refuse(cols < 1 || len(shape) != 2 || shape[0] < 1 || shape[1] != cols || want >= 0 && shape[0] != want, name, "its shape %v does not fit", shape)
}

// within is fields of which the names begin with name.
func (f *fields) within(name string, more func(f *fields)) {
	prefix := f.prefix
	f.prefix += name + "."
	more(f)
	f.prefix = prefix
}

// bank is the training rows that a score still reads when it scores: their features
// and, if wanted, logits.
func (f *fields) bank(name string, v **Data, logits bool) {
	data := *v
	if f.find != nil {
		data = &Data{}
	}
	f.within(name, func(f *fields) {
		var features []float32
		var z []float64
		if f.find == nil {
			features = data.Features(0, data.N)
			if logits {
				z = data.Logits(0, data.N)
			}
		}
		shape := values(f, "features", &features, data.N, data.D)
		f.refuse(len(shape) != 2 || shape[0] < 1 || shape[1] < 1, "features", "its shape %v does not fit", shape)
		if f.loading() {
			data = NewData(features, shape[1], nil, 0)
		}
		if !logits {
			return
		}
		shape = values(f, "logits", &z, data.N, data.Classes)
		f.refuse(len(shape) != 2 || shape[0] != data.N || shape[1] < 1, "logits", "its shape %v does not fit", shape)
		if f.loading() {
			data.Classes, data.Logits = shape[1], Matrix(z, shape[1])
		}
	})
	if f.find != nil {
		*v = data
	}
}

// layer is a linear layer.
func (f *fields) layer(name string, v **Linear) {
	if f.find != nil {
		*v = &Linear{}
	}
	l := *v
	f.within(name, func(f *fields) {
		f.int("in", &l.In)
		f.int("out", &l.Out)
		f.refuse(l.Out < 1, "out", "it is %d", l.Out)
		f.matrix("weights", &l.Weights, l.Out, l.In)
		f.vector("bias", &l.Bias, l.Out)
	})
}

// network is a linear layer or an MLP; others cannot be stored.
func (f *fields) network(name string, v *Network) {
	m, err := layersOf(*v)
	if f.find == nil {
		f.err = errors.Join(f.err, err)
	}
	f.within(name, func(f *fields) {
		if f.find == nil {
			for i := range m {
				f.layer(strconv.Itoa(i), &m[i])
			}
			return
		}
		for i := 0; f.loading() && (i == 0 || f.hasLayer(strconv.Itoa(i))); i++ {
			var l *Linear
			f.layer(strconv.Itoa(i), &l)
			f.refuse(i > 0 && l.In != m[max(i, 1)-1].Out, strconv.Itoa(i), "the layer reads %d values, that before it gives another number", l.In)
			m = append(m, l)
		}
	})
	if f.find != nil {
		*v = m
	}
}

// layersOf returns the layers of a linear head or an MLP.
func layersOf(network Network) (MLP, error) {
	switch n := network.(type) {
	case *Linear:
		return MLP{n}, nil
	case MLP:
		return n, nil
	}
	return nil, fmt.Errorf("the network is a %T, not of linear layers", network)
}

// hasLayer reports whether any tensor of a layer is there.
func (f *fields) hasLayer(name string) bool {
	for _, field := range []string{"in", "out", "weights", "bias"} {
		if _, ok := f.find(f.prefix + name + "." + field); ok {
			return true
		}
	}
	return false
}
