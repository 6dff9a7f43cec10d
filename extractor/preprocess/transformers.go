package preprocess

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// processor holds the defaults of one image processor of transformers, where its
// configuration is silent. The defaults are those of the PIL back ends of
// transformers 5.23; where version 4.46 has another one there is none, and the
// configuration must say.
type processor struct {
	size      edges
	square    bool // a size that is one number means a square, not the shortest edge
	crop      int  // side of the default crop; 0 where there is no such step
	noCrop    bool // do_center_crop is false by default
	resample  int  // -1 where the versions disagree
	mean, std perChannel
	vague     []string // what else the versions disagree on

	convNext     bool // crop_pct instead of a crop
	poolFormer   bool // crop_pct before the crop
	levit        bool // resizes to 256/224 of size
	efficientNet bool // rescale_offset, include_top
	floating     bool // resizes in floating point: with bilinear weights within a level of Pillow
}

var processors = map[string]processor{
	"Beit":         {square: true, crop: 224, resample: 3, mean: half, std: half, vague: []string{"size", "do_center_crop"}},
	"Blip":         {size: edges{Height: 384, Width: 384}, square: true, resample: 3, mean: clipMean, std: clipStd},
	"ChineseCLIP":  {size: edges{Shortest: 224}, crop: 224, resample: 3, mean: clipMean, std: clipStd},
	"DINOv3ViT":    {size: edges{Height: 224, Width: 224}, square: true, resample: 2, mean: imagenetMean, std: imagenetStd, floating: true},
	"Levit":        {size: edges{Shortest: 224}, crop: 224, resample: 3, mean: imagenetMean, std: imagenetStd, levit: true},
	"PoolFormer":   {size: edges{Shortest: 224}, crop: 224, resample: 3, mean: imagenetMean, std: imagenetStd, poolFormer: true},
	"Pvt":          {size: edges{Height: 224, Width: 224}, square: true, resample: -1, mean: imagenetMean, std: imagenetStd},
	"CLIP":         {size: edges{Shortest: 224}, crop: 224, resample: 3, mean: clipMean, std: clipStd},
	"Bit":          {size: edges{Shortest: 224}, crop: 224, resample: 3, mean: clipMean, std: clipStd},
	"ViT":          {size: edges{Height: 224, Width: 224}, square: true, resample: 2, mean: half, std: half},
	"DeiT":         {size: edges{Height: 256, Width: 256}, square: true, crop: 224, resample: 3, mean: half, std: half},
	"Siglip":       {size: edges{Height: 224, Width: 224}, resample: 3, mean: half, std: half},
	"MobileNetV1":  {size: edges{Shortest: 256}, crop: 224, resample: 2, mean: half, std: half},
	"MobileNetV2":  {size: edges{Shortest: 256}, crop: 224, resample: 2, mean: half, std: half},
	"ConvNext":     {size: edges{Shortest: 384}, resample: -1, mean: half, std: half, convNext: true},
	"EfficientNet": {size: edges{Height: 346, Width: 346}, square: true, crop: 289, noCrop: true, resample: -1, mean: half, std: half, efficientNet: true},
}

// edges is transformers' size: a number, [height, width], or an object.
type edges struct {
	Height   int `json:"height"`
	Width    int `json:"width"`
	Shortest int `json:"shortest_edge"`

	number int // what a bare number was, until resolve
}

func (e *edges) UnmarshalJSON(data []byte) error {
	type object edges // without this method
	var o object
	var list []int
	switch {
	case json.Unmarshal(data, &o.number) == nil:
	case json.Unmarshal(data, &list) == nil:
		if len(list) != 2 {
			return fmt.Errorf("size %s is not [height, width]", data)
		}
		o.Height, o.Width = list[0], list[1]
	default:
		var keys map[string]*int
		if err := json.Unmarshal(data, &keys); err != nil {
			return fmt.Errorf("size must be a whole number, [height, width] or an object of such, not %s", data)
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains([]string{"height", "width", "shortest_edge"}, key) && keys[key] != nil {
				return fmt.Errorf("size has %s, want height and width, or shortest_edge", key)
			}
		}
		if err := json.Unmarshal(data, &o); err != nil {
			return err
		}
	}
	*e = edges(o)
	return nil
}

// resolve gives a bare number its meaning and checks that the size is one of
// the two that there are.
func (e edges) resolve(field string, square bool) (edges, error) {
	switch {
	case e.number != 0 && square:
		e = edges{Height: e.number, Width: e.number}
	case e.number != 0:
		e = edges{Shortest: e.number}
	}
	if e.Shortest == 0 && (e.Height == 0 || e.Width == 0) || e.Shortest != 0 && (e.Height != 0 || e.Width != 0) {
		return edges{}, fmt.Errorf("%s must give height and width, or shortest_edge", field)
	}
	return e, nil
}

// typeless are the image processors that AutoImageProcessor of transformers
// 5.23 takes, by model_type, where a configuration does not name its own.
var typeless = map[string]string{
	"clip": "CLIP", "altclip": "CLIP", "groupvit": "CLIP", "metaclip_2": "CLIP", "mlcd": "CLIP", "aimv2": "CLIP", "aimv2_vision_model": "CLIP",
	"beit": "Beit", "data2vec-vision": "Beit", "blip": "Blip", "blip-2": "Blip", "chinese_clip": "ChineseCLIP", "dinov3_vit": "DINOv3ViT",
	"levit": "Levit", "poolformer": "PoolFormer", "pvt": "Pvt", "pvt_v2": "Pvt",
	"bit": "Bit", "dinov2": "Bit", "focalnet": "Bit", "hiera": "Bit", "pixio": "Bit",
	"vit": "ViT", "dinat": "ViT", "ijepa": "ViT", "swiftformer": "ViT", "swin": "ViT", "swinv2": "ViT", "vit_mae": "ViT", "vit_msn": "ViT",
	"deit":         "DeiT",
	"siglip":       "Siglip",
	"mobilenet_v1": "MobileNetV1",
	"mobilenet_v2": "MobileNetV2",
	"convnext":     "ConvNext", "convnextv2": "ConvNext", "cvt": "ConvNext", "regnet": "ConvNext", "resnet": "ConvNext",
	"efficientnet": "EfficientNet",
}

// transformersConfig is Hugging Face's preprocessor_config.json.
type transformersConfig struct {
	ImageProcessorType   string      `json:"image_processor_type"`
	FeatureExtractorType string      `json:"feature_extractor_type"`
	DoResize             *bool       `json:"do_resize"`
	Size                 *edges      `json:"size"`
	DefaultToSquare      *bool       `json:"default_to_square"`
	Resample             *float64    `json:"resample"` // some files have 2.0
	DoCenterCrop         *bool       `json:"do_center_crop"`
	CropSize             *edges      `json:"crop_size"`
	CropPct              *float64    `json:"crop_pct"`
	DoRescale            *bool       `json:"do_rescale"`
	RescaleFactor        *float64    `json:"rescale_factor"`
	RescaleOffset        *bool       `json:"rescale_offset"`
	DoNormalize          *bool       `json:"do_normalize"`
	ImageMean            *perChannel `json:"image_mean"`
	ImageStd             *perChannel `json:"image_std"`
	IncludeTop           *bool       `json:"include_top"`
}

// resize sets how s resizes, which the image processor called name does in its kind's way.
func (cfg *transformersConfig) resize(s *Spec, kind processor, name string) error {
	if cfg.Resample == nil && kind.resample == -1 {
		return fmt.Errorf("resample is missing, and versions of transformers differ in what %s does then; add it (0 nearest, 2 bilinear, 3 bicubic)", name)
	}
	filters := []Filter{Nearest, Lanczos, Bilinear, Bicubic, Box, Hamming}
	code := or(cfg.Resample, float64(kind.resample))
	if !(code >= 0 && code < float64(len(filters))) || code != math.Trunc(code) {
		return fmt.Errorf("resample is %v, want 0 to %d", code, len(filters)-1)
	}
	s.Filter = filters[int(code)]
	if kind.floating && s.Filter != Bilinear && s.Filter != Nearest {
		return fmt.Errorf("resample is %v: %s resizes in floating point, beyond black and white, and only bilinear (2) and nearest (0) are supported then", code, name)
	}
	size, err := or(cfg.Size, kind.size).resolve("size", or(cfg.DefaultToSquare, kind.square))
	if err != nil {
		return err
	}
	pct := 224. / 256
	if kind.poolFormer {
		pct = 0.9
	}
	return kind.resize(s, size, or(cfg.CropPct, pct))
}

// parseTransformers reads Hugging Face's preprocessor_config.json; fields are
// the raw fields of data. modelType tells its kind where it does not.
func parseTransformers(data []byte, fields map[string]json.RawMessage, modelType string) (*Spec, error) {
	var cfg transformersConfig
	if err := json.Unmarshal(data, &cfg); err != nil {
		return nil, fmt.Errorf("configuration of transformers: %w", err)
	}
	name := cmp.Or(cfg.ImageProcessorType, cfg.FeatureExtractorType)
	if name == "" {
		family, ok := typeless[modelType]
		if !ok {
			return nil, fmt.Errorf("it does not name its image processor, and no model_type in a config.json beside it does; "+
				"add \"image_processor_type\", one of %s with ImageProcessor at the end", strings.Join(slices.Sorted(maps.Keys(processors)), ", "))
		}
		name = family + "ImageProcessor"
	}
	kind, known := processors[family(name)]
	if !known {
		return nil, fmt.Errorf("image processor %q is not supported; those that are: %s", name,
			strings.Join(slices.Sorted(maps.Keys(processors)), ", "))
	}
	if err := kind.refuse(name, fields); err != nil {
		return nil, err
	}

	for _, field := range kind.vague {
		if value := string(fields[field]); value == "" || value == "null" {
			return nil, fmt.Errorf("%s is missing, and versions of transformers differ in what %s does then; add it", field, name)
		}
	}

	s := &Spec{Resize: None, Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	if or(cfg.DoResize, true) {
		if err := cfg.resize(s, kind, name); err != nil {
			return nil, err
		}
	}
	if kind.crop > 0 && or(cfg.DoCenterCrop, !kind.noCrop) {
		size, err := or(cfg.CropSize, edges{number: kind.crop}).resolve("crop_size", true)
		if err != nil {
			return nil, err
		}
		s.Height, s.Width = size.Height, size.Width
		if size.Shortest != 0 {
			return nil, fmt.Errorf("crop_size must give height and width")
		}
	} else if s.Height == 0 {
		return nil, fmt.Errorf("the size of the output would depend on the image, because %s neither crops nor resizes to a fixed height and width", name)
	}

	if or(cfg.DoRescale, true) {
		s.Scale = or(cfg.RescaleFactor, 1./255)
		if or(cfg.RescaleOffset, false) {
			s.Mean = [3]float64{1, 1, 1} // x·scale − 1
		}
	}
	mean, std := or(cfg.ImageMean, kind.mean), or(cfg.ImageStd, kind.std)
	for c := range 3 {
		if or(cfg.DoNormalize, true) {
			s.Mean[c] += mean[c]
			s.Std[c] = std[c]
		}
		if kind.efficientNet && or(cfg.IncludeTop, true) {
			s.Std[c] *= std[c] // divides once more
		}
	}
	return s, nil
}

// family strips from the name of a processor class what says nothing about its
// arithmetic: the back end, and the name before version 4.26. The PIL back end
// is the reference for all.
func family(class string) string {
	for _, suffix := range []string{"ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor"} {
		if base, ok := strings.CutSuffix(class, suffix); ok {
			return base
		}
	}
	return class
}

// resize sets the resizing of s, and the output size where that fixes it.
func (p processor) resize(s *Spec, size edges, cropPct float64) error {
	switch {
	case p.convNext && size.Shortest == 0:
		return fmt.Errorf("size must give shortest_edge")
	case p.convNext && size.Shortest < 384:
		edge, err := divided(size.Shortest, cropPct)
		if err != nil {
			return err
		}
		s.Resize, s.ResizeHeight, s.ResizeWidth = Shortest, edge, edge
		s.Height, s.Width = size.Shortest, size.Shortest
		return nil
	case p.convNext:
		size = edges{Height: size.Shortest, Width: size.Shortest}
	case p.poolFormer && (size.Shortest != 0 || size.Height == size.Width):
		edge, err := divided(max(size.Shortest, size.Height), cropPct)
		if err != nil {
			return err
		}
		size = edges{Shortest: edge}
	case p.poolFormer:
		return fmt.Errorf("size must give shortest_edge")
	case p.levit && size.Shortest != 0:
		size.Shortest = int(256. / 224 * float64(size.Shortest))
	}
	if size.Shortest != 0 {
		s.Resize, s.ResizeHeight, s.ResizeWidth = Shortest, size.Shortest, size.Shortest
		return nil
	}
	s.Resize, s.ResizeHeight, s.ResizeWidth = Squash, size.Height, size.Width
	s.Height, s.Width = size.Height, size.Width
	return nil
}

// inert are the switches that change nothing for an RGB image and no labels.
var inert = []string{"do_convert_rgb", "do_reduce_labels"}

// refuse returns an error where a field asks for a step that this processor
// does not have here. Fields that transformers ignores as well pass.
func (p processor) refuse(name string, fields map[string]json.RawMessage) error {
	steps := map[string]bool{
		"do_resize": true, "do_rescale": true, "do_normalize": true,
		"do_center_crop": p.crop > 0,
		"crop_pct":       p.convNext || p.poolFormer,
		"rescale_offset": p.efficientNet,
		"include_top":    p.efficientNet,
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		step, listed := steps[field]
		asks := listed || strings.HasPrefix(field, "do_") || field == "use_square_size" || field == "pad_size"
		value := string(fields[field])
		if asks && !step && !slices.Contains(inert, field) && value != "false" && value != "null" {
			return fmt.Errorf("%s: %s is not a step of %s that is supported; remove it if it is not meant", field, value, name)
		}
	}
	return nil
}
