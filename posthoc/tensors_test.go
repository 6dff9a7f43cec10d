package posthoc_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"mlrbfn/internal/safetensors"
	"mlrbfn/posthoc"
)

// TestTensors writes every fitted score into a file and reads it again: it
// scores as before. Without any one of its tensors it is refused.
func TestTensors(t *testing.T) {
	in := testInput{problem(60, 5, 3, 3)}
	in.relabel()
	first := &posthoc.Linear{In: 5, Out: 5, Weights: make([]float64, 25), Bias: []float64{1, 2, 3, 4, 5}}
	for i := range 5 {
		first.Weights[6*i] = 0.5
	}
	in.Network = posthoc.MLP{first, in.Head}
	for _, name := range posthoc.Names() {
		s := fit(t, name, in.Input)
		kind, tensors, err := posthoc.Tensors("scores."+name, s)
		if err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		if err := safetensors.Write(&file, nil, tensors); err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Parse(file.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		again, err := posthoc.Load("scores."+name, kind, f)
		if err != nil {
			t.Fatal(err)
		}
		want, got := score(t, s, 60, whole(in.Train)), score(t, again, 60, whole(in.Train))
		if !slices.Equal(got, want) {
			t.Errorf("%s scores %v, before it was stored %v", name, got, want)
		}
		for i := range f.Tensors {
			cut := &safetensors.File{Tensors: slices.Delete(slices.Clone(f.Tensors), i, i+1)}
			_, err := posthoc.Load("scores."+name, kind, cut)
			if err == nil {
				t.Errorf("%s was read without %s", name, f.Tensors[i].Name)
			} else if !strings.Contains(err.Error(), name) {
				t.Errorf("the error does not name %s: %v", name, err)
			}
		}
	}
	if _, err := posthoc.Load("scores.gen", "Nonsense", &safetensors.File{}); err == nil {
		t.Error("an unknown kind was read")
	}
}

// TestTensorsOfAnotherShape are refused.
func TestTensorsOfAnotherShape(t *testing.T) {
	in := problem(60, 5, 3, 3)
	for _, name := range []string{"mds", "vim", "klm", "odin", "nci"} {
		kind, tensors, err := posthoc.Tensors("x", fit(t, name, in))
		if err != nil {
			t.Fatal(err)
		}
		for i, tensor := range tensors {
			if len(tensor.Shape) < 2 {
				continue
			}
			bad := slices.Clone(tensors)
			bad[i].Shape = []int{tensor.Shape[0] * tensor.Shape[1], 1}
			if _, err := posthoc.Load("x", kind, &safetensors.File{Tensors: bad}); err == nil {
				t.Errorf("%s: %s was read with the shape %v", name, tensor.Name, bad[i].Shape)
			}
		}
	}
}
