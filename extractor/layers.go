package extractor

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// This file takes more from a run than the embedding: what blocks of the network hand on.
// The session is of the graph in the file with more outputs.

// AutoLayers in [Options.Layers] takes the ends of a few of the network's blocks.
const AutoLayers = "auto"

// NoLayers stands for none.
const NoLayers = "none"

// mostLayers is how many layers [AutoLayers] takes.
const mostLayers = 4

// layer is a value of the graph that features are pooled from.
type layer struct {
	name    string
	row     []int64 // shape of the value for an image
	pool    pooling
	pooled  bool     // by the session already
	patches *patched // whose patches are described, in the place of a pooled value; nil for none
}

// Layers says which values of the graph follow the embedding in the features; nil for none.
func (m *Model) Layers() (all []features.Layer) {
	for _, l := range m.layers {
		if l.patches == nil {
			all = append(all, features.Layer{Name: l.name, D: l.pool.dim, Pool: l.pool.name})
		}
	}
	if p := m.options.Patches; p != nil {
		all = append(all, p.Layer())
	}
	return all
}

// chooseLayers finds the layers that names stand for.
func (m *Model) chooseLayers(ctx context.Context, names []string) (err error) {
	if len(names) == 0 || slices.Equal(names, []string{NoLayers}) {
		return nil
	}
	if slices.Equal(names, []string{AutoLayers}) {
		if names, err = m.findLayers(ctx); err != nil {
			return err
		}
	}
	values, err := m.valuesOf("Layers", names)
	for _, value := range values {
		m.addLayer(value)
	}
	return err
}

// valuesOf returns the values of the graph that an option names.
func (m *Model) valuesOf(option string, names []string) (values []string, err error) {
	data, unmap, err := disk.Map(m.File, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	for _, name := range names {
		value, all := onnx.FindValue(data, name)
		if value == "" {
			return nil, options.Errorf(option, "the graph computes no %q; near names: %s; %s finds some by itself", name, strings.Join(nearest(name, all), ", "), AutoLayers)
		}
		if slices.Contains(values, value) {
			return nil, options.Errorf(option, "%q is named twice", name)
		}
		values = append(values, value)
	}
	return values, nil
}

func (m *Model) addLayer(value string) {
	m.outputs = append(m.outputs, tensor{TensorInfo: TensorInfo{Name: onnx.LayerOutput(len(m.layers)), Type: "float32"}})
	m.layers = append(m.layers, layer{name: value})
}

// fused are the operators after a block's end whose value stands for it: onnxruntime
// computes them together with the sum.
var fused = []string{"Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "HardSwish", "Gelu"}

// blockEnds returns the values that blocks of a network hand on: where branches join by a
// sum or a list, what one convolution gives another without an activation (as linear
// bottlenecks do), and what convolutions read where nothing joins. In 8 bits it is the value
// that is read, after its rounding: to name another has the sum computed in float32.
func blockEnds(waists []onnx.Waist, fused []string) (ends []string) {
	joins := func(w onnx.Waist) bool { return w.Joins && slices.Contains([]string{"Add", "Sum", "Concat"}, w.Op) }
	plain := !slices.ContainsFunc(waists, joins)
	for i, w := range waists[:max(0, len(waists)-1)] {
		next := waists[i+1]
		switch {
		case plain && next.Op == "Conv" && i > 0, w.Op == "Conv" && next.Op == "Conv":
			ends = append(ends, w.Name)
		case joins(w) && next.Op == "QuantizeLinear" && i+2 < len(waists):
			ends = append(ends, waists[i+2].Name)
		case joins(w) && slices.Contains(fused, next.Op):
			ends = append(ends, next.Name)
		case joins(w):
			ends = append(ends, w.Name)
		}
	}
	return ends
}

// usable returns the ends of the network's blocks whose values for an image have a shape that
// can be used.
func (m *Model) usable(ctx context.Context, option string, check func(row []int64) error) (names []string, err error) {
	data, unmap, err := disk.Map(m.File, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	if m.ends == nil {
		together := fused
		if m.looksQuantised() { // where the last bits of what a norm adds up first are rounded to others
			together = append(slices.Clone(fused), "LayerNormalization")
		}
		m.ends = blockEnds(onnx.Waists(data, m.input.Name, m.outputs[0].Name), together)
		if len(m.ends) == 0 {
			return nil, options.Errorf(option, "the graph has no blocks that can be told; name values of it")
		}
		if m.endShapes, err = m.shapesOf(ctx, m.ends); err != nil {
			return nil, err
		}
	}
	for i, shape := range m.endShapes {
		if shape != nil && check(shape) == nil {
			names = append(names, m.ends[i])
		}
	}
	return names, nil
}

// shapesOf returns the shapes that values of the graph have for an image; nil for those that
// have no row for each.
func (m *Model) shapesOf(ctx context.Context, names []string) (shapes [][]int64, err error) {
	// A copy of m would read its hash, which is being computed.
	probe := &Model{Dir: m.Dir, File: m.File, Spec: m.Spec, bytes: m.bytes, input: m.input, options: m.options, kept: new(keptRunners)}
	for _, name := range names {
		probe.addLayer(name)
	}
	if err := probe.newSession(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, probe.session.Destroy()) }()
	n := m.rows(1)
	if shapes, err = probe.runFree(ctx, n); err != nil {
		return nil, err
	}
	for i, shape := range shapes {
		if shapes[i] = nil; len(shape) >= 2 && shape[0] == int64(n) {
			shapes[i] = shape[1:]
		}
	}
	return shapes, nil
}

// findLayers returns a few of the values that can be pooled, from a third of the network's
// depth to its end.
func (m *Model) findLayers(ctx context.Context) (names []string, err error) {
	usable, err := m.usable(ctx, "Layers", func(row []int64) error {
		_, err := newLayerPooling(row, m.Spec.Height, m.Spec.Width)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range mostLayers {
		from := len(usable) / 3
		at := from + (i+1)*(len(usable)-from)/mostLayers - 1
		if at >= 0 && at < len(usable) && !slices.Contains(names, usable[at]) {
			names = append(names, usable[at])
		}
	}
	if len(names) == 0 {
		return nil, options.Errorf("Layers", "no block of the graph gives one tensor for each image; name values of it")
	}
	return names, nil
}

// poolLayers plans the pooling of the layers, whose shapes are known. A new session pools those
// that are maps: to hand them over, onnxruntime would first bring them into another order.
func (m *Model) poolLayers(ctx context.Context) (err error) {
	maps := false
	for i, out := range m.outputs[len(m.outputs)-len(m.layers):] {
		l := &m.layers[i]
		if l.patches != nil {
			if l.patches.PatchNode != nil {
				if !slices.Equal(out.row, []int64{int64(l.patches.places())}) {
					return options.Errorf("PatchNodes", "%s: %v distances for an image, and not %d", l.name, out.row, l.patches.places())
				}
				continue
			}
			if l.patches, err = newPatched(out.row, m.Spec.Height, m.Spec.Width); err != nil {
				return options.Errorf("PatchNodes", "%s: %w", l.name, err)
			}
			continue
		}
		l.row = out.row
		if l.pool, err = newLayerPooling(out.row, m.Spec.Height, m.Spec.Width); err != nil {
			return options.Errorf("Layers", "%s: %w", l.name, err)
		}
		l.pooled = len(l.row) == 3 && l.pool.dim == int(l.row[0])
		maps = maps || l.pooled
	}
	if !maps {
		return nil
	}
	if err := errors.Join(m.session.Destroy(), m.newSession()); err != nil {
		return err
	}
	return m.measure(ctx)
}

// newLayerPooling plans how a layer becomes one row: of tokens [T, D] with a class token
// that and the mean of the patches, of other tokens and of maps the mean over the places; a
// vector stays as it is. The channels of a map are the dimension that differs from the two
// others.
func newLayerPooling(row []int64, height, width int) (pooling, error) {
	pool, layout := "mean", preprocess.NCHW
	switch {
	case len(row) == 1:
		pool = ""
	case len(row) == 3 && row[0] == row[1] && row[1] != row[2]:
		layout = preprocess.NHWC
	}
	p, err := newPooling(row, pool, layout, height, width)
	if len(row) == 2 && p.skip > 0 {
		p.name, p.dim = classAndMean, 2*p.dim
	}
	return p, err
}

// load makes the session of the graph in the model's file, with the layers as outputs.
func (m *Model) load(inputs, outputs []string, options *ort.SessionOptions) (_ *ort.DynamicAdvancedSession, err error) {
	if len(m.layers) == 0 {
		return ort.NewDynamicAdvancedSession(m.File, inputs, outputs, options)
	}
	folder, err := filepath.Abs(filepath.Dir(m.File))
	if err != nil {
		return nil, err
	}
	if err := options.AddSessionConfigEntry("session.model_external_initializers_file_folder_path", folder); err != nil {
		return nil, err
	}
	data, unmap, err := disk.Map(m.File, disk.Graph)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmap()) }()
	data, err = onnx.WithOutputs(data, m.addOutputs)
	if err != nil {
		return nil, err
	}
	return ort.NewDynamicAdvancedSessionWithONNXData(data, inputs, outputs, options)
}

// nearest returns a few of the names, those first that share the longest part with name.
func nearest(name string, names []string) []string {
	shared := func(other string) (longest int) {
		for i := range name {
			for n := longest + 1; i+n <= len(name) && strings.Contains(other, name[i:i+n]); n++ {
				longest = n
			}
		}
		return longest
	}
	near := slices.Clone(names)
	slices.SortStableFunc(near, func(a, b string) int { return shared(b) - shared(a) })
	return near[:min(5, len(near))]
}

// ProveLayers opens the model without layers and compares: with some values as outputs,
// onnxruntime could compute in another way. The error names the option.
func (m *Model) ProveLayers(ctx context.Context) (err error) {
	if len(m.layers) == 0 {
		return nil
	}
	opts := m.options
	opts.Layers, opts.Patches, opts.Kept = nil, nil, nil
	plain, err := OpenModel(ctx, m.File, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	with, err := m.Probe(ctx)
	if err != nil {
		return err
	}
	without, err := plain.Probe(ctx)
	if err != nil {
		return err
	}
	d := plain.Dim()
	for i := range with.Images {
		if !slices.Equal(with.Features[i*m.Dim():i*m.Dim()+d], without.Features[i*d:(i+1)*d]) {
			return options.Errorf("Layers", "with %s as outputs, onnxruntime computes another embedding of model %s, as it can of 8-bit and float16 graphs: name others, or none", strings.Join(m.layerNames(), ", "), m.File)
		}
	}
	return nil
}

func (m *Model) layerNames() (names []string) {
	for _, l := range m.layers {
		names = append(names, l.name)
	}
	return names
}
