"""Asks the libraries' own processors what they make of made-up images.

    python3 extractor/preprocess/testdata/generate_processors.py FILE [--cases N] [--seed S]

Needs transformers 5.23, timm 1.0.31, open_clip 3.3 and what they need. Draws N
configurations of the supported kinds at random, writes each as its library saves
it, and notes what the library's processor then makes of an image of random size:

    file, config   name and content of the configuration file
    width, height, seed  the image: its bytes are state >> 24 of
                   state = state*1664525 + 1013904223 mod 2^32, red, green, blue
    crop           the crop before normalisation, as a base64 PNG
    values         [channel, y, x, value] of the tensor at some places
"""

import argparse
import base64
import io
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import transformers
from PIL import Image

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("file", type=Path)
parser.add_argument("--cases", type=int, default=100)
parser.add_argument("--seed", type=int, default=20261121)
args = parser.parse_args()
draw = random.Random(args.seed)

FAMILIES = {
    "CLIP": "clip", "Bit": "bit", "ViT": "vit", "DeiT": "deit", "Siglip": "siglip", "MobileNetV1": "mobilenet_v1", "MobileNetV2": "mobilenet_v2",
    "ConvNext": "convnext", "EfficientNet": "efficientnet", "Beit": "beit", "Blip": "blip", "ChineseCLIP": "chinese_clip", "Levit": "levit",
    "PoolFormer": "poolformer", "Pvt": "pvt", "DINOv3ViT": "dinov3_vit",
}
SQUARE = ("ViT", "Siglip", "Blip", "Pvt", "DINOv3ViT", "Beit", "DeiT", "EfficientNet")  # need a height and a width
CROPS = ("DeiT", "CLIP", "Bit", "MobileNetV1", "MobileNetV2", "ChineseCLIP", "Levit", "PoolFormer")


def processor_class(family):
    module = FAMILIES[family]
    pil = "" if family == "DINOv3ViT" else "pil_"  # it resizes tensors and has no other
    found = __import__(f"transformers.models.{module}.image_processing_{pil}{module}", fromlist=["x"])
    return getattr(found, family + "ImageProcessor" + ("Pil" if pil else ""))


def numbers(low, high):
    return [round(draw.uniform(low, high), 3) for _ in range(3)]


def from_transformers(folder):
    family = draw.choice(sorted(FAMILIES))
    side = draw.randint(8, 22)
    options = {"image_mean": numbers(0.2, 0.7), "image_std": numbers(0.2, 0.6), "resample": draw.choice([0, 1, 2, 3, 4, 5])}
    if family in SQUARE:
        options["size"] = {"height": side, "width": draw.choice([side, draw.randint(8, 22)])}
    elif family == "ConvNext":
        options |= {"size": {"shortest_edge": side}, "crop_pct": draw.choice([0.875, 0.9, 0.95, 1.0])}
    elif family == "PoolFormer":
        options |= {"size": {"shortest_edge": side}, "crop_pct": draw.choice([0.875, 0.9, 0.95, 1.0])}
    else:
        options["size"] = draw.choice([{"shortest_edge": side}, {"height": side, "width": side + 3}])
    if family in CROPS:
        options["crop_size"] = draw.choice([{"height": side, "width": side}, {"height": draw.randint(8, 26), "width": draw.randint(8, 26)}])
    if family == "DINOv3ViT":
        options["resample"] = 2
    if family == "EfficientNet":
        options |= {"include_top": draw.random() < 0.5, "do_center_crop": draw.random() < 0.5, "crop_size": {"height": side - 3, "width": side}}
    if family == "Beit":
        options |= {"do_center_crop": draw.random() < 0.5, "crop_size": {"height": side - 2, "width": side}}
    processor = processor_class(family)(**options)
    processor.save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    config = json.loads(file.read_text("utf-8"))
    name = file.name
    if draw.random() < 0.3:
        name, config = "processor_config.json", {"image_processor": config, "processor_class": "CLIPProcessor"}
    std = np.array(options["image_std"]) ** (2 if options.get("include_top") else 1)
    mean = np.array(options["image_mean"]) * (options["image_std"] if options.get("include_top") else 1)
    if options.get("include_top"):  # (x - m)/s once more divided by s: x = y*s*s + m
        mean = np.array(options["image_mean"])
    return name, config, lambda im: np.asarray(processor(images=im, return_tensors="np")["pixel_values"][0], np.float64), mean, std


def from_timm(folder):
    import timm
    from timm.data import create_transform, resolve_model_data_config
    from timm.models._hub import save_config_for_hf

    model = timm.create_model("resnet10t", pretrained=False)
    height = draw.randint(8, 22)
    data = resolve_model_data_config(model) | {
        "input_size": (3, height, draw.choice([height, draw.randint(8, 22)])), "interpolation": draw.choice(["bilinear", "bicubic", "nearest", "lanczos", "box", "hamming"]),
        "crop_pct": draw.choice([0.875, 0.9, 0.95, 1.0]), "crop_mode": draw.choice(["center", "squash", "border"]), "mean": tuple(numbers(0.2, 0.7)), "std": tuple(numbers(0.2, 0.6)),
    }
    save_config_for_hf(model, folder / "config.json", data_config=data)
    transform = create_transform(**data, is_training=False)
    return "config.json", json.loads((folder / "config.json").read_text("utf-8")), lambda im: transform(im).numpy(), np.array(data["mean"]), np.array(data["std"])


def from_open_clip(folder):
    from types import SimpleNamespace

    from open_clip.push_to_hf_hub import save_config_for_hf
    from open_clip.transform import PreprocessCfg, image_transform_v2

    height = draw.randint(8, 22)
    size = draw.choice([height, [height, draw.randint(8, 22)]])
    cfg = {"interpolation": draw.choice(["bilinear", "bicubic"]), "resize_mode": draw.choice(["shortest", "longest", "squash"]), "mean": tuple(numbers(0.2, 0.7)), "std": tuple(numbers(0.2, 0.6))}
    visual = SimpleNamespace(image_mean=cfg["mean"], image_std=cfg["std"], preprocess_cfg=cfg)
    save_config_for_hf(SimpleNamespace(visual=visual), folder / "open_clip_config.json", {"vision_cfg": {"image_size": size}})
    transform = image_transform_v2(PreprocessCfg(**cfg, size=size if isinstance(size, int) else tuple(size)), is_train=False)
    return "open_clip_config.json", json.loads((folder / "open_clip_config.json").read_text("utf-8")), lambda im: transform(im).numpy(), np.array(cfg["mean"]), np.array(cfg["std"])


def picture(width, height, seed):
    state, values = seed, []
    for _ in range(3 * width * height):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append(state >> 24)
    return Image.fromarray(np.array(values, np.uint8).reshape(height, width, 3))


cases = []
while len(cases) < args.cases:
    width, height, seed = draw.randint(1, 60), draw.randint(1, 60), draw.randrange(2**32)
    make = draw.choices([from_transformers, from_timm, from_open_clip], [4, 1, 1])[0]
    with tempfile.TemporaryDirectory() as folder:
        name, config, prepare, mean, std = make(Path(folder))
    try:
        tensor = np.asarray(prepare(picture(width, height, seed)), np.float64)
    except (ValueError, ZeroDivisionError):  # an edge of nothing: the library refuses it too
        continue
    crop = (tensor.transpose(1, 2, 0) * std + mean) * 255
    whole = np.rint(crop)
    resized_as_numbers = "DINOv3" in json.dumps(config)
    assert resized_as_numbers or np.abs(crop - whole).max() < 0.02, (name, config)
    file = io.BytesIO()
    Image.fromarray(np.clip(whole, 0, 255).astype(np.uint8)).save(file, "PNG", optimize=True)
    places = [(draw.randrange(3), draw.randrange(tensor.shape[1]), draw.randrange(tensor.shape[2])) for _ in range(4)]
    cases.append({"file": name, "config": config, "width": width, "height": height, "seed": seed, "crop": base64.b64encode(file.getvalue()).decode(),
                  "values": [[*place, float(tensor[place])] for place in places]})
args.file.write_text(json.dumps({"made_with": {"transformers": transformers.__version__}, "cases": cases}, separators=(",", ":")).replace('{"file"', '\n{"file"') + "\n", "utf-8")
print(len(cases), "cases,", args.file.stat().st_size, "bytes")
