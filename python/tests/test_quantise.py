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
    def model(folder: Path, rng: np.random.Generator, inputs: int = 1, size: object = 16) -> None:
        import onnx
        from onnx import helper, numpy_helper

        weights = [numpy_helper.from_array(rng.normal(0, 0.3, (32, n, 3, 3)).astype(np.float32), f"w{i}") for i, n in enumerate((3, 32))]
        nodes = [
            helper.make_node("Conv", ["image", "w0"], ["a"], strides=[2, 2]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w1"], ["c"], strides=[2, 2]),
            helper.make_node("Relu", ["c"], ["d"]),
            helper.make_node("GlobalAveragePool", ["d"], ["e"]),
            helper.make_node("Flatten", ["e"], ["embedding"]),
        ]
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
        self.assertIn("images a second", str(found))
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
        self.assertIn("an 8-bit copy of net (static, weights of 7 bits); on 220 images class hold-out lost", said)

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

    def test_sizes_that_are_left_open(self) -> None:
        self.model(self.room / "any", np.random.default_rng(2), size="side")
        found = mlrbfn.quantise(self.room / "any", self.room / "images", self.room / "any-8bit", calibration=10, rounds=1)
        self.assertEqual(found["weight_bits"], 7)
