"""Writes a ViT-B/16 with random weights as a model folder, to measure speed with.

    PYTHONPATH=.setup/python python3 scripts/benchmarks/random_vit.py FOLDER

The graph is that of an export: 12 blocks of width 768 with 12 heads, an MLP of
3,072 with GELU, 224×224 pixels in patches of 16, the class token out.
"""
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, DEPTH, PATCH, SIZE = 768, 12, 12, 16, 224
TOKENS = (SIZE // PATCH) ** 2 + 1
rng = np.random.default_rng(20261121)
nodes, weights = [], []


def weight(*shape, scale=0.02):
    name = f"w{len(weights)}"
    values = rng.standard_normal(shape, np.float32) * np.float32(scale)
    weights.append(numpy_helper.from_array(values, name))
    return name


def constant(values):
    name = f"w{len(weights)}"
    weights.append(numpy_helper.from_array(np.asarray(values), name))
    return name


def op(kind, *inputs, outputs=1, **attributes):
    names = [f"v{len(nodes)}_{i}" for i in range(outputs)]
    nodes.append(helper.make_node(kind, inputs, names, **attributes))
    return names[0] if outputs == 1 else names


def linear(x, n, m):
    return op("Add", op("MatMul", x, weight(n, m)), weight(m))


def norm(x):
    one = constant(np.ones(WIDTH, np.float32))
    return op("LayerNormalization", x, one, weight(WIDTH), axis=-1, epsilon=1e-6)


def heads(x, order):
    split = op("Reshape", x, constant(np.array([0, TOKENS, HEADS, WIDTH // HEADS])))
    return op("Transpose", split, perm=order)


def attention(x):
    q, k, v = op("Split", linear(x, WIDTH, 3 * WIDTH), outputs=3, axis=-1, num_outputs=3)
    scores = op("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
    scores = op("Mul", scores, constant(np.float32((WIDTH // HEADS) ** -0.5)))
    mixed = op("MatMul", op("Softmax", scores, axis=-1), heads(v, [0, 2, 1, 3]))
    mixed = op("Reshape", op("Transpose", mixed, perm=[0, 2, 1, 3]), constant(np.array([0, TOKENS, WIDTH])))
    return linear(mixed, WIDTH, WIDTH)


patches = op("Conv", "pixel_values", weight(WIDTH, 3, PATCH, PATCH), weight(WIDTH), strides=[PATCH, PATCH])
patches = op("Transpose", op("Reshape", patches, constant(np.array([0, WIDTH, -1]))), perm=[0, 2, 1])
batch = op("Slice", op("Shape", "pixel_values"), constant(np.array([0])), constant(np.array([1])))
token = op("Expand", weight(1, 1, WIDTH), op("Concat", batch, constant(np.array([1, WIDTH])), axis=0))
x = op("Add", op("Concat", token, patches, axis=1), weight(1, TOKENS, WIDTH))
for _ in range(DEPTH):
    x = op("Add", x, attention(norm(x)))
    x = op("Add", x, linear(op("Gelu", linear(norm(x), WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH))
nodes.append(helper.make_node("Gather", [norm(x), constant(np.int64(0))], ["features"], axis=1))

graph = helper.make_graph(
    nodes,
    "vit-b-16",
    [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
    [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", WIDTH])],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
onnx.save(model, os.path.join(folder, "model.onnx"))
config = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": SIZE, "width": SIZE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as f:
    json.dump(config, f, indent=2)
