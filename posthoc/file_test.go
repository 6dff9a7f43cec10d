package posthoc_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mlrbfn/internal/safetensors"
	"mlrbfn/posthoc"
)

// stored returns the tensors that hold a score.
func stored(t *testing.T, s posthoc.Scorer) (kind string, tensors map[string]posthoc.Tensor) {
	t.Helper()
	kind, all, err := posthoc.Tensors(s)
	if err != nil {
		t.Fatal(err)
	}
	tensors = map[string]posthoc.Tensor{}
	for _, tensor := range all {
		tensors[tensor.Name] = tensor
	}
	return kind, tensors
}

func load(kind string, tensors map[string]posthoc.Tensor) (posthoc.Scorer, error) {
	return posthoc.Load(kind, func(name string) (posthoc.Tensor, bool) {
		t, ok := tensors[name]
		return t, ok
	})
}

// everything is a problem with an MLP as the network.
func everything() posthoc.Input {
	in := testInput{problem(60, 5, 3, 3)}
	in.relabel()
	first := &posthoc.Linear{In: 5, Out: 5, Weights: make([]float64, 25), Bias: []float64{1, 2, 3, 4, 5}}
	for i := range 5 {
		first.Weights[6*i] = 0.5
	}
	in.Network = posthoc.MLP{first, in.Head}
	return in.Input
}

// TestStored stores every fitted score and loads it again: it scores as before.
// Without any one of its tensors it is refused.
func TestStored(t *testing.T) {
	in := everything()
	for _, name := range posthoc.Names() {
		s := fit(t, name, in)
		kind, tensors := stored(t, s)
		again, err := load(kind, tensors)
		if err != nil {
			t.Fatal(err)
		}
		want, got := score(t, s, 60, whole(in.Train)), score(t, again, 60, whole(in.Train))
		if !slices.Equal(got, want) {
			t.Errorf("%s scores %v, before it was stored %v", name, got, want)
		}
		for missing, tensor := range tensors {
			delete(tensors, missing)
			if _, err := load(kind, tensors); err == nil || !strings.Contains(err.Error(), missing) {
				t.Errorf("%s without %s: %v", name, missing, err)
			}
			tensors[missing] = posthoc.Tensor{Data: []float32{}}
			if _, err := load(kind, tensors); err == nil {
				t.Errorf("%s was loaded with an empty %s", name, missing)
			}
			tensors[missing] = tensor
		}
	}
	if _, err := load("Nonsense", nil); err == nil {
		t.Error("an unknown kind was loaded")
	}
	if kind, _ := stored(t, posthoc.MaxLogit{}); kind != "MaxLogit" {
		t.Errorf("a score that is not a pointer is stored as %q", kind)
	}
}

// TestTensorsOfAnotherShape are refused.
func TestTensorsOfAnotherShape(t *testing.T) {
	in := problem(60, 5, 3, 3)
	for _, name := range posthoc.Names() {
		if name == "temperature" {
			continue
		}
		kind, tensors := stored(t, fit(t, name, in))
		for place, tensor := range tensors {
			if len(tensor.Shape) < 2 {
				continue
			}
			for _, shape := range [][]int{{tensor.Shape[0] * tensor.Shape[1], 1}, {tensor.Shape[0] * tensor.Shape[1]}} {
				bad := tensor
				bad.Shape = shape
				tensors[place] = bad
				_, err := load(kind, tensors)
				// Any number of columns makes a bank of some features.
				if err == nil && !strings.HasPrefix(place, "bank.") || len(shape) == 1 && err == nil {
					t.Errorf("%s: %s was loaded with the shape %v", name, place, shape)
				}
			}
			tensors[place] = tensor
		}
	}
}

// TestTensorsThatDoNotFit are refused, not a panic when they score.
func TestTensorsThatDoNotFit(t *testing.T) {
	small, large := problem(60, 5, 3, 3), problem(60, 6, 4, 4)
	for name, parts := range map[string][]string{
		"rmds":    {"mds.within.mean", "mds.within.whiten", "mds.means", "whole.mean", "whole.whiten"},
		"vim":     {"head.in", "head.weights", "residual.origin", "residual.basis"},
		"nci":     {"head.in", "head.weights", "mean"},
		"neco":    {"mean", "deviation", "axes"},
		"fdbd":    {"classes", "distances"},
		"klm":     {"classes", "logmeans"},
		"she-e":   {"d", "patterns"},
		"nnguide": {"bank.features"},
	} {
		kind, tensors := stored(t, fit(t, name, small))
		_, others := stored(t, fit(t, name, large))
		for _, part := range parts {
			own := tensors[part]
			if own.Data == nil {
				t.Fatalf("%s has no %s", name, part)
			}
			tensors[part] = others[part]
			s, err := load(kind, tensors)
			if err == nil && name == "nnguide" { // whose features can have any size
				err = s.Score(t.Context(), make([]float64, 60), whole(small.Train))
			}
			if err == nil {
				t.Errorf("%s was loaded with %s of another", name, part)
			}
			tensors[part] = own
		}
	}
	for part, bad := range map[string]any{"k": []int64{-1}, "bank.features": []float32{}} {
		kind, tensors := stored(t, fit(t, "knn", small))
		tensors[part] = posthoc.Tensor{Shape: []int{0, 5}, Data: bad}
		if _, err := load(kind, tensors); err == nil {
			t.Errorf("KNN was loaded with %s of %v", part, bad)
		}
	}
}

// frozen are the names that detectors have. Those of a score that files may hold
// never change.
const frozen = `
ash-b: ASH head.bias head.in head.out head.weights percentile shape
ash-p: ASH head.bias head.in head.out head.weights percentile shape
ash-s: ASH head.bias head.in head.out head.weights percentile shape
dice: DICE head.bias head.in head.out head.weights
energy: Energy temperature
fdbd: FDBD classes distances mean
gen: GEN gamma m
gradnorm: GradNorm head.bias head.in head.out head.weights
klm: KLM classes logmeans
knn: KNN bank.features k
mds: MDS l2 means within.mean within.whiten
mds++: MDS l2 means within.mean within.whiten
mls: MaxLogit
msp: MaxSoftmax temperature
nci: NCI alpha head.bias head.in head.out head.weights mean
neco: NECO axes deviation mean
nnguide: NNGuide bank.features energies k
odin: ODIN epsilon network.0.bias network.0.in network.0.out network.0.weights network.1.bias network.1.in network.1.out network.1.weights temperature
react: Clip head.bias head.in head.out head.weights high low
relation: Relation bank.features bank.logits
residual: Residual basis origin
rmds: RMDS mds.l2 mds.means mds.within.mean mds.within.whiten whole.mean whole.whiten
rmds++: RMDS mds.l2 mds.means mds.within.mean mds.within.whiten whole.mean whole.whiten
scale: ASH head.bias head.in head.out head.weights percentile shape
she-cos: SHE d metric patterns
she-e: SHE d metric patterns
she-ip: SHE d metric patterns
temperature: MaxSoftmax temperature
vim: ViM alpha head.bias head.in head.out head.weights residual.basis residual.origin
vra: Clip head.bias head.in head.out head.weights high low
`

func TestNamesInFilesAreFrozen(t *testing.T) {
	in := everything()
	lines := "\n"
	for _, name := range posthoc.Names() {
		kind, tensors := stored(t, fit(t, name, in))
		names := []string{kind}
		for tensor := range tensors {
			names = append(names, tensor)
		}
		slices.Sort(names[1:])
		lines += fmt.Sprintf("%s: %s\n", name, strings.Join(names, " "))
	}
	if lines != frozen {
		t.Errorf("detectors would be written with other names:%s", lines)
	}
}

// TestTensorsOfDetectors loads the score of every detector of
// pipeline/detector/testdata/scores and stores it again: the tensors are the same.
func TestTensorsOfDetectors(t *testing.T) {
	for _, name := range posthoc.Names() {
		file, err := safetensors.Read(filepath.Join("..", "pipeline", "detector", "testdata", "scores", name+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]posthoc.Tensor{}
		for _, tensor := range file.Tensors {
			if own, ok := strings.CutPrefix(tensor.Name, "scores.0."); ok {
				tensor.Name = own
				want[own] = posthoc.Tensor(tensor)
			}
		}
		s, err := load(kindOf(t, name), want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, got := stored(t, s)
		for place := range got { // an empty shape is as good as none
			if tensor := got[place]; tensor.Shape == nil {
				tensor.Shape = []int{}
				got[place] = tensor
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// kindOf returns the kind that frozen has for a score.
func kindOf(t *testing.T, name string) string {
	_, line, found := strings.Cut(frozen, "\n"+name+": ")
	if !found {
		t.Fatalf("%s has no line", name)
	}
	return strings.Fields(line)[0]
}
