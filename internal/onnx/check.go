package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrTooLarge is wrapped by the error of a graph that would compute too much.
var ErrTooLarge = errors.New("too large")

// What a graph may compute for one image, as far as its constants tell. Real image
// models stay far below.
const (
	maxValues = 1 << 28 // made by nodes whose sizes are constant, over all steps of loops
	maxRuns   = 1 << 24 // of nodes, over all steps of loops and calls of functions
)

// Check refuses a small file that asks for large computations: a tensor, a loop or
// calls of functions whose sizes are constants of the graph. It accepts sizes that
// only a run can tell, and data that are not a model.
func Check(model []byte) error {
	fields, err := split(model)
	if err != nil {
		return nil // onnxruntime says what is wrong with it
	}
	c := checker{functions: map[string][]field{}, known: map[string]work{}}
	var graph []byte
	for _, f := range fields {
		switch f.number {
		case modelGraph:
			graph = append(graph[:len(graph):len(graph)], f.body...) // two of them are one
		case modelFunction:
			parts := f.parts()
			c.functions[functionName(text(parts, 10), text(parts, 1), text(parts, 13))] = parts
		}
	}
	parts, err := split(graph)
	if err != nil {
		return nil
	}
	_, err = c.graph(parts, graphNode, nil, 1, 0)
	return err
}

func functionName(domain, name, overload string) string {
	return domain + "\x00" + name + "\x00" + overload
}

// checker adds up what a model computes.
type checker struct {
	functions map[string][]field
	known     map[string]work // by function; a function found here while it is added up calls itself
}

// work counts the values and the steps that nodes compute.
type work struct{ values, runs float64 }

func (w *work) add(other work) error {
	w.values += other.values
	w.runs += other.runs
	switch {
	case w.values > maxValues:
		return fmt.Errorf("%w: its constants ask for tensors of %.0f values, and %d are allowed", ErrTooLarge, w.values, maxValues)
	case w.runs > maxRuns:
		return fmt.Errorf("%w: its loops and functions run %.0f nodes, and %d are allowed", ErrTooLarge, w.runs, maxRuns)
	}
	return nil
}

// scope holds the small constants of a graph and of those around it.
type scope struct {
	values map[string][]float64
	outer  *scope
}

func (s *scope) get(name string) []float64 {
	for ; s != nil; s = s.outer {
		if v, ok := s.values[name]; ok {
			return v
		}
	}
	return nil
}

// graph adds up the nodes of a graph or function. nodes is the number of the field
// that holds them, and times is how often the graph or function runs.
func (c *checker) graph(fields []field, nodes protowire.Number, outer *scope, times float64, depth int) (all work, err error) {
	if depth > maxDepth {
		return all, errMalformed
	}
	s := &scope{map[string][]float64{}, outer}
	for _, f := range fields { // they come after the nodes, as a rule
		switch {
		case nodes != graphNode:
		case f.number == graphInitializer:
			parts := f.parts()
			v, err := tensorValues(parts, len(f.body))
			if err != nil {
				return all, err
			}
			s.values[text(parts, tensorName)] = v
		case f.number == graphSparseInitializer:
			if err := all.add(sparse(f)); err != nil {
				return all, err
			}
		}
	}
	for _, f := range fields {
		if f.number == nodes {
			w, err := c.node(f.parts(), s, times, depth)
			if err == nil {
				err = all.add(w)
			}
			if err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// sparse is the work of a SparseTensorProto, which onnxruntime makes dense.
func sparse(f field) work { return work{values: product(numbers(f.parts(), 3))} }

// node adds up a node with the graphs in it, and records its output if that is a
// constant.
func (c *checker) node(parts []field, s *scope, times float64, depth int) (all work, err error) {
	op, domain := text(parts, nodeOp), text(parts, 7)
	var inputs []string
	output := ""
	attributes := map[string][]field{}
	for _, f := range parts {
		switch f.number {
		case nodeInput:
			inputs = append(inputs, string(f.body))
		case nodeOutput:
			if output == "" {
				output = string(f.body)
			}
		case nodeAttribute:
			a := f.parts()
			attributes[text(a, 1)] = a
		}
	}
	in := func(i int) []float64 {
		if i >= len(inputs) {
			return nil
		}
		return s.get(inputs[i])
	}
	name := functionName(domain, op, text(parts, 8))
	if called, ok := c.functions[name]; ok {
		w, ok := c.known[name]
		if !ok {
			c.known[name] = work{runs: math.Inf(1)}
			if w, err = c.graph(called, 7, nil, 1, depth+1); err != nil {
				return w, err
			}
			c.known[name] = w
		}
		return work{times * w.values, times * (1 + w.runs)}, nil
	}
	var values float64
	if domain == "" || domain == "ai.onnx" {
		values = made(op, attributes, in)
		if v := constant(op, attributes, in, len(inputs)); v != nil && output != "" {
			s.values[output] = v
		}
	}
	if err := all.add(work{times * values, times}); err != nil {
		return all, err
	}
	for _, a := range attributes {
		for _, f := range a {
			var w work
			kind, ok := leadsTo[attributeKind][f.number]
			switch {
			case !ok:
				continue
			case kind == graphKind:
				body, steps := f.parts(), 1.0
				if trips := in(0); op == "Loop" && len(trips) == 1 && goesOn(body) {
					steps = max(1, trips[0])
				}
				w, err = c.graph(body, graphNode, s, times*steps, depth+1)
			case kind == tensorKind:
				_, err = tensorValues(f.parts(), len(f.body))
			case kind == sparseTensorKind:
				w = sparse(f)
			}
			if err == nil {
				err = all.add(w)
			}
			if err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// goesOn tells whether the body of a loop never ends the loop: its output condition
// is its input condition or a constant.
func goesOn(body []field) bool {
	makers := map[string][]field{}
	var given []string
	out := ""
	for _, f := range body {
		switch f.number {
		case graphNode:
			for _, name := range f.defines() {
				makers[name] = f.parts()
			}
		case graphInput:
			given = append(given, text(f.parts(), 1))
		case graphInitializer:
			makers[text(f.parts(), tensorName)] = []field{stringField(nodeOp, "Constant")}
		case graphOutput:
			if out == "" {
				out = text(f.parts(), 1)
			}
		}
	}
	for range len(makers) + 1 {
		maker, ok := makers[out]
		switch op := text(maker, nodeOp); {
		case !ok:
			return len(given) > 1 && out == given[1]
		case op == "Constant":
			return true
		case op == "Identity" || op == "Cast":
			out = text(maker, nodeInput)
		default:
			return false
		}
	}
	return false
}

// sizesOf says which input of an operator has the sizes of its output, or
// factors of them.
var sizesOf = map[string][]int{
	"ConstantOfShape": {0}, "Expand": {1}, "Tile": {1}, "OneHot": {1}, "Upsample": {1}, "Resize": {1, 2, 3}, "MaxUnpool": {2},
	"CenterCropPad": {1}, "AffineGrid": {1}, "HannWindow": {0}, "HammingWindow": {0}, "BlackmanWindow": {0}, "MelWeightMatrix": {0},
}

// attributesOf is the same for attributes.
var attributesOf = map[string][]string{
	"RandomNormal": {"shape"}, "RandomUniform": {"shape"}, "Multinomial": {"sample_size"}, "ConvTranspose": {"output_shape"},
	"MaxRoiPool": {"pooled_shape"}, "RoiAlign": {"output_height", "output_width"},
}

// made returns the least number of values that an operator makes, as far as
// constants tell.
func made(op string, attributes map[string][]field, in func(int) []float64) float64 {
	most := product(padded(numbers(attributes["pads"], 8)))
	for _, i := range sizesOf[op] {
		most = max(most, product(in(i)))
	}
	if names := attributesOf[op]; names != nil {
		n := 1.
		for _, name := range names {
			n *= product(append(numbers(attributes[name], 3), numbers(attributes[name], 8)...))
		}
		most = max(most, n)
	}
	switch start, limit, delta := in(0), in(1), in(2); {
	case op == "Pad":
		most = max(most, product(padded(limit)))
	case op == "Range" && len(start) == 1 && len(limit) == 1 && len(delta) == 1:
		if n := (limit[0] - start[0]) / delta[0]; n > most {
			most = n
		}
	}
	return most
}

// padded returns the sizes that pads alone make.
func padded(pads []float64) []float64 {
	sizes := make([]float64, len(pads)/2)
	for i := range sizes {
		sizes[i] = max(1, 1+pads[i]+pads[i+len(sizes)])
	}
	return sizes
}

// constant returns the output of an operator if it is constant and needed, else
// nil.
func constant(op string, attributes map[string][]field, in func(int) []float64, inputs int) []float64 {
	switch op {
	case "Constant":
		for _, f := range attributes["value"] {
			if f.number == 5 {
				v, _ := tensorValues(f.parts(), len(f.body))
				return v
			}
		}
		for name, number := range map[string]protowire.Number{"value_int": 3, "value_ints": 8} {
			if v := numbers(attributes[name], number); v != nil {
				return v
			}
		}
	case "Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape":
		return in(0)
	case "Concat":
		var all []float64
		for i := range inputs {
			v := in(i)
			if v == nil || len(all)+len(v) > maxConstant {
				return nil
			}
			all = append(all, v...)
		}
		return all
	}
	return nil
}

// maxConstant is the largest number of values of a constant that is decoded: sizes
// have one for each dimension.
const maxConstant = 64

// tensorValues returns the values of a small TensorProto of size bytes, nil if it
// is large or of another type. A shape with more values than the bytes can hold is
// an error.
func tensorValues(tensor []field, size int) ([]float64, error) {
	var element Element
	var raw []byte
	for _, f := range tensor {
		switch f.number {
		case 2:
			element = Element(f.value)
		case tensorDataLocation:
			if int32(f.value) == 1 {
				return nil, nil // another file has them
			}
		case tensorRawData:
			raw = f.body
		}
	}
	// No element has less than a bit.
	if n := product(numbers(tensor, 1)); n > 8*float64(size) {
		return nil, fmt.Errorf("%w: tensor %q is said to have %.0f values, and %d bytes are there", ErrTooLarge, text(tensor, tensorName), n, size)
	} else if n > maxConstant {
		return nil, nil
	}
	width := map[Element]int{Float: 4, Int32: 4, Int64: 8, Double: 8}[element]
	if width == 0 {
		return nil, nil
	}
	switch {
	case raw != nil:
	case element == Int32:
		return numbers(tensor, 5), nil
	case element == Int64:
		return numbers(tensor, 7), nil
	default:
		for _, f := range tensor {
			if f.number == map[Element]protowire.Number{Float: 4, Double: 10}[element] {
				raw = f.body
			}
		}
	}
	var values []float64
	for ; len(raw) >= width && len(values) < maxConstant; raw = raw[width:] {
		values = append(values, number(element, raw))
	}
	return values, nil
}

// number decodes one element.
func number(e Element, raw []byte) float64 {
	switch e {
	case Float:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	case Double:
		return math.Float64frombits(binary.LittleEndian.Uint64(raw))
	case Int32:
		return float64(int32(binary.LittleEndian.Uint32(raw)))
	}
	return float64(int64(binary.LittleEndian.Uint64(raw)))
}

// numbers returns the whole numbers in the fields of a number, packed or not.
func numbers(fields []field, number protowire.Number) []float64 {
	var all []float64
	for _, f := range fields {
		switch {
		case f.number != number:
		case f.body == nil:
			all = append(all, float64(int64(f.value)))
		default:
			for body := f.body; len(body) > 0 && len(all) <= maxConstant; {
				v, n := protowire.ConsumeVarint(body)
				if n < 0 {
					break
				}
				all, body = append(all, float64(int64(v))), body[n:]
			}
		}
	}
	return all
}

// product returns the number of values of a shape, 0 of none. Free dimensions
// count as 1.
func product(sizes []float64) float64 {
	if len(sizes) == 0 {
		return 0
	}
	n := 1.
	for _, size := range sizes {
		if size >= 0 {
			n *= size
		}
	}
	return n
}
