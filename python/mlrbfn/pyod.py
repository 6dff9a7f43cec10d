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
    divided into `folds` parts, and a detector is trained without each of them (`detectors_`).
    It judges a new row beside the rows that it has not seen either, so that detectors need no
    common scale: the row is flagged if it looks stranger than all but a share `contamination` of
    the training rows, each time to the detector that was trained without that one. Its score
    says by how much, the threshold is 0. This is CV+ (Barber, Candès, Ramdas, Tibshirani,
    *Predictive inference with the jackknife+*, 2021).

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
        fold = _divided(X, y, self.folds, np.random.default_rng(self.random_state))
        if fold.max() < 1:
            raise OptionError("folds is a number of parts, at least 2, and as many rows must differ")
        self.detectors_, self.fold_, self.scores_ = [], fold, np.zeros(len(X))
        for k in range(fold.max() + 1):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "too few calibration", DataWarning)  # contamination sets the threshold
                if k:
                    warnings.simplefilter("ignore", DataWarning)  # said of the first
                out = fold == k
                self.detectors_.append(Detector.train(X[~out], y[~out], progress=False, **options))
                self.scores_[out] = self.detectors_[k].score(X[out])
        self.decision_scores_ = np.quantile(self.scores_, self.contamination, method="weibull") - self.scores_
        self._process_decision_scores()
        return self

    def _process_decision_scores(self) -> OODDetector:
        super()._process_decision_scores()
        self.threshold_ = 0.0  # PyOD's own is the quantile of the training rows, which flags a little less of new rows
        self.labels_ = (self.decision_scores_ > 0).astype(int)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the score of each row [n]: higher is more abnormal, above 0 is flagged.

        It is the negative of the quantile 1 − contamination, over the training rows, of how much
        more normal the row is than they, to the detector that was trained without them.
        """
        check_is_fitted(self, ["detectors_"])
        X = check_array(plain(X), dtype=np.float32, order="C")
        scores = np.stack([part.score(X) for part in self.detectors_], axis=1)
        step = max(1, (1 << 22) // len(self.scores_))
        blocks = (scores[i : i + step][:, self.fold_] - self.scores_ for i in range(0, len(X), step))
        return -np.concatenate([np.quantile(block, 1 - self.contamination, axis=1, method="weibull") for block in blocks])


def _divided(X: np.ndarray, y: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the fold of each row: classes are spread evenly, and rows that are equal share one."""
    _, first, group = np.unique(X.view(np.dtype((np.void, X.itemsize * X.shape[1])))[:, 0], return_index=True, return_inverse=True)
    fold = np.empty(len(first), np.int64)
    fold[np.lexsort((rng.permutation(len(first)), y[first]))] = np.arange(len(first)) % max(1, folds)
    return fold[group]
