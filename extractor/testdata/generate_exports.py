"""Writes small graphs in the layouts and kinds that others export, and their features.

    python3 extractor/testdata/generate_exports.py extractor/testdata/exports
    python3 extractor/testdata/generate_exports.py --tensors SHARED/models/vit-tiny-p16-int8 extractor/testdata/vit-tiny-p16-int8-saturating.npz

Needs numpy, onnx and onnxruntime 1.31, whose quantiser it runs, on a processor with
VNNI (or arm64), and qemu-x86_64 (Debian: qemu-user). Every folder is a model as
Hugging Face Optimum, transformers.js or others lay it out, with weights from a fixed
seed; expected.json lists, for each way to open one, the features of two images.
Full-precision features are from onnx's own reference evaluator; those of
half-precision and quantised graphs are from Python's onnxruntime, one image at a time.

onnxruntime's 8-bit products saturate on x86-64 processors with AVX2 and without VNNI,
so a quantised graph has two sets of right features. features_saturating is the second:
the same Python, run by QEMU as a Haswell. With --tensors, only that is written: the
outputs of a model of the shared folder for the input of its golden_cat.npz.

Image i has the value ((index*31 + i*17) % 64) / 32 - 1 at each index of [3, H, W].
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

def as_haswell(*arguments):
    """Runs this script with other arguments on an emulated processor without VNNI."""
    command = ["qemu-x86_64", "-cpu", "Haswell", os.path.realpath(sys.executable), __file__, *arguments]
    subprocess.run(command, check=True, env={**os.environ, "EMULATED": "1", "PYTHONPATH": os.pathsep.join(sys.path)})


EMULATED = "EMULATED" in os.environ
if sys.argv[1] == "--tensors":
    if not EMULATED:
        as_haswell(*sys.argv[1:])
        sys.exit()
    folder, out = sys.argv[2:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options)
    image = np.load(f"{folder}/golden_cat.npz")["input"]
    names = [o.name for o in session.get_outputs()]
    np.savez(out, **dict(zip(names, session.run(None, {session.get_inputs()[0].name: image}))))
    sys.exit()

OUT = sys.argv[1]
SIDE, PATCH, WIDTH = 16, 4, 6  # images of 16 x 16 in patches of 4 x 4: 16 of them
rng = np.random.default_rng(20261121)
n = h.make_node


def f32(*shape):
    return rng.normal(size=shape).astype(np.float32)


def value(name, shape, elem=T.FLOAT):
    return h.make_tensor_value_info(name, elem, shape)


def model(nodes, outputs, weights, inputs=None):
    inputs = inputs or [value("pixel_values", ["batch", "channels", "height", "width"])]
    graph = h.make_graph(nodes, "g", inputs, outputs, [nh.from_array(v, k) for k, v in weights.items()])
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8, producer_name="gen_exports_golden")
    onnx.checker.check_model(made, full_check=True)
    return made


def save(made, path, **options):
    os.makedirs(os.path.dirname(f"{OUT}/{path}"), exist_ok=True)
    if isinstance(made, onnx.ModelProto):
        onnx.save(made, f"{OUT}/{path}", **options)


def config(folder):
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE}, "resample": 2,
                "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    with open(f"{OUT}/{folder}/preprocessor_config.json", "w") as f:
        json.dump(settings, f)
        f.write("\n")


def images():
    index = np.arange(3 * SIDE * SIDE).reshape(3, SIDE, SIDE)
    return np.stack([((index * 31 + i * 17) % 64) / 32 - 1 for i in range(2)]).astype(np.float32)


cases = []


def expect(path, want_output, features, tolerance=1e-5, **how):
    features = features(answers(path, want_output, tolerance)).astype(np.float32)
    cases.append({"model": path, **how, "want_output": want_output, "tolerance": tolerance, "features": features.tolist()})


def answers(path, output, tolerance):
    file = next(f for f in (f"{OUT}/{path}", f"{OUT}/{path}/model.onnx", f"{OUT}/{path}/onnx/vision_model.onnx", f"{OUT}/{path}/onnx/model.onnx") if os.path.isfile(f))
    graph_input = onnx.load(file).graph.input[0]
    dims = [d.dim_value or d.dim_param for d in graph_input.type.tensor_type.shape.dim]
    x = images().astype(h.tensor_dtype_to_np_dtype(graph_input.type.tensor_type.elem_type))
    if dims[-1] == 3:
        x = x.transpose(0, 2, 3, 1)
    if tolerance == 1e-5:
        return ReferenceEvaluator(file).run([output], {graph_input.name: x})[0]
    session = onnxruntime.InferenceSession(file)
    at_once = dims[0] if isinstance(dims[0], int) else 1
    rows = [session.run([output], {graph_input.name: np.concatenate([x[i : i + 1]] * at_once)})[0][:1] for i in range(2)]
    return np.concatenate(rows).astype(np.float32)


def same(y):
    return y.reshape(len(y), -1)


# --- a transformer: patches, and tokens before them
patches = [n("Conv", ["pixel_values", "k"], ["cells"], strides=[PATCH, PATCH]), n("Reshape", ["cells", "flat"], ["columns"]),
           n("Transpose", ["columns"], ["rows"], perm=[0, 2, 1])]
w = {"k": f32(WIDTH, 3, PATCH, PATCH) / 8, "flat": np.array([0, WIDTH, -1]), "proj": f32(WIDTH, 5)}


def tokens(leading):
    """The class token is the largest of the patches, registers are multiples of it."""
    nodes = patches + [n("ReduceMax", ["rows"], ["class"], axes=[1])]
    names, weights = ["class"], dict(w)
    for i in range(1, leading):
        weights[f"times{i}"] = np.array(10.0 * i, np.float32)
        nodes.append(n("Mul", ["class", f"times{i}"], [f"register{i}"]))
        names.append(f"register{i}")
    return nodes + [n("Concat", [*names, "rows"], ["last_hidden_state"], axis=1)], weights


hidden = [value("last_hidden_state", ["batch", "tokens", WIDTH])]
for folder, leading in (("optimum-class", 1), ("optimum-registers", 5)):
    nodes, weights = tokens(leading)
    save(model(nodes, hidden, weights), f"{folder}/onnx/model.onnx")
    config(folder)
    expect(folder, "last_hidden_state", lambda y: y[:, 0], want_pool="cls")
    expect(folder, "last_hidden_state", lambda y: y[:, 0], pool="cls", want_pool="cls")
    expect(folder, "last_hidden_state", lambda y: y[:, leading:].mean(1), pool="mean", want_pool="mean")
save(model(patches + [n("Identity", ["rows"], ["last_hidden_state"])], hidden, w), "optimum-patches/model.onnx")
config("optimum-patches")
expect("optimum-patches", "last_hidden_state", lambda y: y.mean(1), want_pool="mean")

# --- a convolutional network: maps of rank 4, several outputs
maps = [n("Conv", ["pixel_values", "k"], ["last_hidden_state"], strides=[PATCH, PATCH]), n("GlobalAveragePool", ["last_hidden_state"], ["pooler_output"])]
outputs = [value("last_hidden_state", ["batch", WIDTH, "h", "w"]), value("pooler_output", ["batch", WIDTH, 1, 1])]
save(model(maps, outputs, w), "optimum-resnet/model.onnx")
config("optimum-resnet")
expect("optimum-resnet", "pooler_output", same, want_pool="mean")
expect("optimum-resnet", "last_hidden_state", lambda y: y.mean((2, 3)), pool="mean", want_pool="mean")
expect("optimum-resnet", "last_hidden_state", lambda y: y.mean((2, 3)), output="last_hidden_state", want_pool="mean")


def renamed(node, names):
    """Returns a node with other names of its inputs and outputs."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for values in (copy.input, copy.output):
        values[:] = [names.get(name, name) for name in values]
    return copy


# --- CLIP as transformers.js has it: the vision tower in several precisions, and both towers in one
nodes, weights = tokens(1)
nodes = nodes + [n("Gather", ["last_hidden_state", "first"], ["pooled"], axis=1), n("MatMul", ["pooled", "proj"], ["image_embeds"])]
weights["first"] = np.array(0)
vision = model(nodes, [value("image_embeds", ["batch", 5]), *hidden], weights)
save(vision, "transformersjs-clip/onnx/vision_model.onnx")
text = [value("input_ids", ["batch", "length"], T.INT64), value("attention_mask", ["batch", "length"], T.INT64)]
both = model(nodes + [n("Cast", ["input_ids"], ["ids"], to=T.FLOAT), n("ReduceMean", ["ids"], ["text_embeds"], axes=[1])],
             [value("image_embeds", ["batch", 5]), value("text_embeds", ["batch", 1])], weights,
             [text[0], value("pixel_values", ["batch", 3, "height", "width"]), text[1]])
save(both, "transformersjs-clip/onnx/model.onnx")
half = [n("Cast", ["pixel_values"], ["x16"], to=T.FLOAT16), *(renamed(node, {"pixel_values": "x16", "image_embeds": "embeds16"}) for node in nodes),
        n("Cast", ["embeds16"], ["image_embeds"], to=T.FLOAT)]
save(model(half, [value("image_embeds", ["batch", 5])], {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in weights.items()}),
     "transformersjs-clip/onnx/vision_model_fp16.onnx")
quantize_dynamic(f"{OUT}/transformersjs-clip/onnx/vision_model.onnx", f"{OUT}/transformersjs-clip/onnx/vision_model_quantized.onnx", weight_type=QuantType.QUInt8)
config("transformersjs-clip")
expect("transformersjs-clip", "image_embeds", same, want_pool="")
expect("transformersjs-clip/onnx/vision_model_fp16.onnx", "image_embeds", same, 1e-2, want_pool="")
expect("transformersjs-clip/onnx/vision_model_quantized.onnx", "image_embeds", same, 2e-3, want_pool="")

# --- half floats in and out, names of nobody's
x16 = value("input", ["N", 3, SIDE, SIDE], T.FLOAT16)
graph = [n("Conv", ["input", "k"], ["cells"], strides=[PATCH, PATCH]), n("GlobalAveragePool", ["cells"], ["mean"]), n("Flatten", ["mean"], ["643"])]
save(model(graph, [value("643", ["N", WIDTH], T.FLOAT16)], {"k": w["k"].astype(np.float16)}, [x16]), "half/network.onnx")
config("half")
expect("half/network.onnx", "643", same, 1e-3, want_pool="")
cases.append({**cases[-1], "model": "half"})  # the only graph of its folder

# --- channels last, a batch of two, int8 by calibration
x = value("input", [2, SIDE, SIDE, 3])
graph = [n("Transpose", ["input"], ["nchw"], perm=[0, 3, 1, 2]), n("Conv", ["nchw", "k"], ["cells"], strides=[PATCH, PATCH]), n("Relu", ["cells"], ["positive"]),
         n("GlobalAveragePool", ["positive"], ["mean"]), n("Flatten", ["mean"], ["features"]), n("MatMul", ["features", "proj"], ["logits"])]
plain = f"{OUT}/plain.onnx"
onnx.save(model(graph, [value("features", [2, WIDTH]), value("logits", [2, 5])], {k: w[k] for k in ("k", "proj")}, [x]), plain)


class Calibration(CalibrationDataReader):
    left = [{"input": images().transpose(0, 2, 3, 1)}]

    def get_next(self):
        return self.left.pop() if self.left else None


os.makedirs(f"{OUT}/nhwc-int8", exist_ok=True)
quantize_static(plain, f"{OUT}/nhwc-int8/model.onnx", Calibration(), quant_format=QuantFormat.QDQ, weight_type=QuantType.QInt8)
os.remove(plain)
config("nhwc-int8")
expect("nhwc-int8", "features", same, 2e-3, want_pool="")
expect("nhwc-int8", "logits", same, 2e-3, output="logits", want_pool="")

# --- weights in a file beside the graph, to which onnx would append
shutil.rmtree(f"{OUT}/external", ignore_errors=True)
graph = [n("Conv", ["pixel_values", "k"], ["cells"], strides=[PATCH, PATCH]), n("GlobalAveragePool", ["cells"], ["mean"]), n("Flatten", ["mean"], ["features"])]
save(model(graph, [value("features", ["batch", WIDTH])], {"k": w["k"]}), "external/onnx/model.onnx",
     save_as_external_data=True, location="model.onnx_data", size_threshold=0)
config("external")
expect("external", "features", same, want_pool="")

if not EMULATED:
    with tempfile.TemporaryDirectory() as folder:
        as_haswell(folder)
        with open(f"{folder}/expected.json") as f:
            for case, saturating in zip(cases, json.load(f)):
                if case["tolerance"] == 2e-3:
                    case["features_saturating"] = saturating["features"]

with open(f"{OUT}/expected.json", "w") as f:
    json.dump(cases, f, indent=1)
    f.write("\n")
print(len(cases), "cases")
