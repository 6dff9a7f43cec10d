package onnx

import (
	"slices"
	"strconv"
)

// A Waist is a value of a graph that all passes through which an output depends on: what a
// block of a network hands on to the next.
type Waist struct {
	Name string // of the value
	Op   string // of the node that computes it
	// Joins tells whether that node brings branches together, as the sum at the end of a
	// residual block does.
	Joins bool
}

// node is what a NodeProto says of its place in the graph.
type node struct {
	op, name        string
	inputs, outputs []string
}

func nodesOf(model []byte) (nodes []node) {
	fields, err := split(model)
	if err != nil {
		return nil
	}
	for _, f := range fields {
		if f.number != modelGraph {
			continue
		}
		for _, f := range f.parts() {
			if f.number != graphNode {
				continue
			}
			parts := f.parts()
			n := node{op: text(parts, nodeOp), name: text(parts, nodeName)}
			for _, p := range parts {
				switch p.number {
				case nodeInput:
					n.inputs = append(n.inputs, string(p.body))
				case nodeOutput:
					n.outputs = append(n.outputs, string(p.body))
				}
			}
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// inOrder returns nodes in an order in which they can be computed, as ONNX wants it and some
// converters do not write it.
func inOrder(nodes []node) (sorted []node) {
	made := map[string]int{}
	for i, n := range nodes {
		for _, name := range n.outputs {
			made[name] = i
		}
	}
	seen := make([]bool, len(nodes))
	var add func(i int)
	add = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, name := range nodes[i].inputs {
			if maker, ok := made[name]; ok {
				add(maker)
			}
		}
		sorted = append(sorted, nodes[i])
	}
	for i := range nodes {
		add(i)
	}
	return sorted
}

// Waists returns the waists between an input of a graph and one of its outputs, in order.
// Operators, names and exporters do not matter for it, and sizes that the graph asks for
// (Shape) count as constants. It returns none for data that are not a model.
func Waists(model []byte, input, output string) (waists []Waist) {
	nodes, last := inOrder(nodesOf(model)), -1
	made := map[string]int{} // by which node, of those that depend on the input
	reads := make([][]int, len(nodes))
	for i, n := range nodes {
		for _, name := range n.inputs {
			at, found := made[name]
			if name == input {
				at, found = -1, true
			}
			if found && !slices.Contains(reads[i], at) {
				reads[i] = append(reads[i], at)
			}
		}
		if reads[i] == nil || n.op == "Shape" || n.op == "Size" {
			continue
		}
		for _, name := range n.outputs {
			if made[name] = i; name == output {
				last = i
			}
		}
	}
	if last < 0 {
		return nil
	}
	needed := make([]bool, len(nodes))
	reader, ofInput := make([]int, len(nodes)), 0 // the last one of those that are needed
	needed[last] = true
	for i := last; i >= 0; i-- {
		for _, at := range reads[i] {
			switch {
			case !needed[i]:
			case at < 0:
				ofInput = max(ofInput, i)
			default:
				needed[at], reader[at] = true, max(reader[at], i)
			}
		}
	}
	// What is needed and was made before is all read by then.
	until := ofInput
	for i, n := range nodes[:last] {
		if needed[i] {
			if until <= i {
				waists = append(waists, Waist{n.outputs[0], n.op, len(reads[i]) > 1})
			}
			until = max(until, reader[i])
		}
	}
	return waists
}

// FindValue returns the value that a name means: that of the value itself, or of the node
// that computes it first. It also returns the names of all values that nodes compute.
func FindValue(model []byte, name string) (value string, all []string) {
	for _, n := range nodesOf(model) {
		if n.name == name && value == "" {
			value = n.outputs[0]
		}
		all = append(all, n.outputs...)
	}
	if slices.Contains(all, name) {
		value = name
	}
	return value, all
}

// WithOutputs returns a model whose graph has more outputs, in float32: those that add makes
// of its values, under the names that LayerOutput gives them. A protobuf message that
// follows another adds to its lists, so that nothing of the model is written anew.
func WithOutputs(model []byte, add func(*Model) []Value) ([]byte, error) {
	fields, err := split(model)
	if err != nil {
		return nil, err
	}
	m := &Model{prefix: layerPrefix}
	for _, f := range fields {
		m.version(f)
	}
	for i, value := range add(m) {
		name := LayerOutput(i)
		m.addNode("Cast", []string{name}, []Value{value}, Int("to", int64(Float)))
		// Of a shape that is left for the reader to infer.
		m.graph = append(m.graph, bytesField(graphOutput, message(stringField(1, name), bytesField(2, message(bytesField(1, message(intField(1, int64(Float)))))))))
	}
	return slices.Concat(model, message(bytesField(modelGraph, message(m.graph...)))), nil
}

const layerPrefix = "mlrbfn/layers/"

// LayerOutput is the name of output i that WithOutputs adds.
func LayerOutput(i int) string { return layerPrefix + strconv.Itoa(i) }
