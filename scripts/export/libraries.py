"""Image models of four libraries, each with the library's own preprocessing.

A specification is LIBRARY:NAME or LIBRARY:NAME:TAG:

    open_clip:ViT-B-16:openai              NAME and TAG as open_clip lists them
    transformers:facebook/dinov2-small     a name on the hub, or a folder with config.json
    timm:vit_small_patch14_dinov2.lvd142m  as timm lists them
    torchvision:resnet50:IMAGENET1K_V2     TAG is one of the model's weights
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn


class Failure(Exception):
    """What went wrong, as a message for the user."""


@dataclass
class Backbone:
    """A network from prepared images to named outputs, and how images are prepared."""

    net: nn.Module  # [N, 3, H, W] -> a tuple of tensors [N, ...], one for each of outputs
    outputs: list[str]
    size: tuple[int, int]  # H, W
    prepare: Callable[[Image.Image], np.ndarray]  # the library's own: an RGB image -> [3, H, W]
    save_config: Callable[[Path], None]  # writes that preprocessing into the model's folder


@dataclass
class Request:
    """A request: which model, and where its weights come from."""

    name: str
    tag: str = ""
    weights: Path | None = None  # None: the library's own
    random: bool = False
    size: int | None = None  # side of the images; None: what the weights were made for


def load(spec: str, weights: Path | None = None, random: bool = False, size: int | None = None) -> Backbone:
    """Makes the model that a specification names."""
    library, _, rest = spec.partition(":")
    if library not in LIBRARIES or not rest:
        raise Failure(f"{spec}: want LIBRARY:NAME, where LIBRARY is one of {', '.join(LIBRARIES)}")
    name, _, tag = rest.partition(":")
    try:
        backbone = LIBRARIES[library](Request(name, tag, weights, random, size))
    except Failure:
        raise
    except Exception as error:  # of whatever kind the library has for it
        raise Failure(f"{spec}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    if random:
        randomise(backbone.net)
    backbone.net.eval().requires_grad_(False)
    return backbone


def randomise(net: nn.Module, seed: int = 0) -> None:
    """Draws every parameter anew, so that each has a part in the outputs.

    Libraries begin with scales of 1e-5 or 0 and biases of 0, behind which an
    export could lose whole layers unnoticed.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*net.named_parameters(), *net.named_buffers()]:
            if not value.is_floating_point() or name.endswith(("inv_freq", "attn_mask")):
                continue
            noise = torch.randn(value.shape, generator=generator).to(value)
            if name.endswith(("running_var", "weight", "gamma", "lambda1")) and value.ndim == 1:
                value.copy_(1 + 0.2 * noise.clamp(-3, 3))
            elif value.ndim >= 2 and name.endswith(("weight", "proj")):
                value.copy_(noise / math.sqrt(value[0].numel()))
            else:
                value.copy_(0.1 * noise)


def state_dict(file: Path) -> dict[str, Tensor]:
    """Reads a file of weights, without running code that it may hold."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    state = torch.load(file, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise Failure(f"{file} holds no dictionary of tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}


class Call(nn.Module):
    """A module whose forward is a function of another module and the images."""

    def __init__(self, inner: nn.Module, function: Callable[[nn.Module, Tensor], tuple[Tensor, ...]]):
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        return self.function(self.inner, pixel_values)


class Headed(nn.Module):
    """A classifier that gives the input of its last linear layer too."""

    def __init__(self, classifier: nn.Module, classes: int, logits_of: Callable[[object], Tensor]):
        super().__init__()
        heads = [name for name, module in classifier.named_modules() if isinstance(module, nn.Linear) and module.out_features == classes]
        if not heads:
            raise Failure(f"{type(classifier).__name__} has no linear layer with {classes} outputs; its features are not known")
        parent, _, leaf = heads[-1].rpartition(".")
        holder = classifier.get_submodule(parent)
        self.head = getattr(holder, leaf)
        setattr(holder, leaf, nn.Identity())
        self.body = classifier
        self.logits_of = logits_of

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        features = self.logits_of(self.body(pixel_values))
        return features, self.head(features)


# --- OpenCLIP: the image tower ---


def from_open_clip(request: Request) -> Backbone:
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg
    from open_clip.push_to_hf_hub import save_config_for_hf
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = open_clip.get_model_config(request.name)
    if config is None:
        raise Failure(f"open_clip has no model {request.name}; open_clip.list_models() lists them")
    known = get_pretrained_cfg(request.name, request.tag) if request.tag else {}
    if request.tag and not known:
        raise Failure(f"open_clip has no weights {request.tag} of {request.name}: {', '.join(open_clip.list_pretrained_tags_by_model(request.name))}")
    if not (request.tag or request.weights or request.random):
        raise Failure(f"say whose weights: open_clip:{request.name}:TAG, --weights FILE or --random")
    model = open_clip.create_model(
        request.name,
        pretrained=None if request.random else str(request.weights or request.tag),
        force_image_size=request.size,
        force_quick_gelu=known.get("quick_gelu", False),
        force_preprocess_cfg={key: known[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in known},
    )
    config = copy.deepcopy(config)
    if request.size:
        config["vision_cfg"]["image_size"] = request.size

    # encode_image calls the tower with this; the result is the same.
    def embed(visual: nn.Module, x: Tensor) -> tuple[Tensor]:
        embeds = visual(x)
        return (embeds[0] if isinstance(embeds, tuple) else embeds,)

    preprocess = PreprocessCfg(**model.visual.preprocess_cfg)
    transform = image_transform_v2(preprocess, is_train=False)
    height, width = (preprocess.size, preprocess.size) if isinstance(preprocess.size, int) else preprocess.size
    return Backbone(
        Call(model.visual, embed), ["image_embeds"], (height, width),
        lambda image: transform(image).numpy(),
        lambda folder: save_config_for_hf(model, folder / "open_clip_config.json", config),
    )


# --- timm ---


def from_timm(request: Request) -> Backbone:
    import timm
    from timm.data import create_transform, resolve_model_data_config
    from timm.models._hub import save_config_for_hf

    if not timm.is_model(request.name.partition(".")[0]):
        raise Failure(f"timm has no model {request.name}; timm.list_models() lists them")
    given = timm.get_pretrained_cfg(request.name)
    options = {}
    if request.size and given is not None and given.fixed_input_size:
        options["img_size"] = request.size
    if request.weights:  # read by timm like its own downloads, so that it converts known formats
        options["pretrained_cfg_overlay"] = {"file": str(request.weights)}
    model = timm.create_model(request.name, pretrained=not request.random, **options)
    data = resolve_model_data_config(model, args={"img_size": request.size} if request.size else None)
    transform = create_transform(**data, is_training=False)

    def features(net: nn.Module, x: Tensor) -> tuple[Tensor]:
        return (net.forward_head(net.forward_features(x), pre_logits=True),)

    def classify(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        x = net.forward_features(x)
        return net.forward_head(x, pre_logits=True), net.forward_head(x)

    classifier = model.num_classes > 0
    return Backbone(
        Call(model, classify if classifier else features), ["features", "logits"] if classifier else ["features"], tuple(data["input_size"][1:]),
        lambda image: transform(image).numpy(),
        lambda folder: save_config_for_hf(model, folder / "config.json", data_config=data),
    )


# --- torchvision ---


def from_torchvision(request: Request) -> Backbone:
    import torchvision

    try:
        listed = torchvision.models.get_model_weights(request.name)
        entry = listed[request.tag] if request.tag else listed.DEFAULT
    except (ValueError, KeyError) as error:
        raise Failure(f"torchvision: {error}; torchvision.models.list_models() lists the models, NAME:TAG names weights") from None
    options = {} if request.size is None else {"crop_size": request.size, "resize_size": request.size * 256 // 224}
    transform = entry.transforms(**options)
    size, resize = transform.crop_size[0], transform.resize_size[0]
    model = torchvision.models.get_model(request.name, weights=None if request.random or request.weights else entry)
    if request.weights:
        model.load_state_dict(state_dict(request.weights))

    # torchvision has no file for this; timm's describes the same steps with the
    # same rounding, because timm uses torchvision's.
    def save(folder: Path) -> None:
        crop_pct = size / resize
        while math.floor(size / crop_pct) < resize:
            crop_pct = math.nextafter(crop_pct, 0)
        cfg = {
            "tag": entry.name, "input_size": [3, size, size], "interpolation": transform.interpolation.value,
            "crop_pct": crop_pct, "crop_mode": "center", "mean": transform.mean, "std": transform.std,
        }
        (folder / "config.json").write_text(json.dumps({"architecture": request.name, "pretrained_cfg": cfg}, indent=2) + "\n", "utf-8")

    classes = len(entry.meta["categories"])
    return Backbone(
        Headed(model, classes, lambda logits: logits), ["features", "logits"], (size, size),
        lambda image: transform(image).numpy(), save,
    )


# --- transformers ---

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

# The settings in config.json and preprocessor_config.json of these checkpoints that
# are not the defaults of transformers' classes: model type, configuration, image
# processor and its settings. With them, --random and --weights need no hub.
DINOV2_PROCESSOR = ("Bit", {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3, **IMAGENET})
PRESETS: dict[str, tuple[str, dict, tuple[str, dict]]] = {
    f"openai/clip-vit-base-patch{patch}": ("clip", {"vision_config": {"patch_size": patch}}, ("CLIP", {})) for patch in (16, 32)
}
for kind, suffix, extra in (("dinov2", "", {}), ("dinov2_with_registers", "-with-registers", {"num_register_tokens": 4})):
    for name, width, depth, heads in (("small", 384, 12, 6), ("base", 768, 12, 12), ("large", 1024, 24, 16)):
        PRESETS[f"facebook/dinov2{suffix}-{name}"] = (
            kind,
            {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "image_size": 518, "patch_size": 14, **extra},
            DINOV2_PROCESSOR,
        )
PRESETS["google/vit-base-patch16-224"] = ("vit", {"architectures": ["ViTForImageClassification"], "num_labels": 1000}, ("ViT", {"resample": 2, **HALF}))
PRESETS["google/siglip-base-patch16-224"] = ("siglip", {}, ("Siglip", {"resample": 3, **HALF}))
PRESETS["microsoft/resnet-18"] = (
    "resnet",
    {"architectures": ["ResNetForImageClassification"], "num_labels": 1000, "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512],
     "depths": [2, 2, 2, 2], "layer_type": "basic"},
    ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3, **IMAGENET}),
)


def transformers_parts(request: Request):
    """Returns the configuration, the processor and where weights are looked for."""
    import transformers

    if request.name in PRESETS and (request.random or request.weights):
        kind, settings, (family, options) = PRESETS[request.name]
        config = transformers.AutoConfig.for_model(kind, **settings)
        module = {"Bit": "bit", "CLIP": "clip", "ConvNext": "convnext", "Siglip": "siglip", "ViT": "vit"}[family]
        processors = __import__(f"transformers.models.{module}.image_processing_pil_{module}", fromlist=["x"])
        return config, getattr(processors, family + "ImageProcessorPil")(**options)
    try:
        return (transformers.AutoConfig.from_pretrained(request.name),
                transformers.AutoImageProcessor.from_pretrained(request.name, backend="pil"))
    except OSError as error:
        raise Failure(f"transformers: {str(error).splitlines()[0]} Known without the hub: {', '.join(PRESETS)}") from None


def from_transformers(request: Request) -> Backbone:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config, processor = transformers_parts(request)
    if request.size:
        processor.size, processor.crop_size = resized(processor, request.size)
    two_towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
    classifier = any(name.endswith("ForImageClassification") for name in config.architectures or [])
    auto = transformers.AutoModelForImageClassification if classifier else transformers.AutoModel
    config.return_dict = True

    def build(**options) -> tuple[nn.Module, list[str]]:
        if request.random:
            return auto.from_config(config, **options), []
        # Tensors that do not fit are reported below, with the other missing ones.
        options |= {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
        if request.weights:
            cls = transformers.MODEL_MAPPING[type(config)] if not classifier else transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
            model, info = cls.from_pretrained(None, state_dict=state_dict(request.weights), **options)
        else:
            model, info = auto.from_pretrained(request.name, **options)
        missing = sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"])
        if two_towers:  # the text tower is not exported
            missing = [key for key in missing if not key.startswith(("text_", "logit_"))]
        return model, missing

    model, missing = build()
    pooled = True
    if missing and all(".pooler." in "." + key for key in missing):
        model, missing = build(add_pooling_layer=False)
        pooled = False
    if missing:
        raise Failure(f"{request.weights or request.name} lacks {len(missing)} tensors of the shapes of {type(model).__name__}, {missing[0]} for one; is it of another model?")

    if two_towers:
        def embed(net: nn.Module, x: Tensor) -> tuple[Tensor]:
            embeds = net.get_image_features(pixel_values=x)
            return (embeds if isinstance(embeds, Tensor) else embeds.pooler_output,)

        net, outputs = Call(model, embed), ["image_embeds"]
    elif classifier:
        net, outputs = Headed(model, config.num_labels, lambda output: output.logits), ["features", "logits"]
    else:
        def pool(net: nn.Module, x: Tensor) -> tuple[Tensor]:
            return (net(pixel_values=x).pooler_output.flatten(1),)

        def tokens(net: nn.Module, x: Tensor) -> tuple[Tensor]:
            return (net(pixel_values=x).last_hidden_state,)

        net, outputs = (Call(model, pool), ["features"]) if pooled else (Call(model, tokens), ["last_hidden_state"])

    def prepare(image: Image.Image) -> np.ndarray:
        return np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0], np.float32)

    size = prepare(Image.new("RGB", (300, 200))).shape[1:]
    return Backbone(net, outputs, size, prepare, processor.save_pretrained)


def resized(processor, side: int):
    """Returns a processor's size and crop_size for images of another side."""
    size, crop = dict(processor.size), getattr(processor, "crop_size", None)
    if crop:
        crop = dict(crop)
        scale = side / crop["height"]
        size = {key: round(value * scale) for key, value in size.items() if value}
        return size, {"height": side, "width": side}
    return {key: side for key, value in size.items() if value}, crop


LIBRARIES = {"open_clip": from_open_clip, "transformers": from_transformers, "timm": from_timm, "torchvision": from_torchvision}
