"""Detectors and what they say."""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _images, _native, _pages
from ._errors import Error, Errors, OptionError, check_errors, tell_unreadable
from ._features import Features, embed
from ._program import Commands, _stat
from ._signatures import written_out

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

    from ._options import DetectOptions, TrainOptions

_FIELDS = [("class", object), ("label", np.int64), ("confidence", np.float64), ("score", np.float64), ("ood", np.bool_), ("p_value", np.float64)]
# Aligned, because PyTorch takes no column whose steps are not whole numbers of elements.
_JUDGED = np.dtype(_FIELDS, align=True)
_ANSWER = np.dtype([("path", object), *_FIELDS, ("error", object)], align=True)

_FOUND = np.dtype(
    [("path", object), *_FIELDS, ("error", object), ("together", np.float64), ("q_value", np.float64), ("new", np.bool_), ("group", np.int64)],
    align=True,
)

_UNREAD = np.iinfo(np.int64).min  # -1 would be the last class


class Verdicts(np.recarray):
    """What a detector says of rows or images: a NumPy array with named columns.

    - ``class``: the most confident class; ``label``: its index in `Detector.classes_`
    - ``confidence``: the probability that the class is right
    - ``score``: higher is more in-distribution
    - ``ood``: whether the score is below the threshold; True where there is an error, so that
      no filter lets pass what was not judged
    - ``p_value``: the chance that an image like the training images scores this low
    - ``path`` and ``error``, of `Detector.detect` alone; where there is an error, the class is
      None, the numbers are NaN, and the label is the least int64, so that ``classes_[label]`` is
      an IndexError, where -1 would be the last class
    - ``ok``: whether there is no error

    ``verdicts["class"]`` and ``verdicts.score`` are columns, ``verdicts[verdicts.ood]`` are
    the rows that were flagged, and ``pandas.DataFrame(verdicts)`` is a data frame.
    """

    @property
    def ok(self) -> np.ndarray:
        """Whether each row was judged: False where its image could not be read."""
        return np.asarray(self["label"]) >= 0

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the verdicts as a data frame."""
        pandas = _native.optional("pandas", "to_pandas")
        return pandas.DataFrame({name: np.asarray(self[name]) for name in self.dtype.names or ()}).infer_objects()

    def _repr_html_(self) -> str:
        return _pages.of_verdicts(self)

    @property
    def predicted(self) -> np.ndarray:
        """The column ``class``, whose name is a keyword of Python."""
        return np.asarray(self["class"])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(self.dtype.names or ())]


class Discovered(Verdicts):
    """What a detector says of images that it judged together: verdicts with more columns.

    - ``together``: the score that was learned from all of them; higher is more in-distribution
    - ``q_value``: the smallest rate of false discoveries at which the image counts as new; of
      the images close to it more are known than of all up to it
    - ``new``: whether it is called new; ``group``: its group of new images, or -1
    - ``summary``: what `mlrbfn discover --out` writes to summary.json: ``new_at_least``,
      ``bounds``, ``groups`` and others
    """

    summary: dict[str, Any]

    def __array_finalize__(self, other: Any) -> None:
        super().__array_finalize__(other)
        self.__dict__.setdefault("summary", getattr(other, "summary", {}))


def discovered(detector: Detector, lines: list[dict[str, Any]], summary: dict[str, Any]) -> Discovered:
    """Makes the array of the lines that the command prints."""
    found = np.empty(len(lines), _FOUND).view(Discovered)
    classes, numbers = detector.classes_.tolist(), {name: i for i, name in enumerate(detector.info["classes"])}
    for i, a in enumerate(lines):
        path = _native.decode(a["path_bytes"]) if a.get("path_bytes") else a["path"]
        if a.get("error"):
            found[i] = (path, None, _UNREAD, np.nan, np.nan, True, np.nan, a["error"], np.nan, np.nan, False, -1)
        else:
            label = numbers[a["class"]]
            found[i] = (path, classes[label], label, a["confidence"], a["score"], a["ood"], a["p_value"], None, a["together"], a["q_value"], a["new"], a["group"])
    found.__dict__["summary"] = summary
    return found


class Detector(Commands):
    """Says of features or images which class they are of, and whether they are of any
    class that it knows. `train` and `Detector.load` make it.

    - ``classes_``: the classes, in the order of the labels
    - ``info``: what its file says, as `mlrbfn show` reads it
    - ``result``: what training came to, with the names of `mlrbfn train --json`; None for a
      detector from a file
    - ``description``: what `mlrbfn train` prints of it; "" for a detector from a file

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog", "owl"], 100)
    >>> X = rng.normal(size=(300, 8)).astype(np.float32) + 6 * np.eye(8, dtype=np.float32)[np.repeat([0, 1, 2], 100)]
    >>> detector = Detector.train(X, y, epochs=20)
    >>> verdicts = detector.judge(np.stack([X[0], np.full(8, 30, np.float32)]))
    >>> print(verdicts["class"][0], verdicts.ood)
    cat [False  True]
    """

    classes_: np.ndarray
    info: dict[str, Any]
    result: dict[str, Any] | None
    description: str
    _held: int | None  # the library's number of it; 0 once it is closed, None before the first use of a pickle
    _file: bytes = b""  # of a pickle
    _loaded: tuple[str, Any] | None = None  # the file that it was loaded from, and its state then
    _finalizer: weakref.finalize[Any, Detector]

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("Detector.load and Detector.train make detectors")

    @classmethod
    def _of(cls, handle: int, classes: np.ndarray | None = None, result: dict[str, Any] | None = None, description: str = "") -> Detector:
        self: Detector = object.__new__(cls)
        self._hold(handle)
        self.info = self._call("info", quick=True)
        self.info["model"] = _native.decode(self.info["model"])
        kind = {"int": int, "float": float, "bool": "True".__eq__}.get(self.info["class_type"], str)
        self.classes_ = np.array([kind(c) for c in self.info["classes"]]) if classes is None else classes
        self.result, self.description = result, description
        return self

    def _hold(self, handle: int) -> None:
        self._held = handle
        self._finalizer = weakref.finalize(self, _close, handle, os.getpid())
        self._finalizer.atexit = False

    @property
    def _handle(self) -> int:
        """The library's number of the detector, which the first use of a pickle loads."""
        pickled = self._file
        if self._held is None:
            with tempfile.TemporaryDirectory() as room:
                file = os.path.join(room, "pickled.safetensors")
                with open(file, "wb") as f:
                    f.write(pickled)
                self._hold(_native.call("load", {"file": _native.encode(file), "public_key": "", "told": True}, quick=True))
            self._file = b""
        if not self._held:
            raise Error("the detector is closed")
        return self._held

    def close(self) -> None:
        """Lets go of the detector and of the models that `detect` and `embed` keep open, unless
        other detectors use them. `with` does it at its end. Python lets go of a detector that
        nobody holds any more, and of models that nobody has used for a minute."""
        if self._held:
            self._finalizer()
            if not _native._forked:
                _native.call("close_models", {}, quick=True)
        self._held = 0

    def __enter__(self) -> Detector:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @classmethod
    def load(cls, file: str | os.PathLike[str], *, public_key: str | os.PathLike[str] | None = None) -> Detector:
        """Loads a detector file. With public_key, one of minisign or a file with it, the
        detector must be signed by it."""
        loaded = os.path.abspath(file), _stat(os.path.abspath(file))
        detector = cls._of(_native.call("load", {"file": _native.encode(file), "public_key": os.fspath(public_key or "")}, quick=True))
        detector._loaded = loaded
        return detector

    @classmethod
    @written_out
    def train(
        cls,
        X: Any,
        y: Any = None,
        *,
        like: Features | None = None,
        progress: bool | None = None,
        **options: Unpack[TrainOptions],
    ) -> Detector:
        """Trains a detector; see `train`. like are features of the model that the rows come from."""
        if isinstance(X, tuple) and len(X) == 2 and y is None:
            X, y = X
        sets = [X] if isinstance(X, Features) else list(X) if isinstance(X, list) and X and all(isinstance(s, Features) for s in X) else None
        arguments: dict[str, Any] = {"settings": _native.settings({**options})}
        buffers: list[np.ndarray] = []
        classes = None
        if sets is not None and y is None:
            arguments["features"] = [_native.encode(s.unchanged()) for s in sets]
        else:
            if y is None:
                raise OptionError("train takes features of a folder (load_features), or an array and its labels")
            x = _arrays.rows(X)
            index, classes = _arrays.labels(y, len(x))
            names = [str(c) for c in classes]
            if len(set(names)) < len(names):
                raise OptionError("two classes have the same name")
            kinds = {"i": "int", "u": "int", "f": "float", "b": "bool"}
            class_type = kinds.get(np.array(classes.tolist()).dtype.kind, "")
            arguments.update(columns=x.shape[1], classes=names, class_type=class_type, like=_native.encode(like.unchanged() if like else ""))
            buffers = [x, index]
        trained = _native.call("train", arguments, buffers, progress=progress)
        return cls._of(trained["detector"], classes, trained["result"], trained["about"])

    def _call(self, function: str, arguments: dict[str, Any] | None = None, buffers: Iterable[np.ndarray] = (), **how: Any) -> Any:
        return _native.call(function, {"detector": self._handle, **(arguments or {})}, list(buffers), **how)

    @property
    def n_features_in_(self) -> int:
        """The number of features of a row."""
        n: int = self.info["features"]
        return n

    @property
    def threshold(self) -> float:
        """The score below which an image is flagged; -inf if there were too few
        calibration images, so that none is."""
        return -np.inf if self.info["threshold"] is None else self.info["threshold"]

    @property
    def assessment(self) -> dict[str, Any] | None:
        """How well an image of a new class would be noticed, as class hold-out found: `auroc`,
        `caught_at_5_percent`, and `classes` with both of each; None if there was none."""
        assessment: dict[str, Any] | None = self.info["assessment"]
        return assessment

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the detector as one file, which all programs of mlrbfn read. It has the
        names of the classes; those that were numbers are numbers after load."""
        self._call("save", {"file": _native.encode(file)}, quick=True)

    def _rows(self, X: Any) -> np.ndarray:
        """Returns what the detector reads, of a feature set with its layers."""
        if not isinstance(X, Features) or X.shape[1] == self.n_features_in_:
            return _arrays.rows(X, self.n_features_in_)
        x = np.empty((len(X), self.n_features_in_), np.float32)
        self._call("rows", {"folder": _native.encode(X.unchanged())}, [x])
        return x

    def judge(self, X: Any) -> Verdicts:
        """Judges rows of features [n, d]; see `Verdicts`. Of a detector that reads layers or
        patches, too, X is a feature set that has them."""
        x = self._rows(X)
        n = len(x)
        columns = [np.empty(n, kind) for kind in (np.int64, np.float64, np.float64, np.bool_, np.float64)]
        self._call("verdicts", _made_by(X), [x, *columns], quick=n <= 256)
        verdicts = np.empty(n, _JUDGED).view(Verdicts)
        verdicts["class"] = self.classes_[columns[0]]
        for name, column in zip(("label", "confidence", "score", "ood", "p_value"), columns, strict=True):
            verdicts[name] = column
        return verdicts

    def score(self, X: Any) -> np.ndarray:
        """Returns the score of each row, float64 [n]: higher is more in-distribution."""
        x = self._rows(X)
        scores = np.empty(len(x))
        empty = np.empty(0, np.uint8)
        self._call("verdicts", _made_by(X), [x, empty, empty, scores], quick=len(x) <= 256)
        return scores

    def log_confidences(self, X: Any) -> np.ndarray:
        """Returns the logarithm of the confidence in each class, float64 [n, classes]: each
        class is judged on its own, so that all confidences of a new image may be small."""
        x = self._rows(X)
        out = np.empty((len(x), len(self.classes_)))
        self._call("confidences", _made_by(X), [x, out], quick=len(x) <= 256)
        return out

    @written_out
    def detect(self, images: Any, *, model: str | os.PathLike[str] = "", errors: Errors = "warn", progress: bool | None = None, **options: Unpack[DetectOptions]) -> Verdicts:
        """Judges images: a path of an image or a folder, or a list of paths, bytes of image
        files, PIL images, and arrays of bytes (uint8) [height, width, 3] or [height, width].

        model is the folder of the backbone where it is not found by itself; the detector
        keeps it open for the next call, until `close`. An image that cannot be read is a row
        with an error, and a warning; errors="raise" makes it an exception, "ignore" neither.
        options are those of `mlrbfn detect` that say how to run it: device="cuda", workers=4.
        """
        check_errors(errors)
        all_images = [image for image, _ in _images.flat(images)]
        common = {"model": _native.encode(model), "settings": _native.settings({**options})}
        said: list[dict[str, Any]] = []
        for paths, some in itertools.groupby(all_images, lambda image: isinstance(image, (str, os.PathLike))):
            if paths:  # folders among them, perhaps
                said += self._call("detect", {"paths": [_native.encode(i) for i in some], **common}, progress=progress)
                continue
            pictures: list[dict[str, Any]] = []
            buffers: list[np.ndarray] = []
            for image in some:
                buffer, size = _images.pixels(image, len(said) + len(pictures))
                pictures.append({"buffer": len(buffers), **size})
                buffers.append(buffer)
            said += self._call("images", {"images": pictures, **common}, buffers, progress=progress)
        verdicts = np.empty(len(said), _ANSWER).view(Verdicts)
        classes = self.classes_.tolist()
        for i, a in enumerate(said):
            failed = bool(a.get("error"))
            path = _native.decode(a["path"]) if a["path"] else None
            if failed:
                verdicts[i] = (path, None, _UNREAD, np.nan, np.nan, True, np.nan, a["error"])
            else:
                verdicts[i] = (path, classes[a["label"]], a["label"], a["confidence"], a["score"], a["ood"], a["p_value"], None)
        failed = np.flatnonzero(~verdicts.ok)
        if len(failed):
            first = verdicts[failed[0]]
            tell_unreadable(errors, len(failed), f"whose rows have .error and count as .ood; the first: {first.path or f'image {failed[0]}'}: {first.error}")
        return verdicts

    def evaluate(self, known: Any, new: Any) -> dict[str, float]:
        """Measures how well the score tells rows of images of known classes from those of
        new ones: `auroc`, `aupr_out`, `aupr_in`, `fpr95` (known images flagged where 95% of the
        new ones are caught) and `fpr95_id` (new images accepted where 95% of the known
        ones are)."""
        made = [_made_by(x).get("fingerprint", "") for x in (known, new)]
        scores: dict[str, float] = _native.call("measure", {"fingerprints": made}, [self.score(known), self.score(new)], quick=True)
        return scores

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in ("_file", "info", "classes_", "result", "description")}
        if self._held is not None:
            with tempfile.TemporaryDirectory() as room:
                file = os.path.join(room, "pickled.safetensors")
                self.save(file)
                with open(file, "rb") as f:
                    state["_file"] = f.read()
        return _unpickle, (state,)

    def _repr_html_(self) -> str:
        return _pages.of_detector(self)

    def __repr__(self) -> str:
        return f"Detector({len(self.classes_)} classes, {self.n_features_in_} features, score {self.info['scores']}, threshold {self.threshold:.4g})"


def _unpickle(state: dict[str, Any]) -> Detector:
    """Returns a detector that its first use loads: an error here, as in a process that was
    forked, would end a worker of a pool, and the pool would wait for it for ever."""
    detector: Detector = object.__new__(Detector)
    detector.__dict__.update(state, _held=None)
    return detector


def _close(handle: int, pid: int) -> None:
    """Lets go of a detector that nobody holds any more."""
    if os.getpid() == pid:
        _native.call("close", {"detector": handle}, quick=True)


def _made_by(X: Any) -> dict[str, str]:
    """Says which model made features, where that is known."""
    return {"fingerprint": X.fingerprint} if isinstance(X, Features) else {}


@written_out
def train(X: Any, y: Any = None, *, model: str | os.PathLike[str] | Features | None = None, progress: bool | None = None, **options: Unpack[TrainOptions]) -> Detector:
    """Trains a detector on features or images.

    X is a feature set (`load_features`, `extract`, `embed`), a list of such sets, or an array
    [n, d] with the labels y [n], where None, NaN and -1 mean no label (-1 and 1 alone are
    two classes). An array of float32 in C order is read in place; other numbers are converted
    once. Tensors of PyTorch on the CPU are taken as they are.

    model names the model of an array's rows, so that the detector judges images, too: its
    folder or name, or features that it made. With images in the place of X, which are what
    `embed` takes, it computes their features.

    The same options on the same machine give the same detector. Ctrl-C ends the training.
    Class hold-out, which says how well a new class would be noticed and weighs the parts of
    the score, trains once for each class and is most of the time that few rows take;
    no_assess=True leaves it out.
    """
    if model is None:
        return Detector.train(X, y, progress=progress, **options)
    if getattr(X, "ndim", 0) != 2 or getattr(X, "dtype", None) == object:
        if isinstance(model, Features):
            raise OptionError("model is a folder or a name where X are images")
        return Detector.train(embed(X, y, model=model, progress=progress), progress=progress, **options)
    like = model if isinstance(model, Features) else embed(np.zeros((8, 8, 3), np.uint8), model=model, progress=False)
    return Detector.train(X, y, like=like, progress=progress, **options)
