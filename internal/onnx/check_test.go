package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// int64sField is an initialiser of whole numbers.
func int64sField(name string, values ...int64) field {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	return tensorField(name, intField(1, int64(len(values))), intField(2, int64(Int64)), bytesField(tensorRawData, raw))
}

func attribute(a Attribute) field { return bytesField(nodeAttribute, a) }

// loopField is a loop of a number of steps over some nodes; its condition is the
// output of the node go.
func loopField(steps string, body ...field) field {
	body = append(body, bytesField(graphInput, valueInfo("step", Int64, nil)), bytesField(graphInput, valueInfo("on", Bool, nil)), bytesField(graphOutput, valueInfo("go", Bool, nil)))
	return nodeField("Loop", "y", []string{steps, ""}, attribute(message(stringField(1, "body"), bytesField(6, message(body...)))))
}

// functionField is a function that calls another a number of times.
func functionField(name, calls string, times int) field {
	fields := []field{stringField(1, name), stringField(10, "f")}
	for range times {
		fields = append(fields, bytesField(7, message(stringField(nodeOp, calls), stringField(7, "f"))))
	}
	return bytesField(modelFunction, message(fields...))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	same := nodeField("Identity", "go", []string{"on"})
	depends := nodeField("Less", "go", []string{"step", "x"})
	laughs := file(17, bytesField(graphNode, message(stringField(nodeOp, "f0"), stringField(7, "f"))))
	for i := range 40 {
		laughs = append(laughs, message(functionField(fmt.Sprint("f", i), fmt.Sprint("f", i+1), 2))...)
	}
	itself := append(file(17, bytesField(graphNode, message(stringField(nodeOp, "f"), stringField(7, "f")))), message(functionField("f", "f", 1))...)
	float := func(name string, raw ...byte) field {
		return tensorField(name, intField(2, int64(Float)), bytesField(tensorRawData, raw))
	}
	for name, test := range map[string]struct {
		model []byte
		large bool
	}{
		"ConstantOfShape": {file(17, nodeField("ConstantOfShape", "y", []string{"n"}), int64sField("n", 1<<15, 1<<15)), true},
		"an Expand through nodes": {file(17, int64sField("n", 1<<31), nodeField("Unsqueeze", "m", []string{"n"}), nodeField("Concat", "c", []string{"m", "m"}),
			nodeField("Expand", "y", []string{"x", "c"})), true},
		"an Expand for any batch":  {file(17, int64sField("n", -1, 196, 768), nodeField("Expand", "y", []string{"x", "n"})), false},
		"a size that is unknown":   {file(17, nodeField("Expand", "y", []string{"x", "x"})), false},
		"a Tile of 2^126":          {file(17, int64sField("n", 1<<62, 1<<62), nodeField("Tile", "y", []string{"x", "n"})), true},
		"random values":            {file(17, nodeField("RandomNormal", "y", nil, attribute(Ints("shape", 1<<30)))), true},
		"as many in parts":         {file(17, nodeField("RandomUniform", "y", nil, attribute(Ints("shape", 1<<27))), nodeField("RandomUniform", "z", nil, attribute(Ints("shape", 1<<27))), nodeField("RandomUniform", "w", nil, attribute(Ints("shape", 1<<27)))), true},
		"some random values":       {file(17, nodeField("RandomNormal", "y", nil, attribute(Ints("shape", 3, 224, 224)))), false},
		"a Range":                  {file(17, nodeField("Range", "y", []string{"a", "b", "c"}), float("a", 0, 0, 0, 0), float("b", 0, 0, 0x80, 0x53), float("c", 0, 0, 0x80, 0x3f)), true}, // 2^40
		"a Range of hours":         {file(17, nodeField("Range", "y", []string{"a", "b", "c"}), int64sField("a", 0), int64sField("b", 86400), int64sField("c", 3600)), false},
		"padding of a convolution": {file(17, nodeField("Conv", "y", []string{"x", "w"}, attribute(Ints("pads", 1<<20, 1<<20, 1<<20, 1<<20)))), true},
		"a convolution":            {file(17, nodeField("Conv", "y", []string{"x", "w"}, attribute(Ints("pads", 3, 3, 3, 3)))), false},
		"a Pad":                    {file(17, nodeField("Pad", "y", []string{"x", "n"}), int64sField("n", 0, 0, 1<<40, 1)), true},
		"a Resize":                 {file(17, nodeField("Resize", "y", []string{"x", "", "", "n"}), int64sField("n", 1, 3, 1<<20, 1<<20)), true},
		"a long loop":              {file(17, loopField("n", same), int64sField("n", 1<<62)), true},
		"loops in loops":           {file(17, loopField("n", same, loopField("n", same)), int64sField("n", 10_000)), true},
		"a loop that makes values": {file(17, loopField("n", same, nodeField("RandomNormal", "z", nil, attribute(Ints("shape", 1<<20)))), int64sField("n", 1000)), true},
		"a loop":                   {file(17, loopField("n", same), int64sField("n", 1000)), false},
		"a loop that ends itself":  {file(17, loopField("n", depends), int64sField("n", 1<<62)), false},
		"a thousand million calls": {laughs, true},
		"a function of itself":     {itself, true},
		"a few functions":          {append(file(17, bytesField(graphNode, message(stringField(nodeOp, "f0"), stringField(7, "f")))), message(functionField("f0", "f1", 9), functionField("f1", "f2", 9))...), false},
		"a tensor without values":  {file(17, tensorField("w", intField(1, 1<<40), intField(2, int64(Float)))), true},
		"a tensor elsewhere":       {file(17, tensorField("w", intField(1, 1<<30), intField(2, int64(Float)), intField(tensorDataLocation, 1))), false},
		"sparse values":            {file(17, bytesField(graphSparseInitializer, message(intField(3, 1<<20), intField(3, 1<<20)))), true},
		"a sparse constant":        {file(17, nodeField("Constant", "y", nil, attribute(message(stringField(1, "sparse_value"), bytesField(22, message(intField(3, 1<<40))))))), true},
		"two graphs that are one":  {append(file(17, nodeField("Expand", "y", []string{"x", "n"})), message(bytesField(modelGraph, message(int64sField("n", 1<<40))))...), true},
		"none":                     {[]byte("no model"), false},
	} {
		if err := Check(test.model); errors.Is(err, ErrTooLarge) != test.large || (err != nil) != test.large {
			t.Errorf("%s: %v", name, err)
		}
	}
}
