package preprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Load returns the pipeline that the configuration in dir, the folder of a
// model, describes. It takes the first that is there of
//
//   - preprocessor_config.json: Hugging Face transformers
//   - processor_config.json, if it has an image_processor: transformers 5
//   - config.json, if it is one of timm
//   - open_clip_config.json or preprocess_cfg.json: OpenCLIP
//
// and fails where there is none, or where the first cannot be honoured. Old
// files of transformers do not name their image processor; they take the one of
// the model_type in config.json, as AutoImageProcessor does.
func Load(dir string) (*Spec, error) {
	files := []string{"preprocessor_config.json", "processor_config.json", "config.json", "open_clip_config.json", "preprocess_cfg.json"}
	for _, file := range files {
		path := filepath.Join(dir, file)
		data, err := disk.ReadFile(path, disk.Config)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the preprocessing configuration: %w", err)
		}
		spec, err := parseFile(path, data, modelType(dir))
		if (file == "config.json" || file == "processor_config.json") && errors.Is(err, errOtherConfig) {
			continue // transformers describes the network or the tokenizer in files of these names
		}
		return spec, err
	}
	return nil, fmt.Errorf("%s: nothing says how images are prepared for this model; put its preprocessor_config.json "+
		"or processor_config.json (Hugging Face), config.json (timm), open_clip_config.json or preprocess_cfg.json (OpenCLIP) there", dir)
}

// modelType returns what kind of network transformers' config.json in dir
// describes; "" where it does not say.
func modelType(dir string) string {
	var config struct {
		ModelType string `json:"model_type"`
	}
	data, err := disk.ReadFile(filepath.Join(dir, "config.json"), disk.Config)
	if err != nil || json.Unmarshal(data, &config) != nil {
		return ""
	}
	return config.ModelType
}

var errOtherConfig = errors.New("no preprocessing configuration of a known kind: want image_processor_type (Hugging Face), " +
	"pretrained_cfg or input_size (timm), or preprocess_cfg (OpenCLIP)")

// Parse returns the pipeline that one configuration file describes. Which kind
// of file it is shows from its fields; a bare OpenCLIP preprocess_cfg also from
// its name. Errors name the file.
func Parse(name string, data []byte) (*Spec, error) {
	return parseFile(name, data, "")
}

// parseFile is Parse for a file beside a config.json of the given model type.
func parseFile(name string, data []byte, modelType string) (*Spec, error) {
	spec, err := parse(filepath.Base(name), data, modelType)
	if err == nil {
		err = spec.Validate()
	}
	if err == nil {
		err = spec.plausible()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return spec, nil
}

// plausible refuses numbers that no library has: with them black and white would be
// the same, or the other way round.
func (s *Spec) plausible() error {
	for c, levels := range s.levels() {
		switch {
		case s.Scale < 0 || s.Std[c] < 0:
			return fmt.Errorf("scale %v and std %v: neither may be below 0", s.Scale, s.Std)
		case levels[0] >= levels[len(levels)-1]:
			return fmt.Errorf("with scale %v, mean %v and std %v the values of black and white differ too little", s.Scale, s.Mean, s.Std)
		}
	}
	return nil
}

func parse(base string, data []byte, modelType string) (*Spec, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	has := func(name string) bool { return fields[name] != nil }
	switch {
	case base == "processor_config.json" && has("image_processor"):
		return parse("preprocessor_config.json", fields["image_processor"], modelType)
	case has("image_processor_type"), has("feature_extractor_type"):
		return parseTransformers(data, fields, modelType)
	case has("pretrained_cfg"):
		return parseTimm(fields["pretrained_cfg"])
	case has("input_size"):
		return parseTimm(data)
	case has("preprocess_cfg"):
		return parseOpenCLIP(fields["preprocess_cfg"], fields["model_cfg"])
	case base == "preprocessor_config.json":
		return parseTransformers(data, fields, modelType)
	case has("resize_mode"), base == "preprocess_cfg.json":
		return parseOpenCLIP(data, nil)
	}
	return nil, errOtherConfig
}

// perChannel is one number for all channels or a list of three.
type perChannel [3]float64

func (p *perChannel) UnmarshalJSON(data []byte) error {
	var x float64
	if json.Unmarshal(data, &x) == nil {
		*p = perChannel{x, x, x}
		return nil
	}
	var list []float64
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 3 {
		return fmt.Errorf("mean and std must be a number or three, not %.100s", data)
	}
	*p = perChannel(list)
	return nil
}

// Mean and standard deviation that the libraries call by these names.
var (
	imagenetMean = perChannel{0.485, 0.456, 0.406}
	imagenetStd  = perChannel{0.229, 0.224, 0.225}
	clipMean     = perChannel{0.48145466, 0.4578275, 0.40821073}
	clipStd      = perChannel{0.26862954, 0.26130258, 0.27577711}
	half         = perChannel{0.5, 0.5, 0.5}
)

// or returns *p, or otherwise where p is nil: an absent field and null alike
// take the default.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// divided returns ⌊size/pct⌋ as the libraries compute it, for a size in range.
func divided(size int, pct float64) (int, error) {
	x := math.Floor(float64(size) / pct)
	if pct <= 0 || !(x >= 1 && x <= MaxSide) {
		return 0, fmt.Errorf("crop_pct %v of size %d resizes to %v, want 1 to %d", pct, size, x, MaxSide)
	}
	return int(x), nil
}

// parseTimm reads timm's pretrained_cfg: data/config.py and data's
// transforms_imagenet_eval.
func parseTimm(data []byte) (*Spec, error) {
	var cfg struct {
		InputSize     []int       `json:"input_size"`
		Interpolation *string     `json:"interpolation"`
		CropPct       *float64    `json:"crop_pct"`
		CropMode      *string     `json:"crop_mode"`
		Mean          *perChannel `json:"mean"`
		Std           *perChannel `json:"std"`
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return nil, fmt.Errorf("timm configuration: %w", err)
	}
	if cfg.InputSize == nil {
		cfg.InputSize = []int{3, 224, 224}
	}
	if len(cfg.InputSize) != 3 || cfg.InputSize[0] != 3 {
		return nil, fmt.Errorf("input_size is %v, want [3, height, width]", cfg.InputSize)
	}
	s := &Spec{
		Filter:   Filter(or(cfg.Interpolation, string(Bicubic))),
		Height:   cfg.InputSize[1],
		Width:    cfg.InputSize[2],
		Rounding: HalfEven,
		Scale:    1. / 255,
		Mean:     or(cfg.Mean, imagenetMean),
		Std:      or(cfg.Std, imagenetStd),
	}
	var err error
	pct := or(cfg.CropPct, 0.875)
	if s.ResizeHeight, err = divided(s.Height, pct); err != nil {
		return nil, err
	}
	if s.ResizeWidth, err = divided(s.Width, pct); err != nil {
		return nil, err
	}
	switch mode := or(cfg.CropMode, "center"); mode {
	case "center":
		s.Resize = coverOrShortest(s)
	case "squash":
		s.Resize = Squash
	case "border":
		s.Resize = Contain
		for c, mean := range s.Mean {
			fill := math.RoundToEven(255 * mean)
			if !(fill >= 0 && fill <= 255) {
				return nil, fmt.Errorf("crop_mode border fills with 255·mean, and mean is %v", s.Mean)
			}
			s.Fill[c] = uint8(fill)
		}
	default:
		return nil, fmt.Errorf("unknown crop_mode %q, want center, squash or border", mode)
	}
	return s, nil
}

// coverOrShortest returns the mode for a resize that fills the target and cuts
// off the rest: timm and OpenCLIP hand square targets to torchvision, which
// truncates, and others to ResizeKeepRatio, which rounds.
func coverOrShortest(s *Spec) ResizeMode {
	if s.ResizeHeight == s.ResizeWidth {
		return Shortest
	}
	return Cover
}

// heightWidth is one number for both, or [height, width].
type heightWidth [2]int

func (s *heightWidth) UnmarshalJSON(data []byte) error {
	var n int
	if json.Unmarshal(data, &n) == nil {
		*s = heightWidth{n, n}
		return nil
	}
	var list []int
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 2 {
		return fmt.Errorf("size must be a whole number or [height, width], not %s", data)
	}
	*s = heightWidth(list)
	return nil
}

// parseOpenCLIP reads OpenCLIP's preprocess_cfg: open_clip's PreprocessCfg and
// image_transform. modelCfg may be nil; the image_size of its vision_cfg
// overrules the size of preprocess_cfg, as open_clip's factory has it.
func parseOpenCLIP(data, modelCfg []byte) (*Spec, error) {
	var cfg struct {
		Size          *heightWidth `json:"size"`
		Mode          *string      `json:"mode"`
		Interpolation *string      `json:"interpolation"`
		ResizeMode    *string      `json:"resize_mode"`
		FillColor     uint8        `json:"fill_color"`
		Mean          *perChannel  `json:"mean"`
		Std           *perChannel  `json:"std"`
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return nil, fmt.Errorf("OpenCLIP preprocess_cfg: %w", err)
	}
	var model struct {
		VisionCfg struct {
			ImageSize *heightWidth `json:"image_size"`
		} `json:"vision_cfg"`
	}
	if modelCfg != nil {
		if err := json.Unmarshal(modelCfg, &model); err != nil {
			return nil, fmt.Errorf("OpenCLIP model_cfg: %w", err)
		}
	}
	if mode := or(cfg.Mode, "RGB"); mode != "RGB" {
		return nil, fmt.Errorf("mode is %q, want RGB", mode)
	}
	interpolation := or(cfg.Interpolation, string(Bicubic))
	if !slices.Contains([]string{string(Bicubic), string(Bilinear), "random"}, interpolation) {
		return nil, fmt.Errorf("interpolation is %q, want bicubic, bilinear or random", interpolation)
	}
	if interpolation == "random" {
		interpolation = string(Bicubic) // random is for training only
	}
	size := or(model.VisionCfg.ImageSize, or(cfg.Size, heightWidth{224, 224}))
	s := &Spec{
		ResizeHeight: size[0],
		ResizeWidth:  size[1],
		Filter:       Filter(interpolation),
		Height:       size[0],
		Width:        size[1],
		Rounding:     HalfEven,
		Scale:        1. / 255,
		Mean:         or(cfg.Mean, clipMean),
		Std:          or(cfg.Std, clipStd),
	}
	switch mode := or(cfg.ResizeMode, "shortest"); mode {
	case "shortest":
		s.Resize = coverOrShortest(s)
		if s.Resize == Cover {
			s.Filter = Bicubic // open_clip does not pass the interpolation on here
		}
	case "longest":
		s.Resize = Contain
		s.Fill = [3]uint8{cfg.FillColor, cfg.FillColor, cfg.FillColor}
	case "squash":
		s.Resize = Squash
	default:
		return nil, fmt.Errorf("unknown resize_mode %q, want shortest, longest or squash", mode)
	}
	return s, nil
}
