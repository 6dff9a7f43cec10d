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

from ._arrays import plain
from ._detector import Detector
from ._errors import DataWarning

__all__ = ["OODDetector"]


class OODDetector(BaseDetector):
    """Finds rows of features that are unlike the others.

    It differs from `mlrbfn.sklearn.OODClassifier` as PyOD does from scikit-learn: higher scores
    are more abnormal, `predict` returns 1 for abnormal rows and 0 for others, and the
    threshold is the one that flags the share `contamination` of the training rows, whose
    scores and labels are `decision_scores_` and `labels_`. Each training row is scored by a
    detector that is trained without it, in `folds` folds, as new rows are: rows that a
    detector was trained on look more normal to it than others.

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
        options = {"no_assess": True, **(self.options or {})}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "too few calibration", DataWarning)  # contamination sets the threshold
            self.detector_ = Detector.train(
                X,
                np.zeros(len(X), np.int64) if classes is None else classes,
                progress=False,
                scores=self.scores,
                seeds=self.random_state,
                calibration=f"cross:{self.folds}",
                **options,
            )
        self.decision_scores_ = -self.detector_._held_out(len(X))
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the score of each row [n]: higher is more abnormal."""
        check_is_fitted(self, ["detector_"])
        return -self.detector_.score(check_array(plain(X), dtype=np.float32, order="C"))
