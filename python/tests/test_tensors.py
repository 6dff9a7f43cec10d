"""Tests with tensors: of PyTorch where it is installed, and everywhere with a stand-in
that behaves as they do."""

from __future__ import annotations

import importlib.util
import unittest
from typing import Any

import numpy as np

import mlrbfn
from mlrbfn import _arrays
from mlrbfn.sklearn import OODClassifier

QUICK: dict[str, Any] = {"epochs": 10, "options": {"no_assess": True}}


class Tensor:
    """An array only once it is detached, and never of bfloat16."""

    def __init__(self, x: np.ndarray, dtype: str | None = None, requires_grad: bool = False) -> None:
        self.x, self.dtype, self.requires_grad = x, dtype or f"torch.{x.dtype}", requires_grad
        self.shape = x.shape

    def __len__(self) -> int:
        return len(self.x)

    def detach(self) -> Tensor:
        return Tensor(self.x, self.dtype)

    def float(self) -> Tensor:
        return Tensor(self.x.astype(np.float32), "torch.float32", self.requires_grad)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        if self.dtype == "meta":
            raise TypeError("can't convert meta device type tensor to numpy")
        return self.x if dtype is None else self.x.astype(dtype, copy=False)


class StandIn(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        rng = np.random.default_rng(0)
        cls.y = np.repeat([0, 1, 2], 100)
        # Numbers that bfloat16 has.
        cls.x = (np.round(4 * rng.normal(size=(300, 8))) / 4 + 6 * np.eye(8)[cls.y]).astype(np.float32)
        cls.detector = mlrbfn.train(cls.x, cls.y, epochs=10)

    def tensor(self, x: np.ndarray, dtype: str = "", requires_grad: bool = False) -> Any:
        return Tensor(x if dtype in ("", "bfloat16") else x.astype(dtype), dtype and f"torch.{dtype}", requires_grad)

    def meta(self) -> Any:
        return Tensor(self.x, "meta")

    def kinds(self) -> dict[str, Any]:
        """Returns the same rows as all kinds of tensors."""
        kinds = {dtype: self.tensor(self.x, dtype) for dtype in ("float32", "float64", "float16", "bfloat16")}
        kinds["gradient"] = self.tensor(self.x, requires_grad=True)
        kinds["transposed"] = self.tensor(np.asfortranarray(self.x))
        kinds["strided"] = self.tensor(np.repeat(self.x, 2, axis=1)[:, ::2])
        return kinds

    def test_float32_is_not_copied(self) -> None:
        for tensor in (self.tensor(self.x), self.tensor(self.x, requires_grad=True), self.tensor(self.x[10:20])):
            self.assertTrue(np.shares_memory(_arrays.rows(tensor), self.x))
        model = OODClassifier(**QUICK).fit(self.x, self.y)
        self.assertTrue(np.shares_memory(model._rows(self.tensor(self.x, requires_grad=True)), self.x))

    def test_detector(self) -> None:
        want = self.detector.judge(self.x)
        for kind, x in self.kinds().items():
            with self.subTest(kind):
                detector = mlrbfn.train(x, self.tensor(self.y), epochs=10)
                self.assertEqual(detector.classes_.tolist(), [0, 1, 2])
                for verdicts in (detector.judge(x), self.detector.judge(x), detector.judge(self.x)):
                    np.testing.assert_array_equal(verdicts, want)
                np.testing.assert_array_equal(detector.score(x), want.score)
                np.testing.assert_array_equal(detector.log_confidences(x), self.detector.log_confidences(self.x))

    def check(self, model: Any, methods: list[str], *labels: np.ndarray) -> None:
        """Fits a model to tensors and to arrays, and compares what the methods say."""
        want = model().fit(self.x, *labels)
        for kind, x in self.kinds().items():
            with self.subTest(kind):
                got = model().fit(x, *(self.tensor(y) for y in labels))
                for method in methods:
                    np.testing.assert_array_equal(getattr(got, method)(x), getattr(want, method)(self.x))

    def test_classifier(self) -> None:
        self.check(lambda: OODClassifier(**QUICK), ["predict", "predict_proba", "decision_function", "score_samples", "is_ood", "p_values"], self.y)

    @unittest.skipUnless(importlib.util.find_spec("pyod"), "PyOD is not installed")
    def test_pyod(self) -> None:
        from mlrbfn.pyod import OODDetector

        self.check(lambda: OODDetector(options={"epochs": 10}), ["predict", "predict_proba", "decision_function"])
        known = OODDetector(options={"epochs": 10}).fit(self.tensor(self.x), classes=self.tensor(self.y))
        self.assertEqual(known.detectors_[0].classes_.tolist(), [0, 1, 2])

    def test_another_device(self) -> None:
        model = OODClassifier(**QUICK).fit(self.x, self.y)
        for what, do in [
            ("features", lambda: self.detector.judge(self.meta())),
            ("features", lambda: mlrbfn.train(self.meta(), self.y)),
            ("labels", lambda: mlrbfn.train(self.x, self.meta())),
            ("tensor", lambda: OODClassifier().fit(self.meta(), self.y)),
            ("tensor", lambda: OODClassifier().fit(self.x, self.meta())),
            ("tensor", lambda: model.predict(self.meta())),
        ]:
            with self.subTest(what), self.assertRaisesRegex(mlrbfn.OptionError, f"NumPy cannot read the {what}: can't convert meta device"):
                do()


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class PyTorch(StandIn):
    def tensor(self, x: np.ndarray, dtype: str = "", requires_grad: bool = False) -> Any:
        import torch

        tensor = torch.from_numpy(x)
        return (tensor.to(getattr(torch, dtype)) if dtype else tensor).requires_grad_(requires_grad)

    def meta(self) -> Any:
        return self.tensor(self.x).to("meta")

    def test_batches(self) -> None:
        from torch.utils.data import DataLoader, TensorDataset

        want = self.detector.judge(self.x)
        for workers in (0, 2):  # which are forked, and do not use mlrbfn
            with self.subTest(workers):
                loader = DataLoader(TensorDataset(self.tensor(self.x)), batch_size=64, num_workers=workers)
                np.testing.assert_array_equal(np.concatenate([self.detector.judge(x) for (x,) in loader]), want)

    def test_module(self) -> None:
        import torch

        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
        with torch.no_grad():
            x = module(self.tensor(self.x))
        detector = mlrbfn.train(x, self.y, epochs=10)
        want = detector.judge(x.numpy())
        np.testing.assert_array_equal(detector.judge(x), want)
        np.testing.assert_array_equal(detector.judge(module(self.tensor(self.x))), want)  # with a gradient
        with torch.autocast("cpu", torch.bfloat16):
            x = module(self.tensor(self.x))
        np.testing.assert_array_equal(detector.judge(x), detector.judge(x.detach().float().numpy()))

    def test_columns_are_tensors(self) -> None:
        import torch

        verdicts = self.detector.judge(self.x)
        for name in ("label", "confidence", "score", "ood", "p_value"):
            np.testing.assert_array_equal(torch.from_numpy(verdicts[name]).numpy(), verdicts[name])


if __name__ == "__main__":
    unittest.main()
