"""8-bit copies of a small network, made by onnxruntime's quantiser."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import mlrbfn

HAVE = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "sympy"))


@unittest.skipUnless(HAVE, "onnx, onnxruntime and sympy are not there (scripts/requirements-quantise.txt)")
class Quantise(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(room.cleanup)
        cls.room = Path(room.name)
        rng = np.random.default_rng(0)
        for kind in range(4):
            folder = cls.room / "images" / f"kind{kind}"
            folder.mkdir(parents=True)
            for i in range(60):
                wave = np.sin(np.arange(16) * (0.4 + 0.5 * kind) + rng.uniform(0, 6))
                pixels = 128 + 90 * wave[:, None, None] * np.array([1, 0.5, (-1) ** kind]) + rng.normal(0, 12, (16, 16, 3))
                Image.fromarray(np.uint8(np.clip(pixels, 0, 255))).save(folder / f"{i}.png")
        cls.model(cls.room / "net", rng)

    @staticmethod
    def model(folder: Path, rng: np.random.Generator, inputs: int = 1, size: object = 16, depth: int = 2) -> None:
        import onnx
        from onnx import helper, numpy_helper

        weights = [numpy_helper.from_array(rng.normal(0, 0.3, (32, n, 3, 3)).astype(np.float32), f"w{i}") for i, n in enumerate((3, *[32] * (depth - 1)))]
        nodes, last = [], "image"
        for i in range(depth):
            nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], strides=[2, 2], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{i}"], [last := f"r{i}"]))
        nodes += [helper.make_node("GlobalAveragePool", [last], ["e"]), helper.make_node("Flatten", ["e"], ["embedding"])]
        reads = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3, size, size]) for name in ("image", "other")[:inputs]]
        graph = helper.make_graph(nodes, "net", reads, [helper.make_tensor_value_info("embedding", onnx.TensorProto.FLOAT, ["n", 32])], weights)
        folder.mkdir()
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(folder / "model.onnx"))
        config = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 16, "width": 16}, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(config))

    def test_a_copy_is_made_and_proven(self) -> None:
        import onnx
        from onnx import numpy_helper

        out = self.room / "net-8bit"
        found = mlrbfn.quantise(self.room / "net", self.room / "images", out, calibration=20, rounds=1, max_loss=100)
        self.assertEqual(found, json.loads((out / "quantised.json").read_text()))
        self.assertEqual((found["images"], found["calibration_images"], found["weight_bits"], found["method"]), (220, 20, 7, "static"))
        self.assertTrue(found["recommended"])
        self.assertGreater(found["cosine_median"], 0.95)
        self.assertLess(found["cosine_median"], 1)
        self.assertGreater(found["same_class"], 0.8)
        self.assertIn("images a second of processor time, detect", str(found))
        whole = [numpy_helper.to_array(i) for i in onnx.load(str(out / "model.onnx")).graph.initializer]
        weights = [w for w in whole if w.dtype == np.int8 and w.ndim == 4]
        self.assertEqual(len(weights), 2)
        self.assertLessEqual(max(np.abs(w.astype(int)).max() for w in weights), 64)
        self.assertEqual(sorted(p.name for p in self.room.iterdir()), ["images", "net", "net-8bit"])
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "the model is quantised")  # true of weights of 8 bits
            features = mlrbfn.extract(self.room / "images", model=out, out=self.room / "features", progress=False)
        detector = mlrbfn.train(features, epochs=2)
        with self.assertRaises(mlrbfn.Error):
            detector.judge(mlrbfn.extract(self.room / "images", model=self.room / "net", out=self.room / "float", progress=False))
        said = subprocess.run([mlrbfn.program(), "show", detector.save(self.room / "d.safetensors") or str(self.room / "d.safetensors")], env=mlrbfn._environment(), capture_output=True, text=True, check=True).stdout
        self.assertIn("a copy of net (static, weights of 7 bits); on 220 images class hold-out lost", said)

    def test_what_is_not_recommended(self) -> None:
        out = self.room / "lost"
        command = [sys.executable, "-c", "import sys; from mlrbfn._quantise import main; sys.exit(main())", "--calibration", "20", "--max-loss=-100", self.room / "net", self.room / "images", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("Do not use it", done.stdout)
        self.assertTrue((out / "quantised.json").exists())
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((again.returncode, again.stderr.strip().endswith("exists already")), (2, True))

    def test_faults(self) -> None:
        rng = np.random.default_rng(1)
        self.model(self.room / "two", rng, inputs=2)
        (self.room / "open").mkdir()
        (self.room / "empty").mkdir()
        (self.room / "flat").mkdir()
        for i, file in enumerate(sorted((self.room / "images").rglob("*.png"))[:80]):
            shutil.copy(file, self.room / "flat" / f"{i}.png")
        for model, images, options, words in (
            ("net", "images", {"calibration": 200}, "are too few"),
            ("net", "images", {"calibration": 0}, "calibration must be"),
            ("net", "images", {"weight_bits": 4}, "weight_bits must be"),
            ("two", "images", {}, "input"),
            ("open", "images", {}, "has no model.onnx"),
            ("net", "empty", {}, "image"),
            ("net", "flat", {"calibration": 10}, "no classes"),
        ):
            with self.subTest(words), self.assertRaisesRegex(mlrbfn.Error, words):
                mlrbfn.quantise(self.room / model, self.room / images, self.room / "none", **options)
        self.assertEqual([p.name for p in self.room.iterdir() if p.name.startswith("none")], [])

    def test_the_first_convolutions_stay(self) -> None:
        """They do where the copy loses too much without."""
        import onnx
        from mlrbfn import _quantise

        self.model(self.room / "deep", np.random.default_rng(3), depth=5)
        said: list[str] = []
        found = mlrbfn.quantise(self.room / "deep", self.room / "images", self.room / "deep-8bit", calibration=10, rounds=1, max_loss=-100, say=said.append)
        self.assertEqual([s for s in said if s.startswith("copy, ")], ["copy, static", f"copy, {_quantise.FIRST}"])
        self.assertIn(found["method"], ("static", _quantise.FIRST))
        pixels = np.random.default_rng(4).normal(size=(4, 3, 16, 16)).astype(np.float32)
        _quantise._written(self.room / "deep" / "model.onnx", self.room / "first.onnx", _quantise.FIRST, False, 7, ("image", pixels))
        made = onnx.load(str(self.room / "first.onnx"))
        self.assertNotIn("mlrbfn.quantise", {p.key for p in made.metadata_props})
        by = {out: n.op_type for n in made.graph.node for out in n.output}
        self.assertEqual([by.get(n.input[1]) == "DequantizeLinear" for n in made.graph.node if n.op_type == "Conv"], [False] * 3 + [True] * 2)
        (self.room / "first.onnx").unlink()

    def test_weights_of_16_bits(self) -> None:
        """They are widened: features are nearly those of the model, and of a float16 export."""
        import onnx
        from onnx import numpy_helper

        out, again = self.room / "net-16", self.room / "net-16-16"
        found = mlrbfn.quantise(self.room / "net", self.room / "images", out, weight_bits=16, calibration=10, rounds=1)
        self.assertEqual((found["method"], found["recommended"]), ("float16", True))
        self.assertGreater(found["cosine_5pct"], 0.99999)
        self.assertLess(found["bytes"][1], 0.6 * found["bytes"][0])
        model = onnx.load(str(out / "model.onnx"))
        half = {i.name: i for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT16}
        self.assertEqual(len(half), 2)
        for node in [n for n in model.graph.node if n.op_type == "Cast"]:  # an export that computes in float16
            half[node.input[0]].name = node.output[0]
            model.graph.node.remove(node)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        shutil.copytree(out, self.room / "half")
        onnx.save(model, str(self.room / "half" / "model.onnx"))
        mlrbfn.quantise(self.room / "half", self.room / "images", again, weight_bits=16, calibration=10, rounds=1)
        wide, whole = (onnx.load(str(f / "model.onnx")).graph for f in (again, out))
        self.assertEqual([v.type.tensor_type.elem_type for v in (*wide.input, *wide.output)], [onnx.TensorProto.FLOAT] * 2)
        for a, b in zip(wide.initializer, whole.initializer, strict=True):
            np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))

    def test_sizes_that_are_left_open(self) -> None:
        self.model(self.room / "any", np.random.default_rng(2), size="side")
        found = mlrbfn.quantise(self.room / "any", self.room / "images", self.room / "any-8bit", calibration=10, rounds=1)
        self.assertEqual(found["weight_bits"], 7)
