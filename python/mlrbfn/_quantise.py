"""Copies of models of fewer bits: made by onnxruntime's quantiser, and proven on one's own images.
scripts/quantise is its command line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ._detector import train
from ._errors import DataWarning, Error, OptionError
from ._features import Features, embed, extract
from ._program import Report

StrPath = str | os.PathLike[str]

FIRST = "static, first convolutions in float32"
LEAST = 60  # images that are neither calibration images nor unreadable
MOST = 1000  # calibration images, whose prepared pixels lie in memory when weights are chosen
TIMED = 200  # images of a turn


class Quantised(Report):
    """What quantise found, by the names of `quantised.json`; as text it is a table."""

    def __str__(self) -> str:
        def of(name: str, form: str = "{:.3f}") -> str:
            value = self[name]
            return "-" if value is None else form.format(value)

        lines = [
            f"{self['method']}, weights of {self['weight_bits']} bits, {self['calibration_images']} calibration images; proven on {self['images']} others",
            "",
            f"{'':44}{'model':>9}{'copy':>9}{'ratio':>8}",
        ]
        for name, turn in (("one worker", "one"), ("all cores", "all"), ("detect", "detect")):
            for unit, key in (("images a second of processor time", "cpu"), ("images a second", "wall")):
                before, after = self["speed"][turn][key]
                lines.append(f"{unit + ', ' + name:44}{before:9.1f}{after:9.1f}{after / before:8.2f}")
        lines += [
            f"{'AUROC of classes that are held out':44}{of('holdout_float'):>9}{of('holdout_8bit'):>9}",
            f"{'false alarms':44}{of('false_alarms_float'):>9}{of('false_alarms_8bit'):>9}",
            "",
            f"cosine of features: {of('cosine_median')} in the median, {of('cosine_5pct')} at 5%; bytes of the graph: {self['bytes'][1] / self['bytes'][0]:.2f}",
            f"the same class: {of('same_class')}; the same verdict: {of('same_verdict')}",
            f"false alarms of the model's detector on the copy's features: {of('false_alarms_mixed')}; never mix them",
            "",
            self["recommendation"],
        ]
        return "\n".join(lines)


def quantise(
    model: StrPath,
    images: StrPath,
    out: StrPath,
    *,
    calibration: int = 100,
    weight_bits: int = 7,
    max_loss: float = 1.0,
    seed: int = 0,
    rounds: int = 3,
    say: Callable[[str], None] | None = None,
) -> Quantised:
    """Makes an 8-bit copy of a model folder with onnxruntime's quantiser, and compares the two
    on images in folders that are their classes.

    Activations have 8 bits, unsigned, and weights of convolutions and matrices weight_bits,
    signed, with a scale for each channel. Seven of them cannot saturate on processors without
    VNNI, so that a convolutional model gives the same features on all. calibration images, drawn
    with seed and prepared by the model's own preprocessing, give the activations' ranges. Of models that are mostly matrices, such as ViTs, the
    activations' ranges may also be taken from each image (dynamic); the copy with the more
    similar features is kept. Where a convolutional model loses too much, its first
    three convolutions stay in float32; then its features depend on the processor.

    With weight_bits of 16 only weights change, to float16: they are half as large on the disk,
    and onnxruntime widens them when it opens the copy, which computes in float32, also where
    the model is an export in float16.

    All other images prove it: features of both models, speed by turns (rounds of them), and
    detectors trained on either, which are judged on a fifth of the images. The loss is how
    many points of AUROC class hold-out loses; more than max_loss is not recommended. out
    becomes a model folder with `quantised.json`, whole or not at all. say is told each step.

    Raises OptionError where there are too few images or the model cannot be quantised.
    """
    out = Path(out)
    if out.exists():
        raise OptionError(f"{out} exists already")
    if not 1 <= calibration <= MOST:
        raise OptionError(f"calibration must be a number of images from 1 to {MOST}")
    if weight_bits not in (7, 8, 16):
        raise OptionError("weight_bits must be 7, 8 or 16")
    folder, graph = _graph(model)
    _quantiser()
    tries = _methods(graph, weight_bits)
    say = say or (lambda text: None)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=out.name + ".", suffix=".partial", dir=out.parent) as name, warnings.catch_warnings():
        room = Path(name)
        warnings.simplefilter("ignore", DataWarning)
        say("features of the model as it is")
        before = extract(images, model=model, out=room / "float", progress=False)
        drawn = np.random.default_rng(seed).permutation(len(before))
        chosen, others = np.sort(drawn[:calibration]), np.sort(drawn[calibration:])
        if len(others) < LEAST:
            raise OptionError(f"{len(before)} images are too few: {calibration} for calibration and at least {LEAST} others")
        paths = [os.path.join(before.root, p) for p in before.paths]
        if len(before.classes) < 2:
            raise OptionError("the images have no classes: put those of each class into a folder of its own")
        pixels = None
        if "static" in tries[0]:
            say("calibration images, prepared")
            pixels = _prepared(folder, graph, [paths[i] for i in chosen], room)
        proven: list[tuple[Quantised, Path]] = []
        for methods in tries:
            made: list[tuple[float, str, Path, Features]] = []
            for method in methods:
                say(f"copy, {method}")
                copy = room / method
                _copied(folder, copy)
                _written(graph, copy / "model.onnx", method, len(methods) > 1, weight_bits, pixels)
                say(f"features of the copy, {method}")
                after = extract(images, model=copy, out=room / f"features-{method}", progress=False)
                if list(after.paths) != list(before.paths):
                    raise OptionError("the images changed meanwhile")
                made.append((float(np.median(_cosines(before.x, after.x))), method, copy, after))
            _, method, copy, after = max(made, key=lambda m: m[0])
            report = Quantised(model=str(Path(model).name), model_fingerprint=before.fingerprint, method=method, weight_bits=weight_bits, calibration_images=len(chosen), images=len(others), seed=seed)
            say("detectors of both, and classes held out")
            found, detectors = _compared(before, after, others, seed)
            report.update(found)
            say("speed, by turns")
            report["speed"] = _speed([model, copy], detectors, [paths[i] for i in others[:TIMED]], rounds)
            loss = None if report["holdout_float"] is None else 100 * (report["holdout_float"] - report["holdout_8bit"])
            report["loss"], report["max_loss"] = loss, max_loss
            report["recommended"] = loss is not None and loss <= max_loss
            proven.append((report, copy))
            if loss is None or loss <= max_loss:
                break
        report, copy = min(proven, key=lambda made: made[0]["loss"] or 0)
        loss = report["loss"]
        if loss is None:
            report["recommendation"] = "Not proven: class hold-out needs more classes or images."
        elif report["recommended"]:
            report["recommendation"] = f"Use it: class hold-out loses {loss:.1f} points of AUROC, of {max_loss:g} that are allowed. Extract and train anew with it."
        else:
            more = {7: "; weights of 8 bits may lose less, where the processor has VNNI", 8: "; more calibration images may lose less", 16: ""}[weight_bits]
            report["recommendation"] = f"Do not use it: class hold-out loses {loss:.1f} points of AUROC, and {max_loss:g} are allowed{more}."
        report["bytes"] = [sum(f.stat().st_size for f in at.glob(name + "*")) for at, name in ((graph.parent, graph.name), (copy, "model.onnx"))]
        report["sha256"] = hashlib.sha256((copy / "model.onnx").read_bytes()).hexdigest()
        (copy / "quantised.json").write_text(json.dumps(report, indent=1) + "\n")
        os.replace(copy, out)
    return report


def _graph(model: StrPath) -> tuple[Path, Path]:
    """Returns a model's folder, and its graph."""
    from . import models

    for folder in (Path(model), models() / str(model)):
        for graph in (folder, folder / "model.onnx", folder / "onnx" / "model.onnx"):
            if graph.is_file():
                return (graph.parent if graph == folder else folder), graph
    raise OptionError(f"{model} is no model folder: it has no model.onnx")


def _copied(folder: Path, to: Path) -> None:
    """Copies what a model folder has beside its graph."""
    to.mkdir()
    for file in folder.glob("*.json"):
        if file.name != "quantised.json":
            shutil.copy(file, to)


def _quantiser() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime.quantization as quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise ImportError('quantise needs onnx, onnxruntime and sympy: pip install "mlrbfn[quantise]"') from error
    return quantization, quant_pre_process


def _input(graph: Path) -> tuple[str, int, list[int]]:
    """Returns the name, the type and the sizes but the first of a graph's input."""
    import onnx

    model = onnx.load(str(graph), load_external_data=False)
    constant = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constant]
    if len(inputs) != 1:
        raise OptionError(f"{graph} has {len(inputs)} inputs; models of images have one")
    kind = inputs[0].type.tensor_type
    return inputs[0].name, kind.elem_type, [d.dim_value for d in kind.shape.dim][1:]


def _prepared(folder: Path, graph: Path, paths: list[str], room: Path) -> tuple[str, np.ndarray]:
    """Returns the name of the graph's input and what it reads of images. The extractor prepares
    them: the model that it is given has the same input, which it returns as features."""
    import onnx
    from onnx import helper

    name, kind, sizes = _input(graph)
    nodes = [helper.make_node("Flatten", [name], ["flat"], axis=1), helper.make_node("Cast", ["flat"], ["pixels"], to=onnx.TensorProto.FLOAT)]
    reads = helper.make_tensor_value_info(name, kind, ["n", *(s or f"size{i}" for i, s in enumerate(sizes))])
    pixels = helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, ["n", "values"])
    to = room / "prepare"
    _copied(folder, to)
    made = helper.make_model(helper.make_graph(nodes, "prepared", [reads], [pixels]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, str(to / "model.onnx"))
    x = embed(paths, model=to, out=room / "pixels", progress=False).x
    if 0 in sizes:  # height and width are left open: they are equal
        channels = max(1, int(np.prod([s for s in sizes if s])))
        side = round((x.shape[1] / channels) ** 0.5)
        if sizes.count(0) != 2 or channels * side * side != x.shape[1]:
            raise OptionError(f"{graph} leaves sizes of its input open; export it with the sizes that it is used with")
        sizes = [s or side for s in sizes]
    return name, np.asarray(x).reshape(-1, *sizes).astype(helper.tensor_dtype_to_np_dtype(kind))


def _methods(graph: Path, weight_bits: int) -> list[list[str]]:
    """Returns the methods to try, the next ones where those before lose too much:
    convolutions bear activations of 8 bits with fixed ranges, but the first ones, whose channels
    have very different ranges, less so; in models that are mostly matrices often only ranges
    of each image do."""
    import onnx

    if weight_bits == 16:
        return [["float16"]]
    model = onnx.load(str(graph), load_external_data=False)
    constant = {i.name for i in model.graph.initializer}
    ops = [n.op_type for n in model.graph.node if n.op_type == "Conv" or n.op_type in ("MatMul", "Gemm") and len(constant.intersection(n.input)) > 0]
    if not ops:
        raise OptionError(f"{graph} has no convolutions and no products with constant matrices to quantise")
    if 2 * ops.count("Conv") <= len(ops):
        return [["static", "dynamic"]]
    return [["static"], [FIRST]] if ops.count("Conv") > 3 else [["static"]]


def _written(graph: Path, to: Path, method: str, matrices: bool, weight_bits: int, pixels: tuple[str, np.ndarray] | None) -> None:
    """Writes the graph of a copy; matrices: of a model that is mostly matrices."""
    import onnx

    quantization, prepare = _quantiser()
    name, x = pixels or ("", np.empty(0))
    simple = to.with_name("simple.onnx")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[np.ndarray] = iter(x)

        def get_next(self) -> dict[str, np.ndarray] | None:
            row = next(self.left, None)
            return None if row is None else {name: row[None]}

    kind = {"weight_type": quantization.QuantType.QInt8, "per_channel": True, "reduce_range": weight_bits == 7}
    try:
        if method == "float16":
            return _halved(graph, to)
        prepare(str(graph), str(simple))
        if method == "dynamic":
            quantization.quantize_dynamic(str(simple), str(to), **kind)
        else:
            few = {} if not matrices else {"op_types_to_quantize": ["MatMul", "Gemm", "Conv"], "extra_options": {"MatMulConstBOnly": True}}
            if method == FIRST:
                named = onnx.load(str(simple))
                for i, node in enumerate(named.graph.node):
                    node.name = f"{i} {node.name}"
                onnx.save(named, str(simple))
                few = {"nodes_to_exclude": [n.name for n in named.graph.node if n.op_type == "Conv"][:3]}
            quantization.quantize_static(str(simple), str(to), Reader(), activation_type=quantization.QuantType.QUInt8, **kind, **few)
        simple.unlink()
        if weight_bits == 7 and method == "static" and not matrices:  # the extractor reads it; matrices leave much in float32
            made = onnx.load(str(to))
            onnx.helper.set_model_props(made, {"mlrbfn.quantise": "no product of 8 bits saturates"})
            onnx.save(made, str(to))
    except Exception as error:  # what the quantiser raises is of many kinds
        raise OptionError(f"onnxruntime's quantiser cannot quantise {graph}: {error}") from error


def _halved(graph: Path, to: Path) -> None:
    """Writes a graph that computes in float32 and whose matrices and kernels are float16, each
    with a Cast, which onnxruntime computes when it opens the graph. Smaller constants, some of
    which float16 would round to 0, stay as they are."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(graph))
    g, casts = model.graph, []
    for value in (*g.input, *g.output, *g.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in g.node:
        for a in node.attribute:
            if a.type in (a.GRAPH, a.GRAPHS):
                raise ValueError(f"node {node.name} has a graph of its own")
            if node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT16:
                a.i = TensorProto.FLOAT
            if a.type == a.TENSOR and a.t.data_type == TensorProto.FLOAT16:
                a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype(np.float32), a.t.name))
    for i in g.initializer:
        if i.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
            continue
        name, value = i.name, numpy_helper.to_array(i)
        if value.ndim < 2 or value.size < 64 or np.abs(value).max() > np.finfo(np.float16).max:
            i.CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))
            continue
        i.CopyFrom(numpy_helper.from_array(value.astype(np.float16), name + "/float16"))
        casts.append(helper.make_node("Cast", [i.name], [name], to=TensorProto.FLOAT))
    halved, nodes = {c.output[0] for c in casts}, list(g.node)
    for field, values in (("node", [*casts, *nodes]), ("input", [v for v in g.input if v.name not in halved])):
        g.ClearField(field)
        getattr(g, field).extend(values)
    onnx.save(model, str(to))


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        raise OptionError(f"the copy has {b.shape[1]} features and the model {a.shape[1]}")
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.einsum("ij,ij->i", a, b) / np.where(lengths > 0, lengths, 1)


def _speed(models: list[StrPath], detectors: list[Any], paths: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns images a second of both models from files, the medians of turns: of features with
    one worker and with all cores, and of verdicts with one worker."""
    speed: dict[str, dict[str, list[float]]] = {}
    one: dict[str, Any] = {"workers": 1, "threads": 1, "progress": False}
    for name, run in (
        ("one", lambda i: embed(paths, model=models[i], **one)),
        ("all", lambda i: embed(paths, model=models[i], progress=False)),
        ("detect", lambda i: detectors[i].detect(paths, model=models[i], **one)),
    ):
        took: list[list[tuple[float, float]]] = [[], []]
        for turn in range(rounds + 1):
            for i in (0, 1):
                at, used = time.perf_counter(), time.process_time()
                run(i)
                if turn:  # the first opens the session
                    took[i].append((time.process_time() - used, time.perf_counter() - at))
        median = np.median(took, axis=1)
        speed[name] = {unit: [len(paths) / float(median[i, k]) for i in (0, 1)] for k, unit in enumerate(("cpu", "wall"))}
    return speed


def _compared(before: Features, after: Features, rows: np.ndarray, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Returns how alike the features are, and detectors trained on either, with what they say."""
    cosines = _cosines(before.x[rows], after.x[rows])
    found: dict[str, Any] = {"cosine_median": float(np.median(cosines)), "cosine_5pct": float(np.quantile(cosines, 0.05))}
    labelled = rows[before.labels[rows] >= 0]
    held, fitted = labelled[::5], np.setdiff1d(labelled, labelled[::5])
    y = np.asarray(before.classes, dtype=object)[before.labels[fitted]]
    verdicts, detectors = [], []
    for name, features in (("float", before), ("8bit", after)):
        detector = train(features.x[fitted], y, model=features, progress=False, seeds=[seed])
        detectors.append(detector)
        if name == "float":
            mixed = detector.judge(after.x[held])
        verdicts.append(detector.judge(features.x[held]))
        assessment = detector.info.get("assessment")
        found[f"holdout_{name}"] = assessment["auroc"] if assessment else None
        found[f"false_alarms_{name}"] = float(verdicts[-1].ood.mean())
    found["false_alarms_mixed"] = float(mixed.ood.mean())
    found["same_class"] = float((verdicts[0]["class"] == verdicts[1]["class"]).mean())
    found["same_verdict"] = float((verdicts[0].ood == verdicts[1].ood).mean())
    return found, detectors


def main() -> int:
    """Quantises as the command line says: 1 where the copy is not recommended."""
    parser = argparse.ArgumentParser(prog="quantise", description="Makes a copy OUT of fewer bits of the model folder MODEL and proves it on IMAGES/class/…/image.")
    parser.add_argument("model")
    parser.add_argument("images")
    parser.add_argument("out")
    parser.add_argument("--calibration", type=int, default=100, metavar="N", help="images that give the ranges of activations (default: %(default)s)")
    parser.add_argument("--weight-bits", type=int, default=7, choices=[7, 8, 16], help="bits of weights; 8 need a processor with VNNI; 16 (float16) are half as large on the disk as float32, and as fast (default: %(default)s)")
    parser.add_argument("--max-loss", type=float, default=1.0, metavar="POINTS", help="AUROC that class hold-out may lose (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    try:
        report = quantise(options.pop("model"), options.pop("images"), options.pop("out"), say=lambda text: print(f"quantise: {text}", file=sys.stderr), **options)
    except (Error, ImportError) as error:
        print(f"quantise: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report["recommended"] else 1

