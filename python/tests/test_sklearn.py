"""Tests of the estimators for scikit-learn and PyOD."""

from __future__ import annotations

import doctest
import importlib.util
import pickle
import sys
import tempfile
import types
import unittest
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import mlrbfn.sklearn
from mlrbfn.sklearn import OODClassifier

if importlib.util.find_spec("numba") is None:
    # PyOD asks for it, which brings 200 MB of LLVM, and only needs it for speed.
    sys.modules["numba"] = types.ModuleType("numba")
    sys.modules["numba"].njit = lambda function: function  # type: ignore[attr-defined]

QUICK = {"epochs": 10, "options": {"no_assess": True}}


class Classifier(unittest.TestCase):
    def test_check_estimator(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(OODClassifier(epochs=10), on_fail=None, on_skip=None)
        self.assertGreater(len(results), 40)
        for result in results:
            with self.subTest(result["check_name"]):
                if result["status"] == "failed":
                    raise result["exception"]
        # Only what asks for packages or interfaces that are not here.
        skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
        self.assertLessEqual(skipped, {"check_array_api_input"})

    def test_composition(self) -> None:
        X, y = load_iris(return_X_y=True, as_frame=True)
        model = make_pipeline(StandardScaler(), OODClassifier(**QUICK))
        self.assertGreater(cross_val_score(model, X, y, cv=3, n_jobs=2).mean(), 0.85)  # by loky
        search = GridSearchCV(model, {"oodclassifier__epochs": [5, 20]}, cv=2).fit(X, y)
        self.assertEqual(list(search.predict(X[:2])), [0, 0])
        self.assertEqual(search.best_estimator_[-1].n_features_in_, 4)

    def test_options_to_search_over(self) -> None:
        X, y = load_iris(return_X_y=True)
        search = GridSearchCV(OODClassifier(**QUICK), {"lr": [1e-3, 1e-2], "seeds": [3, [0, 1]], "scores": ["mlrbfn", "knn"]}, cv=2).fit(X, y)
        self.assertEqual(set(search.best_params_), {"lr", "seeds", "scores"})
        self.assertEqual(len(OODClassifier(seeds=[0, 1], **QUICK).fit(X, y).detector_.info["seeds"]), 2)

    def test_copies(self) -> None:
        import joblib

        X, y = load_iris(return_X_y=True)
        model = OODClassifier(**QUICK).fit(X, y)
        with tempfile.TemporaryDirectory() as room:
            joblib.dump(model, room + "/model.joblib")
            copies = [pickle.loads(pickle.dumps(model)), joblib.load(room + "/model.joblib"), clone(model).fit(X, y), OODClassifier(**QUICK).fit(X, y)]
        for copy in copies:
            np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
            np.testing.assert_array_equal(copy.score_samples(X), model.score_samples(X))
        other = OODClassifier(random_state=1, **QUICK).fit(X, y)
        self.assertFalse(np.array_equal(other.score_samples(X), model.score_samples(X)))

    def test_few_rows(self) -> None:
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1], 50)
        X = rng.normal(size=(100, 8)) + 6 * np.eye(8)[y]
        model = OODClassifier(**QUICK).fit(X, y)
        self.assertGreater(model.detector_.info["folds"], 1)
        self.assertTrue(model.is_ood(np.full((3, 8), 40.0)).all())
        self.assertLess(model.is_ood(rng.normal(size=(100, 8)) + 6 * np.eye(8)[y]).mean(), 0.2)
        with self.assertWarnsRegex(mlrbfn.DataWarning, "no image will be flagged"):
            OODClassifier(**QUICK).fit(X[::10], y[::10])
        self.assertEqual(OODClassifier(**QUICK).fit(np.tile(X, (3, 1)) + rng.normal(size=(300, 8)), np.tile(y, 3)).detector_.info["folds"], 0)

    def test_what_stands_before_it(self) -> None:
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(4), 100)
        kinds = np.abs(rng.normal(size=(5, 64))) + 1
        known, far = kinds[y] + rng.normal(size=(400, 64)) / 2, 3 * np.abs(rng.normal(size=(100, 64))) + 1
        for before in ([], [StandardScaler()]):
            model = make_pipeline(*before, OODClassifier(**QUICK)).fit(known, y)
            flagged = model[-1].is_ood(make_pipeline("passthrough", *before).transform(far))
            self.assertGreater(flagged.mean(), 0.99)
        with self.assertWarnsRegex(mlrbfn.DataWarning, "principal axes"):
            make_pipeline(PCA(20), OODClassifier(**QUICK)).fit(known, y)

    def test_ood(self) -> None:
        X, y = load_iris(return_X_y=True)
        names = np.array(["setosa", "versicolor", "virginica"])[y]
        model = OODClassifier(ood_label="unknown", calibration=0.3, **QUICK).fit(X, names)
        strange = [[50.0, 50, 50, 50]]
        self.assertEqual(model.predict(strange).tolist(), ["unknown"])
        self.assertTrue(model.is_ood(strange)[0])
        self.assertLess(model.score_samples(strange)[0], model.score_samples(X).min())
        self.assertLess(model.p_values(strange)[0], 0.05)
        self.assertEqual(set(model.predict(X)) - {"unknown"}, set(names))


@unittest.skipUnless(importlib.util.find_spec("pyod"), "PyOD is not installed")
class PyOD(unittest.TestCase):
    def test_conventions(self) -> None:
        from pyod.utils.data import generate_data

        from mlrbfn.pyod import OODDetector

        x, more, y, more_y = generate_data(n_train=300, n_test=100, n_features=5, contamination=0.1, random_state=0)
        model = OODDetector(contamination=0.1).fit(x)
        self.assertEqual((model.decision_scores_.shape, model.labels_.shape), ((300,), (300,)))
        self.assertEqual(model.labels_.sum(), 30)
        np.testing.assert_array_equal(model.labels_, (model.decision_scores_ > model.threshold_).astype(int))
        self.assertGreater(np.corrcoef(model.decision_function(x), model.decision_scores_)[0, 1], 0.9)
        self.assertGreater(np.mean(model.labels_ == y), 0.95)
        self.assertEqual(set(model.predict(more)), {0, 1})
        self.assertGreater(np.mean(model.predict(more) == more_y), 0.95)
        proba = model.predict_proba(more)
        self.assertEqual(proba.shape, (100, 2))
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        self.assertEqual(model.predict(more, return_confidence=True)[1].shape, (100,))
        self.assertEqual(model.fit_predict(x).shape, (300,))
        self.assertEqual(model._predict_rank(more).shape, (100,))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).decision_function(more), model.decision_function(more))
        clone(model).fit(x)
        for wrong in (0.0, 0.6):
            with self.assertRaises(ValueError):
                OODDetector(contamination=wrong)
        known = OODDetector().fit(x, classes=np.arange(300) % 2)
        self.assertEqual(len(known.detectors_[0].classes_), 2)

    def test_flags_the_share_of_new_rows(self) -> None:
        from pyod.utils.data import generate_data

        from mlrbfn.pyod import OODDetector

        warnings.simplefilter("ignore", mlrbfn.DataWarning)  # of rows that are equal; unittest sets the filter anew
        rng = np.random.default_rng(0)
        sets = {
            "iris": (load_iris().data, 75, 20),
            "wine": (load_wine().data, 100, 10),
            "breast cancer": (load_breast_cancer().data, 200, 10),
            "diabetes": (load_diabetes().data, 200, 5),
            "wide": (rng.normal(size=(900, 40)) @ np.diag(np.linspace(0.1, 2, 40)), 200, 5),
            "more features than rows": (rng.normal(size=(1000, 200)) @ np.diag(np.linspace(0.1, 2, 200)), 120, 10),
            "with outliers": (generate_data(n_train=900, n_features=5, contamination=0.1, train_only=True, random_state=0)[0], 200, 5),
        }
        for name, (X, n, splits) in sets.items():
            shares: dict[float, list[float]] = {0.05: [], 0.1: [], 0.2: []}
            for _ in range(splits):
                x = X[rng.permutation(len(X))]
                model = OODDetector().fit(x[:n])
                for contamination, flagged in shares.items():  # the detectors are the same for all
                    model.contamination = contamination
                    flagged.append((model.decision_function(x[n:]) > 0).mean())
            for contamination, flagged in shares.items():
                with self.subTest(name, contamination=contamination):
                    error = np.sqrt(contamination * (1 - contamination) * (1 / n + 1 / (len(X) - n)) / splits)
                    # Where rows are few for their features, the detectors agree less, and CV+ flags fewer.
                    fewer = 0.7 * contamination if n < X.shape[1] else 0
                    self.assertLess(np.mean(flagged) - contamination, 3 * error)
                    self.assertLess(contamination - np.mean(flagged), 3 * error + fewer)

    def test_rows_that_are_equal_are_left_out_together(self) -> None:
        from mlrbfn.pyod import _divided

        X = np.repeat(np.arange(40, dtype=np.float32), 3)[:, None]
        y = np.repeat([0, 1], 60)
        fold = _divided(X, y, 5, np.random.default_rng(0)).reshape(40, 3)
        self.assertTrue((fold == fold[:, :1]).all())
        self.assertEqual(np.bincount(fold[:20, 0]).tolist(), [4] * 5)

    def test_in_an_embedding_detector(self) -> None:
        try:
            from pyod.models.embedding import EmbeddingOD
        except ImportError:
            self.skipTest("this PyOD has no EmbeddingOD")
        from mlrbfn.pyod import OODDetector

        rows = np.random.default_rng(0).normal(size=(400, 20)).astype(np.float32)
        model = EmbeddingOD(encoder=lambda items: rows[np.asarray(items, dtype=int)], detector=OODDetector(contamination=0.1), contamination=0.1)
        self.assertAlmostEqual(model.fit(list(range(200))).predict(list(range(200, 400))).mean(), 0.1, delta=0.06)


def load_tests(_loader: object, tests: unittest.TestSuite, _pattern: object) -> unittest.TestSuite:
    tests.addTests(doctest.DocTestSuite(mlrbfn.sklearn))
    if importlib.util.find_spec("pyod"):
        from mlrbfn import pyod

        tests.addTests(doctest.DocTestSuite(pyod))
    return tests


if __name__ == "__main__":
    unittest.main()
