package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// file is a ModelProto with the fields of a graph: the input x, the output y and
// the given ones.
func file(opset int64, graph ...field) []byte {
	graph = append(graph, bytesField(graphInput, valueInfo("x", Float, []int{Batch, 3})), bytesField(graphOutput, valueInfo("y", Float, []int{Batch, 3})))
	return message(intField(modelIRVersion, 8), bytesField(modelOpset, message(intField(2, opset))), bytesField(modelGraph, message(graph...)))
}

func nodeField(op, output string, inputs []string, rest ...field) field {
	fields := []field{stringField(4, op), stringField(nodeOutput, output)}
	for _, in := range inputs {
		fields = append(fields, stringField(nodeInput, in))
	}
	return bytesField(graphNode, message(append(fields, rest...)...))
}

func tensorField(name string, fields ...field) field {
	return bytesField(graphInitializer, message(append(fields, stringField(tensorName, name))...))
}

func parse(t *testing.T, data []byte, graph string, reserved ...string) *Model {
	t.Helper()
	m, err := Parse(data, graph, reserved...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func written(t *testing.T, m *Model) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatIsUnknownStays(t *testing.T) {
	t.Parallel()
	unknown := func(number int64) field { return stringField(500, strings.Repeat("?", int(number))) }
	data := message(unknown(1), intField(modelIRVersion, 8), bytesField(modelOpset, message(unknown(2), intField(2, 17))),
		bytesField(modelGraph, message(unknown(3), nodeField("Identity", "y", []string{"x"}, unknown(4)),
			bytesField(graphOutput, valueInfo("y", Float, nil)))))
	m := parse(t, data, "")
	m.Prune()
	if got := written(t, m); !bytes.Equal(got, data) {
		t.Errorf("%q became %q", data, got)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	branch := bytesField(5, message(stringField(1, "then_branch"), bytesField(6, message(nodeField("Identity", "z", []string{"captured"})))))
	m := parse(t, file(17,
		tensorField("captured"), tensorField("unused"), bytesField(graphInput, valueInfo("unused", Float, nil)),
		bytesField(graphSparseInitializer, message(bytesField(1, message(stringField(tensorName, "sparse"))))),
		nodeField("If", "y", []string{"x"}, branch), nodeField("Gemm", "logits", []string{"x", "unused", "sparse"}),
		bytesField(graphValueInfo, valueInfo("logits", Float, nil)), bytesField(graphValueInfo, valueInfo("y", Float, nil)),
	), "")
	m.Prune()
	if got, want := written(t, m), file(17, tensorField("captured"), nodeField("If", "y", []string{"x"}, branch), bytesField(graphValueInfo, valueInfo("y", Float, nil))); !bytes.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNamesAreApart(t *testing.T) {
	t.Parallel()
	m := parse(t, file(17, nodeField("Abs", "mlrbfn/Abs_1", []string{"x"}), nodeField("Abs", "score", []string{"mlrbfn/Abs_1"}),
		nodeField("Abs", "backbone/y", []string{"score"}), nodeField("Abs", "y", []string{"backbone/y"})), "", "score", "ood")
	if a := m.Op("Abs", m.Value("y")); a != "mlrbfn_/Abs_1" {
		t.Errorf("a new value is called %s", a)
	}
	if s, o := m.Value("score"), m.Value("ood"); s != "backbone_/score" || o != "ood" {
		t.Errorf("values are called %s and %s", s, o)
	}
	if got := written(t, m); bytes.Count(got, []byte("backbone_/score")) != 2 || bytes.Count(got, []byte("score")) != 2 {
		t.Errorf("%q", got)
	}
}

func TestExternalDataIsInlined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "w"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "huge"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "huge"), 5<<30); err != nil {
		t.Skip(err) // no such file fits here
	}
	external := func(where ...string) []field {
		fields := []field{intField(2, 1)}
		for i := 0; i < len(where); i += 2 {
			fields = append(fields, bytesField(tensorExternalData, entry(where[i], where[i+1])))
		}
		return append(fields, intField(tensorDataLocation, 1))
	}
	for _, tt := range []struct {
		where      []string
		want, says string
	}{
		{[]string{"location", "w"}, "0123456789", ""},
		{[]string{"location", "w", "offset", "7"}, "789", ""},
		{[]string{"location", "w", "offset", "2", "length", "3"}, "234", ""},
		{[]string{"location", "w", "offset", "8", "length", "3"}, "", "10 bytes"},
		{[]string{"location", "w", "offset", "11"}, "", "10 bytes"},
		{[]string{"location", "w", "offset", "-1"}, "", "10 bytes"},
		{[]string{"location", "w", "length", "9223372036854775807"}, "", "10 bytes"},
		{[]string{"location", "w", "length", "x"}, "", "length"},
		{[]string{"location", "../w"}, "", "../w"},
		{[]string{"location", "absent"}, "", "absent"},
		{nil, "", "not below"},
		{[]string{"location", "huge"}, "", "at most 2147483647"},
	} {
		graph := []field{
			tensorField("a", external(tt.where...)...),
			nodeField("Constant", "c", nil, bytesField(5, message(bytesField(5, message(external(tt.where...)...))))),
		}
		m, err := Parse(file(17, graph...), filepath.Join(dir, "g.onnx"))
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("%v: %v, want an error that says %q", tt.where, err, tt.says)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		inside := []field{intField(2, 1), bytesField(tensorRawData, []byte(tt.want))}
		want := file(17, bytesField(graphInitializer, message(intField(2, 1), stringField(tensorName, "a"), inside[1])),
			nodeField("Constant", "c", nil, bytesField(5, message(bytesField(5, message(inside...))))))
		if got := written(t, m); !bytes.Equal(got, want) {
			t.Errorf("%v: got %q, want %q", tt.where, got, want)
		}
	}
	places, err := Externals(file(17, tensorField("a", external("location", "w")...), tensorField("b", external("location", "huge", "offset", "3", "length", "4")...), tensorField("c", external("location", "w")...)))
	if want := []External{{"huge", 3, 4, false}, {"w", 0, -1, false}}; err != nil || !slices.Equal(places, want) {
		t.Errorf("external values are at %v, want %v; %v", places, want, err)
	}
	for what, model := range map[string][]byte{
		"length": file(17, tensorField("a", external("location", "w", "length", "-2")...)), "offset": file(17, tensorField("a", external("location", "w", "offset", "1e3")...)),
		"two of location": file(17, tensorField("a", external("location", "w", "location", "../w")...)), "not an ONNX file": []byte("no protobuf"),
	} {
		if _, err := Externals(model); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestExternalDataStayInTheFolder: no path and no link leads out of the folder of a
// graph; a graph that is a link may have its weights where it leads.
func TestExternalDataStayInTheFolder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"model/deep", "blobs", "elsewhere/deep"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"model/graph", "model/weights", "model/deep/weights", "blobs/graph", "blobs/weights", "elsewhere/secret", "model/secret", "secret"} {
		if err := os.WriteFile(filepath.Join(root, name), make([]byte, 10), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"model/inside": "deep/weights", "model/again": "inside", "model/outside": "../elsewhere/secret", "model/absolute": filepath.Join(root, "secret"),
		"model/folder": "../elsewhere", "model/through": "outside", "model/shared": "../blobs/weights", "model/linked": "../blobs/graph", "model/loop": "loop", "entry": "model", "model/far": "../elsewhere/deep",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Skip(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "model", "inside")); err != nil {
		t.Skip("no links here, as under Wine")
	}
	for _, tt := range []struct {
		graph, file    string
		offset, length int64
		says           string // "" if it is allowed
	}{
		{"model/graph", "weights", 0, -1, ""},
		{"model/graph", "deep/weights", 3, 7, ""},
		{"model/graph", "deep/../weights", 0, -1, ""},
		{"model/graph", "inside", 0, -1, ""},
		{"model/graph", "again", 0, -1, ""},
		{"entry/graph", "weights", 0, -1, ""},
		{"model/linked", "shared", 0, -1, ""},
		{"model/linked", "weights", 0, -1, ""},
		{"model/graph", "shared", 0, -1, "link"},
		{"model/linked", "outside", 0, -1, "link"},
		{"model/graph", "outside", 0, -1, "link"},
		{"model/graph", "absolute", 0, -1, "link"},
		{"model/graph", "folder/secret", 0, -1, "link"},
		{"model/graph", "through", 0, -1, "link"},
		{"entry/graph", "outside", 0, -1, "link"},
		{"model/graph", "loop", 0, -1, "loop"},
		{"model/graph", "../secret", 0, -1, "not below"},
		{"model/graph", "deep/../../secret", 0, -1, "not below"},
		{"model/graph", filepath.Join(root, "secret"), 0, -1, "not below"},
		{"model/graph", "/dev/zero", 0, -1, "not below"},
		{"model/graph", "far/../secret", 0, -1, "link"}, // what lies beside the folder that far leads to
		{"model/graph", "outside\x00/../weights", 0, -1, "invalid"},
		{"model/graph", "weights/", 0, -1, "weights"},
		{"model/graph", "*/_ORT_MEM_ADDR_/*", 0, -1, "memory"},
		{"model/graph", "", 0, -1, "not below"},
		{"model/graph", "deep", 0, -1, "not a regular file"},
		{"model/graph", "weights", 11, -1, "10 bytes"},
		{"model/graph", "weights", 4, 7, "10 bytes"},
		{"model/graph", "weights", -1, -1, "10 bytes"},
		{"model/graph", "weights", 1 << 62, 1 << 62, "10 bytes"},
	} {
		err := External{File: tt.file, Offset: tt.offset, Length: tt.length}.Check(filepath.Join(root, tt.graph))
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	deep := message(stringField(1, "x"))
	for range 100 {
		deep = message(bytesField(6, message(bytesField(graphNode, message(bytesField(5, deep))))))
	}
	good := file(17, nodeField("Abs", "y", []string{"x"}))
	for name, data := range map[string][]byte{
		"empty":       nil,
		"a text":      []byte("PK\x03\x04 not a protobuf"),
		"cut short":   good[:len(good)-1],
		"two graphs":  append(bytes.Clone(good), good...),
		"no opset":    message(bytesField(modelGraph, nil)),
		"opset 7":     file(7),
		"opset 99":    file(99),
		"deep":        file(17, nodeField("If", "y", []string{"x"}, bytesField(5, deep))),
		"a bad node":  file(17, bytesField(graphNode, []byte{0xff})),
		"a bad input": file(17, bytesField(graphInput, []byte{0x0a, 0x05})),
	} {
		if m, err := Parse(data, t.TempDir()); err == nil {
			t.Errorf("%s is taken: %+v", name, m)
		}
	}
}

// TestNothingPanics changes bytes of a file with all kinds of fields.
func TestNothingPanics(t *testing.T) {
	t.Parallel()
	m, err := New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	x := m.Input("x", Float, Batch, 3)
	m.Output("y", m.Reduce("ReduceSum", m.Op("Add", m.Cast(x, Double), m.Doubles([]float64{1})), true, 1), Double, Batch, 1)
	m.SetMetadata("key", "value")
	data := written(t, m)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		changed := bytes.Clone(data[:rapid.IntRange(0, len(data)).Draw(t, "length")])
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			if len(changed) > 0 {
				changed[rapid.IntRange(0, len(changed)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "to")
			}
		}
		Declarations(changed)
		m, err := Parse(changed, filepath.Join(dir, "g.onnx"), "y", "x")
		if err != nil {
			return
		}
		m.DropOutputs()
		m.Output("y", m.Op("Abs", m.Value("y")), Double)
		m.Prune()
		m.SetMetadata("key", "other")
		if err := m.Write(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMetadataIsReplaced(t *testing.T) {
	t.Parallel()
	m := parse(t, append(file(17), message(bytesField(modelMetadata, entry("a", "old")), bytesField(modelMetadata, entry("b", "kept")))...), "")
	m.SetMetadata("a", "new")
	if got := written(t, m); bytes.Contains(got, []byte("old")) || !bytes.Contains(got, entry("a", "new")) || !bytes.Contains(got, entry("b", "kept")) {
		t.Errorf("%q", got)
	}
}

func TestDeclarations(t *testing.T) {
	t.Parallel()
	weight := bytesField(graphInput, valueInfo("w", Float, []int{3}))
	inputs, outputs, ok := Declarations(file(17, weight, tensorField("w")))
	x := Declaration{"x", Float, []int64{-1, 3}}
	y := Declaration{"y", Float, []int64{-1, 3}}
	if !ok || !reflect.DeepEqual(inputs, []Declaration{x}) || !reflect.DeepEqual(outputs, []Declaration{y}) {
		t.Errorf("inputs %v, outputs %v, %v", inputs, outputs, ok)
	}
	for name, data := range map[string][]byte{
		"not a model":           []byte("not a model"),
		"empty":                 nil,
		"an output of no shape": file(17, bytesField(graphOutput, message(stringField(1, "z")))),
		"an output of no type":  file(17, bytesField(graphOutput, valueInfo("z", 0, nil))),
	} {
		if _, _, ok := Declarations(data); ok {
			t.Errorf("%s: declares everything", name)
		}
	}
}

// FuzzParse checks that no graph breaks the parser and the check, and that what
// the parser accepts can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add(file(17, nodeField("Identity", "y", []string{"x"})))
	f.Add(file(1<<62, nodeField("Expand", "y", []string{"x", "x"})))
	f.Add(file(17, nodeField("Loop", "y", []string{"x"}, bytesField(5, message(stringField(1, "body"), bytesField(6, message(nodeField("Loop", "y", []string{"y"}))))))))
	for _, location := range []string{"../w", "/dev/zero", "", "w\x00"} {
		f.Add(file(17, tensorField("w", intField(tensorDataLocation, 1), bytesField(tensorExternalData, message(stringField(1, "location"), stringField(2, location))),
			bytesField(tensorExternalData, message(stringField(1, "length"), stringField(2, "9223372036854775807"))))))
	}
	f.Add([]byte("00B\x02\x10\x11:\x02(0")) // nothing is left of its graph
	graph := filepath.Join(f.TempDir(), "g.onnx")
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Check(data)
		places, err := Externals(data)
		for _, place := range places {
			if err := place.Check(graph); err == nil {
				t.Errorf("%+v is in an empty folder", place)
			}
		}
		if _, bad := Parse(data, graph); err != nil && bad == nil {
			t.Errorf("%v is not found by Parse", err)
		}
		m, err := Parse(data, graph)
		if err == nil {
			m.Prune()
			parse(t, written(t, m), graph)
		}
	})
}

// TestWaists: what a graph computes passes through its waists, whatever nodes are called.
func TestWaists(t *testing.T) {
	m, err := New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	x := m.Input("x", Float, Batch, 3, 8, 8)
	stem := m.Op("Relu", x)
	branch := m.Op("Tanh", m.Op("Sigmoid", stem))
	sum := m.Op("Add", stem, branch) // a residual block
	size := m.Op("Shape", x)
	again := m.Op("Reshape", m.Op("Relu", sum), size)
	scale := m.Op("Add", again, m.Floats([]float32{1})) // joins nothing: a constant
	m.Output("y", scale, Float, Batch, 3, 8, 8)
	m.Output("other", m.Op("Exp", stem), Float, Batch, 3, 8, 8)
	var file bytes.Buffer
	if err := m.Write(&file); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(m.graph) // as converters may leave it
	var reversed bytes.Buffer
	if err := m.Write(&reversed); err != nil {
		t.Fatal(err)
	}
	for _, file := range [][]byte{file.Bytes(), reversed.Bytes()} {
		var ops []string
		for _, w := range Waists(file, "x", "y") {
			if w.Joins {
				w.Op += "*"
			}
			ops = append(ops, w.Op)
		}
		if want := []string{"Relu", "Add*", "Relu", "Reshape", "Add"}; !slices.Equal(ops, want) {
			t.Errorf("waists %v, want %v", ops, want)
		}
	}
	if Waists(file.Bytes(), "x", "z") != nil || Waists([]byte{1, 2, 3}, "x", "y") != nil {
		t.Error("there are waists of nothing")
	}
	more, err := WithOutputs(file.Bytes(), func(g *Model) []Value { return []Value{sum, g.Reduce("ReduceSum", stem, false, 1)} })
	if err != nil {
		t.Fatal(err)
	}
	_, outputs, ok := Declarations(more)
	if value, all := FindValue(more, string(sum)); value != string(sum) || !slices.Contains(all, LayerOutput(1)) || ok && len(outputs) != 4 {
		t.Errorf("value %q of %v, outputs %v", value, all, outputs)
	}
	if value, _ := FindValue(more, "nothing"); value != "" {
		t.Errorf("nothing is %q", value)
	}
}
