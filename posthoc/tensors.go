package posthoc

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"mlrbfn/internal/safetensors"
)

// Tensors returns what a fitted score is made of, for a file: the name of its
// type and its exported fields as tensors, named prefix.field in lower case, and
// prefix.field.field further down. Load is the inverse. A bank of training rows
// is stored with it, however large.
func Tensors(prefix string, s Score) (kind string, tensors []safetensors.Tensor, err error) {
	v := reflect.Indirect(reflect.ValueOf(s))
	var w tensorWriter
	if err := w.fields(prefix, v); err != nil {
		return "", nil, fmt.Errorf("store a score: %w", err)
	}
	return v.Type().Name(), w.tensors, nil
}

// kinds are the types that Load makes.
var kinds = []Score{
	&MaxSoftmax{}, &MaxLogit{}, &Energy{}, &GEN{}, &KLM{}, &ODIN{}, &KNN{}, &MDS{}, &RMDS{}, &ViM{}, &Residual{},
	&Clip{}, &DICE{}, &ASH{}, &GradNorm{}, &SHE{}, &NNGuide{}, &Relation{}, &FDBD{}, &NCI{},
}

// Load makes the score of the kind and prefix that Tensors named from the
// tensors of a file. The error says which of them is absent or has another
// shape.
func Load(prefix, kind string, f *safetensors.File) (Score, error) {
	i := slices.IndexFunc(kinds, func(s Score) bool { return reflect.TypeOf(s).Elem().Name() == kind })
	if i < 0 {
		return nil, fmt.Errorf("score %s is of an unknown kind, %q", prefix, kind)
	}
	v := reflect.New(reflect.TypeOf(kinds[i]).Elem())
	if err := (tensorReader{f}).fields(prefix, v.Elem()); err != nil {
		return nil, fmt.Errorf("score %s: %w", prefix, err)
	}
	return v.Interface().(Score), nil
}

// eachField calls do for the fields of a struct that are stored, with their
// tensors' names.
func eachField(prefix string, v reflect.Value, do func(name string, field reflect.Value, tag reflect.StructTag) error) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() || field.Tag.Get("save") == "-" {
			continue
		}
		if err := do(prefix+"."+strings.ToLower(field.Name), v.Field(i), field.Tag); err != nil {
			return err
		}
	}
	return nil
}

// columns returns how many columns a matrix has whose tag names another field
// of its struct, 0 for a vector.
func columns(v reflect.Value, tag reflect.StructTag) int {
	name := tag.Get("cols")
	if name == "" {
		return 0
	}
	switch of := v.FieldByName(name).Interface().(type) {
	case int:
		return of
	case []float64:
		return len(of)
	case *Gaussian:
		return of.rank()
	}
	panic("posthoc: no columns in " + name)
}

type tensorWriter struct{ tensors []safetensors.Tensor }

func (w *tensorWriter) add(name string, data any, shape ...int) {
	w.tensors = append(w.tensors, safetensors.Tensor{Name: name, Shape: shape, Data: data})
}

func (w *tensorWriter) fields(prefix string, v reflect.Value) error {
	return eachField(prefix, v, func(name string, field reflect.Value, tag reflect.StructTag) error {
		switch x := field.Interface().(type) {
		case float64:
			w.add(name, []float64{x})
		case int:
			w.add(name, []int64{int64(x)})
		case bool:
			w.add(name, []uint8{map[bool]uint8{true: 1}[x]})
		case []float64:
			if cols := columns(v, tag); cols > 0 {
				w.add(name, x, len(x)/cols, cols)
			} else {
				w.add(name, x, len(x))
			}
		case *Data:
			w.add(name+".features", x.Features(0, x.N), x.N, x.D)
			if tag.Get("save") == "logits" {
				w.add(name+".logits", x.Logits(0, x.N), x.N, x.Classes)
			}
		case Metric, Shape:
			w.add(name, []uint8(field.String()), field.Len())
		default:
			if field.Type() == reflect.TypeFor[Network]() {
				return w.network(name, x)
			}
			return w.fields(name, field.Elem())
		}
		return nil
	})
}

// network stores a network as an MLP.
func (w *tensorWriter) network(name string, network any) error {
	var m MLP
	switch x := network.(type) {
	case *Linear:
		m = MLP{x}
	case MLP:
		m = x
	default:
		return fmt.Errorf("%s is a %T, which cannot be stored", name, x)
	}
	for i, l := range m {
		if err := w.fields(name+"."+strconv.Itoa(i), reflect.ValueOf(l).Elem()); err != nil {
			return err
		}
	}
	return nil
}

type tensorReader struct{ file *safetensors.File }

func (r tensorReader) fields(prefix string, v reflect.Value) error {
	return eachField(prefix, v, func(name string, field reflect.Value, tag reflect.StructTag) error {
		var value any
		var err error
		switch field.Interface().(type) {
		case float64:
			value, err = scalar[float64](r.file, name)
		case int:
			var n int64
			n, err = scalar[int64](r.file, name)
			value = int(n)
		case bool:
			var b uint8
			b, err = scalar[uint8](r.file, name)
			value = b != 0
		case []float64:
			var shape []int
			value, shape, err = safetensors.Get[float64](r.file, name)
			want := columns(v, tag)
			if err == nil && (want == 0 && len(shape) != 1 || want > 0 && (len(shape) != 2 || shape[1] != want)) {
				return fmt.Errorf("tensor %q has shape %v", name, shape)
			}
		case *Data:
			value, err = r.data(name, tag)
		case *Linear:
			l := &Linear{}
			value, err = l, r.linear(name, l)
		case Metric, Shape:
			text, _, err := safetensors.Get[uint8](r.file, name)
			field.SetString(string(text))
			return err
		default:
			if field.Type() != reflect.TypeFor[Network]() {
				field.Set(reflect.New(field.Type().Elem()))
				return r.fields(name, field.Elem())
			}
			value, err = r.network(name)
		}
		if err == nil {
			field.Set(reflect.ValueOf(value))
		}
		return err
	})
}

func scalar[T safetensors.Element](f *safetensors.File, name string) (T, error) {
	values, _, err := safetensors.Get[T](f, name)
	if err == nil && len(values) != 1 {
		err = fmt.Errorf("tensor %q has %d values, want one", name, len(values))
	}
	if err != nil {
		return 0, err
	}
	return values[0], nil
}

func (r tensorReader) linear(name string, l *Linear) error {
	if err := r.fields(name, reflect.ValueOf(l).Elem()); err != nil {
		return err
	}
	if l.Out != len(l.Bias) || len(l.Weights) != l.In*l.Out {
		return fmt.Errorf("tensors %s: %d weights and %d biases for %d inputs and %d outputs", name, len(l.Weights), len(l.Bias), l.In, l.Out)
	}
	return nil
}

func (r tensorReader) network(name string) (MLP, error) {
	var m MLP
	for {
		layer := name + "." + strconv.Itoa(len(m))
		if len(m) > 0 && !slices.ContainsFunc(r.file.Tensors, func(t safetensors.Tensor) bool { return strings.HasPrefix(t.Name, layer+".") }) {
			return m, nil
		}
		l := &Linear{}
		if err := r.linear(layer, l); err != nil {
			return nil, err
		}
		m = append(m, l)
	}
}

func (r tensorReader) data(name string, tag reflect.StructTag) (*Data, error) {
	features, shape, err := safetensors.Get[float32](r.file, name+".features")
	if err != nil {
		return nil, err
	}
	if len(shape) != 2 || shape[1] == 0 {
		return nil, fmt.Errorf("tensor %q has shape %v", name+".features", shape)
	}
	data := NewData(features, shape[1], nil, 0)
	if tag.Get("save") == "logits" {
		logits, shape, err := safetensors.Get[float64](r.file, name+".logits")
		if err != nil {
			return nil, err
		}
		if len(shape) != 2 || shape[0] != data.N {
			return nil, fmt.Errorf("tensor %q has shape %v", name+".logits", shape)
		}
		data.Classes, data.Logits = shape[1], Matrix(logits, shape[1])
	}
	return data, nil
}
