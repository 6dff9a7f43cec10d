package onnx

import "google.golang.org/protobuf/encoding/protowire"

// Declaration is a graph's declaration of one of its inputs or outputs.
type Declaration struct {
	Name    string
	Element Element
	Shape   []int64 // −1 if a dimension is free
}

// Declarations returns a model's outputs and its required inputs, that is those
// without initial values. ok is false if the data are not a model, or the model does
// not declare the type and the number of dimensions of each.
func Declarations(model []byte) (inputs, outputs []Declaration, ok bool) {
	fields, err := split(model)
	if err != nil {
		return nil, nil, false
	}
	for _, f := range fields {
		if f.number != modelGraph {
			continue
		}
		graph, err := split(f.body)
		if err != nil {
			return nil, nil, false
		}
		initial := map[string]bool{}
		for _, f := range graph {
			switch f.number {
			case graphInitializer:
				initial[text(f.parts(), tensorName)] = true
			case graphSparseInitializer:
				initial[text(child(f.parts(), 1), tensorName)] = true
			}
		}
		for _, f := range graph {
			if f.number != graphInput && f.number != graphOutput {
				continue
			}
			d, declared := declaration(f.parts())
			switch {
			case f.number == graphInput && initial[d.Name]:
			case !declared:
				return nil, nil, false
			case f.number == graphInput:
				inputs = append(inputs, d)
			default:
				outputs = append(outputs, d)
			}
		}
	}
	return inputs, outputs, len(outputs) > 0
}

// declaration reads a ValueInfoProto; ok tells whether it is of a tensor of known
// type and number of dimensions.
func declaration(info []field) (d Declaration, ok bool) {
	d.Name = text(info, 1)
	tensor := child(child(info, 2), 1)
	for _, f := range tensor {
		switch f.number {
		case 1:
			d.Element = Element(f.value)
		case 2:
			ok = true
			for _, dim := range f.parts() {
				size := int64(-1)
				for _, v := range dim.parts() {
					if v.number == 1 && int64(v.value) > 0 {
						size = int64(v.value)
					}
				}
				d.Shape = append(d.Shape, size)
			}
		}
	}
	return d, ok && d.Element != 0
}

// child splits the message in the last field with a number; without such a field it
// returns no fields.
func child(fields []field, number protowire.Number) (parts []field) {
	for _, f := range fields {
		if f.number == number {
			parts = f.parts()
		}
	}
	return parts
}
