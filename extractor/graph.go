package extractor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// TensorInfo describes one input or output of a graph.
type TensorInfo struct {
	Name string
	// Type is the element type: "float32", "float16", "int64" … or, for what
	// is no tensor, its kind.
	Type string
	// Shape holds the declared dimensions, −1 where one is dynamic; it is
	// empty where the graph does not declare any.
	Shape []int64
}

// String returns the tensor as errors show it, such as
// "features float32[?,192]".
func (t TensorInfo) String() string {
	dims := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		dims[i] = strconv.FormatInt(d, 10)
		if d < 0 {
			dims[i] = "?"
		}
	}
	return fmt.Sprintf("%s %s[%s]", t.Name, t.Type, strings.Join(dims, ","))
}

func (t TensorInfo) isFloat() bool { return t.Type == "float32" || t.Type == "float16" }

func tensorInfos(infos []ort.InputOutputInfo) []TensorInfo {
	tensors := make([]TensorInfo, len(infos))
	for i, info := range infos {
		tensors[i] = TensorInfo{Name: info.Name, Shape: info.Dimensions}
		switch {
		case info.OrtValueType != ort.ONNXTypeTensor:
			tensors[i].Type = strings.ToLower(strings.TrimPrefix(info.OrtValueType.String(), "ONNX_TYPE_"))
		case info.DataType == ort.TensorElementDataTypeFloat:
			tensors[i].Type = "float32"
		default:
			tensors[i].Type = strings.ToLower(strings.TrimPrefix(info.DataType.String(), "ONNX_TENSOR_ELEMENT_DATA_TYPE_"))
		}
	}
	return tensors
}

// elementTypes names the elements of tensors as TensorInfo has them, at the
// numbers of onnx.proto.
var elementTypes = []string{
	1: "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double",
	"uint32", "uint64", "complex64", "complex128", "bfloat16",
}

func declaredInfos(declarations []onnx.Declaration) []TensorInfo {
	tensors := make([]TensorInfo, len(declarations))
	for i, d := range declarations {
		tensors[i] = TensorInfo{Name: d.Name, Type: "unknown", Shape: d.Shape}
		if d.Element > 0 && d.Element < onnx.Element(len(elementTypes)) {
			tensors[i].Type = elementTypes[d.Element]
		}
	}
	return tensors
}

func list(tensors []TensorInfo) string {
	names := make([]string, len(tensors))
	for i, t := range tensors {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}

// imageInput describes the one input of a graph.
type imageInput struct {
	TensorInfo
	layout preprocess.Layout
	// height and width are in pixels, −1 where dynamic; batch is the number of
	// images that every run must have, −1 where it is free.
	height, width, batch int64
}

// chooseInput finds the input that takes images: the only one there is, float
// with four dimensions and three channels. Where neither place for the channels
// is declared they come first, as in everything that PyTorch exports. vision
// names graphs to take instead of one that wants text too.
func chooseInput(inputs []TensorInfo, vision []string) (imageInput, error) {
	if len(inputs) != 1 {
		instead := "export its vision part alone (as onnx/vision_model.onnx, say)"
		if len(vision) > 0 {
			instead = "take its vision part alone: " + strings.Join(vision, ", or ")
		}
		return imageInput{}, fmt.Errorf("takes %d inputs (%s), but there is only an image to give it; %s", len(inputs), list(inputs), instead)
	}
	in := imageInput{TensorInfo: inputs[0], layout: preprocess.NCHW}
	s := in.Shape
	if len(s) != 4 || !in.isFloat() {
		return imageInput{}, fmt.Errorf("input %s is no batch of images; it must be float32 or float16 with four dimensions; export the vision part of the model", in)
	}
	in.batch = s[0]
	switch {
	case s[1] == 3 || s[1] < 0 && s[3] != 3:
		in.height, in.width = s[2], s[3]
	case s[3] == 3:
		in.layout = preprocess.NHWC
		in.height, in.width = s[1], s[2]
	default:
		return imageInput{}, fmt.Errorf("input %s has no dimension of 3 colour channels, neither the second nor the last; export the model for RGB images", in)
	}
	return in, nil
}

// embeddings names the outputs that are an embedding wherever they exist, in
// the order in which they are preferred, and tokens the one that needs pooling.
var embeddings = []string{"image_embeds", "pooler_output", "features", "embedding"}

const (
	tokens = "last_hidden_state"
	logits = "logits"
)

// chooseOutput returns the output that holds the embedding: the one that output
// names; else, where pool is given, last_hidden_state; else the first present
// of image_embeds, pooler_output, features, embedding, last_hidden_state; else
// the only one there is, unless that is logits, which are class scores and
// taken for features only when named.
func chooseOutput(outputs []TensorInfo, output, pool string) (TensorInfo, error) {
	find := func(name string) int {
		return slices.IndexFunc(outputs, func(t TensorInfo) bool { return t.Name == name })
	}
	at := -1
	switch {
	case output != "":
		if at = find(output); at < 0 {
			return TensorInfo{}, options.Errorf("Output", "there is no %q; choose from: %s", output, list(outputs))
		}
	case pool != "":
		if at = find(tokens); at < 0 {
			return TensorInfo{}, options.Errorf("Pool", "%s is for an output %s, and the model has only: %s", pool, tokens, list(outputs))
		}
	default:
		for _, name := range append(slices.Clone(embeddings), tokens) {
			if at = find(name); at >= 0 {
				break
			}
		}
		if at < 0 && len(outputs) == 1 && outputs[0].Name != logits {
			at = 0
		}
		if at < 0 {
			return TensorInfo{}, options.Errorf("Output", "no output is called %s or %s; choose from: %s", strings.Join(embeddings, ", "), tokens, list(outputs))
		}
	}
	if !outputs[at].isFloat() {
		return TensorInfo{}, options.Errorf("Output", "%s is not float32 or float16; choose another from: %s", outputs[at], list(outputs))
	}
	return outputs[at], nil
}

// whyOutput says why chooseOutput chose name.
func whyOutput(name string, opts Options) string {
	switch {
	case opts.Output != "":
		return "as was asked for"
	case opts.Pool != "":
		return "as the pooling is for it"
	case name == tokens:
		return "as there is no " + strings.Join(embeddings, ", ")
	case slices.Contains(embeddings, name):
		return "the first that there is of " + strings.Join(embeddings, ", ")
	}
	return "the only output"
}

// hasLogits tells whether the outputs hold a classifier's logits [N, C] apart
// from the embedding.
func hasLogits(outputs []TensorInfo, embedding string) bool {
	return embedding != logits && slices.ContainsFunc(outputs, func(t TensorInfo) bool {
		return t.Name == logits && t.isFloat() && len(t.Shape) == 2
	})
}

// pooling makes one row of features from what the graph puts out for one image:
// feature d is the mean over positions p of out[(skip+p)·posStride + d·dimStride].
type pooling struct {
	name                 string // "", "cls", "mean" or classAndMean
	dim, skip, positions int
	posStride, dimStride int
}

// classAndMean is the name of the pooling that has the first token before the mean.
const classAndMean = "cls+mean"

// newPooling plans the pooling of an output of the given shape without its
// batch dimension. [D] stays as it is; of [T, D] tokens the first (cls) or the
// mean of the patches (mean) is taken, where nothing is asked for the first if
// there is one apart from the patches; an image-shaped output is averaged over
// space, with its channels where the input has them unless sizes of 1 tell
// otherwise. Images have height×width pixels.
func newPooling(row []int64, pool string, layout preprocess.Layout, height, width int) (pooling, error) {
	switch {
	case len(row) == 1 && pool == "":
		return pooling{"", int(row[0]), 0, 1, 0, 1}, nil
	case len(row) == 1:
		return pooling{}, options.Errorf("Pool", "the output is one vector per image, so that there is nothing to pool")
	case len(row) == 2:
		tokens, dim := int(row[0]), int(row[1])
		leading, known := leadingTokens(tokens, height, width)
		patchesOnly := known && leading == 0
		switch {
		case pool == "cls" && patchesOnly:
			return pooling{}, options.Errorf("Pool", "it has %d tokens, one for each patch of the image and none for the class; use mean", tokens)
		case pool == "mean" || pool == "" && patchesOnly:
			return pooling{"mean", dim, leading, tokens - leading, dim, 1}, nil
		}
		return pooling{"cls", dim, 0, 1, 0, 1}, nil
	case len(row) == 3 && pool == "cls":
		return pooling{}, options.Errorf("Pool", "it is a feature map, which has no class token; use mean")
	case len(row) == 3:
		channelsLast := layout == preprocess.NHWC
		if channelsLast && row[1]*row[2] == 1 || !channelsLast && row[0]*row[1] == 1 {
			channelsLast = row[0]*row[1] == 1
		}
		if channelsLast {
			return pooling{"mean", int(row[2]), 0, int(row[0] * row[1]), int(row[2]), 1}, nil
		}
		area := int(row[1] * row[2])
		return pooling{"mean", int(row[0]), 0, area, 1, area}, nil
	}
	return pooling{}, options.Errorf("Output", "it has %d dimensions; 2, 3 or 4 are supported; choose another output", len(row)+1)
}

// leadingTokens tells how many of the tokens of an image come before those of
// its patches: the class token and registers, which say nothing of any place and
// are no part of a mean. The patches are the finest grid of squares that has no
// more cells than there are tokens. It is not known (and 0) where that leaves
// more than the 16 tokens that no network exceeds, or half of them.
func leadingTokens(tokens, height, width int) (leading int, known bool) {
	side, leading := patchSide(tokens, height, width)
	return leading, side > 0
}

// patchSide returns the side of the squares of leadingTokens, 0 where it is not known.
func patchSide(tokens, height, width int) (side, leading int) {
	const most = 16
	cells := func(side int) int { return (height / side) * (width / side) }
	fits := func(side int) bool {
		rest := tokens - cells(side)
		return rest >= 0 && rest <= most && rest < cells(side)
	}
	for side := 2; 2*side <= min(height, width); side++ {
		if height%side == 0 && width%side == 0 && fits(side) {
			return side, tokens - cells(side)
		}
	}
	// Patches of 14 pixels are in use where they leave a border out: 27×27 of 384.
	if side := 14; 2*side <= min(height, width) && fits(side) {
		return side, tokens - cells(side)
	}
	return 0, 0
}

// apply writes the features of one image into dst, which holds p.dim of them.
func (p pooling) apply(dst, out []float32) {
	if p.name == classAndMean {
		dst = dst[copy(dst[:p.dim/2], out):]
	}
	// Four sums at a time, as each addition waits for the one before.
	for d := 0; d < len(dst); d += 4 {
		next := func(k int) int { return min(k, len(dst)-1-d) * p.dimStride }
		at, b, c, e := p.skip*p.posStride+d*p.dimStride, next(1), next(2), next(3)
		var v, w, x, y float64
		for range p.positions {
			v += float64(out[at])
			w += float64(out[at+b])
			x += float64(out[at+c])
			y += float64(out[at+e])
			at += p.posStride
		}
		for k, sum := range []float64{v, w, x, y}[:min(4, len(dst)-d)] {
			dst[d+k] = float32(sum / float64(p.positions))
		}
	}
}
