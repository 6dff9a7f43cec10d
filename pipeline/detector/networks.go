package detector

import (
	"fmt"
	"strconv"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file knows what a detector file holds of each kind of network.

// networkTensors returns a network as tensors whose names begin with prefix.
func networkTensors(network head.Network, prefix string) []safetensors.Tensor {
	switch n := network.(type) {
	case *head.PaperNetwork:
		return layerTensors(n.Layers, prefix)
	case *head.ResidualNetwork:
		return append(residualTensors(n, prefix), layerTensors(n.Layers, prefix)...)
	}
	panic(fmt.Sprintf("detector: a network of type %T cannot be saved", network))
}

// readNetwork is the inverse of networkTensors. Whether the tensors make a
// network is for Validate to say.
func readNetwork(r *safetensors.Reader, s head.Settings, prefix string) (head.Network, error) {
	layers, err := readLayers(r, prefix, s.NoProjections)
	if err != nil {
		return nil, err
	}
	if s.Residual {
		return readResidual(r, s, layers, prefix)
	}
	n := head.PaperFromSettings(s)
	n.Layers = layers
	return n, nil
}

// residualTensors are the tensors of a residual network besides those of its layers.
func residualTensors(n *head.ResidualNetwork, prefix string) []safetensors.Tensor {
	d := n.Density
	tensors := []safetensors.Tensor{
		{Name: prefix + "density.means", Shape: []int{len(d.Means) / d.D, d.D}, Data: d.Means},
		{Name: prefix + "density.radii", Shape: []int{2}, Data: []float64{d.Middle, d.Radius}},
	}
	if s := n.Score; s != nil {
		tensors = append(tensors, safetensors.Tensor{Name: prefix + "score", Shape: []int{2, 2}, Data: []float64{
			s.Nearness.Mean, s.Nearness.Deviation, s.Decision.Mean, s.Decision.Deviation,
		}})
	}
	return tensors
}

func readResidual(r *safetensors.Reader, s head.Settings, layers []head.Layer, prefix string) (*head.ResidualNetwork, error) {
	n, err := head.ResidualFromSettings(s)
	if err != nil {
		return nil, err
	}
	n.Layers = layers
	means, shape := safetensors.Values[float32](r, prefix+"density.means")
	radii, _ := safetensors.Values[float64](r, prefix+"density.radii")
	score, _ := safetensors.Values[float64](r, prefix+"score")
	if r.Err != nil {
		return nil, r.Err
	}
	if len(shape) != 2 || len(radii) != 2 || len(score) != 4 {
		return nil, fmt.Errorf("tensors %sdensity.means, density.radii and score have %v dimensions and %d and %d values, want [K, D], 2 and 4", prefix, shape, len(radii), len(score))
	}
	n.Density = &head.Density{D: shape[1], Means: means, Middle: radii[0], Radius: radii[1]}
	n.Score = &head.HeadScore{
		Nearness: head.Scale{Mean: score[0], Deviation: score[1]},
		Decision: head.Scale{Mean: score[2], Deviation: score[3]},
	}
	return n, nil
}

func layerTensors(layers []head.Layer, prefix string) []safetensors.Tensor {
	var tensors []safetensors.Tensor
	for i, l := range layers {
		add := func(name string, data []float32, shape ...int) {
			tensors = append(tensors, safetensors.Tensor{Name: prefix + "layers." + strconv.Itoa(i) + "." + name, Shape: shape, Data: data})
		}
		add("centroids", l.Centroids, l.N, l.In)
		add("beta", l.Beta, l.N)
		add("init_beta", []float32{l.InitBeta}, 1)
		if len(l.Projections) > 0 {
			add("projections", l.Projections, l.N, l.Out)
		}
	}
	return tensors
}

// readLayers reads the layers that there are under prefix. Hidden layers without
// projections give as many values as they have centroids.
func readLayers(r *safetensors.Reader, prefix string, noProjections bool) ([]head.Layer, error) {
	var layers []head.Layer
	for i := 0; ; i++ {
		name := prefix + "layers." + strconv.Itoa(i) + "."
		centroids, shape, found := safetensors.Optional[float32](r, name+"centroids")
		if !found {
			return layers, r.Err
		}
		if len(shape) != 2 {
			return nil, fmt.Errorf("tensor %scentroids has shape %v, want [N, d]", name, shape)
		}
		l := head.Layer{In: shape[1], N: shape[0], Centroids: centroids}
		l.Beta, _ = safetensors.Values[float32](r, name+"beta")
		initBeta, _ := safetensors.Values[float32](r, name+"init_beta")
		if r.Err != nil {
			return nil, r.Err
		}
		if len(initBeta) != 1 {
			return nil, fmt.Errorf("tensor %sinit_beta has %d values, want 1", name, len(initBeta))
		}
		l.InitBeta = initBeta[0]
		projections, shape, found := safetensors.Optional[float32](r, name+"projections")
		if found && len(shape) != 2 {
			return nil, fmt.Errorf("tensor %sprojections has shape %v, want [N, o]", name, shape)
		}
		if found {
			l.Projections, l.Out = projections, shape[1]
		}
		if i > 0 && noProjections {
			layers[i-1].Out = layers[i-1].N
		}
		layers = append(layers, l)
	}
}
