package extractor

import (
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
)

func floats(name string, shape ...int64) TensorInfo { return TensorInfo{name, "float32", shape} }

func TestChooseOutput(t *testing.T) {
	var (
		features = floats("features", -1, 192)
		pooled   = floats("pooler_output", -1, 384)
		embeds   = floats("image_embeds", -1, 512)
		hidden   = floats("last_hidden_state", -1, 197, 384)
		scores   = floats("logits", -1, 10)
		other    = floats("643", -1, 64)
		half     = TensorInfo{"embedding", "float16", []int64{-1, 8}}
		ids      = TensorInfo{"ids", "int64", []int64{-1, 8}}
	)
	for _, test := range []struct {
		name         string
		outputs      []TensorInfo
		output, pool string
		want         string
		wrong        []string // what the error says
	}{
		{"named features", []TensorInfo{scores, features}, "", "", "features", nil},
		{"image_embeds first", []TensorInfo{hidden, features, pooled, embeds}, "", "", "image_embeds", nil},
		{"pooler_output before features", []TensorInfo{features, hidden, pooled}, "", "", "pooler_output", nil},
		{"embedding in float16", []TensorInfo{hidden, half}, "", "", "embedding", nil},
		{"tokens when nothing better", []TensorInfo{scores, hidden}, "", "", "last_hidden_state", nil},
		{"an explicit pool takes the tokens", []TensorInfo{hidden, pooled}, "", "mean", "last_hidden_state", nil},
		{"an explicit output wins over the pool", []TensorInfo{hidden, other, pooled}, "643", "cls", "643", nil},
		{"the only output whatever its name", []TensorInfo{other}, "", "", "643", nil},
		{"logits when named", []TensorInfo{scores}, "logits", "", "logits", nil},
		{"logits alone are not features", []TensorInfo{scores}, "", "", "", []string{"Output: ", "logits float32[?,10]"}},
		{"nothing known", []TensorInfo{scores, other}, "", "", "", []string{"Output: ", "logits float32[?,10], 643 float32[?,64]"}},
		{"a wrong name", []TensorInfo{scores, features}, "feature", "", "", []string{`"feature"`, "Output: ", "features float32[?,192]", "logits"}},
		{"a pool without tokens", []TensorInfo{features}, "", "cls", "", []string{"last_hidden_state", "Pool: cls", "features"}},
		{"an output of integers", []TensorInfo{ids, features}, "ids", "", "", []string{"ids int64[?,8]", "float32 or float16"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := chooseOutput(test.outputs, test.output, test.pool)
			if test.wrong != nil {
				wantError(t, err, test.wrong...)
			} else if err != nil || got.Name != test.want {
				t.Errorf("%q, %v; want %q", got.Name, err, test.want)
			}
		})
	}
}

func TestChooseInput(t *testing.T) {
	for _, test := range []struct {
		name   string
		inputs []TensorInfo
		layout preprocess.Layout
		sizes  []int64 // height, width, batch
		wrong  []string
	}{
		{"channels first", []TensorInfo{floats("x", -1, 3, 224, 192)}, preprocess.NCHW, []int64{224, 192, -1}, nil},
		{"channels last", []TensorInfo{floats("x", 4, 224, 192, 3)}, preprocess.NHWC, []int64{224, 192, 4}, nil},
		{"float16, all dynamic", []TensorInfo{{"x", "float16", []int64{-1, -1, -1, -1}}}, preprocess.NCHW, []int64{-1, -1, -1}, nil},
		{"channels last, size dynamic", []TensorInfo{floats("x", -1, -1, -1, 3)}, preprocess.NHWC, []int64{-1, -1, -1}, nil},
		{"text too", []TensorInfo{{"input_ids", "int64", []int64{-1, -1}}, floats("pixel_values", -1, 3, 224, 224)}, 0, nil,
			[]string{"input_ids", "onnx/vision_model.onnx"}},
		{"bytes", []TensorInfo{{"x", "uint8", []int64{-1, 224, 224, 3}}}, 0, nil, []string{"x uint8[?,224,224,3]", "float32"}},
		{"vectors", []TensorInfo{floats("x", -1, 768)}, 0, nil, []string{"x float32[?,768]", "four dimensions"}},
		{"grey", []TensorInfo{floats("x", -1, 1, 28, 28)}, 0, nil, []string{"3 colour channels"}},
		{"none", nil, 0, nil, []string{"0 inputs"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, err := chooseInput(test.inputs, nil)
			if test.wrong != nil {
				wantError(t, err, test.wrong...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := []int64{in.height, in.width, in.batch}; in.layout != test.layout || !slices.Equal(got, test.sizes) {
				t.Errorf("layout %v, height, width, batch %v; want %v, %v", in.layout, got, test.layout, test.sizes)
			}
		})
	}
}

func TestPooling(t *testing.T) {
	out := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for _, test := range []struct {
		name   string
		row    []int64
		pool   string
		layout preprocess.Layout
		want   []float32
		isPool string
		wrong  string
	}{
		{"a vector", []int64{3}, "", preprocess.NCHW, []float32{1, 2, 3}, "", ""},
		{"a vector with a pool", []int64{3}, "mean", preprocess.NCHW, nil, "", "Pool: "},
		{"first token", []int64{4, 3}, "", preprocess.NCHW, []float32{1, 2, 3}, "cls", ""},
		{"mean of tokens", []int64{4, 3}, "mean", preprocess.NCHW, []float32{5.5, 6.5, 7.5}, "mean", ""},
		{"space, channels first", []int64{3, 2, 2}, "", preprocess.NCHW, []float32{2.5, 6.5, 10.5}, "mean", ""},
		{"space, channels last", []int64{2, 2, 3}, "mean", preprocess.NHWC, []float32{5.5, 6.5, 7.5}, "mean", ""},
		{"pooled to 1×1", []int64{3, 1, 1}, "", preprocess.NCHW, []float32{1, 2, 3}, "mean", ""},
		{"pooled to 1×1, the other way round", []int64{3, 1, 1}, "", preprocess.NHWC, []float32{1, 2, 3}, "mean", ""},
		{"channels last though they came first", []int64{1, 1, 3}, "", preprocess.NCHW, []float32{1, 2, 3}, "mean", ""},
		{"space has no class token", []int64{3, 2, 2}, "cls", preprocess.NCHW, nil, "", "Pool: "},
		{"five dimensions", []int64{3, 2, 2, 1}, "", preprocess.NCHW, nil, "", "Output: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := newPooling(test.row, test.pool, test.layout, 10, 14)
			if test.wrong != "" {
				wantError(t, err, test.wrong)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, p.dim)
			p.apply(got, out)
			if !slices.Equal(got, test.want) || p.name != test.isPool {
				t.Errorf("%v by %q, want %v by %q", got, p.name, test.want, test.isPool)
			}
		})
	}
}
