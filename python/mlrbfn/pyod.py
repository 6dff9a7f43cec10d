"""A detector for PyOD: the same head, by PyOD's conventions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

try:
    from pyod.models.base import BaseDetector
    from sklearn.utils.validation import check_array, check_is_fitted
except ImportError as error:
    raise ImportError("mlrbfn.pyod needs PyOD: pip install pyod") from error

from ._arrays import labels, plain
from ._detector import Detector
from ._errors import DataWarning, OptionError

__all__ = ["OODDetector"]


class OODDetector(BaseDetector):
    """Finds rows of features that are unlike the others.

    It differs from `mlrbfn.sklearn.OODClassifier` as PyOD does from scikit-learn: higher scores
    are more abnormal, `predict` returns 1 for abnormal rows and 0 for others, and
    `contamination` sets the threshold, which flags this share of the training rows and of new
    rows like them. Training rows have `decision_scores_` and `labels_`.

    Rows that a detector was trained on look more normal to it than others. So the rows are
    divided into `folds` parts, and a detector is trained without each of them (`detectors_`,
    with the scale and the offset of its scores). A training row has the score of the one that
    was trained without it, a new row the mean of all. The scores are put on the scale of
    `detector_`, which was trained on all rows, by the quartiles of the rows that both have seen.

    fit takes no labels, as with most detectors of PyOD: all rows are one class. With `classes`
    it takes the class of each row, which makes the score much better, and which are not the
    0 and 1 of PyOD's y.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(190, 4)), rng.normal(8, 1, size=(10, 4))])
    >>> model = OODDetector(contamination=0.05).fit(X)
    >>> int(model.labels_.sum())
    10
    >>> model.predict([[0, 0, 0, 0], [8, 8, 8, 8]])
    array([0, 1])
    """

    def __init__(self, contamination: float = 0.1, scores: str = "mlrbfn", random_state: int = 0, options: dict[str, Any] | None = None, folds: int = 10) -> None:
        super().__init__(contamination=contamination)
        self.scores = scores
        self.random_state = random_state
        self.options = options
        self.folds = folds

    def fit(self, X: Any, y: Any = None, classes: Any = None) -> OODDetector:
        """Fits the detector to rows X [n, d]; y is ignored."""
        X = check_array(plain(X), dtype=np.float32, order="C")
        self._set_n_classes(None)
        self.n_features_in_ = X.shape[1]
        y, _ = labels(np.zeros(len(X), np.int64) if classes is None else classes, len(X))
        options = {"no_assess": True, **(self.options or {}), "scores": self.scores, "seeds": self.random_state, "calibration": 0}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "too few calibration", DataWarning)  # contamination sets the threshold
            self.detector_ = Detector.train(X, y if classes is None else classes, progress=False, **options)
            warnings.simplefilter("ignore", DataWarning)  # said of all rows
            scores = self.detector_.score(X)
            self.decision_scores_, self.detectors_ = np.zeros(len(X)), []
            fold = _divided(X, y, self.folds, np.random.default_rng(self.random_state))
            if fold.max() < 1:
                raise OptionError("folds is a number of parts, at least 2, and as many rows must differ")
            for out in (fold == k for k in range(fold.max() + 1)):
                part = Detector.train(X[~out], y[~out], progress=False, **options)
                own = part.score(X)
                here, there = (np.percentile(of[~out], [25, 50, 75]) for of in (own, scores))
                scale = (there[2] - there[0]) / (here[2] - here[0]) if here[2] > here[0] else 1.0
                offset = there[1] - scale * here[1]
                self.detectors_.append((part, scale, offset))
                self.decision_scores_[out] = -(scale * own[out] + offset)
        self._process_decision_scores()
        return self

    def _process_decision_scores(self) -> OODDetector:
        super()._process_decision_scores()
        # The quantile that a new row exceeds with the probability contamination. PyOD's own adds
        # (1 − 2·contamination)/(n + 1) to it.
        self.threshold_ = np.quantile(self.decision_scores_, 1 - self.contamination, method="weibull")
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the score of each row [n]: higher is more abnormal."""
        check_is_fitted(self, ["detectors_"])
        X = check_array(plain(X), dtype=np.float32, order="C")
        return -np.mean([scale * part.score(X) + offset for part, scale, offset in self.detectors_], axis=0)


def _divided(X: np.ndarray, y: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the fold of each row: classes are spread evenly, and rows that are equal share one."""
    _, first, group = np.unique(X.view(np.dtype((np.void, X.itemsize * X.shape[1])))[:, 0], return_index=True, return_inverse=True)
    fold = np.empty(len(first), np.int64)
    fold[np.lexsort((rng.permutation(len(first)), y[first]))] = np.arange(len(first)) % max(1, folds)
    return fold[group]
