package preprocess

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestParseDefaults compares what is left unsaid with the libraries:
// transformers 5.23 (where 4.46 agrees), timm 1.0.31, OpenCLIP 3.3.
func TestParseDefaults(t *testing.T) {
	t.Parallel()
	clip := Spec{Resize: Shortest, ResizeHeight: 224, ResizeWidth: 224, Filter: Bicubic, Height: 224, Width: 224,
		Rounding: Floor, Scale: 1. / 255, Mean: clipMean, Std: clipStd}
	vit := Spec{Resize: Squash, ResizeHeight: 224, ResizeWidth: 224, Filter: Bilinear, Height: 224, Width: 224,
		Rounding: Floor, Scale: 1. / 255, Mean: half, Std: half}
	with := func(s Spec, change func(s *Spec)) Spec {
		change(&s)
		return s
	}
	tests := []struct {
		name, config string
		want         Spec
	}{
		{"CLIP", `{"image_processor_type": "CLIPImageProcessor"}`, clip},
		{"the fast class", `{"image_processor_type": "CLIPImageProcessorFast", "default_to_square": false}`, clip},
		{"the old class", `{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}`, clip},
		{"null is absent", `{"image_processor_type": "BitImageProcessor", "size": null, "resample": null, "image_mean": null, "crop_pct": null}`, clip},
		{"ViT", `{"image_processor_type": "ViTImageProcessor"}`, vit},
		{"ViT, one number is a square", `{"feature_extractor_type": "ViTFeatureExtractor", "size": 100}`,
			with(vit, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Height, s.Width = 100, 100, 100, 100 })},
		{"ViT, height before width", `{"image_processor_type": "ViTImageProcessor", "size": {"height": 100, "width": 60}}`,
			with(vit, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Height, s.Width = 100, 60, 100, 60 })},
		{"DeiT", `{"image_processor_type": "DeiTImageProcessor"}`,
			with(vit, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Filter = 256, 256, Bicubic })},
		{"SigLIP", `{"image_processor_type": "SiglipImageProcessor"}`, with(vit, func(s *Spec) { s.Filter = Bicubic })},
		{"MobileNetV1", `{"image_processor_type": "MobileNetV1ImageProcessor"}`,
			with(vit, func(s *Spec) { s.Resize, s.ResizeHeight, s.ResizeWidth = Shortest, 256, 256 })},
		{"MobileNetV2", `{"image_processor_type": "MobileNetV2ImageProcessor", "do_reduce_labels": true}`,
			with(vit, func(s *Spec) { s.Resize, s.ResizeHeight, s.ResizeWidth = Shortest, 256, 256 })},
		{"ConvNeXT", `{"image_processor_type": "ConvNextImageProcessor", "resample": 2}`,
			with(vit, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Height, s.Width = 384, 384, 384, 384 })},
		{"ConvNeXT below 384", `{"image_processor_type": "ConvNextImageProcessor", "resample": 2, "size": {"shortest_edge": 224}}`,
			with(vit, func(s *Spec) { s.Resize, s.ResizeHeight, s.ResizeWidth = Shortest, 256, 256 })},
		{"EfficientNet divides by std twice", `{"image_processor_type": "EfficientNetImageProcessor", "resample": 2, "size": 224}`,
			with(vit, func(s *Spec) { s.Std = [3]float64{0.25, 0.25, 0.25} })},
		{"EfficientNet with an offset", `{"image_processor_type": "EfficientNetImageProcessor", "resample": 2, "size": 224, "rescale_offset": true, "include_top": false}`,
			with(vit, func(s *Spec) { s.Mean = [3]float64{1.5, 1.5, 1.5} })},
		{"DINOv3, as saved by version 4.56", `{"crop_size": null, "data_format": "channels_first", "default_to_square": true, "device": null, "disable_grouping": null,
			"do_center_crop": null, "do_convert_rgb": null, "do_normalize": true, "do_rescale": true, "do_resize": true, "image_mean": [0.485, 0.456, 0.406],
			"image_processor_type": "DINOv3ViTImageProcessorFast", "image_std": [0.229, 0.224, 0.225], "input_data_format": null, "resample": 2,
			"rescale_factor": 0.00392156862745098, "return_tensors": null, "size": {"height": 224, "width": 224}}`,
			with(vit, func(s *Spec) { s.Mean, s.Std = imagenetMean, imagenetStd })},
		{"BEiT", `{"feature_extractor_type": "BeitFeatureExtractor", "size": 224, "crop_size": 224, "do_center_crop": false, "resample": 2, "reduce_labels": false}`, vit},
		{"LeViT resizes to 256/224 of its size", `{"image_processor_type": "LevitImageProcessor"}`,
			with(clip, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Mean, s.Std = 256, 256, imagenetMean, imagenetStd })},
		{"PoolFormer resizes, then crops", `{"image_processor_type": "PoolFormerImageProcessor", "size": {"shortest_edge": 200}}`,
			with(clip, func(s *Spec) { s.ResizeHeight, s.ResizeWidth, s.Mean, s.Std = 222, 222, imagenetMean, imagenetStd })},
		{"steps turned off", `{"image_processor_type": "CLIPImageProcessor", "do_resize": false, "do_rescale": false, "do_normalize": false}`,
			Spec{Resize: None, Height: 224, Width: 224, Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}},
		{"a resample that is not written as a whole number", `{"image_processor_type": "CLIPImageProcessor", "resample": 2.0}`,
			with(clip, func(s *Spec) { s.Filter = Bilinear })},
		{"one mean for all", `{"image_processor_type": "ViTImageProcessor", "image_mean": 0.5, "image_std": 0.5}`, vit},

		{"timm", `{"architecture": "resnet50", "pretrained_cfg": {}}`,
			Spec{Resize: Shortest, ResizeHeight: 256, ResizeWidth: 256, Filter: Bicubic, Height: 224, Width: 224,
				Rounding: HalfEven, Scale: 1. / 255, Mean: imagenetMean, Std: imagenetStd}},
		{"timm's flat form, height before width", `{"architecture": "x", "input_size": [3, 90, 180], "crop_pct": 0.9, "interpolation": "bilinear"}`,
			Spec{Resize: Cover, ResizeHeight: 100, ResizeWidth: 200, Filter: Bilinear, Height: 90, Width: 180,
				Rounding: HalfEven, Scale: 1. / 255, Mean: imagenetMean, Std: imagenetStd}},
		{"timm's border is the mean", `{"pretrained_cfg": {"crop_mode": "border", "crop_pct": 1.0, "mean": [0.5, 0, 1], "std": [1, 1, 1]}}`,
			Spec{Resize: Contain, ResizeHeight: 224, ResizeWidth: 224, Filter: Bicubic, Height: 224, Width: 224,
				Rounding: HalfEven, Fill: [3]uint8{128, 0, 255}, Scale: 1. / 255, Mean: [3]float64{0.5, 0, 1}, Std: [3]float64{1, 1, 1}}},

		{"OpenCLIP", `{"preprocess_cfg": {}}`, with(clip, func(s *Spec) { s.Rounding = HalfEven })},
		{"OpenCLIP takes the model's size", `{"model_cfg": {"vision_cfg": {"image_size": 336}}, "preprocess_cfg": {"size": 224}}`,
			with(clip, func(s *Spec) {
				s.Rounding, s.ResizeHeight, s.ResizeWidth, s.Height, s.Width = HalfEven, 336, 336, 336, 336
			})},
		{"OpenCLIP, bare", `{"size": [224, 224], "resize_mode": "longest", "fill_color": 7, "interpolation": "random"}`,
			with(clip, func(s *Spec) { s.Rounding, s.Resize, s.Fill = HalfEven, Contain, [3]uint8{7, 7, 7} })},
	}
	for _, tt := range tests {
		got, err := Parse("config.json", []byte(tt.config))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if *got != tt.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tt.name, *got, tt.want)
		}
	}
}

// refusedConfigs are refused with an error that has the word.
var refusedConfigs = []struct{ config, want string }{
	{``, "JSON"},
	{`[]`, "JSON"},
	{`{"size": 224`, "JSON"},
	{`{"size": 224}`, "image_processor_type"},
	{`{"image_processor_type": "Qwen2VLImageProcessor"}`, `"Qwen2VLImageProcessor" is not supported`},
	{`{"image_processor_type": "Siglip2ImageProcessorFast"}`, `"Siglip2ImageProcessorFast" is not supported`},
	{`{"image_processor_type": "VideoMAEImageProcessor"}`, `"VideoMAEImageProcessor" is not supported`},
	{`{"image_processor_type": "DINOv3ViTImageProcessorFast", "resample": 3}`, "floating point"},
	{`{"image_processor_type": "DINOv3ViTImageProcessorFast", "do_center_crop": true}`, "do_center_crop"},
	{`{"image_processor_type": "BeitImageProcessor", "do_center_crop": true}`, "size is missing"},
	{`{"image_processor_type": "BeitImageProcessor", "size": 224, "do_center_crop": null}`, "do_center_crop is missing"},
	{`{"image_processor_type": "PvtImageProcessor"}`, "resample is missing"},
	{`{"image_processor_type": "PoolFormerImageProcessor", "size": {"height": 2, "width": 3}}`, "shortest_edge"},
	{`{"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 1e-300}`, "crop_pct"},
	{`{"image_processor_type": 3}`, "image_processor_type"},
	{`{"image_processor_type": "CLIPImageProcessor", "do_center_crop": false}`, "depend on the image"},
	{`{"image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 224}}`, "depend on the image"},
	{`{"image_processor_type": "ViTImageProcessor", "do_resize": false}`, "depend on the image"},
	{`{"image_processor_type": "SiglipImageProcessor", "size": 224}`, "depend on the image"},
	{`{"image_processor_type": "ViTImageProcessor", "do_center_crop": true}`, "do_center_crop"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_offset": true}`, "rescale_offset"},
	{`{"image_processor_type": "CLIPImageProcessor", "do_flip_channel_order": true}`, "do_flip_channel_order"},
	{`{"image_processor_type": "CLIPImageProcessor", "do_pad": true}`, "do_pad"},
	{`{"image_processor_type": "CLIPImageProcessor", "crop_pct": 0.9}`, "crop_pct"},
	{`{"image_processor_type": "CLIPImageProcessor", "use_square_size": true}`, "use_square_size"},
	{`{"image_processor_type": "CLIPImageProcessor", "resample": 6}`, "resample is 6"},
	{`{"image_processor_type": "CLIPImageProcessor", "resample": -1}`, "resample is -1"},
	{`{"image_processor_type": "CLIPImageProcessor", "resample": 2.5}`, "resample is 2.5"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224, "longest_edge": 300}}`, "longest_edge"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224, "height": 3}}`, "height and width, or"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": [1, 2, 3]}`, "[height, width]"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": "big"}`, "size"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": 100000}`, "1 to 8192"},
	{`{"image_processor_type": "CLIPImageProcessor", "size": -5}`, "1 to 8192"},
	{`{"image_processor_type": "CLIPImageProcessor", "crop_size": {"shortest_edge": 5}}`, "crop_size"},
	{`{"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 5}}`, "crop_size"},
	{`{"image_processor_type": "CLIPImageProcessor", "image_mean": [1, 2]}`, "three"},
	{`{"image_processor_type": "CLIPImageProcessor", "image_std": [1, 0, 1]}`, "std"},
	{`{"image_processor_type": "CLIPImageProcessor", "rescale_factor": 0}`, "scale"},
	{`{"image_processor_type": "ConvNextImageProcessor"}`, "resample is missing"},
	{`{"image_processor_type": "EfficientNetImageProcessor"}`, "resample is missing"},
	{`{"image_processor_type": "ConvNextImageProcessor", "resample": 3, "size": {"height": 224, "width": 224}}`, "shortest_edge"},
	{`{"image_processor_type": "ConvNextImageProcessor", "resample": 3, "size": 224, "crop_pct": 0}`, "crop_pct"},
	{`{"image_processor_type": "ConvNextImageProcessor", "resample": 3, "size": 224, "crop_pct": 1e-300}`, "crop_pct"},

	{`{"pretrained_cfg": {"interpolation": "random"}}`, `unknown filter "random"`},
	{`{"pretrained_cfg": {"crop_mode": "top"}}`, "crop_mode"},
	{`{"pretrained_cfg": {"crop_pct": -1}}`, "crop_pct"},
	{`{"pretrained_cfg": {"crop_mode": "border", "mean": [3, 0, 0]}}`, "border"},
	{`{"pretrained_cfg": {"input_size": [1, 28, 28]}}`, "input_size"},
	{`{"input_size": 224}`, "input_size"},
	{`{"pretrained_cfg": "x"}`, "timm"},

	{`{"preprocess_cfg": {"mode": "L"}}`, "mode"},
	{`{"preprocess_cfg": {"resize_mode": "stretch"}}`, "resize_mode"},
	{`{"preprocess_cfg": {"interpolation": "box"}}`, "interpolation"},
	{`{"preprocess_cfg": {"fill_color": 300}}`, "fill_color"},
	{`{"preprocess_cfg": {"size": [1, 2, 3]}}`, "size"},
	{`{"preprocess_cfg": {}, "model_cfg": {"vision_cfg": {"image_size": "x"}}}`, "model_cfg"},

	// Absurd values, as a hostile file has them.
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": -1}`, "scale"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": -0.0}`, "scale"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": NaN}`, "JSON"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": Infinity}`, "JSON"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": 1e400}`, "rescale_factor"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": 1e300}`, "not finite"},
	{`{"image_processor_type": "ViTImageProcessor", "rescale_factor": 1e-320}`, "too little"},
	{`{"image_processor_type": "ViTImageProcessor", "image_mean": [1e39, 0, 0]}`, "not finite"},
	{`{"image_processor_type": "ViTImageProcessor", "image_mean": 1e20}`, "too little"},
	{`{"image_processor_type": "ViTImageProcessor", "image_std": -0.5}`, "std"},
	{`{"image_processor_type": "ViTImageProcessor", "image_std": [1e-300, 1, 1]}`, "not finite"},
	{`{"image_processor_type": "ViTImageProcessor", "image_std": 1e300}`, "too little"},
	{`{"image_processor_type": "ViTImageProcessor", "size": 1e99}`, "size"},
	{`{"image_processor_type": "ViTImageProcessor", "size": {"height": 9223372036854775807, "width": 1}}`, "1 to 8192"},
	{`{"image_processor_type": "ViTImageProcessor", "size": {"height": -9223372036854775808, "width": 8}}`, "1 to 8192"},
	{`{"image_processor_type": "ViTImageProcessor", "size": {"height": 99999999999999999999, "width": 8}}`, "size"},
	{`{"image_processor_type": "LevitImageProcessor", "size": 9223372036854775807, "crop_size": 4}`, "1 to 8192"},
	{`{"image_processor_type": "PoolFormerImageProcessor", "size": 8192, "crop_pct": 1e-5}`, "crop_pct"},
	{`{"image_processor_type": "CLIPImageProcessor", "crop_size": 1000000000}`, "1 to 8192"},
	{`{"image_processor_type": "CLIPImageProcessor", "resample": 1e300}`, "resample"},
	{`{"image_processor_type": "EfficientNetImageProcessor", "resample": 0, "image_std": 1e-30}`, "not finite"},
	{`{"image_processor_type": "` + strings.Repeat("V", 1<<16) + `"}`, "not supported"},
	{`{"pretrained_cfg": {"crop_pct": 1e-4}}`, "crop_pct"},
	{`{"pretrained_cfg": {"input_size": [3, 0, 0]}}`, "1 to 8192"},
	{`{"pretrained_cfg": {"std": 0}}`, "std"},
	{`{"pretrained_cfg": {"std": [-1, -1, -1]}}`, "std"},
	{`{"preprocess_cfg": {"std": -1}}`, "std"},
	{`{"preprocess_cfg": {"size": -1}}`, "1 to 8192"},
	{strings.Repeat(`{"preprocess_cfg":`, 1e5), "JSON"},
}

// TestParseRefuses: what would be guessed is refused, with the file's name and
// a word on what is wrong.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range refusedConfigs {
		_, err := Parse("models/x/config.json", []byte(tt.config))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "models/x/config.json: ") {
			t.Errorf("%.200s:\nerror is %v\nwant the file's name and %q", tt.config, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	const (
		vit      = `{"image_processor_type": "ViTImageProcessor"}`
		timm     = `{"pretrained_cfg": {"input_size": [3, 96, 96]}}`
		openCLIP = `{"preprocess_cfg": {"size": 64}}`
		network  = `{"model_type": "vit", "image_size": 224}`
		// as google/vit-base-patch16-224-in21k has it, but smaller
		typeless = `{"do_normalize": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2, "size": 48}`
		nested   = `{"image_processor": {"image_processor_type": "ViTImageProcessor", "size": {"height": 40, "width": 40}}, "processor_class": "X"}`
	)
	tests := []struct {
		name   string
		files  map[string]string
		height int // 0: an error that holds want
		want   string
	}{
		{"transformers first", map[string]string{"preprocessor_config.json": vit, "config.json": timm, "open_clip_config.json": openCLIP}, 224, ""},
		{"timm", map[string]string{"config.json": timm, "open_clip_config.json": openCLIP}, 96, ""},
		{"OpenCLIP beside a network's config", map[string]string{"config.json": network, "open_clip_config.json": openCLIP}, 64, ""},
		{"OpenCLIP, bare", map[string]string{"preprocess_cfg.json": `{"size": 32}`}, 32, ""},
		{"none", map[string]string{"config.json": network, "model.onnx": ""}, 0, "preprocessor_config.json"},
		{"a broken one is not passed over", map[string]string{"preprocessor_config.json": "{", "config.json": timm}, 0, "preprocessor_config.json: not a JSON"},
		{"nor is one without a type", map[string]string{"preprocessor_config.json": "{}", "config.json": timm}, 0, "preprocessor_config.json: it does not name"},
		{"a type that config.json gives", map[string]string{"preprocessor_config.json": typeless, "config.json": network}, 48, ""},
		{"a type that nothing gives", map[string]string{"preprocessor_config.json": typeless}, 0, `add "image_processor_type"`},
		{"a type that config.json does not give", map[string]string{"preprocessor_config.json": typeless, "config.json": `{"model_type": "bert"}`}, 0, `add "image_processor_type"`},
		{"transformers 5", map[string]string{"processor_config.json": nested, "config.json": timm}, 40, ""},
		{"transformers 5 with videos", map[string]string{"processor_config.json": strings.Replace(nested, `"processor_class"`, `"video_processor": {"size": 3}, "processor_class"`, 1)}, 40, ""},
		{"transformers 5 after its predecessor", map[string]string{"processor_config.json": nested, "preprocessor_config.json": vit}, 224, ""},
		{"transformers 5 without a type", map[string]string{"processor_config.json": `{"image_processor": ` + typeless + `}`, "config.json": network}, 48, ""},
		{"transformers 5, broken", map[string]string{"processor_config.json": `{"image_processor": 3}`, "config.json": timm}, 0, "processor_config.json: not a JSON"},
		{"a processor_config.json without images", map[string]string{"processor_config.json": `{"processor_class": "X"}`, "config.json": timm}, 96, ""},
		{"nor a broken timm", map[string]string{"config.json": `{"pretrained_cfg": 3}`, "open_clip_config.json": openCLIP}, 0, "config.json: timm"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			spec, err := Load(dir)
			switch {
			case tt.height > 0 && err != nil:
				t.Fatal(err)
			case tt.height > 0 && spec.Height != tt.height:
				t.Errorf("height is %d, want %d", spec.Height, tt.height)
			case tt.height == 0 && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir)):
				t.Errorf("error is %v, want the folder and %q", err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224}, "resample": 3, "crop_size": {"height": 224, "width": 224}, "image_mean": [0.5, 0.5, 0.5]}`,
		`{"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "crop_pct": 0.875, "resample": 3, "do_pad": false}`,
		`{"image_processor_type": "EfficientNetImageProcessor", "size": [3, 4], "resample": 0, "rescale_offset": true, "rescale_factor": 1e-3}`,
		`{"architecture": "x", "pretrained_cfg": {"input_size": [3, 20, 30], "interpolation": "lanczos", "crop_pct": 0.9, "crop_mode": "border", "mean": 0.5, "std": 0.5}}`,
		`{"model_cfg": {"vision_cfg": {"image_size": [9, 8]}}, "preprocess_cfg": {"resize_mode": "longest", "fill_color": 3}}`,
		`{"size": 224, "resize_mode": "squash"}`,
		`{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 1000000000}, "crop_size": -8, "resample": 99, "image_mean": [1e308, 0, 0], "image_std": [1e-308, 0, -1]}`,
		`{"image_processor_type": "V\u001b[31m", "size": 9223372036854775807}`,
	} {
		f.Add("preprocess_cfg.json", []byte(seed))
	}
	for _, tt := range refusedConfigs {
		f.Add("config.json", []byte(tt.config))
	}
	f.Add("processor_config.json", []byte(`{"image_processor": {"do_resize": true, "resample": 2.0, "size": 224}}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		spec, err := parseFile(name, data, "vit")
		if err != nil {
			return
		}
		if err := spec.Validate(); err != nil {
			t.Errorf("parseFile returns what Validate refuses: %v", err)
		}
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(text, &back); err != nil || back != *spec {
			t.Errorf("%s reads back as %+v (%v)", text, back, err)
		}
	})
}
