package extractor

import "github.com/mlrbfn/mlrbfn/internal/onnx"

// This file writes as ONNX nodes what features are made of the graph's values: all of it for
// graphs that are exported, and how far patches are for the session, too.

func init() {
	onnx.AddFeatures = func(g *onnx.Model, backbone any) onnx.Value { return backbone.(*Model).addFeatures(g) }
}

// addFeatures adds the features [batch, D]: the embedding, then the layers.
func (m *Model) addFeatures(g *onnx.Model) onnx.Value {
	all := []onnx.Value{m.pool.add(g, g.Value(m.Output()), m.outputs[0].row)}
	for _, l := range m.layers {
		v := g.Value(l.name)
		switch {
		case l.patches == nil:
			v = l.pool.add(g, v, l.row)
		default:
			v = l.patches.addColumns(g, v)
		}
		all = append(all, v)
	}
	if len(all) == 1 {
		return all[0]
	}
	return g.Node("Concat", all, onnx.Int("axis", 1))
}

// addOutputs adds what the session has of each layer: the value, its mean over the places of
// a map, or how far its patches are.
func (m *Model) addOutputs(g *onnx.Model) (all []onnx.Value) {
	for _, l := range m.layers {
		v := onnx.Value(l.name)
		switch {
		case l.pooled:
			v = g.Op("GlobalAveragePool", g.Cast(v, onnx.Float))
		case l.patches != nil && l.patches.PatchNode != nil:
			v = l.patches.addDistances(g, v)
		}
		all = append(all, v)
	}
	return all
}

// Axes are the dimensions of the embedding that Pool takes a mean over.
func (m *Model) Axes() []int64 { return m.pool.axes(m.outputs[0].row) }

// axes returns the dimensions of a value [batch, …] that a mean is taken over.
func (p pooling) axes(row []int64) []int64 {
	switch {
	case p.name == "" || p.name == "cls":
		return nil
	case len(row) == 2:
		return []int64{1}
	case p.dimStride == 1 && p.dim == int(row[2]): // channels last
		return []int64{1, 2}
	}
	return []int64{2, 3}
}

// add adds the pooled value [batch, D] of a value whose rows have that shape, rounded to
// float32.
func (p pooling) add(g *onnx.Model, v onnx.Value, row []int64) onnx.Value {
	first := func() onnx.Value { // [batch, 1, D]
		return g.Node("Gather", []onnx.Value{v, g.Int64s(0)}, onnx.Int("axis", 1))
	}
	mean := func() onnx.Value {
		return g.Reduce("ReduceMean", g.Cast(addTokens(g, v, p.skip, int(row[0])), onnx.Double), p.name == classAndMean, p.axes(row)...)
	}
	pooled := v
	switch p.name {
	case "cls":
		pooled = first()
	case "mean":
		pooled = mean()
	case classAndMean:
		pooled = g.Node("Concat", []onnx.Value{g.Cast(first(), onnx.Double), mean()}, onnx.Int("axis", 1))
	}
	// For half floats this also keeps onnxruntime from joining a cast to them
	// with the one from them, which would leave out the rounding between.
	return g.Cast(g.Op("Reshape", pooled, g.Int64s(0, -1)), onnx.Float)
}

// addTokens adds those after the first skip of n along dimension 1.
func addTokens(g *onnx.Model, v onnx.Value, skip, n int) onnx.Value {
	if skip == 0 {
		return v
	}
	var at []int64
	for i := skip; i < n; i++ {
		at = append(at, int64(i))
	}
	return g.Node("Gather", []onnx.Value{v, g.Int64s(at...)}, onnx.Int("axis", 1))
}

// addDistances adds how far each patch is from the mean, [batch, places] of float32, in the
// order of the places.
func (p *patched) addDistances(g *onnx.Model, v onnx.Value) onnx.Value {
	d, v := p.channels, g.Cast(v, onnx.Float)
	if !p.channelsLast {
		v = g.Op("Reshape", v, g.Int64s(0, int64(d), -1))
		v = g.Op("MatMul", g.Floats(p.Whiten, d, d), g.Op("Sub", v, g.Floats(p.Mean, d, 1)))
		return g.Reduce("ReduceSum", g.Op("Mul", v, v), false, 1)
	}
	v = g.Op("Reshape", v, g.Int64s(0, -1, int64(d)))
	turned := make([]float32, d*d)
	for i, w := range p.Whiten {
		turned[i%d*d+i/d] = w
	}
	v = g.Op("MatMul", g.Op("Sub", v, g.Floats(p.Mean, d)), g.Floats(turned, d, d))
	return addTokens(g, g.Reduce("ReduceSum", g.Op("Mul", v, v), false, 2), p.skip, p.skip+p.places())
}

// addColumns adds what [Patches.Layer] has of a value.
func (p *patched) addColumns(g *onnx.Model, v onnx.Value) onnx.Value {
	far := g.Cast(p.addDistances(g, v), onnx.Double)
	worst, _ := g.TopK(far, worstOf(p.places()))
	var columns []onnx.Value
	for _, v := range []onnx.Value{worst, far} {
		columns = append(columns, g.Op("Log", g.Op("Max", g.Reduce("ReduceMean", v, true, 1), g.Number(leastDistance))))
	}
	return g.Cast(g.Node("Concat", columns, onnx.Int("axis", 1)), onnx.Float)
}
