"""Converts EfficientNet-Lite0 from its PyTorch checkpoint to ONNX, without PyTorch.

    convert_efficientnet_lite0.py CHECKPOINT.pth OUT.onnx

The checkpoint is in the format that PyTorch wrote before its zip files: five
pickles (magic number, protocol, system, state dict, storage keys), then for
every storage its length as int64 and its raw values. A tensor is a view of a
storage with an offset and strides, which are not those of C order here and must
be honoured. The pickles are read by an unpickler that knows four names and
nothing else.

The graph takes `pixel_values` float32 [batch, 3, 224, 224] and gives `features`
[batch, 1280], the global average of the last feature map, and `logits`
[batch, 1000]. BatchNorm is folded into the convolutions in float64. Opset, IR
version and producer are fixed, so the same checkpoint gives the same bytes.
"""

from __future__ import annotations

import collections
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
OPSET = 17
IR_VERSION = 8
BN_EPSILON = 1e-3

# (repeat, kernel, stride of the first, expansion, channels out)
STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]
STEM, HEAD, CLASSES, SIZE = 32, 1280, 1000, 224

DTYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class View:
    """A tensor of the checkpoint: which part of which storage it is."""

    def __init__(self, storage: tuple[str, str], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> None:
        self.kind, self.key = storage
        self.offset, self.shape, self.strides = offset, shape, strides

    def read(self, storages: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the tensor as a C-ordered array."""
        storage = storages[self.key]
        if len(self.shape) != len(self.strides) or self.offset < 0 or min((*self.shape, *self.strides), default=0) < 0:
            raise ValueError(f"storage {self.key}: a tensor's shape and strides make no sense")
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if 0 in self.shape or last >= storage.size:
            raise ValueError(f"storage {self.key}: a tensor reaches beyond its storage")
        strides = [s * storage.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(storage[self.offset :], self.shape, strides, writeable=False).copy()


class Unpickler(pickle.Unpickler):
    """An unpickler that builds descriptions of tensors and nothing else."""

    known = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): View,
        ("torch", "FloatStorage"): "FloatStorage",
        ("torch", "LongStorage"): "LongStorage",
    }

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class or function of one of the four known names."""
        try:
            return self.known[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the checkpoint asks for {module}.{name}, which no checkpoint needs") from None

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        """Returns a storage's type and key."""
        tag, kind, key, _location, _numel, view = pid
        if tag != "storage" or view is not None:
            raise pickle.UnpicklingError(f"unknown persistent id {pid!r}")
        return kind, key


def read_checkpoint(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Reads a state dict in PyTorch's old format."""
    if Unpickler(file).load() != MAGIC or Unpickler(file).load() != PROTOCOL:
        raise ValueError("this is not a PyTorch checkpoint of the old (pre-zip) format")
    if not Unpickler(file).load()["little_endian"]:
        raise ValueError("the checkpoint is big-endian")
    views: dict[str, View] = Unpickler(file).load()
    dtypes = {view.key: DTYPES[view.kind] for view in views.values()}

    storages = {}
    for key in Unpickler(file).load():
        (length,) = struct.unpack("<q", file.read(8))
        size = length * dtypes[key].itemsize
        raw = file.read(size) if 0 <= size < 1 << 30 else b""
        if len(raw) != size:
            raise ValueError(f"storage {key}: the checkpoint ends early")
        storages[key] = np.frombuffer(raw, dtypes[key])
    if file.read(1):
        raise ValueError("the checkpoint has data after its last storage")
    return {name: view.read(storages) for name, view in views.items()}


class Builder:
    """Builds the graph, and takes each weight out of the state dict once."""

    def __init__(self, state: dict[str, np.ndarray]) -> None:
        self.state = dict(state)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, value: np.ndarray) -> str:
        """Adds an initialiser and returns its name."""
        raw = np.ascontiguousarray(value, "<f4")
        self.weights.append(helper.make_tensor(name, TensorProto.FLOAT, raw.shape, raw.tobytes(), raw=True))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Adds a node and returns its output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def pop(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Takes a tensor out of the state dict, in float64."""
        value = self.state.pop(name)
        if value.shape != shape:
            raise ValueError(f"{name} has the shape {value.shape}, expected {shape}")
        return value.astype(np.float64)

    def conv(self, x: str, name: str, norm: str, shape: tuple[int, int, int], stride: int = 1, group: int = 1, clip: bool = True) -> str:
        """Adds a convolution with its BatchNorm folded in, and the activation.

        shape is (out, in per group, kernel). Padding is TensorFlow's SAME on
        even sizes: with stride 2, (k-2)//2 before and the rest after.
        """
        out, per_group, k = shape
        kernel = self.pop(f"{name}.weight", (out, per_group, k, k))
        gamma, beta, mean, var = (self.pop(f"{norm}.{part}", (out,)) for part in ("weight", "bias", "running_mean", "running_var"))
        self.state.pop(f"{norm}.num_batches_tracked")
        scale = gamma / np.sqrt(var + BN_EPSILON)
        total = k - stride
        before, after = total // 2, total - total // 2
        label = name.lstrip("_").replace("._", ".")
        y = self.node(
            "Conv",
            [x, self.weight(f"{label}.weight", kernel * scale[:, None, None, None]), self.weight(f"{label}.bias", beta - mean * scale)],
            label,
            kernel_shape=[k, k],
            strides=[stride, stride],
            pads=[before, before, after, after],
            dilations=[1, 1],
            group=group,
        )
        return self.node("Clip", [y, "zero", "six"], f"{label}.relu6") if clip else y

    def block(self, x: str, name: str, channels: int, out: int, k: int, stride: int, expand: int) -> str:
        """Adds an inverted residual block."""
        y, wide = x, channels * expand
        if expand != 1:
            y = self.conv(y, f"{name}._expand_conv", f"{name}._bn0", (wide, channels, 1))
        y = self.conv(y, f"{name}._depthwise_conv", f"{name}._bn1", (wide, 1, k), stride=stride, group=wide)
        y = self.conv(y, f"{name}._project_conv", f"{name}._bn2", (out, wide, 1), clip=False)
        if stride == 1 and channels == out:
            y = self.node("Add", [y, x], f"{name.lstrip('_')}.add")
        return y


def build(state: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Returns the network as an ONNX model."""
    b = Builder(state)
    b.weight("zero", np.float32(0))
    b.weight("six", np.float32(6))
    x = b.conv("pixel_values", "_conv_stem", "_bn0", (STEM, 3, 3), stride=2)
    channels, index = STEM, 0
    for repeat, k, stride, expand, out in STAGES:
        for i in range(repeat):
            x = b.block(x, f"_blocks.{index}", channels, out, k, stride if i == 0 else 1, expand)
            channels, index = out, index + 1
    x = b.conv(x, "_conv_head", "_bn1", (HEAD, channels, 1))
    x = b.node("GlobalAveragePool", [x], "pool")
    features = b.node("Flatten", [x], "features", axis=1)
    fc = b.weight("fc.weight", b.pop("_fc.weight", (CLASSES, HEAD)))
    b.node("Gemm", [features, fc, b.weight("fc.bias", b.pop("_fc.bias", (CLASSES,)))], "logits", transB=1)
    if b.state:
        raise ValueError(f"the checkpoint holds tensors that the network has no place for: {', '.join(b.state)}")

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])

    graph = helper.make_graph(
        b.nodes,
        "efficientnet-lite0",
        [value("pixel_values", 3, SIZE, SIZE)],
        [value("features", HEAD), value("logits", CLASSES)],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="mlrbfn", producer_version="1")
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> int:
    """Reads the command line; returns the exit code."""
    if len(sys.argv) != 3:
        print("usage: convert_efficientnet_lite0.py CHECKPOINT.pth OUT.onnx", file=sys.stderr)
        return 2
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        with open(source, "rb") as file:
            model = build(read_checkpoint(file))
    except (OSError, EOFError, ValueError, KeyError, struct.error, pickle.UnpicklingError) as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 1
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(model.SerializeToString(deterministic=True))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
