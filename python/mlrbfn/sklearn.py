"""An estimator for scikit-learn: a classifier that also knows what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("mlrbfn.sklearn needs scikit-learn 1.6 or newer: pip install scikit-learn") from error

from ._arrays import plain
from ._detector import Detector, Verdicts

__all__ = ["OODClassifier"]


class OODClassifier(ClassifierMixin, BaseEstimator):
    """Classifies rows of features and says whether they are of any class at all.

    It follows scikit-learn's conventions for classifiers: `predict`, `predict_proba` and
    `decision_function` are about the classes. Besides, `score_samples` is the score that tells
    whether a row is of any known class (higher: more so), `is_ood` compares it with the
    threshold, and `p_values` say how unusual it is.

    Parameters
    ----------
    max_false_alarms : float, default=0.05
        Share of rows of known classes that may be flagged as out of distribution.
    ood_label : object, default=None
        Where it is not None, `predict` gives it to the rows that are flagged.
    scores : str, default="mlrbfn"
        The score that tells known from new, as "knn" or "ensemble(mds,knn)".
    epochs : int, default=None
        Passes over the rows; None leaves the choice to the program.
    lr : float, default=None
        Learning rate; None leaves the choice to the program.
    seeds : int or list of int, default=None
        One head is trained for each; None is the seed of random_state.
    calibration : float or str, default="auto"
        Share of the rows to set the threshold by; "cross:10" takes all of them in 10 folds,
        for few rows, and "auto" decides between both. Folds take ten times longer.
    val : float, default=0.1
        Share of the rows to validate on.
    random_state : int, RandomState instance or None, default=0
        Seeds the division of the rows and the head.
    options : dict, default=None
        Further options of `mlrbfn.train`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    detector_ : mlrbfn.Detector
        Can be saved as a file that the program reads.
    n_features_in_ : int

    Notes
    -----
    There must be 19 calibration rows before a share of 0.05 can be promised, which are 19
    rows with folds. With fewer, no row is flagged, which is a warning.

    Put nothing before it in a pipeline that is fitted on the same rows: the detector itself
    whitens the features. `StandardScaler` takes away the length of a row, by which far rows
    are found; `PCA` fits the rows that set the threshold better than new ones, so that the
    threshold is wrong, which is a warning.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mlrbfn.sklearn import OODClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = OODClassifier(epochs=30, calibration=0.2).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.is_ood([[50, 50, 50, 50]])
    array([ True])
    """

    def __init__(
        self,
        *,
        max_false_alarms: float = 0.05,
        ood_label: Any = None,
        scores: str = "mlrbfn",
        epochs: int | None = None,
        lr: float | None = None,
        seeds: Any = None,
        calibration: float | str = "auto",
        val: float = 0.1,
        random_state: Any = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.max_false_alarms = max_false_alarms
        self.ood_label = ood_label
        self.scores = scores
        self.epochs = epochs
        self.lr = lr
        self.seeds = seeds
        self.calibration = calibration
        self.val = val
        self.random_state = random_state
        self.options = options

    def fit(self, X: Any, y: Any) -> OODClassifier:
        """Trains the detector on rows X [n, d] of the classes y [n]."""
        X, y = validate_data(self, plain(X), plain(y), dtype=np.float32, order="C", ensure_min_samples=2)
        check_classification_targets(y)
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        self.detector_ = Detector.train(
            X,
            y.astype(object),  # in an array of numbers -1 is no label
            progress=False,
            max_false_alarms=self.max_false_alarms,
            scores=self.scores,
            epochs=self.epochs,
            calibration=self.calibration,
            val=self.val,
            lr=self.lr,
            seeds=int(seed) if self.seeds is None else self.seeds,
            **(self.options or {}),
        )
        self.classes_ = self.detector_.classes_ = np.unique(y)
        return self

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        rows: np.ndarray = validate_data(self, plain(X), reset=False, dtype=np.float32, order="C")
        return rows

    def judge(self, X: Any) -> Verdicts:
        """Returns all that the detector says of each row."""
        X = self._rows(X)
        return self.detector_.judge(X)

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most confident class of each row; `ood_label`, where it is set, for
        rows that are out of distribution."""
        X = self._rows(X)
        if self.ood_label is None:
            return self.classes_[np.argmax(self.detector_.log_confidences(X), axis=1)]
        verdicts = self.detector_.judge(X)
        given = self.classes_[verdicts.label]
        kind = np.result_type(given.dtype, np.asarray(self.ood_label).dtype)
        given = given.astype(kind)
        given[verdicts.ood] = self.ood_label
        return given

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the share of each class in the confidences [n, classes] of a row. It says
        which class a row is of if it is of one; see `score_samples` for the other."""
        X = self._rows(X)
        log = self.detector_.log_confidences(X)
        shares = np.exp(log - log.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the logarithm of the confidence in each class [n, classes]; of two
        classes, the second's less the first's [n]."""
        X = self._rows(X)
        log = self.detector_.log_confidences(X)
        return log[:, 1] - log[:, 0] if log.shape[1] == 2 else log

    def score_samples(self, X: Any) -> np.ndarray:
        """Returns the score of each row [n]: higher is more in-distribution."""
        X = self._rows(X)
        return self.detector_.score(X)

    def is_ood(self, X: Any) -> np.ndarray:
        """Returns whether each row is out of distribution [n]."""
        return np.asarray(self.judge(X).ood)

    def p_values(self, X: Any) -> np.ndarray:
        """Returns for each row the chance that a row like the training rows scores as low."""
        return np.asarray(self.judge(X).p_value)
