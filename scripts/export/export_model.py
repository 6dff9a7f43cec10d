"""Exports an image model to a model folder and proves the export.

    scripts/export_model LIBRARY:NAME[:TAG] --out DIR [--weights FILE | --random] [--size N] [--force]
    scripts/export_model --self-test all|short|LIBRARY:NAME[:TAG]...

LIBRARY is open_clip, transformers, timm or torchvision (see libraries.py). The
folder gets model.onnx and the processor's configuration, as the library writes
it. Weights are the library's own, fetched by it where there is a network; or
those of a local FILE; or, with --random, drawn from a fixed seed, for tests.

Every export is checked before it appears: PyTorch against onnxruntime on random
images in batches of 1, 2 and 5, and the features that the program `extract` makes
of real pictures against those of the library's own processor and PyTorch.

--self-test exports models with random weights into a scratch folder and prints
a table of those checks; `all` is every architecture that is listed below.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import numpy as np
import onnxruntime
import torch
from PIL import Image

from libraries import LIBRARIES, Backbone, Failure, load

OPSET = 18  # what PyTorch's exporter writes without converting; onnxruntime has read it since 1.14
ONE_FILE = 2**31 - 2**20  # bytes of weights; protobuf's bound leaves no more in model.onnx
TOLERANCE = 1e-4  # PyTorch against onnxruntime, of the largest output where that is above 1
COSINE = 0.9999  # extract against the library's processor with PyTorch
CENTRED = 0.99  # the same after subtraction of the pictures' mean, which hides the differences in random networks

ROOT = Path(__file__).resolve().parents[2]

SHORT = ["open_clip:RN50:openai", "transformers:facebook/dinov2-small", "timm:resnet18.a1_in1k", "torchvision:resnet18"]
ALL = [
    "open_clip:ViT-B-16:openai", "open_clip:ViT-B-32:openai", "open_clip:RN50:openai",
    "transformers:openai/clip-vit-base-patch16", "transformers:openai/clip-vit-base-patch32",
    *(f"transformers:facebook/dinov2{registers}-{size}" for registers in ("", "-with-registers") for size in ("small", "base", "large")),
    *(f"timm:vit_{size}_patch14_{registers}dinov2.lvd142m" for registers in ("", "reg4_") for size in ("small", "base", "large")),
    "torchvision:resnet18", "torchvision:resnet50", "torchvision:resnet50:IMAGENET1K_V1", "timm:resnet18.a1_in1k", "timm:resnet50.a1_in1k",
    # others, for options that any model has
    "transformers:google/vit-base-patch16-224", "transformers:google/siglip-base-patch16-224", "transformers:microsoft/resnet-18",
    "timm:convnext_atto.d2_in1k", "timm:swin_tiny_patch4_window7_224.ms_in1k", "timm:efficientnet_b0.ra_in1k",
    "timm:vit_base_patch16_siglip_224.webli", "torchvision:efficientnet_b0", "torchvision:vit_b_32", "open_clip:ViT-B-16-SigLIP:webli",
]
# Image sizes of the self-test for models whose own size would take long.
SMALLER = {spec: 224 for spec in ALL if "dinov2" in spec and spec.startswith("timm:") and "small" not in spec}


@dataclass
class Proof:
    """How well an export agrees with the network that it came from."""

    spec: str
    size: tuple[int, int]
    outputs: dict[str, int]  # name -> dimension
    error: float  # largest difference from PyTorch, by the largest output where that is above 1
    cosine: float  # least, of extract's features to those of the Python pipeline
    centred: float  # the same, of the features less the pictures' mean

    def check(self) -> None:
        if not self.error <= TOLERANCE:
            raise Failure(f"{self.spec}: onnxruntime differs from PyTorch by {self.error:.1e}, more than {TOLERANCE:.0e}")
        if not (self.cosine >= COSINE and self.centred >= CENTRED):
            raise Failure(f"{self.spec}: extract's features have cosine {self.cosine:.6f} to the Python pipeline's, less their mean {self.centred:.6f}; want {COSINE} and {CENTRED}")


def write_graph(backbone: Backbone, file: Path) -> None:
    """Writes the ONNX graph: fixed image size, any number of images."""
    example = torch.zeros(2, 3, *backbone.size)
    program = torch.onnx.export(
        backbone.net, (example,), dynamo=True, opset_version=OPSET, verbose=False,
        input_names=["pixel_values"], output_names=backbone.outputs, dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    forget_origin(program.model)
    weights = sum(value.numel() * value.element_size() for value in backbone.net.state_dict().values())
    program.save(str(file), external_data=weights > ONE_FILE)


def forget_origin(model) -> None:
    """Removes the exporter's records of Python files and lines: the same weights give the same file."""
    model.metadata_props.clear()
    model.doc_string = None
    for graph in model.graphs():
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in [*graph.inputs, *graph.initializers.values()]:
            value.metadata_props.clear()


def compare_runtime(backbone: Backbone, file: Path) -> tuple[float, dict[str, int]]:
    """Runs random images through PyTorch and onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    worst, dimensions = 0.0, {}
    for batch in (1, 2, 5):
        images = torch.randn(batch, 3, *backbone.size, generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            wanted = [value.numpy() for value in backbone.net(images)]
        got = session.run(backbone.outputs, {"pixel_values": images.numpy()})
        for name, want, have in zip(backbone.outputs, wanted, got, strict=True):
            if want.shape != have.shape:
                raise Failure(f"output {name} has shape {have.shape}, in PyTorch {want.shape}")
            worst = max(worst, float(np.abs(want - have).max() / max(1, np.abs(want).max())))
            dimensions[name] = want.shape[-1]
    return worst, dimensions


def build_extract(into: Path) -> Path:
    """Builds the program from the current source."""
    program = into / "extract"
    done = subprocess.run(["go", "build", "-o", program, "./cmd/extract"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"cannot build extract to check the export with: {done.stdout.strip()}")
    return program


def compare_extract(backbone: Backbone, folder: Path, pictures: Path, program: Path, scratch: Path) -> tuple[float, float]:
    """Runs pictures through extract and through the library's processor and PyTorch."""
    features = scratch / "features"
    done = subprocess.run([program, "--model", folder, "--images", pictures, "--out", features, "--quiet", "--workers", os.environ["OMP_NUM_THREADS"]],
                          cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"extract on {pictures}: {done.stdout.strip()}")
    got = np.load(features / "features.npy").astype(np.float64)
    rows = [json.loads(line) for line in (features / "images.jsonl").read_text("utf-8").splitlines()]
    if len(rows) < 2:
        raise Failure(f"{pictures} holds {len(rows)} pictures; the check needs at least two")
    want = []
    for row in rows:
        image = Image.open(pictures / row["path"]).convert("RGB")
        with torch.inference_mode():
            value = backbone.net(torch.from_numpy(np.ascontiguousarray(backbone.prepare(image))[None]))[0][0]
        want.append((value[0] if value.ndim == 2 else value).double().numpy())  # of tokens the first, as extract
    shutil.rmtree(features)
    return cosines(got, np.stack(want))


def cosines(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """Returns the least cosine of rows that belong together, as they are and less their mean."""
    if got.shape != want.shape:
        raise Failure(f"extract made features {got.shape}, the Python pipeline {want.shape}")

    def least(a: np.ndarray, b: np.ndarray) -> float:
        return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())

    return least(got, want), least(got - want.mean(0), want - want.mean(0))


def export(spec: str, folder: Path, scratch: Path, program: Path, pictures: Path, **options) -> Proof:
    """Exports into an empty folder and checks the result."""
    backbone = load(spec, **options)
    write_graph(backbone, folder / "model.onnx")
    backbone.save_config(folder)
    error, dimensions = compare_runtime(backbone, folder / "model.onnx")
    cosine, centred = compare_extract(backbone, folder, pictures, program, scratch)
    return Proof(spec, backbone.size, dimensions, error, cosine, centred)


def self_test(specs: list[str], pictures: Path) -> int:
    """Exports with random weights and prints a table; returns how many failed."""
    failed = 0
    print(f"{'model':58} {'size':>8}  {'outputs':32} {'PyTorch':>8} {'extract':>10} {'centred':>9} {'MB':>6} {'s':>5}")
    with tempfile.TemporaryDirectory(prefix="export.") as name:
        scratch = Path(name)
        program = build_extract(scratch)
        for spec in specs:
            folder, started = scratch / "model", time.monotonic()
            folder.mkdir()
            try:
                proof = export(spec, folder, scratch, program, pictures, random=True, size=SMALLER.get(spec))
                size = f"{proof.size[0]}x{proof.size[1]}"
                outputs = " ".join(f"{name} {d}" for name, d in proof.outputs.items())
                megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
                print(f"{spec:58} {size:>8}  {outputs:32} {proof.error:8.1e} {proof.cosine:10.7f} {proof.centred:9.6f} {megabytes:6.0f} {time.monotonic() - started:5.0f}", flush=True)
                proof.check()
            except Exception as error:  # a failure must not hide the others
                failed += 1
                print(f"{spec:58} FAILED: {type(error).__name__}: {error}", flush=True)
            shutil.rmtree(folder)
            shutil.rmtree(scratch / "features", ignore_errors=True)
    print(f"{len(specs) - failed} of {len(specs)} exports agree")
    return failed


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/export_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="LIBRARY:NAME[:TAG]", help=f"which model; LIBRARY is one of {', '.join(LIBRARIES)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the model folder to write")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--weights", type=Path, metavar="FILE", help="local weights: .safetensors, .pth, .pt or .bin")
    source.add_argument("--random", action="store_true", help="random weights, always the same: for tests")
    parser.add_argument("--size", type=int, metavar="N", help="side of the images (default: what the weights were made for)")
    parser.add_argument("--force", action="store_true", help="replace an existing folder")
    parser.add_argument("--pictures", type=Path, default=ROOT / ".setup" / "photos", metavar="DIR", help="pictures to check with (default: set-up's photographs)")
    parser.add_argument("--self-test", nargs="+", metavar="all|short|MODEL", help="export with random weights and print how well it agrees")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if not args.pictures.is_dir():
        raise Failure(f"{args.pictures} is not a folder of pictures to check the export with; run `make setup`, or name one with --pictures DIR")
    if args.self_test:
        specs = [spec for word in args.self_test for spec in {"all": ALL, "short": SHORT}.get(word, [word])]
        return 1 if self_test(specs, args.pictures) else 0
    if not args.model or not args.out:
        parser.error("name a model and --out DIR, or --self-test all")
    if args.weights and not args.weights.is_file():
        raise Failure(f"{args.weights} is not a file")
    if args.out.exists() and not args.force:
        raise Failure(f"{args.out} is there already; --force replaces it")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{args.out.name}.", suffix=".partial", dir=args.out.parent) as name:
        scratch, fresh = Path(name), Path(name, "model")
        fresh.mkdir()
        program = build_extract(scratch)
        proof = export(args.model, fresh, scratch, program, args.pictures, weights=args.weights, random=args.random, size=args.size)
        proof.check()
        if args.out.exists():
            args.out.rename(scratch / "old")
        fresh.rename(args.out)
    outputs = ", ".join(f"{name} [N, {d}]" for name, d in proof.outputs.items())
    print(f"{args.out}: {outputs} of {proof.size[0]}x{proof.size[1]} images; "
          f"onnxruntime is within {proof.error:.1e} of PyTorch, extract's features have cosine {proof.cosine:.7f} or more to the Python pipeline's")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as error:
        print(f"export_model: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
