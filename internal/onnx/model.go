// Package onnx writes ONNX graphs in protobuf's encoding: new ones ([New]) or
// additions to the graph of an existing file ([Parse]), whose other parts stay
// unchanged, byte for byte.
//
// The numbers of fields are those of onnx.proto.
package onnx

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Versions of ONNX's operators that [New] and [Parse] take. In all of them
// onnxruntime has what this package's callers use, in float64.
const (
	MinOpset = 8
	MaxOpset = 26
)

// irVersion is the format of new files, which onnxruntime reads since 1.9.
const irVersion = 8

// Numbers of fields of ModelProto.
const (
	modelIRVersion       protowire.Number = 1
	modelProducerName    protowire.Number = 2
	modelProducerVersion protowire.Number = 3
	modelGraph           protowire.Number = 7
	modelOpset           protowire.Number = 8
	modelMetadata        protowire.Number = 14
	modelFunction        protowire.Number = 25
)

// Element is the type of a tensor's elements.
type Element int64

// The elements, numbered as in TensorProto.
const (
	Float  Element = 1
	Uint8  Element = 2
	Int8   Element = 3
	Int32  Element = 6
	Int64  Element = 7
	Bool   Element = 9
	Half   Element = 10
	Double Element = 11
)

// Batch is the dimension of a declared shape that is the number of rows, free
// at run time.
const Batch = -1

// Value is the name of a tensor in a graph.
type Value string

// Model is an ONNX model that is being built.
type Model struct {
	ir      int // version of the format
	opset   int
	prefix  string            // of the names of all new values
	made    int               // how many new values there are
	renamed map[string]string // values of the parsed graph whose name was asked for
	known   map[string]Value  // values by how they were made, so that none is made twice
	fields  []field           // of ModelProto, but the graph
	graph   []field           // of GraphProto
}

// New returns an empty model of an opset; producer and version say what made it.
func New(opset int, producer, version string) (*Model, error) {
	if err := checkOpset(opset); err != nil {
		return nil, err
	}
	return &Model{
		ir: irVersion, opset: opset, prefix: "mlrbfn/",
		fields: []field{
			intField(modelIRVersion, irVersion), stringField(modelProducerName, producer), stringField(modelProducerVersion, version),
			bytesField(modelOpset, message(stringField(1, ""), intField(2, int64(opset)))),
		},
		graph: []field{stringField(2, producer)},
	}, nil
}

func checkOpset(opset int) error {
	if opset < MinOpset || opset > MaxOpset {
		return fmt.Errorf("opset %d: this program writes %d to %d", opset, MinOpset, MaxOpset)
	}
	return nil
}

// Parse reads a model, which is the content of the file graph, and the weights that it
// keeps in files beside that. Values with a reserved name are renamed. The Model refers
// to data, which must not change.
func Parse(data []byte, graph string, reserved ...string) (*Model, error) {
	fields, err := split(data)
	if err != nil {
		return nil, err
	}
	m, whole := &Model{renamed: map[string]string{}}, false
	in := inliner{graph, int64(len(data))}
	inline := edits{tensor: in.inline}
	for _, f := range fields {
		switch f.number {
		case modelGraph:
			if whole {
				return nil, errMalformed
			}
			whole = true // though it may have no fields
			if m.graph, err = split(f.body); err == nil {
				_, err = inline.fields(m.graph, graphKind, 0)
			}
			if err != nil {
				return nil, err
			}
			continue
		case modelFunction:
			body, err := inline.message(f.body, functionKind, 0)
			if err != nil {
				return nil, err
			}
			f = bytesField(f.number, body)
		}
		m.version(f)
		m.fields = append(m.fields, f)
	}
	if !whole {
		return nil, errMalformed
	}
	if err := checkOpset(m.opset); err != nil {
		return nil, err
	}
	return m, m.separateNames(reserved)
}

// version takes the versions of the format and of operators from a field of ModelProto.
func (m *Model) version(f field) {
	switch f.number {
	case modelIRVersion:
		m.ir = int(f.value)
	case modelOpset:
		set := f.parts()
		if domain := text(set, 1); domain == "" || domain == "ai.onnx" {
			for _, v := range set {
				if v.number == 2 {
					m.opset = int(v.value)
				}
			}
		}
	}
}

// separateNames makes sure that the names of a parsed graph, reserved names and new
// names do not collide.
func (m *Model) separateNames(reserved []string) error {
	taken := namesIn(m.graph, graphKind)
	m.prefix = freshPrefix("mlrbfn/", taken)
	for _, name := range reserved {
		if taken[name] {
			m.renamed[name] = freshPrefix("backbone/", taken) + name
		}
	}
	rename := edits{name: func(s string) string { return string(m.Value(s)) }}
	_, err := rename.fields(m.graph, graphKind, 0)
	return err
}

// freshPrefix lengthens a prefix that ends in / until no name begins with it.
func freshPrefix(prefix string, taken map[string]bool) string {
	for name := range taken {
		if strings.HasPrefix(name, prefix) {
			return freshPrefix(strings.TrimSuffix(prefix, "/")+"_/", taken)
		}
	}
	return prefix
}

// Value returns the value that is called name in the file that Parse read.
func (m *Model) Value(name string) Value {
	if renamed, ok := m.renamed[name]; ok {
		return Value(renamed)
	}
	return Value(name)
}

// Opset returns the version of ONNX's own operators.
func (m *Model) Opset() int { return m.opset }

// Input declares an input of the graph.
func (m *Model) Input(name string, e Element, shape ...int) Value {
	m.graph = append(m.graph, bytesField(graphInput, valueInfo(name, e, shape)))
	return Value(name)
}

// Replace puts an input of another name and shape in the place of the input called name
// of the graph that Parse read: make adds what computes the old one from it.
func (m *Model) Replace(name, by string, e Element, shape []int, make func(Value) Value) {
	old := string(m.Value(name))
	m.graph = slices.DeleteFunc(m.graph, func(f field) bool { return f.number == graphInput && text(f.parts(), 1) == old })
	before := m.graph
	m.graph = nil
	m.addNode("Identity", []string{old}, []Value{make(m.Input(by, e, shape...))})
	m.graph = append(m.graph, before...) // nodes come after what they read
}

// Output makes v an output of the graph by the given name.
func (m *Model) Output(name string, v Value, e Element, shape ...int) {
	m.addNode("Identity", []string{name}, []Value{v})
	m.graph = append(m.graph, bytesField(graphOutput, valueInfo(name, e, shape)))
}

// valueInfo is a ValueInfoProto.
func valueInfo(name string, e Element, shape []int) []byte {
	var dims []field
	for _, d := range shape {
		dim := intField(1, int64(d))
		if d == Batch {
			dim = stringField(2, "batch")
		}
		dims = append(dims, bytesField(1, message(dim)))
	}
	tensor := message(intField(1, int64(e)), bytesField(2, message(dims...)))
	return message(stringField(1, name), bytesField(2, message(bytesField(1, tensor))))
}

// Attribute is a setting of a node.
type Attribute []byte

// Int is an attribute that is a whole number.
func Int(name string, v int64) Attribute {
	return message(stringField(1, name), intField(3, v), intField(20, 2))
}

// Ints is an attribute that is a list of whole numbers.
func Ints(name string, vs ...int64) Attribute {
	fields := []field{stringField(1, name)}
	for _, v := range vs {
		fields = append(fields, intField(8, v))
	}
	return message(append(fields, intField(20, 7))...)
}

// Node adds a node of one of ONNX's own operators and returns its output. If an
// equal node exists already, it returns that node's output, so that what several
// parts of a graph have in common is computed and stored once.
func (m *Model) Node(op string, inputs []Value, attributes ...Attribute) Value {
	return m.once(fmt.Sprintf("%s %q %q", op, inputs, attributes), func() Value {
		name := m.fresh(op)
		m.addNode(op, []string{name}, inputs, attributes...)
		return Value(name)
	})
}

// once returns the value that was made under a key, or makes it.
func (m *Model) once(key string, make func() Value) Value {
	v, ok := m.known[key]
	if !ok {
		v = make()
		if m.known == nil {
			m.known = map[string]Value{}
		}
		m.known[key] = v
	}
	return v
}

// Op is Node for operators without attributes.
func (m *Model) Op(op string, inputs ...Value) Value { return m.Node(op, inputs) }

func (m *Model) fresh(what string) string {
	m.made++
	return m.prefix + what + "_" + strconv.Itoa(m.made)
}

// addNode adds a node that has the name of its first output.
func (m *Model) addNode(op string, outputs []string, inputs []Value, attributes ...Attribute) {
	var fields []field
	for _, v := range inputs {
		fields = append(fields, stringField(nodeInput, string(v)))
	}
	for _, name := range outputs {
		fields = append(fields, stringField(nodeOutput, name))
	}
	fields = append(fields, stringField(nodeName, m.prefix+strings.TrimPrefix(outputs[0], m.prefix)), stringField(nodeOp, op))
	for _, a := range attributes {
		fields = append(fields, bytesField(nodeAttribute, a))
	}
	m.graph = append(m.graph, bytesField(graphNode, message(fields...)))
}

// Cast converts v.
func (m *Model) Cast(v Value, e Element) Value {
	return m.Node("Cast", []Value{v}, Int("to", int64(e)))
}

// Reduce adds ReduceSum, ReduceMax or ReduceMean over axes, which get the size 1 if
// keep is set and are removed otherwise.
func (m *Model) Reduce(op string, v Value, keep bool, axes ...int64) Value {
	keepDims := Int("keepdims", 0)
	if keep {
		keepDims = Int("keepdims", 1)
	}
	// The axes moved from the attributes to the inputs.
	if since := map[string]int{"ReduceSum": 13, "ReduceMax": 18, "ReduceMean": 18}[op]; m.opset < since {
		return m.Node(op, []Value{v}, Ints("axes", axes...), keepDims)
	}
	return m.Node(op, []Value{v, m.Int64s(axes...)}, keepDims)
}

// TopK adds the k largest of each row of v [batch, n], the largest first, and their
// indices in the row. Of equal values the first come first.
func (m *Model) TopK(v Value, k int) (values, at Value) {
	values = m.once(fmt.Sprintf("TopK %q %d", v, k), func() Value {
		name := m.fresh("TopK")
		outputs := []string{name, name + "_indices"}
		// k moved from the attributes to the inputs.
		if m.opset < 10 {
			m.addNode("TopK", outputs, []Value{v}, Int("k", int64(k)))
		} else {
			m.addNode("TopK", outputs, []Value{v, m.Int64s(int64(k))})
		}
		return Value(name)
	})
	return values, values + "_indices"
}

// Doubles adds a constant tensor of float64; without a shape it is a scalar.
func (m *Model) Doubles(data []float64, shape ...int) Value {
	return m.constant(Double, data, shape)
}

// Floats adds a constant tensor of float32.
func (m *Model) Floats(data []float32, shape ...int) Value {
	return m.constant(Float, data, shape)
}

// Int64s adds a constant vector of int64.
func (m *Model) Int64s(data ...int64) Value {
	return m.constant(Int64, data, []int{len(data)})
}

// constant adds a constant tensor of some numbers, or finds an equal one.
func (m *Model) constant(e Element, data any, shape []int) Value {
	raw, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		panic(err) // of another type
	}
	return m.once(fmt.Sprintf("constant %d %d %x", e, shape, sha256.Sum256(raw)), func() Value { return m.addConstant(e, raw, shape) })
}

func (m *Model) addConstant(e Element, raw []byte, shape []int) Value {
	name := m.fresh("constant")
	var fields []field
	for _, d := range shape {
		fields = append(fields, intField(1, int64(d)))
	}
	fields = append(fields, intField(2, int64(e)), stringField(tensorName, name), bytesField(tensorRawData, raw))
	m.graph = append(m.graph, bytesField(graphInitializer, message(fields...)))
	if m.ir < 4 { // where every constant is an input with a default
		return m.Input(name, e, shape...)
	}
	return Value(name)
}

// SetMetadata sets a metadata property and replaces one with the same key.
func (m *Model) SetMetadata(key, value string) {
	m.fields = slices.DeleteFunc(m.fields, func(f field) bool {
		return f.number == modelMetadata && text(f.parts(), 1) == key
	})
	m.fields = append(m.fields, bytesField(modelMetadata, entry(key, value)))
}

// DropOutputs removes the declarations of all outputs so far. The values can still
// be used.
func (m *Model) DropOutputs() {
	m.graph = slices.DeleteFunc(m.graph, func(f field) bool { return f.number == graphOutput })
}

// Prune removes nodes, constants and descriptions that no output needs. Inputs
// stay, except those whose default was a removed constant.
func (m *Model) Prune() {
	needed := m.needed()
	clear(m.known)            // some of it goes
	gone := map[string]bool{} // constants
	m.graph = slices.DeleteFunc(m.graph, func(f field) bool {
		defined := f.defines()
		if defined == nil || slices.ContainsFunc(defined, func(name string) bool { return needed[name] }) {
			return false
		}
		if f.number == graphInitializer {
			gone[defined[0]] = true
		}
		return true
	})
	m.graph = slices.DeleteFunc(m.graph, func(f field) bool {
		return f.number == graphInput && gone[text(f.parts(), 1)]
	})
}

// needed returns the names of all values that the outputs are computed from.
func (m *Model) needed() map[string]bool {
	makers := map[string]field{} // the node that makes a value
	needed := map[string]bool{}
	var need func(f field, k kind)
	need = func(f field, k kind) {
		for name := range namesIn(f.parts(), k) {
			if needed[name] {
				continue
			}
			needed[name] = true
			if node, ok := makers[name]; ok {
				need(node, nodeKind)
			}
		}
	}
	for _, f := range m.graph {
		if f.number == graphNode {
			for _, name := range f.defines() {
				makers[name] = f
			}
		}
	}
	for _, f := range m.graph {
		switch f.number {
		case graphOutput:
			need(f, valueInfoKind)
		case graphAnnotation:
			need(f, annotationKind)
		}
	}
	return needed
}

// defines returns the names of the values that a field of a graph defines or
// describes; nil for inputs, outputs and fields about no value.
func (f field) defines() []string {
	switch f.number {
	case graphNode:
		outputs := []string{}
		for _, part := range f.parts() {
			if part.number == nodeOutput && len(part.body) > 0 {
				outputs = append(outputs, string(part.body))
			}
		}
		return outputs
	case graphInitializer:
		return []string{text(f.parts(), tensorName)}
	case graphSparseInitializer: // it has the name of its values
		for _, part := range f.parts() {
			if part.number == 1 {
				return []string{text(part.parts(), tensorName)}
			}
		}
	case graphValueInfo:
		return []string{text(f.parts(), 1)}
	}
	return nil
}

// Write writes the model.
func (m *Model) Write(w io.Writer) error {
	var size int64
	for _, f := range m.graph {
		size += int64(len(f.raw))
	}
	header := protowire.AppendTag(nil, modelGraph, protowire.BytesType)
	parts := append(slices.Clone(m.fields), field{raw: protowire.AppendVarint(header, uint64(size))})
	parts = append(parts, m.graph...)
	size = 0
	for _, f := range parts {
		size += int64(len(f.raw))
	}
	if err := checkSize(size); err != nil {
		return err
	}
	for _, f := range parts {
		if _, err := w.Write(f.raw); err != nil {
			return err
		}
	}
	return nil
}
